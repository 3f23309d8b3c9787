"""Claims on the receptive fields of sliding windows (Sandwich, section 5)."""

import re

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.claim import ALONE, decide, load
from reporting.claims.verdicts import FAR_MULTIPLES, UNDECIDED, Verdict, printed_interval
from reporting.columns import Column, entry_pairs, setup_of

Pairs = list[tuple[dict, dict]]  # entries far beyond and at the training length, one for each seed


def judge_receptive_fields(
    columns: list[Column], perplexities: list[list[Column]], **evidence
) -> list[Verdict]:
    """Return verdicts on the receptive fields of sliding windows.

    columns: of receptive fields; perplexities: columns of perplexity, one list per data set and
    protocol. The first column of the same model that was evaluated far enough counts.
    """
    verdicts, fields, growths = [], [], []
    for column in columns:
        lengths = [*filter(column.values, map(int, column.records[0]["lengths"]))]
        field = receptive_field(column, max(lengths)) if lengths else None
        if field is None or not re.fullmatch("window(:[^+@]*)?", column.pe):
            continue
        far, pairs = _growth(column, perplexities)
        shorter, longer = load()["windows"]
        claim = shorter if field.estimate <= 1 else longer
        text = f"receptive field {printed_interval(field, 2)} training lengths"
        growth = intervals.perplexity_ratio(pairs) if pairs else None
        verdict = decide(claim.but(encoding=column.label, at=[far]), {("", text): growth})
        if pairs:
            fields.append(field)
            growths.append(pairs)
            if not field.below(1) and not field.above(1):
                verdict.outcome = UNDECIDED
        verdicts.append(verdict)
    if len(fields) > 3:
        (claim,) = load()["rank_correlation"]
        verdict = decide(claim, {ALONE: _rank_correlation(fields, growths)})
        verdict.measured += f" over {len(fields)} models"
        verdicts.append(verdict)
    return verdicts


def receptive_field(column: Column, length: int) -> Interval | None:
    """Return the receptive field at a context length, in training lengths; None: not measured."""
    entries = column.entries_by_seed(length).values()
    if not entries:
        return None
    values = [entry["receptive_field"] for entry in entries]
    errors = [entry.get("receptive_field_se") for entry in entries]
    windows = column.records[0]["protocol"]["windows"]
    return intervals.mean_interval(values, errors, windows).scaled(1 / column.trained_at)


def _growth(column: Column, perplexities: list[list[Column]]) -> tuple[int, Pairs]:
    """Return the multiple of FAR_MULTIPLES at which a column's model was evaluated, and entries."""
    trained_at = column.trained_at
    model = setup_of(column.records[0])
    for other in sum(perplexities, []):
        if setup_of(other.records[0]) == model and other.values(trained_at):
            for far in FAR_MULTIPLES:
                if other.values(far * trained_at):
                    return far, entry_pairs(other, far * trained_at, other, trained_at)
    return FAR_MULTIPLES[0], []


def _rank_correlation(fields: list[Interval], growths: list[Pairs]) -> Interval:
    """Return the rank correlation of fields and growths of several models.

    The interval covers the errors of the measured values, not the choice of models and seeds: the
    growths are drawn by the bootstrap, the fields from normal distributions.
    """
    means = np.array([field.estimate for field in fields])
    ratios = np.array([intervals.perplexity_ratio(pairs).estimate for pairs in growths])
    estimate = float(_rank_correlations(means[None], ratios[None])[0])
    drawn = [draws for draws in map(intervals.log_ratio_draws, growths) if draws]
    widths = [f.high - f.low for f in fields if f.low is not None and f.high is not None]
    if not len(drawn) == len(widths) == len(fields):
        return Interval(estimate)
    noise = np.random.default_rng(0).standard_normal((intervals.DRAWS, len(fields)))
    noisy = means + noise * np.array(widths) / (2 * intervals.NORMAL_QUANTILE)
    correlations = _rank_correlations(noisy, np.stack([draws for draws, _ in drawn], 1))
    low, high = np.percentile(correlations, [2.5, 97.5])
    return Interval(estimate, low, high, seeds=min(map(len, growths)))


def _rank_correlations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the rank correlation of each row of two arrays (draws, models), (draws,).

    Ties have their mean rank. NaN for rows with NaN, or in which all values of an array are equal.
    """
    from scipy.stats import rankdata, zscore

    scores = [zscore(rankdata(values, axis=1), axis=1) for values in (first, second)]
    return (scores[0] * scores[1]).mean(1)
