"""Printed tables in Markdown and CSV, and the folder of a report."""

import csv
import io
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.files import atomic, locked

from evaluation.intervals import Interval

MISSING = "—"
LOCKED = "report"  # the lock of a folder is next to this file
# Characters with a meaning in Markdown, and starts of tags and entities.
MARKDOWN = re.compile(r"[\\`*\[\]]|<(?=[A-Za-z/!?])|&(?=#?\w+;)")


def format_number(value: float | None, digits: int = 2) -> str:
    """Return the value with its decimals, or a dash for None."""
    return MISSING if value is None else f"{value:z,.{digits}f}"  # z: no -0.00


def with_interval(value: Interval | None, digits: int = 2) -> str:
    """Return an estimate with its interval, if any; a dash for None."""
    text = format_number(value and value.estimate, digits)
    if value is None or value.low is None:
        return text
    low, high = (format_number(end, digits) for end in (value.low, value.high))
    return f"{text} ({low} to {high})"


def standard_deviation(values: Sequence[float]) -> float | None:
    """Return the deviation; None: fewer than two values, or not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    return statistics.stdev(values)


def mean_and_deviation(values: Sequence[float], digits: int = 2) -> str:
    """Return mean ± standard deviation; one seed: its value; none: a dash."""
    text = format_number(statistics.mean(values) if values else None, digits)
    deviation = standard_deviation(values)
    return text if deviation is None else f"{text} ± {deviation:.{digits}f}"


def join_numbers(values: Iterable[int]) -> str:
    """Return different numbers, ascending: "512 and 1,024"."""
    return " and ".join(f"{value:,}" for value in sorted({*values}))


def number_range(values: Iterable[int]) -> str:
    """Return the smallest and largest number: "1 to 3" or "3"; none: "0"."""
    ordered = sorted(values) or [0]
    ends = dict.fromkeys((ordered[0], ordered[-1]))
    return " to ".join(f"{value:,}" for value in ends)


def escape_markdown(text: str) -> str:
    """Return Markdown that shows the text as it is."""
    return MARKDOWN.sub(r"\\\g<0>", text)


class Bold(str):
    """The text of a cell in bold face."""


@dataclass
class Table:
    """A table as it is printed, and the plain numbers behind it."""

    cells: list[list[str]]
    """printed cells, header first"""
    plain: list[list] | None = None
    """rows of the CSV file, header first; None: empty field; default: cells"""
    caption: str = ""
    """Markdown below the table"""

    @classmethod
    def from_rows(cls, rows: Sequence[dict], formats: dict | None = None) -> "Table":
        """Return a table of rows {column: text, number, interval or None}.

        formats: {column: format of its numbers}; None: all are texts.
        """
        formats = formats or {name: "{}" for row in rows for name in row}
        cells = [[*formats]]
        plain: list[list] = [[*formats]]
        for row in rows:
            values = [row.get(name) for name in formats]
            cells.append([*map(_print, values, formats.values())])
            plain.append([v.estimate if isinstance(v, Interval) else v for v in values])
        return cls(cells, plain)

    def markdown(self) -> str:
        """Return an aligned Markdown table."""
        cells = [[*map(_markdown_cell, row)] for row in self.cells]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for row in cells:
            padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append(f"| {' | '.join(padded)} |")
        lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
        return "\n".join(lines)

    def text(self) -> str:
        """Return the Markdown table with its caption."""
        return f"{self.markdown()}\n\n{self.caption}".rstrip()

    def csv(self) -> str:
        """Return the plain numbers as CSV with six significant digits."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        for first, *values in self.plain or self.cells:
            writer.writerow([first, *map(_csv_field, values)])
        return out.getvalue()


def _print(value: str | float | Interval | None, number_format: str) -> str:
    if isinstance(value, Interval) or value is None:
        return with_interval(value)
    return value if isinstance(value, str) else number_format.format(value)


def _markdown_cell(cell: str) -> str:
    text = escape_markdown(cell).replace("|", "\\|")
    return f"**{text}**" if isinstance(cell, Bold) else text


def _csv_field(value: str | float | None) -> str | None:
    return f"{value:.6g}" if isinstance(value, int | float) else value


class Folder:
    """The files of a report, written together when all are complete."""

    def __init__(self, path: str):
        self.path = Path(path)
        self.files: dict[str, bytes] = {}
        self.agreements: dict = {}  # of the tables of papers, by name

    def add(self, name: str, *parts: str) -> str:
        """Add the nonempty parts of a text as paragraphs; return the text."""
        text = "\n\n".join(filter(None, parts)).rstrip("\n")
        self.files[name] = f"{text}\n".encode()
        return text

    def add_table(self, stem: str, table: Table, *parts: str, warning: str = "") -> None:
        """Print and add a table between paragraphs; add it as CSV, too."""
        text = self.add(f"{stem}.md", warning, table.text(), *parts)
        print(f"{text}\n")
        self.add(f"{stem}.csv", table.csv())

    def add_plot(self, stem: str, draw: Callable) -> None:
        """Add a PNG file; draw: writes it to a binary file."""
        file = io.BytesIO()
        draw(file)
        self.files[f"{stem}.png"] = file.getvalue()

    def write(self) -> None:
        """Write the files. The folder never gets files of two reports at the same time."""
        with locked(self.path / LOCKED):
            for name, content in self.files.items():
                with atomic(self.path / name) as file:
                    file.write(content)
                print(f"wrote {self.path / name}")
