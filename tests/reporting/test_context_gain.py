"""The gain of context of records with known losses by position."""

import csv
import json

import record_examples

import report


def record(seed: int, gain: float) -> dict:
    """Return a record whose loss at 1,024 tokens is lower by `gain` from position 512 on."""
    record = record_examples.perplexity() | {"seed": seed, "run": f"cable{seed}"}
    curves = {256: [3.0, 2.0, 2.5, 1.5], 1024: [3.0, 2.0, 2.5 - gain, 1.5 - gain]}
    entry = record["lengths"]["256"]
    record["lengths"] = {
        str(length): entry | {"by_offset": {"first": 0, "width": 256, "loss": losses}}
        for length, losses in curves.items()
    }
    return record


def write(tmp_path, records: list[dict]) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    report.main([str(path), "--out_dir", str(tmp_path)])


def test_table_and_plot(tmp_path):
    write(tmp_path, [record(1, 0.25), record(2, 0.35)])
    with open(tmp_path / "context_gain.csv", newline="") as file:
        rows = dict(list(csv.reader(file))[1:])
    assert rows == {
        "0 to 255": "0.000 ± 0.000",
        "256 to 511": "0.000 ± 0.000",
        "512 to 1,023": "0.300 ± 0.071",
    }
    assert (tmp_path / "context_gain.png").stat().st_size > 1000


def test_other_records_have_no_gain(tmp_path):
    write(tmp_path, [record_examples.perplexity()])
    assert not list(tmp_path.glob("context_gain*"))
