"""Tests of compare.py: bootstrap intervals against the normal ones, tables, errors."""

import json
import math

import numpy as np
import pytest
from conftest import evaluation

import compare
import eval_extrapolation


def test_interval_of_many_blocks_is_the_normal_one():
    """Differences of mean 0.02 and deviation 0.1 over 400 blocks have a standard error of 0.005.

    The spread that both runs share does not matter.
    """
    random = np.random.default_rng(3)
    shared, differences = random.normal(3, 1, 400), random.normal(0, 1, 400)
    differences = 0.02 + 0.1 * (differences - differences.mean()) / differences.std()
    ratio, low, high = compare.bootstrap_ratio(shared + differences, shared, np.ones(400))
    assert ratio == pytest.approx(math.exp(0.02))
    assert math.log(low) == pytest.approx(0.02 - 1.96 * 0.005, abs=3e-4)
    assert math.log(high) == pytest.approx(0.02 + 1.96 * 0.005, abs=3e-4)


def test_blocks_are_weighted_by_their_tokens():
    """Joining two thirds of the blocks in pairs changes neither the mean nor the interval."""
    random = np.random.default_rng(4)
    differences = random.normal(0.1, 0.1, 900) + np.repeat([0, 1], 450)
    joined = np.concatenate([differences[:600].reshape(300, 2).mean(1), differences[600:]])
    joined_tokens = np.repeat([2, 1], 300)
    single = compare.bootstrap_ratio(differences, np.zeros(900), np.ones(900))
    pairs = compare.bootstrap_ratio(joined, np.zeros(600), joined_tokens)
    assert single[0] == pytest.approx(math.exp(differences.mean()))
    assert pairs[0] == pytest.approx(single[0])
    assert pairs[1:] == pytest.approx(single[1:], rel=0.05)


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
    assert header == ["context", "cable", "learnable", "ratio", "95% interval", "blocks"]
    assert [row[0] for row in rows] == ["8", "16"]  # learnable supports at most 16 positions
    assert [row[-1] for row in rows] == ["120", "60"]
    for row in rows:
        first, second, ratio = map(float, row[1:4])
        low, high = map(float, row[4].split(" – "))
        assert ratio == pytest.approx(first / second, abs=2e-3)
        assert low <= ratio <= high


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
