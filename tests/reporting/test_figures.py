"""Plots: which lines are drawn, with which labels, colors and values; round numbers on axes."""

import io
import math
import re

import matplotlib
import pytest
import record_examples
from test_report import record

from reporting import figures
from reporting.columns import in_order, make_columns

PLUGIN = "rope:heads_percent=75+my-bias"


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
    ],
)
def test_ticks_are_round_numbers(low, high, labels):
    with figures.new_figure(io.BytesIO(), 4, "title") as figure:
        axes = figure.subplots()
        axes.plot([1, 2], [low, high])
        axes.set_yscale("log")
        figures.finish(axes, "x", "y")
    assert labels <= {text.get_text() for text in axes.get_yticklabels()}


@pytest.fixture
def legends(monkeypatch):
    """[[(label, color, linestyle, marker)]] of the legend of every panel that is drawn."""
    found, finish = [], figures.finish

    def note(axes, *arguments):
        finish(axes, *arguments)
        texts = [text.get_text() for text in axes.get_legend().get_texts()]
        lines = {line.get_label(): line for line in axes.get_lines()}
        styles = ((each, lines[each]) for each in texts)
        found.append([(n, x.get_color(), x.get_linestyle(), x.get_marker()) for n, x in styles])

    monkeypatch.setattr(figures, "finish", note)
    return found


def test_an_encoding_has_one_color_in_every_figure(legends, tmp_path):
    """Alone or with others, in all kinds of plots, and with other attention."""
    records = [record(pe, {256: 4.0, 512: 4.0}) for pe in ("cable", "rope", PLUGIN)]
    records += [records[1] | {"cache_window": 256}]
    plot(records, tmp_path / "a.png")
    plot(records[:0:-1], tmp_path / "a.png")
    result = record_examples.speed()["train"]
    for cases in result["contexts"].values():
        cases["rope"] = cases["cable"]
    figures.speeds(result, tmp_path / "a.png")
    panel = [("loss", [figures.Line(PLUGIN, [(1, 2.0), (2, 1.0)])])]
    figures.draw_lines(tmp_path / "a.png", "title", panel, "steps", "linear", "linear")
    colors = [{label: color for label, color, *_ in legend} for legend in legends]
    labels = {"cable", "rope", PLUGIN, "rope, last 256 tokens"}
    assert {*colors[0]} == labels and len({*colors[0].values()}) == 4
    assert all(colors[0].items() >= others.items() for others in colors) and len(colors) == 5


def test_every_curve_of_a_figure_has_its_own_style(legends, tmp_path):
    """Twenty have different colors, and sixty another color, dashes or marker."""
    names = [f"sandwich:dimension={2 * n}" for n in range(1, 56)]
    names = ["cable", "rope", "nope", "my-plugin", "rope+cable@1_cable", *names]
    for count in (20, 60):
        records = [record(pe, {256: 4.0, 512: 4.0}) for pe in names[:count]]
        plot(records, tmp_path / "a.png")
        assert [label for label, *_ in legends[-1]] == [each["pe"] for each in in_order(records)]
        assert len({(*style,) for _, *style in legends[-1]}) == len(records)
    assert len({color for _, color, *_ in legends[0]}) == 20
    assert legends[1][0][1:] == legends[0][0][1:]  # cable's


def test_a_user_with_other_settings_gets_the_same_picture(tmp_path):
    """Also with LaTeX, which most machines lack, and with names like formulas."""
    records = [record("cable", {256: 4.0, 512: 4.0}, run=name) for name in ("$a_$", "$$")]
    plot(records, tmp_path / "a.png")
    with matplotlib.rc_context({"text.usetex": True, "lines.linewidth": 9}):
        plot(records, tmp_path / "b.png")
        assert matplotlib.rcParams["text.usetex"]
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


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
    assert [point[:2] for point in wide[1].points] == [(256, 4.2), (512, 4.5)]
    assert [point[:2] for point in wide[3].points] == [(256, 4.0)]


def test_lines_have_the_deviation_over_seeds(drawn, tmp_path):
    """4.0 and 4.2 in two seeds; one seed and infinity at the other lengths."""
    values = {256: 4.0, 512: 3.0, 1024: math.inf}
    records = [record("cable", values, seed=1), record("cable", {256: 4.2, 1024: 5.0}, seed=2)]
    plot(records, tmp_path / "plot.png")
    plot(records[:1], tmp_path / "plot.png")
    (((line,),), title), (((single,),), _) = drawn
    assert re.match(r"toy \(val\), .* model.*, trained at 256 tokens, 2 seeds\nbands: ± ", title)
    assert line.points == [pytest.approx((256, 4.1, 4.1 - 0.1414, 4.1 + 0.1414), abs=1e-4)]
    error = 0.004 * 4.0  # standard error of the loss times perplexity
    assert single.points[0] == pytest.approx((256, 4.0, 4.0 - error, 4.0 + error))
    assert [x for x, *_ in single.points] == [256, 512]
    plot([record("cable", {256: math.inf})], tmp_path / "plot.png", close_up=True)  # no line


@pytest.mark.filterwarnings("error")
def test_a_single_length_has_an_axis(tmp_path):
    plot([record("cable", {256: 4.0}), record("rope", {256: 5.0})], tmp_path / "plot.png")
