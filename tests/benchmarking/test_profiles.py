"""Kernels: registers and shared memory without a GPU; time and profile of a training step."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
from conftest import ROOT

import bench
import model
from benchmarking import profiles


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
        "Memcpy DtoD": "elementwise",
        "multi_tensor_apply_kernel<FusedAdamMathFunctor>": "optimizer",
    }
    assert {name: profiles.kernel_group(name) for name in names} == names


def test_time_of_steps_with_gradient_accumulation(tmp_path, monkeypatch):
    """A round of 2 steps of 3 micro-batches has 6 times the tokens, and 2 optimizer steps."""
    monkeypatch.setitem(model.SIZES, "quickstart", (1, 2, 16))
    out = tmp_path / "train.json"
    flags = "train --model quickstart --micro_batch 2 --context 16 --device cpu --repeats 1"
    bench.main([*flags.split(), "--steps", "2", "--micro_batches", "3", "--out", str(out)])
    entry = json.loads(out.read_text())["train"]["contexts"]["16"]["cable"]
    assert entry["tokens"] == 2 * 3 * 2 * 16
    groups = ["attention", "products", "optimizer", "elementwise", "waiting"]
    assert list(entry["time"]) == groups and all(entry["time"].values())
    assert sum(entry["time"].values()) == pytest.approx(1)
    calls = {kernel["name"]: kernel["calls"] for kernel in entry["kernels"]}
    assert calls["aten::_fused_adamw_"] % 2 == 0
    times = [kernel["ms"] for kernel in entry["kernels"]]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    "host, gpu, found", [(1e-4, 2e-5, 0.002), (1e-3, 2e-4, 0.02), (0.1, 2e-4, 10)]
)
def test_only_the_busy_time_of_a_gpu_counts(host, gpu, found, monkeypatch):
    """100 kernels with `host` seconds to launch and `gpu` seconds to run, one after the other.

    Launches that take 10 s in total outlast the sleep, and the wall clock counts.
    """
    ends = {"host": 0.0, "gpu": 0.0}  # the current time, and when all queued kernels end

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            self.at = max(ends.values())

        def query(self):
            return ends["host"] >= self.at

        def elapsed_time(self, other):
            return 1000 * (other.at - self.at)

    def launch(host_seconds, gpu_seconds):
        ends["host"] += host_seconds
        ends["gpu"] = max(ends.values()) + gpu_seconds

    def call():
        for _ in range(100):
            launch(host, gpu)

    def synchronize(*_):
        ends["host"] = max(ends.values())

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: launch(0, cycles / 1.8e9))
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(profiles.time, "perf_counter", lambda: ends["host"])
    cuda = torch.device("cuda", 0)
    assert profiles.measure_gpu_seconds(call, cuda) == pytest.approx(found, rel=0.02)
    assert profiles.measure_seconds(call, cuda) == pytest.approx(100 * max(host, gpu), rel=0.02)
