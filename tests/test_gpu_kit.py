"""Tests of scripts/test_gpu.sh without a GPU: budgets, statuses, wheels, and one real part."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, write_program

# Stands for Python: recipes pass, the speed of training never ends, kernels fail.
FAKE_PYTHON = """#!/usr/bin/env bash
echo "$*" >>CALLS
case "$*" in
    *"import runtime"*) exit 0 ;;
    *test_recipes.py*) echo "6 passed" ;;
    *"bench.py train"*) echo "one case is measured"; sleep 600 ;;
    *test_kernel*) echo "1 failed"; exit 1 ;;
esac
"""
# Python of an environment without two packages, until they are installed from wheels/.
INCOMPLETE_PYTHON = """#!/usr/bin/env bash
echo "$*" >>CALLS
case "$*" in
    *"import runtime"*)
        if [ -d wheels/installed ]; then exit 0; fi
        echo "error: missing packages msgspec, filelock: pip install -r requirements.txt" >&2
        exit 2 ;;
    *"pip install"*) mkdir wheels/installed ;;
    *pytest*) echo "PYTHONPATH $PYTHONPATH" >>CALLS ;;
esac
"""


def run_kit(*words, folder=ROOT, path=os.environ["PATH"]):
    command = ["bash", str(folder / "scripts" / "test_gpu.sh"), *map(str, words)]
    environment = {**os.environ, "PATH": path}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture
def kit(tmp_path):
    """Return a function of a fake Python that returns a folder with the script, and a PATH."""

    def make(python: str) -> tuple[Path, str]:
        (tmp_path / "scripts").mkdir()
        (tmp_path / "scripts" / "test_gpu.sh").symlink_to(ROOT / "scripts" / "test_gpu.sh")
        code = python.replace("CALLS", str(tmp_path / "calls"))
        write_program(tmp_path / "bin" / "python3", code)
        return tmp_path, f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"

    return make


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
    python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run_kit(f"OUT={tmp_path / 'out'}", *words, path=python)
    assert (done.returncode, done.stderr) == (2, f"error: {problem}\n")
    assert not (tmp_path / "out").exists()


def test_parts_run_in_order_until_the_limit(kit):
    """A part that fails does not stop the next; what has been written is kept."""
    folder, path = kit(FAKE_PYTHON)
    done = run_kit("DEVICE=cpu", "LIMIT=4", "OUT=out", folder=folder, path=path)
    assert done.returncode == 1
    lines = [line.rstrip().split(", ") for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == [
        "recipes: passed",
        "speed: out of time",
        "kernels-interface: not started",
        "repeats: not started",
        "memory: not started",
        "several_gpus: not started",
    ]
    assert lines[0][1].endswith("s: 6 passed") and lines[1][1].endswith("s: one case is measured")
    assert (folder / "out" / "summary.txt").read_text() == done.stdout
    assert "passed" not in done.stderr and "speed: out of time" in done.stderr

    done = run_kit("DEVICE=cpu", "OUT=out", "kernels", "memory", folder=folder, path=path)
    assert done.returncode == 1
    statuses = [line.partition(",")[0] for line in done.stdout.splitlines()]
    assert statuses == ["kernels-interface: FAILED", "memory: passed"]
    calls = (folder / "calls").read_text()
    assert (
        calls.index("test_recipes") < calls.index("bench.py train") < calls.index("bench.py eval")
    )


def test_missing_packages_come_from_the_folder_of_wheels(kit):
    folder, path = kit(INCOMPLETE_PYTHON)
    done = run_kit("DEVICE=cpu", "OUT=out", "recipes", folder=folder, path=path)
    assert done.returncode == 2 and "error: missing packages msgspec, filelock" in done.stderr
    (folder / "wheels").mkdir()
    done = run_kit("DEVICE=cpu", "OUT=out", "recipes", folder=folder, path=path)
    assert done.returncode == 0, done.stderr
    calls = (folder / "calls").read_text()
    assert "--no-index --find-links wheels --target wheels/installed msgspec filelock\n" in calls
    assert f"PYTHONPATH {folder}/wheels/installed" in calls


def test_a_recipe_trains_on_a_cpu(tmp_path):
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu/test_recipes.py"]
    environment = {**os.environ, "DEVICE": "cpu", "OUT": str(tmp_path)}
    command = [sys.executable, *words, "-k", "small-rope"]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout[-3000:]
    (record,) = [json.loads(line) for line in (tmp_path / "records.jsonl").open()]
    assert len(record["losses"]) == 15


def test_a_part_runs_on_a_cpu(tmp_path):
    python = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = run_kit("DEVICE=cpu", f"OUT={tmp_path}", "repeats", path=python)
    assert done.returncode == 0, (tmp_path / "repeats.txt").read_text()
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").open()]
    assert [record["different"] for record in records] == [0] * 5
