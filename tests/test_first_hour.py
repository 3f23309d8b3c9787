"""The first hour of a new user: scripts/first_hour.sh works, and the docs have its commands."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from conftest import ROOT, search_path


@pytest.mark.skipif(sys.platform != "linux", reason="starts a server in the background")
def test_first_hour(tmp_path):
    kept = {name: os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")}
    done = subprocess.run(
        ["bash", "scripts/first_hour.sh"],
        cwd=ROOT,
        env=kept | {"PATH": search_path(), "OUT": str(tmp_path / "out")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    docs = "".join(page.read_text() for page in pages)
    commands = re.findall(r"^\+ python (.*)", done.stdout, re.MULTILINE)
    assert len(commands) == int(re.search(r"first hour: (\d+) commands", done.stdout)[1]) - 1
    for command in commands:
        program, *words = shlex.split(command.replace("# refused", ""))
        assert program in docs
        flags = {word for word in words if word.startswith("--")}
        assert not [flag for flag in flags if flag not in docs], command
