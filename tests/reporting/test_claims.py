"""Verdicts on records whose numbers are known."""

import pytest
from test_report import record

from reporting import claims
from reporting.columns import make_columns
from reporting.paper import PaperTable


def columns_of(records):
    return make_columns(records, "perplexity")


def verdicts(*records):
    return [verdict.holds for verdict in claims.judge_perplexity(columns_of(list(records)))]


def test_claims_of_the_quick_start():
    """cable <= 1.02, rope and sinusoidal > 2, and cable the lowest at 4x and beyond."""
    good = [
        record("cable", {256: 4.0, 1024: 4.0, 4096: 4.08}),
        record("rope", {256: 3.9, 1024: 5.0, 4096: 8.01}),
        record("sinusoidal", {256: 4.0, 1024: 9.0, 4096: 8.01}),
    ]
    assert verdicts(*good) == [True] * 4
    assert verdicts(record("cable", {256: 4.0, 1024: 4.0, 4096: 4.09}), *good[1:]) == [
        False,
        True,
        True,
        True,
    ]
    assert verdicts(good[0], record("rope", {256: 4.0, 1024: 3.9, 4096: 7.99}), good[2]) == [
        True,
        False,
        True,
        False,
    ]
    assert verdicts(good[0]) == [True] and verdicts(record("rope", {256: 4.0})) == [None]


def test_an_encoding_is_compared_with_those_that_are_here():
    records = [
        record("rope", {256: 4.0, 4096: 9.0}),
        record("cable", {256: 4.2, 4096: 4.1}),
        record("rope+cable", {256: 3.9, 4096: 4.0}),
    ]
    verdict = claims.judge_perplexity(columns_of(records))[-1]
    assert str(verdict) == (
        "rope+cable: perplexity lower than rope, cable at 1x, 16x (not in a paper): the others are at least 1.025 times as high: "
        "**holds**"
    )


def test_several_seeds_count_by_their_mean():
    records = [
        record("rope", {256: 4.0, 4096: 4.0}, seed=1),
        record("rope", {256: 4.0, 4096: 20.0}, seed=2),
        record("rope+fox", {256: 2.0, 4096: 1.0}, seed=2),
        record("rope+fox", {256: 3.0, 4096: 1.0}, seed=3),
    ]
    assert [str(verdict) for verdict in claims.judge_perplexity(columns_of(records))] == [
        "rope: perplexity at 16x / perplexity at 1x > 2 (CABLE): 3.000 (1.000 to 5.000 by seed): **holds**",
        "rope+fox: perplexity lower than rope at 1x, 16x (not in a paper): the others are at least 1.600 times as high: **holds**",
    ]
    records[3]["seed"] = 1
    assert str(claims.judge_perplexity(columns_of(records))[-1]).endswith(
        "at least 1.600 (1.333 to 2.000 by seed) times as high: **holds**"
    )


def test_lengths_between_the_multiples_do_not_count():
    assert str(
        claims.judge_perplexity(columns_of([record("rope", {256: 4.0, 4096: 9.0, 4200: 4.0})]))[0]
    ).endswith("> 2 (CABLE): 2.250: **holds**")


@pytest.mark.parametrize(
    "pe, relation, bound",
    [
        ("cable", "<=", 1.02),
        ("cable-nw", "<=", 1.05),
        ("alibi", "<=", 1.1),
        ("kerple", "<=", 1.05),
        ("rope", ">", 2),
        ("sinusoidal", ">", 2),
        ("fire", ">", 2),
        ("t5", ">", 2),
        ("dapev2+kerple", "<=", 1.05),
        ("sandwich-smoothed", "<=", 1.1),
    ],
)
def test_bounds_are_those_that_were_fixed(pe, relation, bound):
    """Before any run; an encoding just inside and just outside."""
    found = [
        verdicts(record(pe, {256: 1000.0, 4096: 1000 * bound + change}))[0] for change in (-1, 1)
    ]
    assert found == ([True, False] if relation == "<=" else [False, True])


def test_the_longest_context_of_the_papers_tables_is_15x():
    records = [record("rope", {256: 4.0, 3840: 9.0}), record("rope+fox", {256: 3.0, 3840: 8.9})]
    assert [str(verdict) for verdict in claims.judge_perplexity(columns_of(records))] == [
        "rope: perplexity at 15x / perplexity at 1x > 2 (CABLE): 2.250: **holds**",
        "rope+fox: perplexity lower than rope at 1x, 15x (not in a paper): the others are at least 1.011 times as high: **holds**",
    ]


def test_cable_is_the_lowest_at_every_length_beyond():
    good = [
        record("cable", {256: 4.5, 512: 4.0, 4096: 4.0}),
        record("kerple", {256: 4.0, 512: 4.1, 4096: 4.1}),
        record("fox", {256: 1.0, 512: 1.0, 4096: 1.0}),
    ]
    assert verdicts(*good)[-1] is True
    assert (
        verdicts(good[0], record("kerple", {256: 5.0, 512: 3.9, 4096: 9.0}), good[2])[-1] is False
    )


def test_networks_of_several_training_lengths_are_judged_apart():
    records = [
        record("rope", {256: 4.0, 4096: 9.0}),
        record("rope", {512: 4.0, 8192: 7.0}, block_size=512),
    ]
    assert [
        (verdict.claim.split(":")[0], verdict.holds)
        for verdict in claims.judge_perplexity(columns_of(records))
    ] == [
        ("quickstart, trained with 256 tokens", True),
        ("quickstart, trained with 512 tokens", False),
    ]


