"""Tables of our numbers next to those that a paper prints."""

import itertools
import math
import statistics

from evaluation.intervals import Interval
from evaluation.measures import MEASURES, log_seconds_per_token
from evaluation.significance import BETTER, WORSE, explain_marks, paired_test
from reporting.columns import Column, dataset_of, make_columns, sort_key
from reporting.comparisons import (
    Comparison,
    accuracy_and_perplexity,
    compare,
    printed_interval,
    speed_columns,
)
from reporting.formatting import (
    MISSING,
    Table,
    escape_markdown,
    format_number,
    join_numbers,
    mean_and_deviation,
)
from reporting.paper import MARKS_REFERENCE, SPEED, Printed
from reporting.tables import Marks, marked

# Columns of a paper's table next to ours; it does not name its
# HellaSwag metric. Raw WikiText-2 and WikiText-103 have one test text,
# but two columns there.
PAPER_COLUMNS = {
    "acc_norm": {"paper": "hellaswag_acc"},
    "fineweb": {"paper (fineweb)": "fineweb10b_ppl"},
    "wikitext103": {
        "paper (wikitext103)": "wikitext103_ppl",
        "paper (WikiText-2)": "wikitext2_ppl",
    },
}
UNITS = {"memory": "memory (MB)", "time per token": "time per token (µs)"}
# Scripts divide the paper's training lengths by these, and use networks of other sizes.
SCALES = (1, 4, 32)


def paper_comparison(
    columns: list[Column], paper: Printed, marks: Marks | None = None
) -> Table | None:
    """Return a table of our numbers and a paper's.

    None if nothing overlaps. A row for each encoding; a cell is our
    number, in parentheses the paper's. marks: of our numbers. In the
    paper's setting a cell also has the relative difference. Otherwise
    both numbers are relative to the training length, at equal multiples
    of it; in a table of several training lengths, relative to its
    shortest context.
    """
    columns = [column for column in columns if column.pe in paper.numbers]
    records = [record for column in columns for record in column.records]
    if not records:
        return None
    contexts, base = paper.contexts, None
    source = f"in parentheses that of {paper.source} ({paper.dataset}, {paper.size}"
    if all(_same_setting(record, paper) for record in records):
        names = [f"{context:,}" for context in contexts]
        caption = f"{paper.metric}, {source}) and the relative difference."
    else:
        base = paper.trained_at or contexts[0]
        if not paper.has_marks:
            # both are 1 there
            contexts = [context for context in contexts if context != base]
        names = [f"{context / base:g}x" for context in contexts]
        what = "the training length" if paper.trained_at else "the shortest context"
        trained_at = join_numbers(paper.lengths[column.pe] for column in columns)
        caption = (
            f"{paper.metric} relative to its value at {what}, {source}, trained with {trained_at} "
            "tokens). Absolute values are not comparable."
        )
        if not all(map(paper.has_protocol_of, records)):
            caption += " The protocols differ (docs/evaluation.md)."
    rows = []
    for column in columns:
        cells = [_cell(column, paper, marks or {}, context, base) for context in contexts]
        rows.append([column.label, *cells])
    if paper.has_marks:
        better = f"{BETTER} {MARKS_REFERENCE} is significantly better"
        caption += f" Marks: {better}, {WORSE} significantly worse."
    if all(text == MISSING for row in rows for text in row[1:]):
        return None
    return Table([["encoding", *names], *rows], caption=caption)


def seed_marks(columns: list[Column], paper: Printed | None) -> tuple[Marks, str]:
    """Return marks of paired t-tests over seeds, and a sentence on them.

    As in table 3 of the Sandwich paper, for its encodings, if all have
    two seeds. Columns with other settings than the reference have none.
    """
    numbers = paper.numbers if paper and paper.has_marks else ()
    covered = [column for column in columns if column.pe in numbers]
    seeds = min((len(column.records) for column in covered), default=0)
    references = [column for column in covered if column.pe == MARKS_REFERENCE]
    if seeds < 2 or not references:
        return {}, ""
    marks, first = {}, references[0]
    for column in covered:
        is_other = column is not first and not first.differing(column)
        for length in column.lengths() if is_other else ():
            values = first.values_by_seed(length), column.values_by_seed(length)
            if test := paired_test(*values):
                marks[column.label, length] = test.mark
    caption = " " + explain_marks(MARKS_REFERENCE, f"{seeds} seeds")
    if len(covered) < len(columns):
        caption += " Encodings that the paper's table does not have are not marked."
    return marks, caption


