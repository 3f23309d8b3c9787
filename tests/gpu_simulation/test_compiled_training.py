"""Tests of the table of compiled trainings that need no PyTorch for CUDA."""

import subprocess
import sys

import torch
from conftest import ROOT
from gpu_simulation import compiled_training

# Two calls, whose function has a graph break: the second call compiles both parts again.
BREAKS = """
import sys
from pathlib import Path
import torch
from gpu_simulation import compiled_training

scratch = Path(sys.argv[1])
compiled_training.enable_logs(scratch)

@torch.compile(backend="eager")
def double(x):
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2

double(torch.ones(2))
double(torch.ones(2, 2))
print(compiled_training.count_messages((scratch / "messages.txt").read_text()))
"""


def test_graph_breaks_and_recompilations_are_counted(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BREAKS, str(tmp_path)],
        cwd=ROOT / "tests",
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "{'breaks': 2, 'recompilations': 2}"


def test_layouts():
    """They are named as seen in memory."""
    B, H, T, D = 2, 4, 8, 16
    packed = torch.empty(B, T, 3, H, D)
    q, _, v = packed.transpose(1, 3).unbind(2)
    assert compiled_training.layout(packed) == "(B, T, 3, H, D)"
    assert compiled_training.layout(q) == compiled_training.layout(v) == "slice of (B, T, 3, H, D)"
    assert compiled_training.layout(torch.empty(B, T, H, D).transpose(1, 2)) == "(B, T, H, D)"
    assert compiled_training.layout(torch.empty(B, H, T, D)) == "(B, H, T, D)"
    assert compiled_training.layout(torch.empty(B, H, D, T).mT) == "strides (512, 128, 1, 8)"


def test_table_groups_encodings_with_equal_results():
    dense = compiled_training.Training("dense", "–", "–", "–", "–", 2, 0, 0, 0)
    sdpa = compiled_training.Training("sdpa", "flash", "64", "x", "y", 3, 1, 1, 4)
    results = {dense: ["cope", "dape"], sdpa: ["rope"]}
    assert [x.has_problem() for x in results] == [False, True]
    header, _, dense, sdpa, *_ = compiled_training.format_table(results).splitlines()
    assert [cell.strip() for cell in dense.split("|")[1:4]] == ["cope, dape", "dense", "–"]
    assert [cell.strip() for cell in sdpa.split("|")[-5:-1]] == ["3", "1", "1", "4"]
    assert len(header.split("|")) == len(compiled_training.HEADER) + 2
