"""Trainings on 1, 2, 4, ... GPUs: equal losses, speed, and what happens when a rank is killed."""

import os
import signal
import statistics
import subprocess
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, log_of, wait_for
from gpu_kit import DEVICE, LIMIT, command, random_data, record, train
from test_recipes import SHORT, TINY

AVAILABLE = torch.cuda.device_count() if DEVICE == "cuda" else 2  # gloo
COUNTS = [count for count in (2, 4, 8) if count <= AVAILABLE]
RECIPE = f"--config configs/fineweb-edu_small.yaml --pe cable {SHORT} --steps 8"
RECIPE += f" {TINY}" * (DEVICE == "cpu")

pytestmark = pytest.mark.skipif(not COUNTS, reason=f"needs 2 GPUs, found {AVAILABLE}")


def test_losses_do_not_depend_on_the_number_of_gpus(train, record):
    expected, speeds = None, {}
    for count in (1, *COUNTS):
        steps, _ = train(f"ranks-{count}", RECIPE, count)
        losses = [step["loss"] for step in steps]
        speed = statistics.median(step["tokens_per_second"] for step in steps[3:])
        speeds[count] = speed
        speedup = speed / speeds[1]
        record(ranks=count, losses=losses, tokens_per_second=speed, speedup=speedup)
        expected = expected or losses
        assert losses == pytest.approx(expected, rel=1e-3), count


def test_a_killed_rank_ends_the_others(command, tmp_path, record):
    """The launcher and all ranks end within a minute, and the error says how to continue."""
    process = subprocess.Popen(
        command("killed", f"{RECIPE} --steps 100000", COUNTS[0]),
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    log = tmp_path / "killed" / "log.jsonl"
    try:
        wait_for(lambda: log.exists() and '"train"' in log.read_text(), process, LIMIT)
        ranks = children(process.pid)
        assert len(ranks) >= COUNTS[0]
        start = time.monotonic()
        os.kill(ranks[-1], signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
    finally:
        process.terminate()
        process.wait()
    seconds = time.monotonic() - start
    record(ranks=COUNTS[0], seconds=seconds, steps=len(log_of(tmp_path / "killed")))
    assert process.returncode != 0 and seconds < 60
    assert "--resume" in output
    assert not [rank for rank in ranks if Path(f"/proc/{rank}").exists()]


def children(pid: int) -> list[int]:
    """Return the process ids of a process's children (Linux), ascending."""
    return sorted(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
