"""Numbers printed in the papers' tables and texts, from results/paper."""

import csv
from dataclasses import dataclass
from pathlib import Path

from errors import InputError
from reporting.formatting import MISSING

FOLDER = Path(__file__).parent.parent / "results" / "paper"
GENERALIZATION = "cable_v1_table1_generalization"
MARKS_REFERENCE = "sandwich"  # of daggers and asterisks in table 3 of the Sandwich paper
SANDWICH = "Sandwich"
# The CABLE paper's text describes the clipped T5 bias. That of the Sandwich
# paper has logarithmic buckets (section 6.3), as `t5` has.
CABLE_NAMES = {"t5-clip": "t5"}
SPEED, TRAINING_LENGTHS = "Speed", "Training lengths"  # measures of PaperStatements


@dataclass
class Source:
    """Numbers of a paper and their place in it."""

    source: str
    """e.g. "CABLE, table 1" """
    metric: str
    """the measure in results/paper/index.csv"""

    @property
    def paper(self) -> str:
        """The paper's name, as in Verdict.paper."""
        return self.source.rpartition(", ")[0]

    def has_protocol_of(self, record: dict) -> bool:
        """Return whether a record's protocol is the paper's; CABLE states none.

        Sandwich scores the last token of segments (section 3.4): same-targets.
        """
        return self.paper != SANDWICH or has_same_targets(record)


def has_same_targets(record: dict) -> bool:
    """Return whether a record has the protocol same-targets."""
    return bool((record.get("protocol") or {}).get("targets"))


@dataclass
class PaperTable(Source):
    """A table of one size and data set: perplexity, or nDCG@10 in percent."""

    dataset: str
    size: str
    rows: dict[str, dict[int, dict[str, str]]]
    """{encoding: {context: row of tables.csv}}, without printed dashes"""
    lengths: dict[str, int]
    """{encoding: training length in tokens}"""

    def _name(self, pe: str) -> str:
        return pe if self.paper == SANDWICH else CABLE_NAMES.get(pe, pe)

    def _row(self, pe: str, context: int) -> dict[str, str] | None:
        return self.rows.get(self._name(pe), {}).get(context)

    @property
    def trained_at(self) -> int | None:
        """Training length in tokens; None: it differs between encodings."""
        lengths = {*self.lengths.values()}
        return lengths.pop() if len(lengths) == 1 else None

    @property
    def marks(self) -> set[str]:
        """Daggers and asterisks in the table (evaluation/significance.py)."""
        return {row["mark"] for rows in self.rows.values() for row in rows.values()} - {""}

    def training_length(self, pe: str) -> int:
        """Return the training length of an encoding in tokens."""
        return self.lengths[self._name(pe)]

    def covers(self, pe: str) -> bool:
        """Return whether the table has numbers of this encoding."""
        return self._name(pe) in self.rows

    def value(self, pe: str, context: int) -> float | None:
        """Return a printed number, or None."""
        row = self._row(pe, context)
        return None if row is None else float(row["value"])

    def printed(self, pe: str, context: int) -> str:
        """Return a number as printed, with ± and mark; a dash for none."""
        row = self._row(pe, context)
        if row is None:
            return MISSING
        digits = len(row["value"].partition(".")[2])
        deviation = row["deviation"] and f" ± {row['deviation']}"
        return f"{float(row['value']):,.{digits}f}{deviation}{row['mark']}"

    def mark(self, pe: str, context: int) -> str:
        """Return a dagger, an asterisk or ""."""
        return (self._row(pe, context) or {"mark": ""})["mark"]

    def contexts(self) -> list[int]:
        """Return the contexts of the table, ascending."""
        return sorted({context for rows in self.rows.values() for context in rows})


@dataclass
class PaperStatements(Source):
    """Numbers in the text of a paper, as rows of a file in results/paper."""

    rows: list[dict[str, str]]

    def speed_ratios(self) -> list[tuple[str, int | None, str, str, float]]:
        """Return (benchmark, context or None, encoding, other, ratio)."""
        ratios = []
        for row in self.rows:
            if row["ratio"]:
                context = int(row["context"]) if row["context"] else None
                pair = row["encoding"], row["relative_to"]
                ratios.append((row["benchmark"], context, *pair, float(row["ratio"])))
        return ratios

    def difference(
        self, quantity: str, encoding: str, baseline: str, lengths: tuple
    ) -> str | None:
        """Return the printed difference between two training lengths, or None.

        quantity: perplexity, memory or time. lengths: in tokens.
        """
        asked = [quantity, encoding, baseline, *map(str, lengths)]
        keys = ("quantity", "encoding", "baseline", "trained_at", "baseline_trained_at")
        found = (row["difference"] for row in self.rows if [row[key] for key in keys] == asked)
        return next(found, None)


Printed = PaperTable | PaperStatements


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
    source, measure = entry["what"], entry["measure"]
    found = _read(entry["file"], name)
    if entry["file"] != "tables.csv":
        return PaperStatements(source, measure, found)
    rows: dict[str, dict[int, dict[str, str]]] = {}
    for row in found:
        rows.setdefault(row["encoding"], {})[int(row["context"])] = row
    # one, or one per encoding
    lengths = [int(length) for length in entry["trained_at"].split()]
    lengths *= len(rows) // len(lengths)
    by_encoding = dict(zip(rows, lengths, strict=True))
    return PaperTable(source, measure, entry["dataset"], entry["size"], rows, by_encoding)


def generalization() -> dict[tuple[str, str], dict[str, float]]:
    """Return {(size, encoding): {column: value}} of CABLE, version 1, table 1.

    hellaswag_acc in percent, and perplexities. Its "cable" is `cable-v1` here.
    """
    numbers = {}
    for row in _read("generalization.csv", GENERALIZATION):
        size, pe = row.pop("model"), row.pop("encoding")
        columns = {key: float(text) for key, text in row.items() if key != "table"}
        names = {"cable": ["cable-v1"], "t5": ["t5", "t5-clip"]}.get(pe, [pe])
        numbers |= {(size, name): columns for name in names}
    return numbers
