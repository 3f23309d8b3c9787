"""Tests of compare.py: tables, errors. The intervals: tests/evaluation/test_intervals.py."""

import json
import math

import pytest
from conftest import evaluation

import compare
import eval_extrapolation


@pytest.fixture
def compare_runs(trained, tmp_path, capsys):
    """compare_runs(pe, pe, *flags): the rows of the table of two runs that are evaluated anew."""

    def compare_runs(first, second, *flags):
        paths = []
        for pe in (first, second):
            eval_extrapolation.main([str(trained(pe)), *flags, "--device", "cpu"])
            paths.append(str(evaluation(trained(pe)).rename(tmp_path / f"{pe}.json")))
        capsys.readouterr()
        compare.main(paths)
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]

    return compare_runs


def test_a_single_block_has_no_interval(compare_runs):
    _, _, *rows = compare_runs("cable", "rope", "--lengths", "8,32", "--windows", "1")
    assert [row[-2] == "unknown" for row in rows] == [False, True]
    assert [row[-1] for row in rows] == ["4", "1"]


def test_table_has_the_lengths_that_both_records_hold(compare_runs):
    flags = ["--lengths", "8,16,32", "--windows", "30"]
    header, _, *rows = compare_runs("cable", "learnable", *flags)
    assert header == ["context", "cable", "learnable", "ratio", "95% interval", "segments"]
    assert [row[0] for row in rows] == ["8", "16"]  # learnable supports at most 16 positions
    assert [row[-1] for row in rows] == ["32", "32"]
    for row in rows:
        first, second, ratio = map(float, row[1:4])
        low, high = map(float, row[4].split(" – "))
        assert ratio == pytest.approx(first / second, abs=2e-3)
        assert low <= ratio <= high


def test_a_loss_of_nan_has_no_interval():
    first, second = ({"loss": x, "perplexity": x, "blocks": [x] * 4} for x in (math.nan, 2.0))
    row = compare.comparison_row("16", first, second)
    assert row == ["16", "nan", "2.00", "nan", "unknown", "4"]


def test_invalid_records_are_refused(refused, tmp_path):
    def write(name, **changes):
        record = {
            "pe": name,
            "run": name,
            "data": 1,
            "protocol": {"name": "segments"},
            "lengths": {"16": {"perplexity": 2.0, "blocks": [0.7, 0.6]}},
            **changes,
        }
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(record))
        return path

    a = write("a")
    assert "two records are needed" in refused(compare.main, a)[0]
    lines = refused(compare.main, a, tmp_path / "none.json")
    assert "does not exist: make it with eval_extrapolation.py" in lines[0]
    assert "pass its record, one of" in refused(compare.main, a, tmp_path)[0]
    assert refused(compare.main, a, write("b", data=2, protocol={"name": "x"})) == [
        "error: the records differ in data: evaluate both runs in the same way",
        "error: the records differ in protocol: evaluate both runs in the same way",
    ]
    other_length = write("c", lengths={"32": {"perplexity": 2.0, "blocks": [1]}})
    assert "share no context length" in refused(compare.main, a, other_length)[0]
    without_blocks = write("d", lengths={"16": {"perplexity": 2.0}})
    assert "share no context length" in refused(compare.main, a, without_blocks)[0]
    (tmp_path / "e.json").write_text("[]")
    lines = refused(compare.main, a, tmp_path / "e.json")
    assert "e.json is not a record of eval_extrapolation.py" in lines[0]
