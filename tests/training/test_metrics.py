"""Tests of training metrics: which times the log contains."""

from types import SimpleNamespace

from runtime.distributed import Processes

import pytest
import torch

from model import GPT, GPTConfig
from training import metrics


@pytest.fixture
def step_metrics():
    config = SimpleNamespace(tokens_per_step=64, block_size=8, log_every=3, steps=9)
    model = GPT(GPTConfig("quickstart", "nope", 64, 8, n_layer=1, n_embd=16))
    windows = SimpleNamespace(targets_per_window=8)
    return metrics.StepMetrics(config, model, windows, 1, torch.float32, Processes())


def log(step_metrics, *times):
    """Return the values of a log line after steps that took these seconds."""
    for seconds in times:
        step_metrics.add_step(torch.tensor(1.0))
        step_metrics.add_time(seconds)
    return step_metrics.summarize(torch.ones(len(times)), lr=1.0)


def test_first_step_of_a_process_is_not_timed(step_metrics):
    """It compiles. Later log lines count all of their steps."""
    values = log(step_metrics, 60.0, 1.0, 3.0)
    assert (values["ms"], values["tokens_per_second"]) == (2000, 32)
    assert log(step_metrics, 4.0, 2.0)["ms"] == 3000


def test_first_step_is_timed_if_its_line_has_no_other(step_metrics):
    assert log(step_metrics, 60.0)["ms"] == 60_000
    assert log(step_metrics, 1.0)["ms"] == 1000


def test_time_spent_waiting_for_data(step_metrics, monkeypatch):
    """Two micro-batches per step. The wait of the first step, which is not timed, is left out."""
    waits = [9.0, 0.0, 0.5, 0.25, 0.0, 0.25]
    clock = iter([time for wait in waits for time in (100.0, 100.0 + wait)])
    closed = []

    def read():
        try:
            yield from range(len(waits))
        finally:
            closed.append(True)

    batches = step_metrics.time_waiting(read())
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: next(clock))
    items = []
    for _ in range(3):
        items += [next(batches), next(batches)]
        step_metrics.add_step(torch.tensor(1.0))
        step_metrics.add_time(2.0)
    values = step_metrics.summarize(torch.ones(3), lr=1.0)
    assert items == [0, 1, 2, 3, 4, 5]
    assert (values["ms"], values["data_ms"]) == (2000, 500)
    columns = metrics.step_columns(values, steps_left=1)
    assert columns[3:5] == ["2000 ms", "data 500 ms"]
    batches.close()
    assert closed == [True]
