"""Scheduler: run the jobs of an experiment on the devices of a machine.

    scheduler = Scheduler(jobs, report, Path("runs/full/table4/logs"), side_by_side="auto")
    status = scheduler.run()

A job runs on all GPUs (torchrun) or, side by side with others, on one GPU or its part of the cores.
Jobs start in their order once those that they need are done; the report runs whenever there are new
records.

Next to a job's log (.txt) is what the program and this one report of it (.jsonl, job_report.py).
Programs that resume find out themselves what is left. Other jobs are done if they were recorded
with the same inputs: the words of their command, and the files and folders among them. A job that
another call runs is waited for.
"""

import contextlib
import ctypes
import fcntl
import hashlib
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

    words: list[str]  # without python or torchrun
    needs: list["Job"] = field(default_factory=list)
    output: str = ""  # file or folder that it makes
    resumes: bool = False  # whether the program finds out what is left
    on_all_ranks: bool = False  # whether torchrun can start it
    prints: bool = False  # to the terminal, instead of to a log

    state: str = "waiting"  # running, done, failed, skipped or interrupted
    devices: list[str] = field(default_factory=list)  # as in CUDA_VISIBLE_DEVICES
    failed_on: list[str] = field(default_factory=list)  # devices of its first attempt
    inputs: list = field(default_factory=list)  # words and what they name, of a new output
    started: float = 0.0

    @property
    def name(self) -> str:
        """Of its log, and in messages: one for each output, else for each command."""
        subject = self.output or shlex.join(self.words)
        digest = hashlib.sha256(subject.encode()).hexdigest()[:8]
        what = self.output or " ".join(self.words[1:2])
        return re.sub("[ /]", "-", f"{self.words[0]}-{what[-50:]}-{digest}")

    def command(self, ranks: int) -> list[str]:
        if self.on_all_ranks and ranks > 1:
            return ["torchrun", "--standalone", f"--nproc_per_node={ranks}", *self.words]
        return ["python", *self.words]


