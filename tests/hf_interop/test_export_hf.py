"""Exported decoders, loaded by transformers in a process outside the repository."""

import pytest
import safetensors.torch
import torch
from conftest import KINDS, LIMITED, ROOT, run_outside
from test_sampling import greedy_tokens

import export_hf
import posenc
from training import checkpoints

# These also generate, and are saved again.
GENERATING = [*KINDS, "kerple", "fire", "rope:heads_percent=75+cable:heads_percent=75"]
# One of each module, which the folder must contain.
MODULES = {cls.__module__: pe for pe, cls in posenc.ENCODINGS.items()}
EXPORTED = sorted({*GENERATING, *LIMITED, "alibi", *MODULES.values()})
PROMPT = [256, *b"1: line"]
LOADED = """
import logging, pathlib, sys
import torch, transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, DynamicCache

warnings = []
logging.getLogger("transformers").addHandler(handler := logging.Handler())
handler.emit = lambda record: warnings.append(record.getMessage())
transformers.logging.set_verbosity_warning()
results = {}
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    tokens = torch.tensor([[256, *b"12: line 7 of 4"]])
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, output_loading_info=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    result = results[folder.name] = {"report": {key: list(found) for key, found in report.items()}}
    prompt = tokenizer("<|endoftext|>1: line", return_tensors="pt")
    result["prompt"] = prompt["input_ids"].tolist()
    with torch.no_grad():
        result["logits"] = model(tokens).logits
        cache = DynamicCache(config=model.config)
        parts = [model(part, past_key_values=cache, use_cache=True).logits
                 for part in tokens.split((1, 6, 1, 8), 1)]
        result["cached"] = torch.cat(parts, 1)
    result["warnings"], warnings[:] = list(warnings), []
    if folder.name not in sys.argv[2].split():
        continue
    with torch.no_grad():
        base, report = AutoModel.from_pretrained(
            folder, trust_remote_code=True, output_loading_info=True)
        result["base report"] = {key: list(found) for key, found in report.items()}
        hidden = base(tokens).last_hidden_state
        result["base"] = hidden @ base.get_input_embeddings().weight.T
        result["last"] = model(tokens, logits_to_keep=2).logits
        steps = []
        forward = model.model.hidden
        model.model.hidden = lambda x, *rest: steps.append(x.shape[1]) or forward(x, *rest)
        result["text"] = model.generate(**prompt, max_new_tokens=8)[0].tolist()
        result["tokens per step"], model.model.hidden = steps, forward
    result["end"] = model.generation_config.eos_token_id
    result["denormal"] = (torch.tensor([2e-40]) / 2).item()
    result["loss"] = model(tokens, labels=tokens).loss.item()
    saved = f"{sys.argv[3]}/{folder.name} saved"  # as fine-tuning does
    model.save_pretrained(saved)
    reloaded = AutoModelForCausalLM.from_pretrained(saved, trust_remote_code=True)
    result["saved"] = reloaded(tokens).logits.detach()
    bf16 = AutoModelForCausalLM.from_pretrained(
        folder, trust_remote_code=True, dtype=torch.bfloat16)
    result["bf16"] = bf16(tokens).logits.detach()
    result["dtypes"] = sorted({str(p.dtype) for p in bf16.parameters()})
torch.save(results, sys.argv[3] + "/results.pt")
"""


@pytest.fixture(scope="session")
def folders(lively, tmp_path_factory):
    """Folder of exports, one per encoding."""
    root = tmp_path_factory.mktemp("exports")
    for pe in EXPORTED:
        export_hf.main([str(lively(pe)), "--out_dir", str(root / pe)])
    return root


@pytest.fixture(scope="session")
def loaded(folders, tmp_path_factory):
    """Results of a process outside the repository, by encoding."""
    return run_outside(LOADED, tmp_path_factory.mktemp("away"), folders, " ".join(GENERATING))


def close(one, other):
    return torch.allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pe", EXPORTED)
def test_loaded_folder_has_the_logits_of_the_run(pe, lively, loaded):
    model, result = checkpoints.load_model(lively(pe), torch.device("cpu"))[0], loaded[pe]
    with torch.no_grad():
        logits = model(torch.tensor([[256, *b"12: line 7 of 4"]]))[..., :257]
    assert close(result["logits"], logits) and close(result["cached"], logits)
    assert result["prompt"] == [PROMPT]
    assert not any(result["report"].values())
    assert not [line for line in result["warnings"] if "initialized" in line]


