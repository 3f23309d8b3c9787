"""Tests of the simulated GPU: what a training step launches and allocates, and what is refused.

They need gcc and a PyTorch for CUDA, on a machine without a GPU.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import ROOT

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available() or not shutil.which("gcc"),
    reason="needs gcc and a PyTorch for CUDA, and no GPU",
)
TRAIN_STEP = """
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
OVERSIZED_LAUNCH = """
import torch
from triton_attention import interface
interface.MAX_HEADS = 70_000  # so that the interface's own check passes
q = torch.zeros(70_000, 1, 16, 16, device="cuda", dtype=torch.bfloat16)
interface.fused_attention(q, q, q, interface.Bias(), 1.0)
"""


def run_simulated(code, folder):
    """Run Python code on the simulated GPU; its launches are logged to folder/launches.txt."""
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


def test_training_step_launches_each_kernel_once_per_layer(tmp_path):
    """Each of four layers launches the kernels for forward, rows and columns once."""
    done = run_simulated(TRAIN_STEP, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    launches = (tmp_path / "launches.txt").read_text().splitlines()
    launched = Counter(line.split("\t")[1] for line in launches if line.startswith("triton"))
    assert launched["attention_forward"] == 4
    assert launched["attention_backward_rows"] == 4
    assert launched["attention_backward_columns"] == 4
    assert launched["attention_backward_distances"] == 0


def test_oversized_grid_is_refused(tmp_path):
    """70,000 heads of all sequences exceed the limit of the grid's second dimension."""
    done = run_simulated(OVERSIZED_LAUNCH, tmp_path)
    assert done.returncode != 0
    assert "attention_forward: a GPU would refuse 1 x 70000 x 1 programs" in done.stderr
