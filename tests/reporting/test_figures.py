"""Plots: which lines are drawn, with which labels and values; error bars; round numbers on axes."""

import math
import re

import pytest
from test_report import record

from evaluation.intervals import Interval
from reporting import figures
from reporting.columns import make_columns


@pytest.fixture
def drawn(monkeypatch):
    """Panels and titles of every plot of lines, which are drawn, too."""
    calls, draw_lines = [], figures.draw_lines

    def note(file, title, panels, *others, **options):
        calls.append(([lines for _, lines in panels], title))
        draw_lines(file, title, panels, *others, **options)

    monkeypatch.setattr(figures, "draw_lines", note)
    return calls


def plot(records, file, **options):
    figures.by_length(make_columns(records, "perplexity"), file, "perplexity", **options)


def labels_of(panel):
    return [line.label for line in panel if line.points]


@pytest.mark.parametrize(
    "low, high, labels",
    [
        (4, 24, {"6", "12", "24"}),
        (0.01, 1, {"0.01", "0.05", "1"}),
        (9_990, 12_600, {"10,000", "12,000"}),
        (1e6, 6e7, {"1M", "5M", "10M"}),
    ],
)
def test_ticks_are_round_numbers(low, high, labels):
    axes = figures.new_figure(4, "title").subplots()
    axes.plot([1, 2], [low, high])
    axes.set_yscale("log")
    figures.finish(axes, "x", "y", [])
    axes.figure.draw_without_rendering()
    assert labels <= {text.get_text() for text in axes.get_yticklabels()}


@pytest.mark.parametrize(
    "pe, label",
    [
        ("cable:heads_percent=50, 512", "cable, 50% of heads, 512"),
        ("rope+cable@1_cable:heads_percent=50@1", "rope+cable@1_cable:50%@1"),
        ("yarn:ramp=released,factor=16", "yarn, ramp released, factor 16"),
        ("window:w=64+rope", "window:w=64+rope"),
    ],
)
def test_labels_are_short(pe, label):
    assert figures.short_label(pe) == label


def test_a_line_has_the_color_of_its_encoding_in_every_figure(tmp_path, monkeypatch):
    """In the order of the paper or alone, and in a scatter plot; others are gray, with labels."""
    drawn = []
    monkeypatch.setattr(figures, "finish", lambda *arguments: drawn.append(arguments[3]))
    records = [record(pe, {256: 4.0, 512: 4.0}) for pe in ("cable", "rope", "rope+cable")]
    plot(records, tmp_path / "a.png")
    plot(records[1:], tmp_path / "a.png")
    value = Interval(3.0, 2.0, 4.0)
    figures.scatter([("rope", value, value)], tmp_path / "a.png", "x", "y", "title")
    colors = [{label: color for label, color, _ in ends} for ends in drawn]
    both = {"rope": figures.COLORS["rope"], "rope+cable": figures.GRAY}
    assert colors == [{"cable": figures.COLORS["cable"]} | both, both, {"rope": both["rope"]}]


def test_labels_do_not_overlap():
    """Those at one height are spread around it, within the plot as far as they fit."""
    heights = figures.spread([0.0, 0.5, 0.5, 0.99, 1.0], 0.1)
    assert all(b - a > 0.099 for a, b in zip(heights, heights[1:], strict=False))
    assert heights[0] == 0 and heights[1] == 0.5 and heights[-1] == pytest.approx(1)
    assert figures.spread([0.2] * 3, 0.6) == pytest.approx([0.0, 0.6, 1.2])


def test_close_up_has_the_lines_near_the_lowest(drawn, tmp_path):
    """Three of five lines: rope's perplexity rises, and learnable has no second length."""
    records = [
        record("cable", {256: 4.0, 512: 4.0}),
        record("alibi", {256: 4.2, 512: 4.5}),
        record("rope", {256: 3.9, 512: 4.7}),
        record("learnable", {256: 4.0, 512: None}),
        record("fox", {256: 4.0, 512: 4.1}),
    ]
    for chosen in (records, records[:4], [*records[:2], records[4]]):
        plot(chosen, tmp_path / "plot.png", close_up=True)
    (wide, close), (two,), (all_close,) = [panels for panels, _ in drawn]
    assert labels_of(wide) == ["cable", "alibi", "rope", "learnable", "fox"]
    assert labels_of(close) == ["cable", "alibi", "fox"] == labels_of(all_close)
    assert labels_of(two) == ["cable", "alibi", "rope", "learnable"]
    assert wide[1].points == [(256, 4.2), (512, 4.5)] and wide[3].points == [(256, 4.0)]


def test_lines_have_the_deviation_over_seeds(drawn, tmp_path):
    """4.0 and 4.2 in two seeds; one seed and infinity at the other lengths."""
    values = {256: 4.0, 512: 3.0, 1024: math.inf}
    records = [record("cable", values, seed=1), record("cable", {256: 4.2, 1024: 5.0}, seed=2)]
    plot(records, tmp_path / "plot.png")
    plot(records[:1], tmp_path / "plot.png")
    (((line,),), title), (((single,),), _) = drawn
    assert re.match(r"toy \(val\), .* model.*, trained at 256 tokens, 2 seeds\nbands: ± ", title)
    assert line.points == [(256, pytest.approx(4.1))]
    assert line.errors == [(pytest.approx(0.1414, abs=1e-4),) * 2]
    assert [x for x, _ in single.points] == [256, 512]
    entry = records[0]["lengths"]["256"]
    assert single.errors[0] == (pytest.approx(entry["loss_se"] * entry["perplexity"]),) * 2
    plot([record("cable", {256: math.inf})], tmp_path / "plot.png", close_up=True)  # no line


@pytest.mark.filterwarnings("error")
def test_a_single_length_has_an_axis(tmp_path):
    plot([record("cable", {256: 4.0}), record("rope", {256: 5.0})], tmp_path / "plot.png")


def test_error_bars_of_a_scatter_plot_end_at_its_limits(tmp_path):
    interval = Interval(3.0, -1.0, 9.0)
    assert figures.error_bar(interval, 3.0) == (3.0, 6.0)
    assert figures.error_bar(interval, 3.0, lowest=2.0, highest=4.0) == (1.0, 1.0)
    assert figures.error_bar(interval, 4.0, highest=4.0) == (4.0, 0.0)  # drawn at the edge
    assert all(map(math.isnan, figures.error_bar(Interval(3.0), 3.0)))
    points = [("cable", Interval(4.0, 4.0, 4.0), Interval(-0.1, -0.2, 0.1))]
    points += [("rope", Interval(14.0, 12.0, 16.0), Interval(0.9, 0.1, 1.7))]
    figures.scatter(points, tmp_path / "plot.png", "x", "y", "title")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
