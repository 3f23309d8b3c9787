"""Tests of the simulated GPU: what a training step launches and allocates, and what is refused.

They need gcc and a PyTorch for CUDA, on a machine without a GPU.
"""

import json
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
import sys
import torch
from model import GPT, GPTConfig
model = GPT(GPTConfig("quickstart", "cable", 256, 64, attention=sys.argv[1])).cuda()
before = torch.cuda.memory_allocated()
held = torch.empty(2**20, device="cuda")
assert torch.cuda.memory_allocated() - before == 4 * 2**20
model.compile()
tokens = torch.zeros(2, 64, dtype=torch.int64, device="cuda")
with torch.autocast("cuda", torch.bfloat16):
    model(tokens, tokens).backward()
"""
# Prints what the fused kernels of each encoding get and return, in an uncompiled step.
ATTENTION_CALLS = """
import json
import torch
from torch.utils._python_dispatch import TorchDispatchMode
import attention
from conftest import ENCODINGS
from training.attention_layer import random_layer

class Calls(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        results = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        if "attention" in name:
            tensors = [x for x in (*args, *results) if isinstance(x, torch.Tensor)]
            tensors = [x for x in tensors if x.shape == args[0].shape]  # not statistics of rows
            order = [x.transpose(1, 2).is_contiguous() for x in tensors]
            calls.append([name, args[0].size(-1), order])
        return results

found = {}
for pe in ENCODINGS:
    if "@" in pe:  # a pattern of layers: its encodings have trainings of their own
        continue
    calls = []
    layer = random_layer(pe, 2, 128, 64, (2, 64), torch.bfloat16, torch.device("cuda"))
    path = attention.resolve_path("auto", layer.encoding)
    if path == "sdpa":
        with Calls():
            layer.forward_backward(lambda: layer.attend(path))
        found[pe] = calls
print(json.dumps(found))
"""
OVERSIZED_LAUNCH = """
import torch
from triton_attention import interface
interface.MAX_HEADS = 70_000  # so that the interface's own check passes
q = torch.zeros(70_000, 1, 16, 16, device="cuda", dtype=torch.bfloat16)
interface.fused_attention(q, q, q, interface.Bias(), 1.0)
"""


def run_simulated(code, folder, *arguments, **variables):
    """Run Python code on the simulated GPU; its launches are logged to folder/launches.txt."""
    environment = {
        **os.environ,
        "LAUNCHES": str(folder / "launches.txt"),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **variables,
    }
    environment.pop("TRITON_INTERPRET", None)
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    script = str(Path(__file__).with_name("simulate_gpu.sh"))
    return subprocess.run(
        ["bash", script, "python", "-c", code, *arguments],
        env=environment,
        text=True,
        capture_output=True,
    )


def launches_of(folder):
    """Return how often each kernel was launched, by its name, and cuDNN's attention by products."""
    lines = (folder / "launches.txt").read_text().splitlines()
    fields = [line.split("\t") for line in lines]
    names = [x[1] for x in fields if x[0] in ("torch", "triton")]
    return Counter(names), Counter(int(x[2]) for x in fields if x[0] == "cudnn")


def count(kernels, part):
    return sum(times for name, times in kernels.items() if part in name)


def test_training_step_launches_each_kernel_once_per_layer(tmp_path):
    """Each of four layers launches the kernels for forward, rows and columns once."""
    done = run_simulated(TRAIN_STEP, tmp_path, "triton")
    assert done.returncode == 0, done.stderr[-2000:]
    kernels, _ = launches_of(tmp_path)
    assert kernels["attention_forward"] == 4
    assert kernels["attention_backward_rows"] == 4
    assert kernels["attention_backward_columns"] == 4
    assert kernels["attention_backward_distances"] == 0


@pytest.mark.parametrize("cudnn", ["91900", "8900"])
def test_fused_attention_with_columns_copies_nothing(cudnn, tmp_path):
    """One call forward and one backward in each of four layers, without copies around them.

    cuDNN 9.19 computes attention on an H100. With cuDNN 8.9 it is flash attention.
    """
    done = run_simulated(TRAIN_STEP, tmp_path, "sdpa", CUDNN=cudnn)
    assert done.returncode == 0, done.stderr[-2000:]
    kernels, graphs = launches_of(tmp_path)
    flash = [count(kernels, name) for name in ("flash_fwd_kernel", "flash_bwd_dq_dk_dv_loop")]
    if cudnn == "91900":
        assert (graphs, flash) == ({2: 4, 5: 4}, [0, 0])
    else:
        assert (graphs, flash) == ({}, [4, 4])
    assert count(kernels, "direct_copy") == 0


def test_fused_attention_of_every_encoding(tmp_path):
    """The operator is cuDNN's; with a bias all tensors are contiguous as (B, T, H, D)."""
    done = run_simulated(ATTENTION_CALLS, tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    name = "_scaled_dot_product_cudnn_attention"
    for pe, (forward, backward) in found.items():
        assert (forward[0], backward[0]) == (name, f"{name}_backward"), pe
        width = forward[1]
        assert width == backward[1] and 64 <= width <= 256 and width % 8 == 0, pe
        assert width == 64 or all(forward[2] + backward[2]), pe
    assert {"cable", "alibi", "rope", "fox"} <= found.keys()


def test_compiled_training(tmp_path):
    """Two graphs, without a break; columns copy nothing, and the Triton kernels take q packed."""
    code = "from gpu_simulation import compiled_training as x; import sys; x.main(sys.argv[1:])"
    done = run_simulated(code, tmp_path, "--encodings", "cable,rope,cope,t5")
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split(" | ") for line in done.stdout.splitlines() if not line.startswith("|")]
    found = {tuple(row[:2]): row[2:] for row in rows if len(row) > 2}
    cudnn = "cudnn_attention, cudnn_attention_backward"
    order, part = "(B, T, H, D)", "slice of (B, T, 3, H, D)"
    once = ["2", "0", "0"]  # graphs, breaks, recompilations
    assert found["cable", "sdpa"] == [cudnn, "72", order, order, *once, "0"]
    assert found["rope", "sdpa"] == [cudnn, "64", *[f"{order}, {part}"] * 2, *once, "0"]
    assert found["cope", "dense"] == ["–"] * 4 + [*once, "0"]
    assert found["t5", "dense"] == ["–"] * 4 + [*once, "0"]
    operators, head_dim, forward, _, *counts = found["t5", "triton"]
    assert (operators, head_dim) == ("attention, attention_backward", "64")
    assert forward == "(B, T, 3, H, D)"
    assert counts[:3] == once


def test_oversized_grid_is_refused(tmp_path):
    """70,000 heads of all sequences exceed the limit of the grid's second dimension."""
    done = run_simulated(OVERSIZED_LAUNCH, tmp_path)
    assert done.returncode != 0
    assert "attention_forward: a GPU would refuse 1 x 70000 x 1 programs" in done.stderr
