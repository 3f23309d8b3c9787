"""Claims on speed, memory and the training length, by the benchmarks of bench.py.

The ratio of two encodings' speeds is a mean over rounds of log ratios. bench.py measures every
encoding together with rope, so that both are first taken relative to rope. The interval is a t
interval over the rounds of one process (Welch's). Memory is deterministic and has no interval.

Models that were trained at different lengths are evaluated at one length. Memory and time of their
training steps are measured with the same number of sequences; time is per token, because both
trainings have the same number of tokens.
"""

from dataclasses import dataclass

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims import catalog
from reporting.claims.catalog import Claim
from reporting.claims.verdicts import Verdict, decide, printed_interval
from reporting.columns import Column, dataset_of, entry_pairs

SIZES = ("small", "medium")  # of the papers' statements on speed
SCALES = (1, 4, 32)  # scripts divide the paper's lengths by these, and use networks of other sizes


def judge_speed(benchmark: str, result: dict) -> list[Verdict]:
    """Return verdicts on one benchmark of a record of bench.py; none for encoders.

    Claims on a CPU say so: the papers measured GPUs.
    """
    if "objective" in result:
        return []
    device = _device(result)
    measured = {
        name.partition(" triton")[0]
        for entries in result["contexts"].values()
        for name, entry in entries.items()
        if entry
    }
    verdicts = []
    for claim in catalog.load().speed.rows:
        others = [pe for pe in claim.others if pe in measured]
        if claim.benchmark != benchmark or claim.encoding not in measured or not others:
            continue
        if not is_size_of(claim.size, result):
            continue
        ratios = {}
        for context in sorted(claim.contexts or map(int, result["contexts"])):
            for other in others:
                entry = entry_of(result, context, claim.encoding)
                other_entry = entry_of(result, context, other)
                if entry and other_entry:
                    name = f"{other} at {context:,} tokens"
                    ratios[name] = RATIOS[claim.quantity](entry, other_entry)
        if len(ratios) == 1:
            ratios = dict(zip([""], ratios.values(), strict=True))  # needs no name
        verdict = claim.unmeasured(others=others, device=device)
        rule = (claim.relation, claim.bound)
        verdicts.append(decide(verdict, ratios, *rule, show=print_ratio, always_count=True))
    return verdicts


def print_ratio(ratio: Interval) -> str:
    """Return a ratio with its interval, unless it is exact."""
    is_exact = ratio.low == ratio.high == ratio.estimate
    return f"{ratio.estimate:.3f}" if is_exact else printed_interval(ratio)


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

    Older records have no seconds of rope: their ratio has no interval.
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


RATIOS = {"speed": speed_ratio, "memory": memory_ratio}


def is_on_cpu(result: dict) -> bool:
    """Return whether a benchmark ran on a CPU."""
    return result["device"].startswith("cpu")


def _device(result: dict) -> str:
    """Return the start of a claim's text."""
    return "on a CPU: " if is_on_cpu(result) else ""


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
    verdicts = []
    for pair in find_pairs(columns, speeds):
        ratios = pair.ratios()
        lengths = [column.trained_at for column in pair.columns]
        for claim in catalog.load().shorter_training.rows:
            if _runs_of(claim) != _runs_of(pair.claim):
                continue
            device = ""
            if pair.speed and claim.quantity != "perplexity":
                device = _device(pair.speed)
            fields = {"trained_at": lengths[0], "other_trained_at": lengths[1]}
            verdict = claim.unmeasured(device=device, **fields)
            found = {"": ratios[claim.quantity]} if claim.quantity in ratios else {}
            rule = (claim.relation, claim.bound)
            verdicts.append(decide(verdict, found, *rule, show=print_ratio))
    return verdicts


def _runs_of(claim: Claim) -> tuple:
    return claim.encoding, claim.trained_at, claim.other, claim.other_trained_at


def find_pairs(columns: list[Column], speeds: list[dict]) -> list[Pair]:
    """Return the pairs of runs of claims in columns, at the paper's lengths or a scale of them.

    At the paper's lengths they have its size and data set; at a scale, as in the scripts at
    SCALE=small, any size but those that the claim is not about. Of several columns the first
    counts.
    """
    by_run = {}
    for column in reversed(columns):
        by_run[column.pe, column.trained_at, column.records[0].get("size")] = column
    sizes = dict.fromkeys(size for _, _, size in by_run)
    pairs = []
    claims = catalog.load().shorter_training.rows
    for claim in [claim for claim in claims if claim.quantity == "perplexity"]:
        for scale in SCALES:
            for size in [claim.size] if scale == 1 else sizes:
                ours = by_run.get((claim.encoding, claim.trained_at // scale, size))
                other = by_run.get((claim.other, claim.other_trained_at // scale, size))
                if not (ours and other) or size in claim.except_sizes:
                    continue
                if scale == 1 and dataset_of(ours.records[0]) != claim.dataset:
                    continue
                if ours.values(other.trained_at) and other.values(other.trained_at):
                    pairs.append(_with_costs(Pair(claim, (ours, other)), speeds))
    return pairs


def _with_costs(pair: Pair, speeds: list[dict]) -> Pair:
    """Return a pair with the first benchmark that has both runs, if there is one."""
    for result in speeds:
        found = [entry_of(result, column.trained_at, column.pe) for column in pair.columns]
        entries = tuple(entry for entry in found if entry)
        if "objective" not in result and len(entries) == 2:
            return Pair(pair.claim, pair.columns, result, entries)
    return pair
