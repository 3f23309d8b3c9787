"""Tables of our numbers next to those that a paper prints."""

from evaluation.significance import BETTER, WORSE
from reporting.columns import Column
from reporting.formatting import MISSING, Table, format_number, mean_and_deviation
from reporting.paper import MARKS_REFERENCE, PaperTable
from reporting.tables import Marks, marked

EXPLAINED_MARKS = f"{BETTER} {MARKS_REFERENCE} is significantly better, {WORSE} significantly worse"


def paper_comparison(
    columns: list[Column], paper: PaperTable, marks: Marks | None = None
) -> tuple[Table, str] | None:
    """Return a table of our numbers and a paper's, with its caption; None if nothing overlaps.

    It has a row for each encoding; a cell is our number, in parentheses the paper's. marks: of our
    numbers. With the paper's model size, training length, data set, tokenizer (GPT-2's) and, if it
    states one, protocol, a cell also has the relative difference. Otherwise both numbers are
    relative to the training length, at equal multiples of it; in a table of several training
    lengths, relative to its shortest context.
    """
    columns = [column for column in columns if paper.covers(column.pe)]
    records = [record for column in columns for record in column.records]
    if not records:
        return None
    contexts = paper.contexts()
    if all(_same_setting(record, paper) for record in records):
        cell, names = _absolute_cell, [f"{context:,}" for context in contexts]
        caption = f"{paper.metric}, in parentheses that of {{}}) and the relative difference."
    else:
        base = paper.trained_at or contexts[0]
        if not paper.marks:
            contexts = [context for context in contexts if context != base]  # both are 1 there
        cell, names = _relative_cell, [f"{context / base:g}x" for context in contexts]
        what = "the training length" if paper.trained_at else "the shortest context"
        lengths = sorted({paper.training_length(column.pe) for column in columns})
        trained_at = " and ".join(f"{length:,}" for length in lengths)
        caption = (
            f"{paper.metric} relative to its value at {what}, in parentheses that of {{}}, trained "
            f"with {trained_at} tokens). Absolute values are not comparable."
        )
        if not all(map(paper.has_protocol_of, records)):
            caption += " The protocols differ (docs/evaluation.md)."
    caption = caption.format(f"{paper.source} ({paper.dataset}, {paper.size}")
    rows = []
    for column in columns:
        cells = [cell(column, paper, context, marks or {}) for context in contexts]
        rows.append([column.label, *cells])
    if paper.marks:
        caption += f" Marks: {EXPLAINED_MARKS}."
    if all(text == MISSING for row in rows for text in row[1:]):
        return None
    return Table([["encoding", *names], *rows]), caption


def _same_setting(record: dict, paper: PaperTable) -> bool:
    return (
        record["size"] == paper.size
        and record["block_size"] == paper.training_length(record["pe"])
        and record["data"]["dataset"] == paper.dataset
        and record["data"].get("tokenizer", "gpt2") == "gpt2"
        and paper.has_protocol_of(record)
    )


def _absolute_cell(column: Column, paper: PaperTable, context: int, marks: Marks) -> str:
    value, theirs = column.mean(context), paper.value(column.pe, context)
    ours = format_number(value)
    if paper.marks:  # the paper's table has deviations
        ours = mean_and_deviation(column.values(context))
    ratio = _ratio(value, theirs)
    difference = f", {ratio - 1:+.1%}" if ratio else ""
    ours = marked(ours, marks.get((column.label, context), ""))
    return _with_paper(ours, f"{paper.printed(column.pe, context)}{difference}")


def _relative_cell(column: Column, paper: PaperTable, context: int, marks: Marks) -> str:
    base = paper.trained_at or paper.contexts()[0]
    length, first = (
        n * column.trained_at / paper.training_length(column.pe) for n in (context, base)
    )
    ours = format_number(_ratio(column.mean(length), column.mean(first)))
    theirs = _ratio(paper.value(column.pe, context), paper.value(column.pe, base))
    printed = marked(format_number(theirs), paper.mark(column.pe, context))
    return _with_paper(marked(ours, marks.get((column.label, length), "")), printed)


def _with_paper(ours: str, theirs: str) -> str:
    """Return our number and the paper's; a dash if there is neither."""
    return MISSING if ours == theirs == MISSING else f"{ours} ({theirs})"


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base
