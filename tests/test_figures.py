"""Labels of lines do not cover each other, and every axis has round numbers on it."""

import pytest

import figures


def test_labels_are_spread_around_their_lines():
    assert figures.spread([0, 20, 40], gap=10) == [0, 20, 40]
    assert figures.spread([0, 0], gap=10) == [-5, 5]
    places = figures.spread([0, 1, 2, 3, 50], gap=10)
    assert all(b - a > 9.8 for a, b in zip(places, places[1:])) and sum(places[:4]) / 4 == pytest.approx(1.5, abs=0.5)


@pytest.mark.parametrize("low, high, ticks", [
    (3.9, 24, [4, 5, 7, 10, 15, 20]), (0.11, 1.1, [0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1]), (190, 222, [190, 200, 210, 220]),
    (9_990, 12_600, [10_000, 11_000, 12_000]), (1_010, 1_090, [1_020, 1_040, 1_060, 1_080])])
def test_round_numbers_on_an_axis(low, high, ticks):
    assert figures._ticks(low, high) == pytest.approx(ticks)
