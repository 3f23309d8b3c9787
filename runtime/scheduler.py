"""Scheduler: run the jobs of an experiment on the devices of a machine.

    scheduler = Scheduler(jobs, report, Path("runs/full/table4/logs"), side_by_side="auto")
    status = scheduler.run()

A job runs on all GPUs (torchrun) or, side by side with others, on one
GPU or its part of the cores. Jobs start in their order once those that
they need are done; the report runs whenever there are new records.

Next to a job's log (.txt) is what the program and this one report of it
(.jsonl, job_report.py). Programs that resume find out themselves what is
left. Other jobs are done if they were recorded with the same inputs: the
words of their command, and the files and folders among them. A job that
another call runs is waited for.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from runtime import job_report
from runtime.files import hash_file, locked

import torch

DEVICES = "EXPERIMENT_DEVICES"  # number of devices to believe in, for tests
KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG
POLL_SECONDS, PRINT_SECONDS = 0.1, 60
QUICK_SECONDS = 60  # a job that fails within this time may have a broken device
KILLING_SIGNALS = 3  # Ctrl-C or SIGTERM: jobs get SIGTERM, then SIGKILL


@dataclass(eq=False)
class Job:
    """A command and its state."""

    name: str
    words: list[str]  # without python or torchrun
    needs: list["Job"] = field(default_factory=list)
    output: str = ""  # file or folder that it makes
    resumes: bool = False  # whether the program finds out what is left
    on_all_ranks: bool = False  # whether torchrun can start it
    prints: bool = False  # to the terminal, instead of to a log

    state: str = "waiting"  # running, done, failed, skipped or interrupted
    places: tuple[int, ...] = ()  # indices of its devices
    failed_at: tuple[int, ...] = ()  # places of its first attempt
    inputs: str = ""  # hash, if it has an output
    started: float = 0.0

    def command(self, ranks: int) -> list[str]:
        if self.on_all_ranks and ranks > 1:
            return ["torchrun", "--standalone", f"--nproc_per_node={ranks}", *self.words]
        return ["python", *self.words]


class Scheduler:
    """Runs jobs; keeps their logs and reports in a folder."""

    def __init__(
        self, jobs: list[Job], report: list[str], logs: Path, side_by_side: int | str
    ):
        """report: words of a command, to which records are appended.

        side_by_side: jobs; "auto": one on GPUs, else one per core; "all": one each.
        """
        self.jobs, self.report, self.logs = jobs, report, logs
        self.is_due = False  # whether a report may have further records
        self.has_failed, self.reported = False, []  # the latest report, and its records
        count = int(os.environ.get(DEVICES, torch.cuda.device_count()))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        ids = re.findall("[^, ]+", visible) or [*map(str, range(count))]
        if "MIG" not in visible:  # CUDA counts one MIG device
            ids = ids[:count]
        self.cores = len(os.sched_getaffinity(0))
        self.ranks = max(1, count) if side_by_side in (1, "auto") else 1
        self.devices = ids or [""] * self.cores
        if isinstance(side_by_side, int) and self.ranks < 2:
            self.devices = (ids or [""] * side_by_side)[:side_by_side]
        self.usable = {*range(len(self.devices))}
        self.running: dict[Job, subprocess.Popen] = {}
        self.signals: list[int] = []
        self.passed_on = 0  # signals
        self.printed = time.time()

    def log_of(self, job: Job) -> Path:
        """Return the path of a job's log: one for each output, else for each command."""
        name = re.sub("[ /]", "-", job.name)[-200:]
        subject = job.output or shlex.join(job.words)
        digest = hashlib.sha256(subject.encode()).hexdigest()[:8]
        return self.logs / f"{name}-{digest}.txt"

    def run(self) -> int:
        """Run all jobs; return 128 + N after signal N, 0 if all are done, else 1."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: self.signals.append(number))
        self.logs.mkdir(parents=True, exist_ok=True)
        while self.step():
            time.sleep(POLL_SECONDS)
        if self.signals:
            print("interrupted: run the same command again to continue", file=sys.stderr)
            return 128 + self.signals[0]
        for job in self.jobs:
            if job.state != "done":
                self.has_failed = True
                command = shlex.join(job.command(self.ranks))
                line = f"error: {job.state}: {command}: read {self.log_of(job)}"
                print(line, file=sys.stderr)
            elif job.failed_at:
                device = self.devices[job.failed_at[0]]
                print(
                    f"note: {job.name} failed on device {device}, then left out: check it"
                )
        return int(self.has_failed)

    def step(self) -> bool:
        """Note what has ended, and start what is ready; return whether any is left."""
        for job, process in [*self.running.items()]:
            if process.poll() is not None:
                del self.running[job]
                self.end(job, process.returncode)
        if self.signals:
            self.pass_on_signals()
            return bool(self.running)
        self.start_ready()
        if self.is_due:
            self.is_due = False
            self.write_report()
        if time.time() - self.printed > PRINT_SECONDS:
            self.printed = time.time()
            for job in self.running:
                lines = self.log_of(job).read_text(errors="replace").splitlines()
                print(f"{job.name}:", *lines[-1:], flush=True)
        return any(job.state in ("waiting", "running") for job in self.jobs)

    def pass_on_signals(self) -> None:
        """Send jobs the signals that have arrived: trainings save a checkpoint."""
        if self.passed_on < len(self.signals):
            self.passed_on = len(self.signals)
            for process in self.running.values():
                process.terminate()
        if self.passed_on >= KILLING_SIGNALS:
            for process in self.running.values():
                for each in _descendants(process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)

    def start_ready(self) -> None:
        """Start the first jobs that have what they need, while there are devices."""
        for job in self.jobs:
            states = {need.state for need in job.needs}
            if job.state == "waiting" and states & {"failed", "interrupted", "skipped"}:
                job.state = "skipped"
            if job.state != "waiting" or states - {"done"}:
                continue
            used = {place for other in self.running for place in other.places}
            count = self.ranks if job.on_all_ranks else 1
            places = tuple(sorted(self.usable - used)[:count])
            if len(places) < count or self.signals:
                return
            self.start(job, places)

    def write_report(self) -> None:
        """Run the report on the records of all calls; concurrent calls wait for each other."""
        with locked(self.logs / "report"):
            reports = [job_report.read(path) for path in sorted(self.logs.glob("*.jsonl"))]
            records = dict.fromkeys(x for report in reports for x in report["records"])
            state = [(path, _describe(path)) for path in records]
            if state != self.reported:
                words = ["python", *self.report, *records]
                done = subprocess.run(words, preexec_fn=_end_with_parent)
                self.reported, self.has_failed = state, bool(done.returncode)

    def start(self, job: Job, places: tuple[int, ...]) -> None:
        """Start a job, unless it is recorded, or another call runs it."""
        path = self.log_of(job)
        with open(path, "ab") as log:
            try:  # the job inherits the lock
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not job.started:
                    print(f"waiting: another call runs {job.name}", flush=True)
                job.started = time.time()
                return
            except OSError:  # a file system without locks
                pass
            path = path.with_suffix(".jsonl")
            if job.output and not job.resumes and self.reuse_or_clear(job, path):
                job.state, self.is_due = "done", True
                print(f"done: {job.name}, which an earlier call finished", flush=True)
                return
            job_report.append(path, finished=True, repeated=False, inputs=None)
            threads = max(1, self.cores // len(self.devices))
            environment = {
                "OMP_NUM_THREADS": str(threads),
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                job_report.VARIABLE: str(path),
            }
            devices = ",".join(self.devices[place] for place in places)
            if devices:
                environment["CUDA_VISIBLE_DEVICES"] = devices
            words = job.command(len(places))
            print(f"+ {shlex.join(words)}", flush=True)
            job.state, job.places, job.started = "running", places, time.time()
            self.running[job] = subprocess.Popen(
                words,
                stdout=None if job.prints else log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process only
                preexec_fn=_end_with_parent,
            )

    def reuse_or_clear(self, job: Job, path: Path) -> bool:
        """Return whether a job is recorded with its inputs; else remove its folder."""
        output, record = job.output, job_report.read(path)
        inputs = [(word, _describe(word)) for word in job.words if word != output]
        job.inputs = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
        is_ours = record.get("output") == output
        made = [record.get("inputs"), record.get("result")]
        if is_ours and made == [job.inputs, _result(output)]:
            return True
        if is_ours:
            shutil.rmtree(output, ignore_errors=True)
        if not os.path.isdir(output):  # a folder of the user's stays
            job_report.append(path, output=output)
        return False

    def end(self, job: Job, status: int) -> None:
        """Note how a job has ended."""
        path, seconds = self.log_of(job).with_suffix(".jsonl"), time.time() - job.started
        reported = job_report.read(path)
        job.state = "failed" if status else "done"
        is_stopped = status == -signal.SIGTERM or (status and self.signals)
        if is_stopped or not reported["finished"]:
            job.state = "interrupted"
        if job.state == "failed" and self.leave_out_device(job, seconds):
            job.state = "waiting"
        if job.state == "done":
            self.is_due = True
            job_report.append(path, inputs=job.inputs, result=_result(job.output))
        note = ", which an earlier call finished" if reported["repeated"] else ""
        print(f"{job.state}: {job.name}{note}, {seconds:.1f} s", flush=True)

    def leave_out_device(self, job: Job, seconds: float) -> bool:
        """Leave out the device of a failed job, and return whether to try another one."""
        if job.failed_at:  # it was not the device
            self.usable |= {*job.failed_at}
            return False
        is_alone = self.ranks > 1 or len(self.usable) == 1 or not any(self.devices)
        if is_alone or seconds > QUICK_SECONDS or self.signals:
            return False
        job.failed_at = job.places
        self.usable -= {*job.places}
        return True


def _result(path: str) -> str | bool:
    """Return a file's hash; True for a folder, False for nothing."""
    return hash_file(path) if os.path.isfile(path) else os.path.isdir(path)


def _describe(path: str) -> str | list | None:
    """Return a file's hash, or names, sizes and times of a folder's files."""
    if not os.path.isdir(path):
        return hash_file(path) if os.path.isfile(path) else None
    files = [x for x in Path(path).glob("[!.]*") if not x.name.startswith("eval_")]
    return sorted((x.name, x.stat().st_size, x.stat().st_mtime_ns) for x in files)


def _descendants(process: int) -> list[int]:
    """Return a process and all that it has started, as far as the system tells."""
    found = [process]
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text().split():
                found += _descendants(int(child))
    return found


def _end_with_parent() -> None:
    """Ask Linux to send SIGTERM to this process when its parent ends."""
    ctypes.CDLL(None).prctl(KILL_WITH_PARENT, signal.SIGTERM)
