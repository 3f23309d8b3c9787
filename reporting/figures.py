"""Figures: lines with error bands by context, written as palette PNGs.

A label has the same color, dashes and marker in every figure. A legend at the right lists the
labels in the order of the lines' ends.
"""

import contextlib
import math
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from reporting.columns import Column, describe_models
from reporting.tables import cases, describe_setup

NAMED = {
    "cable": "#0072b2",
    "alibi": "#d55e00",
    "rope": "#009e73",
    "fox": "#7a5195",
    "kerple": "#e69f00",
    "t5": "#cc79a7",
    "nope": "#000000",
    "sinusoidal": "#9a9a00",
    "sandwich": "#56b4e9",
    "fire": "#e31a1c",
    "rope, last 256 tokens": "#7cc242",
    "k-cable": "#a58bff",
    "learnable": "#8c564b",
    "t5-clip": "#ff4fa3",
    "rope+cable": "#17375e",
    "cable-nw": "#2ec4b6",
    "rope+fox": "#4a148c",
    "kerple-power": "#f4877d",
    "sandwich-smoothed": "#1b5e20",
}
COLORS = (*NAMED.values(), "#98004f")
DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vPX*"
DOTTED = {"color": "0.6", "linestyle": ":", "linewidth": 1.2}
BARS = "#8c8c8c"  # of a bar chart
WIDTH = 8  # inches
DPI = 120
LABEL_HEIGHT = 0.19  # inches per line of a legend
# Lines below this multiple of the lowest value at every length get a close-up.
CLOSE = 1.15
MIN_CLOSE_LINES = 3
MIN_FRACTION = 0.001  # of a gradient that is drawn
MAX_DRAWN = 1e6  # larger perplexities are only in the table
BANDS = "\nbands: ± standard deviation over seeds, or standard error of one seed"


class Line(NamedTuple):
    """A labeled line of a plot."""

    label: str
    points: list[tuple[float, ...]]
    """x, y or, with an error band, x, y, its ends; NaN: no band"""


