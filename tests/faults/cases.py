"""Faults: kills, full disks, truncated files, flipped bits, and programs that run at once."""

import functools
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from runtime.files import hash_file

import torch
from conftest import losses

import eval_extrapolation
import export_hf
import prepare_text
import sample
import train_gpt

from . import scheduler
from .harness import (
    CPU,
    LENGTHS,
    TIMEOUT,
    TRAIN,
    Lost,
    Program,
    Workspace,
    call,
    check,
    digest_folder,
    expect,
    trained,
)

FOREVER = ["--steps", "100000"]


@dataclass(frozen=True)
class Action:
    """A program that a fault interrupts; its command is repeated afterwards."""

    name: str
    command: Callable[[Workspace], list]
    check: Callable[[Workspace], None]
    """raises Lost unless the outputs equal those without a fault"""


def training(workspace: Workspace) -> list:
    return [train_gpt, *workspace.train_flags(workspace.folder / "run", "--resume")]


def evaluation(workspace: Workspace) -> list:
    run = workspace.folder / "whole"
    if not run.exists():
        (workspace.copy(workspace.whole) / workspace.record.name).unlink()
    return [eval_extrapolation, run, *LENGTHS]


def check_evaluation(workspace: Workspace) -> None:
    record = workspace.folder / "whole" / workspace.record.name
    expect(results(record), results(workspace.record), "the record")


def preparation(workspace: Workspace) -> list:
    out = workspace.folder / "toy"
    return [prepare_text, workspace.text, "--val_every", "5", "--out_dir", out]


def export(workspace: Workspace) -> list:
    return [export_hf, workspace.whole, "--out_dir", workspace.folder / "exported"]


def check_folder(workspace: Workspace, whole: Path) -> None:
    expect(digest_folder(workspace.folder / whole.name), digest_folder(whole), whole.name)


ACTIONS = [
    Action("training", training, lambda w: w.check_trained(w.folder / "run", ("val",))),
    Action("evaluation", evaluation, check_evaluation),
    Action("preparation of data", preparation, lambda w: check_folder(w, w.data)),
    Action("export", export, lambda w: check_folder(w, w.exported)),
]


@functools.cache
def duration(action: Action, workspace: Workspace) -> float:
    """Return the seconds of a command, to choose times of kills from."""
    begin = time.monotonic()
    check(call(*action.command(workspace)), 0)
    seconds = time.monotonic() - begin
    workspace.new_trial()
    return seconds


def killed(action: Action, workspace: Workspace, rng: random.Random) -> None:
    """Send signals at random times, up to three times in a row; then repeat the command."""
    seconds = duration(action, workspace)
    for _ in range(rng.choice((1, 1, 2, 3))):
        number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        program = Program(*action.command(workspace))
        time.sleep(rng.uniform(0, 1.1 * seconds))
        program.kill(number)
        check(program.wait(), 0, 2, -number, 128 + number)
    check(call(*action.command(workspace)))  # an export that was complete is refused
    action.check(workspace)


def disk_full(action: Action, workspace: Workspace, rng: random.Random) -> None:
    """Limit the size of files so that the command fails; then repeat it without the limit."""
    command = action.command(workspace)
    limit = 20_000 if action.name == "training" else 300
    check(call(*command, file_size=rng.randrange(1, limit)), 2)
    if left := list(workspace.folder.rglob("*.partial*")):
        raise Lost(f"{left[0].name} is left by a failed {action.name}")
    check(call(*command), 0)
    action.check(workspace)


def while_saving(workspace, rng):
    """kill -9 of a training while it writes a checkpoint"""
    run = workspace.folder / "run"
    save, left = torch.save, [rng.randrange(4), rng.randrange(60_000)]

    def save_half(value, file, *rest, **options):
        """Write some bytes of a checkpoint and die, after some whole checkpoints."""
        if left[0]:
            left[0] -= 1
            return save(value, file, *rest, **options)
        save(value, half := Path(f"{run}.half"), *rest, **options)
        file.write(half.read_bytes()[: left[1]])
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    def main(flags):
        torch.save = save_half
        train_gpt.main(flags)

    program = Program(SimpleNamespace(main=main), *workspace.train_flags(run))
    check(program.wait(), -signal.SIGKILL)
    workspace.check_trained(run)


