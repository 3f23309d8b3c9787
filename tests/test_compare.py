"""Tests of compare.py: tables, errors. The intervals: tests/evaluation/test_intervals.py."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import record_examples
from test_report import CHANGES, pair_that_differs, record, save

import compare

OTHER_DATA = {"dataset": "other", "split": "val", "tokenizer": "bytes"}


def rows_of(text):
    """Return the rows of a printed table, without the line below the header."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def test_table_has_the_lengths_that_both_records_hold(tmp_path, capsys):
    """learnable supports at most 16 positions."""
    values = {"cable": {8: 2.0, 16: 2.5, 32: 3.0}, "learnable": {8: 4.0, 16: 4.0, 32: None}}
    compare.main([save(tmp_path / f"{pe}.json", record(pe, each)) for pe, each in values.items()])
    header, *rows = rows_of(capsys.readouterr().out)
    assert header == ["context", "cable", "other", "perplexity", "ratio (95% interval)", "p"]
    interval = "0.5000 (0.5000 to 0.5000), one seed"  # all blocks have the same loss
    assert rows[0] == ["8", "2.00", "learnable", "4.00", interval, "—"]
    assert [row[0] for row in rows] == ["8", "16"]


def test_invalid_records_are_refused(refused, tmp_path):
    def write(name, length=16, **changes):
        return save(tmp_path / f"{name}.json", record(name, {length: 2.0}) | changes)

    a = write("a")
    assert "no records given" in refused(compare.main)[0]
    assert "all records are of a: pass records of another encoding" in refused(compare.main, a)[0]
    assert refused(compare.main, a, write("b", data=OTHER_DATA, protocol={"name": "x"})) == [
        "error: the records differ in data: evaluate all runs in the same way",
        "error: the records differ in protocol: evaluate all runs in the same way",
    ]
    other_length = write("c", length=32)
    assert "no other run has a length of a" in refused(compare.main, a, other_length)[0]
    other = save(tmp_path / "e.json", record_examples.speed())
    assert "e.json is not a record of eval_extrapolation.py" in refused(compare.main, a, other)[0]


# Perplexities of five seeds at 256 and 512 tokens.
SEEDS = {
    "sandwich": {256: [5.0, 5.1, 5.2, 5.3, 5.4], 512: [4.0, 4.1, 4.2, 4.3, 4.4]},
    "alibi": {256: [5.1, 5.4, 5.4, 5.5, 5.6], 512: [4.0, 4.3, 4.0, 4.5, 4.2]},
    "kerple": {256: [4.9, 4.8, 5.0, 5.1, 5.2], 512: [3.9, 4.1, 4.1, 4.2, 4.3]},
}


def seed_records(folder, seeds=5):
    """Write records of SEEDS; those of alibi in the opposite order of seeds."""
    paths = {}
    for pe, values in SEEDS.items():
        paths[pe] = []
        for seed in range(seeds):
            perplexities = {length: column[seed] for length, column in values.items()}
            path = folder / f"{pe}-{seed}.json"
            paths[pe].append(save(path, record(pe, perplexities, seed=seed + 1)))
    return paths["sandwich"] + paths["alibi"][::-1] + paths["kerple"]


def test_seeds_are_compared_by_a_paired_t_test(tmp_path, capsys):
    """t by hand with NumPy; p from the density of Student's t, summed on a grid."""
    compare.main(seed_records(tmp_path))
    out = capsys.readouterr().out
    header, *rows = rows_of(out)
    assert header[1] == "sandwich"
    assert [(*row[:4], row[-1].lstrip("0123456789.")) for row in rows] == [
        ("256", "5.20 ± 0.16", "alibi", "5.40 ± 0.19", "†"),
        ("256", "5.20 ± 0.16", "kerple", "5.00 ± 0.16", "∗"),
        ("512", "4.20 ± 0.16", "alibi", "4.20 ± 0.21", ""),
        ("512", "4.20 ± 0.16", "kerple", "4.12 ± 0.15", "∗"),
    ]
    grid = np.linspace(0, 2000, 4_000_001)
    density = 0.375 * (1 + grid**2 / 4) ** -2.5  # 4 degrees of freedom
    for row in (rows[0], rows[1], rows[3]):
        values, length = SEEDS[row[2]], int(row[0])
        differences = np.subtract(values[length], SEEDS["sandwich"][length])
        t = differences.mean() / (differences.std(ddof=1) / math.sqrt(5))
        p = 2 * density[grid >= abs(t)].sum() * (grid[1] - grid[0])
        assert float(row[5][:-1]) == pytest.approx(p, rel=0.06)
        assert p < 0.05
        ratio = np.exp(-np.log(np.divide(values[length], SEEDS["sandwich"][length])).mean())
        assert row[4].startswith(f"{ratio:.4f} (") and row[4].endswith("), 5 seeds")
    assert "(paired two-sided t-test over shared seeds, level 0.05)" in out


def test_means_and_ratios_are_of_shared_seeds(tmp_path, capsys, refused):
    """Seed 5 of `sandwich` alone does not count; runs without a shared seed are refused."""
    paths = seed_records(tmp_path)
    fewer = [path for path in paths if not str(path).endswith("alibi-4.json")]
    compare.main(fewer)
    rows = [row for row in rows_of(capsys.readouterr().out) if "alibi" in row]
    for row, length in zip(rows, (256, 512), strict=True):
        means = [np.mean(SEEDS[pe][length][:4]) for pe in ("sandwich", "alibi")]
        assert [row[1][:4], row[3][:4]] == [f"{mean:.2f}" for mean in means]
        assert row[4].endswith("), 4 seeds")
    apart = ("sandwich-0.json", "sandwich-1.json", "alibi-3.json", "alibi-4.json")
    (line,) = refused(compare.main, *[path for path in paths if str(path).endswith(apart)])
    assert "sandwich and alibi have no seed in common: evaluate runs of the same seeds" in line


@pytest.mark.parametrize("name, value", CHANGES)
def test_runs_that_differ_in_more_than_encoding_and_seed_are_not_compared(
    tmp_path, capsys, name, value
):
    """The ratio is 3.9 / 8 at 512 tokens."""
    paths = pair_that_differs(tmp_path, name, value)

    def printed(*flags):
        compare.main([*paths, *flags])
        return capsys.readouterr().out

    if name == "seed":
        assert "0.4875" in printed() and "omparable" not in printed()
        return
    warning, _, table = printed().partition("\n")
    assert warning.startswith("**Not comparable**, because the runs differ in more than encoding")
    assert f": {name}: " in warning
    assert "not comparable |" in table and "0.4875" not in table
    allowed = printed("--may_differ", name)
    assert "0.4875" in allowed and f"Settings that differ: {name}: " in allowed
    assert "omparable" not in allowed


def test_encodings_with_another_recipe_are_not_compared(tmp_path, capsys):
    paths = seed_records(tmp_path, seeds=2)
    for path in (path for path in paths if "alibi" in path):
        save(Path(path), json.loads(Path(path).read_text()) | {"settings": {"lr": 2.0}})
    compare.main(paths)
    out = capsys.readouterr().out
    assert out.startswith("**Not comparable**")
    assert [row[2] for row in rows_of(out) if row[4] == "not comparable"] == ["alibi"] * 2