def styles(labels: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return {label: color, linestyle, marker}, distinct and equal in every figure.

    A label without a color of its own gets one by its hash. If another label of the figure has it,
    it gets the next of the least used ones.
    """
    names, total = [*NAMED], len(COLORS)
    used, found = Counter(), {}
    for label in sorted({*labels}, key=lambda label: (label not in NAMED, label)):
        is_named = label in NAMED
        first = names.index(label) if is_named else zlib.crc32(label.encode())
        number = min(range(total), key=lambda n: (used[n], (n - first) % total))
        turn = used[number]  # colors are used again, with other dashes and markers
        used[number] += 1
        dashes = DASHES[(number // len(MARKERS) + turn) % len(DASHES)]
        marker = MARKERS[(number + turn) % len(MARKERS)]
        found[label] = {"color": COLORS[number], "linestyle": dashes, "marker": marker}
    return found


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

    close_up: add a panel of the lines close to the lowest. options: of draw_lines.
    """
    lines, lowest, bands = [], {}, ""
    for column in columns:
        lines.append(line := Line(column.label, []))
        for length in column.lengths():
            mean = column.mean(length)
            if mean is not None and mean <= MAX_DRAWN:
                error = column.error(length)
                line.points.append((length, mean, mean - error, mean + error))
                lowest[length] = min(mean, lowest.get(length, mean))
                bands = bands if math.isnan(error) else BANDS
    panels = [(y_label, lines)]
    close = [
        line
        for line in lines
        if {x for x, y, *_ in line.points if y < CLOSE * lowest[x]} == lowest.keys()
    ]
    if close_up and MIN_CLOSE_LINES <= len(close) < len(lines):
        panels.append((f"{y_label}, close-up", close))
    title = describe_models(columns) + bands
    trained_at = {column.trained_at for column in columns}
    draw_lines(file, title, panels, x_label, y_scale, trained_at=trained_at, **options)


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
    by_length(curves, file, y_label, x_label=x_label, has_markers=False, level=level)


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
    throughput, memory = defaultdict(list), defaultdict(list)
    for context, name, entry in cases(result):
        if entry and not name.endswith(" dense"):
            low, high = entry["tokens"] / np.quantile(entry["seconds"], (0.75, 0.25))
            throughput[name].append((context, entry["tokens_per_second"], low, high))
            memory[name].append((context, entry["memory"] / 1e6))
    numbers = {"tokens/s": throughput, "memory (MB)": memory}
    panels = [(name, [*map(Line, by, by.values())]) for name, by in numbers.items()]
    note = f"medians of {result['repeats']} rounds; bands: quartiles"
    draw_lines(file, f"{describe_setup(result)}\n{note}", panels, "context (tokens)")


def draw_lines(
    file,
    title: str,
    panels: list[tuple[str, list[Line]]],
    x_label: str,
    y_scale: str = "log",
    x_scale: str = "log",
    has_markers: bool = True,
    level: float | None = None,
    trained_at: Iterable[float] = (),
) -> None:
    """Draw panels (label of the y axis, lines), one below the other.

    level, trained_at: dotted lines at this height and at these lengths.
    """
    heights = [max(3.6, 1 + LABEL_HEIGHT * len(lines)) for _, lines in panels]
    style_of = styles(line.label for _, lines in panels for line in lines)
    with new_figure(file, sum(heights) + 0.5, title) as figure:
        all_axes = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
        for axes, (y_label, lines) in zip(all_axes, panels, strict=True):
            axes.set(xscale=x_scale, yscale=y_scale)
            places = {x for line in lines for x, *_ in line.points}.union(trained_at)
            if x_scale == "log" and len(places) == 1:  # Matplotlib would divide by zero
                axes.set_xlim(min(places) / 2, 2 * max(places))
            if level is not None:
                axes.axhline(level, **DOTTED)
            for length in trained_at:
                axes.axvline(length, **DOTTED)
                font = {"ha": "center", "va": "bottom", "fontsize": 8, "color": "0.4"}
                place = axes.get_xaxis_transform()
                axes.text(length, 1, "training length", font, transform=place)
            draw_panel(axes, lines, style_of, x_label, y_label, has_markers)


def draw_panel(
    axes, lines: list[Line], style_of: dict, x_label: str, y_label: str, has_markers: bool
) -> None:
    """Draw lines, with their errors as bands; without markers all are solid."""
    handles = []
    for label, points in lines:
        if points:
            x, y, *ends = np.transpose(points)
            style = style_of[label] | ({} if has_markers else {"marker": "", "linestyle": "-"})
            handles += axes.plot(x, y, label=label, markersize=4, **style)
            if ends:
                axes.fill_between(x, *ends, color=style["color"], alpha=0.12, lw=0)
    handles.sort(key=lambda handle: -handle.get_ydata()[-1])
    outside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1), "frameon": False}
    axes.legend(handles=handles, fontsize=9, handlelength=3, **outside)
    finish(axes, x_label, y_label)


@contextlib.contextmanager
def new_figure(file, height: float, title: str) -> Iterator:
    """Yield an empty figure, which is written at the end; height: inches.

    Without the user's settings of Matplotlib, and with 256 colors.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams["text.parse_math"] = False  # a name like "$$" is not a formula
        figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", wrap=True, fontsize=10)
        yield figure
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        exact = Image.Quantize.MAXCOVERAGE  # of lines; then the mean of similar colors
        colors = image.quantize(method=exact, kmeans=1, dither=Image.Dither.NONE)
        colors.save(file, "PNG", optimize=True)


def finish(axes, x_label: str, y_label: str) -> None:
    """Set labels, ticks and grid of a plot whose limits are final."""
    from matplotlib import ticker

    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    for axis, label, base in ((axes.xaxis, x_label, 2), (axes.yaxis, y_label, 10)):
        low, high = axis.get_view_interval()
        axis.set_major_formatter("{x:,.10g}")
        if axis.get_scale() == "log":
            label = f"{label}, log scale"
            locator = ticker.LogLocator(base, (1, 2, 5) if base == 10 else (1,), numticks=10)
            if base == 10 and high < 20 * low:  # also between powers
                locator = ticker.MaxNLocator(8)
            axis.set_major_locator(locator)
            axis.set_minor_locator(ticker.NullLocator())
        axis.set_label_text(label)
    axes.grid(axis="y", color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
