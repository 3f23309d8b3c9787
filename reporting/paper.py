"""Numbers printed in the papers' tables and texts, from results/paper."""

import csv
from dataclasses import dataclass, field
from pathlib import Path

from errors import InputError
from reporting.formatting import MISSING

FOLDER = Path(__file__).parent.parent / "results" / "paper"
GENERALIZATION = "cable_v1_table1_generalization"
# Daggers and asterisks of table 3 of the Sandwich paper compare with this
# encoding.
MARKS_REFERENCE = "sandwich"
SANDWICH = "Sandwich"
# The CABLE paper does not say which T5 bias it uses; its text describes the
# clipped one. That of the Sandwich paper has logarithmic buckets (section 6.3),
# as `t5` has.
CABLE_NAMES = {"t5-clip": "t5"}


@dataclass
class Source:
    """The place of printed numbers in a paper."""

    source: str
    """e.g. "CABLE, table 1" """

    @property
    def paper(self) -> str:
        """The paper's name, as in Verdict.paper."""
        return self.source.rpartition(", ")[0]

    @property
    def where(self) -> str:
        """The table or section, e.g. "table 1"."""
        return self.source.rpartition(", ")[2]

    def has_protocol_of(self, record: dict) -> bool:
        """Return whether a record's protocol is the paper's.

        Sandwich scores the last token of segments (section 3.4): same-targets.
        The CABLE paper states no protocol.
        """
        return self.paper != SANDWICH or has_same_targets(record)


def has_same_targets(record: dict) -> bool:
    """Return whether a record has the protocol same-targets."""
    return bool((record.get("protocol") or {}).get("targets"))


@dataclass
class PaperTable(Source):
    """A table of one size and data set: perplexity, or nDCG@10 in percent."""

    metric: str
    """Perplexity or nDCG@10"""
    dataset: str
    size: str
    trained_at: int | None
    """training length in tokens; None: each encoding has its own, in `lengths`"""
    numbers: dict[str, dict[int, float]]
    """{encoding: {context: value}}, without the dashes of the printed table"""
    texts: dict[str, dict[int, str]] = field(default_factory=dict)
    """the same numbers as printed, with ± where the table has it: table 3 of the Sandwich paper"""
    marks: dict[str, dict[int, str]] = field(default_factory=dict)
    """daggers and asterisks, like `numbers` (evaluation/significance.py)"""
    lengths: dict[str, int] = field(default_factory=dict)
    """{encoding: training length in tokens} where trained_at is None"""

    def _name(self, pe: str) -> str:
        return pe if self.paper == SANDWICH else CABLE_NAMES.get(pe, pe)

    def encodings(self) -> set[str]:
        """Return the encodings that the paper names without doubt."""
        doubtful = () if self.paper == SANDWICH else CABLE_NAMES.values()
        return {*self.numbers}.difference(doubtful)

    def training_length(self, pe: str) -> int:
        """Return the training length of an encoding in tokens."""
        return self.trained_at or self.lengths[self._name(pe)]

    def covers(self, pe: str) -> bool:
        """Return whether the table has numbers of this encoding."""
        return self._name(pe) in self.numbers

    def value(self, pe: str, context: int) -> float | None:
        """Return a printed number, or None."""
        return self.numbers.get(self._name(pe), {}).get(context)

    def printed(self, pe: str, context: int) -> str:
        """Return a number with ± and mark as printed; a dash for none."""
        text = self.texts.get(self._name(pe), {}).get(context)
        return MISSING if text is None else text + self.mark(pe, context)

    def mark(self, pe: str, context: int) -> str:
        """Return a dagger, an asterisk or ""."""
        return self.marks.get(self._name(pe), {}).get(context, "")

    def contexts(self) -> list[int]:
        """Return the contexts of the table, ascending."""
        return sorted({context for values in self.numbers.values() for context in values})


# Measures of PaperStatements. Reports do not compare records with those on
# receptive fields.
SPEED, TRAINING_LENGTHS, RECEPTIVE_FIELDS = "Speed", "Training lengths", "Receptive fields"
OTHER_DATA = "Generalization"


