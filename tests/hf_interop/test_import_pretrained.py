"""Imports of GPT-2, compared with transformers, and of the CABLE authors' checkpoints."""

import json

from runtime import checkpoints

import numpy as np
import pytest
import torch
import yaml
from conftest import log_of, write_shards

import eval_extrapolation
import import_pretrained
import train_gpt
from errors import InputError
from text_data import shards

CPU = ["--device", "cpu", "--dtype", "float32"]


@pytest.fixture
def gpt2(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=8, n_layer=2, n_head=2)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path / "gpt2")
    return model


def test_imported_gpt2_can_be_trained_further(gpt2, tmp_path, refused):
    """Its vocabulary stays 50,257 without padding. --resume needs a run of train_gpt.py.

    A padding row of zeros or of random numbers would be a likely token for a trained model.
    """
    tokens = np.random.default_rng(0).integers(0, 50257, 400)
    data = write_shards(tmp_path / "toy", [tokens], vocab_size=50257, tokenizer="gpt2")
    meta = json.loads((data / "meta.json").read_text())
    meta["splits"]["val"] = meta["splits"]["train"]
    (data / "meta.json").write_text(json.dumps(meta))
    import_pretrained.main([str(tmp_path / "gpt2"), "--out_dir", str(tmp_path / "run")])
    flags = ["--data", str(data), "--init_from", str(tmp_path / "run"), "--steps", "0", *CPU]
    flags += ["--val_tokens", "320", "--out_dir", str(tmp_path / "trained")]
    train_gpt.main(flags)
    tokens = torch.from_numpy(shards.Shards(data, "val").tokens[0][:].astype(np.int64))
    windows = torch.stack(
        [tokens[start : start + 33] for start in (32 * int(n * 12 / 10) for n in range(10))]
    )
    logits = gpt2(windows[:, :-1]).logits.double()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    assert log_of(tmp_path / "trained")[-1]["loss"] == pytest.approx(expected.item(), rel=1e-5)

    flags = ["--resume", "--data", data, "--size", "quickstart", "--block_size", 32]
    flags += ["--tokens_per_step", 32, "--device", "cpu", "--out_dir", tmp_path / "run"]
    for more in ([], ["--init_from", tmp_path / "run"]):
        (line,) = refused(train_gpt.main, *flags, *more)
        assert "run contains imported weights, not a training to continue: start a new" in line
    (line,) = refused(train_gpt.main, *flags, "--pe", "typo")
    assert "typo" in line


def test_invalid_input_is_refused(refused, gpt2, tmp_path):
    main, out = import_pretrained.main, ("--out_dir", tmp_path / "run")
    settings = tmp_path / "gpt2" / "config.json"
    before = json.loads(settings.read_text())
    for key, other in (
        ("activation_function", "relu"),
        ("scale_attn_by_inverse_layer_idx", True),
    ):
        settings.write_text(json.dumps({**before, key: other}))
        assert f"has {key} {other}, but only" in refused(main, tmp_path / "gpt2", *out)[0]
    settings.write_text(json.dumps(before))
    (line,) = refused(main, tmp_path / "gpt2", "--block_size", 16, *out)
    assert line.endswith("gpt2 has its length: remove --block_size")
    (line,) = refused(main, "NAME.pt", "--block_size", 16, *out)
    assert line == "error: NAME.pt does not exist: name a file of axiomlaborg/Cable"
    type(gpt2)(
        type(gpt2.config)(n_positions=8, n_embd=8, n_layer=1, n_head=2, vocab_size=300)
    ).save_pretrained(tmp_path / "small")
    with pytest.raises(
        InputError,
        match="has a vocabulary of 300 tokens, but its tokenizer gpt2 has 50,257: name another",
    ):
        main([str(tmp_path / "small"), *map(str, out)])
    assert not (tmp_path / "run").exists()
    import_pretrained.main([str(tmp_path / "gpt2"), "--out_dir", str(tmp_path / "run")])
    assert "already contains a run" in refused(main, tmp_path / "gpt2", *out)[0]
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["block_size"] == 32
    assert "pass --data" in refused(eval_extrapolation.main, tmp_path / "run")[0]


def authors_logits(weights, tokens, heads):
    """Return the logits (T, V) of CABLE's version 1 with attention scale 1, for tokens (T,).

    Float64 NumPy, from the paper's equations 2 to 4 and the published names of its weights.
    """
    w = {name: value.double().numpy() for name, value in weights.items()}

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * w[
            f"{name}.weight"
        ] + w[f"{name}.bias"]

    x = w["transformer.wte.weight"][tokens]
    future = np.triu(np.ones((len(tokens), len(tokens)), bool), 1)
    for layer in range(sum(name.endswith("h_attn.bias") for name in w)):
        block = f"transformer.h.{layer}"
        y = norm(x, f"{block}.ln_1")
        q, k, v = (
            part.reshape(len(tokens), heads, -1).transpose(1, 0, 2)
            for part in np.split(linear(y, f"{block}.attn.c_attn"), 3, -1)
        )
        decay = np.cumsum(-np.log1p(np.exp(linear(y, f"{block}.attn.h_attn"))), 0).T  # (H, T)
        scores = q @ k.transpose(0, 2, 1) + decay[:, :, None] - decay[:, None, :]
        scores = np.exp(np.where(future, -np.inf, scores - scores.max(-1, keepdims=True)))
        y = scores / scores.sum(-1, keepdims=True) @ v
        x = x + linear(y.transpose(1, 0, 2).reshape(x.shape), f"{block}.attn.c_proj")
        y = linear(norm(x, f"{block}.ln_2"), f"{block}.mlp.c_fc")
        x = x + linear(
            0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))),
            f"{block}.mlp.c_proj",
        )
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
    if compiled:
        torch.save(
            {"model": {f"_orig_mod.{name}": value for name, value in authors.items()}, "step": 5},
            tmp_path / "model_19072.pt",
        )
    import_pretrained.main(
        [str(tmp_path / "model_19072.pt"), "--block_size", "16", "--out_dir", str(tmp_path / "run")]
    )
    model, checkpoint = checkpoints.load_model(tmp_path / "run", torch.device("cpu"))
    assert (
        checkpoint["gpt"]["pe"] == "cable-v1"
        and checkpoint["gpt"]["block_size"] == 16
        and checkpoint["data"]["tokenizer"] == "gpt2"
    )
    tokens = np.random.default_rng(0).integers(0, 50304, 40)
    with torch.no_grad():
        ours = model(torch.from_numpy(tokens)[None])[0]
    np.testing.assert_allclose(ours, authors_logits(authors, tokens, heads=2), rtol=1e-4, atol=1e-4)


def test_invalid_authors_checkpoints_are_refused(refused, authors, tmp_path):
    main, out = import_pretrained.main, ("--out_dir", tmp_path / "run")
    torch.save({"wte": 1}, tmp_path / "other.pt")
    assert "not a checkpoint of the CABLE authors" in refused(main, tmp_path / "other.pt", *out)[0]
    (tmp_path / "text.pt").write_text("no weights")
    assert "not a checkpoint of the CABLE authors" in refused(main, tmp_path / "text.pt", *out)[0]
    torch.save(authors | {"transformer.h.0.mlp.c_fc.bias": torch.zeros(3)}, tmp_path / "shapes.pt")
    assert "another model" in refused(main, tmp_path / "shapes.pt", *out)[0]
    assert (
        "block_size is 0"
        in refused(main, tmp_path / "model_19072.pt", "--block_size", "0", *out)[0]
    )
