"""Line plots: metrics against context length, losses against steps; and a scatter plot of scores.

Plot functions take the data and a binary file, to which they write a PNG.
"""

import math
import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from errors import InputError
from evaluation.intervals import Interval
from reporting.columns import Column, all_lengths
from reporting.formatting import standard_deviation
from reporting.tables import growth_exponent, seconds_per_token, speed_sort_key, speed_values

Points = list[tuple[float, float]]  # (x, y)

CLOSE = 1.15  # lines below this multiple of the lowest value at every context get a close-up
MIN_CLOSE_LINES = 3
MIN_FRACTION = 0.001  # of a gradient that is drawn
MAX_DRAWN = 1e12  # larger perplexities, also infinite ones, are only in the table
COLORS = (  # of lines in turn; then they are dashed
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"),
    *("#56b4e9", "#7a5195", "#666666", "#000000"),
)
DOTTED = {"color": "0.6", "linestyle": ":", "linewidth": 1.2}
FLOOR = 0.01  # percent of recall: lower values, also negative ones, are drawn here
WIDEST = 1.6  # multiple of the lowest perplexity: higher ones are drawn here


@dataclass
class Line:
    """A labeled line of a plot. A line without points is not drawn, but has a color."""

    label: str
    points: Points
    errors: list[tuple[float, float]] | None = None
    """lengths of the error bar below and above each point; NaN: no bar"""


def by_length(
    columns: list[Column],
    file,
    y_label: str,
    y_scale: str = "log",
    x_label: str = "context (tokens)",
    close_up: bool = False,
) -> None:
    """Plot the mean of each column against context length, with standard deviations over seeds.

    close_up: adds a second panel with the lines close to the lowest, if others are far above.
    """
    lengths = all_lengths(columns)
    lines = [_line(column, lengths) for column in columns]
    panels = [lines]
    if close_up:
        close = _close_to_lowest(lines, lengths)
        if MIN_CLOSE_LINES <= sum(bool(line.points) for line in close) < len(lines):
            panels.append(close)
    labels = [y_label] * len(panels)
    line_plot(file, panels, x_label, labels, y_scale=y_scale, trained_at=_trained_at(columns))


def _line(column: Column, lengths: list[int]) -> Line:
    points, errors = [], []
    for length in lengths:
        mean = column.mean(length)
        if mean is not None and mean <= MAX_DRAWN:
            deviation = standard_deviation(column.values(length)) or math.nan
            points.append((length, mean))
            errors.append((deviation, deviation))
    return Line(column.label, points, errors)


def _close_to_lowest(lines: list[Line], lengths: list[int]) -> list[Line]:
    """Return the lines, without points where they are not close to the lowest at every length."""
    lowest = {}
    for x, y in (point for line in lines for point in line.points):
        lowest[x] = min(y, lowest.get(x, y))
    close = []
    for line in lines:
        is_close = all(y < CLOSE * lowest[x] for x, y in line.points)
        is_complete = len(line.points) == len(lengths)
        close.append(line if is_close and is_complete else Line(line.label, []))
    return close


def by_position(columns: list[Column], file) -> None:
    """Plot the perplexity of each column against the position in its longest window.

    Seeds are averaged. Positions are averaged over half powers of two. A label names the longest
    window if it is shorter than the other columns', because its text differs.
    """
    longest = {column.label: max(map(_longest_length, column.records)) for column in columns}
    lines = []
    for column in columns:
        length = longest[column.label]
        if length:
            suffix = f" ({length:,})" if length < max(longest.values()) else ""
            lines.append(Line(column.label + suffix, _perplexity_by_position(column.records)))
    is_encoder = "objective" in columns[0].records[0]
    x_label = "position in the window (tokens)" if is_encoder else "tokens before the prediction"
    line_plot(file, [lines], x_label, ["perplexity"], trained_at=_trained_at(columns))


def _longest_length(record: dict) -> int:
    return max((int(length) for length, entry in record["lengths"].items() if entry), default=0)


def _perplexity_by_position(records: list[dict]) -> Points:
    """Return (position, perplexity) over the longest windows of a column's records."""
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
    points = []
    for _, stretches in sorted(groups.items()):
        sizes, middles, losses = zip(*stretches, strict=True)
        loss = float(np.average(losses, weights=sizes))
        if loss <= math.log(MAX_DRAWN):
            points.append((float(np.average(middles, weights=sizes)), math.exp(loss)))
    return points


