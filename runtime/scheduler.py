"""Scheduler: run the jobs of an experiment on the devices of a machine.

    scheduler = Scheduler(jobs, Path("runs/full/table4/logs"), side_by_side="auto")
    status = scheduler.run()

A job runs on all GPUs (torchrun); side by side, each has one GPU or its
part of the cores (OMP_NUM_THREADS). Jobs start in their order once
those that they need are done. A report runs again for new records.
"""

import contextlib
import ctypes
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

from runtime.run_folder import read_log

import torch
import yaml

# Programs that are done if their output exists.
ONCE = {"export_hf.py", "import_pretrained.py", "retrieval.prepare"}
# Has the command of a bench.py that has ended: its output is written
# earlier.
FINISHED = ".finished"
DEVICES = "EXPERIMENT_DEVICES"  # number of devices to believe in, for tests
SCRIPTS = "EXPERIMENT_SCRIPTS"  # processes of the calling scripts; jobs end with them
KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG
POLL_SECONDS = 0.1
UPDATE_SECONDS, PRINT_SECONDS = 1, 60  # between lines on terminals and in files
CLEAR = "\x1b[J"  # the terminal from the cursor on


@dataclass(eq=False)
class Job:
    """A command and its state. Reports need no device."""

    name: str
    words: list[str]
    needs: list["Job"] = field(default_factory=list)
    run: Path | None = None  # run folder that it trains
    reports: list["Job"] = field(default_factory=list)  # that its records belong to
    is_last: bool = False  # whether it runs after the others, also after failed ones
    records: list[str] = field(default_factory=list)  # of a report
    reported: int = 0  # number of records in the latest report
    state: str = "waiting"  # running, done, failed, skipped or interrupted
    slot: int | None = None
    started: float = 0.0
    finished_before: float = 0.0  # fraction that was finished when it started
    log_start: int = 0  # bytes of its log that earlier calls wrote

    def command(self, ranks: int = 1) -> list[str]:
        """Return the command: on all ranks if the program can use them."""
        if ranks > 1 and re.match("train_gpt|eval_", self.words[0]):
            return ["torchrun", "--standalone", f"--nproc_per_node={ranks}", *self.words]
        return ["python", *self.words, *self.records]

    def is_ready(self) -> bool:
        states = {job.state for job in self.needs}
        if self.is_last:
            return states.isdisjoint({"waiting", "running"})
        return states <= {"done"}

    def progress(self) -> tuple[float, str]:
        """Return the finished fraction, and the last step of a training."""
        if self.state in ("waiting", "running") and self.run:
            with contextlib.suppress(OSError, IndexError, KeyError, ValueError):
                last = [x for x in read_log(self.run) if x["kind"] == "train"][-1]
                steps = yaml.safe_load((self.run / "config.yaml").read_text())["steps"]
                step, speed = last["step"], last["tokens_per_second"]
                return step / steps, f", step {step:,} of {steps:,}, {speed:,.0f} tokens/s"
        return float(self.state == "done"), ""

    @property
    def record_file(self) -> Path:
        """The file with the records of a report."""
        return Path(self.words[2]) / "records.json"


