"""Verdicts on claims, from columns of every kind.

Most claims compare an encoding with itself at another length, or with
others at the same lengths: `_compare`. Others are on runs of several
training lengths.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from evaluation import intervals
from evaluation.measures import MEASURES
from evaluation.significance import BETTER, WORSE
from reporting.claims.claim import (
    ALONE,
    BENCHED,
    FAR_MULTIPLES,
    UNDECIDED,
    Claim,
    Comparisons,
    Verdict,
    decide,
    has_verdicts,
    load,
    printed_interval,
)
from reporting.claims.quantities import (
    Comparison,
    accuracy_and_perplexity,
    compare,
    loss_columns,
    receptive_field,
    speed_columns,
)
from reporting.columns import Column, dataset_of, group_by_protocol, make_columns, setup_of
from reporting.paper import SANDWICH, Printed, has_same_targets

FAR = FAR_MULTIPLES[0]
# An encoding of another paper, and the name of the same encoding in
# version 1.
CLAIMED_AS = {"fox": "cable-v1"}
ALIBI_SLOPES = "alibi-shift with scaled slopes"  # an encoding: see `_claimed_names`
SANDWICH_LENGTH = 512  # training length of the Sandwich paper
SMALLEST = {  # multiple of the training length
    "every length": 0,
    "every length from the training length on": 1,
    "every length beyond the training length": 2,
}
# Printed for another encoding relative to the claim's.
OTHERS_FIRST = ("perplexity", "accuracy", "training loss", "final training loss")
SIZES = ("small", "medium")  # of the papers' statements on speed
# Scripts divide the paper's lengths by these, and use networks of other
# sizes.
SCALES = (1, 4, 32)

Measured = Iterator[tuple[Claim, Comparisons]]


def judge_perplexity(
    columns: list[Column], printed: Printed | None = None, **evidence
) -> list[Verdict]:
    """Return verdicts on decoders.

    Claims of the Sandwich paper are judged by its protocol only, those
    on its marks if the table with them is `printed`.
    """
    first = columns[0].records[0]  # all columns have one protocol
    if "objective" in first:
        return []
    models = ("growth", "lower", "growth_on_data", "lower_on_data")
    verdicts = _judge_models(_rows(*models), columns)
    verdicts += _judge(_rows("longer_training"), _longer_training, columns)
    verdicts += _judge(_rows("all_training_lengths"), _all_training_lengths, columns)
    if printed:
        verdicts += _judge(_rows("seed_marks"), _seed_marks, columns, printed)
    is_of_sandwich = has_same_targets(first)
    return [each for each in verdicts if is_of_sandwich or each.paper != SANDWICH]


def judge_retrieval(columns: list[Column], **evidence) -> list[Verdict]:
    """Return verdicts on the nDCG@10 of encoders (CABLE, table 3)."""
    return _judge_models(_rows("retrieval_growth", "retrieval_best"), columns)


def judge_generalization(
    records: list[dict], may_differ: tuple[str, ...] = ()
) -> list[Verdict]:
    """Return verdicts on data that models were not trained on.

    records: see accuracy_and_perplexity; those of one text are
    compared.
    """
    verdicts = []
    by_measure = accuracy_and_perplexity(records)
    for claim in _rows("other_data"):
        for group in group_by_protocol(by_measure.get(claim.data, [])):
            verdicts += _judge_models([claim], make_columns(group, "value", may_differ))
    return verdicts


def judge_losses(record: dict) -> list[Verdict]:
    """Return verdicts on the encoders of `plot.py losses` (CABLE, figures 6, 7)."""
    runs = [run for run in record["runs"] if has_verdicts(run)]
    if not runs or any(run["objective"] != "mlm" for run in runs):
        return []
    claims = [claim for claim in _rows("losses") if claim.data == record["training"]]
    return _judge_models(claims, loss_columns(runs))


def judge_speed(benchmark: str, result: dict) -> list[Verdict]:
    """Return verdicts on one benchmark of a record of bench.py."""
    claims = [claim for claim in _rows("speed") if claim.benchmark == benchmark]
    if result["model"] in SIZES:
        claims = [claim for claim in claims if claim.size in (None, result["model"])]
    claims = [_on_device(claim, result) for claim in claims]
    return _judge_models(claims, speed_columns(result))


def judge_training_lengths(columns: list[Column], speeds: list[dict]) -> list[Verdict]:
    """Return verdicts on pairs of runs of different training lengths.

    columns: of perplexity; speeds: results of the benchmark train of
    bench.py.
    """
    return _judge(_rows("shorter_training"), _shorter_training, columns, speeds)


def judge_receptive_fields(
    columns: list[Column], perplexities: list[list[Column]], **evidence
) -> list[Verdict]:
    """Return verdicts on sliding windows (Sandwich, section 5).

    columns: of receptive fields; perplexities: columns of perplexity.
    The first one of the same model that was evaluated far enough
    counts.
    """
    shorter, longer = _rows("windows")
    verdicts = []
    for column in columns:
        lengths = [*filter(column.values, column.lengths())]
        if not lengths or not _is_variant(column.pe, "window"):
            continue
        field = receptive_field(column, lengths[-1])
        text = f"receptive field {printed_interval(field, 2)} training lengths"
        claim = (shorter if field.estimate <= 1 else longer).but(encoding=column.label)
        model = setup_of(column.records[0])
        trained_at = column.trained_at
        known = sum(perplexities, [])
        same = [each for each in known if setup_of(each.records[0]) == model]
        for other, far in itertools.product(same, FAR_MULTIPLES):
            ends = far * trained_at, trained_at
            growth = compare((other, other), ends, intervals.perplexity_ratio)
            if verdict := decide(claim.but(at=[far]), {("", text): growth}):
                if not field.below(1) and not field.above(1):
                    verdict.outcome = UNDECIDED
                verdicts.append(verdict)
                break
    return verdicts


def _rows(*sections: str) -> list[Claim]:
    return [claim for section in sections for claim in load()[section]]


def _judge(claims: list[Claim], measure: Callable[..., Measured], *args) -> list[Verdict]:
    """Return the verdicts on those claims that were measured."""
    verdicts = [decide(*found) for claim in claims for found in measure(claim, *args)]
    return [verdict for verdict in verdicts if verdict]


def _judge_models(claims: list[Claim], columns: list[Column]) -> list[Verdict]:
    """Return verdicts on the models of each size and training length."""
    models = {}
    for column in columns:
        model = column.records[0].get("size"), column.trained_at
        models.setdefault(model, []).append(column)
    found = [_judge(claims, _compare, model, columns) for model in models.values()]
    return sum(found, [])


def _compare(claim: Claim, model: list[Column], columns: list[Column]) -> Measured:
    """Compare an encoding with the others that were measured, or with itself at 1x.

    model: columns of one size and training length. If it has none of
    the others, those of other models are not comparable.
    """
    record, first = model[0].records[0], _first(model)
    is_of_data = not claim.datasets or dataset_of(record) in claim.datasets
    ours = first.get(claim.encoding)
    if ours is None or not is_of_data or record.get("size") in claim.except_sizes:
        return
    multiples = _multiples(claim, model) if claim.at else [1]
    if claim.at and not isinstance(claim.at, str):
        claim = claim.but(at=multiples)
    found = [first[pe] for pe in (claim.encoding, *claim.others) if pe in first]
    if labels := [column.label for column in found if column.label != column.pe]:
        claim = claim.but(what=f"{' and '.join(labels)}: {claim.what}")
    trained_at, measure = ours.trained_at, MEASURES[claim.quantity]
    if not claim.others:
        ends = multiples[0] * trained_at, trained_at
        yield claim, {ALONE: compare((ours, ours), ends, measure)}
        return
    if not first.keys() & {*claim.others}:
        first = {pe: each for pe, each in _first(columns).items() if ours.differing(each)}
    unit = " tokens" if claim.quantity in BENCHED else "x"
    comparisons = {}
    for pe, multiple in itertools.product(claim.others, multiples):
        if pe in first:
            place = f"at {multiple:,g}{unit}" if claim.at else ""
            is_first = claim.quantity in OTHERS_FIRST
            pair = (first[pe], ours) if is_first else (ours, first[pe])
            lengths = multiple * trained_at, multiple * trained_at
            comparisons[pe, place] = compare(pair, lengths, measure)
    yield claim, comparisons


def _claimed_names(column: Column) -> list[str]:
    """Return the names of an encoding in claims.

    ALIBI_SLOPES: the shift that scales ALiBi's slopes with the training
    length, as in scripts/sandwich_table1_2_4.sh.
    """
    shift = min(0, round(math.log2(column.trained_at / SANDWICH_LENGTH)))
    is_scaled = column.pe == f"alibi-shift:shift={shift}"
    names = [column.pe, CLAIMED_AS.get(column.pe, column.pe)]
    return [*names, ALIBI_SLOPES] if is_scaled else names


def _first(columns: list[Column]) -> dict[str, Column]:
    """Return the first column of each encoding by its names in claims."""
    return {name: column for column in columns[::-1] for name in _claimed_names(column)}


def _multiples(claim: Claim, columns: list[Column]) -> list[float]:
    """Return the multiples of the training length of a comparison, ascending.

    FAR is the first of FAR_MULTIPLES that was measured. "Every length"
    of a perplexity ends there: figure1.sh evaluates up to 128 times the
    length.
    """
    measured = set()
    for column in columns:
        lengths = filter(column.values, column.lengths())
        measured |= {length / column.trained_at for length in lengths}
    if not isinstance(claim.at, str):
        far = next((far for far in FAR_MULTIPLES if far in measured), FAR)
        return sorted(far if multiple == FAR else multiple for multiple in claim.at)
    farthest = FAR if claim.quantity == "perplexity" else math.inf
    whole = [m for m in sorted(measured) if m < 1 or (m == int(m) and m <= farthest)]
    return [multiple for multiple in whole if multiple >= SMALLEST[claim.at]]


def _is_variant(pe: str, name: str) -> bool:
    """Return whether `pe` is an encoding with options, on all heads and layers."""
    base, _, options = pe.partition(":")
    return base == name and not re.search("heads|[+@]", options)


def _longer_training(claim: Claim, columns: list[Column]) -> Measured:
    """Compare the longest with the shortest context, given two training lengths."""
    has_lengths = len({column.trained_at for column in columns}) > 1
    for column in columns if has_lengths else ():
        lengths = [*filter(column.values, column.lengths())]
        if lengths and _is_variant(column.pe, claim.encoding):
            ends = lengths[-1], lengths[0]
            growth = compare((column, column), ends, intervals.perplexity_ratio)
            what = f"{column.label}, {ends[1]:,} to {ends[0]:,} tokens: "
            yield claim.but(what=what), {ALONE: growth}


def _all_training_lengths(claim: Claim, columns: list[Column]) -> Measured:
    """Compare encodings that were trained at several lengths, at those of the other."""
    ours = [column for column in columns if claim.encoding in _claimed_names(column)]
    theirs = [column for column in columns if column.pe in claim.others]
    trained_at = [{column.trained_at for column in group} for group in (ours, theirs)]
    if min(map(len, trained_at)) < 2:
        return
    ratios = {}
    for other, column in itertools.product(theirs, ours):
        length = other.trained_at
        if column.trained_at <= length:
            place = f"{other.label} and {column.label} at {length:,} tokens"
            pair, lengths = (other, column), (length, length)
            ratio = compare(pair, lengths, intervals.perplexity_ratio, "block_size")
            ratios["", place] = ratio
    yield claim, ratios


def _seed_marks(claim: Claim, columns: list[Column], printed: Printed) -> Measured:
    """Compare encodings that have the claim's mark in a paper with its reference.

    At the same multiples of the training length, over at least two
    seeds.
    """
    columns = [column for column in columns if column.pe in printed.numbers]
    reference = _first(columns).get(claim.encoding)
    has_seeds = all(len(column.records) > 1 for column in columns)
    if reference is None or printed.dataset != claim.data or not has_seeds:
        return
    mark = BETTER if claim.relation == ">" else WORSE
    differences = {}
    for column, context in itertools.product(columns, printed.contexts):
        if printed.number(column.pe, context).mark == mark:
            length = context * column.trained_at / printed.lengths[column.pe]
            differences["", f"{column.label} at {length:,g} tokens"] = compare(
                (column, reference), (length, length), MEASURES["perplexity over seeds"]
            )
    yield claim, differences


class Pair(NamedTuple):
    """A claim's quantity of two runs, at the training length of the second."""

    claim: Claim
    """with the training lengths of the runs"""
    columns: Sequence[Column]
    """of the runs, or of bench.py"""
    lengths: tuple[int, int]
    ratio: Comparison


