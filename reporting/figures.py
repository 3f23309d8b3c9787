"""Figures: line plots, a scatter plot of scores.

An encoding has the same color in every figure; the others are gray.
Labels are at the right, connected with their lines. Plots are PNGs,
written to a file.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from evaluation.intervals import Interval
from reporting.columns import Column, describe_models
from reporting.tables import cases, describe_setup, speed_sort_key

Points = list[tuple[float, float]]  # (x, y)
Estimates = tuple[str, Interval, Interval]  # encoding, x, y

COLORS = {
    "cable": "#0072b2",
    "alibi": "#d55e00",
    "rope": "#009e73",
    "fox": "#7a5195",
    "kerple": "#e69f00",
    "t5": "#cc79a7",
    "sandwich": "#56b4e9",
    "nope": "#000000",
    "learnable": "#8c564b",
    "sinusoidal": "#9a9a00",
    "fire": "#e31a1c",
}
GRAY = "#8c8c8c"
LINE_STYLES = ("-", "--", ":", "-.")  # of lines of one color, in turn
DOTTED = {"color": "0.6", "linestyle": ":", "linewidth": 1.2}
WIDTH = 8  # inches
DPI = 150
LABEL_HEIGHT = 0.17  # inches between two labels
# Lines below this multiple of the lowest value at every length get a
# close-up.
CLOSE = 1.15
MIN_CLOSE_LINES = 3
MIN_FRACTION = 0.001  # of a gradient that is drawn
MAX_DRAWN = 1e12  # larger perplexities are only in the table
FLOOR = 0.01  # percent of recall: lower values are drawn here
WIDEST = 1.6  # multiple of the lowest perplexity: higher ones are drawn here
BANDS = "bands: ± standard deviation over seeds, or standard error of one seed"


@dataclass
class Line:
    """A labeled line of a plot. A line without points is not drawn."""

    label: str
    pe: str
    """encoding, which has the color"""
    points: Points = field(default_factory=list)
    errors: Points = field(default_factory=list)
    """height of the error band below and above each point; NaN: no band"""

    def add(self, x: float, y: float, *errors: float | None) -> None:
        """Add a point with its error, or those below and above; None: no error."""
        known = [math.nan if error is None else error for error in errors or (None,)]
        self.points.append((x, y))
        self.errors.append((known[0], known[-1]))


def by_length(
    columns: list[Column],
    file,
    y_label: str,
    y_scale: str = "log",
    x_label: str = "context (tokens)",
    close_up: bool = False,
    **options,
) -> None:
    """Plot each column's mean against context length, with error bands.

    close_up: add a panel of the lines close to the lowest. options: of
    draw_lines.
    """
    lines = []
    for column in columns:
        lines.append(line := Line(column.label, column.pe))
        for length in column.lengths():
            mean = column.mean(length)
            if mean is not None and mean <= MAX_DRAWN:
                line.add(length, mean, column.error(length))
    panels = [(y_label, lines)]
    close = _close_to_lowest(lines)
    number = sum(bool(line.points) for line in close)
    if close_up and MIN_CLOSE_LINES <= number < len(lines):
        panels.append((y_label, close))
    title = f"{describe_models(columns)}\n{BANDS}"
    trained_at = {column.trained_at for column in columns}
    draw_lines(file, title, panels, x_label, y_scale, trained_at=trained_at, **options)


def _close_to_lowest(lines: list[Line]) -> list[Line]:
    """Return lines; any not close to the lowest everywhere has no points."""
    lowest, close = {}, []
    for x, y in (point for line in lines for point in line.points):
        lowest[x] = min(y, lowest.get(x, y))
    for line in lines:
        points = [(x, y) for x, y in line.points if y < CLOSE * lowest[x]]
        is_close = len(points) == len(lowest)
        close.append(line if is_close else Line(line.label, line.pe))
    return close


def cumulative_gradient(columns: list[Column], file) -> None:
    """Plot the fraction of the gradient further back than n tokens, against n.

    At the longest contexts. Receptive fields end at the dotted line.
    """
    curves = []
    for column in columns:
        records = [*map(gradient_further_back, column.records)]
        curves.append(replace(column, records=records, key="fraction"))
    level = 1 - columns[0].records[0]["protocol"]["held"]
    y_label = "fraction of the gradient further back"
    x_label = "tokens back (field: to the dotted line)"
    by_length(curves, file, y_label, x_label=x_label, marker="", level=level)


def gradient_further_back(record: dict) -> dict:
    """Return a record of {n: {"fraction": beyond the last n tokens}}.

    At the longest context.
    """
    entries = {int(n): entry for n, entry in record["lengths"].items() if entry}
    if not entries:
        return record
    curve = entries[max(entries)]["cumulative"]
    beyond = zip(curve["tokens"], np.subtract(1, curve["share"]), strict=True)
    found = {str(n): {"fraction": rest} for n, rest in beyond if rest >= MIN_FRACTION}
    return record | {"lengths": found}


def speeds(result: dict, file) -> None:
    """Plot throughput and memory of a benchmark of bench.py against context.

    The dense path is only in the table. Bands: quartiles of the rounds.
    """
    names = {name for _, name, _ in cases(result) if not name.endswith(" dense")}
    panels = [("tokens/s", []), ("memory (MB)", [])]
    for name in sorted(names, key=speed_sort_key):
        throughput, memory = (Line(name, name.partition(" ")[0]) for _ in panels)
        for context, case, entry in cases(result):
            if entry and case == name:
                rate = entry["tokens_per_second"]
                low, high = entry["tokens"] / np.quantile(entry["seconds"], (0.75, 0.25))
                throughput.add(context, rate, rate - low, high - rate)
                memory.add(context, entry["memory"] / 1e6)
        for (_, lines), line in zip(panels, (throughput, memory), strict=True):
            lines.append(line)
    note = f"medians of {result['repeats']} rounds; bands: quartiles"
    title = f"{describe_setup(result)}\n{note}"
    draw_lines(file, title, panels, "context (tokens)")


def scatter(points: list[Estimates], file, x_label: str, y_label: str, title: str) -> None:
    """Plot intervals as error bars, on logarithmic axes.

    Triangles: x is above WIDEST times the lowest (printed with the
    label), or y is below FLOOR.
    """
    limit = WIDEST * min(x.estimate for _, x, _ in points)
    figure = new_figure(5, title)
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log")
    ends = []
    for pe, x, y in points:
        color, marker, label = COLORS.get(pe, GRAY), "o", short_label(pe)
        at = min(x.estimate, limit), max(y.estimate, FLOOR)
        if x.estimate > limit:
            label, marker = f"{label} ({x.estimate:,.3g})", ">"
        if y.estimate < FLOOR:
            marker = "v"
        bars = error_bar(y, at[1], FLOOR), error_bar(x, at[0], highest=limit)
        y_bar, x_bar = np.reshape(bars, (2, 2, 1))
        axes.errorbar(*at, y_bar, x_bar, marker, color=color, capsize=2, lw=0.8)
        ends.append((label, color, at))
    axes.set_ylim(bottom=0.8 * FLOOR)
    finish(axes, x_label, y_label, ends)
    figure.savefig(file, format="png")


def error_bar(
    interval: Interval, drawn: float, lowest: float = 0, highest: float = math.inf
) -> tuple[float, float]:
    """Return a bar's lengths below and above, within limits; NaN: no bar."""
    if interval.low is None or interval.high is None:
        return math.nan, math.nan
    low, high = max(interval.low, lowest), min(interval.high, highest)
    return max(drawn - low, 0), max(high - drawn, 0)


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
    heights = [max(3.6, 1 + LABEL_HEIGHT * len(lines)) for _, lines in panels]
    figure = new_figure(sum(heights) + 0.5, title)
    all_axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (y_label, lines) in zip(all_axes, panels, strict=True):
        axes.set(xscale=x_scale, yscale=y_scale)
        places = {x for line in lines for x, _ in line.points}.union(trained_at)
        if x_scale == "log" and len(places) == 1:  # Matplotlib would divide by zero
            axes.set_xlim(min(places) / 2, 2 * max(places))
        if level is not None:
            axes.axhline(level, **DOTTED)
        for length in trained_at:
            axes.axvline(length, **DOTTED)
            font = {"ha": "center", "va": "bottom", "fontsize": 8, "color": "0.4"}
            place = axes.get_xaxis_transform()
            axes.text(length, 1, "training length", font, transform=place)
        draw_panel(axes, lines, x_label, y_label, x_base, marker)
    figure.savefig(file, format="png")


