"""Claims on data that models were not trained on (CABLE, version 1, section 5.3)."""

import statistics
from collections.abc import Iterator

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.verdicts import (
    CABLE_V1,
    CLAIMED_AS,
    HOLDS,
    Verdict,
    judge_all,
    printed_interval,
)
from reporting.tables import ACCURACIES, values_on_other_data

CLAIMED = "cable-v1"
RIVALS = ("alibi", "t5", "t5-clip", "rope", "sinusoidal")  # the other encodings of table 1


def all_claims() -> list[Verdict]:
    """Return the claims on the paper's measures, not measured."""
    return [
        Verdict(_best_claim(measure), CABLE_V1, "section 5.3")
        for measure in (*ACCURACIES, "fineweb", "wikitext103")
    ]


def _best_claim(measure: str) -> str:
    best = f"highest {measure}" if measure in ACCURACIES else f"lowest perplexity on {measure}"
    return f"{CLAIMED} has the {best}"


def judge_generalization(records: list[dict]) -> list[Verdict]:
    """Return whether cable-v1 is the best on other data, for every size and measure.

    records: of eval_hellaswag.py and eval_extrapolation.py, see tables.values_on_other_data.
    Accuracies have standard errors only, so that their comparisons are not paired. Source: CABLE,
    version 1, section 5.3.
    """
    by_measure = {}  # {measure: {size: {encoding: records}}}
    for record in records:
        for measure in values_on_other_data(record):
            by_encoding = by_measure.setdefault(measure, {}).setdefault(record["size"], {})
            pe = CLAIMED_AS.get(record["pe"], record["pe"])
            by_encoding.setdefault(pe, []).append(record)
    verdicts = []
    for measure in sorted(by_measure, key=lambda name: name not in ACCURACIES):
        for size, by_encoding in sorted(by_measure[measure].items()):
            verdicts += _judge_best_elsewhere(measure, size, by_encoding)
    return verdicts


def _judge_best_elsewhere(
    measure: str, size: str, by_encoding: dict[str, list[dict]]
) -> Iterator[Verdict]:
    rivals = [pe for pe in RIVALS if pe in by_encoding]
    if CLAIMED not in by_encoding or not rivals:
        return
    means = {}
    for pe, records in by_encoding.items():
        values = [values_on_other_data(record)[measure] for record in records]
        means[pe] = statistics.mean(values)
    rival = (max if measure in ACCURACIES else min)(rivals, key=lambda pe: means[pe])
    compared = {
        other: _compare_elsewhere(measure, by_encoding[CLAIMED], by_encoding[other])
        for other in rivals
    }
    # Accuracies: differences, ours minus the rival's. Perplexities: ratios, rival's to ours.
    bound, what = (0, "difference") if measure in ACCURACIES else (1, "ratio")
    outcome, counts = judge_all([*compared.values()], bound)
    measured = f"{means[CLAIMED]:.2f}, next {rival} {means[rival]:.2f}, {what} "
    measured += printed_interval(compared[rival], 2 if measure in ACCURACIES else 3)
    if outcome != HOLDS and len(compared) > 1:
        measured += f"; {counts}"
    claim = f"{size}: {_best_claim(measure)}"
    yield Verdict(claim, CABLE_V1, "section 5.3", measured, outcome)


def _compare_elsewhere(measure: str, ours: list[dict], theirs: list[dict]) -> Interval:
    """Return ours minus theirs for an accuracy in percent, theirs over ours for a perplexity."""
    by_seed = {record.get("seed"): record for record in theirs}
    pairs = [(a, by_seed[seed]) for a in ours if (seed := a.get("seed")) in by_seed]
    pairs = pairs or [*zip(ours, theirs, strict=False)]
    if measure in ACCURACIES:
        values = [
            (_percent_and_error(a, measure), _percent_and_error(b, measure)) for a, b in pairs
        ]
        return intervals.unpaired_difference(values)
    texts = [[_text_of(record) for record in pair] for pair in pairs]
    entries = [(_training_length_entry(b), _training_length_entry(a)) for a, b in pairs]
    return intervals.perplexity_ratio(entries, paired=all(a == b for a, b in texts))


def _percent_and_error(record: dict, measure: str) -> tuple[float, float | None]:
    key = ACCURACIES[measure]
    error = record.get(f"{key}_se")
    return 100 * record[key], None if error is None else 100 * error


def _training_length_entry(record: dict) -> dict:
    """Return the entry of a record of perplexity at its training length."""
    return record["lengths"][str(record["block_size"])]


def _text_of(record: dict) -> tuple:
    """Return what two records of perplexity must share to be compared block by block."""
    return record["data"], record.get("protocol"), record["block_size"]
