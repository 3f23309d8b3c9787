"""Claims on speed, memory and the training length, by the benchmarks of bench.py.

The ratio of two encodings' speeds is a mean over rounds of log ratios. bench.py measures every
encoding together with rope, so that both are first taken relative to rope. The interval is a t
interval over the rounds of one process (Welch's). Memory is deterministic and has no interval.

Models that were trained at different lengths are evaluated at one length. Memory and time of their
training steps are measured with the same number of sequences; time is per token, because both
trainings have the same number of tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims import catalog
from reporting.claims.catalog import Claim
from reporting.claims.engine import ALONE, Measured, judge
from reporting.claims.verdicts import Incomparable, Verdict
from reporting.columns import Column, dataset_of, entry_pairs

SIZES = ("small", "medium")  # of the papers' statements on speed
SCALES = (1, 4, 32)  # scripts divide the paper's lengths by these, and use networks of other sizes


def judge_speed(benchmark: str, result: dict) -> list[Verdict]:
    """Return verdicts on one benchmark of a record of bench.py; none for encoders.

    Claims on a CPU say so: the papers measured GPUs.
    """
    return [] if "objective" in result else judge(["speed"], _ratios, benchmark, result)


def _ratios(claim: Claim, benchmark: str, result: dict) -> Measured:
    entries = [pe for entries in result["contexts"].values() for pe in entries if entries[pe]]
    measured = {name.partition(" triton")[0] for name in entries}
    others = [pe for pe in claim.others if pe in measured]
    is_measured = claim.encoding in measured and others
    if claim.benchmark != benchmark or not is_measured or not is_size_of(claim.size, result):
        return
    ratios = {}
    for context in sorted(claim.contexts or map(int, result["contexts"])):
        for other in others:
            entry, other_entry = (entry_of(result, context, pe) for pe in (claim.encoding, other))
            if entry and other_entry:
                compare = memory_ratio if claim.quantity == "memory" else speed_ratio
                ratios[other, f"at {context:,} tokens"] = compare(entry, other_entry)
    yield claim.but(others=others, prefix=on_device(result)), ratios


def is_size_of(stated: str | None, result: dict) -> bool:
    """Return whether a benchmark has the size of a paper's statement, or one of no statement."""
    return stated in (None, result["model"]) or result["model"] not in SIZES


def entry_of(result: dict, context: int, pe: str) -> dict | None:
    """Return the entry of an encoding, or None if it was not measured.

    It is that of the fused kernel (`sdpa`) where the encoding has it, else on a GPU that of Triton,
    else that of the dense path. A training on a GPU takes the path that it measures as the fastest.
    """
    entries = result["contexts"].get(str(context), {})
    return entries.get(pe) or entries.get(f"{pe} triton")


def speed_ratio(entry: dict, other: dict) -> Interval:
    """Return the ratio of two speeds at the same context, both relative to rope.

    Records without the seconds of rope have no interval.
    """
    if not ("others" in entry and "others" in other):
        return Interval(entry["ratios"]["rope"] / other["ratios"]["rope"])
    first, second = (
        np.log(each["others"]["rope"]) - np.log(each["seconds"]) for each in (entry, other)
    )
    if not first.any():  # rope itself
        return intervals.ratio_of_rounds(-second)
    return intervals.ratio_of_rounds(first, second if second.any() else ())


def memory_ratio(entry: dict, other: dict) -> Interval:
    """Return the ratio of the bytes of two entries."""
    return Interval(*[entry["memory"] / other["memory"]] * 3)


def on_device(result: dict) -> str:
    """Return the start of a claim's text."""
    return "on a CPU: " if result["device"].startswith("cpu") else ""


# Runs of different training lengths, evaluated at the longer one


@dataclass
class Pair:
    """Two runs of a claim, compared at the training length of the second."""

    claim: Claim
    columns: tuple[Column, Column]
    speed: dict | None = None
    """result of the benchmark train with both encodings, each at its training length"""
    entries: tuple[dict, ...] = ()
    """of the benchmark"""

    @property
    def length(self) -> int:
        """The length at which both are evaluated."""
        return self.columns[1].trained_at

    def ratios(self) -> dict[str, Interval]:
        """Return the ratios of perplexity and, with a benchmark, of memory and time per token.

        The interval of the time is over rounds, unpaired.
        """
        ours, other = self.columns
        pairs = entry_pairs(ours, self.length, other, self.length)
        ratios = {"perplexity": intervals.perplexity_ratio(pairs)}
        if self.entries:
            logs = [np.log(entry["seconds"]) - np.log(entry["tokens"]) for entry in self.entries]
            ratios["memory"] = memory_ratio(*self.entries)
            ratios["time per token"] = intervals.ratio_of_rounds(*logs)
        return ratios


def judge_training_lengths(columns: list[Column], speeds: list[dict]) -> list[Verdict]:
    """Return verdicts on the pairs of runs that were trained and evaluated.

    columns: of perplexity; speeds: results of the benchmark train of bench.py.
    """
    return judge(["shorter_training"], _costs, columns, speeds)


def _costs(claim: Claim, columns: list[Column], speeds: list[dict]) -> Measured:
    for pair in _pairs_of(claim, columns, speeds):
        lengths = [column.trained_at for column in pair.columns]
        found = claim.but(trained_at=lengths[0], other_trained_at=lengths[1])
        if pair.speed and claim.quantity != "perplexity":
            found = found.but(prefix=on_device(pair.speed))
        ratio = pair.ratios().get(claim.quantity)
        settings = pair.columns[0].differing(pair.columns[1], "block_size")
        if settings and claim.quantity == "perplexity":
            ratio = Incomparable(tuple(settings))
        yield found, {ALONE: ratio}


def find_pairs(columns: list[Column], speeds: list[dict]) -> list[Pair]:
    """Return the pairs of runs of all claims."""
    claims = catalog.load()["shorter_training"]
    claims = [claim for claim in claims if claim.quantity == "perplexity"]
    return [pair for claim in claims for pair in _pairs_of(claim, columns, speeds)]


def _pairs_of(claim: Claim, columns: list[Column], speeds: list[dict]) -> Iterator[Pair]:
    """Yield the pairs of runs of a claim in columns, at the paper's lengths or a scale of them.

    At the paper's lengths they have its size and data set; at a scale, as in the scripts at
    --scale small, any size but those that the claim is not about. Of several columns the first
    counts. A pair has the first benchmark that measured both runs.
    """
    by_run = {}
    for column in reversed(columns):
        by_run[column.pe, column.trained_at, column.records[0].get("size")] = column
    sizes = dict.fromkeys(size for _, _, size in by_run)
    speeds = [result for result in speeds if "objective" not in result]
    for scale in SCALES:
        for size in [claim.size] if scale == 1 else sizes:
            ours = by_run.get((claim.encoding, claim.trained_at // scale, size))
            other = by_run.get((*claim.others, claim.other_trained_at // scale, size))
            if not (ours and other) or size in claim.except_sizes:
                continue
            if scale == 1 and dataset_of(ours.records[0]) != claim.dataset:
                continue
            if ours.values(other.trained_at) and other.values(other.trained_at):
                pair = Pair(claim, (ours, other))
                for result in reversed(speeds):
                    entries = [entry_of(result, each.trained_at, each.pe) for each in pair.columns]
                    if all(entries):
                        pair.speed, pair.entries = result, tuple(filter(None, entries))
                yield pair
