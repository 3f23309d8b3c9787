"""Verdicts on claims, and the rules by which the interval of a measured quantity decides one."""

import re
from dataclasses import dataclass, replace

from evaluation.intervals import Interval
from reporting.formatting import escape_markdown

# Values of Verdict.paper, in addition to reporting.paper.SANDWICH. Other papers have their authors'
# names.
CABLE, CABLE_V1 = "CABLE", "CABLE, version 1"
NO_PAPER = "not in a paper"
OURS = ", our bound"  # end of Verdict.where if the paper does not print the bound
# An encoding of another paper, and the name of the same encoding in the claims of this one.
CLAIMED_AS = {"fox": "cable-v1"}
# Options and patterns that make another encoding, about which no paper has claims.
OTHER_ENCODING = re.compile("[:,]heads|@")

NO_INTERVAL = "(no interval)"  # in Verdict.measured
HOLDS, FAILS, UNDECIDED, NOT_MEASURED = "holds", "fails", "not decided", "not measured"

MIN_STEPS = 50  # runs of fewer steps are tests of the programs and get no verdicts
# The multiple of the training length that "far" claims are about: the first that was evaluated.
FAR_MULTIPLES = (16, 15)
NO_GROWTH = 1.05  # perplexity ratios up to this count as no growth


@dataclass
class Verdict:
    """A claim of a paper with what was measured and whether it holds."""

    claim: str
    paper: str
    """CABLE, CABLE_V1, SANDWICH, NO_PAPER or the authors of another paper"""
    where: str
    """section, table or figure, as in "section 5.1"; "" if there is none"""
    measured: str = ""
    outcome: str = NOT_MEASURED
    """HOLDS, FAILS, UNDECIDED or NOT_MEASURED"""

    def __str__(self):
        source = ", ".join(part for part in (self.paper, self.where) if part)
        texts = map(escape_markdown, (f"{self.claim} ({source})", self.measured))
        parts = [*texts, f"**{self.outcome}**"]
        return ": ".join(part for part in parts if part)


def has_verdicts(record: dict) -> bool:
    """Return whether a record's run was trained for long enough to judge claims on it.

    Runs with 0 steps have the weights of another run, whose steps count, or published weights.
    Older records do not have these steps.
    """
    steps = record.get("step") or record.get("init_steps")
    return steps is None or steps >= MIN_STEPS


def printed_interval(interval: Interval, digits: int = 3) -> str:
    """Return an estimate with its interval and the number of seeds, if there are several."""
    text = f"{interval.estimate:.{digits}f}"
    if interval.low is None:
        return f"{text} {NO_INTERVAL}"
    notes = [f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"]
    if interval.seeds > 1:
        notes.append(f"{interval.seeds} seeds")
    if not interval.paired:
        notes.append("unpaired")
    return f"{text} ({'; '.join(notes)})"


def is_stated_for(pe: str, size: str | None) -> bool:
    """Return whether the papers' claims on an encoding are about networks of a size.

    Those on kernelized CABLE are on "models with a low number of layers" (section 5.6; version 1,
    section 5.4).
    """
    return pe not in ("k-cable", "k-cable-v1") or size not in ("small", "medium", "large", "xl")


def judge_bound(interval: Interval, relation: str, bound: float) -> str:
    """Return the outcome of "quantity relation bound"; relation: <, <=, > or >=."""
    below, above = interval.below(bound), interval.above(bound)
    if not below and not above:
        return UNDECIDED
    return HOLDS if below == relation.startswith("<") else FAILS


def judge_all(comparisons: list[Interval], bound: float = 1) -> tuple[str, str]:
    """Return the outcome of "all are above the bound", and how many are."""
    return combine([judge_bound(interval, ">", bound) for interval in comparisons])


def combine(outcomes: list[str]) -> tuple[str, str]:
    """Return the outcome of a claim on several comparisons, and how many agree."""
    agree, disagree, undecided = map(outcomes.count, (HOLDS, FAILS, UNDECIDED))
    counts = f"{agree} of {len(outcomes)} agree"
    if disagree:
        counts += f", {disagree} disagree{'' if disagree > 1 else 's'}"
    if undecided:
        counts += f", {undecided} {'are' if undecided > 1 else 'is'} not decided"
    outcome = FAILS if disagree else UNDECIDED if undecided else HOLDS
    return outcome, counts


def judge_lowest(
    claim: Verdict, what: str, ratios: dict[str, Interval], bound: float = 1
) -> Verdict:
    """Return the verdict that all ratios are above 1, or all differences above 0.

    claim: not yet measured; what: the smallest ratio in words; ratios: by what is compared.
    """
    if not ratios:
        return claim
    smallest = min(ratios, key=lambda name: ratios[name].estimate)
    outcome, counts = judge_all([*ratios.values()], bound)
    measured = f"{what}: {printed_interval(ratios[smallest])}, {smallest}"
    if outcome != HOLDS and len(ratios) > 1:
        measured += f"; {counts}"
    return replace(claim, measured=measured, outcome=outcome)
