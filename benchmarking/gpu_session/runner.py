"""Runs the parts of a session: time budgets, resume, logs, and an archive of all records.

A part that fails or exceeds its budget does not stop the next one. session.json has the status of
every part and command; those that passed are skipped when the session is started again.
"""

import contextlib
import os
import signal
import subprocess
import tarfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from runtime import files

from benchmarking.gpu_session.parts import Command, Part
from errors import InputError

ROOT = Path(__file__).parents[2]
PASSED, FAILED, TIMED_OUT = "passed", "failed", "timed out"
NOT_STARTED, INTERRUPTED, NOT_POSSIBLE = "not started", "interrupted", "not possible"
# From worst to best: a part has the worst status of its commands.
SEVERITY = (FAILED, INTERRUPTED, TIMED_OUT, NOT_STARTED, NOT_POSSIBLE, PASSED)
GRACE = 10.0  # seconds from SIGINT, after which a command writes what it has, to SIGKILL
POLL = 0.05  # seconds between looks at the running commands
ARCHIVED = {".json", ".jsonl", ".txt", ".yaml"}  # not checkpoints
STATE = "session.json"


@dataclass
class Running:
    """A command that has started."""

    process: subprocess.Popen
    start: float


@dataclass
class Session:
    """State of a session in a folder."""

    folder: Path
    parts: dict[str, dict] = field(default_factory=dict)
    """what session.json has: status, seconds, budget and commands of each part"""

    @classmethod
    def open(cls, folder: Path) -> "Session":
        """Return the session in a folder, new or continued. Raises InputError if it is corrupt."""
        path = folder / STATE
        if not path.exists():
            return cls(folder)
        content = files.read_json(path, "remove it to run all parts again")
        try:
            parts = content["parts"]
            for part in parts.values():
                assert part["status"] in SEVERITY and isinstance(part["commands"], dict)
        except (AssertionError, AttributeError, KeyError, TypeError):
            raise InputError(f"{path} is corrupt: remove it to run all parts again") from None
        return cls(folder, parts)

    def status(self, part: str) -> str:
        """Return the status of a part."""
        return self.parts.get(part, {}).get("status", NOT_STARTED)

    def command_status(self, part: Part, command: Command) -> str:
        """Return the status of a command."""
        commands = self.parts.get(part.name, {}).get("commands", {})
        return commands.get(command.name, {}).get("status", NOT_STARTED)

    def record_command(self, part: Part, command: Command, status: str, **values) -> None:
        """Write the status of a command, and print it with further values."""
        entry = self.parts[part.name]
        entry["commands"][command.name] = {"status": status, **values}
        self.write()
        words = [status]
        if "seconds" in values:
            words.append(f"{values['seconds']:.0f} s")
        if status == TIMED_OUT:
            words.append(f"the part's budget of {entry['budget']:.0f} s is used up")
        if status == FAILED:
            log = self.log(part, command)
            words.append(f"exit status {values['exit_status']}: {last_line(log)} ({log})")
        print(f"  {command.name}: {', '.join(words)}", flush=True)

    def log(self, part: Part, command: Command) -> Path:
        """Return the file with the output of a command."""
        return self.folder / "logs" / f"{part.name}_{command.name}.txt"

    def write(self) -> None:
        files.write_json(self.folder / STATE, {"parts": self.parts})


def last_line(path: Path) -> str:
    """Return the last line of a log that is not empty, shortened."""
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "no output"


def run_parts(
    session: Session, parts: list[Part], budgets: dict[str, int], limit: float, jobs: int
) -> None:
    """Run the parts that have not passed.

    budgets: seconds of parts, which replace their own. limit: seconds of all parts; the budget of a
    part ends there, too. jobs: commands at the same time, in parts that measure no speed.
    """
    start = time.monotonic()
    for part in parts:
        if session.status(part.name) == PASSED:
            print(f"{part.name}: passed before, skipped", flush=True)
            continue
        left = start + limit - time.monotonic()
        budget = min(budgets.get(part.name, part.budget), left)
        run_part(session, part, budget, jobs if part.side_by_side else 1)


