"""Quantities that are compared, with intervals, and columns that have them.

cable, rope = speed_columns(record["train"])
compare((cable, rope), (512, 512), MEASURES["speed"])  # cable's / rope's
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from evaluation import intervals
from evaluation.intervals import MAX_SEGMENTS, Interval
from reporting.columns import Column, dataset_of, entry_pairs, make_columns

# Measures of eval_hellaswag.py's records, and their keys.
ACCURACIES = {"HellaSwag acc": "acc", "acc_norm": "acc_norm"}
FINAL = 0.1  # fraction of a training whose mean loss is the final one

Pairs = list[tuple[dict, dict]]  # entries of two columns, one pair for each seed
Comparison = Interval | tuple[str, ...] | None
"""a tuple: the settings that prevent it; None: not measured"""


def compare(
    columns: tuple[Column, Column],
    lengths: tuple[float, float],
    measure: Callable[[Pairs], Interval],
    *ignored: str,
) -> Comparison:
    """Return the first column's value relative to the second's, at their lengths.

    ignored: settings that may differ.
    """
    first, second = columns
    if settings := first.differing(second, *ignored):
        return tuple(settings)
    if not (first.values(lengths[0]) and second.values(lengths[1])):
        return None
    return measure(entry_pairs(first, round(lengths[0]), second, round(lengths[1])))


def receptive_field(column: Column, length: int) -> Interval:
    """Return the receptive field at a context length, in training lengths."""
    entries = column.entries_by_seed(length).values()
    values = [entry["receptive_field"] for entry in entries]
    errors = [entry.get("receptive_field_se") for entry in entries]
    windows = column.records[0]["protocol"]["windows"]
    return intervals.mean_interval(values, errors, windows).scaled(1 / column.trained_at)


def speed_columns(result: dict) -> list[Column]:
    """Return a column of each encoding in one benchmark of bench.py, by context.

    An entry is that of the fused kernel (`sdpa`) where the encoding has
    it, else that of Triton (GPUs), else that of the dense path.
    """
    contexts = result["contexts"]
    names = {name.removesuffix(" triton") for row in contexts.values() for name in row}
    columns = []
    for pe in sorted(names):
        lengths = {n: row.get(pe) or row.get(f"{pe} triton") for n, row in contexts.items()}
        record = {"pe": pe, "size": result["model"], "block_size": 1, "settings": {}}
        columns.append(Column(pe, pe, [record | {"lengths": lengths}], "memory"))
    return columns


def loss_columns(runs: list[dict]) -> list[Column]:
    """Return columns of `plot.py losses`, at the steps that all runs logged."""
    shared = set.intersection(*({step for step, _ in run["losses"]} for run in runs))
    records = []
    for run in runs:
        losses = np.array([loss for step, loss in run["losses"] if step in shared])
        entry = {"losses": losses} if shared else None
        record = run | {"block_size": 1, "step": None, "settings": {}}
        records.append(record | {"lengths": {"1": entry}})
    return make_columns(records, "losses")


def accuracy_and_perplexity(records: list[dict]) -> dict[str, list[dict]]:
    """Return records by measure, with a "value" at the training length only.

    records: of eval_hellaswag.py, for "HellaSwag acc" and "acc_norm" in
    percent; and of eval_extrapolation.py, for perplexity on the data
    set of this name.
    """
    groups = {measure: [] for measure in ACCURACIES}
    for record in records:
        length = str(record["block_size"])
        for measure, key in ACCURACIES.items() if "lengths" not in record else ():
            error = record[f"{key}_se"]
            entry = {"value": 100 * record[key], "se": error and 100 * error}
            groups[measure].append(record | {"lengths": {length: entry}})
        if entry := record.get("lengths", {}).get(length):
            entry = entry | {"value": entry["perplexity"]}
            group = groups.setdefault(dataset_of(record), [])
            group.append(record | {"lengths": {length: entry}})
    return groups


def last_losses(losses: np.ndarray, fraction: float) -> np.ndarray:
    """Return the last fraction of losses, at least one."""
    return losses[len(losses) - max(1, round(fraction * len(losses))) :]


def _speed_ratio(pairs: Pairs) -> Interval:
    """Return the ratio of two speeds, a mean over rounds of log ratios.

    Both are relative to rope, which bench.py measures in the same
    round. Records without its seconds have no interval.
    """
    entry, other = pairs[0]
    if not ("others" in entry and "others" in other):
        return Interval(entry["ratios"]["rope"] / other["ratios"]["rope"])
    logs = [np.log(e["others"]["rope"]) - np.log(e["seconds"]) for e in pairs[0]]
    first, second = logs
    if not first.any():  # rope itself
        return intervals.ratio_of_rounds(-second)
    return intervals.ratio_of_rounds(first, second if second.any() else ())


def _memory_ratio(pairs: Pairs) -> Interval:
    return Interval(*[pairs[0][0]["memory"] / pairs[0][1]["memory"]] * 3)


def _time_ratio(pairs: Pairs) -> Interval:
    return intervals.ratio_of_rounds(*map(log_seconds_per_token, pairs[0]))


def log_seconds_per_token(entry: dict) -> list[float]:
    """Return logarithms of times per token, one of each round."""
    return (np.log(entry["seconds"]) - np.log(entry["tokens"])).tolist()


def _of_queries(measure: Callable, pairs: Pairs) -> Interval:
    """Return a measure of scores by query, which the bootstrap draws."""
    scores = [(np.array(a["by_question"]), np.array(b["by_question"])) for a, b in pairs]
    return measure(scores)


def _accuracy_difference(pairs: Pairs) -> Interval:
    values = [((a["value"], a["se"]), (b["value"], b["se"])) for a, b in pairs]
    return intervals.unpaired_difference(values)


def _seed_difference(pairs: Pairs) -> Interval:
    """Return the difference of perplexities with the interval of a paired t-test."""
    values = [first["perplexity"] - second["perplexity"] for first, second in pairs]
    return intervals.over_seeds(values, (0, 0))


def _loss_difference(pairs: Pairs, fraction: float) -> Interval:
    """Return the difference of mean losses over segments of the steps."""

    def segments(entry: dict) -> np.ndarray:
        kept = last_losses(entry["losses"], fraction)
        parts = np.array_split(kept, min(MAX_SEGMENTS, len(kept)))
        return np.array([part.mean() for part in parts])

    return intervals.score_difference([(segments(a), segments(b)) for a, b in pairs])


MEASURES = {
    "perplexity": intervals.perplexity_ratio,
    "perplexity over seeds": _seed_difference,
    "growth of nDCG@10": partial(_of_queries, intervals.score_ratio),
    "nDCG@10": partial(_of_queries, intervals.score_difference),
    "accuracy": _accuracy_difference,
    "speed": _speed_ratio,
    "memory": _memory_ratio,
    "time per token": _time_ratio,
    "training loss": partial(_loss_difference, fraction=1),
    "final training loss": partial(_loss_difference, fraction=FINAL),
}
