"""Verdicts on speed, memory and training lengths, from records with known numbers."""

import math

import pytest
from test_report import record

from reporting import paper
from reporting.claims import judges
from reporting.claims.claim import load
from reporting.claims.judges import find_pairs
from reporting.claims.paper_tables import training_length_table
from reporting.columns import make_columns

ROUNDS = (1.0, 1.01, 0.99, 1.0)


def entry(seconds, tokens=512, memory=1000, rounds=ROUNDS):
    """Return an entry whose rounds take `seconds`, while rope takes one second."""
    seconds = [seconds * factor for factor in rounds]
    rope = [1.0] * len(rounds)
    ratios = {"rope": sorted(1 / x for x in seconds)[len(rounds) // 2]}
    values = {"tokens": tokens, "memory": memory, "mfu": None}
    values["tokens_per_second"] = tokens / sorted(seconds)[len(rounds) // 2]
    return {"seconds": seconds, "others": {"rope": rope}, "ratios": ratios, **values}


def result(by_encoding, context=512, device="cuda:0 (H100)"):
    contexts = {str(context): {"rope": entry(1, rounds=(1.0,) * 4), **by_encoding}}
    settings = {"model": "tiny", "micro_batch": 4, "dtype": "bfloat16", "repeats": 4}
    return {"device": device, "contexts": contexts, **settings}


@pytest.mark.parametrize("row", load()["speed"], ids=lambda row: row.unmeasured().claim)
def test_bounds(row):
    """Inside, at the bound (memory is exact), outside; others take a second and 1000 bytes."""
    inside, outside = {"<": (0.95, 1.05), ">": (1.05, 0.95), "~": (0.97, 1.05)}[row.relation[0]]
    for factor, outcome in ((inside, "holds"), (1, "not decided"), (outside, "fails")):
        ratio = factor * row.bound
        own = entry(1 / ratio) if row.quantity == "speed" else entry(1, memory=1000 * ratio)
        others = {pe: entry(1) for pe in row.others if pe != "rope"}
        context = round(row.at[0]) if isinstance(row.at, list) else 512
        judged = judges.judge_speed(row.benchmark, result({row.encoding: own} | others, context))
        (verdict,) = [verdict for verdict in judged if verdict.key == row.key]
        assert verdict.outcome == outcome or (row.quantity, factor) == ("memory", 1)


def test_claims_are_judged_on_the_size_of_their_section():
    """Section 5.2 is of medium and 5.3 of small; networks of another size are judged on both."""
    values = {"cable": entry(1), "alibi": entry(1), "dapev2+cable": entry(4)}
    for model, sections in (
        ("medium", {"section 5.2, our bound", "section 5.2"}),
        ("small", {"section 5.3"}),
        ("tiny", {"section 5.2, our bound", "section 5.2", "section 5.3"}),
    ):
        made = result(values) | {"model": model}
        verdicts = judges.judge_speed("train", made)
        judged = {v.where for v in verdicts if v.paper == "CABLE"}
        assert judged == sections


def compared_runs(ours=16.10, theirs=16.75, scale=1, size="medium", dataset="fineweb-edu-bytes"):
    """Return columns of the abstract's two runs, evaluated at 1,024 tokens over scale."""
    columns = []
    for pe, trained_at, perplexity in (("cable-v1", 512, ours), ("sinusoidal", 1024, theirs)):
        made = record(pe, {1024 // scale: perplexity}) | {"size": size}
        made["data"] = made["data"] | {"dataset": dataset}
        made["lengths"][str(1024 // scale)]["blocks"] = [math.log(perplexity)] * 8
        columns += make_columns([made | {"block_size": trained_at // scale}], "perplexity")
    return columns


def training_steps():
    """48% less memory and 3.5% more time per token."""
    ours = entry(0.5 * 1.035, tokens=512, memory=519_999_999)
    theirs = entry(1.0, tokens=1024, memory=1_000_000_000)
    contexts = {
        "512": {"cable-v1": ours, "sinusoidal": theirs},
        "1024": {"cable-v1": ours, "sinusoidal": theirs},
    }
    return result({}) | {"contexts": contexts}


def test_headline_is_compared_with_the_paper_s():
    printed = paper.load("cable_v1_training-lengths")
    table = training_length_table(compared_runs(), [training_steps()], printed)
    rows = [[row[0], *row[2:6:2], row[5], row[7]] for row in table.cells[1:]]
    assert rows == [
        ["perplexity at 1,024", "16.10", "16.75", "-0.65", "-0.65"],
        ["memory (MB)", "520.0", "1,000.0", "-48.0%", "-48%"],
        ["time per token (µs)", "1,010.7", "976.5", "+3.5%", "+3.5%"],
    ]
    assert "geometric means" in table.caption
    verdicts = judges.judge_training_lengths(compared_runs(), [training_steps()])
    assert [verdict.outcome for verdict in verdicts] == ["holds", "holds", "not decided"]
    verdicts = judges.judge_training_lengths(compared_runs(ours=16.8), [])
    assert [verdict.outcome for verdict in verdicts] == ["fails"]
    assert {(verdict.paper, verdict.where) for verdict in verdicts} == {
        ("CABLE, version 1", "abstract")
    }


def test_pairs_have_the_paper_s_lengths_or_a_scale_of_them():
    headline = load()["shorter_training"][0]

    def count(**settings):
        return len([*find_pairs(headline, compared_runs(**settings), [])])

    assert count() == 1
    assert not count(size="tiny")  # the abstract's runs are of size medium
    assert not count(dataset="wikitext103")
    assert count(scale=4, size="quickstart", dataset="toy") == 1
    assert not count(scale=2)
