"""Plots: which lines are drawn, labels that do not overlap, round numbers on every axis."""

from functools import partial

import pytest
from test_report import record

from evaluation.intervals import Interval
from reporting import figures
from reporting.columns import make_columns


def columns_of(records):
    return make_columns(records, "perplexity")


def test_overlapping_labels_are_spread_around_their_lines():
    assert figures.spread([0, 20, 40], gap=10) == [0, 20, 40]
    assert figures.spread([0, 0], gap=10) == [-5, 5]
    heights = figures.spread([0, 1, 2, 3, 50], gap=10)
    assert all(b - a > 9.8 for a, b in zip(heights, heights[1:], strict=False))
    assert sum(heights[:4]) / 4 == pytest.approx(1.5, abs=0.5)


@pytest.mark.parametrize(
    "low, high, ticks",
    [
        (3.9, 24, [4, 5, 7, 10, 15, 20]),
        (0.11, 1.1, [0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1]),
        (190, 222, [190, 200, 210, 220]),
        (9_990, 12_600, [10_000, 11_000, 12_000]),
        (1_010, 1_090, [1_020, 1_040, 1_060, 1_080]),
        (5.03, 13.2, [6, 7, 8, 9, 10, 12]),
    ],
)
def test_ticks_are_round_numbers(low, high, ticks):
    assert figures._log_ticks(low, high) == pytest.approx(ticks)


def test_tick_labels_do_not_overlap():
    assert figures.tick_labels([512, 1024, 2048]) == ["512", "1,024", "2,048"]
    assert figures.tick_labels([128, 256, 2048, 3840, 4096]) == ["128", "256", "2,048", "", "4,096"]


def test_close_up_has_the_lines_near_the_lowest(monkeypatch, tmp_path):
    """Three of five lines: rope's perplexity rises, and learnable has no second length."""
    drawn = []

    def draw(axes, lines, *_, **__):
        drawn.append([line.label for line in lines if line.points])

    monkeypatch.setattr(figures, "_draw_lines", draw)
    by_length = partial(figures.by_length, y_label="perplexity", close_up=True)
    records = [
        record("cable", {256: 4.0, 512: 4.0}),
        record("alibi", {256: 4.2, 512: 4.5}),
        record("rope", {256: 3.9, 512: 4.7}),
        record("learnable", {256: 4.0, 512: None}),
        record("fox", {256: 4.0, 512: 4.1}),
    ]
    by_length(columns_of(records), tmp_path / "all.png")
    assert drawn == [["cable", "alibi", "rope", "learnable", "fox"], ["cable", "alibi", "fox"]]
    by_length(columns_of(records[:4]), tmp_path / "two.png")
    by_length(columns_of([*records[:2], records[4]]), tmp_path / "all.png")
    assert drawn[2:] == [["cable", "alibi", "rope", "learnable"], ["cable", "alibi", "fox"]]


def test_error_bars_of_a_scatter_plot_end_at_its_limits():
    interval = Interval(3.0, -1.0, 9.0)
    assert figures._error_bars(interval, 3.0) == [[3.0], [6.0]]
    assert figures._error_bars(interval, 3.0, lowest=2.0, highest=4.0) == [[1.0], [1.0]]
    assert figures._error_bars(interval, 4.0, highest=4.0) == [[4.0], [0.0]]  # drawn at the edge
    assert figures._error_bars(Interval(3.0), 3.0) is None


def test_scatter_draws_points_beyond_its_limits(tmp_path):
    points = [("cable", Interval(4.0, 4.0, 4.0), Interval(-0.1, -0.2, 0.1))]
    points += [("rope", Interval(14.0, 12.0, 16.0), Interval(0.9, 0.1, 1.7))]
    with open(tmp_path / "plot.png", "wb") as file:
        figures.scatter(points, file, "x", "y", ("cable",))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_perplexity_by_position(monkeypatch, tmp_path):
    """A label names a shorter window. A curve may have one position. Encoders read both sides."""
    drawn = []
    draw = figures._draw_lines

    def draw_and_note(axes, lines, ticks, y_label, x_label):
        drawn.append(([line.label for line in lines], ticks, x_label))
        draw(axes, lines, ticks, y_label, x_label)

    monkeypatch.setattr(figures, "_draw_lines", draw_and_note)

    def with_last_position(pe, lengths):
        entry = record(pe, dict.fromkeys(lengths, 4.0))
        for length in lengths:
            curve = {"first": length - 1, "width": 1, "loss": [1.0]}
            entry["lengths"][str(length)]["by_position"] = curve
        return entry

    cable = with_last_position("cable", [256, 511])
    learnable = with_last_position("learnable", [256])
    figures.by_position(columns_of([cable, learnable]), tmp_path / "a.png")
    assert drawn == [(["cable", "learnable (256)"], [256], "tokens before the prediction")]
    figures.by_position(columns_of([cable | {"objective": "mlm"}]), tmp_path / "b.png")
    assert drawn[1:] == [(["cable"], [511], "position in the window (tokens)")]
    assert (tmp_path / "b.png").stat().st_size
