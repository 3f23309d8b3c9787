"""Reports on gains of context, other people's code, and a metric that no module lists."""

import csv

import pytest
import record_examples
from test_report import save

import report
from errors import InputError


def with_gain(seed: int, gain: float) -> dict:
    """Return a record whose loss at 1,024 tokens is lower by `gain` from position 512 on."""
    record = record_examples.perplexity() | {"seed": seed, "run": f"cable{seed}"}
    curves = {256: [3.0, 2.0, 2.5, 1.5], 1024: [3.0, 2.0, 2.5 - gain, 1.5 - gain]}
    entry = record["lengths"]["256"]
    record["lengths"] = {
        str(length): entry | {"by_offset": {"first": 0, "width": 256, "loss": losses}}
        for length, losses in curves.items()
    }
    return record


def test_gain_of_context(tmp_path):
    """Another record has none."""
    records = [with_gain(1, 0.25), with_gain(2, 0.35), record_examples.perplexity()]
    paths = [save(tmp_path / f"{n}.json", each) for n, each in enumerate(records)]
    report.main([*paths, "--out_dir", str(tmp_path)])
    with open(tmp_path / "context_gain.csv", newline="") as file:
        assert list(csv.reader(file)) == [
            ["position", "cable", "cable std"],
            *(["256", "0", "0"], ["512", "0", "0"], ["1024", "30", "7.07107"]),
        ]
    assert (tmp_path / "context_gain.png").stat().st_size > 1000


def test_comparison_table(tmp_path):
    """Every round of training has the ratio 2. The median of 0.5, 0.5 and 0.1 is 0.5 x 6 / 8."""
    record = record_examples.compare()
    seconds = {"ours": [1], "theirs": [0.5]}
    row = {"task": "preparation", "against": "tiktoken", "tokens": 100, "seconds": seconds}
    record["compare"]["rows"].append(row)
    report.main([save(tmp_path / "c.json", record), "--out_dir", str(tmp_path / "out")])
    text = (tmp_path / "out" / "compare.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[:4]]
    names = "task, against, ours (tokens/s), theirs (tokens/s), ratio, of peak"
    assert rows[0] == names.split(", ")
    assert rows[2:] == [
        ["training step, cable", "nanoGPT", "500", "250", "2.00 (2.00 to 2.00)", "37.5%"],
        ["preparation", "tiktoken", "100", "200", "0.50", "—"],
    ]
    assert "Not measured: training step, learnable, nanoGPT (NANOGPT is not set" in text
    assert "Abacus, PyTorch 2.13.0." in text


def test_a_metric_that_no_module_lists(tmp_path):
    """A table and a plot. Its values are numbers."""
    record = record_examples.perplexity() | {"metric": "Surprise"}
    for value in (2.5, "high"):
        record["lengths"] = {"256": {"note": "a", "value": value}, "512": None}
        save(tmp_path / f"{value}.json", record)
    report.main([str(tmp_path / "2.5.json"), "--out_dir", str(tmp_path)])
    text = (tmp_path / "surprise.md").read_text()
    assert "|     256 |  2.50 |" in text and "Surprise on toy (val)" in text
    assert (tmp_path / "surprise.png").exists()
    with pytest.raises(InputError, match="lengths"):
        report.main([str(tmp_path / "high.json"), "--out_dir", str(tmp_path)])
