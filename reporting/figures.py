"""Line plots: metrics against context length, losses against steps; every line labeled at its end.

Plot functions take the data and a binary file, to which they write a PNG.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from errors import InputError
from evaluation.intervals import Interval
from reporting.columns import Column, all_lengths
from reporting.formatting import standard_deviation
from reporting.tables import SPEED_COLUMNS, growth_exponent, seconds_per_token, speed_sort_key

Points = list[tuple[float, float]]  # (x, y)

CLOSE = 1.15  # lines below this multiple of the lowest value at every context get a close-up
MIN_CLOSE_LINES = 3
MIN_FRACTION = 0.001  # of a gradient that is drawn
MAX_DRAWN = 1e12  # larger perplexities, also infinite ones, are only in the table
COLORS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7a5195",
    "#666666",
    "#000000",
)
FLOOR = 0.01  # percent of recall: lower values, also negative ones, are drawn here
WIDEST = 1.6  # multiple of the lowest perplexity: higher ones are drawn here
MARKED_CONTEXTS = [4**power for power in range(12)]
# Ticks of a logarithmic axis, times powers of ten: the first list that gives at least three.
TICK_STEPS = (
    (1, 1.5, 2, 3, 4, 5, 7),
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9),
    *([n / parts for n in range(parts, 10 * parts)] for parts in (2, 5, 10, 20, 50, 100)),
)


@dataclass
class Line:
    """A labeled line of a plot."""

    label: str
    points: Points
    errors: list[float] | None = None
    """half the height of the error bar at each point"""


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
        count = sum(1 for line in close if line.points)
        if MIN_CLOSE_LINES <= count < len(lines):
            panels.append(close)
    with _panels(file, len(panels), len(lines)) as all_axes:
        for axes, panel in zip(all_axes, panels, strict=True):
            _draw_lines(axes, panel, lengths, y_label, x_label, y_scale=y_scale)
            _mark_training_lengths(axes, columns)


def _line(column: Column, lengths: list[int]) -> Line:
    points: Points = []
    errors = []
    for length in lengths:
        mean = column.mean(length)
        if mean is not None and mean <= MAX_DRAWN:
            points.append((length, mean))
            errors.append(standard_deviation(column.values(length)) or 0)
    return Line(column.label, points, errors)


def _close_to_lowest(lines: list[Line], lengths: list[int]) -> list[Line]:
    """Return the lines, without points where they are not close to the lowest at every length."""
    lowest = {}
    for line in lines:
        for length, value in line.points:
            lowest[length] = min(value, lowest.get(length, value))
    close = []
    for line in lines:
        is_complete = len(line.points) == len(lengths)
        is_close = all(value < CLOSE * lowest[length] for length, value in line.points)
        close.append(line if is_complete and is_close else Line(line.label, []))
    return close


def by_position(columns: list[Column], file) -> None:
    """Plot the perplexity of each column against the position in its longest window.

    Seeds are averaged. Positions are averaged over half powers of two, because the further out
    they are, the less neighbors differ. A label names the longest window if it is shorter than
    the other columns', because its text differs.
    """
    longest = {column.label: _longest_length(column.records) for column in columns}
    lines = []
    for column in columns:
        length = longest[column.label]
        if length == 0:
            continue
        label = column.label
        if length < max(longest.values()):
            label += f" ({length:,})"
        lines.append(Line(label, _perplexity_by_position(column.records)))
    positions = [position for line in lines for position, _ in line.points]
    low = min(positions, default=1)
    high = max(positions, default=1)
    marked = [context for context in MARKED_CONTEXTS if low <= context <= high]
    is_encoder = "objective" in columns[0].records[0]
    x_label = "position in the window (tokens)" if is_encoder else "tokens before the prediction"
    ticks = marked or sorted({round(low), round(high)})
    with _line_plot(file, lines, ticks, "perplexity", x_label) as axes:
        _mark_training_lengths(axes, columns)


def _longest_length(records: list[dict]) -> int:
    """Return the longest length with an entry in any record, or 0."""
    lengths = [0]
    for record in records:
        lengths += [int(length) for length, entry in record["lengths"].items() if entry]
    return max(lengths)


def _perplexity_by_position(records: list[dict]) -> Points:
    """Return (position, perplexity) over the longest windows of a column's records."""
    groups = {}  # half power of two -> [(tokens, middle position, mean loss)] of its stretches
    for record in records:
        length = _longest_length([record])
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
        total = sum(size for size, _, _ in stretches)
        position = sum(size * middle for size, middle, _ in stretches) / total
        loss = sum(size * loss for size, _, loss in stretches) / total
        if loss <= math.log(MAX_DRAWN):
            points.append((position, math.exp(loss)))
    return points


