"""Cause faults and report what was lost: `bash scripts/fault_test.sh --help`.

A trial is one fault. Its random numbers depend on the seed, its kind and its number only, so that
one trial can be repeated. The time budget is shared equally between the kinds.
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from runtime.files import write_json
from runtime.provenance import provenance

import torch

from . import concurrency, corruption, disk, fuzz, harness, kills, security, signals

KINDS = {
    "kills": kills,
    "signals": signals,
    "disk": disk,
    "corruption": corruption,
    "concurrency": concurrency,
    "fuzz": fuzz,
    "security": security,
}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bash scripts/fault_test.sh", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="time to spend")
    parser.add_argument("--seed", type=int, help="seed of all faults; default: a random one")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, separated by commas")
    parser.add_argument("--trial", type=int, help="repeat one trial of one kind; prints all output")
    parser.add_argument("--rounds", type=int, help="try each fast case this often, in any time")
    parser.add_argument("--out", type=Path, help="write a record here, and its table as .md")
    parser.add_argument("--table", type=Path, help="only write the table of this record")
    return parser


def cases(kind: str) -> list:
    return KINDS[kind].CASES


def description(case) -> str:
    return case.__doc__.splitlines()[0].rstrip(".")


def main(argv=None) -> int:
    arguments = make_parser().parse_args(argv)
    if arguments.table:
        write_table(arguments.table)
        return 0
    kinds = arguments.only.split(",")
    if unknown := set(kinds) - set(KINDS):
        print(f"error: unknown kind {unknown.pop()}: use {','.join(KINDS)}", file=sys.stderr)
        return 2
    if arguments.trial is not None and (len(kinds) != 1 or arguments.seed is None):
        print("error: --trial needs the kind and the seed: pass --only and --seed", file=sys.stderr)
        return 2
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    harness.preload(kinds)
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    try:
        workspace = harness.Workspace(root)
        harness.VERBOSE = arguments.trial is not None
        results = run_trials(workspace, kinds, seed, arguments)
        if harness.digest_folder(workspace.base) != workspace.digest:
            raise SystemExit("error: a trial changed files outside of its folder")
    finally:
        os.chdir(harness.ROOT)
        shutil.rmtree(root, ignore_errors=True)
    print(table(results))
    lost = [failure for entry in results for failure in entry["lost"]]
    for failure in lost:
        print(f"lost: {failure['reason']}\n    {failure['command']}")
    if arguments.out:
        record = {"seed": seed, "faults": results, "provenance": provenance(torch.device("cpu"))}
        write_json(arguments.out, record)
        write_table(arguments.out)
    return int(bool(lost))


def run_trials(workspace, kinds: list[str], seed: int, arguments) -> list[dict]:
    """Return {"kind", "what", "tried", "lost"} of each case, in order."""
    entries = {
        (kind, case): {"kind": kind, "what": description(case), "tried": 0, "lost": []}
        for kind in kinds
        for case in cases(kind)
    }
    spent, numbers = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0)
    budget = 60 * arguments.minutes
    while kinds := [kind for kind in kinds if is_due(kind, numbers, spent, budget, arguments)]:
        kind = min(kinds, key=spent.get)
        number = numbers[kind] if arguments.trial is None else arguments.trial
        start = time.monotonic()
        case = cases(kind)[number % len(cases(kind))]
        entry = entries[kind, case]
        is_enough = arguments.rounds and entry["tried"] == arguments.rounds
        if is_enough or (arguments.rounds and hasattr(case, "is_slow")):
            numbers[kind] += 1
            continue
        reason = run_trial(workspace, case, kind, seed, number)
        seconds = time.monotonic() - start
        spent[kind] += seconds
        numbers[kind] += 1
        entry["tried"] += 1
        if reason:
            command = f"bash scripts/fault_test.sh --seed {seed} --only {kind} --trial {number}"
            reason = reason.replace(f"{workspace.root}/", "")
            entry["lost"].append({"reason": reason, "command": command})
        outcome = f"LOST: {reason}" if reason else "survived"
        print(f"{kind} {number}: {entry['what']} ({seconds:.1f} s): {outcome}", flush=True)
    return [entry for entry in entries.values() if entry["tried"]]


def is_due(kind: str, numbers: dict, spent: dict, budget: float, arguments) -> bool:
    """Return whether there are further trials of a kind."""
    if arguments.trial is not None:
        return numbers[kind] < 1
    if arguments.rounds is not None:
        return numbers[kind] < arguments.rounds * len(cases(kind))
    return sum(spent.values()) < budget


def run_trial(workspace, case, kind: str, seed: int, number: int) -> str | None:
    """Return what was lost, or None."""
    workspace.new_trial()
    try:
        case(workspace, random.Random(f"{seed} {kind} {number}"))
        workspace.check_outside()
    except harness.Lost as lost:
        return str(lost)
    except (Exception, SystemExit) as error:  # a file that should be there is missing or corrupt
        return f"{type(error).__name__}: {error}"
    return None


def table(entries: list[dict]) -> str:
    """Return a Markdown table of what was tried, how often, and how often something was lost."""
    rows = [("kind", "what was tried", "how often", "lost")]
    rows += [(e["kind"], e["what"], f"{e['tried']:,}", str(len(e["lost"]))) for e in entries]
    tried, lost = sum(e["tried"] for e in entries), sum(len(e["lost"]) for e in entries)
    rows.append(("all", "", f"{tried:,}", str(lost)))
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "| --- | --- | ---: | ---: |", *lines[1:]])


def markdown(record: dict) -> str:
    """Return the table of a record and the command that made it, as two paragraphs."""
    origin = record["provenance"]
    command = origin["command"].replace("python -m faults", "bash scripts/fault_test.sh")
    source = (
        f"Made by `{command}` at commit {str(origin['commit'])[:7]}, seed {record['seed']}, with "
        f"torch {origin['torch']} on {origin['device']}."
    )
    return f"{table(record['faults'])}\n\n{source}\n"


def write_table(path: Path) -> None:
    path.with_suffix(".md").write_text(markdown(json.loads(path.read_text())))


if __name__ == "__main__":
    sys.exit(main())
