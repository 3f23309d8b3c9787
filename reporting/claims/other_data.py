"""Results on data that models were not trained on: columns, table next to a paper's, and claims."""

import statistics
from functools import partial

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.claim import (
    CLAIMED_AS,
    Claim,
    Comparison,
    Measured,
    compare,
    decide,
    load,
    name_runs,
)
from reporting.claims.verdicts import Verdict
from reporting.columns import Column, dataset_of, group_by_protocol, make_columns, sort_key
from reporting.formatting import Table, format_number

# Measures of eval_hellaswag.py's records, and their keys.
ACCURACIES = {"HellaSwag acc": "acc", "acc_norm": "acc_norm"}
# Columns of the paper's table next to ours. The paper does not name its HellaSwag metric.
# The raw variants of WikiText-2 and WikiText-103 have the same test text, but two columns there.
PAPER_COLUMNS = {
    "acc_norm": {"paper": "hellaswag_acc"},
    "fineweb": {"paper (fineweb)": "fineweb10b_ppl"},
    "wikitext103": {
        "paper (wikitext103)": "wikitext103_ppl",
        "paper (WikiText-2)": "wikitext2_ppl",
    },
}


def columns_by_measure(
    records: list[dict], may_differ: tuple[str, ...] = ()
) -> dict[str, list[Column]]:
    """Return columns of results at the training length, by measure.

    records: of eval_hellaswag.py, as "HellaSwag acc" and "acc_norm" in percent; and of
    eval_extrapolation.py, as perplexity under the name of the data set.
    """
    groups = {measure: [] for measure in ACCURACIES}
    for record in records:
        length = str(record["block_size"])
        if "lengths" not in record:
            for measure, key in ACCURACIES.items():
                error = record[f"{key}_se"]
                entry = {"percent": 100 * record[key], "se": error and 100 * error}
                groups[measure].append(record | {"lengths": {length: entry}})
        elif record["lengths"].get(length):
            groups.setdefault(dataset_of(record), []).append(record)
    found = {}
    for measure, group in groups.items():
        key = "percent" if measure in ACCURACIES else "perplexity"
        found[measure] = make_columns(group, key, may_differ)
    return found


def generalization_table(
    measures: dict[str, list[Column]], printed: dict[tuple[str, str], dict[str, float]]
) -> Table:
    """Return a table with one row per model: our results on other data, and the paper's.

    Of several columns of a model the first counts. measures: from columns_by_measure; printed: from
    paper.generalization.
    """
    numbers = {}  # column name -> {model: value}
    models = set()
    for measure, columns in measures.items():
        numbers[measure] = {
            (column.records[0]["size"], column.pe): column.mean(column.trained_at)
            for column in reversed(columns)
        }
        models |= numbers[measure].keys()
        for name, key in PAPER_COLUMNS.get(measure, {}).items():
            numbers[name] = {model: values[key] for model, values in printed.items()}
    cells = [["size", "encoding", *numbers]]
    for model in sorted(models, key=lambda model: (model[0], sort_key(model[1]))):
        values = [by_model.get(model) for by_model in numbers.values()]
        cells.append([*model, *map(format_number, values)])
    return Table(cells)


def judge_generalization(records: list[dict], may_differ: tuple[str, ...] = ()) -> list[Verdict]:
    """Return whether an encoding is the best on other data, for every size and measure.

    records: see columns_by_measure. Accuracies have standard errors only, so that their comparisons
    are not paired.
    """
    rows = load()["other_data"]  # the same claim on several measures
    by_best = {row.best: row for row in rows}
    measures = columns_by_measure(records, may_differ)
    verdicts = []
    for measure in [*ACCURACIES, *sorted(measures.keys() - ACCURACIES.keys())]:
        best = f"highest {measure}" if measure in ACCURACIES else f"lowest perplexity on {measure}"
        by_size = {}
        for column in measures[measure]:
            by_size.setdefault(column.records[0]["size"], []).append(column)
        for size, columns in sorted(by_size.items()):
            claim = by_best.get(best) or rows[0].but(key=f"other_data, {best}", best=best)
            found = _best(claim.but(prefix=f"{size}: "), columns, measure in ACCURACIES)
            verdicts += [decide(*measured) for measured in found]
    return verdicts


def _best(claim: Claim, columns: list[Column], is_accuracy: bool) -> Measured:
    """Compare an encoding with the others on a measure, and show the next best."""
    first = {CLAIMED_AS.get(column.pe, column.pe): column for column in reversed(columns)}
    means = {pe: statistics.mean(each.values(each.trained_at)) for pe, each in first.items()}
    others = [pe for pe in claim.others if pe in first]
    if claim.encoding not in first or not others:
        return
    next_best = (max if is_accuracy else min)(others, key=lambda pe: means[pe])
    what = f"{means[claim.encoding]:.2f}, next {next_best} {means[next_best]:.2f}, "
    claim = claim.but(shown=next_best, what=f"{what}ratio ")
    if is_accuracy:
        claim = claim.but(bound=0, digits=2, what=f"{what}difference ")

    def compare_with(other: str, _: None) -> Comparison:
        ours, theirs = first[claim.encoding], first[other]
        lengths = ours.trained_at, theirs.trained_at
        if is_accuracy:
            return compare((ours, theirs), lengths, _accuracy_difference)
        texts = group_by_protocol(ours.records + theirs.records)
        measure = partial(intervals.perplexity_ratio, paired=len(texts) == 1)
        return compare((theirs, ours), (lengths[1], lengths[0]), measure)

    yield from name_runs(claim, first, columns).against(first, {"": None}, compare_with)


def _accuracy_difference(pairs: list[tuple[dict, dict]]) -> Interval:
    values = [[(entry["percent"], entry["se"]) for entry in pair] for pair in pairs]
    return intervals.unpaired_difference([(ours, other) for ours, other in values])
