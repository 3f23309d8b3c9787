"""Claims on encoders (training losses, retrieval), and on data that models were not trained on."""

import statistics

import numpy as np

from evaluation import intervals
from evaluation.intervals import MAX_SEGMENTS, Interval
from reporting.claims import catalog
from reporting.claims.catalog import Claim
from reporting.claims.engine import ALONE, CLAIMED_AS, Measured, decide, judge
from reporting.claims.verdicts import Incomparable, Verdict, has_verdicts
from reporting.columns import Column, all_lengths, differing_settings, entry_pairs
from reporting.tables import ACCURACIES, FINAL, last, losses_by_encoding, values_on_other_data


def judge_losses(record: dict) -> list[Verdict]:
    """Return verdicts on the encoders of a record of `plot.py losses`; [] for decoders.

    Runs are compared at the steps that all of them logged; the interval is over at most 32 segments
    of these steps, and over seeds.
    """
    runs = [run for run in record["runs"] if has_verdicts(run)]
    if not runs or any(run["objective"] != "mlm" for run in runs):
        return []
    return judge(["losses"], _margins, record["training"], losses_by_encoding(runs))


def _margins(claim: Claim, training: str, curves: dict) -> Measured:
    """Compare losses by how much those of others are on the claimed side."""
    others = [pe for pe in curves if pe not in (claim.encoding, *claim.not_compared)]
    if claim.training != training or claim.encoding not in curves or not others:
        return
    fraction = FINAL if claim.loss.startswith("final") else 1
    sign = 1 if claim.side == "lower" else -1
    margins = {}
    for other in others:
        pairs = [
            (sign * _segments(curves[other][seed], fraction), sign * _segments(losses, fraction))
            for seed, losses in curves[claim.encoding].items()
            if seed in curves[other]
        ]
        if pairs and len(pairs[0][0]):
            margins[other, ""] = intervals.score_difference(pairs)
    yield claim.but(others=others), margins


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
    lengths = [length for length in all_lengths(columns) if length >= trained_at]
    first = {column.pe: column for column in reversed(columns)}
    return judge(["retrieval_growth", "retrieval_best"], _scores, first, trained_at, lengths)


def _scores(claim: Claim, columns: dict[str, Column], trained_at: int, lengths: list) -> Measured:
    """Compare an encoding with others beyond the training length, or with itself."""
    others = [pe for pe in claim.others if pe in columns]
    beyond = [length for length in lengths if length > trained_at]
    if claim.encoding not in columns or not beyond or (claim.others and not others):
        return
    ours = columns[claim.encoding]
    if not others:
        growth = _compare_scores(ours, beyond[-1], ours, trained_at, is_ratio=True)
        yield claim.but(at=[beyond[-1] / trained_at]), {ALONE: growth}
        return
    margins = {
        (pe, f"at {length:,} tokens"): _compare_scores(ours, length, columns[pe], length)
        for length in beyond
        for pe in others
    }
    yield claim.but(others=others), margins


def _compare_scores(
    ours: Column, length: int, theirs: Column, other_length: int, is_ratio: bool = False
) -> Interval | Incomparable | None:
    """Return the difference or the ratio of two means, None if one is missing.

    Without the scores of the queries there is no interval.
    """
    if settings := ours.differing(theirs):
        return Incomparable(tuple(settings))
    mean, other_mean = ours.mean(length), theirs.mean(other_length)
    if mean is None or other_mean is None or (is_ratio and not other_mean):
        return None
    pairs = entry_pairs(ours, length, theirs, other_length)
    if not all("by_question" in entry for pair in pairs for entry in pair):
        return Interval(mean / other_mean if is_ratio else mean - other_mean)
    compare = intervals.score_ratio if is_ratio else intervals.score_difference
    scores = [(np.array(a["by_question"]), np.array(b["by_question"])) for a, b in pairs]
    return compare(scores)