@pytest.mark.parametrize("pe", GENERATING)
def test_loaded_folder_generates_and_is_saved_again(pe, lively, loaded):
    model, result = checkpoints.load_model(lively(pe), torch.device("cpu"))[0], loaded[pe]
    logits, tokens = result["logits"], torch.tensor([*b"12: line 7 of 4"])
    assert close(result["saved"], logits) and close(result["last"], logits[:, -2:])
    assert close(result["base"], logits)
    assert not any(result["base report"].values())
    assert (result["end"], result["denormal"]) == (256, 0)  # denormal weights are slow on a CPU
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], tokens)
    assert result["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert (result["bf16"] - logits).abs().max() < 0.05 * logits.abs().max()
    assert "torch.bfloat16" in result["dtypes"]
    assert result["text"] == PROMPT + greedy_tokens(model, PROMPT, 8)
    assert result["tokens per step"] == [len(PROMPT)] + [1] * 7  # the cache holds the rest


def test_a_cache_of_bfloat16_keys_does_not_round_features():
    """Sums along a text reach numbers that bfloat16 would round to multiples of 16."""
    from transformers import DynamicCache

    from hf_interop import modeling

    cache = DynamicCache()
    k, v = torch.randn(2, 1, 2, 6, 4, dtype=torch.bfloat16)
    s = -3000 - torch.rand(1, 2, 6).cumsum(-1)
    for part in (slice(5), slice(5, 6)):
        adapter = modeling.LayerCacheAdapter(cache, layer=0, count=2)
        stored = adapter.extend(k[:, :, part], v[:, :, part], s[..., part])
        assert torch.equal(adapter.last()[0], s[..., part][..., -1:])
    for actual, expected in zip(stored, (k, v, s), strict=True):
        assert torch.equal(actual, expected) and actual.dtype == expected.dtype


def test_exported_readme_is_complete(folders):
    text = (folders / "alibi" / "README.md").read_text()
    assert (
        "positional encoding `alibi`: custom: 2 layers x 16, 2 heads, 0.01M parameters,\n"
        "trained at 16 tokens, step 6" in text
    )
    assert (ROOT / "CITATION.cff").read_text() in text and "Any context length" in text
    assert "up to 16 tokens" in (folders / "learnable" / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    compile(code, "README.md", "exec")
    # Without trust_remote_code, transformers asks a question.
    assert code.count("from_pretrained(") == code.count("trust_remote_code=True") == 2


@pytest.mark.parametrize(
    "changes, license", [({}, "mit"), ({"init_from": "x"}, None), ({"model": ["gpt2"]}, None)]
)
def test_model_card_has_the_metadata_of_the_hub(changes, license, trained, tmp_path):
    """Read by huggingface_hub. The license of imported weights is unknown."""
    from huggingface_hub import ModelCard

    model, checkpoint = checkpoints.load_model(trained("rope+cable"), torch.device("cpu"))
    changed = checkpoint | {"config": checkpoint["config"] | changes}
    text = export_hf.format_readme("mine", model, changed, [], has_code=True)
    (tmp_path / "README.md").write_text(text)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.license == license and card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-generation"
    assert {"rope", "cable", "custom_code"} <= set(card.data.tags)


def test_parameters_of_an_export_are_those_of_the_file_and_of_transformers(folders, lively):
    """The run has more: 63 rows of its embedding pad the vocabulary of 257 to 320."""
    from hf_interop import modeling

    for pe in ("learnable", "dapev2+kerple", "sinusoidal"):
        model = modeling.PosencForCausalLM.from_pretrained(folders / pe)
        run, _ = checkpoints.load_model(lively(pe), torch.device("cpu"))
        count = run.parameter_count() - 63 * 16
        stored = safetensors.torch.load_file(folders / pe / "model.safetensors")
        assert model.num_parameters() == model.model.parameter_count() == count
        assert sum(tensor.numel() for tensor in stored.values()) == count
        assert f"\n{count:,} parameters.\n" in (folders / pe / "README.md").read_text()
        # safetensors' own files are readable by their owner only
        assert len({path.stat().st_mode for path in (folders / pe).iterdir()}) == 1
