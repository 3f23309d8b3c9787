"""What all kinds of faults share: programs in child processes, checks, and the files to break.

A case is a function of a `Workspace` and a seeded `random.Random`. It causes one fault and raises
`Lost` if something is lost; the first line of its docstring is its row in the table.

Programs run in forked children of a process that has imported PyTorch and computed nothing, because
importing takes seconds. Their `main` is called as by `cli.run` in a new process.
"""

import contextlib
import gc
import hashlib
import io
import json
import os
import re
import resource
import selectors
import shlex
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtime import cli

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import eval_extrapolation
import export_hf
import prepare_text
import sample
import train_gpt
from hf_interop import modeling  # noqa: F401
from retrieval import finetune

ROOT = Path(__file__).resolve().parent.parent.parent
CPU = ["--device", "cpu", "--dtype", "float32"]
MODEL = shlex.split(
    "--size quickstart --n_layer 1 --n_head 2 --n_embd 16 --block_size 16 --micro_batch 2 "
    "--tokens_per_step 64 --lr 1e-2 --min_lr 1e-3 --warmup_steps 2 --steps 8 --log_every 2 "
    "--val_every 4 --val_tokens 64 --checkpoint_every 2 --keep_checkpoints 9"
)
TRAIN = [*MODEL, *CPU]
LENGTHS = ["--lengths", "16,32", *CPU]
TIMEOUT = 60  # seconds that a program may take; they take about half a second


def preload(kinds: list[str]) -> None:
    """Import what programs import late, which would take seconds in each child process."""
    import matplotlib.pyplot  # noqa: F401
    import torch._dynamo  # noqa: F401  (imported by the first optimizer)

    if {"corruption", "security"} & set(kinds):
        from retrieval import sentence_encoder, trainer  # noqa: F401
    if "fuzz" in kinds:
        import datasets  # noqa: F401


class Lost(Exception):
    """Something is lost: a result, a file, a clear message; the text says what."""


@dataclass
class Result:
    """How a program ended: its exit status, negative for a signal; None: it did not end."""

    status: int | None
    output: str

    def describe(self) -> str:
        lines = self.output.strip().splitlines() or ["no output"]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|error)\b", line)]
        last = (errors or lines)[-1]
        state = "does not end" if self.status is None else f"status {self.status}"
        return f"{state}: {last[:200]}"


