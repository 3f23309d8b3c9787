"""Test and measure everything on a GPU, in parts with time budgets: what scripts/test_gpu.sh runs.

    python -m benchmarking.gpu_session                            # all parts
    python -m benchmarking.gpu_session smoke train-small          # some parts
    python -m benchmarking.gpu_session --budgets smoke=300 --limit 3600
    python -m benchmarking.gpu_session --device cpu --limit 3600  # the same parts, tiny, on a CPU
    python -m benchmarking.gpu_session --dry_run                  # print parts, budgets, commands

The cheap and decisive parts come first. A part that fails or exceeds its budget does not stop the
next one. Started again, parts and commands that passed are skipped. At the end, prints ten aims,
each met, missed or not measured, and writes an archive with all records and logs. Exits with status
1 if a part failed or was not finished.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtime import cli

from benchmarking.gpu_session import aims, environment, runner
from benchmarking.gpu_session.parts import Machine, Part, make_parts
from errors import InputError

QUERY = """
import json, torch
names = [torch.cuda.get_device_name(gpu) for gpu in range(torch.cuda.device_count())]
print(json.dumps(names))"""
JOBS = 4  # commands at the same time on a GPU, where no speed is measured


@dataclass
class Config:
    """Settings of a session."""

    parts: list[str] = field(default_factory=list)
    """parts to run; none: all"""
    limit: int = cli.limited(1800, 1)
    """seconds of all parts together"""
    budgets: str = ""
    """seconds of parts, instead of their own, as in smoke=300,attention=60"""
    device: Literal["cuda", "cpu"] = "cuda"
    """cpu: run the same parts at tiny sizes, to test them"""
    data: str = "data/stdlib"
    """folder of token shards for the trainings; made if it does not exist"""
    runs: str = "runs"
    """folder of all outputs"""
    out: str | None = None
    """folder of the records; null: test_gpu/ and the name of the GPU, below --runs"""
    jobs: int | None = cli.limited(None, 1)
    """commands at the same time in smoke and kernels; null: 4 on a GPU, 1 on a CPU or a
    GPU in exclusive mode"""
    dry_run: bool = False
    """print the parts, their budgets and commands, and exit"""

    def __post_init__(self):
        names = [part.name for part in make_parts(Machine(Path(), "", "cpu", 2))]
        unknown = [name for name in self.parts if name not in names]
        problems = [f"no part '{name}': use {' '.join(names)}" for name in unknown]
        for word in filter(None, self.budgets.split(",")):
            name, _, seconds = word.partition("=")
            if name not in names or not re.fullmatch(r"[1-9]\d{0,5}", seconds):
                problems.append(f"budgets: '{word}' is invalid: use PART=SECONDS, as in smoke=300")
        if problems:
            raise InputError(*problems)

    def seconds(self) -> dict[str, int]:
        """Return the seconds of --budgets by part."""
        words = [word.partition("=") for word in self.budgets.split(",") if word]
        return {name: int(seconds) for name, _, seconds in words}


def main(argv: list[str] | None = None) -> None:
    config = cli.parse(Config, argv, __doc__, positional=("parts", "parts to run"))
    names = [] if config.device == "cpu" else gpu_names()
    if config.device == "cuda" and not names and not config.dry_run:
        raise InputError("no GPU: use scripts/test.sh, or pass --device cpu (DEVICE=cpu)")
    name = folder_name(names[0]) if names else config.device
    default = Path(config.runs) / "test_gpu" / name
    machine = Machine(Path(config.out or default), config.data, config.device, len(names))
    parts = [p for p in make_parts(machine) if not config.parts or p.name in config.parts]
    if config.dry_run:
        print_plan(parts, config.seconds())
        return
    if not machine.is_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    run(machine, parts, config)


def run(machine: Machine, parts: list[Part], config: Config) -> None:
    """Run the parts; print the summary and the path of the archive, also after a signal."""
    session = runner.Session.open(machine.out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        jobs = config.jobs or default_jobs(machine)
        runner.run_parts(session, parts, config.seconds(), config.limit, jobs)
    finally:
        lines = aims.summarize(session)
        (machine.out / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        archive = runner.write_archive(machine.out)
        print("\n".join(lines))
        print(f"records: {archive}", flush=True)
    finished = (runner.PASSED, runner.NOT_POSSIBLE)
    if any(session.status(part.name) not in finished for part in parts):
        sys.exit(1)


def default_jobs(machine: Machine) -> int:
    """Return how many commands may run at the same time where no speed is measured."""
    modes = [gpu["compute_mode"] for gpu in environment.query_gpus()]
    if not machine.is_gpu or any(mode.startswith("Exclusive") for mode in modes):
        return 1  # one process at a time can use such a GPU
    return JOBS


def gpu_names() -> list[str]:
    """Return the names of the GPUs. A process of its own asks, because it may keep memory."""
    done = subprocess.run([sys.executable, "-c", QUERY], text=True, capture_output=True)
    return json.loads(done.stdout) if done.returncode == 0 else []


def folder_name(gpu: str) -> str:
    """Return the name of a GPU as part of a path: "NVIDIA H100 80GB HBM3" -> h100-80gb-hbm3."""
    words = re.findall(r"[a-z0-9]+", gpu.lower())
    return "-".join(words[1:] if words[:1] == ["nvidia"] else words)


def print_plan(parts: list[Part], budgets: dict[str, int]) -> None:
    """Print the parts, their budgets and commands."""
    total = 0
    for part in parts:
        budget = budgets.get(part.name, part.budget)
        if part.not_possible:
            print(f"{part.name}: {part.not_possible}")
            continue
        total += budget
        print(f"{part.name}: at most {budget} s")
        for stage in part.stages:
            for command in stage:
                settings = [f"{name}={value}" for name, value in command.environment.items()]
                words = [*settings, "python", *command.words[1:]]
                print(f"  {command.name}: {shlex.join(words)}")
    print(f"total: at most {total} s")


if __name__ == "__main__":
    cli.run(main)
