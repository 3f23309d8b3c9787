"""Intervals against scipy and closed forms."""

import math

import numpy as np
import pytest
from scipy import stats

from evaluation import intervals
from losses import perplexity


def entry(losses, tokens=None):
    """Return an entry of a record with these losses of blocks."""
    tokens = np.ones(len(losses)) if tokens is None else np.array(tokens)
    mean = float(np.average(losses, weights=tokens))
    return {"loss": mean, "loss_se": 0.1, "blocks": list(losses), "block_tokens": tokens.tolist()}


def log_interval(interval):
    return [math.log(value) for value in (interval.estimate, interval.low, interval.high)]


@pytest.mark.parametrize("alike", [1, 16])
def test_interval_over_the_text_is_the_t_interval_of_the_differences(alike):
    """Paired: what both losses share does not matter. 32 segments of windows that are alike."""
    random = np.random.default_rng(3)
    differences = random.normal(0.02, 0.1, 32)
    shared, windows = random.normal(3, 1, 32 * alike), np.repeat(differences, alike)
    ratio = intervals.perplexity_ratio([(entry(shared + windows), entry(shared))])
    assert ratio.paired and ratio.seeds == 1
    low, high = stats.ttest_1samp(differences, 0).confidence_interval()
    expected = [differences.mean(), low, high]
    assert log_interval(ratio) == pytest.approx(expected, abs=0.03 * (high - low))


def test_errors_of_text_and_seeds_are_added_in_quadrature():
    random = np.random.default_rng(5)
    noise = random.normal(0, 0.1, 32)
    text = intervals.perplexity_ratio([(entry(3 + noise), entry([3.0] * 32))] * 2)
    alike = [(entry([3.0 + shift] * 32), entry([3.0] * 32)) for shift in (-0.004, 0.004)]
    both = [(entry(3 + shift + noise), entry([3.0] * 32)) for shift in (-0.004, 0.004)]
    widths = []
    for interval in (text, intervals.perplexity_ratio(alike), intervals.perplexity_ratio(both)):
        estimate, low, _ = log_interval(interval)
        assert interval.seeds == 2
        widths.append(estimate - low)
    assert widths[2] == pytest.approx(math.hypot(widths[0], widths[1]), rel=1e-6)
    low, high = stats.ttest_1samp([-0.004, 0.004], 0).confidence_interval()
    assert log_interval(intervals.perplexity_ratio(alike)) == pytest.approx([0, low, high])


def test_lengths_with_different_blocks_are_paired():
    """A loss at 4 windows is 0.05 above that of the same text in 64 windows: no spread remains."""
    text = np.random.default_rng(1).normal(3, 1, 64)
    long = entry(text.reshape(4, 16).mean(1) + 0.05, [16] * 4)
    ratio = intervals.perplexity_ratio([(long, entry(text))])
    assert log_interval(ratio) == pytest.approx([0.05] * 3)


def test_blocks_that_do_not_end_together_count_on_both_sides():
    losses, widths = intervals.segment_losses([entry([1.0, 2.0]), entry([1.0, 4.0, 2.0])])
    assert widths.tolist() == [0.5, 0.5]
    assert losses[0].tolist() == [1.0, 2.0]
    assert losses[1] == pytest.approx([(1 + 4 / 2) / 1.5, (4 / 2 + 2) / 1.5])


def test_a_single_window_is_cut_at_its_bins_of_positions():
    """Against the same text in blocks of windows: bins of 8 positions, the last one of 4."""
    random = np.random.default_rng(5)
    differences = random.normal(0.1, 0.2, 16)
    short = entry(random.normal(3, 1, 16), [8] * 15 + [4])
    losses = (np.array(short["blocks"]) + differences).tolist()
    blocks = entry(losses, short["block_tokens"])
    window = entry([blocks["loss"]], [124]) | {"windows": 1, "tokens": 124}
    window["by_position"] = {"first": 0, "width": 8, "loss": losses}
    short["tokens"] = blocks["tokens"] = 124
    ratio = intervals.perplexity_ratio([(window, short)])
    assert ratio == intervals.perplexity_ratio([(blocks, short)])
    assert ratio.low < math.exp(np.average(differences, weights=short["block_tokens"])) < ratio.high
    # An encoder predicts 20 of the 128 positions: the widths of bins are not numbers of tokens.
    encoder = window | {"tokens": 20, "block_tokens": [20]}
    assert intervals.segment_losses([encoder]) is None


