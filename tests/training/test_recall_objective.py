"""Tests of --objective recall: curriculum and accuracy."""

from types import SimpleNamespace

from runtime import cli

import pytest
import torch
from conftest import ROOT, TINY, log_of

import train_gpt
from data_loader import Shards
from text_data.recall_task import SYMBOLS, TARGETS
from training import settings
from training.metrics import is_correct

RECALL = [*TINY, "--objective", "recall", "--block_size", "32", "--tokens_per_step", "256"]


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


def test_untrained_model_has_the_accuracy_of_chance(data_dir, tmp_path):
    """Of the targets of each of 64 windows, 6 or 8 are different."""
    flags = ["--steps", "1", "--lr", "0", "--min_lr", "0", "--val_tokens", "2048", "--data"]
    train_gpt.main([*RECALL, *flags, str(data_dir), "--out_dir", str(tmp_path / "run")])
    record = log_of(tmp_path / "run")[-1]
    assert (record["kind"], record["tokens"]) == ("val", 64 * TARGETS)
    error = (1 / SYMBOLS / (64 * 6)) ** 0.5
    assert record["accuracy"] == pytest.approx(1 / SYMBOLS, abs=4 * error)


def test_prediction_is_the_most_probable_token():
    logits = torch.zeros(1, 2, 8)
    logits[0, 0, 6], logits[0, 1, 7] = 1, 1
    embeddings = torch.eye(8)
    model = SimpleNamespace(hidden=lambda tokens: logits, output_embeddings=embeddings)
    model.wte = SimpleNamespace(weight=embeddings)
    tokens, positions = torch.zeros(1, 2, dtype=torch.int64), torch.tensor([[1, 0, 0]])
    targets = torch.tensor([[7, 6, 7]])
    assert is_correct(model, tokens, targets, positions).tolist() == [[True, True, False]]
