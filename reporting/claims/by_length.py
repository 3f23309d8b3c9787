"""Claims on perplexity and on nDCG@10 by context length."""

import itertools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval
from evaluation.significance import BETTER, WORSE
from reporting.claims.claim import (
    ALONE,
    CLAIMED_AS,
    Claim,
    Comparison,
    Measured,
    compare,
    judge,
    name_runs,
)
from reporting.claims.verdicts import FAR_MULTIPLES, Verdict
from reporting.columns import Column, dataset_of
from reporting.paper import MARKS_REFERENCE, SANDWICH, PaperTable, has_same_targets
from reporting.tables import seed_marks

FAR = FAR_MULTIPLES[0]
ALIBI_SLOPES = "alibi-shift with scaled slopes"  # an encoding: see `_claimed_names`
SANDWICH_LENGTH = 512  # training length of the Sandwich paper
# The least multiple of the training length in a list of lengths; those above 1 are whole.
SMALLEST = {
    "every length": 0,
    "every length from the training length on": 1,
    "every length beyond the training length": 2,
}
# Options and patterns that make another encoding, about which no paper has claims.
OTHER_ENCODING = re.compile("[:,]heads|@")

Pairs = list[tuple[dict, dict]]  # entries of two columns, or of two lengths, for each seed


@dataclass
class Quantity:
    """What is compared, by the entries of records."""

    growth: Callable[[Pairs], Interval]
    """of (entry at a longer context, entry at the training length)"""
    against: Callable[[Pairs], Interval]
    """of (entry of another encoding, entry of the encoding)"""
    farthest: float
    """multiple of the training length at which "every length" ends"""


def _score_growth(pairs: Pairs) -> Interval:
    return intervals.score_ratio(_by_question(pairs))


def _score_margin(pairs: Pairs) -> Interval:
    return intervals.score_difference([(ours, other) for other, ours in _by_question(pairs)])


