"""The GPU that is not there: what it counts, and what it refuses. Asks for gcc and a PyTorch for CUDA on a machine without a GPU."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import ROOT

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available() or not shutil.which("gcc"),
    reason="needs gcc and a PyTorch for CUDA, and no GPU",
)
STEP = """
import torch
from model import GPT, GPTConfig
model = GPT(GPTConfig("quickstart", "cable", 256, 64, attention="triton")).cuda()
before = torch.cuda.memory_allocated()
held = torch.empty(2**20, device="cuda")
assert torch.cuda.memory_allocated() - before == 4 * 2**20
model.compile()
tokens = torch.zeros(2, 64, dtype=torch.int64, device="cuda")
with torch.autocast("cuda", torch.bfloat16):
    model(tokens, tokens).backward()
"""
REFUSED = """
import torch
from triton_attention import kernels
kernels.HEADS = 70_000  # what attend would refuse by itself
q = torch.zeros(70_000, 1, 16, 16, device="cuda", dtype=torch.bfloat16)
kernels.attend(q, q, q, kernels.Bias(), 1.0)
"""


def run(code, folder):
    environment = {
        **os.environ,
        "LAUNCHES": str(folder / "launches.txt"),
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    environment.pop("TRITON_INTERPRET", None)
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    return subprocess.run(
        ["bash", str(Path(__file__).with_name("simulate_gpu.sh")), "python", "-c", code],
        env=environment,
        text=True,
        capture_output=True,
    )


def test_what_a_step_launches_and_holds(tmp_path):
    """Each of four layers' attention once forward, once by rows and once by columns."""
    done = run(STEP, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    launched = Counter(
        line.split("\t")[1]
        for line in (tmp_path / "launches.txt").read_text().splitlines()
        if line.startswith("triton")
    )
    assert [
        launched[name]
        for name in ("_forward", "_backward_rows", "_backward_columns", "_backward_distances")
    ] == [4, 4, 4, 0]


def test_more_programs_than_a_gpu_takes_are_refused(tmp_path):
    """70,000 sequences times heads along the second side of a grid."""
    done = run(REFUSED, tmp_path)
    assert done.returncode and "_forward: a GPU would refuse 1 x 70000 x 1 programs" in done.stderr
