"""Tables of our numbers next to those that a paper prints."""

import itertools
import math
import statistics
from dataclasses import dataclass, field

from runtime.settings import RECORD_DEFAULTS

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
    mean_and_deviation,
)
from reporting.paper import MARKS_REFERENCE, NDCG, Printed, count_cells, generalization
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
CLOSE = 0.05  # relative deviation of numbers that agree
# Scripts divide the paper's training lengths by these, and use networks of other sizes.
SCALES = (1, 4, 32)


@dataclass
class Agreement:
    """How far our numbers agree with a table that a paper prints."""

    table: str
    """name in results/paper/index.csv"""
    pairs: list[tuple[float, float]] = field(default_factory=list)
    """our number and the paper's, of each cell that was measured"""
    differing: set[str] = field(default_factory=set)
    """settings in which our runs differ from the paper's"""

    def row(self) -> dict[str, str]:
        """Return a row of texts; deviations only in the paper's setting."""
        within, largest, setting = MISSING, MISSING, MISSING
        if self.pairs:
            setting = "yes"
        if self.pairs and self.differing:
            setting = f"no: {', '.join(sorted(self.differing))}"
        elif self.pairs:
            deviations = [ours / theirs - 1 for ours, theirs in self.pairs if theirs]
            within = f"{sum(abs(a - b) <= CLOSE * abs(b) for a, b in self.pairs)}"
            largest = f"{max(deviations, key=abs):+.1%}"
        return {
            "printed table": self.table,
            "cells printed": f"{count_cells(self.table)}",
            "measured": f"{len(self.pairs)}",
            f"within {CLOSE:.0%}": within,
            "largest deviation": largest,
            "paper's setting": setting,
        }

    def text(self) -> str:
        """Return the row as a Markdown table."""
        return Table.from_rows([self.row()]).markdown()


AGREEMENT_CAPTION = (
    "Deviations are relative. Only runs in the paper's setting have them; of others, the settings "
    "that differ are listed, and the table has growth and order."
)
Compared = tuple[Table | None, Agreement]


def paper_comparison(
    columns: list[Column], paper: Printed, marks: Marks | None = None
) -> Compared:
    """Return a table of our numbers and a paper's, and the agreement.

    marks: of our numbers. In the paper's setting, a cell has both
    numbers and the relative difference. Otherwise absolute values are
    not comparable: the table has growth and order, at equal multiples
    of the training length. None if nothing overlaps.
    """
    columns = [each for each in columns if each.pe in paper.numbers]
    columns = [each for each in columns if _has_window(each, paper)]
    agreement = Agreement(paper.table)
    cells = {}  # of several columns of a printed encoding the last counts
    for column in columns:
        agreement.differing |= differing_from(paper, column)
        pe = "t5" if column.pe == "t5-clip" else column.pe
        for context in paper.contexts:
            ours = _mean(column, paper, context)
            theirs = paper.number(column.pe, context).value
            if ours and theirs:
                cells[pe, context] = ours, theirs
    agreement.pairs = [*cells.values()]
    if not cells:
        return None, agreement
    make = _growth_table if agreement.differing else _value_table
    table = make(columns, paper, marks or {})
    if table and paper.has_marks:
        better = f"{BETTER} {MARKS_REFERENCE} is significantly better"
        table.caption += f" Marks: {better}, {WORSE} significantly worse."
    return table, agreement


def differing_from(paper: Printed, column: Column) -> set[str]:
    """Return the settings in which a column's runs differ from a paper's.

    Settings that neither the paper nor the record names are not
    compared. Encoders have those of the pretraining.
    """
    differing = set()
    for record in column.records:
        settings = record["settings"]
        trained = settings.get("encoder", record)
        defaults = {} if "model" in settings else RECORD_DEFAULTS
        ours = defaults | settings | trained["settings"]
        ours |= {name: record.get(name) for name in ("size", "block_size", "cache_window")}
        ours |= record["data"]
        if trained.get("step") is not None:
            ours["steps"] = trained["step"]
        theirs = paper.settings | {"size": paper.size, "dataset": paper.dataset}
        theirs |= {"tokenizer": "gpt2", "block_size": paper.lengths.get(column.pe, "")}
        if window := paper.settings.get("cache_window"):
            theirs["cache_window"] = window * column.trained_at // paper.lengths[column.pe]
        names = {name for name, value in theirs.items() if value != "" and name in ours}
        differing |= {name for name in names if ours[name] != theirs[name]}
        if paper.numbers and not paper.has_protocol_of(record):
            differing.add("protocol")
    return differing


