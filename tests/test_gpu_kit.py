"""Tests of scripts/test_gpu.sh without a GPU: invalid settings, a recipe and a part."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT


def run_kit(*words):
    command = ["bash", str(ROOT / "scripts" / "test_gpu.sh"), *map(str, words)]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    "words, problem",
    [
        (["DEVICE=tpu"], "DEVICE=tpu is unknown: use cuda or cpu"),
        (["LIMIT=soon"], "LIMIT=soon is invalid: use a number of seconds"),
        (["smoke"], "no part 'smoke': use recipes speed kernels repeats memory several_gpus"),
        ([], "PyTorch finds no GPU: use DEVICE=cpu, or scripts/test.sh"),
    ],
)
def test_invalid_settings_end_with_one_line(words, problem, tmp_path):
    done = run_kit(f"OUT={tmp_path / 'out'}", *words)
    assert (done.returncode, done.stderr) == (2, f"error: {problem}\n")
    assert not (tmp_path / "out").exists()


def test_a_part_runs_on_a_cpu(tmp_path):
    done = run_kit("DEVICE=cpu", f"OUT={tmp_path}", "repeats")
    assert done.returncode == 0, (tmp_path / "repeats.txt").read_text()
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").open()]
    assert [record["different"] for record in records] == [0] * 5
