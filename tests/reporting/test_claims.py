"""Verdicts on records with known numbers."""

import pytest
from test_report import record

from reporting import claims
from reporting.columns import make_columns
from reporting.paper import PaperTable


def judge(records, printed=None):
    return claims.judge_perplexity(make_columns(records, "perplexity"), printed)


def results(*records):
    return [verdict.holds for verdict in judge(list(records))]


def texts(records):
    return [str(verdict) for verdict in judge(records)]


def test_claims_of_the_quick_start():
    """cable <= 1.02, rope and sinusoidal > 2, and cable the lowest at 4x and beyond."""
    cable = record("cable", {256: 4.0, 1024: 4.0, 4096: 4.08})
    rope = record("rope", {256: 3.9, 1024: 5.0, 4096: 8.01})
    sinusoidal = record("sinusoidal", {256: 4.0, 1024: 9.0, 4096: 8.01})
    assert results(cable, rope, sinusoidal) == [True] * 4
    growing = record("cable", {256: 4.0, 1024: 4.0, 4096: 4.09})
    assert results(growing, rope, sinusoidal) == [False, True, True, True]
    lower = record("rope", {256: 4.0, 1024: 3.9, 4096: 7.99})
    assert results(cable, lower, sinusoidal) == [True, False, True, False]
    assert results(cable) == [True]
    assert results(record("rope", {256: 4.0})) == [None]


def test_an_encoding_is_compared_with_the_rivals_that_were_evaluated():
    records = [
        record("rope", {256: 4.0, 4096: 9.0}),
        record("cable", {256: 4.2, 4096: 4.1}),
        record("rope+cable", {256: 3.9, 4096: 4.0}),
    ]
    assert texts(records)[-1] == (
        "rope+cable: perplexity lower than rope, cable at 1x, 16x (not in a paper): "
        "smallest ratio of another encoding to it: 1.025: **holds**"
    )


def test_seeds_count_by_their_mean():
    records = [
        record("rope", {256: 4.0, 4096: 4.0}, seed=1),
        record("rope", {256: 4.0, 4096: 20.0}, seed=2),
        record("rope+fox", {256: 2.0, 4096: 1.0}, seed=2),
        record("rope+fox", {256: 3.0, 4096: 1.0}, seed=3),
    ]
    assert texts(records) == [
        "rope: perplexity at 16x / perplexity at 1x > 2 (CABLE): "
        "3.000 (1.000 to 5.000 by seed): **holds**",
        "rope+fox: perplexity lower than rope at 1x, 16x (not in a paper): "
        "smallest ratio of another encoding to it: 1.600: **holds**",
    ]
    records[3]["seed"] = 1
    assert texts(records)[-1].endswith("encoding to it: 1.600 (1.333 to 2.000 by seed): **holds**")


def test_lengths_between_the_multiples_do_not_count():
    verdict = texts([record("rope", {256: 4.0, 4096: 9.0, 4200: 4.0})])[0]
    assert verdict.endswith("> 2 (CABLE): 2.250: **holds**")


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
def test_bounds_are_unchanged(pe, relation, bound):
    """They were fixed before the runs. Encodings just inside and just outside."""
    inside, outside = (
        results(record(pe, {256: 1000.0, 4096: 1000 * bound + change}))[0] for change in (-1, 1)
    )
    assert (inside, outside) == ((True, False) if relation == "<=" else (False, True))


def test_15x_counts_where_16x_was_not_evaluated():
    """15 times the training length is the longest context of the CABLE paper's tables."""
    records = [record("rope", {256: 4.0, 3840: 9.0}), record("rope+fox", {256: 3.0, 3840: 8.9})]
    assert texts(records) == [
        "rope: perplexity at 15x / perplexity at 1x > 2 (CABLE): 2.250: **holds**",
        "rope+fox: perplexity lower than rope at 1x, 15x (not in a paper): "
        "smallest ratio of another encoding to it: 1.011: **holds**",
    ]


def test_cable_has_the_lowest_perplexity_at_every_length_beyond():
    cable = record("cable", {256: 4.5, 512: 4.0, 4096: 4.0})
    kerple = record("kerple", {256: 4.0, 512: 4.1, 4096: 4.1})
    fox = record("fox", {256: 1.0, 512: 1.0, 4096: 1.0})
    assert results(cable, kerple, fox)[-1] is True
    lower = record("kerple", {256: 5.0, 512: 3.9, 4096: 9.0})
    assert results(cable, lower, fox)[-1] is False


