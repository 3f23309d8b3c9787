"""Index page of the papers' claims: the verdicts of several reports, claim by claim.

    page = claims_page(read_verdicts(["results"]), "results")

report.py writes verdicts.csv next to its tables. Verdicts on the same claim differ in their model,
in the encodings that were compared or in the longest context; `claim_key` leaves those out.
"""

import csv
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from runtime.schema import Name, Text, fields, find_mismatch

from errors import InputError
from reporting import paper
from reporting.claims import catalog, perplexity
from reporting.claims.verdicts import FAILS, HOLDS, NO_INTERVAL, NOT_MEASURED, UNDECIDED, Verdict
from reporting.formatting import escape_markdown
from reporting.paper import SANDWICH

FILE = "verdicts.csv"
TITLES = {
    "CABLE": "CABLE (Veisi et al. 2025)",
    "CABLE, version 1": "CABLE, version 1",
    SANDWICH: "Sandwich (Chi et al. 2023)",
}
OUTCOMES = {HOLDS: "hold", FAILS: "fail", UNDECIDED: "are not decided"}
ROW = fields(  # of verdicts.csv
    {
        "claim": Text,
        "paper": Text,
        "where": Text,
        "measured": Text,
        "outcome": Literal[HOLDS, FAILS, UNDECIDED, NOT_MEASURED],
        "table": Name,
        "sizes": Text,
    }
)
SMALL, FULL = "small scale", "full size"
ON_CPU = "on a CPU: "
# Encodings that a claim compares another one with.
RIVALS = re.compile(r"( than |that of )(.+?)(?= at (?:every |\d)| [<>]|$)")
# Parts of a claim that differ between reports, with their replacement.
VARIABLE = (
    (r"^[\w.-]+, trained with [\d,]+ tokens: ", ""),
    (r"\b15x", "16x"),
    (RIVALS.pattern, r"\1others"),
    (f"^{ON_CPU}", ""),
    (r"trained with [\d,]+( tokens)?", "trained"),
    (r"perplexity at [\d,]+ tokens", "perplexity"),
    (r"(training loss (lower|higher)) than .+", r"\1 than others"),
    (r"^at [\d.]+x: same order", "same order"),
    (r"^window:\S+:", "window:"),
    (r"nDCG@10 at [\d.]+x /", "nDCG@10 at the longest length /"),
    (r"^\w+: (cable-v1 has the )", r"\1"),
)


def claim_key(verdict: dict) -> tuple[str, str, str]:
    """Return what verdicts on the same claim share: paper, where, text."""
    claim = verdict["claim"]
    for pattern, replacement in VARIABLE:
        claim = re.sub(pattern, replacement, claim)
    return verdict["paper"], verdict["where"], claim


def known_claims() -> list[Verdict]:
    """Return the claims that this package judges, not measured."""
    claims = [claim.unmeasured() for claim in catalog.load().all_rows()]
    return [*claims, *_printed_orders()]