def cumulative_gradient(columns: list[Column], file) -> None:
    """Plot the fraction of the gradient that is further back than n tokens, against n.

    Each column at its longest context. Receptive fields end where a line crosses the dotted one.
    """
    lines = []
    for column in columns:
        points = _gradient_further_back(column.records)
        visible = [(n, fraction) for n, fraction in points if fraction >= MIN_FRACTION]
        lines.append(Line(column.label, visible))
    last = max((line.points[-1][0] for line in lines if line.points), default=1)
    ticks = [context for context in MARKED_CONTEXTS if context <= last]
    held = columns[0].records[0]["protocol"]["held"]
    labels = ("fraction of the gradient further back", "tokens back")
    with _line_plot(file, lines, ticks, *labels, marker="", legend=True) as axes:
        axes.axhline(1 - held, color="0.6", linestyle=":", linewidth=1.2)
        _mark_training_lengths(axes, columns)


def _gradient_further_back(records: list[dict]) -> Points:
    """Return (n, fraction beyond the last n tokens) at the longest context, mean over seeds.

    The result has the n that all seeds have.
    """
    curves = {}  # context -> curves of the seeds
    for record in records:
        for length, entry in record["lengths"].items():
            if entry:
                curves.setdefault(int(length), []).append(entry["cumulative"])
    if not curves:
        return []
    longest = []  # for each seed {n: fraction of the last n tokens}
    for curve in curves[max(curves)]:
        longest.append(dict(zip(curve["tokens"], curve["share"], strict=True)))
    points = []
    for n in longest[0]:
        if all(n in curve for curve in longest):
            points.append((n, 1 - statistics.mean(curve[n] for curve in longest)))
    return points


def speeds(result: dict, file) -> None:
    """Plot throughput and memory of a benchmark of bench.py against context.

    The dense path is only in the table.
    """
    contexts = sorted(map(int, result["contexts"]))
    names = set()
    for entries in result["contexts"].values():
        names |= {name for name, entry in entries.items() if entry and not name.endswith(" dense")}
    names = sorted(names, key=speed_sort_key)
    with _panels(file, 2, len(names)) as all_axes:
        for axes, column in zip(all_axes, ("tokens/s", "memory (MB)"), strict=True):
            value_of, _ = SPEED_COLUMNS[column]
            lines = []
            for name in names:
                entries = [
                    (context, result["contexts"][str(context)].get(name)) for context in contexts
                ]
                points: Points = [(context, value_of(entry)) for context, entry in entries if entry]
                lines.append(Line(name, points))
            _draw_lines(axes, lines, contexts, column, "context (tokens)")


def growth(record: dict, file) -> None:
    """Plot seconds per token of `bench.py growth` against context, with the fitted exponents."""
    lines = []
    contexts = set()
    for name, entries in record["growth"]["lengths"].items():
        points = seconds_per_token(entries)
        exponent = growth_exponent(points)
        label = name if exponent is None else f"{name}: exponent {exponent.estimate:.2f}"
        lines.append(Line(label, [(context, 1e6 * seconds) for context, seconds in points]))
        contexts |= {context for context, _ in points}
    labels = ("microseconds per token", "context (tokens)")
    with _line_plot(file, lines, sorted(contexts), *labels):
        pass


def losses(lines: list[tuple[str, Points]], file) -> None:
    """Plot losses against steps; lines: (label, [(step, loss)])."""
    last = max(points[-1][0] for _, points in lines)
    ticks = [last * n // 5 for n in range(1, 6)]
    drawn = [Line(label, points) for label, points in lines]
    style = {"y_scale": "linear", "x_scale": "linear", "marker": ""}
    with _line_plot(file, drawn, ticks, "loss (nats)", "steps", **style):
        pass


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
    drawn = []  # (y, x, label, color) as drawn
    with _panels(file, 1, len(points)) as (axes,):
        for number, (label, x, y) in enumerate(points):
            color = COLORS[number % len(COLORS)]
            marker = "o"
            if x.estimate > limit:
                label, marker = f"{label} ({x.estimate:,.3g})", ">"
            if y.estimate < FLOOR:
                marker = "v"
            drawn_x = min(x.estimate, limit)
            drawn_y = max(y.estimate, FLOOR)
            bars = _error_bars(y, drawn_y, lowest=FLOOR), _error_bars(x, drawn_x, highest=limit)
            style = {"fmt": marker, "color": color, "markersize": 5, "elinewidth": 0.8}
            axes.errorbar(drawn_x, drawn_y, *bars, capsize=2, **style)
            drawn.append((drawn_y, drawn_x, label, color))
        axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label)
        axes.set_ylim(bottom=0.8 * FLOOR)
        for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            ticks = _log_ticks(*limits)
            axis.set_ticks(ticks, [f"{tick:,.10g}" for tick in ticks])
        _set_style(axes, grid="both")
        _label_points(axes, sorted(drawn), highlighted)


