"""Paired bootstrap: its interval against the normal one, its pairing, and refusals."""

import json
import math

import numpy as np
import pytest
from conftest import evaluation

import compare
import eval_extrapolation


def test_interval_is_the_normal_one_for_many_blocks():
    """Differences of mean 0.02 and deviation 0.1 over 400 blocks: an error of 0.005, whatever the spread that both share."""
    random = np.random.default_rng(3)
    text, differences = random.normal(3, 1, 400), random.normal(0, 1, 400)
    differences = 0.02 + 0.1 * (differences - differences.mean()) / differences.std()
    ratio, low, high = compare.ratio_of(text + differences, text, np.ones(400))
    assert ratio == pytest.approx(math.exp(0.02))
    assert math.log(low) == pytest.approx(0.02 - 1.96 * 0.005, abs=3e-4) and math.log(
        high
    ) == pytest.approx(0.02 + 1.96 * 0.005, abs=3e-4)


def test_blocks_count_by_their_tokens():
    """Neighbouring windows put together two by two, but for the last ones: the mean over tokens stays, and so does the interval."""
    random = np.random.default_rng(4)
    differences = random.normal(0.1, 0.1, 900) + np.repeat([0, 1], 450)
    pairs = np.concatenate([differences[:600].reshape(300, 2).mean(1), differences[600:]])
    found = [
        compare.ratio_of(x, np.zeros(len(x)), tokens)
        for x, tokens in ((differences, np.ones(900)), (pairs, np.repeat([2, 1], 300)))
    ]
    assert found[0][0] == pytest.approx(math.exp(differences.mean())) and found[1][
        0
    ] == pytest.approx(found[0][0])
    assert found[1][1:] == pytest.approx(found[0][1:], rel=0.05)


def test_one_block_tells_no_interval(trained, tmp_path, capsys):
    paths = []
    for pe in ("cable", "rope"):
        eval_extrapolation.main(
            [str(trained(pe)), "--lengths", "8,32", "--windows", "1", "--device", "cpu"]
        )
        paths.append(str(evaluation(trained(pe)).rename(tmp_path / f"{pe}.json")))
    capsys.readouterr()
    compare.main(paths)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("|")
    ]
    assert [row[-2] == "unknown" for row in rows[2:]] == [False, True] and [
        row[-1] for row in rows[2:]
    ] == ["4", "1"]


def test_records_are_compared(trained, tmp_path, capsys):
    paths = []
    for pe in ("cable", "learnable"):
        eval_extrapolation.main(
            [str(trained(pe)), "--lengths", "8,16,32", "--windows", "30", "--device", "cpu"]
        )
        content = json.loads(evaluation(trained(pe)).read_text())
        paths.append(tmp_path / f"{pe}.json")
        paths[-1].write_text(json.dumps(content))
        evaluation(trained(pe)).unlink()
    capsys.readouterr()
    compare.main(list(map(str, paths)))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["context", "cable", "learnable", "ratio", "95% interval", "blocks"]
    assert [row[0] for row in rows[2:]] == ["8", "16"] and [row[-1] for row in rows[2:]] == [
        "120",
        "60",
    ]  # learnable ends at 16
    for row in rows[2:]:
        low, high = map(float, row[4].split(" – "))
        assert (
            float(row[3]) == pytest.approx(float(row[1]) / float(row[2]), abs=2e-3)
            and low <= float(row[3]) <= high
        )


def test_refusals(refused, tmp_path):
    def write(name, **changes):
        record = {
            "pe": name,
            "run": name,
            "data": 1,
            "protocol": {"name": "segments"},
            "lengths": {"16": {"perplexity": 2.0, "blocks": [0.7, 0.6]}},
            **changes,
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
        return tmp_path / f"{name}.json"

    a = write("a")
    assert "name two records" in refused(compare.main, a)[0]
    assert (
        "does not exist: make it with eval_extrapolation.py"
        in refused(compare.main, a, tmp_path / "none.json")[0]
    )
    assert refused(compare.main, a, write("b", data=2, protocol={"name": "x"})) == [
        "error: the records have another data: evaluate both alike",
        "error: the records have another protocol: evaluate both alike",
    ]
    assert (
        "share no context"
        in refused(compare.main, a, write("c", lengths={"32": {"perplexity": 2.0, "blocks": [1]}}))[
            0
        ]
    )
    assert (
        "share no context"
        in refused(compare.main, a, write("d", lengths={"16": {"perplexity": 2.0}}))[0]
    )
    (tmp_path / "e.json").write_text("[]")
    assert "e.json is no record" in refused(compare.main, a, tmp_path / "e.json")[0]
