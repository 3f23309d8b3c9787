"""Labels of lines do not cover each other, and every axis has round numbers on it."""

import pytest
from test_report import record

from reporting import figures, tables


def test_labels_are_spread_around_their_lines():
    assert figures.spread([0, 20, 40], gap=10) == [0, 20, 40]
    assert figures.spread([0, 0], gap=10) == [-5, 5]
    places = figures.spread([0, 1, 2, 3, 50], gap=10)
    assert all(b - a > 9.8 for a, b in zip(places, places[1:])) and sum(
        places[:4]
    ) / 4 == pytest.approx(1.5, abs=0.5)


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
def test_round_numbers_on_an_axis(low, high, ticks):
    assert figures._ticks(low, high) == pytest.approx(ticks)


def test_labels_on_an_axis_do_not_cover_each_other():
    assert figures.tick_labels([512, 1024, 2048]) == ["512", "1,024", "2,048"]
    assert figures.tick_labels([128, 256, 2048, 3840, 4096]) == ["128", "256", "2,048", "", "4,096"]


def test_those_near_the_lowest_are_drawn_once_more(monkeypatch, tmp_path):
    """Three of five: rope leaves them, and learnable ends before."""
    drawn = []
    monkeypatch.setattr(
        figures,
        "_draw",
        lambda axes, lines, *_, **__: drawn.append([label for label, points in lines if points]),
    )
    records = [
        record("cable", {256: 4.0, 512: 4.0}),
        record("alibi", {256: 4.2, 512: 4.5}),
        record("rope", {256: 3.9, 512: 4.7}),
        record("learnable", {256: 4.0, 512: None}),
        record("fox", {256: 4.0, 512: 4.1}),
    ]
    figures.by_context(tables.columns(records), tmp_path / "all.png")
    assert drawn == [["cable", "alibi", "rope", "learnable", "fox"], ["cable", "alibi", "fox"]]
    figures.by_context(tables.columns(records[:4]), tmp_path / "two.png")
    figures.by_context(tables.columns([*records[:2], records[4]]), tmp_path / "all.png")
    assert drawn[2:] == [["cable", "alibi", "rope", "learnable"], ["cable", "alibi", "fox"]]


def test_losses_by_place(monkeypatch, tmp_path):
    """A learned table ends before the others, and says so; a window's last token alone has a place too; encoders see both sides."""
    drawn = []
    draw = figures._draw
    monkeypatch.setattr(
        figures,
        "_draw",
        lambda axes, lines, marked, ylabel, xlabel: (
            drawn.append(([label for label, _ in lines], marked, xlabel))
            or draw(axes, lines, marked, ylabel, xlabel)
        ),
    )

    def placed(pe, lengths):
        found = record(pe, dict.fromkeys(lengths, 4.0))
        for length in lengths:
            found["lengths"][str(length)]["by_position"] = {
                "first": length - 1,
                "width": 1,
                "loss": [1.0],
            }
        return found

    records = [placed("cable", [256, 511]), placed("learnable", [256])]
    figures.positions(tables.columns(records), tmp_path / "a.png")
    assert drawn == [(["cable", "learnable (256)"], [256], "tokens seen before the prediction")]
    figures.positions(
        tables.columns([record | {"objective": "mlm"} for record in records[:1]]),
        tmp_path / "b.png",
    )
    assert (
        drawn[1:] == [(["cable"], [511], "place in the window (tokens)")]
        and (tmp_path / "b.png").stat().st_size
    )