def by_parameters(lines: dict[str, list[tuple[float, Interval]]], file) -> None:
    """Plot lines of (parameters, ratio) with intervals as error bars, on logarithmic axes.

    lines: by label, none of them empty.
    """
    sizes = sorted({x for points in lines.values() for x, _ in points})
    drawn = [
        Line(label, [(x, ratio.estimate) for x, ratio in points]) for label, points in lines.items()
    ]
    labels = ("ratio (1: no effect)", "parameters")
    with _line_plot(file, drawn, sizes, *labels, marker="") as axes:
        for number, points in enumerate(lines.values()):
            style = {"color": COLORS[number % len(COLORS)], "fmt": "o", "capsize": 2}
            for x, ratio in points:
                bars = _error_bars(ratio, ratio.estimate)
                axes.errorbar(x, ratio.estimate, bars, markersize=4, elinewidth=1, **style)
        axes.set_xlim(sizes[0] / 1.5, 1.5 * sizes[-1])
        axes.set_xticks(sizes, [f"{size / 1e6:,.3g}M" for size in sizes])
        axes.axhline(1, color="0.6", linestyle=":", linewidth=1.2)


def _error_bars(
    interval: Interval, drawn: float, lowest: float = 0, highest: float = math.inf
) -> list[list[float]] | None:
    """Return the lengths of the bars below and above a point, within limits; None: no bars."""
    if interval.low is None or interval.high is None:
        return None
    low = min(max(interval.low, lowest), drawn)
    high = max(min(interval.high, highest), drawn)
    return [[drawn - low], [high - drawn]]


def _label_points(axes, drawn: list[tuple], highlighted: tuple[str, ...]) -> None:
    """Label points at the right of the axes; drawn: ascending (y, x, label, color)."""
    pixels = _pixels(axes, [(x, y) for y, x, *_ in drawn])
    bottom = axes.transAxes.transform((0, 0))[1]
    scale = 72 / axes.figure.dpi
    heights = [(height - bottom) * scale for height in pixels]
    for (y, x, label, color), height in zip(drawn, spread(heights, gap=11), strict=True):
        is_bold = label.split(" ")[0] in highlighted
        where = {"xytext": (1.03, height), "textcoords": ("axes fraction", "axes points")}
        _label_by_line(axes, (x, y), label, color, is_bold, {"linewidth": 0.5, "alpha": 0.5}, where)


def _pixels(axes, points: Sequence[tuple]) -> list[float]:
    """Return the heights of points above the bottom of the figure, in pixels."""
    axes.figure.canvas.draw()
    return [axes.transData.transform(point)[1] for point in points]


def _label_by_line(
    axes, point: tuple, label: str, color: str, bold: bool, line: dict, where: dict
) -> None:
    """Write a label next to a point and connect both by a line."""
    style = {"arrowstyle": "-", "color": color, "shrinkA": 0, "shrinkB": 3, "relpos": (0, 0.5)}
    axes.annotate(
        label,
        point,
        va="center",
        color=color,
        fontsize=9,
        fontweight="bold" if bold else None,
        annotation_clip=False,
        arrowprops=style | line,
        **where,
    )


def _mark_training_lengths(axes, columns: list[Column]) -> None:
    for length in {column.trained_at for column in columns}:
        axes.axvline(length, color="0.6", linestyle=":", linewidth=1.2)
        axes.annotate(
            "training length",
            (length, 1),
            xycoords=("data", "axes fraction"),
            xytext=(4, -4),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color="0.4",
        )


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
def _panels(file, panels: int, lines: int) -> Iterator:
    """Yield the axes of panels side by side, high enough for the labels of so many lines.

    Writes the figure to `file` when the block ends.
    """
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False}):  # labels may contain dollar signs
        figure = new_figure(7.5 * panels, max(4.5, 0.36 * lines))
        yield figure.subplots(1, panels, squeeze=False)[0]
        figure.savefig(file, format="png", dpi=160)


