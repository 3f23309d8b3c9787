"""Tests of training metrics: which times the log contains."""

from types import SimpleNamespace

from runtime.distributed import Processes

import pytest
import torch

from data_loader import Windows
from model import GPT, GPTConfig
from training import metrics


@pytest.fixture
def step_metrics():
    config = SimpleNamespace(tokens_per_step=64, block_size=8)
    model = GPT(GPTConfig("quickstart", "nope", 64, 8, n_layer=1, n_embd=16))
    windows = SimpleNamespace(targets_per_window=8)
    return metrics.StepMetrics(config, model, windows, torch.float32, Processes())


def log(step_metrics, *times, waits=(0.0, 0.0, 0.0)):
    """Return the values of a log line after steps that took these seconds."""
    for seconds, wait in zip(times, waits, strict=False):
        loss, norm = torch.tensor(1.0), torch.tensor(2.0)
        step_metrics.steps.append(metrics.Step([loss], norm, wait))
        step_metrics.seconds.append(seconds)
    return step_metrics.summarize(torch.ones(len(times)), lr=1.0)


def test_first_step_of_a_process_is_not_timed(step_metrics):
    """It compiles. Later log lines count all of their steps."""
    values = log(step_metrics, 60.0, 1.0, 3.0, waits=(9.0, 0.75, 0.25))
    assert (values["ms"], values["data_ms"], values["tokens_per_second"]) == (2000, 500, 32)
    columns = metrics.step_columns(values, steps_left=1)
    assert columns[3:5] == ["2000 ms", "data 500 ms"]
    assert log(step_metrics, 4.0, 2.0)["ms"] == 3000


def test_first_step_is_timed_if_its_line_has_no_other(step_metrics):
    assert log(step_metrics, 60.0)["ms"] == 60_000


@torch.no_grad()
def test_padding_of_a_batch_does_not_count():
    """`count` rows do; a rank may have none."""
    model = GPT(GPTConfig("quickstart", "nope", 64, 8, n_layer=1, n_embd=16)).eval()
    tokens = torch.randint(64, (3, 9))
    logits = model(tokens[:, :-1])
    losses = torch.nn.functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none").sum(1)
    for count in range(4):
        sums = metrics.validation_sums(model, Windows, count, tokens[:, :-1], tokens[:, 1:])
        assert sums.tolist() == pytest.approx([losses[:count].sum().item(), 0])
