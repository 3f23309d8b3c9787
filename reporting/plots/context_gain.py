"""Gain of context: how much a long context lowers the loss, by position.

eval_extrapolation.py --within_documents records the losses of all context
lengths on the same windows, by position in the longest one. The gain is the
loss with the shortest context minus that with the longest, in nats per token.
"""

import statistics

import numpy as np

from reporting import figures
from reporting.columns import Column, all_lengths
from reporting.formatting import Table, mean_and_deviation, standard_deviation

CAPTION = (
    "Gain of context: loss with the shortest context minus loss with the longest, in nats per "
    "token, of the same tokens, by their position in windows inside documents; mean ± standard "
    "deviation over seeds."
)


def has_gain(columns: list[Column]) -> bool:
    """Return whether all records have gains, at two or more lengths."""
    records = [record for column in columns for record in column.records]
    entries = [entry for record in records for entry in record["lengths"].values()]
    return len(all_lengths(columns)) > 1 and all(x and "by_offset" in x for x in entries)


def gains(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """Return starts of windows of the shortest length (n,), gains (seeds, n).

    The mean over such a window has all contexts up to the shortest length.
    """
    shortest, *_, longest = column.lengths()
    curves = {}
    for length in (shortest, longest):
        found = [record["lengths"][str(length)]["by_offset"] for record in column.records]
        curves[length] = np.array([curve["loss"] for curve in found])
    gain = curves[shortest] - curves[longest]
    positions = found[0]["first"] + found[0]["width"] * np.arange(gain.shape[1])
    starts, first_bins = np.unique(positions // shortest * shortest, return_index=True)
    sizes = np.diff([*first_bins, len(positions)])
    return starts, np.add.reduceat(gain, first_bins, axis=1) / sizes


def table(columns: list[Column]) -> Table:
    """Return a row per doubling of the position, a column per encoding."""
    stop, *_, longest = all_lengths(columns)
    cells, start = [["position", *(column.label for column in columns)]], 0
    while start < longest:
        cells.append([f"{start:,} to {min(stop, longest) - 1:,}"])
        for positions, by_seed in map(gains, columns):
            inside = (positions >= start) & (positions < stop)
            cells[-1].append(mean_and_deviation(by_seed[:, inside].mean(1).tolist(), 3))
        start, stop = stop, 2 * stop
    return Table(cells, caption=CAPTION)


def plot(columns: list[Column], file) -> None:
    """Plot the gain against position; band: standard deviation over seeds."""
    lines = []
    for column in columns:
        lines.append(line := figures.Line(column.label, column.pe))
        starts, by_seed = gains(column)
        for start, values in zip(starts.tolist(), by_seed.T.tolist(), strict=True):
            middle = start + column.lengths()[0] / 2
            line.add(middle, statistics.mean(values), standard_deviation(values))
    panels = [("gain of context (nats per token)", lines)]
    x_label = "position in the window (tokens)"
    figures.draw_columns(columns, file, "", panels, x_label, "linear", level=0)
