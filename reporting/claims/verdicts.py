"""Verdicts on claims, and the rules by which the intervals of measured quantities decide them.

A verdict is decided by the 95% interval of the measured quantity (evaluation/intervals.py: paired
over the text, and over seeds where there are several):

- a bound holds if the whole interval is on its side, and fails if the whole interval is beyond it;
- several comparisons hold if the intervals of all are on the right side, and fail if at least one
  is on the wrong side. The intervals are not corrected for the number of comparisons;
- everything else is not decided, also if the records do not have what an interval needs.
"""

from dataclasses import dataclass

from evaluation.intervals import Interval
from reporting.formatting import escape_markdown

NO_INTERVAL, ONE_SEED = "(no interval)", "one seed"  # in Verdict.measured
HOLDS, FAILS, UNDECIDED, NOT_MEASURED = "holds", "fails", "not decided", "not measured"
NOT_COMPARABLE = "not comparable"  # the runs differ in more than encoding and seed

MIN_STEPS = 50  # runs of fewer steps are tests of the programs and get no verdicts
# The multiple of the training length that "far" claims are about: the first that was evaluated.
FAR_MULTIPLES = (16, 15)


@dataclass
class Verdict:
    """A claim of a paper with what was measured and whether it holds."""

    claim: str
    paper: str
    where: str
    """section, table or figure, as in "section 5.1", and whose bound it is; "" if there is none"""
    measured: str = ""
    outcome: str = NOT_MEASURED
    """HOLDS, FAILS, UNDECIDED, NOT_COMPARABLE or NOT_MEASURED"""
    key: str = ""
    """of the claim, equal for all reports (Claim.key)"""
    others: str = ""
    """the encodings that were compared with"""

    def __str__(self):
        source = ", ".join(filter(None, (self.paper, self.where)))
        texts = map(escape_markdown, (f"{self.claim} ({source})", self.measured))
        return ": ".join(filter(None, (*texts, f"**{self.outcome}**")))


def has_verdicts(record: dict) -> bool:
    """Return whether a record's run was trained for long enough to judge claims on it.

    Runs with 0 steps have the weights of another run, whose steps count, or published weights.
    """
    steps = record.get("step") or record.get("init_steps")
    return steps is None or steps >= MIN_STEPS


def printed_interval(interval: Interval, digits: int = 3, one_seed: bool = False) -> str:
    """Return an estimate with its interval and the number of seeds, if there are several.

    one_seed: whether to say that there is one.
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
    """Return the outcome of "quantity relation bound"; "~": from 1 / bound to bound."""
    below, above = interval.below(bound), interval.above(bound)
    if relation == "~":
        if below and interval.above(1 / bound):
            return HOLDS
        return FAILS if above or interval.below(1 / bound) else UNDECIDED
    if not below and not above:
        return UNDECIDED
    return HOLDS if below == relation.startswith("<") else FAILS


def combine(outcomes: list[str]) -> tuple[str, str]:
    """Return the outcome of a claim on several comparisons, and how many agree."""
    agree, disagree, undecided = map(outcomes.count, (HOLDS, FAILS, UNDECIDED))
    counts = [f"{agree} of {len(outcomes)} agree"]
    if disagree:
        counts.append(f"{disagree} disagree{'' if disagree > 1 else 's'}")
    if undecided:
        counts.append(f"{undecided} {'are' if undecided > 1 else 'is'} not decided")
    outcome = FAILS if disagree else UNDECIDED if undecided else HOLDS
    return outcome, ", ".join(counts)
