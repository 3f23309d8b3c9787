"""SIGTERM and SIGINT at a random time."""

import signal
import time

import eval_extrapolation
import prepare_text
import train_gpt

from . import kills
from .harness import LENGTHS, Lost, call, check, digest_folder, same_numbers, start

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Before the program handles SIGTERM, the system ends it.
STOPPED = (0, 130, 143, -signal.SIGTERM)


def interrupt(program, seconds: float, *numbers: int):
    """Send signals, 10 ms apart, after some seconds; raise Lost unless the program ends well."""
    time.sleep(seconds)
    for number in numbers:
        program.kill(number)
        time.sleep(0.01)
    return check(program.wait(), *STOPPED)


def training(workspace, rng):
    """a training, which then continues."""
    run = workspace.folder / "run"
    seconds = kills.training_seconds(workspace)
    for _ in range(rng.choice((1, 1, 2, 3))):
        program = start(train_gpt, *workspace.train_flags(run, "--resume"))
        numbers = rng.choices(SIGNALS, k=rng.choice((1, 1, 2)))
        interrupt(program, rng.uniform(0, 1.1 * seconds), *numbers)
    check_trained(workspace, run)


def check_trained(workspace, run) -> None:
    """Raise Lost unless a stopped run equals the uninterrupted one after it was resumed.

    Its log has an additional line at each step where it was stopped.
    """
    check(workspace.resume(run), 0)
    expected = workspace.expected
    kept = [line for line in kills.losses(run) if line[0] == "val"]
    if kept != [line for line in expected["losses"] if line[0] == "val"]:
        raise Lost("the validation losses differ from those of an uninterrupted run")
    if kills.trained(run) != expected["trained"]:
        raise Lost("the weights or the optimizer differ from those of an uninterrupted run")
    if list(run.glob("*.partial*")):
        raise Lost("temporary files are left after the run was resumed")


def two_ranks(workspace, rng):
    """two ranks: one of them gets the signal and both stop."""
    run = workspace.folder / "run"
    ranks = kills.start_ranks(workspace, run, 2, "--steps", "100000")
    kills.wait_for(run, "checkpoint_*.pt")
    time.sleep(rng.uniform(0, 0.3))
    rng.choice(ranks).kill(rng.choice(SIGNALS))
    results = kills.wait_for_ranks(ranks, 0)
    if "is saved, use --resume to continue" not in results[0].output:
        raise Lost(f"no message that the step is saved: {results[0].describe()}")


def evaluation(workspace, rng):
    """an evaluation, which then has the same results."""
    run = workspace.copy(workspace.whole)
    record = run / workspace.record.name
    record.unlink()
    interrupt(start(eval_extrapolation, run, *LENGTHS), rng.uniform(0, 0.5), rng.choice(SIGNALS))
    check(workspace.evaluate(run), 0)
    same_numbers(record, workspace.expected["numbers"])


def preparation(workspace, rng):
    """a preparation of data, which then writes the same bytes."""
    flags = [workspace.text, "--val_every", "5", "--out_dir"]
    out = workspace.folder / "toy"
    interrupt(start(prepare_text, *flags, out), rng.uniform(0, 0.3), rng.choice(SIGNALS))
    check(call(prepare_text, *flags, out), 0)
    if digest_folder(out) != digest_folder(workspace.data):
        raise Lost("the prepared data differs from that of an uninterrupted preparation")


CASES = [training, two_ranks, training, evaluation, training, preparation]