@dataclass
class PaperStatements(Source):
    """Numbers in the text of a paper, as rows of a file in results/paper."""

    metric: str
    """a measure of FILES"""
    rows: list[dict[str, str]]

    def speed_ratios(self) -> list[tuple[str, int | None, str, str, float]]:
        """Return (benchmark, context, encoding, other, ratio of speeds).

        A context of None is not stated.
        """
        rates = {
            (row["benchmark"], row["context"], row["encoding"]): float(row["value"])
            for row in self.rows
            if row["quantity"] == "tokens per second"
        }
        ratios = []
        for row in self.rows:
            value, other = float(row["value"]), row["relative_to"]
            if not other:
                continue
            if row["quantity"] == "tokens per second":
                ratio = value / rates[row["benchmark"], row["context"], other]
            elif row["quantity"] == "times slower":
                ratio = 1 / value
            elif row["quantity"] == "overhead in percent":
                ratio = 1 / (1 + value / 100)
            else:  # percent fewer tokens per second
                ratio = 1 - value / 100
            context = int(row["context"]) if row["context"] else None
            ratios.append((row["benchmark"], context, row["encoding"], other, ratio))
        return ratios

    def difference(self, quantity: str, encoding: str, baseline: str, lengths: tuple) -> str | None:
        """Return the printed difference between two training lengths, or None.

        quantity: perplexity, memory or time. lengths: in tokens.
        """
        asked = [quantity, encoding, baseline, *map(str, lengths)]
        keys = ("quantity", "encoding", "baseline", "trained_at", "baseline_trained_at")
        found = [row["difference"] for row in self.rows if [row[key] for key in keys] == asked]
        return found[0] if found else None


Printed = PaperTable | PaperStatements

# Files in results/paper by measure; tables.csv has the others.
FILES = {
    SPEED: "speeds.csv",
    TRAINING_LENGTHS: "training_lengths.csv",
    RECEPTIVE_FIELDS: "receptive_fields.csv",
    OTHER_DATA: "generalization.csv",
}


def index() -> dict[str, dict[str, str]]:
    """Return {table: its row in results/paper/index.csv}."""
    return {row["table"]: row for row in _read("index.csv")}


def _read(name: str) -> list[dict[str, str]]:
    with open(FOLDER / name, newline="") as file:
        return list(csv.DictReader(file))


def _rows(name: str, measure: str) -> list[dict[str, str]]:
    """Return the rows of a table."""
    return [row for row in _read(FILES.get(measure, "tables.csv")) if row["table"] == name]


def load(name: str) -> Printed:
    """Return a table or statements of results/paper/index.csv.

    Raises InputError for other names.
    """
    known = index()
    if name not in known:
        raise InputError(f"{name} is not a table of a paper: use one of {', '.join(known)}")
    entry = known[name]
    source, measure = entry["what"], entry["measure"]
    rows = _rows(name, measure)
    if measure in FILES:
        return PaperStatements(source, measure, rows)
    lengths = [int(length) for length in entry["trained_at"].split()]  # one, or one per encoding
    trained_at = lengths[0] if len(lengths) == 1 else None
    table = PaperTable(source, measure, entry["dataset"], entry["size"], trained_at, {})
    for row in rows:
        pe, context = row["encoding"], int(row["context"])
        deviation = f" ± {row['deviation']}" if row["deviation"] else ""
        table.numbers.setdefault(pe, {})[context] = float(row["value"])
        table.texts.setdefault(pe, {})[context] = with_commas(row["value"]) + deviation
        if row["mark"]:
            table.marks.setdefault(pe, {})[context] = row["mark"]
    if trained_at is None:
        table.lengths = dict(zip(table.numbers, lengths, strict=True))
    return table


def with_commas(text: str) -> str:
    """Return a printed number, its decimals kept, with thousands separators."""
    return f"{float(text):,.{len(text.partition('.')[2])}f}"


def generalization() -> dict[tuple[str, str], dict[str, float]]:
    """Return table 1 of the CABLE paper's first version.

    {(size, encoding): {column: value}}: hellaswag_acc in percent, and
    perplexities. The paper's "cable" is `cable-v1` here.
    """
    numbers = {}
    for row in _rows(GENERALIZATION, OTHER_DATA):
        size, pe = row.pop("model"), row.pop("encoding")
        columns = {key: float(text) for key, text in row.items() if key != "table"}
        names = {"cable": ["cable-v1"], "t5": ["t5", "t5-clip"]}.get(pe, [pe])
        numbers |= {(size, name): columns for name in names}
    return numbers