class Scheduler:
    """Runs jobs, and keeps their logs in a folder."""

    def __init__(self, jobs: list[Job], logs: Path, side_by_side: int | str):
        """side_by_side: jobs; "auto": one on GPUs, else one per core; "all": one each."""
        self.jobs, self.logs = jobs, logs
        count = int(os.environ.get(DEVICES, torch.cuda.device_count()))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(count)))
        ids = visible.split(",") if visible else []
        cores = len(os.sched_getaffinity(0))
        widths = {"auto": 1 if count else cores, "all": count or cores}
        width = widths.get(str(side_by_side)) or int(side_by_side)
        self.groups = [ids]  # the devices of each slot
        if width > 1:
            self.groups = [[number] for number in ids[:width]] or [[]] * width
        self.threads = max(1, cores // len(self.groups))
        scripts = os.environ.get(SCRIPTS, "").split()
        self.scripts = [f"/proc/{process}/exe" for process in scripts]  # zombies have none
        self.running: dict[Job, subprocess.Popen] = {}
        self.started = time.time()
        self.updates = sys.stdout.isatty()
        self.printed = 0.0
        self.signal = 0

    def command(self, job: Job) -> str:
        """Return the command of a job, to copy."""
        return shlex.join(job.command(len(self.groups[0])))

    def log_of(self, job: Job) -> Path:
        names = [re.sub("[^a-zA-Z0-9=.]+", "_", each.name) for each in self.jobs]
        index = self.jobs.index(job)
        name, number = names[index], names[:index].count(names[index])
        return self.logs / f"{name}{f'_{number + 1}' if number else ''}.txt"

    def run(self) -> int:
        """Run all jobs; return 1 if one failed, 128 + N after signal N, else 0."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.interrupt)
        self.logs.mkdir(parents=True, exist_ok=True)
        for job in self.jobs:  # a report keeps what an interrupted or smaller call added
            if job.words[0] == "report.py" and job.record_file.exists():
                records = json.loads(job.record_file.read_text())
                job.records = [*filter(os.path.exists, records)]
        while True:
            self.collect()
            if not (self.signal or all(map(os.path.exists, self.scripts))):
                self.interrupt(signal.SIGTERM)
            if not self.signal:
                self.start_ready()
            if not self.running:
                break
            self.print_progress()
            time.sleep(POLL_SECONDS)
        failed = [job for job in self.jobs if job.state == "failed"]
        for job in failed:
            line = f"error: failed: {self.command(job)}: read {self.log_of(job)}"
            self.print(line, sys.stderr)
        if self.signal:
            self.print("interrupted: run the same command again to continue", sys.stderr)
            return 128 + self.signal
        return int(bool(failed))

    def interrupt(self, number: int, frame=None) -> None:
        """Send SIGTERM to all jobs: trainings save a checkpoint and end."""
        self.signal = number
        for process in self.running.values():
            process.terminate()

    def start_ready(self) -> None:
        """Start the first jobs that have what they need, one in each free slot."""
        free = set(range(len(self.groups))) - {job.slot for job in self.running}
        for job in self.jobs:
            if job.words[0] == "report.py":
                if job.state != "running" and len(job.records) > job.reported:
                    job.reported = len(job.records)
                    self.start(job, None)
            elif free and job.state == "waiting" and job.is_ready():
                self.start(job, free.pop())

    def start(self, job: Job, slot: int | None) -> None:
        environment = {"OMP_NUM_THREADS": str(self.threads)} | os.environ
        environment["PYTHONUNBUFFERED"] = "1"
        devices = [] if slot is None else self.groups[slot]
        if devices or slot is None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
        job.state, job.slot, job.started = "running", slot, time.time()
        job.finished_before = job.progress()[0]
        failed = [str(other.run) for other in job.needs if other.state == "failed"]
        job.words = [word for word in job.words if word not in failed]
        self.print(f"+ {self.command(job)}")
        with open(self.log_of(job), "ab") as log:
            job.log_start = log.tell()
            self.running[job] = subprocess.Popen(
                job.command(len(devices)),
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process only
                preexec_fn=_end_with_parent,
            )

    def collect(self) -> None:
        """Note jobs that have ended, and skip those that need a failed one."""
        ended = [job for job, process in self.running.items() if process.poll() is not None]
        for job in ended:
            has_failed = bool(self.running.pop(job).returncode)
            job.state = "failed" if has_failed else "done"
            if self.signal:  # a training ends without an error, but before its last step
                job.state = "interrupted"
            output = self.log_of(job).read_bytes()[job.log_start :].decode(errors="replace")
            seconds, note = time.time() - job.started, ""
            records = re.findall("^record: (.+)", output, re.MULTILINE)
            earlier = re.findall(
                " is already (?:trained|fine-tuned|evaluated|prepared)", output
            )
            if earlier and len(earlier) >= len(records):
                note = ", which an earlier call finished"
            self.print(f"{job.state}: {job.name}{note}, {describe_seconds(seconds)}")
            program, last_word = job.words[0], Path(job.words[-1])
            if program in ("report.py", "sample.py") and not self.signal:
                self.print(output)
            if has_failed or program == "report.py":
                continue
            if program == "bench.py":
                last_word.with_suffix(FINISHED).write_text(shlex.join(job.words))
            # A benchmark names its record at the end of its command.
            found = records or [str(last_word.with_suffix(".json"))]
            for report in job.reports:
                report.records = [*dict.fromkeys([*report.records, *found])]
                report.record_file.parent.mkdir(parents=True, exist_ok=True)
                report.record_file.write_text(json.dumps(report.records))
        for job in self.jobs:
            failed = any(needed.state in ("failed", "skipped") for needed in job.needs)
            if failed and job.state == "waiting" and not job.is_last:
                job.state = "skipped"

    def print(self, text: str, file=None, end: str = "\n") -> None:
        """Print text; on a terminal in the place of the lines of progress."""
        if self.updates:
            print(end=CLEAR, flush=True)
        print(text, file=file or sys.stdout, end=end, flush=True)

    def print_progress(self) -> None:
        """Print a line per running job and one for all, updated on a terminal."""
        now = time.time()
        if now - self.printed < (UPDATE_SECONDS if self.updates else PRINT_SECONDS):
            return
        self.printed = now
        lines, done_by_all, left_of_all = [], 0.0, 0.0
        for number, job in enumerate(self.jobs, 1):
            if job.state in ("failed", "skipped"):
                continue
            fraction, details = job.progress()
            done, left = max(0.0, fraction - job.finished_before), 1 - fraction
            weight = 3 if job.run else 1  # trainings take longer
            done_by_all += weight * done
            left_of_all += weight * left
            if job in self.running:
                if done > 0:
                    seconds = (now - job.started) * left / done
                    details += f", {describe_seconds(seconds)} left"
                lines.append(f"{number} of {len(self.jobs)}: {job.name}{details}")
        if done_by_all > 0:
            left = (now - self.started) * left_of_all / done_by_all
            lines.append(f"all: {describe_seconds(left)} left")
        end = "\n"
        if self.updates:  # the cursor stays above them
            columns = shutil.get_terminal_size().columns
            lines = [line[: columns - 1] for line in lines]
            end += f"\x1b[{len(lines)}F"
        self.print("\n".join(lines), end=end)


def describe_seconds(seconds: float) -> str:
    """Return a duration in hours, minutes or seconds."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 0.1 else "<0.1 s"


def is_finished(words: list[str]) -> bool:
    """Return whether a command that does not resume has ended before."""
    output = Path(words[-1])
    if words[0] != "bench.py":
        return bool(ONCE & {*words}) and output.exists()
    marker = output.with_suffix(FINISHED)
    is_marked = marker.exists() and marker.read_text() == shlex.join(words)
    return is_marked and output.exists()


def _end_with_parent() -> None:
    """Ask Linux to send SIGTERM to this process when its parent ends."""
    ctypes.CDLL(None).prctl(KILL_WITH_PARENT, signal.SIGTERM)
