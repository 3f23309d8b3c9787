"""How do records become plots? Lines over context, both axes logarithmic, every line labelled at its end."""

import math
import statistics
from contextlib import contextmanager

from reporting import tables

NEAR, SEVERAL = 1.15, 3  # times the lowest perplexity at a context; lines
LEAST = 0.001  # share of a gradient that is drawn
COLOURS = (
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
# Ticks of an axis, times powers of ten: the first of these that gives three of them.
STEPS = (
    (1, 1.5, 2, 3, 4, 5, 7),
    (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9),
    *([n / parts for n in range(parts, 10 * parts)] for parts in (2, 5, 10, 20, 50, 100)),
)


def by_context(columns: list[tables.Column], file) -> None:
    """The mean of each column against context or distance, bars for the standard deviation over seeds, as a PNG; of perplexities also,
    where others tower over them, those columns alone that stay near the lowest.
    """
    measure = columns[0].measure
    lengths = sorted(
        {
            int(length)
            for column in columns
            for record in column.records
            for length in record["lengths"]
        }
    )
    lines = [
        (
            column.label,
            [(length, column.mean(length)) for length in lengths if column.values(length)],
        )
        for column in columns
    ]
    bars = [
        [
            statistics.stdev(values) if len(values) > 1 else 0
            for length in lengths
            if (values := column.values(length))
        ]
        for column in columns
    ]
    lowest = {
        length: min(
            (value for _, points in lines for at, value in points if at == length), default=0
        )
        for length in lengths
    }
    near = [
        points
        if len(points) == len(lengths) and all(value < NEAR * lowest[at] for at, value in points)
        else []
        for _, points in lines
    ]
    close_up = [(label, points) for (label, _), points in zip(lines, near)]
    towering = measure == tables.PERPLEXITY and SEVERAL <= len(lines) - near.count([]) < len(lines)
    drawn = [lines, close_up] if towering else [lines]
    with _drawn(file, len(drawn), len(lines)) as panels:
        for axes, some in zip(panels, drawn):
            _draw(
                axes,
                some,
                lengths,
                measure.axis,
                f"{measure.across} (tokens)",
                bars=bars,
                scale=measure.scale,
            )
            _mark_training(axes, columns)


def positions(columns: list[tables.Column], file) -> None:
    """Perplexity of each column against the place in the window, at its longest context, over all seeds, as a PNG. Where that is not the
    others', whose text is another then, the label tells.

    Places are put together by the half power of two: the further out, the less one of them differs from the next.
    """
    lines, read = (
        [],
        {
            column.label: max(
                (
                    int(length)
                    for record in column.records
                    for length, entry in record["lengths"].items()
                    if entry
                ),
                default=0,
            )
            for column in columns
        },
    )
    for column in columns:
        if not read[column.label]:
            continue
        groups = {}  # half powers of two -> (tokens, tokens seen by the one in the middle, mean loss) of the stretches in them
        for record in column.records:
            length, entry = max(
                ((int(length), entry) for length, entry in record["lengths"].items() if entry),
                key=lambda item: item[0],
            )
            first, width, losses = (entry["by_position"][key] for key in ("first", "width", "loss"))
            for number, loss in enumerate(losses):
                if loss is None:
                    continue
                size = min(width, length - first - number * width)
                middle = first + number * width + (size + 1) / 2
                groups.setdefault(math.floor(2 * math.log2(middle)), []).append(
                    (size, middle, loss)
                )
        points = []
        for _, group in sorted(groups.items()):
            total = sum(size for size, _, _ in group)
            points.append(
                (
                    sum(size * middle for size, middle, _ in group) / total,
                    math.exp(sum(size * loss for size, _, loss in group) / total),
                )
            )
        longest = read[column.label]
        lines.append(
            (column.label + (f" ({longest:,})" if longest < max(read.values()) else ""), points)
        )
    both_ways = "objective" in columns[0].records[0]
    with _drawn(file, 1, len(lines)) as (axes,):
        low, high = (end(place for _, points in lines for place, _ in points) for end in (min, max))
        marked = [4**power for power in range(12) if low <= 4**power <= high] or sorted(
            {round(low), round(high)}
        )
        _draw(
            axes,
            lines,
            marked,
            "perplexity",
            "place in the window (tokens)" if both_ways else "tokens seen before the prediction",
        )
        _mark_training(axes, columns)


def cumulative_gradients(columns: list[tables.Column], file) -> None:
    """Which share of the gradient is not held by the last n tokens, against n, at each column's longest context, as a PNG. All receptive
    fields end where their line crosses the dotted one."""
    lines = []
    for column in columns:
        curves = {}  # by context, of all seeds
        for record in column.records:
            for length, entry in record["lengths"].items():
                if entry:
                    curves.setdefault(int(length), []).append(entry["cumulative"])
        longest = curves[max(curves)] if curves else []
        back = [
            (curve["tokens"][n], 1 - statistics.mean(seed["share"][n] for seed in longest))
            for curve in longest[:1]
            for n in range(len(curve["tokens"]))
        ]
        lines.append((column.label, [(n, share) for n, share in back if share >= LEAST]))
    with _drawn(file, 1, len(lines)) as (axes,):
        last = max((points[-1][0] for _, points in lines if points), default=1)
        _draw(
            axes,
            lines,
            [4**power for power in range(12) if 4**power <= last],
            "share of the gradient further back",
            "tokens back",
            marker="",
            legend=True,
        )
        held = next(record["protocol"]["held"] for column in columns for record in column.records)
        axes.axhline(1 - held, color="0.6", linestyle=":", linewidth=1.2)
        _mark_training(axes, columns)


def _mark_training(axes, columns: list[tables.Column]) -> None:
    for length in {column.records[0]["block_size"] for column in columns}:
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


def speeds(result: dict, file) -> None:
    """Throughput and memory of a benchmark of bench.py against context, as a PNG; the dense path's are in the table alone."""
    contexts = sorted(map(int, result["contexts"]))
    names = sorted(
        {
            name
            for entries in result["contexts"].values()
            for name, entry in entries.items()
            if entry and not name.endswith(" dense")
        },
        key=tables.place_of_setting,
    )

    def lines(column):
        value, _ = tables.SPEED_COLUMNS[column]
        found = {
            name: [(context, result["contexts"][str(context)].get(name)) for context in contexts]
            for name in names
        }
        return [
            (name, [(context, value(entry)) for context, entry in entries if entry])
            for name, entries in found.items()
        ]

    with _drawn(file, 2, len(names)) as panels:
        for axes, column in zip(panels, ("tokens/s", "memory (MB)")):
            _draw(axes, lines(column), contexts, column)


def losses(lines: list[tuple[str, list[tuple[int, float]]]], file) -> None:
    """Lines (label, points) of the loss over steps, as a PNG."""
    with _drawn(file, 1, len(lines)) as (axes,):
        last = max(points[-1][0] for _, points in lines)
        _draw(
            axes,
            lines,
            [last * n // 5 for n in range(1, 6)],
            "loss (nats)",
            "steps",
            scale="linear",
            across="linear",
            marker="",
        )


@contextmanager
def _drawn(file, panels: int, lines: int):
    """Panels side by side, high enough for the labels of so many lines; drawn to `file` when the block ends."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1,
        panels,
        figsize=(7.5 * panels, max(4.5, 0.36 * lines)),
        layout="constrained",
        squeeze=False,
    )
    yield axes[0]
    figure.savefig(file, format="png", dpi=160)
    pyplot.close(figure)


def _draw(
    axes,
    lines: list[tuple[str, list[tuple[int, float]]]],
    contexts: list[int],
    ylabel: str,
    xlabel: str = "context (tokens)",
    bars: list[list[float]] | None = None,
    scale: str = "log",
    across: str = "log",
    marker: str = "o",
    legend: bool = False,
) -> None:
    """Lines (label, points) over the contexts that are marked on the axis; bars: half their lengths, at every point of every line;
    scale, across: of the axis of the values, and of that of the contexts; legend: in the lower left, for lines that end all over the place.

    A line without points keeps its colour for itself.
    """
    ends = []
    for number, (label, points) in enumerate(lines):
        if not points:
            continue
        colour, style = COLOURS[number % len(COLOURS)], "-" if number < len(COLOURS) else "--"
        axes.plot(
            *zip(*points),
            color=colour,
            linestyle=style,
            marker=marker,
            markersize=4,
            linewidth=1.6,
            label=label,
        )
        if bars and any(bars[number]):
            axes.errorbar(
                *zip(*points), yerr=bars[number], fmt="none", ecolor=colour, elinewidth=1, capsize=2
            )
        ends.append((*points[-1], label, colour))
    axes.set(xscale=across, yscale=scale, xlabel=xlabel, ylabel=ylabel)
    axes.set_xticks(
        contexts,
        tick_labels(contexts) if across == "log" else [f"{context:,}" for context in contexts],
    )
    if scale == "log":
        ticks = _ticks(*axes.get_ylim())
        axes.set_yticks(ticks, [f"{t:,.10g}" for t in ticks])
    axes.minorticks_off()
    axes.margins(y=0.1)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    if legend:
        axes.legend(loc="lower left", fontsize=8, frameon=False)
        return
    # Labels beside the last points, pushed apart where lines end close together; over them where lines end before the others.
    axes.figure.canvas.draw()
    last = max(x for x, *_ in ends)
    for x, y, label, colour in ends:
        if x < last:
            place = {"xytext": (5, 6)} if x == contexts[0] else {"xytext": (0, 7), "ha": "right"}
            axes.annotate(
                label, (x, y), **place, textcoords="offset points", color=colour, fontsize=9
            )
    group = sorted((y, label, colour) for x, y, label, colour in ends if x == last)
    heights = [
        axes.transData.transform((last, y))[1] * 72 / axes.figure.dpi for y, *_ in group
    ]  # in points
    for (y, label, colour), height, place in zip(group, heights, spread(heights, gap=11)):
        axes.annotate(
            label,
            (last, y),
            xytext=(20 if len(group) > 1 else 7, place - height),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
            fontweight="bold" if label == "cable" else None,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.6,
                "shrinkA": 0,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )


def tick_labels(contexts: list[int]) -> list[str]:
    """Ascending contexts on a logarithmic axis; those that the next one would cover have none."""
    room = (contexts[-1] / contexts[0]) ** 0.07
    return [
        f"{context:,}" if following / context >= room else ""
        for context, following in zip(contexts, [*contexts[1:], math.inf])
    ]


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between the ends of an axis, three of them or more unless it is very short."""
    for steps in STEPS:
        ticks = [
            step * 10**power
            for power in range(-3, 12)
            for step in steps
            if low <= step * 10**power <= high
        ]
        if len(ticks) >= 3:
            break
    return ticks


def spread(heights: list[float], gap: float) -> list[float]:
    """Ascending heights moved as little as needs be, each pair by equal shares, until they are `gap` apart (to 1%)."""
    places = list(heights)
    for _ in range(1000):
        for i in range(len(places) - 1):
            overlap = gap - (places[i + 1] - places[i])
            if overlap > 0.01 * gap:
                places[i], places[i + 1] = places[i] - overlap / 2, places[i + 1] + overlap / 2
    return places
