"""Comparisons of columns, and columns of quantities that are compared.

cable, rope = speed_columns(record["train"])
compare((cable, rope), (512, 512), MEASURES["speed"])  # cable's / rope's
"""

from collections.abc import Callable

import numpy as np

from evaluation.intervals import Interval
from evaluation.measures import Pairs
from reporting.columns import Column, dataset_of, entry_pairs, make_columns

# Measures of eval_hellaswag.py's records, and their keys.
ACCURACIES = {"HellaSwag acc": "acc", "acc_norm": "acc_norm"}

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


def printed_interval(interval: Interval, digits: int = 3, one_seed: bool = False) -> str:
    """Return an estimate with its interval, and the number of seeds.

    one_seed: whether to print a single seed.
    """
    text = f"{interval.estimate:.{digits}f}"
    if interval.low is None:
        return f"{text} (no interval)"
    notes = [f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"]
    if interval.seeds > 1:
        notes.append(f"{interval.seeds} seeds")
    elif one_seed:
        notes.append("one seed")
    if not interval.paired:
        notes.append("unpaired")
    return f"{text} ({'; '.join(notes)})"


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
