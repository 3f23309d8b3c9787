"""Tests of encoders: masked tokens, bidirectional attention, masked language modeling, errors."""

import math
import shutil

from runtime.files import read_json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import evaluation, write_shards
from numpy.testing import assert_allclose

import data_loader
import eval_extrapolation
import report
from evaluation.model_checks import V, make_lively_model
from training import checkpoints

CPU = torch.device("cpu")
CPU_FLAGS = ["--device", "cpu", "--dtype", "float32"]


def read_masked(folder, length=50, rate=0.3, mask_seed=(1,)):
    """The windows of a data set, and all of their inputs, targets and masked positions."""
    windows = data_loader.MaskedWindows(data_loader.Shards(folder, "train"), length, rate)
    return windows, *windows.batch(range(len(windows)), mask_seed)


@pytest.mark.parametrize("length, rate, count", [(50, 0.3, 15), (99, 0.15, 15), (7, 0.01, 1)])
def test_a_fraction_of_the_tokens_is_masked(folder, length, rate, count):
    windows, inputs, targets, positions = read_masked(folder, length, rate)
    tokens = data_loader.Windows(windows.shards, length).batch(range(len(windows)))[0]
    assert targets.shape == positions.shape == (len(windows), count)
    assert count == windows.targets_per_window
    assert (positions.diff() > 0).all()  # no position twice
    assert torch.equal(targets, tokens.gather(1, positions))
    unmasked = torch.ones_like(tokens, dtype=torch.bool).scatter(1, positions, False)
    assert torch.equal(inputs[unmasked], tokens[unmasked])


def test_masked_tokens_are_replaced_as_in_bert(tmp_path):
    """80% <|mask|>, 10% a random token, 10% unchanged: 5,000 tokens, four standard deviations."""
    folder = write_shards(tmp_path / "toy", [np.full(10_001, 7)], 20_000)
    _, inputs, targets, positions = read_masked(folder, 10_000, 0.5)
    mask = 257  # the first id after the vocabulary
    replaced = inputs.gather(1, positions)[0]
    counts = [
        ((replaced == mask).sum(), 0.8),
        (((replaced != mask) & (replaced != 7)).sum(), 0.1 * 256 / 257),
        ((replaced == 7).sum(), 0.1 + 0.1 / 257),
    ]
    for count, fraction in counts:
        deviation = math.sqrt(5000 * fraction * (1 - fraction))
        assert abs(count - 5000 * fraction) < 4 * deviation
    assert 90 < len(replaced.unique()) < mask + 1 and replaced.max() == mask
    assert positions.float().mean() == pytest.approx(5000, rel=0.05)


def test_masks_depend_on_the_mask_seed_and_the_window(folder):
    _, inputs, _, positions = read_masked(folder)
    _, same_inputs, _, same_positions = read_masked(folder)
    assert torch.equal(inputs, same_inputs) and torch.equal(positions, same_positions)
    assert not torch.equal(positions, read_masked(folder, mask_seed=(2,))[3])
    assert len({tuple(row.tolist()) for row in positions}) == len(positions)


@pytest.mark.parametrize("world_size, micro_batch", [(1, 2), (2, 1), (3, 2)])
def test_masks_do_not_depend_on_the_world_size(folder, world_size, micro_batch):
    windows = data_loader.MaskedWindows(data_loader.Shards(folder, "train"), 7, 0.3)

    def read_steps(*sizes):
        """The inputs of seven steps of six windows, from all ranks: (7, 6, 7)."""
        micro_batch, world_size = sizes
        parts = []
        for rank in range(world_size):
            sampler = data_loader.Sampler(len(windows), seed=3)
            loader = data_loader.micro_batches(windows, sampler, 6, micro_batch, rank, world_size)
            batches = [next(loader)[1] for _ in range(7 * 6 // world_size // micro_batch)]
            parts.append(torch.cat(batches).unflatten(0, (7, -1)))
        return torch.cat(parts, 1)

    expected = read_steps(6, 1)
    assert torch.equal(read_steps(micro_batch, world_size), expected)
    # 42 windows, 34 per epoch: windows of the second epoch are masked anew.
    assert len(expected.flatten(0, 1).unique(dim=0)) > 35


def test_loss_is_of_the_masked_tokens_only():
    model, tokens = make_lively_model("cable", causal=False), torch.randint(V, (3, 20))
    positions = torch.tensor([[0, 5], [3, 19], [7, 8]])
    targets = torch.randint(V, (3, 2))
    logits = torch.stack([model(tokens)[row, at] for row, at in enumerate(positions)])
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    assert_allclose(model(tokens, targets, positions).item(), expected.mean().item(), rtol=1e-5)
    losses = model.loss(tokens, targets, positions, reduction="none")
    assert_allclose(losses, expected.detach().view(3, 2), rtol=1e-4)


@pytest.fixture
def encoder(trained):
    """encoder("alibi"): the folder of a finished encoder run of six steps."""
    return lambda pe: trained(pe, "--objective", "mlm")


@pytest.mark.parametrize("length", [16, 40])
def test_perplexity_is_of_the_masked_tokens(encoder, data_dir, tmp_path, length):
    """All windows of the split, each by a forward pass of its own."""
    folder = shutil.copytree(encoder("alibi"), tmp_path / "run")
    eval_extrapolation.main([str(folder), "--lengths", str(length), *CPU_FLAGS])
    record = read_json(evaluation(folder), "")
    entry = record["lengths"][str(length)]
    model, _ = checkpoints.load_model(folder, CPU, causal=False)
    val = data_loader.Shards(data_dir, "val")
    losses, positions = [], []
    for start in range(0, val.total - 1, length):
        inputs_left = min(length, val.total - 1 - start)
        inputs, targets, masked = data_loader.read_masked_windows(
            val, [(0, start)], inputs_left, 0.15
        )
        logits = model(inputs)[0, masked[0], :258].detach().double()
        losses.append(F.cross_entropy(logits, targets[0], reduction="none").numpy())
        positions.append(masked[0].numpy())
    assert len(losses[0]) == round(0.15 * length)
    assert len(losses[-1]) == round(0.15 * inputs_left)  # in proportion
    windows = len(losses)
    losses, positions = np.concatenate(losses), np.concatenate(positions)
    assert (entry["windows"], entry["tokens"]) == (windows, losses.size)
    assert entry["loss"] == pytest.approx(losses.mean(), abs=1e-5)
    by_position = [losses[positions == position].mean() for position in range(length)]
    assert entry["by_position"]["loss"] == pytest.approx(by_position, abs=1e-5)
    assert record["objective"] == "mlm" and record["protocol"]["mask_rate"] == 0.15


def test_positions_without_masked_tokens_have_no_loss(encoder, tmp_path):
    """The record holds None there, and is reported."""
    folder = shutil.copytree(encoder("cable"), tmp_path / "run")
    flags = ["--lengths", "16,32", "--windows", "1", *CPU_FLAGS]
    eval_extrapolation.main([str(folder), *flags])
    losses = read_json(evaluation(folder), "")["lengths"]["32"]["by_position"]["loss"]
    assert len(losses) - losses.count(None) == 5 and None in losses
    report.main([str(evaluation(folder)), "--out_dir", str(tmp_path / "report")])
