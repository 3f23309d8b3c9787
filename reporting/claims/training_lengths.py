"""Claims on runs of different training length, and their table, at the longer training length.

Memory and time of their training steps are measured with the same number of sequences; time is per
token, because both trainings have the same number of tokens.
"""

import itertools
import math
import statistics
from collections.abc import Iterator
from typing import NamedTuple

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


class Pair(NamedTuple):
    """Two runs of a claim, compared at the training length of the second."""

    columns: tuple[Column, Column]
    values: list[float]
    """of the quantity: perplexities, megabytes, microseconds per token"""
    ratio: Comparison
    """of the quantity; that of times has an interval over rounds, unpaired"""
    device: str = ""
    """of bench.py, as on_device prints it"""


def judge_training_lengths(columns: list[Column], speeds: list[dict]) -> list[Verdict]:
    """Return verdicts on the pairs of runs that were trained and evaluated.

    columns: of perplexity; speeds: results of the benchmark train of bench.py.
    """
    return judge(["shorter_training"], _ratios, columns, speeds)


def _ratios(claim: Claim, columns: list[Column], speeds: list[dict]) -> Measured:
    for pair in find_pairs(claim, columns, speeds):
        ours, other = pair.columns
        setups = [(each.pe, each.trained_at) for each in pair.columns]
        runs = [each for each in columns if (each.pe, each.trained_at) in setups]
        named = name_runs(claim, {ours.pe: ours, other.pe: other}, runs)
        lengths = {"trained_at": ours.trained_at, "other_trained_at": other.trained_at}
        yield named.but(prefix=pair.device, **lengths), {ALONE: pair.ratio}


def find_pairs(claim: Claim, columns: list[Column], speeds: list[dict]) -> Iterator[Pair]:
    """Yield the pairs of runs of a claim in columns, at the paper's lengths or a scale of them.

    At the paper's lengths they have its size and data set; at a scale, as in the scripts at
    --scale small, any size but those that the claim is not about.
    """
    for scale, *pair in itertools.product(SCALES, columns, columns):
        ours, other = pair
        size, length = ours.records[0].get("size"), other.trained_at
        names = (claim.encoding, *claim.others)
        lengths = (claim.trained_at // scale, claim.other_trained_at // scale)
        has_runs = (ours.pe, other.pe) == names and (ours.trained_at, length) == lengths
        has_size = size == other.records[0].get("size") and size not in claim.except_sizes
        if scale == 1:
            has_size &= size == claim.size and dataset_of(ours.records[0]) in claim.datasets
        if has_runs and has_size and ours.values(length) and other.values(length):
            yield from _measure(claim.quantity, (ours, other), speeds)


def _measure(quantity: str, columns: tuple[Column, Column], speeds: list[dict]) -> Iterator[Pair]:
    """Yield a quantity of two runs, as far as it was measured, by the first benchmark of both."""
    length = columns[1].trained_at
    if quantity == "perplexity":
        values = [statistics.mean(column.values(length)) for column in columns]
        measure = intervals.perplexity_ratio
        yield Pair(columns, values, compare(columns, (length, length), measure, "block_size"))
        return
    for result in speeds:
        ours, other = (entry_of(result, each.trained_at, each.pe) for each in columns)
        if not (ours and other):
            continue
        device = on_device(result)
        if quantity == "memory":
            values = [entry["memory"] / 1e6 for entry in (ours, other)]
            yield Pair(columns, values, memory_ratio(ours, other), device)
        else:
            logs = [
                [math.log(seconds / entry["tokens"]) for seconds in entry["seconds"]]
                for entry in (ours, other)
            ]
            values = [1e6 * math.exp(statistics.mean(rounds)) for rounds in logs]
            yield Pair(columns, values, intervals.ratio_of_rounds(*logs), device)
        return


def training_length_table(
    columns: list[Column], speeds: list[dict], printed: PaperStatements | None
) -> tuple[Table, str] | None:
    """Return a table that compares runs of different training length, with its caption.

    None if columns hold no pair of a claim. printed: the paper's differences.
    """
    claims = load()["shorter_training"]
    rows = [
        _row(claim, pair, printed)
        for claim in claims
        for pair in find_pairs(claim, columns, speeds)
    ]
    if not rows:
        return None
    header = ["quantity", "run", "", "baseline", "", "difference", "95% interval", "paper"]
    return Table([header, *rows]), (
        "Runs are named with their training length. The interval of a difference in perplexity is "
        "that of the ratio times the baseline's perplexity. Memory and time: one training step "
        "(bench.py train), geometric means, with an interval over rounds."
    )


def _row(claim: Claim, pair: Pair, printed: PaperStatements | None) -> list[str]:
    quantity, ratio = claim.quantity, pair.ratio
    is_perplexity = quantity == "perplexity"
    digits = 2 if is_perplexity else 1
    runs = []
    for column, value in zip(pair.columns, pair.values, strict=True):
        runs += [f"{column.pe}, {column.trained_at:,}", f"{value:,.{digits}f}"]

    def show(factor: float) -> str:
        change = factor - 1
        return f"{pair.values[1] * change:+.2f}" if is_perplexity else f"{change:+.1%}"

    change = spread = MISSING
    if isinstance(ratio, Interval):
        change = show(ratio.estimate)
        if quantity != "memory" and ratio.low is not None and ratio.high is not None:
            spread = f"{show(ratio.low)} to {show(ratio.high)}"
    lengths = claim.trained_at, claim.other_trained_at
    names = quantity.partition(" ")[0], claim.encoding, claim.others[0]
    paper = printed and printed.difference(*names, lengths)
    name = UNITS.get(quantity, f"perplexity at {pair.columns[1].trained_at:,}")
    return [name, *runs, change, spread, paper or MISSING]
