"""Each fault once."""

import os
import subprocess
import sys

from conftest import ROOT


def test_nothing_is_lost(tmp_path):
    """Each case once, in a new process: one that has computed gradients cannot be forked."""
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONPATH"] = f"{ROOT}:{ROOT / 'tests'}"
    command = [sys.executable, "-m", "faults", "--seed", "1", "--minutes", "0"]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
