"""Tests of checkpoint files: damage, other files, replaced and removed files, NaN and Inf."""

import functools
import hashlib
import os
import random
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import TINY, save_checkpoint
from in_process import digest

import data_loader
import eval_extrapolation
import export_hf
import sample
import train_gpt
from errors import InputError
from training import checkpoints

CPU = torch.device("cpu")
NEWEST, PREVIOUS = "checkpoint_0000006.pt", "checkpoint_0000004.pt"


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a run with checkpoints of step 4 and 6."""
    return shutil.copytree(trained("cable"), tmp_path / "run")


@pytest.fixture
def resume(run, data_dir):
    """A function of flags that resumes the run."""

    def train(*flags):
        flags = [*TINY, "--data", data_dir, "--out_dir", run, "--resume", *flags]
        train_gpt.main([str(flag) for flag in flags])

    return train


def flip_tensor(path):
    """Flip a bit in the largest tensor of a checkpoint."""
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda member: member.file_size)
    content = bytearray(path.read_bytes())
    content[largest.header_offset + 64 + largest.file_size // 2] ^= 1
    path.write_bytes(content)


def test_every_damage_is_found(run, tmp_path):
    """Flips, zeroed blocks and truncations anywhere, and flips in each byte of the end."""
    whole = (run / NEWEST).read_bytes()
    path = tmp_path / "damaged.pt"
    generator = random.Random(1)
    size = len(whole)
    damaged = [whole[:end] for end in (0, 1, 64, size // 2, size - 65, size - 1)]
    damaged += [whole + b"0", whole + whole[-64:], whole[1:]]
    tail = range(size - 300, size)  # the zip directory's last entries, and the SHA-256
    for position in [*generator.choices(range(size), k=100), *tail]:
        content = bytearray(whole)
        content[position] ^= 1 << generator.randrange(8)
        damaged.append(bytes(content))
    for zeros in (16, 512, 4096):
        position = generator.randrange(size - zeros)
        damaged.append(whole[:position] + bytes(zeros) + whole[position + zeros :])
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(InputError, match="is corrupt or not a checkpoint"):
            checkpoints.load_checkpoint(path)


def test_a_file_ends_with_its_hash_and_is_one_of_pytorch(run):
    content = (run / NEWEST).read_bytes()
    assert content[-64:].decode() == hashlib.sha256(content[:-64]).hexdigest()
    checkpoint = checkpoints.load_checkpoint(run)
    assert checkpoint.pop("sha256") == hashlib.sha256(content).hexdigest()
    assert digest(torch.load(run / NEWEST, weights_only=True)) == digest(checkpoint)


def test_an_unchanged_file_is_hashed_once(run, monkeypatch):
    checkpoints.load_checkpoint(run)
    monkeypatch.setattr(checkpoints, "READ_BYTES", 0)  # reads nothing: a wrong hash
    checkpoints.load_checkpoint(run)
    flip_tensor(run / NEWEST)
    with pytest.raises(InputError, match="its SHA-256 is wrong"):
        checkpoints.load_checkpoint(run)


def test_a_corrupt_checkpoint_is_refused_until_it_is_removed(run, resume, trained, refused):
    flip_tensor(run / NEWEST)
    before = sorted(path.name for path in run.iterdir())
    message = (
        f"error: {run / NEWEST} is corrupt or not a checkpoint (its SHA-256 is wrong): "
        f"remove it to continue from {run / PREVIOUS}"
    )
    for main in (sample.main, eval_extrapolation.main):
        assert refused(main, run) == [message]
    for flags in ([], ["--dry_run"]):
        assert refused(lambda flags: resume(*flags), *flags) == [message]
    assert sorted(path.name for path in run.iterdir()) == before
    (run / NEWEST).unlink()
    resume()
    resumed = checkpoints.load_checkpoint(run)
    assert digest(resumed["model"]) == digest(
        checkpoints.load_checkpoint(trained("cable"))["model"]
    )


def test_a_checkpoint_under_the_name_of_another_step_is_refused(run, resume, refused):
    """Otherwise each resume would use a copy of another step, and lose what was trained since."""
    stray = run / "checkpoint_9999999.pt"
    stray.write_bytes((run / PREVIOUS).read_bytes())
    (line,) = refused(lambda flags: resume())
    assert f"{stray} is corrupt or not a checkpoint (it was written after step 4): remove" in line
    (run / PREVIOUS).unlink()
    (run / NEWEST).unlink()
    assert refused(sample.main, run)[0].endswith("restore a copy of it")


def test_every_reader_refuses_nan_and_inf_by_name(run, resume, refused, data_dir, tmp_path):
    checkpoint = checkpoints.load_checkpoint(run)
    weights = {name: tensor.clone() for name, tensor in checkpoint["model"].items()}
    weights["h.0.attn.c_attn.bias"][3] = -torch.inf
    save_checkpoint(checkpoint | {"model": weights}, run / NEWEST)
    message = ": the weights contain NaN or Inf (h.0.attn.c_attn.bias): use"
    data = ("--data", data_dir)
    new = [*TINY, *data, "--init_from", run, "--out_dir", tmp_path / "new"]
    assert message in refused(sample.main, run)[0]
    assert message in refused(eval_extrapolation.main, run, "--lengths", 16, *data)[0]
    assert message in refused(export_hf.main, run, "--out_dir", tmp_path / "out")[0]
    assert message in refused(train_gpt.main, *new)[0]
    assert message in refused(lambda flags: resume("--steps", 8))[0]
    assert not (tmp_path / "new").exists() and not (tmp_path / "out").exists()
    model = torch.nn.Linear(2, 2)
    model.register_buffer("mask", torch.full((2,), -torch.inf))
    checkpoints.check_finite(model, run)  # a buffer may be infinite


def saved(value):
    """Return a function that saves a value as train_gpt.py does."""
    return functools.partial(save_checkpoint, value)


OTHER_FILES = [
    functools.partial(Path.write_text, data="line\n" * 100),
    functools.partial(Path.symlink_to, target="/dev/null"),
    Path.touch,
    Path.mkdir,
    os.mkfifo,
    saved(torch.ones(3)),
    saved(None),
    saved(torch.nn.Linear(2, 2)),
    saved({"model": {}}),
    saved(dict.fromkeys(checkpoints.Checkpoint.__struct_fields__)),
    saved(dict.fromkeys(checkpoints.Checkpoint.__struct_fields__) | {"format": checkpoints.FORMAT}),
]


@pytest.mark.parametrize("write", OTHER_FILES)
def test_other_files_are_refused_with_one_line(write, refused, tmp_path):
    """As the path of a checkpoint and in a run; tests/test_malicious_files.py has pickled code."""
    path = tmp_path / "checkpoint_0000001.pt"
    write(path)
    for run in (path, tmp_path):
        for main in (sample.main, eval_extrapolation.main):  # the latter loads the metadata only
            (line,) = refused(main, run)
            assert "weights_only" not in line and "Weights only" not in line
            assert str(run) in line


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"wte.weight": 3}},
        {"model": {}},
        {"step": "6"},
        {"sampler": {"other": 1}},
        {"rng": [3]},
        {"optimizer": []},
        {"gpt": {"n_layer": 10**9}},
        {"gpt": {"pe": ["cable"]}},
        {"config": {"steps": "6"}},
        {"config": {"plugin": ["a.py"]}},
        {"config": {"lr": torch.ones(2)}},
        {"data": {"tokenizer": 1}},
    ],
    ids=str,
)
def test_wrong_values_in_a_checkpoint_are_refused_with_one_line(change, run, refused):
    ((key, value),) = change.items()
    checkpoint = checkpoints.load_checkpoint(run)
    if key in ("gpt", "config", "data", "sampler"):
        value = checkpoint[key] | value
    save_checkpoint(checkpoint | {key: value}, run / NEWEST)
    for main in (sample.main, eval_extrapolation.main):
        (line,) = refused(main, run)
        assert f"error: {run / NEWEST} is not a checkpoint of train_gpt.py (" in line
        assert key in line or "its weights do not have the shape of its settings" in line


def test_a_file_of_another_program_is_not_called_corrupt(run, refused):
    """Its remedy does not remove it."""
    torch.save({"model": {}}, run / NEWEST)
    (line,) = refused(sample.main, run)
    assert "is not a checkpoint of train_gpt.py (it has no SHA-256: another program" in line
    assert line.endswith("pass the folder of a run that it trained")


def test_states_that_do_not_fit_the_training_are_refused(run, resume, refused, data_dir):
    checkpoint = checkpoints.load_checkpoint(run)
    for optimizer in ({}, {"state": 1, "param_groups": []}):
        save_checkpoint(checkpoint | {"optimizer": optimizer}, run / NEWEST)
        assert "the optimizer or random state does not fit" in refused(lambda _: resume())[0]
    save_checkpoint(checkpoint | {"rng": [{"cpu": torch.ones(3)}]}, run / NEWEST)
    assert "the optimizer or random state does not fit" in refused(lambda _: resume())[0]
    for index in (10**6, len(data_loader.Windows(data_loader.Shards(data_dir, "train"), 16))):
        save_checkpoint(checkpoint | {"sampler": {"epoch": 0, "index": index}}, run / NEWEST)
        assert f"resumes at window {index} of the data" in refused(lambda _: resume())[0]
