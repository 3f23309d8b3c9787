"""Paired t-tests over seeds, as in table 3 of the Sandwich paper.

The paper trains five seeds, and marks where Sandwich is significantly better (dagger) or worse
(asterisk) in a "paired two-sided t-test" at a level of 0.05. It does not print what is paired. Here
the test is over training seeds on the same text, so it covers the choice of the seed, not that of
the text.
"""

import warnings
from typing import NamedTuple

LEVEL = 0.05
BETTER, WORSE = "†", "∗"  # the reference is better, or worse, than the marked encoding


class SeedTest(NamedTuple):
    """The paired test of an encoding's values against those of a reference."""

    p: float  # NaN: all differences are 0, or a value is not finite
    mark: str  # BETTER or WORSE for a lower or higher reference, "" if neither


def paired_test(
    reference: dict[int | None, float], other: dict[int | None, float]
) -> SeedTest | None:
    """Return the test of {seed: value}; None: fewer than two shared seeds."""
    from scipy import stats

    seeds = [seed for seed in reference if seed in other]
    if len(seeds) < 2:
        return None
    first, second = ([values[seed] for seed in seeds] for values in (reference, other))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal differences: t is infinite
        test = stats.ttest_rel(second, first)
    mark = BETTER if test.statistic > 0 else WORSE
    return SeedTest(float(test.pvalue), mark if test.pvalue < LEVEL else "")


def explain_marks(reference: str, seeds: str) -> str:
    """Return a caption's sentence on the marks; seeds: as in "3 seeds"."""
    return (
        f"{BETTER}: {reference} is significantly better, {WORSE}: significantly worse (paired "
        f"two-sided t-test over {seeds}, level {LEVEL})."
    )
