"""Exported encoders, loaded by transformers in a process outside the repository."""

from runtime import checkpoints

import pytest
import torch
from conftest import run_outside

import export_hf

pytest.importorskip("transformers", reason="transformers is not installed")
EXPORTED = ["cable", "alibi", "rope", "t5", "fire", "learnable", "sinusoidal"]
EXPORTED += ["window:w=9+kerple", "dapev2+kerple"]
LOADED = """
import pathlib, sys
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

results = {}
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model, report = AutoModel.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True)
    masked = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True)
    texts = ["1: line <|mask|> of", "12"]
    result = results[folder.name] = {"report": {key: list(found) for key, found in report.items()}}
    result["tokens"] = [tokenizer(text)["input_ids"] for text in texts]
    with torch.no_grad():
        result["alone"] = [
            model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
        for side in ("left", "right"):
            batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side=side)
            hidden = model(**batch).last_hidden_state
            result[side] = [row[mask.bool()] for row, mask in zip(hidden, batch["attention_mask"])]
        result["logits"] = masked(**tokenizer(texts[0], return_tensors="pt")).logits[0]
        bf16 = AutoModel.from_pretrained(folder, trust_remote_code=True, dtype=torch.bfloat16)
        result["bf16"] = bf16(**tokenizer(texts[0], return_tensors="pt")).last_hidden_state[0]
    inputs = tokenizer(texts[0], return_tensors="pt")
    labels = torch.where(inputs["input_ids"] == tokenizer.mask_token_id, 66, -100)
    result["loss"] = masked(**inputs, labels=labels).loss.item()
torch.save(results, sys.argv[2] + "/results.pt")
"""


@pytest.fixture(scope="module")
def runs(lively):
    return {pe: lively(pe, "--objective", "mlm") for pe in EXPORTED}


@pytest.fixture(scope="module")
def exports(runs, tmp_path_factory):
    """(folder of exports, results of a process outside the repository, by encoding)"""
    root = tmp_path_factory.mktemp("encoders")
    for pe, run in runs.items():
        export_hf.main([str(run), "--out_dir", str(root / pe)])
    return root, run_outside(LOADED, tmp_path_factory.mktemp("away"), root)


@pytest.mark.parametrize("pe", EXPORTED)
def test_loaded_folder_has_the_hidden_states_of_the_run(pe, runs, exports):
    model, _ = checkpoints.load_model(runs[pe], torch.device("cpu"), causal=False)
    result = exports[1][pe]
    assert not any(result["report"].values())
    assert result["tokens"] == [[*b"1: line ", 257, *b" of"], [*b"12"]]
    for n, tokens in enumerate(result["tokens"]):
        ours = model.hidden(torch.tensor([tokens]))[0].detach()
        for how in ("alone", "left", "right"):  # padding on either side
            torch.testing.assert_close(result[how][n], ours, rtol=1e-4, atol=1e-5)
    logits = model(torch.tensor([result["tokens"][0]]))[0, :, :258].detach()
    torch.testing.assert_close(result["logits"], logits, rtol=1e-4, atol=1e-5)
    assert result["loss"] == pytest.approx(-logits.log_softmax(-1)[8, 66].item(), rel=1e-5)
    torch.testing.assert_close(result["bf16"], result["alone"][0], rtol=0.1, atol=0.1)
    assert result["bf16"].dtype == torch.float32


def test_exported_readme_describes_an_encoder(exports):
    text = (exports[0] / "cable" / "README.md").read_text()
    assert "AutoModelForMaskedLM" in text and "a <|mask|>" in text
    assert "CausalLM" not in text and "generate" not in text
