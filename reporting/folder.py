"""Folder of a report: its tables and plots, written together."""

import io
from collections.abc import Callable
from pathlib import Path

from runtime.files import atomic, locked

from reporting.formatting import Table

LOCKED = "verdicts.csv"  # the lock of a folder is next to this file


class Folder:
    """The files of a report, written together when all are complete."""

    def __init__(self, path: str):
        self.path = Path(path)
        self.files: dict[str, bytes] = {}

    def add(self, name: str, content: str) -> None:
        """Add a text file."""
        self.files[name] = content.encode()

    def add_text(self, name: str, *parts: str) -> str:
        """Add the parts of a text that are not empty, as paragraphs, and return the text."""
        text = "\n\n".join(part for part in parts if part)
        self.files[name] = f"{text}\n".encode()
        return text

    def add_table(self, stem: str, table: Table, parts: list[str]) -> None:
        """Print the parts of a text; add them as Markdown, and the table as CSV and LaTeX."""
        print(f"{self.add_text(f'{stem}.md', *parts)}\n")
        self.add(f"{stem}.csv", table.csv())
        self.add(f"{stem}.tex", f"{table.latex()}\n")

    def add_plot(self, stem: str, draw: Callable) -> None:
        """Add a PNG file; draw: writes it to a binary file."""
        file = io.BytesIO()
        draw(file)
        self.files[f"{stem}.png"] = file.getvalue()

    def write(self, unless_added: str | None = None) -> None:
        """Write the files, and remove the file of an older report that has none of this name.

        Of two reports at the same time, the folder gets all files of one, then all of the other.
        """
        with locked(self.path / LOCKED):
            for name, content in self.files.items():
                with atomic(self.path / name) as file:
                    file.write(content)
                print(f"wrote {self.path / name}")
            if unless_added and unless_added not in self.files:
                (self.path / unless_added).unlink(missing_ok=True)
