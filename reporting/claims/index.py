"""Index page of the papers' claims: the verdicts of several reports, claim by claim.

    page = claims_page(read_verdicts(["results"]), "results")

Verdicts with the same key are on the same claim, but may differ in
model, compared encodings and longest context.
"""

import csv
import os
from collections import Counter
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from runtime.schema import Name, Text, fields, find_mismatch

from errors import InputError
from reporting.claims.claim import (
    FAILS,
    HOLDS,
    NO_INTERVAL,
    NOT_COMPARABLE,
    NOT_MEASURED,
    ONE_SEED,
    UNDECIDED,
    Verdict,
    load,
)
from reporting.formatting import escape_markdown
from reporting.paper import SANDWICH

FILE = "verdicts.csv"
TITLES = {
    "CABLE": "CABLE (Veisi et al. 2025)",
    "CABLE, version 1": "CABLE, version 1",
    SANDWICH: "Sandwich (Chi et al. 2023)",
}
ROW = fields(  # of verdicts.csv
    {
        "claim paper where measured key others sizes": Text,
        "outcome": Literal[HOLDS, FAILS, UNDECIDED, NOT_COMPARABLE, NOT_MEASURED],
        "table": Name,
    }
)


def known_claims() -> list[Verdict]:
    """Return the claims of the papers, not measured."""
    rows = [claim.unmeasured() for section in load().values() for claim in section]
    return [row for row in rows if row.paper in TITLES]


def read_verdicts(folders: list[str]) -> list[dict]:
    """Return the rows of all verdicts.csv in folders and below.

    "table" is a path; "report", which is added, the report's folder
    relative to the given one. Raises InputError if a folder is missing
    or a file corrupt.
    """
    missing = [folder for folder in folders if not Path(folder).is_dir()]
    if missing:
        raise InputError(f"{missing[0]} is not a folder: pass folders of reports")
    verdicts = []
    for folder in folders:
        for report in sorted(path.parent for path in Path(folder).rglob(FILE)):
            name = report.relative_to(folder) if report != Path(folder) else report.name
            for row in _read_rows(report / FILE):
                verdicts.append(row | {"report": str(name), "table": report / row["table"]})
    return verdicts


def _read_rows(path: Path) -> list[dict]:
    """Return the rows of a verdicts.csv. Raises InputError if it is corrupt."""
    remedy = "make the report again, or remove the file"
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from None
    for number, row in enumerate(rows, 1):
        if problem := find_mismatch(row, ROW):
            raise InputError(f"{path}: verdict {number}: {problem}: {remedy}")
    return rows


def claims_page(verdicts: list[dict], out_dir: str | Path) -> str:
    """Return the page as Markdown, with links relative to out_dir."""
    claims = known_claims()
    by_key: dict[str, list[dict]] = {claim.key: [] for claim in claims}
    for verdict in verdicts:
        by_key.get(verdict["key"], []).append(verdict)
    by_key = {key: _most_complete(found) for key, found in by_key.items()}
    counts = Counter(map(_outcome_of_all, by_key.values())).most_common()
    texts = ", ".join(f"{number} {outcome}" for outcome, number in counts)
    parts = [
        "# Claims of the papers",
        f"{len(claims)} claims: {texts}. Criteria: claims.yaml. verdicts.csv next to a "
        "linked table has measured values and 95% intervals (docs/evaluation.md). Reports of fewer "
        "encodings, and of one seed if several seeds agree, are left out. Bounds of ours are "
        "marked. Speeds are of CPUs unless a table names a GPU.",
    ]
    for paper, title in TITLES.items():
        of_paper = [claim for claim in claims if claim.paper == paper]
        measured = [claim for claim in of_paper if by_key[claim.key]]
        lines = ["| where | claim | verdict |", "| --- | --- | --- |"]
        for claim in sorted(measured, key=lambda claim: claim.where):
            cells = [*map(escape_markdown, (claim.where, claim.claim))]
            cells.append(_cell(claim, by_key[claim.key], out_dir))
            cells = [cell.replace("|", "\\|") for cell in cells]
            lines.append(f"| {' | '.join(cells)} |")
        parts += [f"## {title}", "\n".join(lines)]
        parts.append(f"Not measured: {len(of_paper) - len(measured)} claims.")
    return "\n\n".join(parts) + "\n"


def _outcome_of_all(verdicts: list[dict]) -> str:
    outcomes = {verdict["outcome"] for verdict in verdicts} or {NOT_MEASURED}
    return "with different verdicts" if len(outcomes) > 1 else outcomes.pop()


def _most_complete(verdicts: list[dict]) -> list[dict]:
    """Return the verdicts on the most encodings of a size, those with intervals first."""
    verdicts = [v for v in verdicts if NO_INTERVAL not in v["measured"]] or verdicts
    most = Counter()
    for verdict in verdicts:
        most[verdict["sizes"]] = max(most[verdict["sizes"]], len(_others(verdict)))
    complete = [v for v in verdicts if len(_others(v)) == most[v["sizes"]]]
    first = {(verdict["claim"], verdict["measured"]): verdict for verdict in complete[::-1]}
    return [verdict for verdict in complete if verdict in first.values()]


def _others(verdict: dict) -> list[str]:
    return verdict["others"].split(", ")


def _cell(claim: Verdict, verdicts: list[dict], out_dir: str | Path) -> str:
    """Return a line for each outcome, with links to the tables."""
    links: dict[tuple[str, str], dict[str, None]] = {}
    for verdict in verdicts:
        target = quote(os.path.relpath(verdict["table"], out_dir), safe="/+")
        seeds = f" ({ONE_SEED})" if ONE_SEED in verdict["measured"] else ""
        outcome = f"**{verdict['outcome']}**", f"{seeds}{_compared(claim, verdict)}"
        link = f"[{escape_markdown(verdict['report'])}]({target})"
        links.setdefault(outcome, {})[link] = None
    lines = []
    for (outcome, details), found in links.items():
        several = details.replace(f" ({ONE_SEED})", "")
        if details == several or (outcome, several) not in links:
            lines.append(f"{outcome}{details}: {', '.join(found)}")
    return "<br>".join(lines)


def _compared(claim: Verdict, verdict: dict) -> str:
    """Return the compared encodings if they are not all of the claim."""
    others = _others(verdict)
    missing = [name for name in claim.others.split(", ") if name not in others]
    if verdict["others"] == claim.others:
        return ""
    if 0 < len(missing) < len(others):
        return escape_markdown(f" without {', '.join(missing)}")
    return escape_markdown(f" against {', '.join(others)}")