def _same_setting(record: dict, paper: Printed) -> bool:
    """Return whether a record has a paper's model, data, tokenizer and protocol."""
    return (
        record["size"] == paper.size
        and record["block_size"] == paper.lengths[record["pe"]]
        and record["data"]["dataset"] == paper.dataset
        and record["data"].get("tokenizer", "gpt2") == "gpt2"
        and paper.has_protocol_of(record)
    )


def _cell(
    column: Column, paper: Printed, marks: Marks, context: int, base: int | None
) -> str:
    """Return our number, and the paper's in parentheses; base: context of a divisor."""
    scale = column.trained_at / paper.lengths[column.pe]
    value, theirs = column.mean(context * scale), paper.number(column.pe, context)
    if base:
        ours = format_number(_ratio(value, column.mean(base * scale)))
        printed = format_number(_ratio(theirs.value, paper.number(column.pe, base).value))
        printed = marked(printed, theirs.mark)
    else:
        ours, printed = mean_and_deviation(column.values(context)), theirs.text
        if ratio := _ratio(value, theirs.value):
            printed += f", {ratio - 1:+.1%}"
    ours = marked(ours, marks.get((column.label, context * scale), ""))
    return MISSING if ours == printed == MISSING else f"{ours} ({printed})"


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else value / base


def paper_speeds(benchmark: str, result: dict, printed: Printed) -> Table | None:
    """Return a table of ratios of speed here and in a paper.

    None if no ratio was measured. Ratios whose context a paper does not
    state, or that was not measured, are next to each measured context.
    """
    cells = [
        ["benchmark", "context", "speed of", "relative to", "here", "paper", "at context"]
    ]
    columns = {column.pe: column for column in speed_columns(result)}
    for row in printed.rows if printed.metric == SPEED else ():
        pe, other, printed_at = row["encoding"], row["relative_to"], row["context"]
        if row["benchmark"] != benchmark or not {pe, other} <= {*columns}:
            continue
        shown = [printed_at] if printed_at in result["contexts"] else result["contexts"]
        for context in map(int, shown):
            pair = columns[pe], columns[other]
            ratio = compare(pair, (context, context), MEASURES["speed"])
            if isinstance(ratio, Interval):
                at = f"{int(printed_at):,}" if printed_at else MISSING
                numbers = printed_interval(ratio), f"{float(row['ratio']):.3f}", at
                cells.append([benchmark, f"{context:,}", pe, other, *numbers])
    caption = (
        f"Ratios of speed here ({result['model']} model, {result['device']}) with 95% intervals "
        f"over rounds, and in {printed.source} (on GPUs)."
    )
    return Table(cells, caption=escape_markdown(caption)) if len(cells) > 1 else None


