"""What do the papers print? Their tables, from results/paper: facts to set our own numbers beside."""

import csv
from dataclasses import dataclass
from pathlib import Path

from errors import InputError

FOLDER = Path(__file__).parent.parent / "results" / "paper"
GENERALIZATION = "cable_v1_table1_generalization.csv"
SAME = {"t5-clip": "t5"}  # the CABLE paper's T5-bias may be either, by its text the clipped one


@dataclass
class Table:
    """A table of one model size on one data set: of decoders' perplexities, or, in percent, of encoders' nDCG@10."""

    what: str
    measure: str
    """Perplexity or nDCG@10"""
    dataset: str
    size: str
    trained_at: int
    """training length in tokens"""
    numbers: dict[str, dict[int, float]]
    """by encoding and context; "—" is left out"""

    def covers(self, pe: str) -> bool:
        return SAME.get(pe, pe) in self.numbers

    def value(self, pe: str, context: int) -> float | None:
        return self.numbers.get(SAME.get(pe, pe), {}).get(context)


def load(path: str | Path) -> Table:
    """The table in a file that results/paper/index.csv lists. Raises InputError for another one."""
    path = Path(path)
    with open(FOLDER / "index.csv", newline="") as file:
        known = {row["file"]: row for row in csv.DictReader(file)}
    if path.name not in known or not path.is_file():
        raise InputError(
            f"{path} is no table of a paper: choose from {', '.join(str(FOLDER / name) for name in known)}"
        )
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    found = {
        pe: {int(row["context_length"]): float(row[pe]) for row in rows if row[pe]}
        for pe in rows[0]
        if pe != "context_length"
    }
    entry = known[path.name]
    return Table(
        entry["what"],
        entry["measure"],
        entry["dataset"],
        entry["size"],
        int(entry["trained_at"]),
        found,
    )


def generalization() -> dict[tuple[str, str], dict[str, float]]:
    """Table 1 of the CABLE paper's first version: by size and encoding of ours, hellaswag_acc in percent and perplexities."""
    with open(FOLDER / GENERALIZATION, newline="") as file:
        rows = list(csv.DictReader(file))
    found = {
        (row["model"], "cable-v1" if row["encoding"] == "cable" else row["encoding"]): {
            name: float(row[name]) for name in row if name not in ("model", "encoding")
        }
        for row in rows
    }
    return found | {
        (size, ours): found[size, theirs]
        for size in ("small", "medium")
        for ours, theirs in SAME.items()
    }