def _printed_orders() -> list[Verdict]:
    """Return the claim "same order" for every printed table of perplexity."""
    with open(paper.FOLDER / "index.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "Perplexity"]
    claims = []
    for row in rows:
        name, _, where = row["what"].rpartition(", ")
        # Encodings with different training lengths are not compared.
        if where.startswith("table") and row["trained_at"].isdecimal():
            claims.append(perplexity.printed_order(row["size"], row["dataset"], name, where))
    return claims


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
    texts, measured = {}, {}  # by key
    for verdict in known_claims():
        if verdict.paper in TITLES:
            texts.setdefault(claim_key(vars(verdict)), verdict.claim)
    for verdict in verdicts:
        key = claim_key(verdict)
        if verdict["outcome"] != NOT_MEASURED and verdict["paper"] in TITLES:
            texts.setdefault(key, key[2])
            measured.setdefault(key, []).append(verdict)
    listed = {}  # {key: [verdicts at small scale, at full size]}
    for key in texts:
        by_scale = {SMALL: [], FULL: []}
        for verdict in measured.get(key, []):
            by_scale[scale_of(verdict)].append(verdict)
        listed[key] = [_most_complete(verdicts) for verdicts in by_scale.values()]
    at_small = _count([verdicts for verdicts, _ in listed.values()])
    parts = [
        "# Claims of the papers",
        f"{len(texts)} claims. At {SMALL} (0.8M parameters; speeds on CPUs): "
        f"{at_small}. A line is a verdict of one report, with the 95% interval of "
        "what was measured (docs/evaluation.md has the rule). Of the verdicts on a claim, those "
        "with an interval are listed, and of these the ones that compare the most encodings. Of "
        "several comparisons, the value shown is the least favorable to the claim. "
        "Bounds that no paper prints are marked as ours. The order and the marks of a printed "
        "table are judged on any text.",
    ]
    for name, title in TITLES.items():
        rows = [["where", "claim", SMALL, FULL], ["---"] * 4]
        for key in sorted((key for key in texts if key[0] == name), key=lambda key: key[1]):
            cells = [_cell(texts[key], verdicts, out_dir) for verdicts in listed[key]]
            rows.append([escape_markdown(key[1]), escape_markdown(texts[key]), *cells])
        rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
        parts += [f"## {title}", "\n".join(f"| {' | '.join(row)} |" for row in rows)]
    return "\n\n".join(parts) + "\n"


def _most_complete(verdicts: list[dict]) -> list[dict]:
    """Return the verdicts that compare the most encodings, without repeated measurements.

    Those without an interval count if no other has one.
    """
    verdicts = [v for v in verdicts if NO_INTERVAL not in v["measured"]] or verdicts
    numbers = [len(_rivals(verdict["claim"])) for verdict in verdicts]
    complete, seen = [], set()
    for verdict, number in zip(verdicts, numbers, strict=True):
        measurement = (verdict["claim"], verdict["measured"])
        if number == max(numbers) and measurement not in seen:
            complete.append(verdict)
        seen.add(measurement)
    return complete


def _rivals(claim: str) -> list[str]:
    """Return the encodings that a claim compares another one with."""
    match = RIVALS.search(claim)
    return match[2].split(", ") if match else []


def scale_of(verdict: dict) -> str:
    """Return SMALL for models of the quick start's size and speeds of CPUs, FULL for others."""
    is_small = "quickstart" in verdict["sizes"].split() or verdict["claim"].startswith(ON_CPU)
    return SMALL if is_small else FULL


def _count(measured: Iterable[list[dict]]) -> str:
    """Return how many claims hold, fail, ...; measured: the verdicts on each claim."""
    counts = dict.fromkeys((HOLDS, FAILS, UNDECIDED, NOT_MEASURED, "mixed"), 0)
    for verdicts in measured:
        outcomes = {verdict["outcome"] for verdict in verdicts} or {NOT_MEASURED}
        counts["mixed" if len(outcomes) > 1 else outcomes.pop()] += 1
    names = OUTCOMES | {NOT_MEASURED: "are not measured", "mixed": "have verdicts that differ"}
    return ", ".join(f"{number} {names[outcome]}" for outcome, number in counts.items())


def _cell(claim: str, verdicts: list[dict], out_dir: str | Path) -> str:
    """Return the verdicts at one scale, a line for each table."""
    tables = {}
    for verdict in verdicts:
        tables.setdefault(verdict["table"], []).append(verdict)
    lines = []
    for path, found in tables.items():
        target = quote(os.path.relpath(path, out_dir), safe="/+")
        link = f"[{escape_markdown(found[0]['report'])}]({target})"
        lines.append(f"{_summary(claim, found)} ({link})")
    return "<br>".join(lines) or NOT_MEASURED


def _summary(claim: str, verdicts: list[dict]) -> str:
    """Return one verdict, or how many of several (lengths, models) have each outcome."""
    outcomes = [verdict["outcome"] for verdict in verdicts]
    if len(verdicts) > 1:
        counts = [f"{outcomes.count(outcome)} {OUTCOMES[outcome]}" for outcome in {*outcomes}]
        return f"**{', '.join(sorted(counts))}** of {len(verdicts)}"
    (verdict,) = verdicts
    rivals = _rivals(verdict["claim"])
    compared = f" against {', '.join(rivals)}" if rivals != _rivals(claim) else ""
    measured = escape_markdown(f"{compared}: {verdict['measured']}")
    return f"**{outcomes[0]}**{measured}"
