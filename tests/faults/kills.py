"""kill -9 at a random time, and the command that the user repeats afterwards."""

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import eval_extrapolation
import export_hf
import prepare_text
import train_gpt

from .harness import (
    LENGTHS,
    ROOT,
    TIMEOUT,
    Lost,
    Program,
    Result,
    call,
    check,
    digest_folder,
    losses,
    same_numbers,
    start,
    trained,
)

NOTICED = 60  # seconds after which the other ranks end


def kill_during(program: Program, seconds: float) -> Result:
    """Kill a program after some seconds, if it is still running."""
    time.sleep(seconds)
    program.kill()
    return program.wait()


@functools.cache
def duration(function, *arguments) -> float:
    """Return the seconds that a call takes, to choose times of kills from."""
    begin = time.monotonic()
    function(*arguments)
    return time.monotonic() - begin


def training_seconds(workspace) -> float:
    return duration(call, train_gpt, *workspace.train_flags(workspace.root / "timed"))


def one_process(workspace, rng):
    """a training, up to three times in a row."""
    run = workspace.folder / "run"
    seconds = training_seconds(workspace)
    for _ in range(rng.choice((1, 1, 2, 3))):
        program = start(train_gpt, *workspace.train_flags(run, "--resume"))
        check(kill_during(program, rng.uniform(0, 1.1 * seconds)), 0, -signal.SIGKILL)
    workspace.check_trained(run)


def while_saving(workspace, rng):
    """a training while it writes a checkpoint."""
    run = workspace.folder / "run"
    save, left = torch_save_and_offset(rng)

    def main():
        train_gpt.torch.save = functools.partial(save_half, save, left)
        train_gpt.main([str(flag) for flag in workspace.train_flags(run)])

    check(Program(main).wait(), -signal.SIGKILL)
    workspace.check_trained(run)


def torch_save_and_offset(rng):
    """Return torch.save, and what `save_half` counts down: whole checkpoints, then bytes."""
    return train_gpt.torch.save, [rng.randrange(4), rng.randrange(60_000)]


def save_half(save, left, value, file, *rest, **options):
    """Write some bytes of a checkpoint and die, after some whole checkpoints."""
    if left[0]:
        left[0] -= 1
        return save(value, file, *rest, **options)

    class Half:
        """A file that dies with its process."""

        def write(self, data):
            if len(data) >= left[1]:
                file.write(bytes(data)[: left[1]])
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            left[1] -= len(data)
            return file.write(data)

        def flush(self):
            file.flush()

    save(value, Half(), *rest, **options)
    os.kill(os.getpid(), signal.SIGKILL)


def preparation(workspace, rng):
    """a preparation of data, which then writes the same bytes."""
    flags = [workspace.text, "--val_every", "5", "--shard_tokens", "500", "--out_dir"]
    whole = workspace.root / "prepared" / "toy"
    seconds = duration(call, prepare_text, *flags, whole)
    out = workspace.folder / "toy"
    for _ in range(rng.choice((1, 2))):
        kill_during(start(prepare_text, *flags, out), rng.uniform(0, seconds))
    check(call(prepare_text, *flags, out), 0)
    if digest_folder(out) != digest_folder(whole):
        raise Lost("the prepared data differs from that of an uninterrupted preparation")


def evaluation(workspace, rng):
    """an evaluation, which then has the same results."""
    run = workspace.copy(workspace.whole)
    record = run / workspace.record.name
    record.unlink()
    seconds = duration(call, eval_extrapolation, workspace.copy(workspace.whole, "timed"), *LENGTHS)
    kill_during(start(eval_extrapolation, run, *LENGTHS), rng.uniform(0, seconds))
    check(workspace.evaluate(run), 0)
    same_numbers(record, workspace.expected["numbers"])


def export(workspace, rng):
    """an export, which then writes the same files."""
    out = workspace.folder / "exported"
    seconds = duration(call, export_hf, workspace.whole, "--out_dir", workspace.root / "exported")
    result = kill_during(
        start(export_hf, workspace.whole, "--out_dir", out), rng.uniform(0, seconds)
    )
    if result.status != 0:
        check(call(export_hf, workspace.whole, "--out_dir", out), 0)
    if digest_folder(out) != digest_folder(workspace.exported):
        raise Lost("the exported folder differs from that of an uninterrupted export")


