"""Corrupt files: checkpoints, logs, shards, meta.json, texts, records and exported folders."""

import json
import random
from pathlib import Path

import torch

import compare
import eval_extrapolation
import export_hf
import import_pretrained
import prepare_text
import report
import train_gpt

from .harness import CPU, TRAIN, Lost, Program, call, check, digest, numbers, same_numbers


def flip(content: bytearray, rng: random.Random) -> None:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def zero(content: bytearray, rng: random.Random) -> None:
    start, size = rng.randrange(len(content)), rng.choice((16, 512, 4096))
    content[start : start + size] = bytes(len(content[start : start + size]))


def overwrite(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    content[start : start + 64] = rng.randbytes(len(content[start : start + 64]))


def truncate(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


CORRUPTIONS = (flip, zero, overwrite, truncate)


def corrupt(path: Path, rng: random.Random, *ways) -> None:
    """Change a file in a random way; the file is different afterwards."""
    content = path.read_bytes()
    changed = bytearray(content)
    while changed == content:
        rng.choice(ways or CORRUPTIONS)(changed, rng)
    path.write_bytes(changed)


def resume(workspace, rng):
    """newest checkpoint corrupt: `--resume` continues from the one before it."""
    run = workspace.copy(workspace.half)
    corrupt(run / "checkpoint_0000004.pt", rng)
    workspace.check_trained(run)


def resume_all_corrupt(workspace, rng):
    """all checkpoints corrupt: `--resume` is refused or starts from a good one."""
    run = workspace.copy(workspace.half)
    for path in run.glob("*.pt"):
        corrupt(path, rng)
    if check(workspace.resume(run)).status == 0:
        workspace.compare_trained(run)


def evaluate(workspace, rng):
    """checkpoint corrupt: evaluation."""
    run = workspace.copy(workspace.whole)
    (run / workspace.record.name).unlink()
    path = run / "checkpoint_0000008.pt"
    corrupt(path, rng)
    result = check(workspace.evaluate(path if rng.random() < 0.5 else run))
    if result.status == 0:
        for record in run.glob("eval_*.json"):
            same_numbers(record, workspace.expected["numbers"])


def sample_text(workspace, rng):
    """checkpoint corrupt: sampling."""
    run = workspace.copy(workspace.whole)
    corrupt(run / "checkpoint_0000008.pt", rng)
    result = check(workspace.sample(run))
    if result.status == 0 and result.output.splitlines()[:-1] != workspace.expected["sample"]:
        raise Lost("exit status 0 with another text than that of the undamaged checkpoint")


CASES = [resume, evaluate, sample_text, resume_all_corrupt]
