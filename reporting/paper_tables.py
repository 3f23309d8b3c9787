"""Our numbers next to those that a paper prints.

    agreement = Agreement(printed, length_cells(columns, printed, marks))
    agreement.table().text()  # None if no printed cell was measured
    agreement.row()

Whatever the paper prints becomes cells; a table of contexts in another setting than the paper's has
growth and order instead of the values.
"""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from evaluation import measures
from evaluation.significance import BETTER, WORSE, explain_marks, paired_test
from reporting.columns import Column, compare, dataset_of, group_by, make_columns
from reporting.formatting import (
    MISSING,
    Table,
    mean_and_deviation,
    with_interval,
)
from reporting.paper import (
    MARKS_REFERENCE,
    NDCG,
    Number,
    Printed,
)
from reporting.tables import Marks

# Numbers that a paper prints of HellaSwag and of other data; it does not name its HellaSwag metric.
# Raw WikiText-2 and WikiText-103 have one test text; the paper has two columns.
QUANTITIES = {
    "acc": ("hellaswag_acc",),
    "fineweb": ("fineweb10b_ppl",),
    "wikitext103": ("wikitext103_ppl",),
    "wikitext2-tokenized": ("wikitext2_ppl",),
}
CLOSE = 0.05  # relative deviation of numbers that agree
# Scripts divide the paper's training lengths by these, and use networks of other sizes.
SCALES = (1, 4, 32)


class Cell(NamedTuple):
    """A printed cell, and our number for it."""

    row: str  # our label
    encoding: str  # the paper's
    column: str
    ours: Number
    theirs: Number
    differing: set[str]  # settings in which our runs differ from the paper's

    def deviation(self) -> float:
        """Return the relative deviation; printed "< 0": 0 if ours is."""
        ours, theirs = self.ours.value, self.theirs.value
        return (ours - theirs) / theirs if theirs else max(0.0, ours)


@dataclass
class Agreement:
    """How far our numbers agree with a table that a paper prints."""

    paper: Printed
    cells: list[Cell]

    def measured(self) -> list[Cell]:
        """Return our cells; of several of a printed cell the last counts."""
        found = [cell for cell in self.cells if cell.ours.value is not None]
        return [*{(cell.encoding, cell.column): cell for cell in found}.values()]

    def differing(self) -> list[str]:
        """Return the settings in which our runs differ from the paper's."""
        return sorted(set().union(*(cell.differing for cell in self.measured())))

    def row(self) -> dict[str, str]:
        """Return a row of texts; deviations only in the paper's setting."""
        measured = self.measured()
        row = {
            "printed table": self.paper.table,
            "cells printed": f"{len(self.paper.rows)}",
            "measured": f"{len(measured)}",
        }
        if differing := self.differing():
            row["paper's setting"] = f"no: {', '.join(differing)}"
        elif measured:
            deviations = [*map(Cell.deviation, measured)]
            row["paper's setting"] = "yes"
            row[f"within {CLOSE:.0%}"] = f"{sum(abs(each) <= CLOSE for each in deviations)}"
            row["largest deviation"] = f"{max(deviations, key=abs):+.1%}"
        return row

    def table(self) -> Table | None:
        """Return our numbers with the paper's in parentheses; None: none was measured.

        In the paper's setting with relative differences. Values of contexts in another setting are
        not comparable: the table has growth and order.
        """
        if not self.measured():
            return None
        is_off, paper = bool(self.differing()), self.paper
        setting = ", ".join(filter(None, (paper.source, paper.dataset, paper.size)))
        note = f"in parentheses the numbers of {setting}"
        if paper.has_marks:
            note += f". {BETTER}: {MARKS_REFERENCE} is significantly better, {WORSE}: worse"
        if is_off and paper.numbers:
            return _growth_table(self.cells, paper, note)
        rows = {}
        for cell in self.cells:
            text = cell.theirs.text
            if cell.ours.value is not None and not is_off:
                text += f", {cell.deviation():+.1%}"
            row = rows.setdefault(cell.row, {"encoding": cell.row})
            row[cell.column] = f"{cell.ours.text} ({text})"
        table = Table.from_rows([*rows.values()])
        table.caption = f"{paper.metric}, {note}."
        return table


AGREEMENT_CAPTION = (
    "Deviations are relative. Only runs in the paper's setting have them; of others, the settings "
    "that differ are listed, and the table has growth and order."
)