def draw_panel(axes, lines: list[Line], x_label: str, y_label: str, base: int, marker: str):
    """Draw lines with their errors as bands, or as bars of single points."""
    used, ends = Counter(), []
    for line in lines:
        color = COLORS.get(line.pe, GRAY)
        pattern = LINE_STYLES[used[color] % len(LINE_STYLES)]
        used[color] += 1
        if not line.points:
            continue
        x, y = np.transpose(line.points)
        axes.plot(x, y, color=color, linestyle=pattern, marker=marker, markersize=4)
        ends.append((short_label(line.label), color, (x[-1], y[-1])))
        if not np.isnan(line.errors).all():
            below, above = np.transpose(line.errors)
            low = np.maximum(y - below, y / 10) if axes.get_yscale() == "log" else y - below
            if len(x) > 1:
                axes.fill_between(x, low, y + above, color=color, alpha=0.15, linewidth=0)
            else:
                axes.vlines(x, low, y + above, color=color, linewidth=1)
    finish(axes, x_label, y_label, ends, base)


def short_label(label: str) -> str:
    """Return a label with options in words: "cable, 50% of heads", "rope:75%+fox"."""
    label = re.sub(":heads_percent=([0-9]+)", r":\1%", label)
    if re.search("[+@]", label):
        return label
    label = re.sub("[:,](?! )", ", ", label)
    return label.replace("=", " ").replace("%", "% of heads")


