"""Line plots by length, step or model size; scatter plot of scores.

Plot functions write a PNG to a binary file.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from evaluation.intervals import Interval
from reporting import style
from reporting.columns import Column, all_lengths, describe_models
from reporting.tables import cases, describe_setup, speed_sort_key

Points = list[tuple[float, float]]  # (x, y)

# Lines below this multiple of the lowest value at every length get a close-up.
CLOSE = 1.15
MIN_CLOSE_LINES = 3
MIN_FRACTION = 0.001  # of a gradient that is drawn
MAX_DRAWN = 1e12  # larger perplexities are only in the table
FLOOR = 0.01  # percent of recall: lower values are drawn here
WIDEST = 1.6  # multiple of the lowest perplexity: higher ones are drawn here
OVER_SEEDS = "standard deviation over seeds"
OVER_TEXT = "standard error of one seed"


@dataclass
class Line:
    """A labeled line of a plot. A line without points is not drawn."""

    label: str
    pe: str
    """encoding, which has the color"""
    points: Points = field(default_factory=list)
    errors: Points = field(default_factory=list)
    """height of the error band below and above each point; NaN: no band"""

    def add(self, x: float, y: float, below: float | None = None, above: float | None = None):
        """Add a point with its errors; None: no error, or above as below."""
        below = math.nan if below is None else below
        self.points.append((x, y))
        self.errors.append((below, below if above is None else above))


def by_length(
    columns: list[Column],
    file,
    y_label: str,
    y_scale: str = "log",
    x_label: str = "context (tokens)",
    close_up: bool = False,
) -> None:
    """Plot each column's mean against context length, with error bands.

    close_up: adds a panel of the lines close to the lowest, if others are far
    above.
    """
    lines = []
    for column in columns:
        lines.append(line := Line(column.label, column.pe))
        for length in column.lengths():
            mean = column.mean(length)
            if mean is not None and mean <= MAX_DRAWN:
                line.add(length, mean, column.error(length))
    panels = [(y_label, lines)]
    close = _close_to_lowest(lines, len(all_lengths(columns)))
    if close_up and MIN_CLOSE_LINES <= sum(bool(line.points) for line in close) < len(lines):
        panels.append((y_label, close))
    several = {len(column.records) > 1 for column in columns}
    errors = " or ".join([OVER_SEEDS] * (True in several) + [OVER_TEXT] * (False in several))
    draw_columns(columns, file, f"bands: ± {errors}", panels, x_label, y_scale)


def draw_columns(columns: list[Column], file, note: str, panels, x_label: str, *scale, **options):
    """Draw lines of columns, with models in the title, and training lengths."""
    title = f"{describe_models(columns)}\n{note}".strip()
    trained_at = {column.trained_at for column in columns}
    draw_lines(file, title, panels, x_label, *scale, trained_at=trained_at, **options)


def _close_to_lowest(lines: list[Line], lengths: int) -> list[Line]:
    """Return lines; any not close to the lowest everywhere has no points."""
    lowest = {}
    for x, y in (point for line in lines for point in line.points):
        lowest[x] = min(y, lowest.get(x, y))
    close = []
    for line in lines:
        is_close = all(y < CLOSE * lowest[x] for x, y in line.points)
        is_complete = len(line.points) == lengths
        close.append(line if is_close and is_complete else Line(line.label, line.pe))
    return close


def cumulative_gradient(columns: list[Column], file) -> None:
    """Plot the fraction of the gradient further back than n tokens, against n.

    Each column at its longest context. Receptive fields end where a line
    crosses the dotted one.
    """
    lines = []
    for column in columns:
        points = gradient_further_back(column.records)
        drawn = [point for point in points if point[1] >= MIN_FRACTION]
        lines.append(Line(column.label, column.pe, drawn))
    level = 1 - columns[0].records[0]["protocol"]["held"]
    note = "dotted: end of the receptive field"
    panels = [("fraction of the gradient further back", lines)]
    draw_columns(columns, file, note, panels, "tokens back", marker="", level=level)


def gradient_further_back(records: list[dict]) -> Points:
    """Return (n, fraction beyond the last n tokens), mean over seeds.

    At the longest context, for the n that all seeds have.
    """
    measured = {n for each in records for n, entry in each["lengths"].items() if entry}
    longest = max(measured, key=int, default="")
    entries = [record["lengths"].get(longest) for record in records]
    curves = [entry["cumulative"] for entry in entries if entry]
    shares = [dict(zip(curve["tokens"], curve["share"], strict=True)) for curve in curves]
    return [
        (n, 1 - statistics.mean(share[n] for share in shares))
        for n in (shares[0] if shares else ())
        if all(n in share for share in shares)
    ]


def speeds(result: dict, file) -> None:
    """Plot throughput and memory of a benchmark of bench.py against context.

    The dense path is only in the table. A throughput's band is the middle half
    of its rounds.
    """
    throughputs, memories = {}, {}
    for context, name, entry in cases(result):
        if name.endswith(" dense"):
            continue
        pe = name.partition(" ")[0]
        throughput = throughputs.setdefault(name, Line(name, pe))
        memory = memories.setdefault(name, Line(name, pe))
        if entry:
            rate = entry["tokens_per_second"]
            low, high = entry["tokens"] / np.quantile(entry["seconds"], (0.75, 0.25))
            throughput.add(context, rate, rate - low, high - rate)
            memory.add(context, entry["memory"] / 1e6)
    names = sorted(throughputs, key=speed_sort_key)
    panels = [
        (label, [lines[name] for name in names])
        for label, lines in (("tokens/s", throughputs), ("memory (MB)", memories))
    ]
    title = f"{describe_setup(result)}\nmedians of {result['repeats']} rounds; bands: quartiles"
    draw_lines(file, title, panels, "context (tokens)")


def scatter(
    points: list[tuple[str, Interval, Interval]],
    file,
    x_label: str,
    y_label: str,
    title: str = "",
    highlighted: tuple[str, ...] = (),
) -> None:
    """Plot (encoding, x, y) with intervals as error bars, on logarithmic axes.

    Values of x above WIDEST times the lowest are drawn there as triangles, and
    printed with the label. Values of y below FLOOR are drawn there as
    triangles. highlighted: drawn larger.
    """
    limit = WIDEST * min(x.estimate for _, x, _ in points)
    axes = style.new_figure(5, title).subplots()
    axes.set(xscale="log", yscale="log")
    ends = []
    for pe, x, y in points:
        color, marker, label = style.color_of(pe), "o", style.short_label(pe)
        at = min(x.estimate, limit), max(y.estimate, FLOOR)
        if x.estimate > limit:
            label, marker = f"{label} ({x.estimate:,.3g})", ">"
        if y.estimate < FLOOR:
            marker = "v"
        bars = {
            "xerr": np.reshape(error_bar(x, at[0], highest=limit), (2, 1)),
            "yerr": np.reshape(error_bar(y, at[1], FLOOR), (2, 1)),
        }
        size = 8 if pe in highlighted else 5
        drawn = {"fmt": marker, "color": color, "markersize": size, "elinewidth": 0.8}
        axes.errorbar(*at, **bars, capsize=2, **drawn)
        ends.append((label, color, at))
    axes.set_ylim(bottom=0.8 * FLOOR)
    style.finish(axes, x_label, y_label, ends)
    axes.figure.savefig(file, format="png")


def error_bar(
    interval: Interval, drawn: float, lowest: float = 0, highest: float = math.inf
) -> tuple[float, float]:
    """Return a bar's lengths below and above, within limits; NaN: no bar."""
    if interval.low is None or interval.high is None:
        return math.nan, math.nan
    low = min(max(interval.low, lowest), drawn)
    high = max(min(interval.high, highest), drawn)
    return drawn - low, high - drawn