PRINTED = PaperTable(
    "CABLE, table 9",
    "Perplexity",
    "wikitext103",
    "tiny",
    1024,
    {
        "cable": {512: 10.0, 1024: 10.0},
        "t5": {512: 11.0, 1024: 10.04},
        "rope": {512: 12.0, 1024: 9.0},
    },
)


def test_order_of_the_papers_table():
    """At 0.5x cable < t5 < rope; at 1x rope < cable and rope < t5, while cable and t5 are too close to have an order."""

    def orders(cable, t5, rope):
        records = [
            record(pe, {128: a, 256: b})
            for pe, (a, b) in (("cable", cable), ("t5-clip", t5), ("rope", rope))
        ]
        return [
            (verdict.measured, verdict.holds)
            for verdict in claims.judge_perplexity(columns_of(records), PRINTED)[-2:]
        ]

    assert orders((4, 4), (5, 3.9), (6, 3)) == [
        ("3 of 3 pairs agree", True),
        ("2 of 2 pairs agree", True),
    ]
    assert orders((4, 4), (7, 3.9), (6, 5)) == [
        ("2 of 3 pairs agree", False),
        ("0 of 2 pairs agree", False),
    ]


def test_what_is_missing_of_the_papers_table_is_not_measured():
    found = {
        verdict.claim: verdict
        for verdict in claims.judge_perplexity(
            columns_of([record("rope", {256: 4.0, 4096: 9.0})]), PRINTED
        )
    }
    missing = found["cable: perplexity at 16x / perplexity at 1x <= 1.02 (CABLE)"]
    assert missing.holds is None and str(missing).endswith("(CABLE): **not measured**")


def test_generalization_asks_for_the_best_of_each_measure():
    found = {
        "HellaSwag acc": {("small", "cable-v1"): 31.0, ("small", "rope"): 30.0},
        "acc_norm": {("small", "rope"): 33.0},
        "fineweb": {
            ("small", "cable-v1"): 33.5,
            ("small", "rope"): 45.0,
            ("small", "alibi"): 33.25,
            ("medium", "cable-v1"): 20.0,
        },
    }
    assert [str(verdict) for verdict in claims.judge_generalization(found)] == [
        "small: cable-v1 has the highest HellaSwag acc (CABLE, version 1): 31.00, next rope 30.00: **holds**",
        "small: cable-v1 has the lowest perplexity on fineweb (CABLE, version 1): 33.50, next alibi 33.25: **fails**",
    ]


def test_whatever_the_training_length():
    ours = [record("cable-v1", {512: 5.0, 1024: 4.0}, block_size=size) for size in (512, 1024)]
    theirs = [
        record("sinusoidal", {512: 5.5, 1024: far}, block_size=size)
        for size, far in ((512, 9.0), (1024, 4.2))
    ]
    assert str(claims.judge_perplexity(columns_of(ours + theirs))[-1]).endswith(
        "sinusoidal is at least 1.050 times as high: **holds**"
    )
    theirs[1]["lengths"]["512"]["perplexity"] = 4.9
    assert claims.judge_perplexity(columns_of(ours + theirs))[-1].holds is False
    assert not any(
        "every pair of training lengths" in verdict.claim
        for verdict in claims.judge_perplexity(columns_of(ours + theirs[:1]))
    )


def encoders(**values):
    """Records of retrieval.evaluate: nDCG@10 at 1x, 4x and 32x of 64 tokens, none where an encoding ends."""
    return make_columns(
        [
            {
                "run": pe,
                "pe": pe,
                "size": "small",
                "block_size": 64,
                "seed": 1,
                "metric": "nDCG@10",
                "data": {},
                "lengths": {
                    str(64 * multiple): None if value is None else {"ndcg10": value}
                    for multiple, value in zip((1, 4, 32), found)
                },
            }
            for pe, found in values.items()
        ],
        "ndcg10",
    )


def test_retrieval():
    columns = encoders(
        cable=(15.0, 16.0, 25.0),
        alibi=(14.0, 16.5, 13.0),
        rope=(15.5, 9.0, 0.1),
        learnable=(10.0, None, None),
    )
    assert [str(verdict) for verdict in claims.judge_retrieval(columns)] == [
        "cable: nDCG@10 at 32x / nDCG@10 at 1x > 1 (CABLE, table 3): 1.667: **holds**",
        "alibi: nDCG@10 at 32x / nDCG@10 at 1x > 1 (CABLE, table 3): 0.929: **fails**",
        "rope: nDCG@10 at 32x / nDCG@10 at 1x < 0.25 (CABLE, table 3): 0.006: **holds**",
        "cable: nDCG@10 higher than alibi, rope, learnable at every length beyond the training length (CABLE, table 3): "
        "smallest margin -0.50: **fails**",
    ]
    alone = claims.judge_retrieval(encoders(cable=(15, 16, 25), learnable=(10, None, None)))[-1]
    assert str(alone).endswith("(CABLE, table 3): **not measured**")
    assert claims.judge_retrieval(encoders(alibi=(1, 2, 3), cable=(1, 3, 4)))[-1].holds
