"""Tables of our numbers next to those that a paper prints."""

import statistics
from collections.abc import Iterator

import numpy as np

from evaluation.significance import BETTER, WORSE
from reporting.claims import catalog
from reporting.claims.speed import Pair, entry_of, find_pairs, is_size_of, on_device, speed_ratio
from reporting.claims.verdicts import printed_interval
from reporting.columns import Column, sort_key
from reporting.formatting import MISSING, Table, format_number
from reporting.paper import MARKS_REFERENCE, PaperStatements, PaperTable
from reporting.tables import Marks, marked, printed_row

EXPLAINED_MARKS = f"{BETTER} {MARKS_REFERENCE} is significantly better, {WORSE} significantly worse"


def paper_comparison(
    columns: list[Column], paper: PaperTable, marks: Marks | None = None
) -> tuple[Table, str] | None:
    """Return a table of our numbers and a paper's, with its caption; None if nothing overlaps.

    marks: of our numbers. With the paper's model size, training length, data set, tokenizer
    (GPT-2's) and, if it states one, protocol, the table has both numbers and their relative
    difference. Otherwise it has both relative to the training length, at equal multiples of it; in
    a table of several training lengths, relative to its shortest context.
    """
    columns = [column for column in columns if paper.covers(column.pe)]
    records = [record for column in columns for record in column.records]
    if not records:
        return None
    source = f"{paper.source} ({paper.dataset}, {paper.size}"
    if all(_same_setting(record, paper) for record in records):
        x_name, make_rows = "context", _absolute_rows
        caption = f"{paper.metric} here and in {source}), and the relative difference."
    else:
        base, x_name, make_rows = "the training length", "training lengths", _relative_rows
        if paper.trained_at is None:
            base = "the shortest context"
            x_name = f"multiples of {base}"
        lengths = sorted({paper.training_length(column.pe) for column in columns})
        trained_at = " and ".join(f"{length:,}" for length in lengths)
        differing = ", text or vocabulary"
        if paper.metric == "nDCG@10":
            differing = " or task"
        elif not all(map(paper.has_protocol_of, records)):
            differing = ", text, vocabulary or protocol (docs/evaluation.md)"
        caption = (
            f"{paper.metric} relative to its value at {base}, here and in {source}, trained with "
            f"{trained_at} tokens of context). Absolute values are not "
            f"comparable, because model size, training length{differing} differ."
        )
    rows = [row for rows in make_rows(columns, paper, marks or {}) for row in rows]
    if paper.marks:
        caption += f" Marks of the paper's numbers: {EXPLAINED_MARKS}."
    if all(cell == MISSING for row in rows for cell in row[2:]):
        return None
    return Table([[x_name, "", *(column.label for column in columns)], *rows]), caption


def _same_setting(record: dict, paper: PaperTable) -> bool:
    return (
        record["size"] == paper.size
        and record["block_size"] == paper.training_length(record["pe"])
        and record["data"]["dataset"] == paper.dataset
        and record["data"].get("tokenizer", "gpt2") == "gpt2"
        and paper.has_protocol_of(record)
    )


def _absolute_rows(columns: list[Column], paper: PaperTable, marks: Marks) -> Iterator[list]:
    for context in paper.contexts():
        ours = printed_row([column.values(context) for column in columns], best=None)
        if not paper.marks:  # the table has no deviations
            ours = [format_number(column.mean(context)) for column in columns]
        texts = [marks.get((column.label, context), "") for column in columns]
        pairs = [(column.mean(context), paper.value(column.pe, context)) for column in columns]
        ratios = [_ratio(*pair) for pair in pairs]
        yield [
            [f"{context:,}", "ours", *map(marked, ours, texts)],
            ["", "paper", *(paper.printed(column.pe, context) for column in columns)],
            ["", "difference", *(f"{ratio - 1:+.1%}" if ratio else MISSING for ratio in ratios)],
        ]


def _relative_rows(columns: list[Column], paper: PaperTable, marks: Marks) -> Iterator[list]:
    base = paper.trained_at or paper.contexts()[0]
    scale = columns[0].trained_at / paper.training_length(columns[0].pe)
    for context in paper.contexts():
        length = context * scale
        ours, theirs = [], []
        for column in columns:
            ratio = _ratio(column.mean(length), column.mean(base * scale))
            ours.append(marked(format_number(ratio), marks.get((column.label, length), "")))
            ratio = _ratio(paper.value(column.pe, context), paper.value(column.pe, base))
            theirs.append(marked(format_number(ratio), paper.mark(column.pe, context)))
        yield [[f"{context / base:g}", "ours", *ours], ["", "paper", *theirs]]


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


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