def _growth_table(cells: list[Cell], paper: Printed, note: str) -> Table | None:
    """Return growth and order of the encodings at the longest context that both have.

    Growth is relative to the training length, or to the shortest context of a table without it.
    """
    from scipy import stats

    base = paper.trained_at if paper.trained_at in paper.contexts else paper.contexts[0]
    pairs = {
        (cell.row, int(cell.column.replace(",", ""))): (cell.ours, cell.theirs)
        for cell in cells
        if cell.ours.value
    }
    last = max(context for _, context in pairs)
    if last <= base:
        return None
    labels = [label for label, context in pairs if context == last]
    values = np.array([[each.value for each in pairs[label, last]] for label in labels])
    if paper.metric == NDCG:
        values = -values  # the best first
    ranks = stats.rankdata(values, "min", axis=0).astype(int)
    rows = []
    for label, rank in zip(labels, ranks, strict=True):
        growth = MISSING
        if first := pairs.get((label, base)):
            ends = zip(first, pairs[label, last], strict=True)
            growth = "{} ({})".format(*(f"{b.value / a.value:,.2f}{b.mark}" for a, b in ends))
        rows.append({"encoding": label, "growth": growth, "order": "{} ({})".format(*rank)})
    same = [np.prod(a - b) > 0 for a, b in itertools.combinations(values, 2)]
    table = Table.from_rows(rows)
    table.caption = (
        f"{paper.metric} at {last / base:g} times a context of {base:,}, ours in proportion to the "
        f"training length: growth, and order of the encodings; {note}. {sum(same)} of {len(same)} "
        "pairs of encodings have the paper's order."
    )
    return table


def differing_from(paper: Printed, column: Column) -> set[str]:
    """Return the settings in which a column's runs differ from a paper's.

    Settings that neither the paper nor the record names are not compared. Encoders have those of
    the pretraining.
    """
    from training.settings import record_defaults  # late: PyTorch takes seconds

    differing = set()
    length: Any = paper.lengths.get(paper.name_of(column.pe), paper.trained_at or "")
    theirs = paper.settings | {"size": paper.size, "dataset": paper.dataset}
    theirs |= {"tokenizer": "gpt2", "block_size": length}
    if "cache_window" in theirs:
        theirs["cache_window"] = theirs["cache_window"] * column.trained_at // length
    for record in column.records:
        settings = record["settings"]
        trained = settings.get("encoder", record)
        ours = {} if "model" in settings else record_defaults()
        ours = ours | settings | trained["settings"] | record["data"] | record
        if trained.get("step") is not None:
            ours["steps"] = trained["step"]
        for name, value in theirs.items():
            if value != "" and name in ours and ours[name] != value:
                differing.add(name)
        # Sandwich scores the last token of segments (section 3.4); CABLE states no protocol.
        targets = (record.get("protocol") or {}).get("targets")
        if paper.is_sandwich and paper.numbers and not targets:
            differing.add("protocol")
    return differing


def length_cells(columns: list[Column], paper: Printed, marks: Marks) -> Iterator[Cell]:
    """Yield the cells of a table of contexts; marks: of our numbers.

    Contexts are scaled with the training length.
    """
    for column in columns:
        name = paper.name_of(column.pe)
        is_cached = bool(column.records[0].get("cache_window"))
        if name not in paper.lengths or is_cached != ("cache_window" in paper.settings):
            continue
        differing = differing_from(paper, column)
        for (encoding, context), theirs in paper.numbers.items():
            if encoding == name:
                length = context * column.trained_at / paper.lengths[name]
                mark = marks.get((column.label, length), "")
                ours = _number(column.values(length), mark)
                yield Cell(column.label, name, f"{context:,}", ours, theirs, differing)


def _number(values: Sequence[float], mark: str = "") -> Number:
    """Return the mean of seeds with its deviation; none: a dash."""
    mean = statistics.mean(values) if values else None
    return Number(mean, f"{mean_and_deviation(values)}{mark}", mark)


def receptive_field_cells(columns: list[Column], paper: Printed) -> Iterator[Cell]:
    """Yield our receptive fields and the printed ones, in training lengths.

    At smaller training lengths, windows and slopes are scaled with it.
    """
    rows = {row["encoding"]: row for row in paper.rows}
    length, context = (int(paper.rows[0][name]) for name in ("trained_at", "context"))
    scale = context // length
    for column in columns:
        row = rows.get(name := _name_in_paper(column, length))
        field = column.mean(scale * column.trained_at)
        if row and field:
            ours, theirs = field / column.trained_at, int(row["receptive_field"]) / length
            text = f"{name}: {row['relation'].strip('=')}{theirs:.2f}"
            is_below = row["relation"] == "<" and ours < theirs
            number = Number(theirs if is_below else ours, f"{ours:.2f}")
            title = f"receptive field / training length, context {scale}x"
            numbers = number, Number(theirs, text), differing_from(paper, column)
            yield Cell(column.label, name, title, *numbers)


def _name_in_paper(column: Column, trained_at: int) -> str:
    """Return the encoding of the paper, GPT-2 small, whose window or slope ours scales.

    Windows are scaled with the number of layers, too.
    """
    from model import SIZES  # takes a second

    ratio = trained_at / column.trained_at
    name, _, value = column.pe.rpartition("=")
    if name == "window:w" and (size := SIZES.get(column.records[0]["size"])):
        return f"{name}={float(value) * ratio * size[0] / SIZES['small'][0]:g}"
    if name == "alibi-shift:shift":
        return f"{name}={float(value) + math.log2(ratio):g}"
    return column.pe


