"""Kernels: registers and shared memory without a GPU, and the profile of a training step."""

import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

from benchmarking import kernel_times


def test_table_of_an_rtx_4090():
    """Every kernel that a bias launches starts on a GPU with 99 KB of shared memory per program.

    Tiles for distances are larger than those without a bias, so they take more of it.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernel_resources", "89", "none", "decay", "distance"],
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


# Profile of a training step


def test_kernels_are_grouped_by_name():
    names = {
        "flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>": "attention",
        "attention_backward_rows": "attention",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopA_TNN": "products",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn": "products",
        "triton_poi_fused_gelu_3": "elementwise",
        "multi_tensor_apply_kernel<FusedAdamMathFunctor>": "optimizer",
        "Memcpy DtoD": "other",
    }
    assert {name: kernel_times.kernel_group(name) for name in names} == names


def test_kernel_times_of_a_training_step(tmp_path):
    out = tmp_path / "trace.json"
    flags = "--model quickstart --micro_batch 1 --context 16 --device cpu --out"
    kernel_times.main([*flags.split(), str(out)])
    record = json.loads(out.read_text())
    times = [kernel["ms"] for kernel in record["kernels"]]
    assert len(times) <= 30 and times == sorted(times, reverse=True)
    assert sum(times) <= record["busy_ms"] == pytest.approx(sum(record["groups_ms"].values()))
    assert record["groups_ms"]["products"] > 0 and record["groups_ms"]["attention"] > 0
