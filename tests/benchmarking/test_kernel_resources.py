"""Registers and shared memory of the compiled Triton kernels, without a GPU."""

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

from benchmarking import kernel_resources
from errors import InputError
from triton_attention import kernels


def test_table_of_an_rtx_4090():
    """Every kernel that a bias launches starts on a GPU with 99 KB of shared memory per program.

    Tiles for distances are larger than those without a bias, so they take more of it.
    """
    command = [sys.executable, "-m", "benchmarking.kernel_resources", "--arch", "89"]
    done = subprocess.run(
        [*command, "--kinds", "none,decay,distance"],
        cwd=ROOT,
        text=True,
        capture_output=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split()[-4:] == ["forward", "rows", "columns", "distances"]
    cells = {row.split()[0]: re.findall(r"(\d+), (\d+), (\d+) KB", row) for row in rows}
    assert {kind: len(row) for kind, row in cells.items()} == {"none": 3, "decay": 3, "distance": 4}
    for registers, _, shared in sum(cells.values(), []):
        assert 32 < int(registers) <= 255
        assert 16 <= int(shared) <= 99
    assert int(cells["none"][0][2]) < int(cells["distance"][0][2])


def test_interpreter_cannot_compile(monkeypatch):
    monkeypatch.setattr(kernels.INTERPRETED, "value", True)
    with pytest.raises(InputError, match="unset TRITON_INTERPRET"):
        kernel_resources.main([])