def seed_marks(columns: list[Column], paper: Printed | None) -> tuple[Marks, str]:
    """Return marks of paired t-tests over seeds, and a sentence on them.

    As in table 3 of the Sandwich paper, for its encodings, if all have two seeds. Columns with
    other settings than the reference have none.
    """
    names = paper.lengths if paper and paper.has_marks else ()
    covered = [column for column in columns if column.pe in names]
    seeds = min((len(column.records) for column in covered), default=0)
    first = next((column for column in covered if column.pe == MARKS_REFERENCE), None)
    if seeds < 2 or not first:
        return {}, ""
    marks = {}
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


def _entries(
    result: dict, encodings: Sequence[str], contexts: Sequence, size: str
) -> tuple[list[dict], set[str]] | None:
    """Return the entries of two encodings of a benchmark at a context each, or None.

    That of the fused kernel where the encoding has it, else that of Triton. With the settings in
    which it differs from a paper's size and GPU.
    """
    found = []
    for name, context in zip(encodings, contexts, strict=True):
        cases = result["contexts"].get(str(context), {})
        found.append(cases.get(name) or cases.get(f"{name} triton"))
    differing = {"size"} if size not in ("", result["model"]) else set()
    differing |= {"device"} if result["device"].startswith("cpu") else set()
    return (found, differing) if all(found) else None


def speed_cells(benchmark: str, result: dict, paper: Printed) -> Iterator[Cell]:
    """Yield ratios of speed; without the paper's context those of the longest one."""
    for row in paper.rows:
        names, context, other = (row["encoding"], row["relative_to"]), row["context"], set()
        if context not in result["contexts"]:
            context, other = max(result["contexts"], key=int), {"context"}
        found = _entries(result, names, 2 * [context], row["size"])
        if found and row["benchmark"] == benchmark:
            ratio = measures.speed_ratio(*found[0])
            ours = Number(ratio.estimate, with_interval(ratio, 3))
            theirs = Number(float(row["ratio"]), f"{float(row['ratio']):.3f}")
            label = "{} / {}, {:,}".format(*names, int(context))
            case = f"{names}, {row['context']}"
            yield Cell(label, case, f"{benchmark} speed", ours, theirs, found[1] | other)


def training_length_cells(
    columns: list[Column], speeds: list[dict], paper: Printed
) -> Iterator[Cell]:
    """Yield differences between runs of different training length.

    Pairs are at the paper's lengths or at a scale of them. speeds: results of `bench.py train`,
    where memory and time are those of steps with the same number of sequences. The interval of a
    difference in perplexity is that of the ratio times the baseline's perplexity.
    """
    by_training = {(column.pe, column.trained_at): column for column in columns}
    for row, scale in itertools.product(paper.rows, SCALES):
        names, quantity = (row["encoding"], row["baseline"]), row["quantity"]
        lengths = int(row["trained_at"]) // scale, int(row["baseline_trained_at"]) // scale
        pairs = [*zip(names, lengths, strict=True)]
        if not by_training.keys() >= {*pairs}:
            continue
        runs = [by_training[pair] for pair in pairs]
        first = runs[0].records[0]
        theirs = {("block_size", 1), ("size", row["size"]), ("dataset", row["dataset"])}
        ours = (
            ("block_size", scale),
            ("size", first["size"]),
            ("dataset", dataset_of(first)),
        )
        differing = {name for name, _ in theirs.difference(ours)}
        ratio, unit, name = None, 100, f"{quantity} (%)"
        if quantity == "perplexity":
            ratio = compare(runs, lengths[1], "block_size")
            unit, name = runs[1].mean(lengths[1]), quantity
        for result in speeds if quantity != "perplexity" else ():
            if found := _entries(result, names, lengths, row["size"]):
                ratio = measures.MEASURES[quantity](*found[0])
                differing |= found[1]
        if ratio:
            change = ratio.map(lambda value, unit=unit: unit * (value - 1))
            number = Number(change.estimate, with_interval(change))
            printed = Number(float(row["difference"].strip("<% ")), row["difference"])
            case, label = f"{names}, {row['trained_at']}", "{}, {:,} / {}, {:,}"
            label = label.format(names[0], lengths[0], names[1], lengths[1])
            yield Cell(label, case, name, number, printed, differing)


def generalization_cells(records: list[dict], paper: Printed) -> Iterator[Cell]:
    """Yield accuracies, and perplexities at the training length, on other data."""
    printed = {(row["size"], row["encoding"], row["quantity"]): row["value"] for row in paper.rows}
    groups = group_by(records, lambda each: "acc" if "acc" in each else dataset_of(each))
    for name, group in groups.items():
        for column in make_columns(group, "perplexity"):
            if name == "acc":
                values = [100 * record["acc_norm"] for record in column.records]
            else:
                values = column.values(column.trained_at)
            size = column.records[0]["size"]
            for quantity in QUANTITIES.get(name, ()):
                theirs = printed.get((size, paper.name_of(column.pe), quantity))
                if values and theirs:
                    label, number = f"{size}, {column.label}", Number(float(theirs), theirs)
                    differing = differing_from(paper, column)
                    yield Cell(label, label, quantity, _number(values), number, differing)
