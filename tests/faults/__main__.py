"""Cause faults and report what was lost: `PYTHONPATH=tests python -m tests.faults --help`.

Each case is tried in turn. A trial's random numbers depend on the seed, its case and its number
only, so that one trial can be repeated.
"""

import argparse
import csv
import io
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from runtime.devices import provenance

import torch

from . import harness
from .cases import CASES
from .harness import Workspace

PROGRAM = "PYTHONPATH=tests python -m tests.faults"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="time to spend")
    parser.add_argument("--rounds", type=int, help="try each case this often, in any time")
    parser.add_argument("--seed", type=int, help="seed of all faults; default: a random one")
    parser.add_argument("--only", default="", help="cases whose description contains this text")
    parser.add_argument("--trial", type=int, help="repeat this trial of --only; print all output")
    parser.add_argument("--out", type=Path, help="write the table here")
    return parser


def main(argv=None) -> int:
    arguments = make_parser().parse_args(argv)
    names = [name for name in CASES if arguments.only in name]
    if not names:
        print(f"error: no case contains {arguments.only}: use {'; '.join(CASES)}", file=sys.stderr)
        return 2
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    root = Path(tempfile.mkdtemp(prefix="faults-"))
    folder = os.getcwd()
    try:
        workspace = Workspace(root)
        before = harness.digest_folder(workspace.base)
        harness.VERBOSE = arguments.trial is not None
        tried, lost = run_trials(workspace, names, seed, arguments)
        if harness.digest_folder(workspace.base) != before:
            raise SystemExit("error: a trial changed files outside of its folder")
    finally:
        os.chdir(folder)
        shutil.rmtree(root, ignore_errors=True)
    text = table(tried, lost)
    print(text)
    for name, number, reason in lost:
        command = f"{PROGRAM} --seed {seed} --only '{name}' --trial {number}"
        print(f"lost: {reason}\n    {command}")
    if arguments.out:
        origin = provenance(torch.device("cpu"))
        made = f"Seed {seed}, commit {str(origin['commit'])[:7]}, torch {origin['torch']}."
        arguments.out.write_text(f'{text}\n"{made}",,\n')
    return int(bool(lost))


def run_trials(workspace: Workspace, names: list[str], seed: int, arguments):
    """Return how often each case was tried, and what was lost: (case, number, reason)."""
    tried, lost = dict.fromkeys(names, 0), []
    end = time.monotonic() + 60 * arguments.minutes
    numbers = itertools.count() if arguments.rounds is None else range(arguments.rounds)
    for number in numbers if arguments.trial is None else [arguments.trial]:
        for name in names:
            if number and arguments.rounds is None and time.monotonic() > end:
                return tried, lost
            begin = time.monotonic()
            reason = run_trial(workspace, name, seed, number)
            tried[name] += 1
            if reason:
                lost.append((name, number, reason.replace(f"{workspace.root}/", "")))
            seconds = time.monotonic() - begin
            print(f"{name} ({seconds:.1f} s): {reason or 'nothing lost'}", flush=True)
    return tried, lost


def run_trial(workspace, name: str, seed: int, number: int) -> str | None:
    """Return what was lost, or None."""
    workspace.new_trial()
    try:
        CASES[name](workspace, random.Random(f"{seed} {name} {number}"))
    except harness.Lost as lost:
        return str(lost)
    except (Exception, SystemExit) as error:  # a file that should be there is missing or corrupt
        return f"{type(error).__name__}: {error}"
    return None


def table(tried: dict[str, int], lost: list) -> str:
    """Return a table (CSV) of what was tried, how often, and how often something was lost."""
    counts = {name: sum(name == each[0] for each in lost) for name in tried}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("fault", "how often", "lost"))
    writer.writerows((name, tried[name], counts[name]) for name in tried)
    writer.writerow(("all", sum(tried.values()), len(lost)))
    return out.getvalue().rstrip()


if __name__ == "__main__":
    sys.exit(main())
