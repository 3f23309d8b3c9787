"""Labels of lines do not cover each other."""

import pytest

import figures


def test_labels_are_spread_around_their_lines():
    assert figures.spread([0, 20, 40], gap=10) == [0, 20, 40]
    assert figures.spread([0, 0], gap=10) == [-5, 5]
    places = figures.spread([0, 1, 2, 3, 50], gap=10)
    assert all(b - a > 9.8 for a, b in zip(places, places[1:])) and sum(places[:4]) / 4 == pytest.approx(1.5, abs=0.5)