class Program:
    """A function in a forked child process, started at once; `wait` returns its Result."""

    def __init__(
        self,
        function: Callable[[], object],
        environment: dict[str, str] | None = None,
        file_size: int | None = None,
        memory: int | None = None,
        text: bytes = b"",
    ):
        """file_size, memory: limits in bytes. text: of standard input."""
        self.output = b""
        self.pipe, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(write_end)
            os.set_blocking(self.pipe, False)
            return
        status = 1
        try:
            os.setsid()
            gc.callbacks.clear()  # Hypothesis's, which a signal could interrupt
            for limit, value in ((resource.RLIMIT_FSIZE, file_size), (resource.RLIMIT_AS, memory)):
                if value:
                    resource.setrlimit(limit, (value, value))
            os.environ.update(environment or {})
            os.dup2(write_end, 1)
            os.dup2(write_end, 2)
            sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), "utf-8")
            sys.stderr = io.TextIOWrapper(
                os.fdopen(2, "wb", 0, closefd=False), "utf-8", write_through=True
            )
            sys.stdin = io.TextIOWrapper(io.BytesIO(text), "utf-8")
            status = exit_status(function)
        except KeyboardInterrupt:
            status = 130
        finally:
            os._exit(status)

    def read(self) -> None:
        """Read what the program has printed, without waiting."""
        with contextlib.suppress(BlockingIOError):
            while block := os.read(self.pipe, 1 << 16):
                self.output += block

    def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout: float = TIMEOUT) -> Result:
        """Return the result; a program that does not end is killed, with its own children."""
        end = time.monotonic() + timeout
        status = None
        with selectors.DefaultSelector() as selector:
            selector.register(self.pipe, selectors.EVENT_READ)
            while status is None and time.monotonic() < end:
                selector.select(0.02)
                self.read()
                pid, state = os.waitpid(self.pid, os.WNOHANG)
                status = os.waitstatus_to_exitcode(state) if pid else None
        if status is None:
            os.killpg(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.read()
        os.close(self.pipe)
        if VERBOSE:
            print(self.output.decode(errors="replace"), f"[status {status}]", flush=True)
        return Result(status, self.output.decode(errors="replace"))


def exit_status(function: Callable[[], object]) -> int:
    """Return the exit status of a function in `cli.run`; print a traceback as Python does."""
    try:
        cli.run(function)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
    return 0


def start(program, *flags, **options) -> Program:
    """Start a program, a module with `main`, with these flags."""
    words = [str(flag) for flag in flags]

    def run():
        sys.argv = [f"{program.__name__}.py", *words]
        program.main(words)

    return Program(run, **options)


def call(program, *flags, **options) -> Result:
    return start(program, *flags, **options).wait()


VERBOSE = False  # print what programs print
# A traceback, and PyTorch's advice to run the code in a file.
FORBIDDEN = ("Traceback (most recent call last)", "weights_only=False", "`weights_only`")


def check(result: Result, *allowed: int) -> Result:
    """Raise Lost unless the program ended as a user may expect: by default with status 0 or 2."""
    allowed = allowed or (0, 2)
    if result.status not in allowed:
        raise Lost(result.describe())
    for word in FORBIDDEN:
        if word in result.output:
            raise Lost(f"prints '{word}': {result.describe()}")
    lines = result.output.splitlines()
    if result.status == 2 and not any(line.startswith("error: ") for line in lines):
        raise Lost(f"no error line: {result.describe()}")
    return result


def digest(value) -> str:
    """Return a hash of nested values and tensors."""
    total = hashlib.sha256()

    def add(item):
        if isinstance(item, dict):
            for key, inner in item.items():
                total.update(repr(key).encode())
                add(inner)
        elif isinstance(item, list | tuple):
            for inner in item:
                add(inner)
        elif isinstance(item, torch.Tensor):
            total.update(item.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            total.update(repr(item).encode())

    add(value)
    return total.hexdigest()


def digest_folder(folder: Path) -> str:
    """Return a hash of the names and contents of all files below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return digest([(str(path.relative_to(folder)), path.read_bytes()) for path in files])


def losses(run: Path) -> list[tuple]:
    """Return what a run's log must have in common with that of an uninterrupted run."""
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [
        (record["kind"], record["step"], record["loss"]) for record in records if "loss" in record
    ]


def trained(run: Path) -> str:
    """Return a hash of everything that a run has learned and of its state."""
    newest = sorted(run.glob("checkpoint_*.pt"))[-1]
    content = torch.load(newest, weights_only=True)
    return digest([content[key] for key in ("step", "model", "optimizer", "sampler", "rng")])


def numbers(record: Path) -> dict:
    """Return the results of an evaluation record by length."""
    return json.loads(record.read_text())["lengths"]


def same_numbers(record: Path, expected: dict) -> None:
    if numbers(record) != expected:
        raise Lost("exit status 0 with other numbers than those of intact files")


class Workspace:
    """Files that cases break, made once, and an empty folder for each trial.

    base: data set of bytes (`data`), finished run with all its checkpoints (`whole`), the same run
    at step 4 of 8 (`half`), its export (`exported`), export of an encoder (`encoder`), gpt2/ as
    transformers saves it. expected: results of `whole`. outside: what no program may change.
    """

    def __init__(self, root: Path):
        self.root = root
        self.base = root / "base"
        self.folder = root / "trial"
        self.outside = self.folder / "outside"
        self.text, self.data = self.base / "text", self.base / "toy"
        self.whole, self.half = self.base / "whole", self.base / "half"
        self.exported, self.encoder = self.base / "exported", self.base / "encoder"
        self.record = self.whole / "eval_toy_val.json"
        self._make()
        self.digest = digest_folder(self.base)
        self.expected = {
            "trained": trained(self.whole),
            "losses": losses(self.whole),
            "numbers": numbers(self.record),
            "text": self.sampled_text(self.sample(self.whole)),
        }

    def _make(self) -> None:
        self.text.mkdir(parents=True)
        for number in range(5):
            lines = [f"{number}: line {line} of {line * line}." for line in range(60)]
            (self.text / f"{number}.txt").write_text("\n".join(lines))
        data = ["--data", self.data]
        mlm = self.base / "mlm"
        self._run(prepare_text, self.text, "--out_dir", self.data, "--val_every", "5")
        self._run(train_gpt, *TRAIN, *data, "--out_dir", self.whole)
        self.half.mkdir()
        for name in ("config.yaml", "checkpoint_0000002.pt", "checkpoint_0000004.pt"):
            shutil.copy(self.whole / name, self.half)
        log = (self.whole / "log.jsonl").read_text().splitlines(keepends=True)
        kept = [line for line in log if json.loads(line)["step"] <= 4]
        (self.half / "log.jsonl").write_text("".join(kept))
        self._run(eval_extrapolation, self.whole, *LENGTHS)
        self._run(export_hf, self.whole, "--out_dir", self.exported)
        self._run(train_gpt, *TRAIN, *data, "--objective", "mlm", "--out_dir", mlm)
        self._run(export_hf, mlm, "--out_dir", self.encoder)
        names = [f"{name}{number}" for name in ("apple", "bear", "cloud") for number in range(8)]
        rows = [{"query": name, "positive": name, "negative": names[0]} for name in names]
        (self.base / "triplets.jsonl").write_text("\n".join(map(json.dumps, rows)))
        check(Program(self._save_gpt2).wait(), 0)

    def _save_gpt2(self) -> None:
        config = GPT2Config(n_embd=8, n_layer=1, n_head=1, n_positions=16)
        GPT2LMHeadModel(config).save_pretrained(self.base / "gpt2")

    def _run(self, program, *flags) -> None:
        result = call(program, *flags)
        if result.status:
            raise RuntimeError(f"{program.__name__}: {result.output}")

    def new_trial(self) -> None:
        """Empty the folder of the trial; it has a file, `outside`, that nothing may change."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.outside.mkdir(parents=True)
        (self.outside / "diary.txt").write_text("mine")
        (self.folder / "work").mkdir()
        os.chdir(self.folder / "work")

    def check_outside(self) -> None:
        """Raise Lost if a file outside of the programs' folders was written or deleted."""
        if [path.name for path in self.outside.iterdir()] != ["diary.txt"]:
            raise Lost("a file outside of the folder was written or deleted")
        if (self.outside / "diary.txt").read_text() != "mine":
            raise Lost("a file outside of the folder was overwritten")

    def copy(self, source: Path, name: str | None = None) -> Path:
        """Return a copy of a folder in the folder of the trial."""
        return shutil.copytree(source, self.folder / (name or source.name))

    def train_flags(self, run: Path, *flags) -> list:
        return [*TRAIN, "--data", self.data, "--out_dir", run, *flags]

    def resume(self, run: Path, *flags) -> Result:
        return call(train_gpt, *self.train_flags(run, "--resume", *flags))

    def check_trained(self, run: Path) -> None:
        """Resume a run to its end; raise Lost unless it equals the uninterrupted one."""
        check(self.resume(run), 0)
        self.compare_trained(run)

    def compare_trained(self, run: Path) -> None:
        if trained(run) != self.expected["trained"]:
            raise Lost("the weights or the optimizer differ from those of an uninterrupted run")
        if losses(run) != self.expected["losses"]:
            raise Lost("the log differs from that of an uninterrupted run")
        if leftover := list(run.glob("*.partial*")):
            raise Lost(f"{leftover[0].name} is left after the run was resumed")

    def evaluate(self, run: Path, *flags) -> Result:
        return call(eval_extrapolation, run, "--data", self.data, *(flags or LENGTHS))

    def finetune(self, encoder: Path) -> Result:
        data, out = self.base / "triplets.jsonl", self.folder / "finetuned"
        flags = ["--data", data, "--out_dir", out, "--batch", "8", "--mini_batch", "8", *CPU]
        return call(finetune, encoder, *flags)

    def sample(self, run: Path, *flags) -> Result:
        flags = flags or ("--prompt", "line", "--max_new_tokens", "12", "--temperature", "0")
        return call(sample, run, *CPU, *flags)

    @staticmethod
    def sampled_text(result: Result) -> str:
        """Return what sample.py printed, without its speed."""
        return re.sub(r"\d+ tokens in .*", "", result.output)
