"""Index page of the papers' claims: the verdicts of several reports, claim by claim.

    page = claims_page(read_verdicts(["results"]), "results")

report.py writes verdicts.csv next to its tables. Verdicts with the same key are on the same claim,
but may differ in their model, in the encodings that were compared or in the longest context.
"""

import csv
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from runtime.schema import Name, Text, fields, find_mismatch

from errors import InputError
from reporting.claims.claim import load, printed_orders
from reporting.claims.verdicts import (
    FAILS,
    HOLDS,
    NO_INTERVAL,
    NOT_COMPARABLE,
    NOT_MEASURED,
    ONE_SEED,
    UNDECIDED,
    Verdict,
)
from reporting.formatting import escape_markdown
from reporting.paper import SANDWICH

FILE = "verdicts.csv"
TITLES = {
    "CABLE": "CABLE (Veisi et al. 2025)",
    "CABLE, version 1": "CABLE, version 1",
    SANDWICH: "Sandwich (Chi et al. 2023)",
}
OUTCOMES = {HOLDS: "hold", FAILS: "fail", UNDECIDED: "are not decided"}
OUTCOMES |= {NOT_COMPARABLE: "are not comparable"}
COUNTED = OUTCOMES | {NOT_MEASURED: "are not measured", "mixed": "have verdicts that differ"}
ROW = fields(  # of verdicts.csv
    {
        "claim paper where measured key others sizes": Text,
        "outcome": Literal[HOLDS, FAILS, UNDECIDED, NOT_COMPARABLE, NOT_MEASURED],
        "table": Name,
    }
)
SMALL, FULL = "small scale", "full size"


def known_claims() -> list[Verdict]:
    """Return the claims that this package judges, not measured."""
    rows = [claim for section in load().values() for claim in section]
    return [claim.unmeasured() for claim in [*rows, *printed_orders()]]


def read_verdicts(folders: list[str]) -> list[dict]:
    """Return the rows of all verdicts.csv in folders and below.

    Each has the path of its "table", and a "report": the folder of it, relative to the given one.
    Raises InputError if a folder does not exist, or if a file is corrupt.
    """
    missing = [folder for folder in folders if not Path(folder).is_dir()]
    if missing:
        raise InputError(*(f"{name} is not a folder: pass folders of reports" for name in missing))
    verdicts = []
    for folder in folders:
        for report in sorted(path.parent for path in Path(folder).rglob(FILE)):
            name = report.relative_to(folder) if report != Path(folder) else report.name
            for row in _read_rows(report / FILE):
                verdicts.append(row | {"report": str(name), "table": report / row["table"]})
    return verdicts


