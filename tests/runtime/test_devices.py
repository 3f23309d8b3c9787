"""Tests of devices: peak speeds, default dtypes, memory of a call, provenance."""

import platform
import subprocess
import sys
import types

from runtime import devices

import pytest
import torch
from conftest import ROOT

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "name, tflops",
    [
        ("cuda:1 (NVIDIA H100 80GB HBM3)", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A10G", 70),
        ("NVIDIA GeForce GTX 1080 Ti", None),
        (devices.describe(CPU), None),
    ],
)
def test_peak_is_found_by_the_name_of_the_gpu(name, tflops):
    assert devices.peak_flops(name) == (tflops and tflops * 1e12)
    assert devices.peak_flops(name, torch.float32) is None


def test_a_cpu_without_bfloat16_computes_in_float32(monkeypatch, capsys):
    """Emulation would be slower and give other digits."""
    for flags, dtype in (
        ("avx2 avx512f", torch.float32),
        ("avx512f avx512_bf16", torch.bfloat16),
        ("amx_bf16", torch.bfloat16),
    ):
        text = f"flags\t\t: fpu {flags}\n"
        monkeypatch.setattr(devices.Path, "read_text", lambda self, *_, text=text: text)
        assert devices.select_device("cpu", "auto")[1] == dtype
        assert "note" not in capsys.readouterr().out
        devices.select_device("cpu", "bfloat16")
        is_emulated = "note: bfloat16 is emulated" in capsys.readouterr().out
        assert is_emulated == (dtype == torch.float32)
        devices.select_device("cpu", "float16")
        assert "note: float16 is emulated" in capsys.readouterr().out


def test_memory_is_counted_in_bytes():
    before = devices.peak_memory(CPU)
    block = torch.ones(before // 4 + 10_000_000)  # larger than the peak so far
    assert 50e6 < before < 4 * block.numel() < devices.peak_memory(CPU) < 4 * before + 1e9


def test_memory_of_a_call_is_its_peak():
    """At most three of its four tensors (1,000 float32) exist at a time; `before` is old."""
    before = torch.ones(1000)

    def call():
        a = before + 1
        b = a * before
        del a
        c = b + before
        return c * b

    assert devices.measure_peak_memory(lambda: None, CPU) == 0
    assert 3 * 4000 <= devices.measure_peak_memory(call, CPU) < 3 * 4000 + 200  # scalars


def test_freed_memory_is_kept_and_numpy_does_not_warn():
    """Allocating 64 MB causes no page faults in the end; before, 16,384 each time.

    NumPy before 2.4 warns at the first np.finfo in a process that flushes denormals.
    """
    code = """
import resource, torch
from runtime import devices

def last_faults():
    for again in range(20):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

not_kept = last_faults()
devices.configure_backends(torch.device('cpu'))
assert last_faults() < 1000 < not_kept
for kind in (devices.np.float32, devices.np.float64):
    devices.np.finfo(kind)
"""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("needs glibc")
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, check=True)


def test_command_can_be_repeated(monkeypatch):
    """Of a program that was started as a file, and one by python -m."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["/somewhere/train_gpt.py", "--pe", "rope"])
    assert devices.provenance(CPU)["command"] == "train_gpt.py --pe rope"
    main.__spec__ = types.SimpleNamespace(name="retrieval.finetune")
    assert devices.provenance(CPU)["command"] == "python -m retrieval.finetune --pe rope"