def _has_window(column: Column, paper: Printed) -> bool:
    """Return whether a column has a cache window, or none, as the paper's table."""
    return ("cache_window" in paper.settings) == bool(column.records[0].get("cache_window"))


def _mean(column: Column, paper: Printed, context: int) -> float | None:
    """Return our value at a printed context, scaled with the training length."""
    return column.mean(context * column.trained_at / paper.lengths[column.pe])


def _value_table(columns: list[Column], paper: Printed, marks: Marks) -> Table:
    """Return a row for each encoding: our number, the paper's, relative difference."""
    cells = [["encoding", *(f"{context:,}" for context in paper.contexts)]]
    for column in columns:
        row = [column.label]
        for context in paper.contexts:
            number = paper.number(column.pe, context)
            ours = mean_and_deviation(column.values(context))
            printed, value = number.text, column.mean(context)
            if value and number.value:
                printed += f", {value / number.value - 1:+.1%}"
            ours = marked(ours, marks.get((column.label, context), ""))
            row.append(MISSING if ours == printed == MISSING else f"{ours} ({printed})")
        cells.append(row)
    caption = (
        f"{paper.metric}, in parentheses that of {paper.source} ({paper.dataset}, {paper.size}) "
        "and the relative difference."
    )
    return Table(cells, caption=caption)


def _growth_table(columns: list[Column], paper: Printed, marks: Marks) -> Table | None:
    """Return growth and order of the encodings at the longest context that both have.

    Growth is relative to the training length, or to the shortest
    context of a table without it.
    """
    base = paper.trained_at if paper.trained_at in paper.contexts else paper.contexts[0]

    def values(column: Column, context: int) -> tuple[float, float] | None:
        pair = _mean(column, paper, context), paper.number(column.pe, context).value
        return pair if all(pair) else None

    both = [n for n in paper.contexts if n > base and any(values(c, n) for c in columns)]
    if not both:
        return None
    known = [(column, pair) for column in columns if (pair := values(column, both[-1]))]
    sign = -1 if paper.metric == NDCG else 1  # the best first
    orders = [sorted(sign * pair[side] for _, pair in known) for side in (0, 1)]
    cells = [["encoding", "growth", "order"]]
    for column in columns:
        growth, order = MISSING, MISSING
        first, last = values(column, base), values(column, both[-1])
        if first and last:
            length = both[-1] * column.trained_at / paper.lengths[column.pe]
            ours, theirs = (format_number(b / a) for a, b in zip(first, last, strict=True))
            ours = marked(ours, marks.get((column.label, length), ""))
            growth = f"{ours} ({marked(theirs, paper.number(column.pe, both[-1]).mark)})"
        if last:
            ranks = [orders[side].index(sign * last[side]) + 1 for side in (0, 1)]
            order = f"{ranks[0]} ({ranks[1]})"
        cells.append([column.label, growth, order])
    pairs = [*itertools.combinations([pair for _, pair in known], 2)]
    same = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs)
    unit, name = paper.trained_at or base, "the training length"
    name = name if paper.trained_at else "the shortest context"
    start = name if base == unit else f"{base / unit:g} times it"
    caption = (
        f"{paper.metric} at {both[-1] / unit:g} times {name}: growth relative to {start}, and "
        f"order of the encodings; in parentheses those of {paper.source} ({paper.dataset}, "
        f"{paper.size}). {same} of {len(pairs)} pairs of encodings have the paper's order."
    )
    return Table(cells, caption=caption)


def receptive_field_comparison(columns: list[Column], paper: Printed) -> Compared:
    """Return our receptive fields next to the printed ones, in training lengths.

    At smaller training lengths, windows and slopes are scaled with it.
    """
    rows = {row["encoding"]: row for row in paper.rows}
    length, context = (int(paper.rows[0][name]) for name in ("trained_at", "context"))
    agreement = Agreement(paper.table)
    cells = [["encoding", "here", "paper's encoding", "paper"]]
    for column in columns:
        row = rows.get(name := _name_in_paper(column, length))
        ours = column.mean(context / length * column.trained_at)
        if row and ours:
            pair = ours / column.trained_at, int(row["receptive_field"]) / length
            theirs = f"{row['relation'].strip('=')}{pair[1]:.2f}"
            cells.append([column.label, f"{pair[0]:.2f}", name, theirs])
            is_below = row["relation"] == "<" and pair[0] < pair[1]
            agreement.pairs.append((pair[1], pair[1]) if is_below else pair)
            agreement.differing |= differing_from(paper, column)
            agreement.differing |= {"block_size"} if column.trained_at != length else set()
    caption = (
        f"Receptive field in training lengths, of contexts of {context / length:g} training "
        f"lengths; paper: {paper.source} ({paper.dataset}, {paper.size}, trained with {length:,} "
        "tokens). Slopes and windows are scaled with the training length, windows also with "
        "the number of layers."
    )
    return Table(cells, caption=caption) if agreement.pairs else None, agreement