def new_figure(height: float, title: str):
    """Return an empty figure with a title at the left; height: inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", parse_math=False, wrap=True, fontsize=10)
    return figure


def finish(axes, x_label: str, y_label: str, ends, x_base: int = 10) -> None:
    """Set labels, ticks and grid of a plot whose limits are final.

    ends: (label, color, (x, y)) of lines, labeled at the right. x_base:
    of a logarithmic scale.
    """
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    for axis, label, base in ((axes.xaxis, x_label, x_base), (axes.yaxis, y_label, 10)):
        is_log = axis.get_scale() == "log"
        axis.set_label_text(f"{label}, log scale" if is_log else label)
        axis.set_major_formatter("{x:,.10g}")
        if is_log:
            _set_ticks(axis, base)
    axes.grid(axis="y", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    to_axes = axes.transData + axes.transAxes.inverted()
    ordered = sorted(ends, key=lambda end: end[2][1])
    gap = LABEL_HEIGHT * DPI / axes.bbox.height
    heights = spread([to_axes.transform(point)[1] for _, _, point in ordered], gap)
    for (label, color, point), height in zip(ordered, heights, strict=True):
        arrow = {"arrowstyle": "-", "color": color, "linewidth": 0.5, "relpos": (0, 0.5)}
        font = {"color": color, "fontsize": 9, "parse_math": False, "va": "center"}
        at = {"xytext": (1.05, height), "textcoords": "axes fraction"}
        axes.annotate(label, point, **at, **font, arrowprops=arrow)


def _set_ticks(axis, base: int) -> None:
    """Set ticks of a logarithmic axis; on short axes also between powers."""
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    subs = (1, 2, 5) if base == 10 and high < 1000 * low else (1,)

    locator = ticker.LogLocator(base, subs, numticks=10)
    if base == 10 and high < 20 * low:
        locator = ticker.MaxNLocator(8)
    axis.set_major_locator(locator)
    axis.set_minor_locator(ticker.NullLocator())
    if high >= 1e6:
        axis.set_major_formatter(ticker.EngFormatter(sep=""))


def spread(heights: list[float], gap: float) -> np.ndarray:
    """Return ascending heights at least a gap apart, below 1 if they fit."""
    steps = gap * np.arange(len(heights))
    above_steps = np.maximum.accumulate(np.maximum(heights, 0) - steps)
    return np.minimum(above_steps, max(0, 1 - gap * (len(heights) - 1))) + steps
