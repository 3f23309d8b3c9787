"""Continuations: the likeliest tokens, the same ones for the same seed, and refusals."""

import numpy as np
import pytest
import torch

import data
import runs
import sample


def text(capsys, *flags):
    capsys.readouterr()
    sample.main([str(flag) for flag in (*flags, "--device", "cpu", "--dtype", "float32")])
    return capsys.readouterr().out.split("\n", 1)[1]  # without the line about the device


@pytest.mark.parametrize("pe", ["cable", "learnable"])  # learnable: only the last 16 tokens fit
def test_temperature_zero_takes_the_likeliest_token(pe, trained, capsys):
    out = text(capsys, trained(pe), "--prompt", "1: line 7", "--max_new_tokens", 30, "--temperature", 0)
    model, _ = runs.load_model(trained(pe), torch.device("cpu"))
    tokens = [256, *b"1: line 7"]
    while len(tokens) < 40 and tokens[-1] != 256 or len(tokens) == 10:
        context = tokens[-16:] if pe == "learnable" else tokens
        tokens.append(int(model(torch.tensor([context]))[0, -1, :257].argmax()))
    assert out.rstrip("\n") == bytes(token for token in tokens if token < 256).decode(errors="replace").rstrip("\n")


def test_seed_decides(trained, capsys):
    one, same, other = (text(capsys, trained("cable"), "--max_new_tokens", 40, "--seed", seed) for seed in (1, 1, 2))
    assert one == same != other


def test_top_k_one_is_temperature_zero(trained, capsys):
    flags = (trained("cable"), "--prompt", "2", "--max_new_tokens", 20)
    assert text(capsys, *flags, "--top_k", 1) == text(capsys, *flags, "--temperature", 0)


def test_choices_follow_the_models_distribution(trained):
    """The first token of 1,500 seeds against softmax(logits / temperature)."""
    model, _ = runs.load_model(trained("cable"), torch.device("cpu"))
    prompt = [256, *b"1: line 1"]
    counts = np.zeros(257)
    for seed in range(1500):
        config = sample.Config(max_new_tokens=1, temperature=0.05, seed=seed)
        counts[next(sample.generate(model, prompt, config, 257, torch.device("cpu"), torch.float32))] += 1
    expected = (model(torch.tensor([prompt]))[0, -1, :257] / 0.05).softmax(0).detach().double().numpy()
    assert np.abs(counts / 1500 - expected).sum() / 2 < 0.06  # total variation


def test_the_end_of_a_document_ends_it(trained, capsys, monkeypatch):
    monkeypatch.setattr(sample, "generate", lambda *_: iter([104, 105, 256, 120]))
    assert text(capsys, trained("cable")) == "hi\n"


def test_characters_of_several_bytes_are_whole(trained, capsys, monkeypatch):
    monkeypatch.setattr(sample, "generate", lambda *_: iter("é😀".encode()))
    assert text(capsys, trained("cable")) == "é😀\n"


def test_refusals(refused, trained, tmp_path):
    assert "name one run" in refused(sample.main)[0]
    assert "does not exist" in refused(sample.main, tmp_path)[0]
    assert "temperature is -1.0: it must be at least 0" in refused(sample.main, trained("cable"), "--temperature", -1)[0]
    assert "top_k is 0: it must be at least 1" in refused(sample.main, trained("cable"), "--top_k", 0)[0]


def test_vocabulary_padding_is_no_token(trained):
    model, checkpoint = runs.load_model(trained("cable"), torch.device("cpu"))
    assert checkpoint["gpt"]["vocab_size"] == 320
    model.wte.weight.data[257:] = 100 * model.ln_f.weight.data + 100  # the padding would win every time
    tokens = sample.generate(model, [256], sample.Config(max_new_tokens=20), data.tokenizer("bytes").n_vocab, torch.device("cpu"), torch.float32)
    assert max(tokens) < 257
