"""Imports of GPT-2 that are refused, and imports of the CABLE authors' checkpoints."""

import pytest
import torch
import yaml
from torch.nn import functional as F

import eval_extrapolation
import import_pretrained
import train_gpt
from training import checkpoints


def test_imports_of_gpt2_that_are_refused(tmp_path, refused):
    from transformers import GPT2Config, GPT2LMHeadModel

    folder, out = tmp_path / "gpt2", tmp_path / "run"
    config = GPT2Config(n_positions=32, n_embd=8, n_layer=2, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(folder)
    (line,) = refused(import_pretrained.main, folder, "--block_size", 16, "--out_dir", out)
    assert line.endswith("gpt2 has its length: remove --block_size") and not out.exists()
    weights = folder / "model.safetensors"
    assert "pass its folder" in refused(import_pretrained.main, weights, "--out_dir", out)[0]
    import_pretrained.main([str(folder), "--out_dir", str(out)])
    (line,) = refused(import_pretrained.main, folder, "--out_dir", out)
    assert line.endswith("already holds files: remove it, or choose another --out_dir")
    (line,) = refused(train_gpt.main, "--config", out / "config.yaml", "--init_from", out)
    assert line.endswith("key model is unknown: did you mean init_from?")
    weights.rename(folder / "pytorch_model.bin")
    (line,) = refused(import_pretrained.main, folder, "--out_dir", tmp_path / "other")
    assert line.endswith(
        "name a folder with safetensors, as save_pretrained of transformers writes"
    )
    assert yaml.safe_load((out / "config.yaml").read_text())["block_size"] == 32
    assert "pass --data" in refused(eval_extrapolation.main, out)[0]


def authors_logits(weights, tokens, heads):
    """Return the logits (T, V) of CABLE's version 1 with attention scale 1, for tokens (T,).

    Float64, from the paper's equations 2 to 4 and the published names of its weights.
    """
    w = {name: value.double() for name, value in weights.items()}
    length = len(tokens)

    def linear(x, name):
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    x = w["transformer.wte.weight"][tokens]
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    for layer in range(sum(name.endswith("h_attn.bias") for name in w)):
        block = f"transformer.h.{layer}"
        y = norm(x, f"{block}.ln_1")
        parts = linear(y, f"{block}.attn.c_attn").view(length, 3, heads, -1)
        q, k, v = parts.permute(1, 2, 0, 3)  # (H, T, D)
        decay = -F.softplus(linear(y, f"{block}.attn.h_attn")).cumsum(0).T  # (H, T)
        scores = q @ k.transpose(1, 2) + decay[:, :, None] - decay[:, None, :]
        y = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
        x = x + linear(y.transpose(0, 1).reshape(x.shape), f"{block}.attn.c_proj")
        y = linear(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc")
        x = x + linear(F.gelu(y, approximate="tanh"), f"{block}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ w["lm_head.weight"].T


@pytest.fixture
def authors(tmp_path):
    """Random weights with the names and shapes of the CABLE authors' checkpoints.

    2 layers, 2 heads, width 8.
    """
    torch.manual_seed(0)
    shapes = {"wte.weight": (50304, 8), "ln_f.weight": (8,), "ln_f.bias": (8,)}
    matrices = {"attn.c_attn": (24, 8), "attn.h_attn": (2, 8), "attn.c_proj": (8, 8)}
    matrices |= {"mlp.c_fc": (32, 8), "mlp.c_proj": (8, 32), "ln_1": (8,), "ln_2": (8,)}
    for layer in range(2):
        for name, shape in matrices.items():
            shapes |= {f"h.{layer}.{name}.weight": shape, f"h.{layer}.{name}.bias": shape[:1]}
    shapes = {f"transformer.{name}": shape for name, shape in shapes.items()}
    weights = {name: 0.5 * torch.randn(shape) for name, shape in shapes.items()}
    weights["lm_head.weight"] = weights["transformer.wte.weight"]
    torch.save(weights, tmp_path / "model_19072.pt")
    return weights


@pytest.mark.parametrize("compiled", [False, True])
def test_authors_checkpoint_gives_the_logits_of_the_paper(authors, tmp_path, compiled):
    """As their training code saves it, and as their notebook reads it.

    The latter is under "model", with the prefix of torch.compile in its names.
    """
    path, run = tmp_path / "model_19072.pt", tmp_path / "run"
    if compiled:
        weights = {f"_orig_mod.{name}": value for name, value in authors.items()}
        torch.save({"model": weights, "step": 5}, path)
    import_pretrained.main([str(path), "--block_size", "16", "--out_dir", str(run)])
    model, checkpoint = checkpoints.load_model(run, torch.device("cpu"))
    assert (checkpoint["gpt"]["pe"], checkpoint["gpt"]["block_size"]) == ("cable-v1", 16)
    assert checkpoint["data"]["tokenizer"] == "gpt2"
    tokens = torch.randint(50304, (40,))
    with torch.no_grad():
        ours = model(tokens[None])[0].double()
    expected = authors_logits(authors, tokens, heads=2)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_invalid_authors_checkpoints_are_refused(refused, authors, tmp_path):
    torch.save({"wte": 1}, tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("no weights")
    torch.save(authors | {"transformer.h.0.mlp.c_fc.bias": torch.zeros(3)}, tmp_path / "shapes.pt")
    for name, message in (
        ("other.pt", "is not a checkpoint of the CABLE authors"),
        ("text.pt", "is not a checkpoint of the CABLE authors"),
        ("shapes.pt", "do not fit its settings"),
        ("none.pt", "none.pt does not exist: name a folder of transformers, a GGUF, or a file of"),
    ):
        flags = tmp_path / name, "--out_dir", tmp_path / "run"
        assert message in refused(import_pretrained.main, *flags)[0]