def judge_generalization(records: list[dict], may_differ: tuple[str, ...] = ()) -> list[Verdict]:
    """Return whether an encoding is the best on other data, for every size and measure.

    records: of eval_hellaswag.py and eval_extrapolation.py, see tables.values_on_other_data.
    Accuracies have standard errors only, so that their comparisons are not paired.
    """
    groups = {}  # {(measure, size): {encoding: records of its seeds}}
    for record in records:
        pe = CLAIMED_AS.get(record["pe"], record["pe"])
        for measure in values_on_other_data(record):
            by_encoding = groups.setdefault((measure, record["size"]), {})
            by_encoding.setdefault(pe, []).append(record)
    first, *rows = catalog.load()["other_data"]  # the others are the same on other measures
    by_best = {row.best: row for row in rows}
    verdicts = []
    for measure, size in sorted(groups, key=lambda key: (key[0] not in ACCURACIES, key)):
        best = f"lowest perplexity on {measure}"
        if measure in ACCURACIES:
            best = f"highest {measure}"
        claim = by_best.get(best, first).but(prefix=f"{size}: ", best=best)
        found = _best(claim, measure, groups[measure, size], may_differ)
        verdicts += [decide(*measured) for measured in found]
    return verdicts


def _best(
    claim: Claim, measure: str, by_encoding: dict[str, list[dict]], may_differ: tuple[str, ...]
) -> Measured:
    """Compare an encoding with the others on a measure, and show the next best."""
    others = [pe for pe in claim.others if pe in by_encoding]
    if claim.encoding not in by_encoding or not others:
        return
    is_accuracy = measure in ACCURACIES
    means = {
        pe: statistics.mean(values_on_other_data(record)[measure] for record in records)
        for pe, records in by_encoding.items()
    }
    next_best = (max if is_accuracy else min)(others, key=lambda pe: means[pe])
    what = f"{means[claim.encoding]:.2f}, next {next_best} {means[next_best]:.2f}, "
    compared = {}
    for pe in others:
        pairs = _by_seed(by_encoding[claim.encoding], by_encoding[pe])
        settings = {*differing_settings([*pairs[0]])} - {*may_differ}
        if settings:
            compared[pe, ""] = Incomparable(tuple(settings))
            continue
        if is_accuracy:
            values = [[_percent_and_error(record, measure) for record in pair] for pair in pairs]
            difference = intervals.unpaired_difference([(ours, other) for ours, other in values])
            compared[pe, ""] = difference
        else:
            compared[pe, ""] = _perplexity_ratio(pairs)
    claim = claim.but(others=others, shown=next_best, what=f"{what}ratio ")
    if is_accuracy:
        claim = claim.but(bound=0, digits=2, what=f"{what}difference ")
    yield claim, compared


def _by_seed(ours: list[dict], theirs: list[dict]) -> list[tuple[dict, dict]]:
    """Return the records of the seeds that both have; without any, all in order."""
    by_seed = {record.get("seed"): record for record in theirs}
    pairs = [(a, by_seed[seed]) for a in ours if (seed := a.get("seed")) in by_seed]
    return pairs or [*zip(ours, theirs, strict=False)]


def _percent_and_error(record: dict, measure: str) -> tuple[float, float | None]:
    key = ACCURACIES[measure]
    error = record.get(f"{key}_se")
    return 100 * record[key], None if error is None else 100 * error


def _perplexity_ratio(pairs: list[tuple[dict, dict]]) -> Interval:
    """Return the second perplexity over the first, at the training length.

    Paired block by block if both are of the same text.
    """
    names = ("data", "protocol", "block_size")
    is_paired = all([a.get(name) == b.get(name) for name in names for a, b in pairs])
    entries = [
        tuple(record["lengths"][str(record["block_size"])] for record in (theirs, ours))
        for ours, theirs in pairs
    ]
    return intervals.perplexity_ratio(entries, paired=is_paired)
