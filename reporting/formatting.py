"""Printed tables: number format, Markdown, LaTeX and CSV."""

import csv
import io
from dataclasses import dataclass

MISSING = "—"


def format_number(value: float | None) -> str:
    """Return the value with two decimals, or a dash for None."""
    return MISSING if value is None else f"{value:z,.2f}"  # z: no -0.00


@dataclass
class Table:
    """A table as it is printed, and the plain numbers behind it."""

    cells: list[list[str]]
    """printed cells, header first"""
    plain: list[list] | None = None
    """rows of the CSV file, header first: text, numbers, or None for an empty field; None: cells"""

    def markdown(self) -> str:
        """Return an aligned Markdown table."""
        widths = [max(map(len, column)) for column in zip(*self.cells, strict=True)]
        lines = []
        for row in self.cells:
            padded = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append(f"| {' | '.join(padded)} |")
        lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
        return "\n".join(lines)

    def latex(self) -> str:
        """Return a LaTeX tabular with booktabs rules."""
        lines = [" & ".join(map(_latex_cell, row)) + " \\\\" for row in self.cells]
        return "\n".join(
            [
                f"\\begin{{tabular}}{{l{'r' * (len(self.cells[0]) - 1)}}}",
                "\\toprule",
                lines[0],
                "\\midrule",
                *lines[1:],
                "\\bottomrule",
                "\\end{tabular}",
            ]
        )

    def csv(self) -> str:
        """Return the plain numbers as CSV with six significant digits."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        for first, *values in self.plain or self.cells:
            writer.writerow([first, *map(_csv_field, values)])
        return out.getvalue()


def _latex_cell(text: str) -> str:
    bold = text.startswith("**")
    replacements = {"**": "", "—": "---", " ± ": " $\\pm$ ", "%": "\\%", "_": "\\_"}
    replacements |= {"†": "$^\\dagger$", "∗": "$^*$"}
    for mark, written in replacements.items():
        text = text.replace(mark, written)
    return f"\\textbf{{{text}}}" if bold else text


def _csv_field(value: str | float | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:.6g}"