def _read_rows(path: Path) -> list[dict]:
    """Return the rows of a verdicts.csv. Raises InputError if one is not as report.py writes it."""
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
    claims = {claim.key: claim for claim in known_claims() if claim.paper in TITLES}
    scales = {SMALL: {}, FULL: {}}  # {scale: {key: verdicts}}
    for verdict in verdicts:
        key = verdict["key"]
        if verdict["outcome"] != NOT_MEASURED and verdict["paper"] in TITLES:
            names = ("claim", "paper", "where")
            claims.setdefault(key, Verdict(*(verdict[name] for name in names), key=key))
            scales[_scale_of(verdict)].setdefault(key, []).append(verdict)
    for by_key in scales.values():
        by_key.update({key: _most_complete(found) for key, found in by_key.items()})
    shown = {scale: by_key for scale, by_key in scales.items() if by_key}
    at_small = _count([scales[SMALL].get(key, []) for key in claims])
    parts = [
        "# Claims of the papers",
        f"{len(claims)} claims. At {SMALL} (0.8M parameters; speeds on CPUs): {at_small}. "
        "verdicts.csv next to a linked table has the measured values with 95% intervals "
        "(docs/evaluation.md has the rule). Reports of fewer encodings than others are left out, "
        "and those of one seed if several seeds agree. Bounds of ours are marked. –: not measured.",
    ]
    for name, title in TITLES.items():
        rows = [["where", "claim", *shown], ["---"] * (2 + len(shown))]
        of_paper = [claim for claim in claims.values() if claim.paper == name]
        measured = [each for each in of_paper if any(each.key in by for by in scales.values())]
        for claim in sorted(measured, key=lambda claim: claim.where):
            cells = [_cell(claim, found.get(claim.key, []), out_dir) for found in shown.values()]
            rows.append([escape_markdown(claim.where), escape_markdown(claim.claim), *cells])
        rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        parts += [f"## {title}", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
        parts.append(f"Not measured: {len(of_paper) - len(measured)} claims of claims.yaml.")
    return "\n\n".join(parts) + "\n"


def _most_complete(verdicts: list[dict]) -> list[dict]:
    """Return the verdicts that compare the most encodings, without repeated measurements.

    Those without an interval count if no other has one.
    """
    verdicts = [v for v in verdicts if NO_INTERVAL not in v["measured"]] or verdicts
    most = max(len(verdict["others"].split(", ")) for verdict in verdicts)
    complete = {}
    for verdict in verdicts:
        if len(verdict["others"].split(", ")) == most:
            complete.setdefault((verdict["claim"], verdict["measured"]), verdict)
    return [*complete.values()]


def _scale_of(verdict: dict) -> str:
    """Return SMALL for models of the quick start's size and speeds of CPUs, FULL for others."""
    is_small = "quickstart" in verdict["sizes"].split()
    return SMALL if is_small or verdict["claim"].startswith("on a CPU: ") else FULL


def _count(measured: Iterable[list[dict]]) -> str:
    """Return how many claims hold, fail, ...; measured: the verdicts on each claim."""
    counts = dict.fromkeys(COUNTED, 0)
    for verdicts in measured:
        outcomes = {verdict["outcome"] for verdict in verdicts} or {NOT_MEASURED}
        counts["mixed" if len(outcomes) > 1 else outcomes.pop()] += 1
    shown = {outcome: number for outcome, number in counts.items() if number}
    return ", ".join(f"{number} {COUNTED[outcome]}" for outcome, number in shown.items())


def _cell(claim: Verdict, verdicts: list[dict], out_dir: str | Path) -> str:
    """Return the outcomes at one scale, a line for each, with links to the tables."""
    tables, lines = {}, {}
    for verdict in verdicts:
        tables.setdefault(verdict["table"], []).append(verdict)
    for path, found in tables.items():
        target = quote(os.path.relpath(path, out_dir), safe="/+")
        link = f"[{escape_markdown(found[0]['report'])}]({target})"
        lines.setdefault(_summary(claim, found), []).append(link)
    cells, named = [], set()
    for (outcome, compared), links in lines.items():
        plain = outcome.removesuffix(f" ({ONE_SEED})")
        if plain == outcome or (plain, compared) not in lines:  # not also found with several seeds
            shown = "" if compared in named else compared
            cells.append(f"{outcome}{shown}: {', '.join(links)}")
            named.add(compared)
    return "<br>".join(cells) or "–"


def _summary(claim: Verdict, verdicts: list[dict]) -> tuple[str, str]:
    """Return one outcome, or how many of several verdicts have each, and what was compared."""
    outcomes = [verdict["outcome"] for verdict in verdicts]
    has_one_seed = any(ONE_SEED in verdict["measured"] for verdict in verdicts)
    seeds = f" ({ONE_SEED})" if has_one_seed else ""
    if len(verdicts) > 1:
        counts = [f"{outcomes.count(outcome)} {OUTCOMES[outcome]}" for outcome in {*outcomes}]
        return f"**{', '.join(sorted(counts))}** of {len(verdicts)}{seeds}", ""
    others = verdicts[0]["others"].split(", ")
    missing = [name for name in claim.others.split(", ") if name not in others]
    compared = f" against {', '.join(others)}" if verdicts[0]["others"] != claim.others else ""
    if 0 < len(missing) < len(others):
        compared = f" without {', '.join(missing)}"
    return f"**{outcomes[0]}**{seeds}", escape_markdown(compared)
