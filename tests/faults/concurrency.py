"""Several programs at once on the same files."""

import hashlib
import json
import time

import eval_extrapolation
import export_hf
import prepare_text
import report
import train_gpt

from . import kills
from .harness import CPU, LENGTHS, Lost, check, digest_folder, numbers, start


def evaluations(workspace, rng, count: int) -> None:
    """Evaluate one run `count` times at once, each at other lengths; every result is kept."""
    run = workspace.copy(workspace.whole)
    record = run / workspace.record.name
    if rng.random() < 0.5:
        record.unlink()
    lengths = [str(length) for length in rng.sample(range(8, 64), count)]
    programs = []
    for length in lengths:
        programs.append(start(eval_extrapolation, run, "--lengths", length, *CPU))
        time.sleep(rng.choice((0, 0.05)))
    for program in programs:
        check(program.wait(), 0)
    found = numbers(record)
    if missing := [length for length in lengths if length not in found]:
        raise Lost(f"{len(missing)} of {count} results are missing from the record")
    alone = workspace.copy(workspace.whole, "alone")
    check(workspace.evaluate(alone, "--lengths", ",".join(lengths), *CPU), 0)
    expected = numbers(alone / record.name)
    if any(found[length] != expected[length] for length in lengths):
        raise Lost("a result differs from that of an evaluation alone")


def two_evaluations(workspace, rng):
    """two evaluations of one run."""
    evaluations(workspace, rng, 2)


def three_evaluations(workspace, rng):
    """three evaluations of one run."""
    evaluations(workspace, rng, 3)


def ten_evaluations(workspace, rng):
    """ten evaluations of one run."""
    evaluations(workspace, rng, 10)


def same_evaluation(workspace, rng):
    """the same evaluation, twice."""
    run = workspace.copy(workspace.whole)
    (run / workspace.record.name).unlink()
    for program in [start(eval_extrapolation, run, *LENGTHS) for _ in range(2)]:
        check(program.wait(), 0)
    if numbers(run / workspace.record.name) != workspace.expected["numbers"]:
        raise Lost("the record differs from that of an evaluation alone")


def training_and_evaluation(workspace, rng):
    """a training that saves at every step, and an evaluation."""
    run = workspace.folder / "run"
    keep = rng.choice(("1", "100000"))
    flags = ["--steps", "100000", "--checkpoint_every", "1", "--keep_checkpoints", keep]
    training = start(train_gpt, *workspace.train_flags(run, *flags))
    try:
        kills.wait_for(run, "checkpoint_*.pt")
        time.sleep(rng.uniform(0, 0.2))
        check(workspace.evaluate(run), 0)
    finally:
        training.kill(15)
        result = training.wait()
    check(result, 0)
    record = json.loads((run / workspace.record.name).read_text())
    path = run / f"checkpoint_{record['step']:07d}.pt"
    if not path.exists():  # removed by the training
        return
    if hashlib.sha256(path.read_bytes()).hexdigest() != record["checkpoint_sha256"]:
        raise Lost(f"the record of step {record['step']} has the hash of another checkpoint")
    check(workspace.evaluate(path), 0)
    if numbers(run / f"eval_toy_val_{path.stem}.json") != record["lengths"]:
        raise Lost(f"the record of step {record['step']} has results of another checkpoint")


def two_trainings(workspace, rng):
    """two trainings in one folder: the second one is refused."""
    run = workspace.folder / "run"
    flags = workspace.train_flags(run, "--resume")
    programs = []
    for _ in range(2):
        programs.append(start(train_gpt, *flags))
        time.sleep(rng.uniform(0, 0.2))
    statuses = [check(program.wait()).status for program in programs]
    if 0 not in statuses:
        raise Lost("both trainings are refused")
    workspace.compare_trained(run)


def two_preparations(workspace, rng):
    """two preparations of the same data."""
    out = workspace.folder / "toy"
    flags = [workspace.text, "--val_every", "5", "--out_dir", out]
    programs = []
    for _ in range(2):
        programs.append(start(prepare_text, *flags))
        time.sleep(rng.uniform(0, 0.05))
    statuses = [check(program.wait()).status for program in programs]
    if 0 not in statuses:
        raise Lost("both preparations are refused")
    if digest_folder(out) != digest_folder(workspace.data):
        raise Lost("the prepared data differs from that of a preparation alone")


def two_exports(workspace, rng):
    """two exports to one folder."""
    out = workspace.folder / "exported"
    programs = []
    for _ in range(2):
        programs.append(start(export_hf, workspace.whole, "--out_dir", out))
        time.sleep(rng.uniform(0, 0.1))
    statuses = [check(program.wait()).status for program in programs]
    if 0 not in statuses:
        raise Lost("both exports are refused")
    if digest_folder(out) != digest_folder(workspace.exported):
        raise Lost("the exported folder differs from that of an export alone")


def reports(workspace, rng):
    """two reports to one folder."""
    out, alone = workspace.folder / "tables", workspace.folder / "alone"
    programs = []
    for folder in rng.sample((out, out, alone), 3):
        programs.append(start(report, workspace.record, "--out_dir", folder))
        time.sleep(rng.uniform(0, 0.1))
    for program in programs:
        check(program.wait(), 0)
    if digest_folder(out) != digest_folder(alone):
        raise Lost("the tables differ from those of a report alone")


CASES = [
    two_evaluations,
    training_and_evaluation,
    two_trainings,
    three_evaluations,
    two_preparations,
    two_exports,
    ten_evaluations,
    reports,
    same_evaluation,
]
