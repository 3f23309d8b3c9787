"""The criterion: verdicts and intervals of hand-made scores, whose numbers are known."""

import copy
import math

import numpy as np
import pytest
from score_examples import example

from evaluation import intervals
from reporting.claims.claim import FAILS, HOLDS, NOT_MEASURED, UNDECIDED
from scores import criterion, score_file

CABLE = example("cable", loss=1.5, gained=0.002)


def outcomes(score):
    return {verdict.where: verdict.outcome for verdict in criterion.judge(score, CABLE).verdicts}


@pytest.mark.parametrize(
    "part, changes, outcome",
    [
        ("a", {"loss": 1.55}, FAILS),
        ("a", {"loss": 1.5}, UNDECIDED),
        ("b", {"gained": 0.009}, FAILS),  # 4.5 times
        ("b", {"gained": 0.011}, HOLDS),  # 5.5 times
        ("b", {"gained": 0.01, "spread": 0.002}, UNDECIDED),
        ("b", {"gained": -0.01}, FAILS),
        ("c", {"accuracies": (98.5, 95.0)}, FAILS),
        ("c", {"accuracies": (99.5, 89.0)}, FAILS),
        ("c", {"accuracies": (99.5, 90.0)}, UNDECIDED),
        ("speed", {"speed": 0.94}, FAILS),
        ("speed", {"speed": 0.96}, HOLDS),
        ("speed", {"speed": 0.9501}, UNDECIDED),
    ],
)
def test_each_part_has_three_outcomes(part, changes, outcome):
    settings = {"loss": 1.45, "gained": 0.02, "accuracies": (100.0, 95.0)} | changes
    found = outcomes(example("other", **settings))
    assert found.pop(part) == outcome
    if "spread" not in changes:
        assert set(found.values()) == {HOLDS}


def test_recall_must_be_above_zero_where_that_of_cable_is_negative():
    forgetful = example("cable", gained=-0.01)
    score = example("other", gained=-0.001)
    (b,) = [v for v in criterion.judge(score, forgetful).verdicts if v.where == "b"]
    assert b.outcome == FAILS


def test_one_wrong_distance_fails():
    score = example("other", gained=0.02)
    for by_length in score.recall.values():
        by_length["4096"] = copy.deepcopy(CABLE.recall["1"]["4096"])
    assert outcomes(score)["b"] == FAILS


def test_a_length_that_is_not_supported_is_not_measured():
    score = example("learnable", loss=1.45, gained=0.02)
    for by_length in score.perplexity.values():
        by_length["4096"] = None
    assert outcomes(score)["a"] == NOT_MEASURED
    ranked = criterion.rank({"cable": CABLE, "learnable": score})
    assert {pe: card.place for pe, card in ranked.items()} == {"learnable": 1, "cable": None}


def test_the_reference_is_not_compared_with_itself():
    found = outcomes(CABLE)
    assert found["a"] == found["b"] == NOT_MEASURED
    assert found["c"] == found["speed"] == HOLDS


def test_perplexity_ratio_is_paired_over_text():
    """The interval has no part of the text's hardness, which is 200 times the seeds' spread."""
    score = example("other", loss=1.4)
    ratio = criterion.perplexity_ratio(score, 16, CABLE)
    assert ratio.estimate == pytest.approx(math.exp(-0.1), rel=1e-3)
    assert math.exp(-0.1) * 0.999 < ratio.low < ratio.high < math.exp(-0.1) * 1.001
    alone = criterion.perplexity(score, 16)
    assert alone.high / alone.low > 1.05


def test_seeds_are_paired_by_number():
    """A shift of a seed that both have cancels."""
    first, second = example("other", loss=1.4), example("cable", loss=1.5)
    for score in (first, second):
        for seed, by_length in score.perplexity.items():
            entry = by_length["4096"]
            entry["loss"] += int(seed)
            entry["blocks"] = [loss + int(seed) for loss in entry["blocks"]]
    first.perplexity = dict(reversed(first.perplexity.items()))
    ratio = criterion.perplexity_ratio(first, 16, second)
    assert ratio.high / ratio.low < 1.002


def test_merged_segments_give_the_interval_of_the_records():
    """A score file keeps 32 segments of the record's windows."""
    noise = np.random.default_rng(0)

    def entry(count, loss):
        blocks = noise.normal(loss, 0.1, count)
        return {
            "loss": blocks.mean(),
            "loss_se": blocks.std() / count**0.5,
            "tokens": 128 * count,
            "blocks": blocks.tolist(),
            "block_tokens": [128] * count,
        }

    pairs = [(entry(512, 1.4), entry(512, 1.5)) for _ in range(3)]
    merged = [
        tuple(score_file.compact({"lengths": {"4": each}})["4"] for each in pair) for pair in pairs
    ]
    assert {len(each["blocks"]) for pair in merged for each in pair} == {32}
    expected, found = map(intervals.perplexity_ratio, (pairs, merged))
    for name in ("estimate", "low", "high"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-5)


def test_recall_by_trial_has_the_mean_and_the_error_of_the_recall():
    entry = CABLE.recall["1"]["4096"]
    values = criterion.recall_by_trial(entry)
    assert values.mean() == pytest.approx(entry["recall"])
    assert values.std(ddof=1) / len(values) ** 0.5 == pytest.approx(entry["recall_se"])


def test_place_counts_parts_and_ties_are_sorted_by_perplexity():
    scores = {
        "cable": CABLE,
        "winner": example("winner", loss=1.49, gained=0.02),
        "forgets": example("forgets", loss=1.3, gained=0.001),
        "forgets-more": example("forgets-more", loss=1.35, gained=0.0),
        "rope": example("rope", loss=2.5, gained=0.02, accuracies=(99.9, 3.0)),
    }
    ranked = ["winner", "forgets", "forgets-more", "cable", "rope"]
    places = [(pe, card.place) for pe, card in criterion.rank(scores).items()]
    assert places == [*zip(ranked, [1, 2, 2, None, 4], strict=True)]
