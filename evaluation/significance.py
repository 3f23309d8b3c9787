"""Paired t-tests over seeds, as in table 3 of the Sandwich paper.

The paper trains five seeds, and marks where Sandwich is significantly better
(dagger) or worse (asterisk) in a "paired two-sided t-test" at a level of 0.05.
It does not print what is paired. Here the test is over training seeds on the
same text, so it covers the choice of the seed, not that of the text.
"""

import statistics
import warnings
from typing import NamedTuple

LEVEL = 0.05
BETTER, WORSE = "†", "∗"  # the reference is better, or worse, than the marked encoding


class SeedComparison(NamedTuple):
    """The paired test of another encoding's values against a reference."""

    difference: float  # mean of the other's values minus that of the reference
    t: float  # of the differences; NaN: all are 0, or a value is not finite
    p: float

    @property
    def mark(self) -> str:
        """BETTER or WORSE for a lower or higher reference, "" if neither."""
        if not self.p < LEVEL:  # also of NaN
            return ""
        return BETTER if self.t > 0 else WORSE


def compare_seeds(
    reference: dict[int | None, float], other: dict[int | None, float]
) -> SeedComparison | None:
    """Return the test of {seed: value}; None: fewer than two shared seeds."""
    from scipy import stats

    seeds = [seed for seed in reference if seed in other]
    if len(seeds) < 2:
        return None
    first = [reference[seed] for seed in seeds]
    second = [other[seed] for seed in seeds]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal differences: t is infinite
        test = stats.ttest_rel(second, first)
    difference = statistics.mean(second) - statistics.mean(first)
    return SeedComparison(difference, float(test.statistic), float(test.pvalue))


def explain_marks(reference: str, seeds: int) -> str:
    """Return a caption's sentence on the marks; seeds: their number."""
    return (
        f"{BETTER}: {reference} is significantly better, {WORSE}: significantly worse (paired "
        f"two-sided t-test over {seeds} seeds, level {LEVEL})."
    )
