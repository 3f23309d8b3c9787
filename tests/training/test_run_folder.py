"""Tests of what a run writes when writing fails: checkpoints, the log and the folder."""

import json
import os
import resource

from runtime import files

import pytest
import torch

from errors import InputError
from training import run_folder
from training.checkpoints import FILE_NAME, list_checkpoints
from training.run_folder import Run

START = {"kind": "start", "step": 0, "id": "0123abcd", "tokenizer": "bytes"}


def new_run(folder, keep=2):
    return Run(folder, {"steps": 9}, {"sha256": "0", "tokenizer": "bytes"}, keep)


def state(step, numbers=1000):
    """Return the arguments of `Run.save` for a checkpoint with `numbers` equal to its step."""
    values = torch.full((numbers,), float(step))
    names = {"optimizer": {}, "scaler": {}, "sampler": {}, "rng": [], "gpt": {}}
    return {"model": {"a": values, "tied": values}, "step": step, **names}


def load(run, step):
    return torch.load(run.folder / FILE_NAME.format(step), weights_only=True)


def names_in(folder):
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def run(tmp_path):
    """A started run."""
    run = new_run(tmp_path / "run")
    run.start(torch.device("cpu"))
    return run


def test_log_is_on_disk_before_the_checkpoint(run, monkeypatch):
    calls = []
    monkeypatch.setattr(files.os, "fsync", lambda file: calls.append(os.fstat(file).st_ino))
    monkeypatch.setattr(files.os, "replace", lambda *paths: calls.append("replace"))
    run.save(**state(1))
    assert calls.index((run.folder / "log.jsonl").stat().st_ino) < calls.index("replace")


def test_full_disk_at_any_byte_of_a_checkpoint(run):
    """PyTorch raises OSError or RuntimeError, depending on the size; the limit raises EFBIG."""
    numbers = 100_000  # more than the buffer of a file
    run.save(**state(1, numbers))
    size = (run.folder / FILE_NAME.format(1)).stat().st_size
    before = names_in(run.folder)
    old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in range(0, size, size // 40):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old_limit[1]))
        try:
            with pytest.raises(InputError, match="0000002.pt: File too large: use") as found:
                run.save(**state(2, numbers))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
        assert "\n" not in str(found.value)
        assert names_in(run.folder) == before
    assert load(run, 1)["step"] == 1


def test_full_disk_in_the_log(run, monkeypatch):
    (run.folder / "log.jsonl").unlink()
    (run.folder / "log.jsonl").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"cannot write .*log.jsonl: No space left on device: "):
        run.log("train", 1, loss=1.0)


def test_the_newest_checkpoints_stay(run):
    for step in (1, 2, 3):
        run.save(**state(step))
        names = [path.name for path in list_checkpoints(run.folder)]
        assert names == [FILE_NAME.format(kept) for kept in range(max(1, step - 1), step + 1)]
        assert load(run, step)["model"]["a"].eq(step).all()


def test_last_good_checkpoint_is_named(run):
    nothing = "train again with a lower --lr and another --out_dir"
    assert run.describe_last_good(0) == nothing
    run.save(**state(2))
    run.save(**state(4))
    for step, good in ((5, 4), (4, 2)):  # in the latter case step 4 itself gives NaN
        line = run.describe_last_good(step)
        assert line.startswith(f"to continue from checkpoint_000000{good}.pt, remove later ones")
    assert run.describe_last_good(2) == nothing


CORRUPT = {
    "not UTF-8": b'{"kind": "train", "step": 1, "loss": 1.0, "x": "\xff"}',
    "NUL": b"\0" * 512,
    "NUL before a record": b'\0\0\0{"kind": "train", "step": 1, "loss": 1.0}',
    "half a record": b'{"kind": "train", "st',
    "two records": b'{"kind": "train", "st{"kind": "train", "step": 1, "loss": 1.0}',
    "empty": b"",
    "list": b"[1, 2]",
    "deep": b"[" * 100_000,
    "long number": b'{"kind": "a", "step": ' + b"1" * 5000 + b"}",
    "no kind": b'{"step": 1, "loss": 1.0}',
    "no step": b'{"kind": "train", "loss": 1.0}',
    "no loss": b'{"kind": "val", "step": 1}',
    "kind": b'{"kind": ["train"], "step": 1, "loss": 1.0}',
    "loss": b'{"kind": "val", "step": 1, "loss": "low"}',
    "id": b'{"kind": "start", "step": 0, "id": 5}',
}


@pytest.mark.parametrize("name", CORRUPT)
def test_corrupt_lines_of_the_log_are_left_out(name, tmp_path):
    line, folder = CORRUPT[name], tmp_path / "run"
    good = [START, {"kind": "train", "step": 2, "loss": 3.0}, {"kind": "val", "step": 2, "loss": 4}]
    later = {"kind": "train", "step": 3, "loss": 2.0}
    written = [line, *(json.dumps(record).encode() for record in [*good, later]), line]
    folder.mkdir()
    (folder / "log.jsonl").write_bytes(b"\n".join(written) + b'\n{"kind": "tr')
    assert run_folder.read_log(folder) == [*good, later]

    run = new_run(folder)
    run.step = 2  # of the checkpoint
    run.start(torch.device("cpu"))
    *kept, start = run_folder.read_log(folder)
    assert kept == good and (start["kind"], start["id"]) == ("start", "0123abcd")
    assert names_in(folder) == {"config.yaml", "log.jsonl"}


def test_log_without_a_newline_at_the_end_is_complete(tmp_path):
    (tmp_path / "log.jsonl").write_text(json.dumps(START))
    run = new_run(tmp_path)
    run.step = 0
    run.start(torch.device("cpu"))
    assert [record["id"] for record in run_folder.read_log(tmp_path)] == [START["id"]] * 2


def test_unreadable_log_is_reported(tmp_path):
    (tmp_path / "log.jsonl").mkdir()
    for call in (run_folder.read_log, lambda run: new_run(run).start(torch.device("cpu"))):
        with pytest.raises(IsADirectoryError, match=r"log.jsonl"):
            call(tmp_path)
