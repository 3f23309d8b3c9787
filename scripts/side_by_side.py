"""Run trainings side by side: independent processes use CPU cores better than threads do.

scripts/common.sh calls it from the repository's root:

    python scripts/side_by_side.py JOBS STATUSES train_gpt.py FLAG... train_gpt.py FLAG...

At most JOBS trainings run at a time, each with its part of the cores (OMP_NUM_THREADS, unless it is
set). Their output is printed with the name of the run before each line, and stored in
OUT_DIR/output.txt. The exit statuses are written to the file STATUSES, one per line.
"""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PROGRAM = "train_gpt.py"


def split_commands(words: list[str]) -> list[list[str]]:
    """Return the commands in `words`, each of which starts with PROGRAM."""
    starts = [i for i, word in enumerate(words) if word == PROGRAM]
    return [words[i:j] for i, j in zip(starts, [*starts[1:], len(words)], strict=True)]


class Jobs:
    """Commands that run side by side. A signal goes to all that run, and no other one starts."""

    def __init__(self, jobs: int, commands: list[list[str]]):
        self.jobs = min(jobs, len(commands))
        self.commands = commands
        self.lock = threading.Lock()
        self.running: list[subprocess.Popen] = []
        self.interrupted = 0

    def run(self) -> list[int]:
        """Run all commands and return their exit statuses."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.interrupt)
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(self.run_one, self.commands))

    def interrupt(self, number: int, frame) -> None:
        """Pass a signal on: train_gpt.py saves a checkpoint and ends, also if it got two."""
        self.interrupted = 128 + number
        for process in self.running:
            process.send_signal(number)

    def run_one(self, command: list[str]) -> int:
        """Run a command, print and store its output, and return its exit status."""
        out_dir = Path(command[command.index("--out_dir") + 1])
        out_dir.mkdir(parents=True, exist_ok=True)
        threads = max(1, len(os.sched_getaffinity(0)) // self.jobs)
        with self.lock:
            if self.interrupted:
                return self.interrupted
            process = subprocess.Popen(
                ["python", "-u", *command],  # that of the script
                env={"OMP_NUM_THREADS": str(threads), **os.environ},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            self.running.append(process)
        with open(out_dir / "output.txt", "a") as log:
            for line in process.stdout or ():
                print(f"[{out_dir.name}] {line}", end="", flush=True)
                print(line, end="", file=log, flush=True)
        status = process.wait()
        self.running.remove(process)
        return status


def main() -> None:
    number, statuses, *words = sys.argv[1:]
    jobs = Jobs(int(number), split_commands(words))
    codes = jobs.run()
    Path(statuses).write_text("".join(f"{code}\n" for code in codes))
    sys.exit(jobs.interrupted)


if __name__ == "__main__":
    main()