def _by_question(pairs: Pairs) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the scores of the queries, which the bootstrap draws."""
    return [(np.array(a["by_question"]), np.array(b["by_question"])) for a, b in pairs]


# No claim of the papers is on a longer multiple; figure1.sh evaluates up to 128.
PERPLEXITY = Quantity(intervals.perplexity_ratio, intervals.perplexity_ratio, FAR)
NDCG = Quantity(_score_growth, _score_margin, math.inf)


def judge_perplexity(
    columns: list[Column], printed: PaperTable | None = None, **evidence
) -> list[Verdict]:
    """Return verdicts on the encodings in columns; [] for encoders.

    Claims of the Sandwich paper are judged by its protocol only, those on its marks if the table
    with them is `printed`.
    """
    first = columns[0].records[0]  # all columns have one protocol
    if "objective" in first:
        return []
    sections = ("growth", "lower", "growth_on_data", "lower_on_data")
    verdicts = _judge_models(sections, columns, PERPLEXITY)
    verdicts += judge(["longer_training"], _longer_training, columns)
    verdicts += judge(["all_training_lengths"], _all_training_lengths, columns)
    verdicts += judge(["seed_marks"], _seed_marks, columns, printed)
    is_of_sandwich = has_same_targets(first)
    return [each for each in verdicts if is_of_sandwich or each.paper != SANDWICH]


def judge_retrieval(columns: list[Column], **evidence) -> list[Verdict]:
    """Return verdicts on the nDCG@10 of encoders (CABLE, table 3)."""
    return _judge_models(("retrieval_growth", "retrieval_best"), columns, NDCG)


def _judge_models(
    sections: Iterable[str], columns: list[Column], quantity: Quantity
) -> list[Verdict]:
    """Return verdicts; models that differ in size or training length are judged separately."""
    models = {}
    for column in columns:
        model = column.records[0].get("size"), column.trained_at
        models.setdefault(model, []).append(column)
    verdicts = []
    for (size, trained_at), group in models.items():
        prefix = f"{size}, trained with {trained_at:,} tokens: " if len(models) > 1 else ""
        verdicts += judge(sections, _at_multiples, group, columns, quantity, prefix)
    return verdicts


def _claimed_names(column: Column) -> list[str]:
    """Return the names of an encoding in claims.

    ALIBI_SLOPES: the shift that scales ALiBi's slopes with the training length, as in
    scripts/sandwich_table1_2_4.sh.
    """
    shift = min(0, round(math.log2(column.trained_at / SANDWICH_LENGTH)))
    is_scaled = column.pe == f"alibi-shift:shift={shift}"
    return [column.pe, CLAIMED_AS.get(column.pe, column.pe), *([ALIBI_SLOPES] * is_scaled)]


def _first(columns: list[Column]) -> dict[str, Column]:
    """Return the first column of each encoding by its names in claims."""
    return {name: column for column in columns[::-1] for name in _claimed_names(column)}


def _multiples(at: list[float] | str, columns: list[Column], farthest: float) -> list[float]:
    """Return the multiples of a comparison, ascending; of lengths: all that were evaluated.

    For FAR, that of FAR_MULTIPLES which was evaluated.
    """
    measured = sorted(
        {
            length / column.trained_at
            for column in columns
            for length in filter(column.values, column.lengths())
        }
    )
    if isinstance(at, list):
        far = next((far for far in FAR_MULTIPLES if far in measured), FAR)
        return sorted(far if multiple == FAR else multiple for multiple in at)
    whole = [m for m in measured if m < 1 or (m == int(m) and m <= farthest)]
    return [multiple for multiple in whole if multiple >= SMALLEST[at]]


def _at_multiples(
    claim: Claim, model: list[Column], columns: list[Column], quantity: Quantity, prefix: str
) -> Measured:
    """Compare an encoding with those of the others that were evaluated, or with itself at 1x.

    model: columns of one size and training length. If it has none of the others, those of other
    models are not comparable.
    """
    record, first = model[0].records[0], _first(model)
    is_of_data = not claim.datasets or dataset_of(record) in claim.datasets
    ours = first.get(claim.encoding)
    if ours is None or not is_of_data or record.get("size") in claim.except_sizes:
        return
    multiples = _multiples(claim.at, model, quantity.farthest)
    claim = claim.but(prefix=prefix, at=claim.at if isinstance(claim.at, str) else multiples)
    claim = name_runs(claim, first, model)
    trained_at = ours.trained_at
    if not claim.others:
        ends = multiples[0] * trained_at, trained_at
        yield claim, {ALONE: compare((ours, ours), ends, quantity.growth)}
        return
    others = first
    if not first.keys() & {*claim.others}:
        others = {pe: each for pe, each in _first(columns).items() if ours.differing(each)}

    def against(other: str, multiple: float) -> Comparison:
        length = multiple * trained_at
        return compare((others[other], ours), (length, length), quantity.against)

    places = {f"at {multiple:g}x": multiple for multiple in multiples}
    yield from claim.against({claim.encoding, *others}, places, against)


def _longer_training(claim: Claim, columns: list[Column]) -> Measured:
    """Compare the longest with the shortest context, if the models have two training lengths."""
    has_lengths = len({column.trained_at for column in columns}) > 1
    for column in columns if has_lengths else ():
        lengths = [*filter(column.values, column.lengths())]
        is_claimed = column.pe.partition(":")[0] == claim.encoding
        if is_claimed and lengths and not OTHER_ENCODING.search(column.pe):
            ends = lengths[-1], lengths[0]
            growth = compare((column, column), ends, intervals.perplexity_ratio)
            what = f"{column.label}, {ends[1]:,} to {ends[0]:,} tokens: "
            yield claim.but(what=what), {ALONE: growth}


def _all_training_lengths(claim: Claim, columns: list[Column]) -> Measured:
    """Compare two encodings, if both were trained at several lengths.

    The other counts at its training lengths only, the first from its training length on.
    """
    ours = [column for column in columns if claim.encoding in _claimed_names(column)]
    theirs = [column for column in columns if column.pe in claim.others]
    if any(len({column.trained_at for column in group}) < 2 for group in (ours, theirs)):
        return
    ratios = {}
    for other, column in itertools.product(theirs, ours):
        length = other.trained_at
        if column.trained_at <= length and column.values(length) and other.values(length):
            ratios["", f"{other.label} and {column.label} at {length:,} tokens"] = compare(
                (other, column), (length, length), intervals.perplexity_ratio, "block_size"
            )
    yield claim, ratios


def _seed_marks(claim: Claim, columns: list[Column], printed: PaperTable | None) -> Measured:
    """Compare the reference of the paper's marks with the encodings that have the claim's mark.

    At the same multiples of the training length. A paired t-test over seeds is significant if the
    interval of the differences is on one side of 0. Cells without a mark are no claim.
    """
    if printed is None or printed.dataset != claim.data:
        return
    columns = [column for column in columns if printed.covers(column.pe)]
    marks = seed_marks(columns, MARKS_REFERENCE)  # {}: not enough seeds
    reference = [column for column in columns if column.pe == MARKS_REFERENCE]
    mark = BETTER if claim.relation == ">" else WORSE
    differences = {}
    for column, context in itertools.product(columns, printed.contexts()):
        length = context * column.trained_at / printed.training_length(column.pe)
        is_claimed = printed.mark(column.pe, context) == mark
        if is_claimed and (column.label, length) in marks:
            ours = reference[0].values_by_seed(int(length))
            theirs = column.values_by_seed(int(length))
            values = [theirs[seed] - ours[seed] for seed in ours if seed in theirs]
            name = f"{column.label} at {length:,g} tokens"
            differences["", name] = intervals.over_seeds(values, (0, 0))
    yield claim, differences
