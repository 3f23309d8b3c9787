"""Scheduler: run the jobs of an experiment on the devices of a machine.

    scheduler = Scheduler(jobs, report, Path("runs/full/table4/logs"), side_by_side="auto")
    status = scheduler.run()

A job runs on all GPUs (torchrun) or, side by side with others, on one
GPU or its part of the cores. Jobs start in their order once those that
they need are done; the report runs again for new records.

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
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from runtime import job_report
from runtime.files import hash_file

import torch

DEVICES = "EXPERIMENT_DEVICES"  # number of devices to believe in, for tests
SCRIPTS = "EXPERIMENT_SCRIPTS"  # processes of the calling scripts; jobs end with them
KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG
POLL_SECONDS, PRINT_SECONDS = 0.1, 60
QUICK_SECONDS = 60  # a job that fails within this time may have a broken device
# What jobs get at the first, second and third Ctrl-C or SIGTERM.
SIGNALS = (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL)


@dataclass(eq=False)
class Job:
    """A command and its state."""

    name: str
    words: list[str]  # without python or torchrun
    needs: list["Job"] = field(default_factory=list)
    run: Path | None = None  # folder of the model that it makes
    output: Path | None = None  # of a program that does not resume
    on_all_ranks: bool = False  # whether torchrun can start it
    prints: bool = False  # whether its output is shown

    state: str = "waiting"  # running, done, failed, skipped or interrupted
    places: tuple[int, ...] = ()  # indices of its devices
    failed_at: tuple[int, ...] = ()  # places of its first attempt
    inputs: str = ""  # hash, if it has an output
    started: float = 0.0
    log_start: int = 0  # bytes of its log that earlier calls wrote
    signals: int = 0  # that it was sent

    def command(self, ranks: int = 1) -> list[str]:
        if self.on_all_ranks and ranks > 1:
            return ["torchrun", "--standalone", f"--nproc_per_node={ranks}", *self.words]
        return ["python", *self.words]


class Scheduler:
    """Runs jobs; keeps their logs and reports in a folder."""

    def __init__(self, jobs: list[Job], report: Job, logs: Path, side_by_side: int | str):
        """side_by_side: jobs; "auto": one on GPUs, else one per core; "all": one each."""
        self.jobs, self.report, self.logs = jobs, report, logs
        self.records: list[str] = []  # of this call's latest report
        self.is_due = False  # whether there are others
        count = int(os.environ.get(DEVICES, torch.cuda.device_count()))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        ids = re.findall("[^, ]+", visible)
        self.on_all = count > 1 and side_by_side in (1, "auto")
        if self.on_all or "MIG" not in visible:  # CUDA counts one MIG device
            ids = ids[:count]
        self.cores = len(os.sched_getaffinity(0))
        self.devices = ids or [""] * self.cores
        if isinstance(side_by_side, int) and not self.on_all:
            self.devices = (ids or [""] * side_by_side)[:side_by_side]
        self.usable = [*range(len(self.devices))]
        self.scripts = [f"/proc/{x}/exe" for x in os.environ.get(SCRIPTS, "").split()]
        self.running: dict[Job, subprocess.Popen] = {}
        self.signals: list[int] = []
        self.printed = time.time()

    def command(self, job: Job) -> str:
        """Return the command of a job, to copy."""
        return shlex.join(job.command(len(self.devices) if self.on_all else 1))

    def log_of(self, job: Job) -> Path:
        """Return the path of a job's log; no other name has the same."""
        name = job.name.replace(" ", "-").replace("/", "_")[-200:]
        if name != job.name:
            name += "-" + hashlib.sha256(job.name.encode()).hexdigest()[:8]
        return self.logs / f"{name}.txt"

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
        status = 0
        for job in [*self.jobs, self.report]:
            if job.state not in ("done", "waiting"):
                status = 1
                line = f"error: {job.state}: {self.command(job)}: read {self.log_of(job)}"
                print(line, file=sys.stderr)
            elif job.failed_at:
                device = self.devices[job.failed_at[0]]
                print(
                    f"note: {job.name} failed on device {device}, then left out: check it"
                )
        return status

    def step(self) -> bool:
        """Note what has ended, and start what is ready; return whether any is left."""
        for job, process in [*self.running.items()]:
            if process.poll() is not None:
                del self.running[job]
                self.end(job, process.returncode)
        if not all(map(os.path.exists, self.scripts)) and not self.signals:
            self.signals.append(signal.SIGTERM)
        if self.signals:
            self.pass_on_signals()
            return bool(self.running)
        self.start_ready()
        if time.time() - self.printed > PRINT_SECONDS:
            self.printed = time.time()
            for job in self.running:
                print(f"{job.name}:", *self.output_of(job).splitlines()[-1:], flush=True)
        waiting = any(job.state == "waiting" for job in self.jobs)
        return waiting or self.is_due or bool(self.running)

    def pass_on_signals(self) -> None:
        """Send jobs the signals that have arrived: trainings save a checkpoint."""
        for job, process in self.running.items():
            for number in SIGNALS[job.signals : len(self.signals)]:
                job.signals += 1
                for target in (
                    _descendants(process.pid) if job.signals > 1 else [process.pid]
                ):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(target, number)

    def start_ready(self) -> None:
        """Start the first jobs that have what they need, while there are devices."""
        if self.is_due and self.report.state != "running":
            self.records = self.all_records()
            self.start(self.report, (), self.records)
            self.is_due = self.report.state != "running"
        for job in self.jobs:
            states = {need.state for need in job.needs}
            if job.state == "waiting" and states & {"failed", "interrupted", "skipped"}:
                job.state = "skipped"
            if job.state != "waiting" or states - {"done"}:
                continue
            used = {place for other in self.running for place in other.places}
            free = tuple(place for place in self.usable if place not in used)
            count = len(self.devices) if self.on_all and job.on_all_ranks else 1
            if len(free) < count or self.signals:
                return
            self.start(job, free[:count])

    def start(
        self, job: Job, places: tuple[int, ...] = (), records: Iterable[str] = ()
    ) -> None:
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
            if job.output and self.reuse_or_clear(job, path):
                job.state = "done"
                print(f"done: {job.name}, which an earlier call finished", flush=True)
                return
            job_report.append(path, finished=True, repeated=False, inputs=None)
            devices = [self.devices[place] for place in places]
            threads = max(1, self.cores // len(self.devices))
            environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
            environment |= {"PYTHONUNBUFFERED": "1", job_report.VARIABLE: str(path)}
            if any(devices) or not places:
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
            words = [*job.command(len(places)), *records]
            print(f"+ {shlex.join(words)}", flush=True)
            job.state, job.places, job.started = "running", places, time.time()
            job.log_start = log.tell()
            self.running[job] = subprocess.Popen(
                words,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process only
                preexec_fn=_end_with_parent,
            )

    def reuse_or_clear(self, job: Job, path: Path) -> bool:
        """Return whether a job is recorded with its inputs; else remove its folder."""
        output = str(job.output)
        inputs = [(word, _describe(word)) for word in job.words if word != output]
        job.inputs = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
        record, is_folder = job_report.read(path), os.path.isdir(output)
        is_ours = record.get("output") == output
        result, found = _result(output), (record.get("inputs"), record.get("result"))
        if is_ours and result and found == (job.inputs, result):
            self.is_due |= bool(record["records"])
            return True
        if is_ours or not is_folder:  # a folder of the user's stays
            job_report.append(path, output=output, inputs=None)
            if is_folder:
                shutil.rmtree(output, ignore_errors=True)
        return False

    def end(self, job: Job, status: int) -> None:
        """Note how a job has ended, and write the report if it has records."""
        path, seconds = self.log_of(job).with_suffix(".jsonl"), time.time() - job.started
        reported = job_report.read(path)
        job.state = "failed" if status else "done"
        if not reported["finished"] or (status and self.signals):
            job.state = "interrupted"
        if job.state == "failed" and self.leave_out_device(job, seconds):
            job.state = "waiting"
        if job is self.report:  # another call may have added records
            self.is_due = self.all_records() != self.records
        elif job.state == "done":
            self.is_due |= bool(reported["records"])
            result = _result(str(job.output))
            job_report.append(path, inputs=job.inputs, result=result)
        note = ", which an earlier call finished" if reported["repeated"] else ""
        print(f"{job.state}: {job.name}{note}, {seconds:.1f} s", flush=True)
        if job.prints and not self.signals:
            print(self.output_of(job), flush=True)

    def all_records(self) -> list[str]:
        """Return the records of this and earlier calls."""
        reports = map(job_report.read, sorted(self.logs.glob("*.jsonl")))
        return [*dict.fromkeys(x for report in reports for x in report["records"])]

    def leave_out_device(self, job: Job, seconds: float) -> bool:
        """Leave out the device of a failed job, and return whether to try another one."""
        if job.failed_at:  # it was not the device
            self.usable += job.failed_at
            return False
        is_alone = self.on_all or len(self.usable) == 1 or not any(self.devices)
        if is_alone or not job.places or seconds > QUICK_SECONDS or self.signals:
            return False
        job.failed_at = job.places
        self.usable = [place for place in self.usable if place not in job.places]
        return True

    def output_of(self, job: Job) -> str:
        with open(self.log_of(job), "rb") as log:
            log.seek(job.log_start)
            return log.read().decode(errors="replace").rstrip()


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
