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
from reporting.columns import Column, dataset_of, setup_of
from reporting.formatting import MISSING, Table
from reporting.paper import PaperStatements

SCALES = (1, 4, 32)  # scripts divide the paper's lengths by these, and use networks of other sizes


@dataclass
class Pair:
    """Two runs of a claim, compared at the training length of the second."""

    claim: Claim
    columns: tuple[Column, Column]
    speed: dict | None = None
    """result of the benchmark train with both encodings, each at its training length"""
    entries: list[dict] = field(default_factory=list)
    """of the benchmark"""

    @property
    def length(self) -> int:
        """The length at which both are evaluated."""
        return self.columns[1].trained_at

    def values(self) -> list[float]:
        """Return the quantity of both runs: perplexity, megabytes, microseconds per token."""
        if self.claim.quantity == "perplexity":
            return [statistics.mean(column.values(self.length)) for column in self.columns]
        if self.claim.quantity == "memory":
            return [entry["memory"] / 1e6 for entry in self.entries]
        return [1e6 * math.exp(statistics.mean(logs)) for logs in self._log_seconds()]

    def ratio(self) -> Comparison:
        """Return the ratio of the quantity; that of times has an interval over rounds, unpaired."""
        if self.claim.quantity == "perplexity":
            lengths = self.length, self.length
            return compare(self.columns, lengths, intervals.perplexity_ratio, "block_size")
        if not self.entries:
            return None
        if self.claim.quantity == "memory":
            return memory_ratio(*self.entries)
        return intervals.ratio_of_rounds(*self._log_seconds())

    def _log_seconds(self) -> list[list[float]]:
        """Return the logarithms of the seconds per token of each round."""
        return [
            [math.log(seconds / entry["tokens"]) for seconds in entry["seconds"]]
            for entry in self.entries
        ]


def judge_training_lengths(columns: list[Column], speeds: list[dict]) -> list[Verdict]:
    """Return verdicts on the pairs of runs that were trained and evaluated.

    columns: of perplexity; speeds: results of the benchmark train of bench.py.
    """
    return judge(["shorter_training"], _ratios, columns, speeds)


def _ratios(claim: Claim, columns: list[Column], speeds: list[dict]) -> Measured:
    for pair in find_pairs(claim, columns, speeds):
        lengths = [column.trained_at for column in pair.columns]
        first = {column.pe: column for column in pair.columns}
        named = name_runs(claim, first, [each for each in columns if _is_like(each, first)])
        found = named.but(trained_at=lengths[0], other_trained_at=lengths[1])
        if pair.speed and claim.quantity != "perplexity":
            found = found.but(prefix=on_device(pair.speed))
        yield found, {ALONE: pair.ratio()}


def _is_like(column: Column, first: dict[str, Column]) -> bool:
    """Return whether a column has the size and training length of the one that counts."""
    if column.pe not in first:
        return False
    model, counted = (setup_of(each.records[0])[:3] for each in (column, first[column.pe]))
    return model == counted


def find_pairs(claim: Claim, columns: list[Column], speeds: list[dict]) -> Iterator[Pair]:
    """Yield the pairs of runs of a claim in columns, at the paper's lengths or a scale of them.

    At the paper's lengths they have its size and data set; at a scale, as in the scripts at
    --scale small, any size but those that the claim is not about. Of several columns, and of
    several benchmarks that measured both runs, the first counts.
    """
    by_run = {}
    for column in reversed(columns):
        by_run[column.pe, column.trained_at, column.records[0].get("size")] = column
    sizes = dict.fromkeys(size for _, _, size in by_run)
    for scale in SCALES:
        for size in [claim.size] if scale == 1 else sizes:
            ours = by_run.get((claim.encoding, claim.trained_at // scale, size))
            other = by_run.get((*claim.others, claim.other_trained_at // scale, size))
            if not (ours and other) or size in claim.except_sizes:
                continue
            if scale == 1 and dataset_of(ours.records[0]) != claim.dataset:
                continue
            if ours.values(other.trained_at) and other.values(other.trained_at):
                yield _with_speed(Pair(claim, (ours, other)), speeds)


def _with_speed(pair: Pair, speeds: list[dict]) -> Pair:
    for result in speeds:
        entries = [entry_of(result, each.trained_at, each.pe) for each in pair.columns]
        if all(entries) and "objective" not in result:
            return Pair(pair.claim, pair.columns, result, [*filter(None, entries)])
    return pair


def training_length_table(
    columns: list[Column], speeds: list[dict], printed: PaperStatements | None
) -> tuple[Table, str] | None:
    """Return a table that compares runs of different training length, with its caption.

    None if columns hold no pair of a claim. printed: the paper's differences.
    """
    found = [find_pairs(claim, columns, speeds) for claim in load()["shorter_training"]]
    pairs = [pair for each in found for pair in each if pair.ratio() is not None]
    if not pairs:
        return None
    caption = (
        "Each run is named with its training length; the perplexities of a row are those of the "
        "same text and context. The interval of a difference in perplexity is that of the ratio "
        "times the baseline's perplexity."
    )
    notes = dict.fromkeys(_speed_note(pair.speed) for pair in pairs if pair.speed)
    header = ["quantity", "run", "", "baseline", "", "difference", "95% interval", "paper"]
    return Table([header, *(_row(pair, printed) for pair in pairs)]), " ".join([caption, *notes])


def _row(pair: Pair, printed: PaperStatements | None) -> list[str]:
    values, ratio, quantity = pair.values(), pair.ratio(), pair.claim.quantity
    names = {"memory": "memory (MB)", "time per token": "time per token (µs)"}
    runs = []
    for column, value in zip(pair.columns, values, strict=True):
        digits = 2 if quantity == "perplexity" else 1
        runs += [f"{column.pe}, {column.trained_at:,}", f"{value:,.{digits}f}"]

    def show(factor: float) -> str:
        change = factor - 1
        return f"{values[1] * change:+.2f}" if quantity == "perplexity" else f"{change:+.1%}"

    change = spread = MISSING
    if isinstance(ratio, Interval):
        change = show(ratio.estimate)
        if quantity != "memory" and ratio.low is not None and ratio.high is not None:
            spread = f"{show(ratio.low)} to {show(ratio.high)}"
    lengths = (pair.claim.trained_at, pair.claim.other_trained_at)
    ours, other = (column.pe for column in pair.columns)
    paper = printed and printed.difference(quantity.partition(" ")[0], ours, other, lengths)
    name = names.get(quantity, f"{quantity} at {pair.length:,}")
    return [name, *runs, change, spread, paper or MISSING]


def _speed_note(result: dict) -> str:
    note = (
        f"Memory and time: one training step of {result['micro_batch']} sequences (bench.py train, "
        f"{result['model']} model, {result['dtype']}, {result['device']}); geometric means of "
        f"{result['repeats']} rounds, with an interval over rounds."
    )
    return note + (" On a CPU; the paper measured GPUs." if on_device(result) else "")
