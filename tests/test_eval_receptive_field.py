"""Tests of eval_receptive_field.py: gradients, known fields, records, tables, errors."""

import math
from types import SimpleNamespace

from runtime.distributed import Processes

import numpy as np
import pytest
import torch
from conftest import write_shards

import eval_receptive_field
import report
from data_loader import Shards, Windows
from evaluation.runner import LoadedRun
from model import GPT, GPTConfig
from reporting import figures
from reporting.columns import Column


def make_model(pe):
    """A model of two layers whose attention is far from uniform."""
    torch.manual_seed(0)
    config = GPTConfig(
        size="custom", n_layer=2, n_head=2, n_embd=8, vocab_size=50, block_size=16, pe=pe
    )
    model = GPT(config)
    for parameter in model.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    model.activation_checkpointing = True
    return model.requires_grad_(False).eval()


@pytest.mark.parametrize("pe", ["fox", "sinusoidal", "kerple"])
def test_gradient_fractions_agree_with_finite_differences(pe):
    model = make_model(pe).double()
    tokens, target = torch.randint(50, (1, 6)), torch.tensor([7])
    fractions = eval_receptive_field.gradient_fractions(model, tokens, target)[0]

    def loss(change):
        """The loss if the embeddings change by (6, 8) numbers."""
        hook = model.wte.register_forward_hook(lambda *arguments: arguments[-1] + change)
        logits = model(tokens)[0, -1]
        hook.remove()
        return logits.logsumexp(0) - logits[target[0]]

    steps = 1e-3 * torch.eye(48, dtype=torch.float64).view(48, 6, 8)
    differences = torch.stack([loss(step) - loss(-step) for step in steps])
    norms = differences.view(6, 8).norm(dim=1)
    assert np.allclose(fractions, norms / norms.sum(), rtol=2e-3)
    assert fractions.sum().item() == pytest.approx(1, abs=1e-12)


def test_two_layers_with_windows_of_three_reach_five_tokens():
    model, tokens = make_model("window:w=3"), torch.randint(50, (4, 16))
    targets = torch.tensor([1, 2, 3, 4])
    fractions = eval_receptive_field.gradient_fractions(model, tokens, targets)
    assert (fractions[:, :11] == 0).all() and (fractions[:, 11:] > 0).all()


@pytest.fixture
def windows(tmp_path):
    """40 windows of 16 tokens."""
    tokens = np.random.default_rng(0).integers(50, size=40 * 16 + 1)
    return Windows(Shards(write_shards(tmp_path / "toy", [tokens], 10**6, 50), "train"), 16)


def test_field_and_curve_of_known_gradient_fractions(windows, monkeypatch):
    """In even windows the last token has all of the gradient, in odd ones each of eight an eighth.

    The receptive fields are 1 and 8.
    """
    inputs, targets = windows.batch(range(20))

    def known_fractions(model, tokens, last_targets):
        assert torch.equal(tokens, inputs[:, -8:])
        assert torch.equal(last_targets, targets[:, -1])
        fractions = torch.zeros(20, 8, dtype=torch.float64)
        fractions[::2, -1] = 1
        fractions[1::2] = 1 / 8
        return fractions

    monkeypatch.setattr(eval_receptive_field, "gradient_fractions", known_fractions)
    model = SimpleNamespace(requires_grad_=lambda requires_grad: None)
    loaded = LoadedRun("test", model, {}, Processes(), torch.device("cpu"), torch.float32)
    entry = eval_receptive_field.measure(loaded, 8, windows, np.arange(20))
    assert entry["receptive_field"] == 4.5
    assert entry["receptive_field_se"] == pytest.approx(3.5 * math.sqrt(20 / 19) / math.sqrt(20))
    curve = dict(zip(entry["cumulative"]["tokens"], entry["cumulative"]["share"], strict=True))
    assert curve == pytest.approx({n: 1 / 2 + n / 16 for n in range(1, 9)})


def test_curve_has_the_points_of_figure_7():
    """Sinusoidal embeddings trained at 512 and 128 tokens jump 1,536 and 1,920 tokens back."""
    points = eval_receptive_field.curve_points(2048)
    assert {1024, 1536, 1856, 1920, 1984, 2048} <= {*points} and len(points) < 70
    assert eval_receptive_field.curve_points(3) == [1, 2, 3]


def test_curves_are_averaged_at_the_points_of_all_records():
    curves = ([1, 2, 4], [0.5, 0.6, 1.0]), ([1, 2, 3, 4], [0.7, 0.8, 0.9, 1.0])
    entries = [{"cumulative": {"tokens": tokens, "share": share}} for tokens, share in curves]
    found = [figures.gradient_further_back({"lengths": {"4": entry}}) for entry in entries]
    records = [record | {"seed": seed} for seed, record in enumerate(found)]
    column = Column("cable", "cable", records, "fraction")
    assert column.lengths() == [1, 2, 3] and column.mean(3) is None
    assert [column.mean(1), column.mean(2)] == pytest.approx([0.4, 0.3])


def test_command_line_writes_a_record_and_report_reads_it(trained, tmp_path, capsys):
    flags = [str(trained("window:w=8")), "--lengths", "1x,2x", "--windows", "3", "--device", "cpu"]
    eval_receptive_field.main(flags)
    printed = capsys.readouterr().out.splitlines()
    (path,) = [line.removeprefix("record: ") for line in printed if line.startswith("record: ")]
    out = tmp_path / "out"
    report.main([path, "--out_dir", str(out)])
    assert "| context | window:w=8 |" in (out / "receptive_field.md").read_text()
