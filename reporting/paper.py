"""Numbers printed in the papers' tables and texts, from results/paper."""

import csv
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from runtime.settings import RECORD_DEFAULTS

from errors import InputError
from reporting.formatting import MISSING

FOLDER = Path(__file__).parent.parent / "results" / "paper"
GENERALIZATION = "cable_v1_table1_generalization"
MARKS_REFERENCE = "sandwich"  # of daggers and asterisks in table 3 of the Sandwich paper
SANDWICH = "Sandwich"
SPEED, TRAINING_LENGTHS = "Speed", "Training lengths"  # metrics of texts
NDCG = "nDCG@10"
RECEPTIVE_FIELDS = "sandwich_section5.1_receptive_fields"


class Number(NamedTuple):
    """A number of a table."""

    value: float | None = None
    text: str = MISSING  # as printed, with ± and mark; a dash for none
    mark: str = ""  # dagger or asterisk (evaluation/significance.py)


@dataclass
class Printed:
    """Numbers of a paper: a table of one size and data set, or those in its text."""

    table: str
    """name in results/paper/index.csv"""
    source: str
    """their place, e.g. "CABLE, table 1" """
    metric: str
    """the measure in results/paper/index.csv; nDCG@10 is in percent"""
    dataset: str
    size: str
    rows: list[dict[str, str]]
    """rows of a file in results/paper"""
    settings: dict[str, Any]
    """of the paper's training, as in a record; a network of `size`, without changes"""
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
    settings = RECORD_DEFAULTS | dict.fromkeys(("n_layer", "n_head", "n_embd"))
    words = (word.partition("=") for word in entry["settings"].split())
    settings |= {key: json.loads(value) for key, _, value in words}
    printed = Printed(name, entry["what"], entry["measure"], dataset, size, rows, settings)
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


def count_cells(name: str) -> int:
    """Return the number of numbers that a table of the index prints."""
    value = {"speeds.csv": "ratio", "training_lengths.csv": "difference"}
    entry = index()[name]
    rows = _read(entry["file"], name)
    if entry["file"] == "generalization.csv":
        return len(rows) * (len(rows[0]) - 3)  # without table, model, encoding
    return sum(row[value.get(entry["file"], "encoding")] != "" for row in rows)


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