def start_ranks(workspace, run: Path, count: int = 2, *flags) -> list[Program]:
    """Start a training on several ranks of this machine; rank 0 keeps their store."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    return [
        start(
            train_gpt,
            *workspace.train_flags(run, "--resume", *flags),
            environment={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(count)
    ]


def wait_for(run: Path, pattern: str) -> None:
    """Wait until a folder has a file whose name matches a glob pattern.

    A training may have removed its first checkpoint again when this process looks.
    """
    end = time.monotonic() + TIMEOUT
    while not any(run.glob(pattern)):
        if time.monotonic() > end:
            raise Lost(f"{pattern} is not written")
        time.sleep(0.01)


def wait_for_ranks(ranks: list[Program], *allowed: int) -> list[Result]:
    results = [rank.wait(NOTICED) for rank in ranks]
    for number, result in enumerate(results):
        if result.status is None:
            raise Lost(f"rank {number} does not end within {NOTICED} s")
        check(result, *allowed)
    return results


def two_ranks_whole(workspace) -> Path:
    """Return an uninterrupted run on two ranks, made once."""
    run = workspace.root / "two_ranks"
    if not run.exists():
        wait_for_ranks(start_ranks(workspace, run), 0)
    return run


def check_two_ranks(workspace, run: Path) -> None:
    """Resume on two ranks; raise Lost unless the run equals an uninterrupted one."""
    whole = two_ranks_whole(workspace)
    wait_for_ranks(start_ranks(workspace, run), 0)
    if trained(run) != trained(whole) or losses(run) != losses(whole):
        raise Lost("the run differs from an uninterrupted one on two ranks")


def one_of_two_ranks(workspace, rng):
    """one of two ranks; the other one ends."""
    run = workspace.folder / "run"
    two_ranks_whole(workspace)
    ranks = start_ranks(workspace, run)
    wait_for(run, "log.jsonl")  # until there is a group, torchrun has to end the other rank
    time.sleep(rng.uniform(0, 0.3))
    rng.choice(ranks).kill()
    wait_for_ranks(ranks, 0, 1, 2, -signal.SIGKILL)
    check_two_ranks(workspace, run)


def another_world_size(workspace, rng):
    """a training that resumes on another number of ranks, equal up to rounding."""
    run = workspace.folder / "run"
    first, then = rng.choice(((1, 2), (2, 1)))
    ranks = start_ranks(workspace, run, first)
    time.sleep(rng.uniform(0, training_seconds(workspace) * first))
    for rank in ranks:
        rank.kill()
    wait_for_ranks(ranks, 0, -signal.SIGKILL)
    wait_for_ranks(start_ranks(workspace, run, then), 0)
    for mine, theirs in zip(losses(run), workspace.expected["losses"], strict=True):
        if mine[:2] != theirs[:2] or abs(mine[2] - theirs[2]) > 1e-3:
            raise Lost(f"the log has {mine}, that of an uninterrupted run {theirs}")


def torchrun(workspace, rng):
    """torchrun itself: its ranks end, and `--resume` works at once."""
    run = workspace.folder / "run"
    flags = workspace.train_flags(run, "--resume", "--steps", "100000")
    flags += ["--keep_checkpoints", "1000000"]
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    started = subprocess.Popen(
        [sys.executable, *words, ROOT / "train_gpt.py", *map(str, flags)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(run, "checkpoint_*.pt")
        time.sleep(rng.uniform(0, 0.5))
        started.kill()
        started.wait()
        time.sleep(2)  # a new process needs longer to import PyTorch
        # A resume that is refused because ranks still train would end with status 2.
        resumed = start(train_gpt, *flags)
        time.sleep(3)
        resumed.kill(signal.SIGTERM)
        check(resumed.wait(), 0)
        if trains_in(run):
            raise Lost("ranks train on after torchrun was killed")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        for pid in trains_in(run):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(run, ignore_errors=True)


def trains_in(run: Path) -> list[int]:
    """Return the processes whose command line names a run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(run).encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


torchrun.is_slow = True  # it imports PyTorch three times, so it is tried less often
OFTEN = [
    one_process,
    while_saving,
    one_process,
    one_of_two_ranks,
    evaluation,
    preparation,
    another_world_size,
    export,
]
CASES = [*OFTEN, torchrun, *OFTEN, *OFTEN, *OFTEN]
