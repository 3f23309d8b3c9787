"""Claims on nDCG@10 of encoders (CABLE, table 3)."""

from collections.abc import Sequence

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.verdicts import (
    CABLE,
    HOLDS,
    Verdict,
    judge_all,
    judge_bound,
    printed_interval,
)
from reporting.columns import Column, all_lengths, entry_pairs

SOURCE = (CABLE, "section 5.5")
# nDCG@10 at the longest length relative to the training length: encoding, relation, bound, where.
# The paper prints the table and "nearly unusable" for rope, "fails completely" for sinusoidal.
RETRIEVAL_BOUNDS = (
    ("cable", ">", 1, "table 3"),
    ("alibi", ">", 1, "table 3"),
    ("rope", "<", 0.25, "section 5.5, our bound"),
    ("sinusoidal", "<", 0.25, "section 5.5, our bound"),
)
RETRIEVAL_RIVALS = ("alibi", "rope", "learnable", "sinusoidal")


def all_claims() -> list[Verdict]:
    """Return the claims of this module, not measured."""
    claims = []
    for pe, relation, bound, where in RETRIEVAL_BOUNDS:
        claim = f"{pe}: nDCG@10 at 32x / nDCG@10 at 1x {relation} {bound}"
        claims.append(Verdict(claim, CABLE, where))
    return [*claims, Verdict(_best_claim(RETRIEVAL_RIVALS), *SOURCE)]


def _best_claim(rivals: Sequence[str]) -> str:
    return (
        f"cable: nDCG@10 higher than {', '.join(rivals)} at every length beyond the training length"
    )


def judge_retrieval(columns: list[Column]) -> list[Verdict]:
    """Return verdicts on the nDCG@10 of encoders beyond the training length (CABLE, table 3).

    Of several columns of an encoding the first counts. The bootstrap draws queries.
    """
    first = {column.pe: column for column in reversed(columns)}
    trained_at = columns[0].trained_at
    beyond = [length for length in all_lengths(columns) if length > trained_at]
    if not beyond:
        return []
    verdicts = []
    for pe, relation, bound, where in RETRIEVAL_BOUNDS:
        if pe not in first:
            continue
        claim = f"{pe}: nDCG@10 at {beyond[-1] / trained_at:g}x / nDCG@10 at 1x {relation} {bound}"
        column = first[pe]
        at_training_length, at_longest = column.mean(trained_at), column.mean(beyond[-1])
        if at_training_length and at_longest is not None:
            pairs = entry_pairs(column, beyond[-1], column, trained_at)
            ratio = _compare_scores(pairs, intervals.score_ratio)
            if ratio is None:
                ratio = Interval(at_longest / at_training_length)
            outcome = judge_bound(ratio, relation, bound)
            verdicts.append(Verdict(claim, CABLE, where, printed_interval(ratio), outcome))
        else:
            verdicts.append(Verdict(claim, CABLE, where))
    rivals = [pe for pe in RETRIEVAL_RIVALS if pe in first]
    if "cable" in first and rivals:
        verdicts.append(_judge_best_retrieval(first, rivals, beyond))
    return verdicts


def _compare_scores(pairs: list[tuple[dict, dict]], compare) -> Interval | None:
    """Return the comparison of the scores of queries, or None if an entry has none."""
    if not all("by_question" in entry for pair in pairs for entry in pair):
        return None
    return compare([tuple(np.array(entry["by_question"]) for entry in pair) for pair in pairs])


def _judge_best_retrieval(
    first: dict[str, Column], rivals: list[str], lengths: list[int]
) -> Verdict:
    margins = {}
    measured = dict.fromkeys(rivals, False)  # not: `learnable` beyond the training length
    for length in lengths:
        cable = first["cable"].mean(length)
        for pe in rivals:
            rival = first[pe].mean(length)
            if cable is None or rival is None:
                continue
            pairs = entry_pairs(first["cable"], length, first[pe], length)
            margin = _compare_scores(pairs, intervals.score_difference)
            margins[f"{pe} at {length:,} tokens"] = margin or Interval(cable - rival)
            measured[pe] = True
    claim = _best_claim([pe for pe in rivals if measured[pe]] or rivals)
    if not margins:
        return Verdict(claim, *SOURCE)
    smallest = min(margins, key=lambda name: margins[name].estimate)
    outcome, counts = judge_all([*margins.values()], bound=0)
    measured = f"smallest margin {printed_interval(margins[smallest], 2)}, {smallest}"
    if outcome != HOLDS and len(margins) > 1:
        measured += f"; {counts}"
    return Verdict(claim, *SOURCE, measured, outcome)
