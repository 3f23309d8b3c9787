"""Programs in child processes, checks of how they end, and the files to break.

A case is a function of a `Workspace` and a seeded `random.Random`. It causes one fault and raises
`Lost` if something is lost.

Programs run in forked children of a process that has imported PyTorch and computed nothing, because
importing takes seconds.
"""

import contextlib
import datetime
import json
import os
import resource
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

from runtime import distributed

import in_process
import torch
from conftest import TINY, losses
from in_process import Result, digest

import eval_extrapolation
import export_hf
import prepare_text
import train_gpt
from hf_interop import modeling  # noqa: F401  (programs import it late)

CPU = ["--device", "cpu", "--dtype", "float32"]
TRAIN = [*TINY, *shlex.split("--steps 8 --val_every 4 --keep_checkpoints 9")]
LENGTHS = ["--lengths", "16,32", *CPU]
TIMEOUT = 60  # seconds that a program may take; they take about half a second
# In about one of a thousand trials gloo does not notice in a backward pass that the other rank has
# been killed; the collective then waits for its own limit, which is minutes for users.
distributed.TIMEOUT = datetime.timedelta(seconds=20)


class Lost(Exception):
    """Something is lost: a result, a file, a clear message; the text says what."""


class Program:
    """A program in a forked child process, started at once; `wait` returns its Result."""

    def __init__(self, program, *flags, environment: dict | None = None, file_size: int = 0):
        """program: has `main`. file_size: most bytes of a file that it writes; 0: no limit."""
        self.pipe, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(write_end)
            return
        status = 130
        try:
            os.setsid()
            if file_size:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
            os.environ.update(environment or {})
            sys.argv = [f"{getattr(program, '__name__', 'program')}.py", *map(str, flags)]
            result = in_process.call(program, *flags)
            os.write(write_end, result.output.encode()[-60_000:])  # what fits into a pipe
            status = result.status
        finally:
            os._exit(status)

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self) -> Result:
        """Return the result. Raises Lost if the program does not end; it is killed then."""
        end = time.monotonic() + TIMEOUT
        ended = 0
        while not ended and time.monotonic() < end:
            time.sleep(0.01)
            ended, state = os.waitpid(self.pid, os.WNOHANG)
        if not ended:
            os.killpg(self.pid, signal.SIGKILL)
            _, state = os.waitpid(self.pid, 0)
        with open(self.pipe, "rb") as pipe:
            result = Result(os.waitstatus_to_exitcode(state), pipe.read().decode(errors="replace"))
        if not ended:
            raise Lost(f"a program does not end within {TIMEOUT} s")
        return result


def call(program, *flags, **options) -> Result:
    return Program(program, *flags, **options).wait()


def check(result: Result, *allowed: int) -> Result:
    """Raise Lost unless the program ended as a user may expect: by default with status 0 or 2."""
    try:
        return result.check(*allowed)
    except AssertionError:
        last = (result.output.strip().splitlines() or ["no output"])[-1]
        raise Lost(f"status {result.status}: {last[:200]}") from None


def expect(found, expected, what: str) -> None:
    """Raise Lost if something differs from what programs make without a fault."""
    if found != expected:
        raise Lost(f"{what} differs from that without a fault")


def digest_folder(folder: Path) -> str:
    """Return a hash of the names and contents of all files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return digest([(str(path.relative_to(folder)), path.read_bytes()) for path in files])


def trained(run: Path) -> str:
    """Return a hash of everything that a run has learned and of its state."""
    newest = sorted(run.glob("checkpoint_*.pt"))[-1]
    content = torch.load(newest, weights_only=True)
    return digest([content[key] for key in ("step", "model", "optimizer", "sampler", "rng")])


class Workspace:
    """Files that cases break, made once, and an empty folder for each trial.

    data: data set of bytes made of `text`. whole: a finished run with all its checkpoints. half:
    the same run at step 4 of 8. exported: `whole`, for transformers. record: of `whole`.
    """

    def __init__(self, root: Path):
        self.root, self.base, self.folder = root, root / "base", root / "trial"
        self.text, self.data = self.base / "text", self.base / "toy"
        self.whole, self.half = self.base / "whole", self.base / "half"
        self.exported = self.base / "exported"
        self.record = self.whole / "eval_toy_val.json"
        self.text.mkdir(parents=True)
        for number in range(5):
            lines = [f"{number}: line {line} of {line * line}." for line in range(60)]
            (self.text / f"{number}.txt").write_text("\n".join(lines))
        check(call(prepare_text, self.text, "--out_dir", self.data, "--val_every", "5"), 0)
        check(self.train(self.whole), 0)
        self.half.mkdir()
        for name in ("config.yaml", "checkpoint_0000002.pt", "checkpoint_0000004.pt"):
            shutil.copy(self.whole / name, self.half)
        log = (self.whole / "log.jsonl").read_text().splitlines(keepends=True)
        kept = [line for line in log if json.loads(line)["step"] <= 4]
        (self.half / "log.jsonl").write_text("".join(kept))
        check(call(eval_extrapolation, self.whole, *LENGTHS), 0)
        check(call(export_hf, self.whole, "--out_dir", self.exported), 0)

    def new_trial(self) -> None:
        """Make the folder of the trial empty, and the working folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        os.chdir(self.folder)

    def copy(self, source: Path) -> Path:
        """Return a copy of a folder in the folder of the trial."""
        return shutil.copytree(source, self.folder / source.name)

    def train_flags(self, run: Path, *flags) -> list:
        return [*TRAIN, "--data", self.data, "--out_dir", run, *flags]

    def train(self, run: Path, *flags) -> Result:
        return call(train_gpt, *self.train_flags(run, *flags))

    def check_trained(self, run: Path, kinds: tuple = ("train", "val")) -> None:
        """Resume a run to its end; raise Lost unless it equals the uninterrupted one."""
        check(self.train(run, "--resume"), 0)
        expect(trained(run), trained(self.whole), "weights or optimizer")
        found, expected = (
            [each for each in losses(folder) if each[0] in kinds] for folder in (run, self.whole)
        )
        expect(found, expected, "the log")
        expect(list(run.glob("*.partial*")), [], "a list of temporary files")