@contextmanager
def _line_plot(file, lines: list[Line], *arguments, **style) -> Iterator:
    """Yield the axes of a plot of lines to add to; arguments of `_draw_lines`."""
    with _panels(file, 1, len(lines)) as (axes,):
        _draw_lines(axes, lines, *arguments, **style)
        yield axes


def _set_style(axes, grid: str) -> None:
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="0.92")


def _draw_lines(
    axes,
    lines: list[Line],
    x_ticks: Sequence[float],
    y_label: str,
    x_label: str,
    y_scale: str = "log",
    x_scale: str = "log",
    marker: str = "o",
    legend: bool = False,
) -> None:
    """Draw lines with labels at their ends.

    A line without points is skipped; the others keep their colors. legend: in the lower left, in
    place of labels, for lines whose ends are far apart.
    """
    ends = []  # (x, y, label, color) of the last points
    for number, line in enumerate(lines):
        if not line.points:
            continue
        color = COLORS[number % len(COLORS)]
        x, y = zip(*line.points, strict=True)
        axes.plot(
            x,
            y,
            color=color,
            linestyle="-" if number < len(COLORS) else "--",
            marker=marker,
            markersize=4,
            linewidth=1.6,
            label=line.label,
        )
        if line.errors and any(line.errors):
            axes.errorbar(x, y, yerr=line.errors, fmt="none", ecolor=color, elinewidth=1, capsize=2)
        ends.append((x[-1], y[-1], line.label, color))
    axes.set(xscale=x_scale, yscale=y_scale, xlabel=x_label, ylabel=y_label)
    if x_scale == "log":
        axes.set_xticks(x_ticks, tick_labels(x_ticks))
    else:
        axes.set_xticks(x_ticks, [f"{tick:,}" for tick in x_ticks])
    if y_scale == "log":
        ticks = _log_ticks(*axes.get_ylim())
        axes.set_yticks(ticks, [f"{tick:,.10g}" for tick in ticks])
    axes.margins(y=0.1)
    _set_style(axes, grid="y")
    if legend:
        axes.legend(loc="lower left", fontsize=8, frameon=False)
    else:
        _label_ends(axes, ends, x_ticks[0])


def _label_ends(axes, ends: list[tuple], first_tick: float) -> None:
    """Label the last points: next to them at the right end of the plot, above them elsewhere."""
    last = max((x for x, *_ in ends), default=None)
    for x, y, label, color in ends:
        if x < last:
            offset = {"xytext": (5, 6)} if x == first_tick else {"xytext": (0, 7), "ha": "right"}
            axes.annotate(
                label, (x, y), **offset, textcoords="offset points", color=color, fontsize=9
            )
    group = sorted((y, label, color) for x, y, label, color in ends if x == last)
    pixels = _pixels(axes, [(last, y) for y, *_ in group])
    heights = [height * 72 / axes.figure.dpi for height in pixels]
    offset = 20 if len(group) > 1 else 7
    for (y, label, color), height, moved in zip(group, heights, spread(heights, 11), strict=True):
        where = {"xytext": (offset, moved - height), "textcoords": "offset points"}
        _label_by_line(axes, (last, y), label, color, label == "cable", {"linewidth": 0.6}, where)


def tick_labels(contexts: Sequence[float]) -> list[str]:
    """Return labels of a logarithmic axis, empty where the next label would overlap.

    contexts: ascending.
    """
    min_ratio = (contexts[-1] / contexts[0]) ** 0.07
    labels = []
    for context, following in zip(contexts, [*contexts[1:], math.inf], strict=True):
        labels.append(f"{context:,}" if following / context >= min_ratio else "")
    return labels


def _log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers from low to high, at least three unless the axis is very short."""
    for steps in TICK_STEPS:
        ticks = []
        for power in range(-3, 12):
            ticks += [step * 10**power for step in steps if low <= step * 10**power <= high]
        if len(ticks) >= 3:
            break
    return ticks


def spread(heights: list[float], gap: float) -> list[float]:
    """Return ascending heights, moved as little as needed until they are `gap` apart (to 1%).

    Both heights of an overlapping pair move by the same amount.
    """
    moved = list(heights)
    for _ in range(1000):
        for i in range(len(moved) - 1):
            overlap = gap - (moved[i + 1] - moved[i])
            if overlap > 0.01 * gap:
                moved[i] -= overlap / 2
                moved[i + 1] += overlap / 2
    return moved