def _name_in_paper(column: Column, trained_at: int) -> str:
    """Return the encoding of the paper, GPT-2 small, whose window or slope ours scales."""
    from model import SIZES  # takes a second

    ratio = trained_at / column.trained_at
    name, _, value = column.pe.rpartition("=")
    if name == "window:w" and (size := SIZES.get(column.records[0].get("size"))):
        return f"{name}={float(value) * ratio * size[0] / SIZES['small'][0]:g}"
    if name == "alibi-shift:shift":
        return f"{name}={float(value) + math.log2(ratio):g}"
    return column.pe


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


def paper_speeds(benchmark: str, result: dict, printed: Printed) -> Compared:
    """Return a table of ratios of speed here and in a paper, and the agreement.

    Ratios whose context a paper does not state, or that was not
    measured, are next to each measured context; these do not count as
    cells.
    """
    ratios = [row for row in printed.rows if row["ratio"]]
    agreement = Agreement(printed.table)
    if printed.size not in ("", result["model"]):
        agreement.differing.add("size")
    if result["device"].startswith("cpu"):
        agreement.differing.add("device")
    cells = [
        ["benchmark", "context", "speed of", "relative to", "here", "paper", "at context"]
    ]
    columns = {column.pe: column for column in speed_columns(result)}
    for row in ratios:
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
                if printed_at in ("", f"{context}"):
                    agreement.pairs.append((ratio.estimate, float(row["ratio"])))
    caption = (
        f"Ratios of speed here ({result['model']} model, {result['device']}) with 95% intervals "
        f"over rounds, and in {printed.source} (on GPUs)."
    )
    return Table(cells, caption=escape_markdown(caption)) if len(
        cells
    ) > 1 else None, agreement


def training_length_table(
    columns: list[Column], speeds: list[dict], printed: Printed
) -> Compared:
    """Return a table of pairs of runs of different training length, and the agreement.

    Pairs are at the paper's lengths (then also of its size and data
    set) or at a scale of them. speeds: results of `bench.py train`,
    where memory and time are those of steps with the same number of
    sequences.
    """
    agreement = Agreement(printed.table)
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
                cells.append([name, *ours, row["difference"]])
                if isinstance(ratio, Interval):
                    agreement.pairs.append(_numbers(numbers[2], row["difference"]))
                if scale > 1:
                    agreement.differing |= {"size", "block_size", "dataset"}
    caption = (
        "Runs are named with their training length. The interval of a difference in perplexity is "
        "that of the ratio times the baseline's perplexity. Memory and time: one training step "
        "(bench.py train), geometric means, with an interval over rounds."
    )
    return Table(cells, caption=escape_markdown(caption)) if len(
        cells
    ) > 1 else None, agreement


def _numbers(ours: str, theirs: str) -> tuple[float, float]:
    """Return the numbers of two texts: "-29.6%", "< 0"."""
    return float(ours.strip("%")), float(theirs.strip("<% "))


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


def generalization_table(records: list[dict], paper: Printed) -> tuple[Table, Agreement]:
    """Return a table of results on other data, ours and the paper's, and the agreement.

    A row for each model; of several columns of a model the first
    counts. records: see accuracy_and_perplexity.
    """
    printed = generalization()
    agreement = Agreement(paper.table)
    numbers = {}  # name of a column -> {model: value}
    for measure, group in accuracy_and_perplexity(records).items():
        columns = make_columns(group, "value")[::-1]
        by_model = {(column.records[0]["size"], column.pe): column for column in columns}
        ours = {model: each.mean(each.trained_at) for model, each in by_model.items()}
        numbers[measure] = ours
        for name, key in PAPER_COLUMNS.get(measure, {}).items():
            numbers[name] = {model: values[key] for model, values in printed.items()}
            for model in ours.keys() & printed.keys():
                agreement.pairs.append((ours[model], printed[model][key]))
                agreement.differing |= differing_from(paper, by_model[model])
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
    return Table(cells, caption=caption), agreement
