"""Judge claims: what was measured on them, as comparisons with intervals, decides their verdicts.

    judge(["growth", "lower"], measure, model)    # verdicts on the rows of these sections

`measure` yields, for a claim and the evidence, the claim as it was measured (other encodings than
in the row, other multiples) and {(other encoding, where): ratio or difference}; nothing if the
claim does not concern the evidence. None: not measured.
"""

import math
from collections.abc import Callable, Iterable, Iterator

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims import catalog
from reporting.claims.catalog import Claim
from reporting.claims.verdicts import (
    HOLDS,
    NOT_COMPARABLE,
    Incomparable,
    Verdict,
    combine,
    incomparable_settings,
    judge_bound,
    printed_interval,
)
from reporting.columns import Column, entry_pairs

# An encoding of another paper, and the name of the same encoding in the claims of version 1.
CLAIMED_AS = {"fox": "cable-v1"}
ALONE = ("", "")  # name of a single comparison

Comparisons = dict[tuple[str, str], Interval | Incomparable | None]
Measured = Iterator[tuple[Claim, Comparisons]]


def judge(sections: Iterable[str], measure: Callable[..., Measured], *evidence) -> list[Verdict]:
    """Return the verdicts on the claims of sections."""
    claims = [claim for section in sections for claim in catalog.load()[section]]
    return [decide(*found) for claim in claims for found in measure(claim, *evidence)]


def decide(claim: Claim, comparisons: Comparisons) -> Verdict:
    """Return the verdict that all comparisons satisfy the relation of a claim.

    It shows the least favorable one, and how many agree unless all do. It names the other encodings
    that were compared, or all if none was.
    """
    if settings := incomparable_settings(comparisons.values()):
        verdict = claim.unmeasured()
        verdict.measured = f"the runs differ in {', '.join(settings)}"
        verdict.outcome = NOT_COMPARABLE
        return verdict
    measured = {name: each for name, each in comparisons.items() if isinstance(each, Interval)}
    compared = {other for other, _ in measured}
    if claim.others and compared - {""}:
        claim = claim.but(others=[pe for pe in claim.others if pe in compared])
    verdict = claim.unmeasured()
    if not measured:
        return verdict
    outcomes = [judge_bound(each, claim.relation, claim.bound) for each in measured.values()]
    verdict.outcome, counts = combine(outcomes)
    worst = max(measured, key=lambda name: _distance(measured[name].estimate, claim.relation))
    if claim.shown:
        worst = (claim.shown, "")
    # The numbers of bytes are exact.
    text = f"{measured[worst].estimate:.3f}"
    if claim.quantity != "memory":
        text = printed_interval(measured[worst], claim.digits)
    verdict.measured = claim.what + text
    is_named = claim.shown or (claim.counts and len(measured) == 1)
    if any(worst) and not is_named:
        verdict.measured += f", {' '.join(filter(None, worst))}"
    if len(measured) > 1 and (claim.counts or verdict.outcome != HOLDS):
        verdict.measured += f"; {counts}"
    return verdict


def _distance(value: float, relation: str) -> float:
    """Return a number that is larger for values less favorable to a relation."""
    if relation == "~":
        return abs(math.log(value))
    return value if relation.startswith("<") else -value


def perplexity_ratio(
    over: Column, over_length: float, under: Column, under_length: float, ignored: str = ""
) -> Interval | Incomparable:
    """Return the ratio of the perplexities of two columns; ignored: a setting that may differ."""
    if settings := over.differing(under, ignored):
        return Incomparable(tuple(settings))
    pairs = entry_pairs(over, round(over_length), under, round(under_length))
    return intervals.perplexity_ratio(pairs)
