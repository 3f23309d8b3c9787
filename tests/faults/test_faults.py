"""Each fault once, and proof that the campaign finds what is lost."""

import os
import random
import subprocess
import sys

import pytest
from conftest import ROOT
from in_process import Result

from . import __main__ as campaign
from . import cases, harness


def test_nothing_is_lost(tmp_path):
    """Each case once, in a new process: one that has computed gradients cannot be forked."""
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
    }
    command = [sys.executable, "-m", "faults", "--seed", "1", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_random_numbers_depend_on_seed_case_and_number_only(monkeypatch):
    """So that --trial repeats one trial."""
    drawn = []
    monkeypatch.setitem(cases.CASES, "draw", lambda workspace, rng: drawn.append(rng.random()))

    class Workspace:
        def new_trial(self): ...

    for number in (3, 4, 3):
        assert campaign.run_trial(Workspace(), "draw", 7, number) is None
    assert drawn[0] == drawn[2] != drawn[1]


def test_every_corruption_changes_the_file(tmp_path):
    path, rng = tmp_path / "file", random.Random(1)
    for _ in range(50):
        path.write_bytes(b"0123456789" * 10)
        cases.corrupt(path, rng)
        assert path.read_bytes() != b"0123456789" * 10


def test_traceback_missing_error_line_and_status_are_lost():
    assert harness.check(Result(2, "error: no data: prepare it\n")).status == 2
    traceback = "Traceback (most recent call last)\nerror: x: y\n"
    for status, output in ((1, ""), (2, ""), (0, traceback), (-7, "")):
        with pytest.raises(harness.Lost):
            harness.check(Result(status, output))
    with pytest.raises(harness.Lost):
        harness.expect([1], [2], "a list")