def start_ranks(workspace, run: Path, count: int, *flags) -> list[Program]:
    """Start a training on several ranks of this machine; rank 0 keeps their store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    return [
        Program(
            train_gpt,
            *workspace.train_flags(run, "--resume", *flags),
            environment={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(count)
    ]


def wait_for(run: Path, pattern: str) -> None:
    """Wait until a folder has a file whose name matches a glob pattern."""
    end = time.monotonic() + TIMEOUT
    while not any(run.glob(pattern)):
        if time.monotonic() > end:
            raise Lost(f"{pattern} is not written")
        time.sleep(0.01)


def one_of_two_ranks(workspace, rng):
    """a signal to one of two ranks; the other one ends"""
    run = workspace.folder / "run"
    number = rng.choice((signal.SIGKILL, signal.SIGTERM))
    flags = [] if number == signal.SIGKILL else FOREVER
    ranks = start_ranks(workspace, run, 2, *flags)
    wait_for(run, "checkpoint_*.pt" if flags else "log.jsonl")
    time.sleep(rng.uniform(0, 0.3))
    rng.choice(ranks).kill(number)
    for rank in ranks:
        check(rank.wait(), *((0,) if flags else (0, 1, 2, -number)))
    if number == signal.SIGKILL:
        for rank in start_ranks(workspace, run, 2):
            check(rank.wait(), 0)
        for mine, theirs in zip(losses(run), losses(workspace.whole), strict=True):
            # The order of summation over ranks changes the last digits.
            expect((*mine[:2], abs(mine[2] - theirs[2]) < 1e-3), (*theirs[:2], True), "the log")


def shard_cut_off(workspace, rng):
    """a shard is cut off while a training reads it"""
    data, run = workspace.copy(workspace.data), workspace.folder / "run"
    program = Program(train_gpt, *TRAIN, *FOREVER, "--data", data, "--out_dir", run)
    wait_for(run, "log.jsonl")
    with open(data / "toy_train_000000.bin", "r+b") as file:
        file.truncate(rng.randrange(4000))
    check(program.wait(), 2)


def corrupt(path: Path, rng: random.Random) -> None:
    """Flip a bit of a file, or cut it off."""
    content = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    else:
        del content[rng.randrange(len(content)) :]
    path.write_bytes(content)


def corrupt_log(workspace, rng):
    """log.jsonl corrupt: --resume"""
    run = workspace.copy(workspace.half)
    corrupt(run / "log.jsonl", rng)
    check(workspace.train(run, "--resume"), 0)
    expect(trained(run), trained(workspace.whole), "weights or optimizer")
    expect(losses(run)[-2:], losses(workspace.whole)[-2:], "the end of the log")


def results(record: Path) -> dict:
    """Return the results of an evaluation record by length."""
    return json.loads(record.read_text())["lengths"]


def checkpoint(workspace, rng):
    """checkpoint corrupt: evaluation, sampling, export, --init_from"""
    run = workspace.copy(workspace.whole)
    (run / workspace.record.name).unlink()
    corrupt(run / "checkpoint_0000008.pt", rng)
    out = workspace.folder / "out"
    check(call(eval_extrapolation, run, *LENGTHS), 2)
    check(call(sample, run, *CPU, "--prompt", "line"), 2)
    check(call(export_hf, run, "--out_dir", out), 2)
    check(workspace.train(out, "--init_from", run, "--steps", "0"), 2)
    expect(out.exists(), False, "what a refused program leaves")


def data_set(workspace, rng):
    """shard or meta.json corrupt: training and evaluation"""
    data, run = workspace.copy(workspace.data), workspace.copy(workspace.whole)
    (run / workspace.record.name).unlink()
    corrupt(rng.choice(sorted(data.iterdir())), rng)
    out = workspace.folder / "out"
    if check(call(train_gpt, *TRAIN, "--data", data, "--out_dir", out)).status == 0:
        expect(trained(out), trained(workspace.whole), "weights or optimizer")
    if check(call(eval_extrapolation, run, "--data", data, *LENGTHS)).status == 0:
        for record in run.glob("eval_*.json"):
            expect(results(record), results(workspace.record), "the record")


def training_and_evaluation(workspace, rng):
    """a training that saves at every step, and an evaluation"""
    run = workspace.folder / "run"
    saving = ["--checkpoint_every", "1", "--keep_checkpoints", "100000"]
    program = Program(train_gpt, *workspace.train_flags(run, *FOREVER, *saving))
    try:
        wait_for(run, "checkpoint_*.pt")
        time.sleep(rng.uniform(0, 0.2))
        check(call(eval_extrapolation, run, *LENGTHS), 0)
    finally:
        program.kill(signal.SIGTERM)
        result = program.wait()
    check(result, 0)
    (record,) = run.glob("eval_*.json")
    content = json.loads(record.read_text())
    path = run / f"checkpoint_{content['step']:07d}.pt"
    expect(content["checkpoint_sha256"], hash_file(path), "the hash of the checkpoint")
    check(call(eval_extrapolation, path, *LENGTHS), 0)
    expect(results(run / f"eval_toy_val_{path.stem}.json"), content["lengths"], "the record")


def same_command(workspace, rng):
    """the same command twice at once; one of them may be refused"""
    action = rng.choice(ACTIONS)
    programs = []
    for _ in range(2):
        programs.append(Program(*action.command(workspace)))
        time.sleep(rng.uniform(0, 0.1))
    if 0 not in [check(program.wait()).status for program in programs]:
        raise Lost(f"both are refused: {action.name}")
    action.check(workspace)


def cases_of(fault, what: str) -> dict:
    """Return a case of a fault for each action, by its row in the table."""
    return {f"{what}: {action.name}": functools.partial(fault, action) for action in ACTIONS}


def described(*cases) -> dict:
    return {case.__doc__: case for case in cases}


CASES: dict[str, Callable] = {
    **cases_of(killed, "signals at random times"),
    **described(while_saving, one_of_two_ranks),
    **cases_of(disk_full, "disk full"),
    **described(shard_cut_off),
    **described(corrupt_log, checkpoint, data_set),
    **described(training_and_evaluation, same_command),
    **described(scheduler.signals, scheduler.damaged, scheduler.at_once),
}
"""faults by their description"""
