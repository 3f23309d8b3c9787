"""Tables of `bench.py compare` and `growth`: rows, ratios and fitted exponents of known data."""

import math

import pytest
from test_report import save

import report
from reporting import metrics, tables

SETUP = {
    "model": "tiny",
    "micro_batch": 2,
    "device": "cpu (2 threads)",
    "dtype": "bfloat16",
    "compile": False,
    "repeats": 3,
}
HARDWARE = {"processor": "Abacus", "torch": "2.13.0"}
COMPARE = HARDWARE | {
    "compare": SETUP
    | {
        "context": 64,
        "rows": [
            {
                "task": "training step",
                "encoding": "cable-v1",
                "against": "CABLE authors",
                "tokens": 1000,
                "flops": 6e9,
                "product_flops": 8e9,
                "seconds": {"ours": [2, 1, 4], "theirs": [4, 2, 8], "product": [1, 0.5, 0.4]},
            },
            {
                "task": "preparation",
                "against": "tiktoken",
                "tokens": 100,
                "seconds": {"ours": [1], "theirs": [0.5]},
            },
        ],
        "skipped": {"training step, learnable, nanoGPT": "NANOGPT is not set: name a clone"},
    }
}


def test_comparison_table(tmp_path):
    """Every round of training has the ratio 2. The median of 0.5, 0.5 and 0.1 is 0.5 x 6 / 8."""
    report.main([save(tmp_path / "c.json", COMPARE), "--out_dir", str(tmp_path / "out")])
    text = (tmp_path / "out" / "compare.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[:4]]
    assert rows[0] == [
        "task",
        "against",
        "ours (tokens/s)",
        "theirs (tokens/s)",
        "ratio",
        "of peak",
    ]
    assert rows[2:] == [
        ["training step, cable-v1", "CABLE authors", "500", "250", "2.00 (2.00 to 2.00)", "37.5%"],
        ["preparation", "tiktoken", "100", "200", "0.50", "—"],
    ]
    assert "Not measured: training step, learnable, nanoGPT (NANOGPT is not set" in text
    assert "(median 16 GFLOP/s)" in text and "Abacus, PyTorch 2.13.0." in text


def test_exponent_of_noisy_data_has_an_interval():
    """Slope and standard error of four points, computed by hand: y = 0, 1, 1, 2 at x = 0..3."""
    points = [(math.e**x, math.e**y) for x, y in enumerate((0, 1, 1, 2))]
    exponent = tables.growth_exponent(points)
    width = 4.3027 * math.sqrt(0.2 / 2 / 5)  # t of two degrees of freedom, residuals, deviations
    assert exponent.estimate == pytest.approx(0.6)
    assert exponent.high - 0.6 == pytest.approx(width) == pytest.approx(0.6 - exponent.low)
    assert tables.growth_exponent(points[:2]).low is None
    assert tables.growth_exponent(points[:1]) is None


def test_records_with_contradictions_are_refused():
    rows = COMPARE["compare"]["rows"]
    uneven = rows[0] | {"seconds": rows[0]["seconds"] | {"theirs": [1]}}
    without = rows[0] | {"seconds": {"ours": [1], "theirs": [1]}}
    for row, problem in ((uneven, "different numbers of rounds"), (without, "no product")):
        record = COMPARE | {"compare": COMPARE["compare"] | {"rows": [row]}}
        assert problem in metrics.COMPARISON.schema.find_problem(record)
