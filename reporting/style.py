"""Style of all figures: colors and labels of encodings, sizes, ticks, matrices.

An encoding has the same color in every figure; the others are gray. Labels are
at the right, connected with their lines.
"""

import re
from pathlib import Path

from errors import InputError

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
BIAS_COLORS = ("#67001f", "#d6604d", "white", "#4393c3", "#053061")  # lowest first
MASKED = "0.9"  # where a query does not attend to a key
FRACTIONS = {"25": "¼", "50": "½", "75": "¾"}  # of heads, by percent
WIDTH = 8  # inches
DPI = 150
LABEL_HEIGHT = 0.17  # inches between two labels


def color_of(pe: str) -> str:
    """Return the color of an encoding."""
    return COLORS.get(pe, GRAY)


def short_label(label: str) -> str:
    """Return a label with options in words: "rope+alibi, ¾ of heads"."""
    percents = {*re.findall(":heads_percent=([0-9]+)", label)}
    if len(percents) == 1 and "@" not in label:
        label = re.sub(":heads_percent=[0-9]+", "", label)
        label += f", {_fraction(percents.pop())} of heads"
    label = re.sub(":heads_percent=([0-9]+)", lambda match: _fraction(match[1]), label)
    if re.search("[+@]", label):
        return label
    return re.sub("[:,](?! )", ", ", label).replace("=", " ")


def _fraction(percent: str) -> str:
    return FRACTIONS.get(percent, f"{percent}%")


def new_figure(height: float, title: str):
    """Return an empty figure with a title at the left; height: inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", parse_math=False, wrap=True, fontsize=10)
    return figure


def finish(axes, x_label: str, y_label: str, ends, x_base: int = 10) -> None:
    """Set labels, ticks and grid of a plot whose limits are final.

    Names of axes mention logarithmic scales; x_base: of that of x. ends: (label,
    color, (x, y)) of lines, which are labeled at the right without overlaps.
    """
    axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())
    for axis, label, base in ((axes.xaxis, x_label, x_base), (axes.yaxis, y_label, 10)):
        is_log = axis.get_scale() == "log"
        axis.set_label_text(f"{label}, log scale" if is_log else label)
        if is_log:
            _set_ticks(axis, base)
        axis.set_major_formatter("{x:,.10g}")
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
    is_short = base == 10 and high < 20 * low
    locator = ticker.MaxNLocator(8) if is_short else ticker.LogLocator(base, subs, numticks=10)
    axis.set_major_locator(locator)
    axis.set_minor_locator(ticker.NullLocator())


def spread(heights: list[float], gap: float) -> list[float]:
    """Return ascending heights at least a gap apart, below 1 if they fit."""
    lowest = 0.0
    result = []
    for height in heights:
        result.append(max(height, lowest))
        lowest = result[-1] + gap
    highest = max(1.0, gap * (len(heights) - 1))
    for index in reversed(range(len(result))):
        result[index] = min(result[index], highest)
        highest = result[index] - gap
    return result


def draw_matrix(axes, matrix, limit: float, **style):
    """Draw a matrix (queries, keys), NaN where masked; return its image.

    limit: largest magnitude of the color scale, which is white at zero.
    """
    from matplotlib.colors import LinearSegmentedColormap

    # An odd number of colors has one for zero.
    colors = LinearSegmentedColormap.from_list("bias", BIAS_COLORS, N=257)
    scale = {"cmap": colors, "vmin": -limit, "vmax": limit}
    image = axes.imshow(matrix, interpolation="nearest", **scale, **style)
    axes.set_facecolor(MASKED)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, pad=1, labelsize=8)
    return image


def add_color_bar(figure, image, axes, low: float, high: float) -> None:
    """Add a color bar of the values from low to high, and zero."""
    bar = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02, panchor=False).ax
    bar.set_ylim(min(low, 0), max(high, low + 1e-6, 0))
    bar.tick_params(labelsize=8)


def check_png(path: str) -> None:
    """Raise InputError unless a file's name ends in .png."""
    if Path(path).suffix != ".png":
        raise InputError(f"--out {path} is not a PNG file: use a name that ends in .png")