def test_draws_are_weighted_by_tokens():
    """Blocks of 3 tokens with a difference of 0.1, then as many of one token without."""
    tokens = np.repeat([3, 1], 16)
    first, second = entry(3 + np.repeat([0.1, 0.0], 16), tokens), entry([3.0] * 32, tokens)
    estimate, low, high = log_interval(intervals.perplexity_ratio([(first, second)]))
    assert (estimate, (low + high) / 2) == pytest.approx((0.075, 0.075), abs=3e-3)


def test_entries_without_blocks_are_compared_by_their_standard_errors():
    """Or have no interval, if these are unknown, as for a single window."""
    first, second = {"loss": 1.1, "loss_se": 0.03}, {"loss": 1.0, "loss_se": 0.04}
    ratio = intervals.perplexity_ratio([(first, second)])
    assert log_interval(ratio) == pytest.approx([0.1, 0.1 - 0.098, 0.1 + 0.098], abs=1e-4)
    assert not ratio.paired
    # Seeds are evaluated on the same text, so its error does not decrease with their number.
    equal_seeds = intervals.perplexity_ratio([(first, second)] * 4)
    assert log_interval(equal_seeds) == pytest.approx(log_interval(ratio))
    unknown = intervals.perplexity_ratio([(first, second | {"loss_se": None})])
    assert unknown.estimate == pytest.approx(math.exp(0.1))
    assert (unknown.low, unknown.high) == (None, None)


def test_entries_of_different_text_are_not_paired():
    """The same blocks, but another number of predictions: standard errors of 0.1 each."""
    blocks = [1.0, 2.0, 3.0, 4.0]
    same = [{**entry(blocks), "tokens": tokens} for tokens in (400, 400)]
    ratio = intervals.perplexity_ratio([same])
    assert ratio.paired and ratio.low == pytest.approx(1)
    other = [{**entry(blocks), "tokens": tokens} for tokens in (400, 380)]
    ratio = intervals.perplexity_ratio([other])
    assert not ratio.paired
    assert math.log(ratio.high) == pytest.approx(1.96 * 0.1 * math.sqrt(2), rel=1e-3)
    assert not intervals.perplexity_ratio([same, other]).paired


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("blocks", [True, False])
def test_a_loss_of_nan_decides_nothing(is_first, blocks):
    pair = [entry([math.nan] * 4), entry([1.0] * 4)]
    if not blocks:
        pair = [{"loss": value["loss"], "loss_se": value["loss"]} for value in pair]
    ratio = intervals.perplexity_ratio([pair if is_first else pair[::-1]])
    assert math.isnan(ratio.estimate) and (ratio.low, ratio.high) == (None, None)
    assert math.isnan(perplexity(math.nan)) and perplexity(math.inf) == perplexity(800) == math.inf
    ratio = intervals.perplexity_ratio([(entry([900.0] * 4), entry([1.0] * 4))])  # overflow
    assert ratio.estimate == ratio.high == math.inf and ratio.low > 2


def test_rounds_are_compared_by_welch_s_t_interval():
    """Degrees of freedom are rounded down; of equal size and variance they are whole numbers."""
    first = np.array([0.10, 0.13, 0.08, 0.11, 0.12])
    second = first[::-1] + 0.3
    ours = intervals.ratio_of_rounds(first, second)
    theirs = stats.ttest_ind(first, second, equal_var=False).confidence_interval()
    assert np.allclose(np.log([ours.low, ours.high]), theirs, rtol=1e-3)
    assert math.isclose(ours.estimate, math.exp(-0.3))
    alone = intervals.ratio_of_rounds(first)
    theirs = stats.ttest_1samp(first, 0).confidence_interval()
    assert np.allclose(np.log([alone.low, alone.high]), theirs, rtol=1e-3)
    assert intervals.ratio_of_rounds(first, np.zeros(9)) == alone  # rope, relative to itself
    wide = intervals.ratio_of_rounds([0, 0.1, 0.2], 3 * second)  # 2.8 degrees of freedom
    error = math.sqrt(np.var([0, 0.1, 0.2], ddof=1) / 3 + np.var(3 * second, ddof=1) / 5)
    width = stats.t.ppf(0.975, 2) * error
    assert math.isclose(math.log(wide.high / wide.low), 2 * width, rel_tol=1e-3)
    assert intervals.ratio_of_rounds([0.1], [0.2]).low is None
    assert intervals.ratio_of_rounds([0.1, 0.1]).low == math.exp(0.1)
