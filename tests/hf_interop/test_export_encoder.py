"""Exported encoders, as transformers loads them."""

import pytest
import torch

import export_hf
from training import checkpoints

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
EXPORTED = ["cable", "alibi", "rope", "t5", "fire", "learnable", "sinusoidal"]
EXPORTED += ["window:w=9+kerple", "dapev2+kerple"]
TEXTS = ["1: line <|mask|> of", "12"]
TOKENS = [[*b"1: line ", 257, *b" of"], [*b"12"]]


@pytest.fixture(params=EXPORTED)
def run(request, lively):
    return lively(request.param, "--objective", "mlm")


@torch.no_grad()
def test_exported_encoder_is_that_of_the_run(run, tmp_path):
    """Hidden states with padding on either side, logits, loss, bfloat16 and the README."""
    out = tmp_path / "exported"
    export_hf.main([str(run), "--out_dir", str(out)])
    ours, _ = checkpoints.load_model(run, torch.device("cpu"), causal=False)
    options = {"trust_remote_code": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, **options)
    load = transformers.AutoModel.from_pretrained
    model, report = load(out, output_loading_info=True, **options)
    assert not any(report.values()) and tokenizer(TEXTS)["input_ids"] == TOKENS
    expected = [ours.hidden(torch.tensor([tokens]))[0] for tokens in TOKENS]
    for side in ("left", "right"):
        batch = tokenizer(TEXTS, return_tensors="pt", padding=True, padding_side=side)
        hidden = model(**batch).last_hidden_state
        rows = [row[mask.bool()] for row, mask in zip(hidden, batch["attention_mask"], strict=True)]
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)
    inputs = tokenizer(TEXTS[:1], return_tensors="pt")
    alone = model(**inputs).last_hidden_state
    torch.testing.assert_close(alone, expected[0][None], rtol=1e-4, atol=1e-5)
    labels = torch.where(inputs["input_ids"] == tokenizer.mask_token_id, 66, -100)
    masked = transformers.AutoModelForMaskedLM.from_pretrained(out, **options)
    result = masked(**inputs, labels=labels)
    logits = ours(torch.tensor(TOKENS[:1]))[..., :258]
    torch.testing.assert_close(result.logits, logits, rtol=1e-4, atol=1e-5)
    assert result.loss.item() == pytest.approx(-logits[0, 8].log_softmax(-1)[66].item(), rel=1e-5)
    half = load(out, dtype=torch.bfloat16, **options)(**inputs).last_hidden_state
    torch.testing.assert_close(half, alone, rtol=0.1, atol=0.1)  # float32, too
    text = (out / "README.md").read_text()
    assert "AutoModelForMaskedLM" in text and "a <|mask|>" in text
    assert "CausalLM" not in text and "generate" not in text
