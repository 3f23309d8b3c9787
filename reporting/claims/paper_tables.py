"""Tables of our numbers next to those that a paper prints."""

from collections.abc import Iterator

from evaluation.significance import BETTER, WORSE
from reporting.columns import Column
from reporting.formatting import MISSING, Table, format_number
from reporting.paper import MARKS_REFERENCE, PaperTable
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