def test_training_lengths_are_judged_separately():
    records = [
        record("rope", {256: 4.0, 4096: 9.0}),
        record("rope", {512: 4.0, 8192: 7.0}, block_size=512),
    ]
    verdicts = [(verdict.claim.split(":")[0], verdict.holds) for verdict in judge(records)]
    assert verdicts == [
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


def test_order_of_the_paper():
    """0.5x: cable < t5 < rope. 1x: rope < cable and rope < t5; cable and t5 are a tie."""

    def order_verdicts(**values):
        records = [
            record(pe.replace("_", "-"), dict(zip((128, 256), pair, strict=True)))
            for pe, pair in values.items()
        ]
        verdicts = judge(records, PRINTED)[-2:]
        return [(verdict.measured, verdict.holds) for verdict in verdicts]

    assert order_verdicts(cable=(4, 4), t5_clip=(5, 3.9), rope=(6, 3)) == [
        ("3 of 3 pairs agree", True),
        ("2 of 2 pairs agree", True),
    ]
    assert order_verdicts(cable=(4, 4), t5_clip=(7, 3.9), rope=(6, 5)) == [
        ("2 of 3 pairs agree", False),
        ("0 of 2 pairs agree", False),
    ]


def test_encodings_of_the_paper_without_records_are_not_measured():
    verdicts = judge([record("rope", {256: 4.0, 4096: 9.0})], PRINTED)
    by_claim = {verdict.claim: verdict for verdict in verdicts}
    missing = by_claim["cable: perplexity at 16x / perplexity at 1x <= 1.02 (CABLE)"]
    assert missing.holds is None
    assert str(missing).endswith("(CABLE): **not measured**")


def test_generalization_compares_the_best_of_each_measure():
    measured = {
        "HellaSwag acc": {("small", "cable-v1"): 31.0, ("small", "rope"): 30.0},
        "acc_norm": {("small", "rope"): 33.0},
        "fineweb": {
            ("small", "cable-v1"): 33.5,
            ("small", "rope"): 45.0,
            ("small", "alibi"): 33.25,
            ("medium", "cable-v1"): 20.0,
        },
    }
    assert [str(verdict) for verdict in claims.judge_generalization(measured)] == [
        "small: cable-v1 has the highest HellaSwag acc (CABLE, version 1): "
        "31.00, next rope 30.00: **holds**",
        "small: cable-v1 has the lowest perplexity on fineweb (CABLE, version 1): "
        "33.50, next alibi 33.25: **fails**",
    ]


def test_cable_v1_and_sinusoidal_are_compared_for_all_training_lengths():
    ours = [record("cable-v1", {512: 5.0, 1024: 4.0}, block_size=size) for size in (512, 1024)]
    theirs = [
        record("sinusoidal", {512: 5.5, 1024: far}, block_size=size)
        for size, far in ((512, 9.0), (1024, 4.2))
    ]
    assert texts(ours + theirs)[-1].endswith("smallest ratio of sinusoidal to it: 1.050: **holds**")
    theirs[1]["lengths"]["512"]["perplexity"] = 4.9
    assert judge(ours + theirs)[-1].holds is False
    one_length = judge(ours + theirs[:1])
    assert not any("every pair of training lengths" in verdict.claim for verdict in one_length)


def encoders(**values):
    """Return columns of nDCG@10 at 1x, 4x and 32x of 64 tokens; None where an encoding ends."""
    records = []
    for pe, numbers in values.items():
        lengths = {}
        for multiple, value in zip((1, 4, 32), numbers, strict=True):
            lengths[str(64 * multiple)] = None if value is None else {"ndcg10": value}
        records.append(
            {
                "run": pe,
                "pe": pe,
                "size": "small",
                "block_size": 64,
                "seed": 1,
                "metric": "nDCG@10",
                "data": {},
                "lengths": lengths,
            }
        )
    return make_columns(records, "ndcg10")


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
        "cable: nDCG@10 higher than alibi, rope, learnable at every length beyond the training "
        "length (CABLE, table 3): smallest margin -0.50: **fails**",
    ]
    without_rivals = encoders(cable=(15, 16, 25), learnable=(10, None, None))
    verdict = claims.judge_retrieval(without_rivals)[-1]
    assert str(verdict).endswith("(CABLE, table 3): **not measured**")
    higher = encoders(alibi=(1, 2, 3), cable=(1, 3, 4))
    assert claims.judge_retrieval(higher)[-1].holds