class Scheduler:
    """Runs jobs; keeps their logs and reports in a folder."""

    def __init__(self, jobs: list[Job], report: list[str], logs: Path, side_by_side: int | None):
        """report: words of a command, to which records are appended.

        side_by_side: jobs; None: one on all GPUs if it can, else one per GPU or core.
        """
        self.jobs, self.report, self.logs = jobs, report, logs
        self.has_failed, self.reported = False, []  # the latest report, and its records
        count = int(os.environ.get(DEVICES, torch.cuda.device_count()))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        ids = re.findall("[^, ]+", visible) or [*map(str, range(count))]
        if "MIG" not in visible:  # CUDA counts one MIG device
            ids = ids[:count]
        cores = len(os.sched_getaffinity(0))
        is_shared = side_by_side in (None, 1) and any(job.on_all_ranks for job in jobs)
        self.ranks = max(1, count) if is_shared else 1
        self.free = ids or [""] * (side_by_side or cores)  # devices
        if self.ranks == 1:
            self.free = self.free[:side_by_side]
        self.usable = len(self.free)
        self.threads = max(1, cores // self.usable)  # of a rank
        self.running: dict[Job, subprocess.Popen] = {}
        self.signals: list[int] = []
        self.passed_on = 0  # signals
        self.printed = time.time()

    def log_of(self, job: Job) -> Path:
        return self.logs / f"{job.name}.txt"

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
        self.write_report()
        for job in self.jobs:
            if job.state != "done":
                self.has_failed = True
                command = shlex.join(job.command(self.ranks))
                line = f"error: {job.state}: {command}: read {self.log_of(job)}"
                print(line, file=sys.stderr)
            elif job.failed_on:
                what = f"{job.name} failed on device {job.failed_on[0]}"
                print(f"note: {what}, then left out: check it")
        return int(self.has_failed)

    def step(self) -> bool:
        """Note what has ended, and start what is ready; return whether any is left."""
        ended = [job for job, x in self.running.items() if x.poll() is not None]
        for job in ended:
            self.end(job, self.running.pop(job).returncode)
        if self.signals:
            self.pass_on_signals()
            return bool(self.running)
        self.start_ready()
        if ended:
            self.write_report()
        if time.time() - self.printed > PRINT_SECONDS:
            self.printed = time.time()
            for job in self.running:
                lines = self.log_of(job).read_text(errors="replace").splitlines()
                print(f"{job.name}:", *lines[-1:], flush=True)
        return any(job.state in ("waiting", "running") for job in self.jobs)

    def pass_on_signals(self) -> None:
        """Send jobs the signals that have arrived: trainings save a checkpoint."""
        is_new = self.passed_on < len(self.signals)
        self.passed_on = len(self.signals)
        for process in self.running.values():
            if is_new:
                process.terminate()
            if self.passed_on >= KILLING_SIGNALS:
                for each in _descendants(process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)

    def start_ready(self) -> None:
        """Start the first jobs that have what they need, while there are devices."""
        for job in self.jobs:
            states = {need.state for need in job.needs}
            if job.state != "waiting" or states & {"waiting", "running"}:
                continue
            count = self.ranks if job.on_all_ranks else 1
            if states - {"done"}:
                job.state = "skipped"
            elif len(self.free) < count or self.signals:
                return
            else:
                self.start(job, count)

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

    def start(self, job: Job, count: int) -> None:
        """Start a job on so many devices, unless it is recorded, or another call runs it."""
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
                job.state = "done"
                print(f"done: {job.name}, which an earlier call finished", flush=True)
                return
            job_report.append(path, finished=True, repeated=False, inputs=None)
            job.devices, self.free = self.free[:count], self.free[count:]
            environment = {
                "OMP_NUM_THREADS": str(self.threads),
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                job_report.VARIABLE: str(path),
            }
            if any(job.devices):
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(job.devices)
            words = job.command(count)
            print(f"+ {shlex.join(words)}", flush=True)
            job.state, job.started = "running", time.time()
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
        job.inputs = [[word, _describe(word)] for word in job.words if word != output]
        result = os.path.isdir(output) or _describe(output)
        if [record.get("inputs"), record.get("result")] == [job.inputs, result]:
            return True
        if "output" in record:
            shutil.rmtree(output, ignore_errors=True)
        if not os.path.isdir(output):  # a folder of the user's stays
            job_report.append(path, output=output)
        return False

    def end(self, job: Job, status: int) -> None:
        """Note how a job has ended; leave out a device that may be broken."""
        path, seconds = self.log_of(job).with_suffix(".jsonl"), time.time() - job.started
        reported = job_report.read(path)
        job.state = "failed" if status else "done"
        is_stopped = status == -signal.SIGTERM or (status and self.signals)
        if is_stopped or not reported["finished"]:
            job.state = "interrupted"
        freed = job.devices
        can_spare = any(freed) and self.ranks == 1 < self.usable
        if job.state == "failed" and job.failed_on:  # it was not the device
            freed = freed + job.failed_on
            self.usable += 1
        elif job.state == "failed" and can_spare and seconds < QUICK_SECONDS:
            job.state, job.failed_on, freed = "waiting", freed, []
            self.usable -= 1
        self.free += freed
        if job.state == "done":
            result = os.path.isdir(job.output) or _describe(job.output)
            job_report.append(path, inputs=job.inputs, result=result)
        note = ", which an earlier call finished" if reported["repeated"] else ""
        print(f"{job.state}: {job.name}{note}, {seconds:.1f} s", flush=True)


def _describe(path: str) -> str | list | None:
    """Return a file's hash, or names, sizes and times of a folder's files, as JSON."""
    if not os.path.isdir(path):
        return hash_file(path) if os.path.isfile(path) else None
    files = [x for x in Path(path).glob("[!.]*") if not x.name.startswith("eval_")]
    return sorted([x.name, x.stat().st_size, x.stat().st_mtime_ns] for x in files)


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
