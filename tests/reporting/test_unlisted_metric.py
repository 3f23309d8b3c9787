"""A metric that no module lists: its record is checked, and reported with a table and a plot."""

import json

import pytest
import record_examples

import report
from errors import InputError


def record(value) -> dict:
    entries = {"256": {"note": "a", "value": value}, "512": None}
    return record_examples.perplexity() | {"metric": "Surprise", "lengths": entries}


def test_report(tmp_path):
    path = tmp_path / "surprise.json"
    path.write_text(json.dumps(record(2.5)))
    report.main([str(path), "--out_dir", str(tmp_path)])
    text = (tmp_path / "surprise.md").read_text()
    assert "|    256 |  2.50 |" in text and "Surprise on toy (val)" in text
    assert (tmp_path / "surprise.png").exists()


def test_an_entry_needs_a_number(tmp_path):
    path = tmp_path / "surprise.json"
    path.write_text(json.dumps(record("high")))
    with pytest.raises(InputError, match="lengths"):
        report.main([str(path), "--out_dir", str(tmp_path)])
