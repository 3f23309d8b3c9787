"""A full disk, a size limit of files, and folders that disappear."""

import shutil
import time

import eval_extrapolation
import export_hf
import prepare_text
import report
import train_gpt

from . import kills
from .harness import LENGTHS, Lost, call, check, digest_folder, same_numbers, start


def training(workspace, rng):
    """no space while a training saves; it resumes when there is space."""
    run = workspace.folder / "run"
    size = (workspace.whole / "checkpoint_0000008.pt").stat().st_size
    flags = workspace.train_flags(run, "--resume")
    for _ in range(rng.choice((1, 2))):
        check(call(train_gpt, *flags, file_size=rng.randrange(1, size)), 2)
        if leftover := list(run.glob("*.partial*")):
            raise Lost(f"{leftover[0].name} is left by a failed save")
    workspace.check_trained(run)


def later_checkpoint(workspace, rng):
    """no space for the next checkpoint; the older ones are unchanged."""
    run = workspace.copy(workspace.half)
    before = {path.name: path.read_bytes() for path in run.glob("*.pt")}
    size = len(before["checkpoint_0000004.pt"])
    flags = workspace.train_flags(run, "--resume")
    check(call(train_gpt, *flags, file_size=rng.randrange(2000, size)), 2)
    if before != {path.name: path.read_bytes() for path in run.glob("*.pt")}:
        raise Lost("the checkpoints before the failed one have changed")
    workspace.check_trained(run)


def folder_removed(workspace, rng):
    """the folder of a run is removed while it trains."""
    run = workspace.folder / "run"
    program = start(train_gpt, *workspace.train_flags(run, "--steps", "100000"))
    kills.wait_for(run, "log.jsonl")
    time.sleep(rng.uniform(0, 0.3))
    while run.exists():
        shutil.rmtree(run, ignore_errors=True)
    check(program.wait(30), 2)


def evaluation(workspace, rng):
    """no space for a record, which is complete after the next evaluation."""
    run = workspace.copy(workspace.whole)
    record = run / workspace.record.name
    before = record.read_bytes()
    if rng.random() < 0.5:
        record.unlink()
    limit = rng.randrange(1, len(before) // 2)
    flags = ["--lengths", "16,32,64", *LENGTHS[2:]]
    check(call(eval_extrapolation, run, *flags, file_size=limit), 2)
    if record.exists() and record.read_bytes() != before:
        raise Lost("the record has changed, although it could not be written")
    check(workspace.evaluate(run), 0)
    same_numbers(record, workspace.expected["numbers"])


def preparation(workspace, rng):
    """no space while data is prepared; the same command continues."""
    flags = [workspace.text, "--val_every", "5", "--out_dir"]
    out = workspace.folder / "toy"
    largest = max(path.stat().st_size for path in workspace.data.iterdir())
    check(call(prepare_text, *flags, out, file_size=rng.randrange(1, largest)), 2)
    check(call(prepare_text, *flags, out), 0)
    if digest_folder(out) != digest_folder(workspace.data):
        raise Lost("the prepared data differs from that of an uninterrupted preparation")


def export(workspace, rng):
    """no space for an export, which leaves nothing; the same command works later."""
    out = workspace.folder / "exported"
    command = [export_hf, workspace.whole, "--out_dir", out]
    check(call(*command, file_size=rng.randrange(1, 20_000)), 2)
    if left := list(workspace.folder.glob("*exported*")):
        raise Lost(f"a failed export leaves {left[0].name}")
    check(call(*command), 0)
    if digest_folder(out) != digest_folder(workspace.exported):
        raise Lost("the exported folder differs from that of an uninterrupted export")


def tables(workspace, rng):
    """no space for the tables of a report; the ones before are unchanged."""
    out = workspace.folder / "tables"
    command = [report, workspace.record, "--out_dir", out]
    if rng.random() < 0.5:
        check(call(*command), 0)
    before = digest_folder(out)
    check(call(*command, file_size=rng.randrange(1, 300)), 2)
    if digest_folder(out) != before:
        raise Lost("tables changed, although the report could not be written")


CASES = [training, later_checkpoint, evaluation, preparation, export, tables, folder_removed]
