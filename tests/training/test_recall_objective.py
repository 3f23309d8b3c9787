"""Tests of --objective recall: resume, gradient accumulation, accuracy, and its log."""

from types import SimpleNamespace

from runtime import cli

import pytest
import torch
from conftest import ROOT, TINY, log_of

import train_gpt
from text_data.recall_task import SYMBOLS, TARGETS
from text_data.shards import Shards
from training import settings
from training.metrics import is_correct

RECALL = [*TINY, "--objective", "recall", "--block_size", "32", "--tokens_per_step", "256"]


@pytest.fixture
def train(data_dir, tmp_path):
    """train("run", flags...): train with --objective recall; return the folder.

    The curriculum ends after three of the six steps.
    """

    def run(name, *flags):
        out = tmp_path / name
        paths = ["--data", str(data_dir), "--out_dir", str(out)]
        train_gpt.main([*RECALL, *paths, *map(str, flags)])
        return out

    return run


def values(run, kind, key):
    return [record[key] for record in log_of(run) if record["kind"] == kind]


def test_curriculum_is_half_of_the_training(data_dir):
    """Also with another batch size, training length or number of steps."""
    shards = Shards(data_dir, "train")
    for flags, expected in (
        ([], 76_800),  # 1,200 steps of 64 sequences
        (["--block_size", "512", "--micro_batch", "8"], 9_600),
        (["--steps", "600"], 19_200),
    ):
        argv = ["--config", str(ROOT / "configs/recall.yaml"), *flags]
        config = cli.parse(train_gpt.Config, argv, "", inherit=settings.inherit)
        assert settings.make_windows(config, shards).curriculum == expected


def test_gradient_accumulation_gives_the_same_losses(train):
    losses = [values(train(str(size), "--micro_batch", size), "train", "loss") for size in (2, 8)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_untrained_model_has_the_accuracy_of_chance(train):
    """Of the targets of each of 64 windows, 6 or 8 are different."""
    run = train("run", "--steps", 1, "--lr", 0, "--min_lr", 0, "--val_tokens", 2048)
    (accuracy,) = values(run, "val", "accuracy")
    assert values(run, "val", "tokens") == [64 * TARGETS]
    error = (1 / SYMBOLS / (64 * 6)) ** 0.5
    assert accuracy == pytest.approx(1 / SYMBOLS, abs=4 * error)


def test_prediction_is_the_most_probable_token():
    logits = torch.zeros(1, 2, 8)
    logits[0, 0, 6], logits[0, 1, 7] = 1, 1
    embeddings = torch.eye(8)
    model = SimpleNamespace(hidden=lambda tokens: logits, output_embeddings=embeddings)
    model.wte = SimpleNamespace(weight=embeddings)
    tokens, positions = torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[1, 0, 0]])
    targets = torch.tensor([[7, 6, 7]])
    assert is_correct(model, tokens, targets, positions).tolist() == [[True, True, False]]
