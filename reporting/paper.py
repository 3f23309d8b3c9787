"""Numbers printed in the papers' tables and texts, from results/paper."""

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from errors import InputError
from reporting.formatting import MISSING

FOLDER = Path(__file__).parent.parent / "results" / "paper"
GENERALIZATION = "cable_v1_table1_generalization"
MARKS_REFERENCE = "sandwich"  # of daggers and asterisks in table 3 of the Sandwich paper
SANDWICH = "Sandwich"
SPEED, TRAINING_LENGTHS = "Speed", "Training lengths"  # metrics of texts


class Number(NamedTuple):
    """A number of a table."""

    value: float | None = None
    text: str = MISSING  # as printed, with ± and mark; a dash for none
    mark: str = ""  # dagger or asterisk (evaluation/significance.py)


@dataclass
class Printed:
    """Numbers of a paper: a table of one size and data set, or those in its text."""

    source: str
    """their place, e.g. "CABLE, table 1" """
    metric: str
    """the measure in results/paper/index.csv; nDCG@10 is in percent"""
    dataset: str
    size: str
    rows: list[dict[str, str]]
    """rows of a file in results/paper"""
    numbers: dict[str, dict[int, Number]] = field(default_factory=dict)
    """{encoding: {context: number}} of a table, without printed dashes"""
    lengths: dict[str, int] = field(default_factory=dict)
    """{encoding: training length in tokens} of a table"""

    @property
    def paper(self) -> str:
        """The paper's name."""
        return self.source.rpartition(", ")[0]

    @property
    def trained_at(self) -> int | None:
        """Training length in tokens; None: it differs between encodings."""
        lengths = {*self.lengths.values()}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def contexts(self) -> list[int]:
        """The contexts of a table, ascending."""
        return sorted({context for numbers in self.numbers.values() for context in numbers})

    @property
    def has_marks(self) -> bool:
        """Whether a table has daggers and asterisks."""
        return any(each.mark for row in self.numbers.values() for each in row.values())

    def number(self, pe: str, context: int) -> Number:
        """Return a number of a table, or Number()."""
        return self.numbers.get(pe, {}).get(context, Number())

    def has_protocol_of(self, record: dict) -> bool:
        """Return whether a record's protocol is the paper's; CABLE states none.

        Sandwich scores the last token of segments (section 3.4):
        same-targets.
        """
        return self.paper != SANDWICH or has_same_targets(record)


def has_same_targets(record: dict) -> bool:
    """Return whether a record has the protocol same-targets."""
    return bool((record.get("protocol") or {}).get("targets"))


def index() -> dict[str, dict[str, str]]:
    """Return {table: its row in results/paper/index.csv}."""
    return {row["table"]: row for row in _read("index.csv")}


def _read(name: str, table: str | None = None) -> list[dict[str, str]]:
    """Return the rows of a file, or those of a table."""
    with open(FOLDER / name, newline="") as file:
        return [row for row in csv.DictReader(file) if table in (None, row["table"])]


def load(name: str) -> Printed:
    """Return a table of results/paper/index.csv. InputError for other names."""
    known = index()
    if name not in known:
        raise InputError(f"{name} is not a table of a paper: use one of {', '.join(known)}")
    entry = known[name]
    rows = _read(entry["file"], name)
    dataset, size = entry["dataset"], entry["size"]
    printed = Printed(entry["what"], entry["measure"], dataset, size, rows)
    if entry["file"] != "tables.csv":
        return printed
    for row in rows:
        value, digits = float(row["value"]), len(row["value"].partition(".")[2])
        deviation = row["deviation"] and f" ± {row['deviation']}"
        text = f"{value:,.{digits}f}{deviation}{row['mark']}"
        number = Number(value, text, row["mark"])
        printed.numbers.setdefault(row["encoding"], {})[int(row["context"])] = number
    # one, or one per encoding
    lengths = [int(length) for length in entry["trained_at"].split()]
    lengths *= len(printed.numbers) // len(lengths)
    printed.lengths |= zip(printed.numbers, lengths, strict=True)
    # The CABLE paper's text describes the clipped T5 bias. That of the
    # Sandwich paper has logarithmic buckets (section 6.3), as `t5` has.
    if printed.paper != SANDWICH and "t5" in printed.numbers:
        printed.numbers["t5-clip"] = printed.numbers["t5"]
        printed.lengths["t5-clip"] = printed.lengths["t5"]
    return printed


def generalization() -> dict[tuple[str, str], dict[str, float]]:
    """Return {(size, encoding): {column: value}} of CABLE, version 1, table 1.

    hellaswag_acc in percent, and perplexities. Its "cable" is
    `cable-v1` here.
    """
    numbers = {}
    for row in _read("generalization.csv", GENERALIZATION):
        size, pe = row.pop("model"), row.pop("encoding")
        columns = {key: float(text) for key, text in row.items() if key != "table"}
        names = {"cable": ["cable-v1"], "t5": ["t5", "t5-clip"]}.get(pe, [pe])
        numbers |= {(size, name): columns for name in names}
    return numbers
