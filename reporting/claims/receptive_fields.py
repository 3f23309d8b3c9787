"""Claims on receptive fields (Sandwich, section 5)."""

import re
from dataclasses import replace

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.verdicts import (
    FAR_MULTIPLES,
    NO_GROWTH,
    UNDECIDED,
    Verdict,
    judge_bound,
    printed_interval,
)
from reporting.columns import Column, entry_pairs
from reporting.paper import SANDWICH

SOURCE = (SANDWICH, "section 5.1, our bound")
MIN_RANK_CORRELATION = 0.7
# Our reading of table 1 with the fields of section 5.1; no sentence of the paper states it.
# Over the paper's own numbers (ArXiv): 0.94 for the windows, but 0.52 with the slopes, of which
# Δ = -3 has the shortest field and grows by 24%.
RANK_CORRELATION = Verdict(
    "perplexity grows more for sliding windows with a longer receptive field: rank correlation >= "
    f"{MIN_RANK_CORRELATION}",
    *SOURCE,
)


def all_claims() -> list[Verdict]:
    """Return the claims of this module, not measured."""
    windows = [Verdict(_window_claim("window", 16, covered), *SOURCE) for covered in (True, False)]
    return [*windows, RANK_CORRELATION]


def _window_claim(label: str, far: int, covered: bool) -> str:
    relation, length = ("<=", "shorter") if covered else (">", "longer")
    return (
        f"{label}: perplexity at {far}x / perplexity at 1x {relation} {NO_GROWTH}, because its "
        f"receptive field is {length} than the training length"
    )


def judge_receptive_fields(
    columns: list[Column], perplexities: list[list[Column]]
) -> list[Verdict]:
    """Return verdicts on the receptive fields of sliding windows.

    A window extrapolates if and only if the training length covers its receptive field. Source:
    Chi et al. 2023, section 5.

    columns: of receptive fields; perplexities: columns of perplexity, one list per data set and
    protocol. The first column of the same model that was evaluated far enough counts.
    """
    verdicts = []
    measured = []  # (receptive field in training lengths, pairs of entries: perplexity growth)
    for column in columns:
        name = column.pe.partition(":")[0]
        lengths = sorted(map(int, column.records[0]["lengths"]))
        lengths = [length for length in lengths if column.values(length)]
        if name != "window" or re.search("[+@]", column.pe) or not lengths:
            continue
        field = _receptive_field(column, lengths[-1])
        far, pairs = _growth(column, perplexities)
        if pairs:
            measured.append((field, pairs))
        verdicts.append(_judge_window(column.label, field, far, pairs))
    if len(measured) > 3:
        verdicts.append(_judge_rank_correlation(measured))
    return verdicts


def _receptive_field(column: Column, length: int) -> Interval:
    """Return the receptive field at a context length, in training lengths."""
    entries = [record["lengths"][str(length)] for record in column.records]
    errors = [entry.get("receptive_field_se") for entry in entries]
    windows = column.records[0]["protocol"]["windows"]
    interval = intervals.mean_interval(column.values(length), errors, windows)
    return interval.scaled(1 / column.trained_at)


def _growth(
    column: Column, perplexities: list[list[Column]]
) -> tuple[int, list[tuple[dict, dict]]]:
    """Return (multiple, entries there and at 1x for each seed) of a column's model; [] if none.

    The multiple is the first of FAR_MULTIPLES that was evaluated.
    """
    for group in perplexities:
        for other in group:
            if _model(other) != _model(column) or not other.values(column.trained_at):
                continue
            for far in FAR_MULTIPLES:
                length = far * column.trained_at
                if other.values(length):
                    return far, entry_pairs(other, length, other, column.trained_at)
    return FAR_MULTIPLES[0], []


def _model(column: Column) -> tuple:
    names = ("pe", "size", "block_size", "recipe", "cache_window")
    return tuple(column.records[0].get(name) for name in names)


def _judge_window(label: str, field: Interval, far: int, pairs: list[tuple[dict, dict]]) -> Verdict:
    covered = field.estimate <= 1
    claim = _window_claim(label, far, covered)
    if not pairs:
        return Verdict(claim, *SOURCE)
    growth = intervals.perplexity_ratio(pairs)
    outcome = judge_bound(growth, "<=" if covered else ">", NO_GROWTH)
    if not field.below(1) and not field.above(1):
        outcome = UNDECIDED
    measured = f"{printed_interval(growth)}, receptive field {printed_interval(field, 2)}"
    measured += " training lengths"
    return Verdict(claim, *SOURCE, measured, outcome)


def _judge_rank_correlation(
    measured: list[tuple[Interval, list[tuple[dict, dict]]]],
) -> Verdict:
    """Return the verdict on fields and growths of several models.

    The interval covers the errors of the measured values, not the choice of models and seeds: the
    growths are drawn by the bootstrap, the fields from normal distributions.
    """
    fields = np.array([field.estimate for field, _ in measured])
    growths = [intervals.perplexity_ratio(pairs).estimate for _, pairs in measured]
    correlation = Interval(float(_rank_correlations(fields[None], np.array(growths)[None])[0]))
    widths = [_width(field) for field, _ in measured]
    draws = [intervals.log_ratio_draws(pairs) for _, pairs in measured]
    known_widths = [width for width in widths if width is not None]
    known_draws = [drawn for drawn in draws if drawn is not None]
    if len(known_widths) == len(known_draws) == len(measured):
        errors = np.array(known_widths) / (2 * intervals.NORMAL_QUANTILE)
        noise = np.random.default_rng(0).standard_normal((intervals.DRAWS, len(fields)))
        log_growths = np.stack([drawn for drawn, _ in known_draws], 1)
        drawn = _rank_correlations(fields + noise * errors, log_growths)
        correlation = Interval(correlation.estimate, *np.percentile(drawn, [2.5, 97.5]))
    return replace(
        RANK_CORRELATION,
        measured=f"{printed_interval(correlation, 2)} over {len(measured)} models",
        outcome=judge_bound(correlation, ">=", MIN_RANK_CORRELATION),
    )


def _width(interval: Interval) -> float | None:
    """Return the width of an interval, or None if it could not be computed."""
    if interval.low is None or interval.high is None:
        return None
    return interval.high - interval.low


def _rank_correlations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the rank correlation of each row of two arrays (draws, models), (draws,).

    Ties have their mean rank. NaN for rows with NaN, or in which all values of an array are equal.
    """
    with np.errstate(invalid="ignore"):
        # How many values are lower minus how many are higher: 2 * (rank - mean of the ranks).
        ranks = [
            np.sign(values[:, :, None] - values[:, None, :]).sum(2) for values in (first, second)
        ]
        norms = np.sqrt((ranks[0] ** 2).sum(1) * (ranks[1] ** 2).sum(1))
        return (ranks[0] * ranks[1]).sum(1) / norms
