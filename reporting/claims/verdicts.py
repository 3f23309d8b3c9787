"""Verdicts on claims, decided by 95% intervals (evaluation/intervals.py):

- a bound holds if the whole interval is on its side, and fails if it is beyond;
- several comparisons hold if all do, and fail if one does. Intervals are not
  corrected for the number of comparisons;
- everything else is not decided, also if there is no interval.
"""

from dataclasses import dataclass

from evaluation.intervals import Interval
from reporting.formatting import escape_markdown

NO_INTERVAL, ONE_SEED = "(no interval)", "one seed"  # in Verdict.measured
HOLDS, FAILS, UNDECIDED, NOT_MEASURED = "holds", "fails", "not decided", "not measured"
NOT_COMPARABLE = "not comparable"  # the runs differ in more than encoding and seed

MIN_STEPS = 50  # runs of fewer steps are tests of the programs and get no verdicts
# "Far" is the first of these multiples of the training length that was evaluated.
FAR_MULTIPLES = (16, 15)


@dataclass
class Verdict:
    """A claim with what was measured and whether it holds."""

    claim: str
    paper: str
    where: str
    """section, table or figure, and "our bound" if the paper states none"""
    measured: str = ""
    outcome: str = NOT_MEASURED
    """HOLDS, FAILS, UNDECIDED, NOT_COMPARABLE or NOT_MEASURED"""
    key: str = ""
    """Claim.key"""
    others: str = ""
    """encodings that it was compared with"""

    def __str__(self):
        source = ", ".join(filter(None, (self.paper, self.where)))
        texts = map(escape_markdown, (f"{self.claim} ({source})", self.measured))
        return ": ".join(filter(None, (*texts, f"**{self.outcome}**")))


def has_verdicts(record: dict) -> bool:
    """Return whether a run was trained for long enough to judge claims on it.

    Runs of 0 steps have weights of another run, whose steps count, or published
    ones.
    """
    steps = record.get("step") or record.get("init_steps")
    return steps is None or steps >= MIN_STEPS


def printed_interval(interval: Interval, digits: int = 3, one_seed: bool = False) -> str:
    """Return an estimate with its interval, and the number of seeds.

    one_seed: whether to print a single seed.
    """
    text = f"{interval.estimate:.{digits}f}"
    if interval.low is None:
        return f"{text} {NO_INTERVAL}"
    notes = [f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"]
    if interval.seeds > 1:
        notes.append(f"{interval.seeds} seeds")
    elif one_seed:
        notes.append(ONE_SEED)
    if not interval.paired:
        notes.append("unpaired")
    return f"{text} ({'; '.join(notes)})"


def judge_bound(interval: Interval, relation: str, bound: float) -> str:
    """Return the outcome of "interval relation bound"; "~": within a factor."""
    below, above = interval.below(bound), interval.above(bound)
    if relation == "~":
        if below and interval.above(1 / bound):
            return HOLDS
        return FAILS if above or interval.below(1 / bound) else UNDECIDED
    if not below and not above:
        return UNDECIDED
    return HOLDS if below == relation.startswith("<") else FAILS


def combine(outcomes: list[str]) -> tuple[str, str]:
    """Return the outcome of several comparisons, and how many agree."""
    agree, disagree, undecided = map(outcomes.count, (HOLDS, FAILS, UNDECIDED))
    counts = [f"{agree} of {len(outcomes)} agree"]
    if disagree:
        counts.append(f"{disagree} disagree{'' if disagree > 1 else 's'}")
    if undecided:
        counts.append(f"{undecided} {'are' if undecided > 1 else 'is'} not decided")
    outcome = FAILS if disagree else UNDECIDED if undecided else HOLDS
    return outcome, ", ".join(counts)
