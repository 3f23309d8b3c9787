"""Claims on the receptive fields of sliding windows (Sandwich, section 5)."""

import re

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.claim import Claim, compare, decide, load
from reporting.claims.verdicts import FAR_MULTIPLES, UNDECIDED, Verdict, printed_interval
from reporting.columns import Column, setup_of


def judge_receptive_fields(
    columns: list[Column], perplexities: list[list[Column]], **evidence
) -> list[Verdict]:
    """Return verdicts on the receptive fields of sliding windows.

    columns: of receptive fields; perplexities: columns of perplexity, one list per data set and
    protocol. The first column of the same model that was evaluated far enough counts.
    """
    verdicts = []
    shorter, longer = load()["windows"]
    for column in columns:
        lengths = [*filter(column.values, column.lengths())]
        if not lengths or not re.fullmatch("window(:[^+@]*)?", column.pe):
            continue
        field = receptive_field(column, lengths[-1])
        claim = (shorter if field.estimate <= 1 else longer).but(encoding=column.label)
        verdict = _judge_growth(claim, field, column, sum(perplexities, []))
        if verdict and not field.below(1) and not field.above(1):
            verdict.outcome = UNDECIDED
        verdicts += filter(None, [verdict])
    return verdicts


def receptive_field(column: Column, length: int) -> Interval:
    """Return the receptive field at a context length that was evaluated, in training lengths."""
    entries = column.entries_by_seed(length).values()
    values = [entry["receptive_field"] for entry in entries]
    errors = [entry.get("receptive_field_se") for entry in entries]
    windows = column.records[0]["protocol"]["windows"]
    return intervals.mean_interval(values, errors, windows).scaled(1 / column.trained_at)


def _judge_growth(
    claim: Claim, field: Interval, column: Column, perplexities: list[Column]
) -> Verdict | None:
    """Return the verdict on the perplexity of a column's model far beyond the training length."""
    model, trained_at = setup_of(column.records[0]), column.trained_at
    for other in perplexities:
        for far in FAR_MULTIPLES if setup_of(other.records[0]) == model else ():
            ends = far * trained_at, trained_at
            if growth := compare((other, other), ends, intervals.perplexity_ratio):
                text = f"receptive field {printed_interval(field, 2)} training lengths"
                return decide(claim.but(at=[far]), {("", text): growth})
    return None