def generalization_table(
    results: dict[str, dict], printed: dict[tuple[str, str], dict[str, float]]
) -> Table:
    """Return a table with one row per model: our results on other data, and the paper's.

    results: from results_on_other_data; printed: from paper.generalization.
    """
    numbers = {}  # column name -> {model: value}
    for measure, by_model in results.items():
        numbers[measure] = by_model
        for name, key in PAPER_COLUMNS.get(measure, {}).items():
            numbers[name] = {model: values[key] for model, values in printed.items()}
    models = {model for by_model in results.values() for model in by_model}
    cells = [["size", "encoding", *numbers]]
    for model in sorted(models, key=lambda model: (model[0], sort_key(model[1]))):
        values = [by_model.get(model) for by_model in numbers.values()]
        cells.append([*model, *map(format_number, values)])
    return Table(cells)


def paper_speeds(
    benchmark: str, result: dict, printed: PaperStatements
) -> tuple[Table, str] | None:
    """Return a table of ratios here and in a paper's text, with its caption; None if none is here.

    Also None if both have sizes of the papers' statements that differ. Ratios whose context a paper
    does not state, or that was not measured, are shown next to each measured context.
    """
    source = (printed.paper, printed.where)
    rows = [claim for claim in catalog.load()["speed"] if (claim.paper, claim.where) == source]
    if rows and not is_size_of(rows[0].size, result):
        return None
    cells = [["benchmark", "context", "speed of", "relative to", "here", "paper", "at context"]]
    measured = [int(context) for context in result["contexts"]]
    for name, printed_at, pe, other, value in printed.speed_ratios():
        for context in [printed_at] if printed_at in measured else measured:
            entry, other_entry = (entry_of(result, context, each) for each in (pe, other))
            if name == benchmark and entry and other_entry:
                ratio = printed_interval(speed_ratio(entry, other_entry))
                at = f"{printed_at:,}" if printed_at else MISSING
                cells.append([name, f"{context:,}", pe, other, ratio, f"{value:.3f}", at])
    if len(cells) == 1:
        return None
    return Table(cells), (
        f"Ratios of speed here ({result['model']} model, {result['device']}) with 95% intervals "
        f"over rounds, and in {printed.source} (on GPUs)."
    )


def training_length_table(
    columns: list[Column], speeds: list[dict], printed: PaperStatements | None
) -> tuple[Table, str] | None:
    """Return a table that compares runs of different training length, with its caption.

    None if columns hold no pair of a claim (find_pairs). printed: the paper's differences.
    """
    pairs = find_pairs(columns, speeds)
    if not pairs:
        return None
    cells = [["quantity", "run", "", "baseline", "", "difference", "95% interval", "paper"]]
    for pair in pairs:
        cells += _training_length_rows(pair, printed)
    caption = (
        "Each run is named with its training length; the perplexities of a row are those of the "
        "same text and context. The interval of a difference in perplexity is that of the ratio "
        "times the baseline's perplexity."
    )
    notes = dict.fromkeys(_speed_note(pair.speed) for pair in pairs if pair.speed)
    return Table(cells), " ".join([caption, *notes])


def _training_length_rows(pair: Pair, printed: PaperStatements | None) -> Iterator[list[str]]:
    """Yield the rows of a pair: perplexity and, if there is a benchmark, memory and time."""
    lengths = (pair.claim.trained_at, pair.claim.other_trained_at)
    ours, other = pair.columns
    means = [statistics.mean(column.values(pair.length)) for column in pair.columns]
    megabytes = [f"{entry['memory'] / 1e6:,.1f}" for entry in pair.entries]
    microseconds = [
        f"{1e6 * np.exp(np.mean(np.log(entry['seconds']))) / entry['tokens']:,.1f}"
        for entry in pair.entries
    ]

    def change(ratio) -> str:
        return f"{means[1] * (ratio - 1):+.2f}"

    shown = {  # printed values, and the difference of a ratio
        "perplexity": (f"perplexity at {pair.length:,}", [*map(format_number, means)], change),
        "memory": ("memory (MB)", megabytes, _percent),
        "time per token": ("time per token (µs)", microseconds, _percent),
    }
    for quantity, ratio in pair.ratios().items():
        name, values, show = shown[quantity]
        runs = []
        for column, value in zip(pair.columns, values, strict=True):
            runs += [f"{column.pe}, {column.trained_at:,}", value]
        spread = MISSING
        if quantity != "memory" and ratio.low is not None:
            spread = f"{show(ratio.low)} to {show(ratio.high)}"
        key = quantity.partition(" ")[0]
        paper = printed and printed.difference(key, ours.pe, other.pe, lengths)
        yield [name, *runs, show(ratio.estimate), spread, paper or MISSING]


def _percent(ratio) -> str:
    return f"{ratio - 1:+.1%}"


def _speed_note(result: dict) -> str:
    note = (
        f"Memory and time: one training step of {result['micro_batch']} sequences (bench.py train, "
        f"{result['model']} model, {result['dtype']}, {result['device']}); geometric means of "
        f"{result['repeats']} rounds, with an interval over rounds."
    )
    return note + (" On a CPU; the paper measured GPUs." if on_device(result) else "")