def training_length_table(
    columns: list[Column], speeds: list[dict], printed: Printed
) -> Table | None:
    """Return a table of pairs of runs of different training length.

    None if columns hold no pair of the paper's, at its lengths (then
    also its size and data set) or a scale of them. speeds: results of
    `bench.py train`, where memory and time are those of steps with the
    same number of sequences.
    """
    cells = [["quantity", "run", "", "baseline", "", "difference", "95% interval", "paper"]]
    for row, scale, *runs in itertools.product(printed.rows, SCALES, columns, columns):
        names, quantity = (row["encoding"], row["baseline"]), row["quantity"]
        lengths = int(row["trained_at"]) // scale, int(row["baseline_trained_at"]) // scale
        models = [(run.pe, run.trained_at) for run in runs]
        sizes = {run.records[0].get("size") for run in runs}
        data = dataset_of(runs[0].records[0])
        has_size = len(sizes) == 1
        if scale == 1:
            has_size = sizes == {row["size"]} and data == row["dataset"]
        if models != [*zip(names, lengths, strict=True)] or not has_size:
            continue
        pairs, at = [runs], (lengths[1], lengths[1])
        if quantity != "perplexity":
            by_name = [
                {each.pe: each for each in speed_columns(result)} for result in speeds
            ]
            pairs = [[found.get(name) for name in names] for found in by_name]
            at = lengths
        for first, second in pairs:
            ratio = (
                first
                and second
                and compare((first, second), at, MEASURES[quantity], "block_size")
            )
            if ratio is not None:
                numbers = _difference(quantity, (first, second), at, ratio)
                labels = [f"{name}, {n:,}" for name, n in zip(names, lengths, strict=True)]
                name = UNITS.get(quantity, f"perplexity at {at[1]:,}")
                ours = [labels[0], numbers[0], labels[1], *numbers[1:]]
                cells.append([name, *ours, row["difference"] or MISSING])
    caption = (
        "Runs are named with their training length. The interval of a difference in perplexity is "
        "that of the ratio times the baseline's perplexity. Memory and time: one training step "
        "(bench.py train), geometric means, with an interval over rounds."
    )
    return Table(cells, caption=escape_markdown(caption)) if len(cells) > 1 else None


def _difference(
    quantity: str,
    columns: tuple[Column, Column],
    lengths: tuple[int, int],
    ratio: Comparison,
) -> list[str]:
    """Return both values, their difference and its interval as text."""
    is_benched = quantity in UNITS
    values = [_value(quantity, *each) for each in zip(columns, lengths, strict=True)]

    def show(factor: float) -> str:
        change = factor - 1
        return f"{change:+.1%}" if is_benched else f"{values[1] * change:+.2f}"

    change, spread = MISSING, MISSING
    if isinstance(ratio, Interval):
        change = show(ratio.estimate)
        if quantity != "memory" and ratio.low is not None and ratio.high is not None:
            spread = f"{show(ratio.low)} to {show(ratio.high)}"
    return [*(f"{value:,.{1 if is_benched else 2}f}" for value in values), change, spread]


def _value(quantity: str, column: Column, length: int) -> float:
    """Return a perplexity, megabytes, or the microseconds per token."""
    if quantity == "perplexity":
        return statistics.mean(column.values(length))
    entry = column.records[0]["lengths"][str(length)]
    if quantity == "memory":
        return entry["memory"] / 1e6
    return 1e6 * math.exp(statistics.mean(log_seconds_per_token(entry)))


def generalization_table(
    records: list[dict], printed: dict[tuple[str, str], dict[str, float]]
) -> Table:
    """Return a table of results on other data, ours and the paper's, by model.

    Of several columns of a model the first counts. records: see
    accuracy_and_perplexity; printed: {(size, encoding): {column:
    value}}.
    """
    numbers = {}  # name of a column -> {model: value}
    for measure, group in accuracy_and_perplexity(records).items():
        numbers[measure] = {
            (column.records[0]["size"], column.pe): column.mean(column.trained_at)
            for column in make_columns(group, "value")[::-1]
        }
        for name, key in PAPER_COLUMNS.get(measure, {}).items():
            numbers[name] = {model: values[key] for model, values in printed.items()}
    cells = [["size", "encoding", *numbers]]
    models = {(record["size"], record["pe"]) for record in records}
    for model in sorted(models, key=lambda model: (model[0], sort_key(model[1]))):
        values = [by_model.get(model) for by_model in numbers.values()]
        cells.append([*model, *map(format_number, values)])
    caption = (
        "HellaSwag accuracy in percent, perplexity on other data; paper: CABLE, version 1, table 1."
        " The paper does not name its HellaSwag metric."
        " For protocols and standard errors, see the tables below."
    )
    return Table(cells, caption=caption)
