"""Cause faults and report what was lost: `PYTHONPATH=tests python -m tests.faults --help`.

Each case is tried in turn. A trial's random numbers depend on the seed, its case and its number
only, so that --seed and --only repeat it.
"""

import argparse
import contextlib
import csv
import io
import itertools
import random
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


def main() -> int:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="0: each case once")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of all faults")
    parser.add_argument("--only", default="", help="cases whose description contains this text")
    parser.add_argument("--out", type=Path, help="write the table here")
    arguments = parser.parse_args()
    names = [name for name in CASES if arguments.only in name]
    if not names:
        parser.error(f"no case contains {arguments.only}: use {'; '.join(CASES)}")
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="faults-") as root, contextlib.chdir(root):
        workspace = Workspace(Path(root))
        before = harness.digest_folder(workspace.base)
        tried, lost = run_trials(workspace, names, arguments.seed, arguments.minutes)
        if harness.digest_folder(workspace.base) != before:
            raise SystemExit("error: a trial changed files outside of its folder")
    text = table(tried, lost)
    print(text)
    for name, reason in lost:
        print(f"lost: {reason}\n    {PROGRAM} --seed {arguments.seed} --only '{name}'")
    if arguments.out:
        origin = provenance(torch.device("cpu"))
        made = (
            f"Seed {arguments.seed}, commit {str(origin['commit'])[:7]}, torch {origin['torch']}."
        )
        arguments.out.write_text(f'{text}\n"{made}",,\n')
    return int(bool(lost))


def run_trials(workspace: Workspace, names: list[str], seed: int, minutes: float):
    """Return the number of faults of each case, and what was lost: (case, reason).

    A case that causes several faults returns their number.
    """
    tried, lost = dict.fromkeys(names, 0), []
    end = time.monotonic() + 60 * minutes
    for number in itertools.count():
        for name in names:
            if number and time.monotonic() > end:
                return tried, lost
            begin = time.monotonic()
            workspace.new_trial()
            reason, faults = "nothing lost", 1
            try:
                faults = CASES[name](workspace, random.Random(f"{seed} {name} {number}")) or 1
            except (Exception, SystemExit) as error:  # Lost, or a file that should be there
                reason = f"{type(error).__name__}: {error}".replace(f"{workspace.root}/", "")
                lost.append((name, reason))
            tried[name] += faults
            print(f"{name} ({time.monotonic() - begin:.1f} s): {reason}", flush=True)


def table(tried: dict[str, int], lost: list) -> str:
    """Return a table (CSV): how often each fault was caused, and how often something was lost."""
    counts = {name: sum(name == each[0] for each in lost) for name in tried}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("fault", "how often", "lost"))
    writer.writerows((name, tried[name], counts[name]) for name in tried)
    writer.writerow(("all", sum(tried.values()), len(lost)))
    return out.getvalue().rstrip()


if __name__ == "__main__":
    sys.exit(main())
