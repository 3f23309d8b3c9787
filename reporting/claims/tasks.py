"""Claims on encoders: training losses and retrieval."""

import numpy as np

from evaluation import intervals
from evaluation.intervals import MAX_SEGMENTS, Interval
from reporting.claims.claim import ALONE, Claim, Comparison, Measured, compare, judge, name_runs
from reporting.claims.verdicts import Verdict, has_verdicts
from reporting.columns import Column, all_lengths
from reporting.tables import FINAL, Curves, last, losses_by_encoding


def judge_losses(record: dict) -> list[Verdict]:
    """Return verdicts on the encoders of a record of `plot.py losses`; [] for decoders.

    Runs are compared at the steps that all of them logged; the interval is over at most 32 segments
    of these steps, and over seeds.
    """
    runs = [run for run in record["runs"] if has_verdicts(run)]
    if not runs or any(run["objective"] != "mlm" for run in runs):
        return []
    return judge(["losses"], _margins, record["training"], losses_by_encoding(runs))


def _margins(claim: Claim, training: str, curves: Curves) -> Measured:
    """Compare losses by how much those of others are on the claimed side."""
    if claim.training != training:
        return
    fraction = FINAL if claim.loss.startswith("final") else 1

    def margin(other: str, sign: int) -> Interval | None:
        pairs = [
            (sign * _segments(curves[other][seed], fraction), sign * _segments(losses, fraction))
            for seed, losses in curves[claim.encoding].items()
            if seed in curves[other]
        ]
        return intervals.score_difference(pairs) if pairs and len(pairs[0][0]) else None

    others = [pe for pe in curves if pe not in (claim.encoding, *claim.not_compared)]
    places = {"": 1 if claim.side == "lower" else -1}
    yield from claim.but(others=others).against(curves, places, margin)


def _segments(losses: np.ndarray, fraction: float) -> np.ndarray:
    """Return the mean losses of at most 32 segments of the last fraction of a training."""
    kept = last(losses, fraction) if len(losses) else losses
    parts = np.array_split(kept, min(MAX_SEGMENTS, len(kept)) or 1)
    return np.array([part.mean() for part in parts if len(part)])


def judge_retrieval(columns: list[Column], **evidence) -> list[Verdict]:
    """Return verdicts on the nDCG@10 of encoders beyond the training length (CABLE, table 3).

    Of several columns of an encoding the first counts. The bootstrap draws queries.
    """
    trained_at = columns[0].trained_at
    beyond = [length for length in all_lengths(columns) if length > trained_at]
    first = {column.pe: column for column in reversed(columns)}
    sections = ["retrieval_growth", "retrieval_best"] if beyond else []
    return judge(sections, _scores, first, columns, beyond)


def _scores(
    claim: Claim, first: dict[str, Column], columns: list[Column], beyond: list[int]
) -> Measured:
    """Compare an encoding with others beyond the training length, or with itself."""
    ours, trained_at = first.get(claim.encoding), columns[0].trained_at
    claim = name_runs(claim, first, columns)
    if ours and not claim.others:
        ends = beyond[-1], trained_at
        at = [beyond[-1] / trained_at]
        yield claim.but(at=at), {ALONE: compare((ours, ours), ends, _growth)}
    elif ours:

        def margin(other: str, length: int) -> Comparison:
            return compare((ours, first[other]), (length, length), _margin)

        places = {f"at {length:,} tokens": length for length in beyond}
        yield from claim.against(first, places, margin)


def _growth(pairs: list[tuple[dict, dict]]) -> Interval:
    return intervals.score_ratio(_by_question(pairs))


def _margin(pairs: list[tuple[dict, dict]]) -> Interval:
    return intervals.score_difference(_by_question(pairs))


def _by_question(pairs: list[tuple[dict, dict]]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the scores of the queries; without them the means, which have no interval."""
    is_known = all("by_question" in entry for pair in pairs for entry in pair)
    scores = [
        np.array(entry["by_question"] if is_known else [entry["ndcg10"]])
        for pair in pairs
        for entry in pair
    ]
    return [*zip(scores[::2], scores[1::2], strict=True)]
