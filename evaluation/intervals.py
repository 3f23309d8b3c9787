"""95% confidence intervals of comparisons: bootstrap over text, t over seeds.

    ratio = perplexity_ratio([(entry, other), (entry_of_seed_2, other_of_seed_2)])

docs/evaluation.md ("Intervals") describes both, and how they are added. Widening a percentile
interval by t / 1.96 * sqrt(n / (n - 1)), for n segments, is Hesterberg's "expanded percentile
interval" (2015). Segments are at most 32; a single window is cut at bins of positions.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

DRAWS = 10_000
MAX_SEGMENTS = 32
NORMAL_QUANTILE = statistics.NormalDist().inv_cdf(0.975)
Numbers = Sequence[float]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95% confidence interval."""

    estimate: float
    low: float | None = None  # None, as `high`: not in the records
    high: float | None = None
    seeds: int = 1
    paired: bool = True  # False: from the standard errors of both values

    def exp(self) -> "Interval":
        """Return the interval of the exponential; infinity for an overflow."""
        return self.map(lambda value: math.inf if value >= 700 else math.exp(value))

    def map(self, function) -> "Interval":
        low, high = (None if end is None else function(end) for end in (self.low, self.high))
        return replace(self, estimate=function(self.estimate), low=low, high=high)


@lru_cache
def t_quantile(degrees: int) -> float:
    """Return the 97.5% quantile of Student's t; degrees: at least 1."""
    from scipy import special

    return float(special.stdtrit(degrees, 0.975))


def perplexity_ratio(pairs: Sequence[tuple[dict, dict]]) -> Interval:
    """Return the ratio of two perplexities, first over second.

    pairs: for each seed, entries of eval_extrapolation.py. Entries without losses of blocks, or
    with different numbers of predictions, are compared by standard errors. NaN or Inf: no interval.
    """
    differences = [first["loss"] - second["loss"] for first, second in pairs]
    if not np.isfinite(differences).all():
        return Interval(float(np.mean(differences)), seeds=len(pairs)).exp()
    segments = None
    if all(a.get("tokens") == b.get("tokens") for a, b in pairs):
        segments = segment_losses([entry for pair in pairs for entry in pair])
    if segments is None:
        return _unpaired(pairs, differences).exp()
    losses, widths = segments
    log_ratios = (losses[0::2] - losses[1::2]).mean(0)  # (segments,), mean over seeds
    counts = draw_counts(len(widths))
    draws = counts @ (log_ratios * widths) / (counts @ widths)
    return over_seeds(differences, _widened(differences, draws, len(widths))).exp()


def segment_losses(entries: Sequence[dict]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return mean losses of segments, (entries, segments), and relative sizes.

    Segments end where blocks of the entry with the fewest blocks end; others count on both sides,
    in proportion. None for fewer than two blocks.
    """
    curves = [_cumulative_losses(entry) for entry in entries]
    fewest = min((bounds for bounds, _ in curves), key=len)
    count = min(MAX_SEGMENTS, len(fewest) - 1)
    if count < 2:
        return None
    edges = fewest[np.linspace(0, len(fewest) - 1, count + 1).round().astype(int)]
    widths = np.diff(edges)
    at_edges = np.array([np.interp(edges, *curve) for curve in curves])
    return np.diff(at_edges) / widths, widths


def _cumulative_losses(entry: dict) -> tuple[np.ndarray, np.ndarray]:
    """Return ends of blocks, as fractions of the text, and summed losses."""
    losses = np.array(entry.get("blocks", ()), float)
    tokens = np.array(entry.get("block_tokens", np.ones(len(losses))))  # of equal size
    curve = entry.get("by_position")
    if entry.get("windows") == 1 and curve and None not in curve["loss"]:
        last = entry["tokens"] - curve["width"] * (len(curve["loss"]) - 1)
        # false for encoders, which predict some positions only
        if 0 < last <= curve["width"]:
            losses = np.array(curve["loss"])
            tokens = np.append(np.full(len(losses) - 1, curve["width"]), last)
    sums = np.cumsum([[0, *tokens], [0, *(losses * tokens)]], axis=1) / max(tokens.sum(), 1)
    return sums[0], sums[1]


def _unpaired(pairs: Sequence[tuple[dict, dict]], differences: Numbers) -> Interval:
    """Return the mean difference, by the standard errors of both losses."""
    errors = np.array([[entry["loss_se"] for entry in pair] for pair in pairs], float)
    if np.isnan(errors).any():  # None in the record: no interval
        return Interval(float(np.mean(differences)), seeds=len(pairs), paired=False)
    # Seeds share the text: its error does not decrease with their number.
    width = NORMAL_QUANTILE * math.hypot(*errors.mean(0))
    return over_seeds(differences, (width, width), paired=False)


def ratio_of_rounds(first: Numbers, second: Numbers = ()) -> Interval:
    """Return exp(mean of first - mean of second), with Welch's t interval.

    They are logarithms from independent rounds; second = (): a mean of
    0. No interval for a single round.
    """
    samples = [np.asarray(sample, float) for sample in (first, second) if len(sample)]
    estimate = float(samples[0].mean() - sum(sample.mean() for sample in samples[1:]))
    counts = np.array([len(sample) for sample in samples])
    if counts.min() < 2:
        return Interval(estimate).exp()
    variances = np.array([sample.var(ddof=1) for sample in samples]) / counts  # of the means
    if not variances.any():
        return Interval(estimate, estimate, estimate).exp()
    terms = variances**2 / (counts - 1)
    degrees = int(variances.sum() ** 2 / terms.sum() + 1e-9)  # rounded down
    width = float(t_quantile(degrees) * math.sqrt(variances.sum()))
    return Interval(estimate, estimate - width, estimate + width).exp()


def over_seeds(values: Numbers, widths: Numbers, paired: bool = True) -> Interval:
    """Return the mean; widths: the two of the interval over text, low and high."""
    mean = float(np.mean(values))
    seed_width = 0.0
    if len(values) > 1:
        error = np.std(values, ddof=1) / math.sqrt(len(values))
        seed_width = t_quantile(len(values) - 1) * error
    low = mean - math.hypot(widths[0], seed_width)
    high = mean + math.hypot(widths[1], seed_width)
    return Interval(mean, low, high, len(values), paired)


def _widened(values: Numbers, draws: np.ndarray, n: int) -> tuple[float, float]:
    """Return the distances from the mean to its widened interval's ends."""
    mean = float(np.mean(values))
    low, high = np.percentile(draws, [2.5, 97.5])
    factor = t_quantile(n - 1) / NORMAL_QUANTILE * math.sqrt(n / (n - 1))
    return factor * (mean - low), factor * (high - mean)


@lru_cache(maxsize=8)
def draw_counts(n: int) -> np.ndarray:
    """Return how often each of n segments is drawn, (DRAWS, n) float64."""
    return np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), DRAWS).astype(float)
