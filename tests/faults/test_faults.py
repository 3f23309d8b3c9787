"""Each fault once, and proof that the campaign finds what is lost."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT
from in_process import Result

from . import harness


def test_nothing_is_lost(tmp_path):
    """Each case once, in a new process: one that has computed gradients cannot be forked."""
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = f"{ROOT}:{ROOT / 'tests'}"
    command = [sys.executable, "-m", "faults", "--seed", "1", "--minutes", "0"]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_traceback_missing_error_line_and_status_are_lost():
    assert harness.check(Result(2, "error: no data: prepare it\n")).status == 2
    traceback = "Traceback (most recent call last)\nerror: x: y\n"
    for status, output in ((1, ""), (2, ""), (0, traceback), (-7, "")):
        with pytest.raises(harness.Lost):
            harness.check(Result(status, output))
    with pytest.raises(harness.Lost):
        harness.expect([1], [2], "a list")