def cumulative_gradient(columns: list[Column], file) -> None:
    """Plot the fraction of the gradient that is further back than n tokens, against n.

    Each column at its longest context. Receptive fields end where a line crosses the dotted one.
    """
    lines = []
    for column in columns:
        points = gradient_further_back(column.records)
        lines.append(Line(column.label, [point for point in points if point[1] >= MIN_FRACTION]))
    level = 1 - columns[0].records[0]["protocol"]["held"]
    style = {"marker": "", "level": level, "trained_at": _trained_at(columns)}
    line_plot(file, [lines], "tokens back", ["fraction of the gradient further back"], **style)


def gradient_further_back(records: list[dict]) -> Points:
    """Return (n, fraction beyond the last n tokens) at the longest context, mean over seeds.

    The result has the n that all seeds have.
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

    The dense path is only in the table.
    """
    contexts = sorted(result["contexts"].items(), key=lambda item: int(item[0]))
    names = {name for _, entries in contexts for name, entry in entries.items() if entry}
    names = sorted((n for n in names if not n.endswith(" dense")), key=speed_sort_key)
    labels = ["tokens/s", "memory (MB)"]
    panels = []
    for label in labels:
        lines = {name: [] for name in names}
        for context, entries in contexts:
            for name, line in lines.items():
                if entry := entries.get(name):
                    line.append((int(context), speed_values(entry)[label]))
        panels.append([Line(*line) for line in lines.items()])
    line_plot(file, panels, "context (tokens)", labels)


def growth(record: dict, file) -> None:
    """Plot seconds per token of `bench.py growth` against context, with the fitted exponents."""
    lines = []
    for name, entries in record["growth"]["lengths"].items():
        points = seconds_per_token(entries)
        exponent = growth_exponent(points)
        label = name if exponent is None else f"{name}: exponent {exponent.estimate:.2f}"
        lines.append(Line(label, [(context, 1e6 * seconds) for context, seconds in points]))
    line_plot(file, [lines], "context (tokens)", ["microseconds per token"])


def losses(lines: list[tuple[str, Points]], file) -> None:
    """Plot losses against steps; lines: (label, [(step, loss)])."""
    panels, labels = [[Line(*line) for line in lines]], ["loss (nats)"]
    line_plot(file, panels, "steps", labels, y_scale="linear", x_scale="linear", marker="")


def by_parameters(lines: dict[str, list[tuple[float, Interval]]], file) -> None:
    """Plot lines of (parameters, ratio) with intervals as error bars, on logarithmic axes.

    lines: by label, none of them empty.
    """
    drawn = []
    for label, points in lines.items():
        errors = [_error_bar(ratio, ratio.estimate) for _, ratio in points]
        drawn.append(Line(label, [(x, ratio.estimate) for x, ratio in points], errors))
    line_plot(file, [drawn], "parameters", ["ratio (1: no effect)"], level=1, x_base=10)


def scatter(
    points: list[tuple[str, Interval, Interval]],
    file,
    x_label: str,
    y_label: str,
    highlighted: tuple[str, ...] = (),
) -> None:
    """Plot one point per (label, x, y), with intervals as error bars, on logarithmic axes.

    Values of x above WIDEST times the lowest are drawn there, as triangles, and printed with the
    label. Values of y below FLOOR are drawn there, as triangles. Labels are at the right, in the
    order of the points' heights. highlighted: labels in bold.
    """
    limit = WIDEST * min(x.estimate for _, x, _ in points)
    points = sorted(points, key=lambda point: (max(point[2].estimate, FLOOR), point[1].estimate))
    with _figure(file, 1, len(points)) as (axes,):
        for number, (label, x, y) in enumerate(points):
            color, marker = COLORS[number % len(COLORS)], "o"
            at = min(x.estimate, limit), max(y.estimate, FLOOR)
            weight = "bold" if label in highlighted else "normal"
            if x.estimate > limit:
                label, marker = f"{label} ({x.estimate:,.3g})", ">"
            if y.estimate < FLOOR:
                marker = "v"
            bars = {
                "xerr": _error_bar(x, at[0], highest=limit),
                "yerr": _error_bar(y, at[1], FLOOR),
            }
            bars = {name: np.reshape(bar, (2, 1)) for name, bar in bars.items()}
            style = {"fmt": marker, "color": color, "markersize": 5, "elinewidth": 0.8}
            axes.errorbar(*at, **bars, capsize=2, **style)
            arrow = {"arrowstyle": "-", "color": color, "linewidth": 0.5, "relpos": (0, 0.5)}
            axes.annotate(
                label,
                at,
                (1.03, (number + 0.5) / len(points)),
                textcoords="axes fraction",
                va="center",
                color=color,
                fontsize=9,
                fontweight=weight,
                arrowprops=arrow,
            )
        axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label)
        axes.set_ylim(bottom=0.8 * FLOOR)
        _set_ticks(axes.xaxis)
        _set_ticks(axes.yaxis)
        axes.grid(color="0.92")


