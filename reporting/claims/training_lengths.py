"""Claims on runs of different training length, and their table, at the longer training length.

Memory and time of their training steps are measured with the same number of sequences; time is per
token, because both trainings have the same number of tokens.
"""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.claim import (
    ALONE,
    Claim,
    Comparison,
    Measured,
    compare,
    judge,
    load,
    name_runs,
)
from reporting.claims.speed import entry_of, memory_ratio, on_device
from reporting.claims.verdicts import Verdict
from reporting.columns import Column, dataset_of
from reporting.formatting import MISSING, Table
from reporting.paper import PaperStatements

SCALES = (1, 4, 32)  # scripts divide the paper's lengths by these, and use networks of other sizes
UNITS = {"memory": "memory (MB)", "time per token": "time per token (µs)"}


@dataclass
class Pair:
    """Two runs of a claim, compared at the training length of the second."""

    claim: Claim
    """with the names of the runs"""
    columns: tuple[Column, Column]
    values: list[float] = field(default_factory=list)
    """of the quantity: perplexities, megabytes, microseconds per token; []: not measured"""
    ratio: Comparison = None
    """of the quantity; that of times has an interval over rounds, unpaired"""
    speed: dict | None = None
    """result of the benchmark train with both encodings, each at its training length"""


def judge_training_lengths(columns: list[Column], speeds: list[dict]) -> list[Verdict]:
    """Return verdicts on the pairs of runs that were trained and evaluated.

    columns: of perplexity; speeds: results of the benchmark train of bench.py.
    """
    return judge(["shorter_training"], _ratios, columns, speeds)


def _ratios(claim: Claim, columns: list[Column], speeds: list[dict]) -> Measured:
    for pair in find_pairs(claim, columns, speeds):
        ours, other = (column.trained_at for column in pair.columns)
        found = pair.claim.but(trained_at=ours, other_trained_at=other)
        yield found.but(prefix=on_device(pair.speed) if pair.speed else ""), {ALONE: pair.ratio}


def find_pairs(claim: Claim, columns: list[Column], speeds: list[dict]) -> Iterator[Pair]:
    """Yield the pairs of runs of a claim in columns, at the paper's lengths or a scale of them.

    At the paper's lengths they have its size and data set; at a scale, as in the scripts at
    --scale small, any size but those that the claim is not about. Of several columns, and of
    several benchmarks that measured both runs, the first counts.
    """
    by_run = {}
    for column in columns:
        run = column.pe, column.trained_at, column.records[0].get("size")
        by_run.setdefault(run, []).append(column)
    sizes = dict.fromkeys(size for _, _, size in by_run)
    for scale in SCALES:
        for size in [claim.size] if scale == 1 else sizes:
            ours = by_run.get((claim.encoding, claim.trained_at // scale, size))
            other = by_run.get((*claim.others, claim.other_trained_at // scale, size))
            if not (ours and other) or size in claim.except_sizes:
                continue
            if scale == 1 and dataset_of(ours[0].records[0]) not in claim.datasets:
                continue
            length = other[0].trained_at
            if ours[0].values(length) and other[0].values(length):
                first = {ours[0].pe: ours[0], other[0].pe: other[0]}
                named = name_runs(claim, first, ours + other)
                yield _measure(Pair(named, (ours[0], other[0])), speeds)


def _measure(pair: Pair, speeds: list[dict]) -> Pair:
    """Return a pair with its values and their ratio."""
    quantity, length = pair.claim.quantity, pair.columns[1].trained_at
    if quantity == "perplexity":
        pair.values = [statistics.mean(column.values(length)) for column in pair.columns]
        lengths = length, length
        pair.ratio = compare(pair.columns, lengths, intervals.perplexity_ratio, "block_size")
        return pair
    for result in speeds:
        ours, other = (entry_of(result, each.trained_at, each.pe) for each in pair.columns)
        if not (ours and other) or "objective" in result:
            continue
        pair.speed = result
        if quantity == "memory":
            pair.values = [entry["memory"] / 1e6 for entry in (ours, other)]
            pair.ratio = memory_ratio(ours, other)
            break
        logs = [
            [math.log(seconds / entry["tokens"]) for seconds in entry["seconds"]]
            for entry in (ours, other)
        ]
        pair.values = [1e6 * math.exp(statistics.mean(rounds)) for rounds in logs]
        pair.ratio = intervals.ratio_of_rounds(*logs)
        break
    return pair


def training_length_table(
    columns: list[Column], speeds: list[dict], printed: PaperStatements | None
) -> tuple[Table, str] | None:
    """Return a table that compares runs of different training length, with its caption.

    None if columns hold no pair of a claim. printed: the paper's differences.
    """
    found = [find_pairs(claim, columns, speeds) for claim in load()["shorter_training"]]
    pairs = [pair for each in found for pair in each if pair.values]
    if not pairs:
        return None
    caption = (
        "Runs are named with their training length. The interval of a difference in perplexity is "
        "that of the ratio times the baseline's perplexity. Memory and time: one training step "
        "(bench.py train), geometric means, with an interval over rounds."
    )
    header = ["quantity", "run", "", "baseline", "", "difference", "95% interval", "paper"]
    return Table([header, *(_row(pair, printed) for pair in pairs)]), caption


def _row(pair: Pair, printed: PaperStatements | None) -> list[str]:
    values, ratio, quantity = pair.values, pair.ratio, pair.claim.quantity
    is_perplexity = quantity == "perplexity"
    runs = []
    for column, value in zip(pair.columns, values, strict=True):
        runs += [
            f"{column.pe}, {column.trained_at:,}",
            f"{value:,.{2 if is_perplexity else 1}f}",
        ]

    def show(factor: float) -> str:
        change = factor - 1
        return f"{values[1] * change:+.2f}" if is_perplexity else f"{change:+.1%}"

    change = spread = MISSING
    if isinstance(ratio, Interval):
        change = show(ratio.estimate)
        if quantity != "memory" and ratio.low is not None and ratio.high is not None:
            spread = f"{show(ratio.low)} to {show(ratio.high)}"
    lengths = (pair.claim.trained_at, pair.claim.other_trained_at)
    ours, other = (column.pe for column in pair.columns)
    paper = printed and printed.difference(quantity.partition(" ")[0], ours, other, lengths)
    name = UNITS.get(quantity, f"perplexity at {pair.columns[1].trained_at:,}")
    return [name, *runs, change, spread, paper or MISSING]
