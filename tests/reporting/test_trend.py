"""Trend of the claims over model sizes, against numbers computed by hand."""

import math

import pytest
import test_report

from reporting import trend


def record(pe, losses, parameters, seed=1, **changes):
    """Return a record of perplexity at multiples of 256 tokens; losses: {multiple: loss}."""
    perplexities = {256 * multiple: math.exp(loss) for multiple, loss in losses.items()}
    setting = {"parameters": parameters, "size": "tiny"}
    setting["protocol"] = {"name": "segments", "remainder": "counted"}
    return test_report.record(pe, perplexities, seed=seed) | setting | changes


def ratios_of(records):
    """Return {claim: ratio} of records of one rung."""
    trends = trend.measure(trend.make_rungs(records))
    return {claim.wording: ratio for claim, (ratio,) in trends}


def numbers(interval):
    return interval.estimate, interval.low, interval.high


def test_perplexity_ratio_and_its_interval_over_seeds():
    """The log ratios of the two seeds are -0.2 and -0.1: mean -0.15, t interval with t = 12.7."""
    records = [
        record("cable", {1: 1.0, 16: 0.9}, 100, seed=1),
        record("cable", {1: 1.1, 16: 1.2}, 100, seed=2),
        record("alibi", {1: 1.0, 15: 7.0, 16: 1.1}, 90, seed=1),
        record("alibi", {1: 1.0, 16: 1.3}, 90, seed=2),
        record("rope", {1: 1.3}, 80, seed=2),
    ]
    found = ratios_of(records)
    ratio = found["cable is below alibi"]
    width = 12.7062047 * math.sqrt(0.005) / math.sqrt(2)
    assert numbers(ratio) == pytest.approx([math.exp(-0.15 + w) for w in (0, -width, width)])
    ratio = found["cable is below rope"]  # the seed that both have
    assert numbers(ratio) == pytest.approx([math.exp(-0.2)] * 3) and ratio.seeds == 1
    assert found["g helps"] is None
    assert trend.make_rungs(records)[0].parameters == 90  # the median


def test_far_is_15_times_where_16_is_not_recorded():
    found = ratios_of([record("cable", {1: 1.0, 15: 1.25}, 100)])
    assert found["cable gains from longer context"].estimate == pytest.approx(math.exp(0.25))


def test_records_are_compared_at_lengths_of_the_same_text():
    """One record left out text at 15 times the training length only."""
    dropped, counted = (
        {"name": "segments", "remainder": remainder} for remainder in ("dropped", "counted")
    )
    first = record("cable", {1: 1.0, 15: 5.0, 16: 1.1}, 100, protocol=dropped)
    first["lengths"][str(15 * first["block_size"])]["tokens"] -= 1
    second = record("alibi", {1: 1.0, 15: 1.0, 16: 1.3}, 90, protocol=counted)
    ratio = ratios_of([first, second])["cable is below alibi"]
    assert ratio.estimate == pytest.approx(math.exp(-0.2))


def test_ratio_is_of_the_protocol_with_most_lengths():
    """A second record has the training length on another text, as that of 131,072 tokens has."""
    counted = {"name": "segments", "remainder": "counted"}
    protocols = [counted | {"tokens": tokens} for tokens in (1, 2)]
    losses = [({1: 1.0, 128: 3.0}, 0.5), ({1: 1.0, 4: 1.0, 15: 1.0}, 0.9)]
    records = [
        record(pe, {m: loss * factor for m, loss in at.items()}, 100, protocol=protocol)
        for protocol, (at, cable) in zip(protocols, losses, strict=True)
        for pe, factor in (("rope", 1), ("cable", cable))
    ]
    for order in (records, records[::-1]):
        ratio = ratios_of(order)["cable is below rope"]
        assert ratio.estimate == pytest.approx(math.exp(0.9 - 1.0))


def test_recall_and_receptive_field_by_hand():
    """Recall of 20% is a ratio of 0.8, whose logarithm has the standard error 0.04 / 0.8."""
    recall = {"recall": 20.0, "recall_se": 4.0, "loss": 1.0, "loss_without": 1.2}
    field = {"receptive_field": 128.0, "receptive_field_se": 10.0}
    records = [
        record("cable", {}, 1, metric="Recall", lengths={"1024": recall})
        | {"protocol": {"passage": 64, "trials": 2, "span": 1024}},
        record("fox", {}, 1, metric="Receptive field", lengths={"1024": field})
        | {"protocol": {"windows": 2, "span": 1024, "held": 0.99}},
    ]
    found = ratios_of(records)
    ratio = found["flat perplexity is forgetting (1: no recall)"]
    width = 12.7062047 * 0.04 / 0.8
    assert numbers(ratio) == pytest.approx([0.8 * math.exp(w) for w in (0, -width, width)])
    ratio = found["fox has a short window"]
    width = 12.7062047 * 10 / 256
    assert numbers(ratio) == pytest.approx([0.5, 0.5 - width, 0.5 + width])