def _shorter_training(claim: Claim, columns: list[Column], speeds: list[dict]) -> Measured:
    for pair in find_pairs(claim, columns, speeds):
        yield pair.claim, {ALONE: pair.ratio}


def find_pairs(claim: Claim, columns: list[Column], speeds: list[dict]) -> Iterator[Pair]:
    """Yield pairs of runs, at the paper's lengths or a scale of them.

    At the paper's lengths they have its size and data set. Memory and
    time are those of training steps with the same number of sequences.
    """
    names = (claim.encoding, *claim.others)
    measure = MEASURES[claim.quantity]
    for scale, *runs in itertools.product(SCALES, columns, columns):
        first, second = claim.trained_at // scale, claim.other_trained_at // scale
        models = [(run.pe, run.trained_at) for run in runs]
        sizes = {run.records[0].get("size") for run in runs}
        has_size = len(sizes) == 1 and sizes.isdisjoint(claim.except_sizes)
        if scale == 1:
            data = dataset_of(runs[0].records[0])
            has_size &= sizes == {claim.size} and data in claim.datasets
        is_pair = models == [*zip(names, (first, second), strict=True)]
        if not (is_pair and has_size and all(run.values(second) for run in runs)):
            continue
        scaled = claim.but(trained_at=first, other_trained_at=second)
        evidence = [(scaled, runs, (second, second))]
        if claim.quantity in BENCHED:
            evidence = []
            for result in speeds:
                benched = {column.pe: column for column in speed_columns(result)}
                if benched.keys() >= {*names}:
                    pair = [benched[pe] for pe in names]
                    evidence.append((_on_device(scaled, result), pair, (first, second)))
        for each, pair, lengths in evidence:
            ratio = compare((pair[0], pair[1]), lengths, measure, "block_size")
            if ratio is not None:
                yield Pair(each, pair, lengths, ratio)


def _on_device(claim: Claim, result: dict) -> Claim:
    """Return a claim that says so on a CPU: the papers measured GPUs."""
    is_cpu = result["device"].startswith("cpu")
    return claim.but(wording=f"on a CPU: {claim.wording}") if is_cpu else claim
