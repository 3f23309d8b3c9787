"""Evaluations that add to the same record at the same time, and what records refuse."""

import json
import math
import multiprocessing
import re
import time
from functools import partial

import pytest
import torch
from record_examples import DATA, MODEL

from errors import InputError
from evaluation import runner
from losses import perplexity

IDENTITY = {**MODEL, "data": DATA, "protocol": {"name": "segments", "remainder": "counted"}}
CPU = torch.device("cpu")


def entry(length, loss=1.0):
    """Return an entry of eval_extrapolation.py."""
    return {"loss": loss, "loss_se": 0.1, "perplexity": perplexity(loss), "tokens": length}


def update(path, lengths, measure=entry, identity=IDENTITY):
    return runner.update_record("runs/rope", path, identity, lengths, measure, CPU)


@pytest.fixture(autouse=True)
def fixed_provenance(monkeypatch):
    """Without the call of git, which would take most of the time."""
    monkeypatch.setattr(runner.devices, "provenance", lambda device: {})


def lengths_of(path):
    return [int(length) for length in json.loads(path.read_text())["lengths"]]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("processes", [2, 3, 10])
def test_evaluations_at_once_lose_nothing(processes, tmp_path):
    """Each process measures three lengths of its own."""
    path = tmp_path / "eval_toy_val.json"
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes)

    def measure(length):
        time.sleep(0.01)
        return entry(length)

    def start(first):
        barrier.wait()
        update(path, [first, first + 1, first + 2], measure)

    started = [context.Process(target=start, args=(3 * n + 1,)) for n in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert not any(process.exitcode for process in started)
    assert lengths_of(path) == [*range(1, 3 * processes + 1)]
    assert [*tmp_path.iterdir()] == [path]


def test_a_length_that_another_evaluation_adds_is_not_measured_again(tmp_path):
    """Nothing is locked while a length is measured."""
    path = tmp_path / "eval_toy_val.json"
    measured = []

    def measure(length):
        measured.append(length)
        if length == 8:  # meanwhile
            update(path, [8, 16, 64], partial(entry, loss=2.0))
        return entry(length)

    record = update(path, [8, 16, 32], measure)
    assert measured == [8, 32]
    assert lengths_of(path) == [8, 16, 32, 64]
    assert [*record["lengths"]] == ["8", "16", "32"]
    assert record["lengths"]["16"]["loss"] == 2.0


def test_another_identity_does_not_lose_own_results(tmp_path):
    """Another dtype replaces the record; the interrupted evaluation writes all of its results."""
    path = tmp_path / "eval_toy_val.json"

    def measure(length):
        if length == 16:
            update(path, [8], identity=IDENTITY | {"dtype": "bfloat16"})
        return entry(length)

    assert [*update(path, [8, 16], measure)["lengths"]] == ["8", "16"]
    assert lengths_of(path) == [8, 16] and json.loads(path.read_text())["dtype"] == "float32"


@pytest.mark.parametrize("part, name", [("data", "text"), ("protocol", "protocol")])
def test_a_record_of_another_text_or_protocol_is_not_replaced(part, name, tmp_path, capsys):
    """One of another dtype is."""
    path = tmp_path / "eval_toy_val.json"
    for dtype in ("bfloat16", "float32"):
        update(path, [8], identity=IDENTITY | {"dtype": dtype})
        replaces = "dtype or setting: its results are replaced" in capsys.readouterr().out
        assert replaces == (dtype == "float32")
    before = path.read_text()
    with pytest.raises(InputError, match=f"is of another {name}: rename it or remove it"):
        update(path, [8], pytest.fail, IDENTITY | {part: IDENTITY[part] | {"sha256": "1" * 64}})
    assert path.read_text() == before


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_results_without_a_finite_loss_are_not_written(loss, tmp_path):
    path = tmp_path / "eval_toy_val.json"
    with pytest.raises(InputError) as error:
        update(path, [8, 16], lambda length: entry(length, 1.0 if length == 8 else loss))
    assert re.fullmatch(
        r"runs/rope: the results are NaN, Inf .*expected float .* at lengths\[...\].loss\): "
        "evaluate with --dtype float32, or train again with a lower --lr",
        str(error.value),
    )
    assert lengths_of(path) == [8]


def test_a_large_loss_has_infinite_perplexity(tmp_path):
    path = tmp_path / "eval_toy_val.json"
    update(path, [8, 16], partial(entry, loss=800.0))
    assert update(path, [8, 16])["lengths"]["16"]["perplexity"] == math.inf


def test_names_that_leave_the_folder_are_refused_before_the_evaluation(tmp_path):
    data = DATA | {"dataset": "../../x"}
    with pytest.raises(InputError, match="expected a name without .* at data.dataset"):
        update(tmp_path / "a.json", [8], pytest.fail, IDENTITY | {"data": data})