def draw_lines(
    file,
    title: str,
    panels: list[tuple[str, list[Line]]],
    x_label: str,
    y_scale: str = "log",
    x_scale: str = "log",
    x_base: int = 2,
    marker: str = "o",
    level: float | None = None,
    trained_at: Iterable[float] = (),
) -> None:
    """Draw panels (label of the y axis, lines), one below the other.

    level, trained_at: dotted lines at this height and at these lengths.
    """
    heights = [max(3.6, 1 + style.LABEL_HEIGHT * len(lines)) for _, lines in panels]
    figure = style.new_figure(sum(heights) + 0.5, title)
    all_axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (y_label, lines) in zip(all_axes, panels, strict=True):
        axes.set(xscale=x_scale, yscale=y_scale)
        if level is not None:
            axes.axhline(level, **style.DOTTED)
        for length in trained_at:
            axes.axvline(length, **style.DOTTED)
            at = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
            font = {"xytext": (0, 2), "ha": "center", "fontsize": 8, "color": "0.4"}
            axes.annotate("training length", (length, 1), **at, **font)
        draw_panel(axes, lines, x_label, y_label, x_base, marker)
    figure.savefig(file, format="png")


def draw_panel(
    axes, lines: list[Line], x_label: str, y_label: str, x_base: int = 2, marker: str = ""
) -> None:
    """Draw lines with their errors as bands, or as bars of single points."""
    used, ends = Counter(), []
    for line in lines:
        color = style.color_of(line.pe)
        pattern = style.LINE_STYLES[used[color] % len(style.LINE_STYLES)]
        used[color] += 1
        if not line.points:
            continue
        x, y = np.transpose(line.points)
        axes.plot(x, y, color=color, linestyle=pattern, marker=marker, markersize=4)
        ends.append((style.short_label(line.label), color, (x[-1], y[-1])))
        if not np.isnan(line.errors).all():
            below, above = np.transpose(line.errors)
            low = np.maximum(y - below, y / 10) if axes.get_yscale() == "log" else y - below
            if len(x) > 1:
                axes.fill_between(x, low, y + above, color=color, alpha=0.15, linewidth=0)
            else:
                axes.vlines(x, low, y + above, color=color, linewidth=1)
    style.finish(axes, x_label, y_label, ends, x_base)
