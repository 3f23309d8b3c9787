"""Results on data that models were not trained on: table next to a paper's, and its claims."""

from functools import partial

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.claim import (
    CLAIMED_AS,
    Claim,
    Comparison,
    Measured,
    compare,
    judge,
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

Model = tuple[str, str]  # size, encoding


def generalization_table(records: list[dict], printed: dict[Model, dict[str, float]]) -> Table:
    """Return a table with one row per model: our results on other data, and the paper's.

    Of several columns of a model the first counts. records: see columns_by_measure; printed: from
    paper.generalization.
    """
    numbers = {}  # name of a column -> {model: value}
    for measure, columns in columns_by_measure(records).items():
        numbers[measure] = {
            (column.records[0]["size"], column.pe): column.mean(column.trained_at)
            for column in columns[::-1]
        }
        for name, key in PAPER_COLUMNS.get(measure, {}).items():
            numbers[name] = {model: values[key] for model, values in printed.items()}
    cells = [["size", "encoding", *numbers]]
    models = {(record["size"], record["pe"]) for record in records}
    for model in sorted(models, key=lambda model: (model[0], sort_key(model[1]))):
        values = [by_model.get(model) for by_model in numbers.values()]
        cells.append([*model, *map(format_number, values)])
    return Table(cells)


def columns_by_measure(records: list[dict], may_differ=()) -> dict[str, list[Column]]:
    """Return columns of results at the training length, by measure.

    records: of eval_hellaswag.py, as "HellaSwag acc" and "acc_norm" in percent; and of
    eval_extrapolation.py, as perplexity under the name of the data set.
    """
    groups = {measure: [] for measure in ACCURACIES}
    for record in records:
        length = str(record["block_size"])
        for measure, key in ACCURACIES.items() if "lengths" not in record else ():
            error = record[f"{key}_se"]
            entry = {"percent": 100 * record[key], "se": error and 100 * error}
            groups[measure].append(record | {"lengths": {length: entry}})
        if record.get("lengths", {}).get(length):
            groups.setdefault(dataset_of(record), []).append(record)
    keys = {measure: "percent" if measure in ACCURACIES else "perplexity" for measure in groups}
    return {name: make_columns(groups[name], keys[name], may_differ) for name in groups}


def judge_generalization(records: list[dict], may_differ: tuple[str, ...] = ()) -> list[Verdict]:
    """Return whether an encoding is the best on other data; records: see columns_by_measure."""
    return judge(["other_data"], _compare_sizes, columns_by_measure(records, may_differ))


def _compare_sizes(claim: Claim, measures: dict[str, list[Column]]) -> Measured:
    """Compare an encoding with the others on the claim's measure, for every size."""
    columns = measures.get(claim.data, [])
    for size in sorted({column.records[0]["size"] for column in columns}):
        of_size = [column for column in columns if column.records[0]["size"] == size]
        first = {CLAIMED_AS.get(column.pe) or column.pe: column for column in of_size[::-1]}
        named = name_runs(claim.but(prefix=f"{size}: "), first, of_size)
        yield from named.against(first, {"": first}, partial(_compare, claim))


def _compare(claim: Claim, other: str, first: dict[str, Column]) -> Comparison:
    """Return the comparison with another encoding; accuracies have standard errors only."""
    theirs, ours = first[other], first[claim.encoding]
    texts = group_by_protocol(ours.records + theirs.records)
    measure = partial(intervals.perplexity_ratio, paired=len(texts) == 1)
    if claim.data in ACCURACIES:
        measure = _accuracy_difference
    return compare((theirs, ours), (theirs.trained_at, ours.trained_at), measure)


def _accuracy_difference(pairs: list[tuple[dict, dict]]) -> Interval:
    values = [[(entry["percent"], entry["se"]) for entry in pair] for pair in pairs]
    return intervals.unpaired_difference([(theirs, ours) for theirs, ours in values])
