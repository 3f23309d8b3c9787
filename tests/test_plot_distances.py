"""Plots of biases of the distance alone: numbers by the papers' formulas, files and errors."""

import numpy as np
import pytest

import plot

# The curve that the Sandwich paper prints in figure 9: a log(1 + d) + b.
PRINTED = (-0.825, -0.8)


def sandwich_by_eq_6(tokens, dimension=128):
    """Return equation 6 at h = 8, float64, with the sum over frequencies of appendix E."""
    n = np.arange(dimension // 2)
    angles = np.arange(tokens)[:, None] / 10000 ** (2 * n / dimension)
    return (np.cos(angles).sum(1) - dimension / 2) / 8


def least_squares(bias):
    x = np.log1p(np.arange(len(bias)))
    design = np.stack([x, np.ones_like(x)], 1)
    return np.linalg.lstsq(design, bias, rcond=None)[0]


@pytest.mark.parametrize("dimension", [32, 128])
def test_last_row_is_equation_6(dimension):
    """The last of 12 heads has h = 8."""
    row = plot.bias_by_distance(f"sandwich:dimension={dimension}", 300, 12, -1)
    np.testing.assert_allclose(row, sandwich_by_eq_6(300, dimension), atol=2e-5)
    sixth = plot.bias_by_distance(f"sandwich:dimension={dimension}", 300, 12, 5)
    np.testing.assert_allclose(sixth, 2 * row, atol=2e-5)  # h = 4


def test_figure_9_prints_and_draws_the_fit(tmp_path, capsys):
    out = tmp_path / "figure9.png"
    plot.main(["distances", "sandwich", "sandwich-smoothed", "--fit", "8192", "--out", str(out)])
    a, b = least_squares(sandwich_by_eq_6(8192))
    assert f"sandwich: {a:.3f} log(1 + d) {b:.3f}, fitted to" in capsys.readouterr().out
    smoothed = plot.bias_by_distance("sandwich-smoothed", 8192, 12, -1)
    curve = PRINTED[0] * np.log1p(np.arange(8192)) + PRINTED[1]
    np.testing.assert_allclose(smoothed, curve, atol=1e-5)
    assert out.read_bytes().startswith(b"\x89PNG")
