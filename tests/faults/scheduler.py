"""Faults of run_experiment.py: signals, kills, damaged state and two calls at once.

The programs that it starts are false_program.py. After a fault, the same command again finishes:
every record is in the report, none of an unfinished run, and nothing that was recorded is repeated.
"""

import contextlib
import json
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from runtime import scheduler

from conftest import ROOT, write_program

import run_experiment

from .harness import Lost, Program, Workspace, check, expect

ENCODINGS = ("cable", "rope", "alibi", "fox", "nope", "kerple")
OUT = Path("runs/smoke/faults")
FLAGS = (
    "--name faults --scale smoke --train fineweb-edu_small --block_size 512 --perplexity 512,1024"
)
scheduler.POLL_SECONDS = 0.02
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
MOST_SECONDS = 1.5  # that a call takes


class Experiment:
    """An experiment in the folder of a trial; its calls differ in the encodings."""

    def __init__(self, workspace: Workspace, rng: random.Random):
        self.data, self.seconds = workspace.data, rng.choice((0.01, 0.03))
        self.output = ""  # of all calls that have ended
        Path("configs").symlink_to(ROOT / "configs")
        program = Path(__file__).with_name("false_program.py")
        for name in ("python", "torchrun"):
            write_program(
                Path("bin") / name, f'#!/bin/sh\nexec {sys.executable} -IS {program} "$@"\n'
            )
        self.journal = Path("journal").absolute()
        self.journal.touch()

    def start(self, encodings: list[str], **variables) -> Program:
        variables |= {"PATH": f"{Path('bin').absolute()}:{os.environ['PATH']}"}
        variables |= {"JOURNAL": str(self.journal), "FALSE_SECONDS": str(self.seconds)}
        words = [*FLAGS.split(), "--jobs", "3", "--data", self.data, "--encodings", *encodings]
        command = "bench.py train --out speed.json"
        return Program(run_experiment, *words, "--commands", command, environment=variables)

    def end(self, program: Program, *allowed: int) -> str:
        """Wait for a call, check how it ends, and return its output."""
        result = program.wait()
        self.output += result.output
        if result.status == 1 and 1 not in allowed:
            logs = "".join(path.read_text(errors="replace") for path in OUT.glob("logs/*.txt"))
            raise Lost(f"{result.output[-300:]}\n{logs[-300:]}")
        return check(result, *allowed).output

    def running(self) -> list[int]:
        """Return the processes of jobs."""
        started = re.findall(r"started (\d+)", self.journal.read_text())
        paths = [Path(f"/proc/{process}/cmdline") for process in started]
        return [int(path.parent.name) for path in paths if path.exists() and path.read_bytes()]

    def finish(self, *encodings: str, is_damaged: bool = False) -> None:
        """Repeat the command; raise Lost unless everything is in the report, and once."""
        is_recorded = "done: bench.py" in self.output and not is_damaged
        output = self.end(self.start(encodings), 0)
        if is_recorded and "\n+ python bench.py" in output:
            raise Lost("a recorded benchmark is repeated")
        self.check_report(encodings)
        journal = Counter(self.journal.read_text().splitlines())
        for line, count in journal.items():
            if "unfinished" in line or (count > 1 and "eval" in line and not is_damaged):
                raise Lost(f"{line}, {count} times")
        if self.running():
            raise Lost("a job runs after the end")

    def check_report(self, encodings) -> None:
        found = Counter(Path(x).parent.name for x in json.loads((OUT / "table.json").read_text()))
        # `rope` is also evaluated with a cache.
        expected = {pe: 1 + (pe == "rope") for pe in encodings} | {OUT.name: 1}
        expect({name: found[name] for name in expected}, expected, f"the report ({dict(found)})")


def signals(workspace, rng):
    """scheduler: SIGKILL, SIGTERM or SIGINT to it or to one of its jobs, one to eight times"""
    experiment, encodings = Experiment(workspace, rng), rng.sample(ENCODINGS, 2)
    count = rng.choice((1, 2, 4, 8))
    for _ in range(count):
        program, number = experiment.start(encodings), rng.choice(SIGNALS)
        time.sleep(rng.uniform(0, MOST_SECONDS))
        processes = experiment.running()
        if processes and rng.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(rng.choice(processes), number)
        else:
            program.kill(number)
        experiment.end(program, 0, 1, -number, 128 + number)
    experiment.finish(*encodings)
    return count


def damaged(workspace, rng):
    """scheduler: up to five files of state, logs or records are damaged or removed"""
    experiment, encodings = Experiment(workspace, rng), rng.sample(ENCODINGS, 2)
    program = experiment.start(encodings)
    if rng.random() < 0.5:
        time.sleep(rng.uniform(0.3, MOST_SECONDS))
        program.kill(signal.SIGTERM)
    experiment.end(program, 0, -signal.SIGTERM, 128 + signal.SIGTERM)
    files = [path for path in sorted(Path("runs").rglob("*.*")) if path.name != "steps.json"]
    chosen = rng.sample(files, min(len(files), rng.choice((1, 2, 5))))
    for path in chosen:
        content = path.read_bytes()
        cut = content[: rng.randrange(len(content) + 1)]
        others = (
            b"",
            cut,
            cut + rng.randbytes(9),
            b"null",
            b'[1]\n{"records": 3}\n{"records": [3]}',
        )
        path.write_bytes(rng.choice(others))
        if rng.random() < 0.2:
            path.unlink()
    experiment.finish(*encodings, is_damaged=True)
    return len(chosen)


def at_once(workspace, rng):
    """scheduler: two calls with different encodings at once; one may be killed"""
    experiment = Experiment(workspace, rng)
    pairs = [rng.sample(ENCODINGS, 2) for _ in range(2)]
    programs = [experiment.start(pairs[0])]
    time.sleep(rng.choice((0, rng.uniform(0, 0.5))))
    programs.append(experiment.start(pairs[1]))
    if is_killed := rng.random() < 0.3:
        time.sleep(rng.uniform(0, 0.5))
        programs[1].kill(number := rng.choice(SIGNALS))
        experiment.end(programs.pop(), 0, -number, 128 + number)
    for program in programs:
        experiment.end(program, 0)
    if is_killed:
        experiment.finish(*pairs[1])
    experiment.check_report(sum(pairs, []))
    experiment.finish(*pairs[0])
    experiment.check_report(sum(pairs, []))
