"""Line plots by length, position, step or model size; scatter plot of scores.

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
from reporting.formatting import standard_deviation
from reporting.tables import cases, describe_setup, speed_sort_key

Points = list[tuple[float, float]]  # (x, y)

# Lines below this multiple of the lowest value at every length get a close-up.
CLOSE = 1.15
MIN_CLOSE_LINES = 3
MIN_FRACTION = 0.001  # of a gradient that is drawn
MAX_DRAWN = 1e12  # larger perplexities are only in the table
FLOOR = 0.01  # percent of recall: lower values are drawn here
WIDEST = 1.6  # multiple of the lowest perplexity: higher ones are drawn here
SIDE_BY_SIDE = 1.2  # ratio of the places of the ends of a single length
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
    lengths = all_lengths(columns)
    lines = []
    for column in columns:
        lines.append(line := Line(column.label, column.pe))
        for length in lengths:
            mean = column.mean(length)
            if mean is not None and mean <= MAX_DRAWN:
                line.add(length, mean, column.error(length))
    panels = [(y_label, lines)]
    close = _close_to_lowest(lines, len(lengths))
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


def by_position(columns: list[Column], file) -> None:
    """Plot perplexity against the position in each column's longest window.

    Seeds are averaged. Positions are averaged over half powers of two, with the
    standard error. A label names the longest window if it is shorter than the
    others', because its text differs.
    """
    longest = {column.label: max(map(_longest_length, column.records)) for column in columns}
    lines = []
    for column in columns:
        length = longest[column.label]
        if length:
            suffix = f" ({length:,})" if length < max(longest.values()) else ""
            lines.append(line := Line(column.label + suffix, column.pe))
            _add_perplexities(line, column.records)
    is_encoder = "objective" in columns[0].records[0]
    x_label = "position in the window (tokens)" if is_encoder else "tokens before the prediction"
    note = "bands: ± standard error over positions"
    draw_columns(columns, file, note, [("perplexity", lines)], x_label)


def _longest_length(record: dict) -> int:
    return max((int(length) for length, entry in record["lengths"].items() if entry), default=0)


def _add_perplexities(line: Line, records: list[dict]) -> None:
    """Add a column's perplexities by position in the longest windows."""
    groups = {}  # half power of two -> [(tokens, middle position, mean loss)] of its stretches
    for record in records:
        length = _longest_length(record)
        curve = record["lengths"][str(length)]["by_position"]
        for number, loss in enumerate(curve["loss"]):
            if loss is None:  # no token of the stretch was masked
                continue
            start = curve["first"] + number * curve["width"]
            size = min(curve["width"], length - start)
            middle = start + (size + 1) / 2
            group = math.floor(2 * math.log2(middle))
            groups.setdefault(group, []).append((size, middle, loss))
    for _, stretches in sorted(groups.items()):
        sizes, middles, losses = zip(*stretches, strict=True)
        loss = float(np.average(losses, weights=sizes))
        if loss <= math.log(MAX_DRAWN):
            deviation = standard_deviation(losses)
            error = deviation and math.exp(loss) * (deviation / math.sqrt(len(losses)))
            line.add(float(np.average(middles, weights=sizes)), math.exp(loss), error)


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
    longest = str(max(map(_longest_length, records)))
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
    lines = {}
    for context, name, entry in cases(result):
        pe, _, path = name.partition(" ")
        if path == "dense":
            continue
        throughput, memory = lines.setdefault(name, (Line(name, pe), Line(name, pe)))
        if entry:
            rate = entry["tokens_per_second"]
            low, high = entry["tokens"] / np.quantile(entry["seconds"], (0.75, 0.25))
            throughput.add(context, rate, rate - low, high - rate)
            memory.add(context, entry["memory"] / 1e6)
    drawn = [lines[name] for name in sorted(lines, key=speed_sort_key)]
    labels = ("tokens/s", "memory (MB)")
    panels = [(label, [pair[n] for pair in drawn]) for n, label in enumerate(labels)]
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
    figure = style.new_figure(5)
    style.set_title(figure, title)
    axes = figure.subplots()
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
    _finish(axes, x_label, y_label)
    style.label_ends(axes, ends)
    style.save(figure, file)


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
    figure = style.new_figure(sum(heights) + 0.5)
    style.set_title(figure, title)
    all_axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (y_label, lines) in zip(all_axes, panels, strict=True):
        axes.set(xscale=x_scale, yscale=y_scale)
        used, ends = Counter(), []
        lengths = {x for line in lines for x, _ in line.points}
        is_single = len(lengths) == 1
        for number, line in enumerate(lines):
            color = style.color_of(line.pe)
            pattern = style.LINE_STYLES[used[color] % len(style.LINE_STYLES)]
            used[color] += 1
            if not line.points:
                continue
            x, y = map(np.array, zip(*line.points, strict=True))
            if is_single:  # points side by side
                x = x * SIDE_BY_SIDE ** ((number + 0.5) / len(lines) - 0.5)
            axes.plot(x, y, color=color, linestyle=pattern, marker=marker, markersize=4)
            if not np.isnan(line.errors).all():
                _draw_band(axes, x, y, *np.transpose(line.errors), color=color)
            ends.append((style.short_label(line.label), color, (x[-1], y[-1])))
        if level is not None:
            axes.axhline(level, **style.DOTTED)
        for length in trained_at:
            axes.axvline(length, **style.DOTTED)
            at = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
            font = {"xytext": (0, 2), "ha": "center", "fontsize": 8, "color": "0.4"}
            axes.annotate("training length", (length, 1), **at, **font)
        # At lengths, but not at the means of positions.
        has_lengths = x_base == 2 and marker and all(x == int(x) for x in lengths)
        ticks = lengths.union(trained_at) if has_lengths else None
        _finish(axes, x_label, y_label, x_base, ticks)
        style.label_ends(axes, ends)
    style.save(figure, file)


def _draw_band(axes, x, y, below, above, color: str) -> None:
    """Draw a line's errors as a band, or the error bar of a single point."""
    low = np.maximum(y - below, y / 10) if axes.get_yscale() == "log" else y - below
    if len(x) > 1:
        axes.fill_between(x, low, y + above, color=color, alpha=0.15, linewidth=0)
    else:
        axes.vlines(x, low, y + above, color=color, linewidth=1)


def _finish(axes, x_label: str, y_label: str, x_base: int = 10, x_values: set | None = None):
    """Set labels, ticks and grid; labels name logarithmic scales."""
    style.fix_limits(axes)
    for axis, label in ((axes.xaxis, x_label), (axes.yaxis, y_label)):
        is_log = axis.get_scale() == "log"
        axis.set_label_text(f"{label}, log scale" if is_log else label)
    style.set_ticks(axes.xaxis, x_base, x_values)
    style.set_ticks(axes.yaxis)
    axes.grid(axis="y", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
