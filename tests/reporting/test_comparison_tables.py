"""The table of `bench.py compare`: rows and ratios of known data."""

import record_examples
from test_report import save

import report


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
    assert "(median 16 GFLOP/s)" in text and "Abacus, PyTorch 2.13.0." in text
