"""Tables printed in the papers, read from results/paper."""

import csv
from dataclasses import dataclass
from pathlib import Path

from errors import InputError

FOLDER = Path(__file__).parent.parent / "results" / "paper"
GENERALIZATION = "cable_v1_table1_generalization.csv"
# The CABLE paper does not say which T5 bias it uses; its text describes the clipped one.
PAPER_NAMES = {"t5-clip": "t5"}


@dataclass
class PaperTable:
    """A table of one model size on one data set: perplexity, or nDCG@10 in percent."""

    source: str
    """e.g. "CABLE, table 1" """
    metric: str
    """Perplexity or nDCG@10"""
    dataset: str
    size: str
    trained_at: int
    """training length in tokens"""
    numbers: dict[str, dict[int, float]]
    """{encoding: {context: value}}, without the dashes of the printed table"""

    @property
    def paper(self) -> str:
        """The paper's name, as in Verdict.paper."""
        return self.source.rpartition(", ")[0]

    @property
    def where(self) -> str:
        """The number of the table, e.g. "table 1"."""
        return self.source.rpartition(", ")[2]

    def covers(self, pe: str) -> bool:
        """Return whether the table has numbers of this encoding."""
        return PAPER_NAMES.get(pe, pe) in self.numbers

    def value(self, pe: str, context: int) -> float | None:
        """Return a number of the table, or None if it has none."""
        return self.numbers.get(PAPER_NAMES.get(pe, pe), {}).get(context)

    def contexts(self) -> list[int]:
        """Return the contexts of the table, ascending."""
        return sorted({context for values in self.numbers.values() for context in values})


def load(path: str | Path) -> PaperTable:
    """Return the table in a file that results/paper/index.csv lists.

    Raises InputError for other files.
    """
    path = Path(path)
    with open(FOLDER / "index.csv", newline="") as file:
        index = {row["file"]: row for row in csv.DictReader(file)}
    if path.name not in index or not path.is_file():
        choices = ", ".join(str(FOLDER / name) for name in index)
        raise InputError(f"{path} is not a table of a paper: use one of {choices}")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = {}
    for pe in rows[0]:
        if pe != "context_length":
            numbers[pe] = {int(row["context_length"]): float(row[pe]) for row in rows if row[pe]}
    entry = index[path.name]
    return PaperTable(
        source=entry["what"],
        metric=entry["measure"],
        dataset=entry["dataset"],
        size=entry["size"],
        trained_at=int(entry["trained_at"]),
        numbers=numbers,
    )


def generalization() -> dict[tuple[str, str], dict[str, float]]:
    """Return table 1 of the CABLE paper's first version.

    {(size, encoding): {column: value}}: hellaswag_acc in percent, and perplexities. The paper's
    "cable" is `cable-v1` here.
    """
    with open(FOLDER / GENERALIZATION, newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = {}
    for row in rows:
        pe = "cable-v1" if row["encoding"] == "cable" else row["encoding"]
        columns = [name for name in row if name not in ("model", "encoding")]
        numbers[row["model"], pe] = {name: float(row[name]) for name in columns}
    for size in ("small", "medium"):
        for ours, theirs in PAPER_NAMES.items():
            numbers[size, ours] = numbers[size, theirs]
    return numbers
