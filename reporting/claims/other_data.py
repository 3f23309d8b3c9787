"""Results on data that models were not trained on, in a table next to a paper's."""

from reporting.columns import Column, dataset_of, make_columns, sort_key
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

    Of several runs of a model the first counts. records: of eval_hellaswag.py, and of
    eval_extrapolation.py, whose perplexity at the training length is shown under the name of the
    data set. printed: from paper.generalization.
    """
    numbers = {}  # name of a column -> {model: value}
    for measure, values in _measures(records).items():
        numbers[measure] = values
        for name, key in PAPER_COLUMNS.get(measure, {}).items():
            numbers[name] = {model: values[key] for model, values in printed.items()}
    cells = [["size", "encoding", *numbers]]
    models = {(record["size"], record["pe"]) for record in records}
    for model in sorted(models, key=lambda model: (model[0], sort_key(model[1]))):
        values = [by_model.get(model) for by_model in numbers.values()]
        cells.append([*model, *map(format_number, values)])
    return Table(cells)


def _measures(records: list[dict]) -> dict[str, dict[Model, float | None]]:
    """Return our accuracies in percent, and perplexities as means over seeds."""
    accuracies = [record for record in records if "lengths" not in record]
    found = {
        name: {(each["size"], each["pe"]): 100 * each[key] for each in accuracies[::-1]}
        for name, key in ACCURACIES.items()
    }
    by_data: dict[str, list[dict]] = {}
    for record in records:
        if "lengths" in record:
            by_data.setdefault(dataset_of(record), []).append(record)
    for name, group in by_data.items():
        columns: list[Column] = make_columns(group, "perplexity")
        found[name] = {
            (column.records[0]["size"], column.pe): column.mean(column.trained_at)
            for column in columns[::-1]
        }
    return found