def _error_bar(
    interval: Interval, drawn: float, lowest: float = 0, highest: float = math.inf
) -> tuple[float, float]:
    """Return the lengths of the bar below and above a point, within limits; NaN: no bar."""
    if interval.low is None or interval.high is None:
        return math.nan, math.nan
    low = min(max(interval.low, lowest), drawn)
    high = max(min(interval.high, highest), drawn)
    return drawn - low, high - drawn


def _trained_at(columns: list[Column]) -> set[int]:
    return {column.trained_at for column in columns}


def line_plot(
    file,
    panels: list[list[Line]],
    x_label: str,
    y_labels: list[str],
    y_scale: str = "log",
    x_scale: str = "log",
    x_base: int = 2,
    marker: str = "o",
    level: float | None = None,
    trained_at: Iterable[float] = (),
) -> None:
    """Draw panels of lines; the legend is in the order of the lines' ends.

    level, trained_at: dotted lines at this height and at these training lengths.
    """
    with _figure(file, len(panels), len(panels[0])) as all_axes:
        for axes, lines, y_label in zip(all_axes, panels, y_labels, strict=True):
            handles = {}  # by the height of their ends
            for number, line in enumerate(lines):
                if line.points:
                    style = {
                        "color": COLORS[number % len(COLORS)],
                        "linestyle": "-" if number < len(COLORS) else "--",
                        "label": line.label,
                    }
                    errors = np.transpose(line.errors) if line.errors else None
                    x, y = zip(*line.points, strict=True)
                    bars = {"yerr": errors, "elinewidth": 1, "capsize": 2}
                    drawn = axes.errorbar(x, y, marker=marker, markersize=4, **bars, **style)
                    handles[y[-1], number] = drawn
            axes.set(xscale=x_scale, yscale=y_scale, xlabel=x_label, ylabel=y_label)
            _set_ticks(axes.xaxis, x_base)
            _set_ticks(axes.yaxis)
            axes.grid(axis="y", color="0.92")
            if level is not None:
                axes.axhline(level, **DOTTED)
            for length in trained_at:
                axes.axvline(length, **DOTTED)
                style = {"xycoords": axes.get_xaxis_transform(), "textcoords": "offset points"}
                style |= {"xytext": (4, -4), "va": "top", "fontsize": 8, "color": "0.4"}
                axes.annotate("training length", (length, 1), **style)
            ordered = [handles[end] for end in sorted(handles, reverse=True)]
            axes.legend(handles=ordered, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _set_ticks(axis, base: int = 10) -> None:
    """Set round numbers: powers of the base and what is between them where the axis is short."""
    from matplotlib import ticker

    low, high = axis.get_view_interval()
    if axis.get_scale() == "log":
        is_short = high < 20 * low and base == 10
        wide = ticker.LogLocator(base, subs=(1, 2, 5) if base == 10 else (1,), numticks=10)
        axis.set_major_locator(ticker.MaxNLocator(8) if is_short else wide)
        axis.set_minor_locator(ticker.NullLocator())
    is_large = base == 10 and high >= 1e5
    plain = ticker.StrMethodFormatter("{x:,.10g}")
    axis.set_major_formatter(ticker.EngFormatter(sep="") if is_large else plain)


def new_figure(width: float, height: float):
    """Return an empty figure of Matplotlib, in inches, that can be drawn without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_matrix(axes, matrix, **style):
    """Draw a matrix (rows: queries, columns: keys; NaN: nothing) and return its image."""
    image = axes.imshow(matrix, cmap="magma", interpolation="nearest", **style)
    axes.spines[:].set_visible(False)
    return image


def check_png(path: str) -> None:
    """Raise InputError unless a file's name is that of a PNG file."""
    if Path(path).suffix != ".png":
        raise InputError(f"--out {path} is not a PNG file: use a name that ends in .png")


@contextmanager
def _figure(file, panels: int, lines: int) -> Iterator:
    """Yield the axes of panels side by side, high enough for the labels of so many lines."""
    import matplotlib

    settings: dict = {
        "text.parse_math": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(settings):  # labels may contain dollar signs
        figure = new_figure(7.5 * panels, max(4.5, 0.25 * lines))
        yield figure.subplots(1, panels, squeeze=False)[0]
        figure.savefig(file, format="png", dpi=160)