def run_part(session: Session, part: Part, budget: float, jobs: int) -> None:
    """Run the commands of a part that have not passed, and record its status."""
    commands = session.parts.get(part.name, {}).get("commands", {})
    entry = {"status": NOT_STARTED, "seconds": 0.0, "budget": max(0.0, budget)}
    session.parts[part.name] = entry | {"commands": commands}
    entry = session.parts[part.name]
    if part.not_possible:
        entry["status"] = NOT_POSSIBLE
        print(f"{part.name}: {part.not_possible}", flush=True)
        session.write()
        return
    if budget <= 0:
        print(f"{part.name}: not started, no time is left", flush=True)
        session.write()
        return
    print(f"{part.name}: at most {budget:.0f} s", flush=True)
    start = time.monotonic()
    try:
        for stage in part.stages:
            run_stage(session, part, stage, start + budget, jobs)
    finally:
        statuses = [session.command_status(part, c) for stage in part.stages for c in stage]
        entry["status"] = min(statuses, key=SEVERITY.index)
        entry["seconds"] = round(time.monotonic() - start, 1)
        session.write()
    print(f"{part.name}: {entry['status']}, {entry['seconds']:.0f} s", flush=True)


def run_stage(
    session: Session, part: Part, commands: list[Command], deadline: float, jobs: int
) -> None:
    """Run the commands that have not passed, at most `jobs` at the same time, until a deadline."""
    waiting = [c for c in commands if session.command_status(part, c) != PASSED]
    by_name = {command.name: command for command in commands}
    running: dict[str, Running] = {}
    status = INTERRUPTED  # of what runs when an exception ends the loop
    try:
        while waiting or running:
            if time.monotonic() >= deadline:
                status = TIMED_OUT
                break
            while waiting and len(running) < jobs:
                command = waiting.pop(0)
                running[command.name] = start_command(session, part, command)
            for name, state in list(running.items()):
                if state.process.poll() is not None:
                    del running[name]
                    record_end(session, part, by_name[name], state)
            time.sleep(POLL)
    finally:
        stop(list(running.values()))
        for name, state in running.items():
            seconds = round(time.monotonic() - state.start, 1)
            session.record_command(part, by_name[name], status, seconds=seconds)
        for command in waiting:
            session.record_command(part, command, NOT_STARTED)


def start_command(session: Session, part: Part, command: Command) -> Running:
    """Start a command in a process group of its own; its output goes to its log."""
    log = session.log(part, command)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as file:
        process = subprocess.Popen(
            command.words,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **command.environment},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Running(process, time.monotonic())


def record_end(session: Session, part: Part, command: Command, state: Running) -> None:
    """Record how a command ended by itself."""
    exit_status = state.process.returncode
    status = FAILED if exit_status else PASSED
    seconds = round(time.monotonic() - state.start, 1)
    session.record_command(part, command, status, seconds=seconds, exit_status=exit_status)


def stop(running: list[Running]) -> None:
    """End commands with all processes that they started: SIGINT, and SIGKILL after GRACE."""
    for state in running:
        send(state, signal.SIGINT)
    deadline = time.monotonic() + GRACE
    for state in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            state.process.wait(max(0.0, deadline - time.monotonic()))
        send(state, signal.SIGKILL)
        state.process.wait()


def send(state: Running, number: signal.Signals) -> None:
    """Send a signal to the process group of a command."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(state.process.pid, number)


def write_archive(folder: Path) -> Path:
    """Write folder.tar.gz with all records and logs of a session, and return its path."""
    archive = folder.with_name(f"{folder.name}.tar.gz")
    with files.atomic(archive) as file, tarfile.open(fileobj=file, mode="w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix in ARCHIVED:
                tar.add(path, arcname=f"{folder.name}/{path.relative_to(folder)}")
    return archive
