"""Turns the JSON records of evaluations into tables (Markdown, CSV) and a plot, and judges the paper's claims on them.

    python report.py runs/quickstart/*/eval_*.json --out_dir runs/quickstart

Writes perplexity.md, perplexity.csv and perplexity.png.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

import cli
import tables
from errors import InputError
from files import atomic, read_json

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#666666", "#000000")


@dataclass
class Config:
    """Settings of a report."""

    records: list[str] = field(default_factory=list)
    """JSON files written by eval_extrapolation.py"""
    out_dir: str = "runs"
    """folder of the tables and the plot"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("records", "JSON files written by eval_extrapolation.py"))
    if not config.records:
        raise InputError("no record named: python report.py runs/*/eval_*.json")
    records = [read_json(path, "make it with eval_extrapolation.py") for path in config.records]
    problems = [f"{path} is no record of eval_extrapolation.py: name others"
                for path, record in zip(config.records, records) if not isinstance(record, dict) or "lengths" not in record]
    if not problems:
        problems = [f"{path} has other data or another protocol than {config.records[0]}: report them apart"
                    for path, record in zip(config.records, records)
                    if any(record[key] != records[0][key] for key in ("data", "protocol"))]
    if problems:
        raise InputError(*problems)
    records = tables.in_order(records)
    header, rows = tables.perplexity(records)
    verdicts = judge(records)
    text = "\n".join([tables.markdown(header, rows), "", tables.caption(records), "",
                      *(f"- {claim}: {measured}: **{verdict}**" for claim, measured, verdict in verdicts)])
    print(text)
    out = Path(config.out_dir)
    with atomic(out / "perplexity.md") as file:
        file.write(text.encode() + b"\n")
    with atomic(out / "perplexity.csv") as file:
        file.write(tables.comma_separated(header, rows).encode())
    with atomic(out / "perplexity.png") as file:
        plot(records, file)
    print(f"\nwritten: {out / 'perplexity.md'}, {out / 'perplexity.csv'}, {out / 'perplexity.png'}")


def judge(records: list[dict]) -> list[tuple[str, str, str]]:
    """The claims on extrapolation with their criteria, fixed beforehand: (claim, what was measured, verdict).

    Contexts are in multiples of the training length; a claim whose numbers are missing is "not measured".
    """
    perplexity = {}  # (encoding, multiple of the training length) -> perplexity
    for record in records:
        for length, entry in record["lengths"].items():
            if entry and int(length) % record["block_size"] == 0:
                perplexity[record["pe"], int(length) // record["block_size"]] = entry["perplexity"]

    verdicts = []
    for pe, relation, bound in (("cable", "<=", 1.02), ("rope", ">", 2), ("sinusoidal", ">", 2)):
        claim = f"{pe}: perplexity at 16x over that at 1x {relation} {bound}"
        if {(pe, 1), (pe, 16)} <= perplexity.keys():
            ratio = perplexity[pe, 16] / perplexity[pe, 1]
            holds = ratio <= bound if relation == "<=" else ratio > bound
            verdicts.append((claim, f"{ratio:.3f}", "holds" if holds else "fails"))
        else:
            verdicts.append((claim, "no numbers", "not measured"))

    far = sorted({multiple for _, multiple in perplexity if multiple >= 4})
    rivals = {pe: [perplexity.get((pe, multiple), math.inf) for multiple in far] for pe, _ in perplexity if pe != "cable"}
    claim = "cable: lowest perplexity of all at 4x and beyond"
    if far and rivals and all(("cable", multiple) in perplexity for multiple in far):
        margins = [min(column) / perplexity["cable", multiple] for multiple, *column in zip(far, *rivals.values())]
        verdicts.append((claim, f"next best is {min(margins):.3f} times as high, at least", "holds" if min(margins) > 1 else "fails"))
    else:
        verdicts.append((claim, "no numbers", "not measured"))
    return verdicts


def plot(records: list[dict], file) -> None:
    """Perplexity against context, both axes logarithmic, every line labelled at its end, training lengths marked."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), layout="constrained")
    lengths = sorted({int(length) for record in records for length in record["lengths"]})
    ends = []
    for record, label, colour in zip(records, tables.labels(records), COLOURS * len(records)):
        points = [(int(length), entry["perplexity"]) for length, entry in record["lengths"].items() if entry]
        axes.plot(*zip(*points), color=colour, marker="o", markersize=4, linewidth=1.8)
        ends.append((*points[-1], label, colour))
    for length in {record["block_size"] for record in records}:
        axes.axvline(length, color="0.6", linestyle=":", linewidth=1.2)
        axes.annotate("training length", (length, 1), xycoords=("data", "axes fraction"), xytext=(4, -4), textcoords="offset points",
                      va="top", fontsize=8, color="0.4")
    axes.set(xscale="log", yscale="log", xlabel="context (tokens)", ylabel="perplexity")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    highest = max(y for _, y, _, _ in ends)
    axes.set_yticks(ticks := [t for t in (2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 70, 100, 200, 300, 500, 1000, 2000, 5000)
                              if axes.get_ylim()[0] <= t <= max(highest, axes.get_ylim()[1])], [f"{t:,}" for t in ticks])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
    # Labels beside the last points, pushed apart where lines end close together.
    gap = 11  # points
    to_points = 72 / figure.dpi
    figure.canvas.draw()
    lowest = -math.inf
    for x, y, label, colour in sorted(ends, key=lambda end: end[1]):
        height = axes.transData.transform((x, y))[1] * to_points
        lowest = max(height, lowest + gap)
        axes.annotate(label, (x, y), xytext=(7, lowest - height), textcoords="offset points", va="center", color=colour,
                      fontsize=9, fontweight="bold" if label == "cable" else None, annotation_clip=False)
    figure.savefig(file, format="png", dpi=160)
    pyplot.close(figure)


if __name__ == "__main__":
    cli.run(main)
