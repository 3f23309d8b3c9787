"""A GPT-2 of transformers, imported, evaluates here to the loss that it has there."""

import json

import numpy as np
import pytest
import torch

import shards
import eval_extrapolation
import import_gpt2


@pytest.fixture
def theirs(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_positions=32, n_embd=8, n_layer=2, n_head=2)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path / "gpt2")
    return model


def test_evaluation_of_an_imported_model(theirs, tmp_path):
    tokens = np.random.default_rng(0).integers(0, 50257, 400)
    meta = shards.Meta(tmp_path / "toy", {"dataset": "toy", "tokenizer": "gpt2", "vocab_size": 50257, "source": "test"})
    writer = shards.ShardWriter(meta, "val", 1000)
    writer.add(0, 0, tokens)
    writer.close()
    meta.value["complete"] = True
    meta.write()

    import_gpt2.main([str(tmp_path / "gpt2"), "--out_dir", str(tmp_path / "run")])
    eval_extrapolation.main([str(tmp_path / "run"), "--data", str(tmp_path / "toy"), "--lengths", "1x,64", "--device", "cpu",
                             "--dtype", "float32"])
    lengths = json.loads((tmp_path / "run" / "eval_toy_val.json").read_text())["lengths"]
    windows = torch.from_numpy(np.stack([tokens[i : i + 33] for i in range(0, 399 - 32, 32)]))
    logits = theirs(windows[:, :-1]).logits.double()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    assert lengths["32"]["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert lengths["64"] is None  # past its last position


def test_refusals(refused, theirs, tmp_path):
    main, out = import_gpt2.main, ("--out_dir", tmp_path / "run")
    assert "name one model" in refused(main, *out)[0]
    assert "no GPT-2 model at" in refused(main, tmp_path, *out)[0]
    assert not (tmp_path / "run").exists()
    import_gpt2.main([str(tmp_path / "gpt2"), "--out_dir", str(tmp_path / "run")])
    assert "already holds a run" in refused(main, tmp_path / "gpt2", *out)[0]
    assert "name the data by --data" in refused(eval_extrapolation.main, tmp_path / "run")[0]
