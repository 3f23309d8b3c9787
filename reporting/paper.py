"""Numbers printed in the papers' tables and texts, from results/paper."""

import csv
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from errors import InputError
from reporting.formatting import MISSING

FOLDER = Path(__file__).parent.parent / "results" / "paper"
MARKS_REFERENCE = "sandwich"  # of daggers and asterisks in table 3 of the Sandwich paper
SANDWICH = "Sandwich"
GENERALIZATION, SPEED = "Generalization", "Speed"  # metrics of tables without contexts
TRAINING_LENGTHS, RECEPTIVE_FIELDS = "Training lengths", "Receptive fields"
NDCG = "nDCG@10"
RECEPTIVE_FIELD_TABLE = "sandwich_section5.1_receptive_fields"


class Number(NamedTuple):
    """A number of a table."""

    value: Any = None  # a float; None for none
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
    """rows of a file in results/paper, one for each printed cell"""
    settings: dict[str, Any]
    """of the paper's training, as in a record; a network of `size`, without changes"""
    numbers: dict[tuple[str, int], Number] = field(default_factory=dict)
    """{(encoding, context): number} of a table, without printed dashes"""
    lengths: dict[str, int] = field(default_factory=dict)
    """{encoding: training length in tokens} of a table"""

    @property
    def is_sandwich(self) -> bool:
        """Whether the Sandwich paper prints the numbers."""
        return self.source.startswith(SANDWICH)

    @property
    def trained_at(self) -> int | None:
        """Training length in tokens; None: it differs between encodings."""
        lengths = {*self.lengths.values()}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def contexts(self) -> list[int]:
        """The contexts of a table, ascending."""
        return sorted({context for _, context in self.numbers})

    @property
    def has_marks(self) -> bool:
        """Whether a table has daggers and asterisks."""
        return any(number.mark for number in self.numbers.values())

    def name_of(self, pe: str) -> str:
        """Return an encoding's name in the paper.

        The CABLE paper's text describes the clipped T5 bias. That of the Sandwich paper has
        logarithmic buckets (section 6.3), as `t5` has.
        """
        return "t5" if pe == "t5-clip" and not self.is_sandwich else pe


def index() -> dict[str, dict[str, str]]:
    """Return {table: its row in results/paper/index.csv}."""
    return {row["table"]: row for row in _read("index.csv")}


def _read(name: str) -> list[dict[str, str]]:
    with open(FOLDER / name, newline="") as file:
        return [*csv.DictReader(file)]


def load(name: str) -> Printed:
    """Return a table of results/paper/index.csv. InputError for other names."""
    known = index()
    if name not in known:
        raise InputError(f"{name} is not a table of a paper: use one of {', '.join(known)}")
    entry = known[name]
    rows = [row for row in _read(entry["file"]) if row["table"] == name]
    from training.settings import record_defaults  # late: PyTorch takes seconds

    settings: dict[str, Any] = record_defaults()
    settings |= {"n_layer": None, "n_head": None, "n_embd": None}
    words = (word.partition("=") for word in entry["settings"].split())
    settings |= {key: json.loads(value) for key, _, value in words}
    about = (entry[key] for key in ("what", "measure", "dataset", "size"))
    printed = Printed(name, *about, rows=rows, settings=settings)
    for row in rows if entry["file"] == "tables.csv" else ():
        value, digits = float(row["value"]), len(row["value"].partition(".")[2])
        deviation = row["deviation"] and f" ± {row['deviation']}"
        text = f"{value:,.{digits}f}{deviation}{row['mark']}"
        number = Number(value, text, row["mark"])
        printed.numbers[row["encoding"], int(row["context"])] = number
    encodings = dict.fromkeys(row["encoding"] for row in rows)
    lengths = map(int, entry["trained_at"].split())  # one, or one per encoding
    printed.lengths |= zip(encodings, itertools.cycle(lengths), strict=False)
    return printed
