"""Tests of devices: peak speeds, default dtypes, time and memory of a call, random states."""

import platform
import subprocess
import sys
import types

from runtime import devices

import pytest
import torch
from conftest import ROOT


@pytest.mark.parametrize(
    "name, tflops",
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A10G", 70),
        ("NVIDIA L4", 121),
        ("Tesla V100-SXM2-16GB", 125),
        ("Tesla T4", 65),
        ("NVIDIA GeForce GTX 1080 Ti", None),
    ],
)
def test_peak_is_found_by_the_name_of_the_gpu(name, tflops):
    assert devices.peak_flops_by_name(name) == (tflops and tflops * 1e12)
    assert devices.peak_flops(torch.device("cpu"), torch.bfloat16) is None


def test_a_cpu_without_bfloat16_computes_in_float32(monkeypatch, capsys):
    """Emulation would be slower and give other digits."""
    for flags, hardware in (
        ("avx2 avx512f", False),
        ("avx512f avx512_bf16", True),
        ("amx_bf16", True),
    ):
        monkeypatch.setattr(
            devices.Path, "read_text", lambda self, *_, flags=flags: f"flags\t\t: fpu {flags}\n"
        )
        assert devices.bfloat16_in_hardware(torch.device("cpu")) == hardware
    for hardware, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        monkeypatch.setattr(
            devices, "bfloat16_in_hardware", lambda chosen, hardware=hardware: hardware
        )
        capsys.readouterr()
        assert devices.select_device("cpu", "auto")[1] == dtype
        assert "note" not in capsys.readouterr().out
        devices.select_device("cpu", "bfloat16")
        assert ("note: bfloat16 is emulated" in capsys.readouterr().out) == (not hardware)
        devices.select_device("cpu", "float16")
        assert "note: float16 is emulated" in capsys.readouterr().out


def test_random_state_is_restored():
    state = devices.random_state(torch.device("cpu"))
    first = torch.rand(3)
    torch.rand(5)
    devices.set_random_state(state, torch.device("cpu"))
    assert torch.equal(torch.rand(3), first)


def test_memory_is_counted_in_bytes():
    before = devices.peak_memory(torch.device("cpu"))
    block = torch.ones(before // 4 + 10_000_000)  # larger than the peak so far
    assert (
        before > 50e6
        and before < 4 * block.numel() < devices.peak_memory(torch.device("cpu")) < 4 * before + 1e9
    )


def test_memory_of_a_call_is_its_peak():
    """At most three of its four tensors (1,000 float32) exist at a time; `before` is old."""
    before = torch.ones(1000)

    def call():
        a = before + 1
        b = a * before
        del a
        c = b + before
        return c * b

    cpu = torch.device("cpu")
    assert devices.measure_peak_memory(lambda: None, cpu) == 0
    assert 3 * 4000 <= devices.measure_peak_memory(call, cpu) < 3 * 4000 + 200  # scalars


class Queue:
    """A simulated GPU that runs kernels one after the other, with its own clock in seconds."""

    def __init__(self):
        self.host = 0.0  # the current time
        self.free = 0.0  # when the GPU will have finished all queued kernels

    def enqueue(self, seconds):
        self.free = max(self.host, self.free) + seconds

    def launch(self, host, seconds):
        self.host += host
        self.enqueue(seconds)

    def synchronize(self, *_):
        self.host = max(self.host, self.free)

    def event(self, enable_timing):
        queue = self

        class Event:
            def record(self):
                self.at = max(queue.host, queue.free)

            def query(self):
                return queue.host >= self.at

            def elapsed_time(self, other):
                return 1000 * (other.at - self.at)

        return Event()


@pytest.mark.parametrize(
    "host, gpu, found",
    [(1e-4, 2e-5, 0.002), (1e-3, 2e-4, 0.02), (1e-4, 2e-4, 0.02), (0.1, 2e-4, 10)],
)
def test_only_the_busy_time_of_a_gpu_counts(host, gpu, found, monkeypatch):
    """100 kernels with `host` seconds to launch and `gpu` seconds to run, each.

    Launches that take 10 s in total outlast the sleep, and the wall clock counts.
    """
    queue = Queue()
    functions = {
        "_sleep": lambda cycles: queue.enqueue(cycles / 1.8e9),
        "synchronize": queue.synchronize,
        "Event": queue.event,
    }
    for name, function in functions.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(devices.time, "perf_counter", lambda: queue.host)

    def call():
        for _ in range(100):
            queue.launch(host, gpu)

    cuda = torch.device("cuda", 0)
    assert devices.measure_gpu_seconds(call, cuda) == pytest.approx(found, rel=0.02)
    assert devices.measure_seconds(call, cuda) == pytest.approx(100 * max(host, gpu), rel=0.02)


def test_processor_has_a_name():
    assert devices.cpu_name().strip()


def test_freed_memory_is_kept():
    """Allocating 64 MB causes no page faults in the end; before, 16,384 each time.

    In a new process, because the setting cannot be undone.
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
"""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("needs glibc")
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_numpy_does_not_warn_about_flushed_denormals():
    """NumPy before 2.4 warns at the first np.finfo in a process that flushes denormals."""
    code = """
import numpy
from runtime import devices
devices.select_device("cpu", "float32")
for kind in (numpy.float32, numpy.float64):
    numpy.finfo(kind)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import torch\n{code}"],
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "module, command",
    [
        (None, "train_gpt.py --pe rope"),
        ("retrieval.finetune", "python -m retrieval.finetune --pe rope"),
    ],
)
def test_command_can_be_repeated(monkeypatch, module, command):
    """module: the name that was passed to python -m, None for a program started as a file."""
    main = types.ModuleType("__main__")
    main.__spec__ = types.SimpleNamespace(name=module) if module else None
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["/somewhere/train_gpt.py", "--pe", "rope"])
    assert devices.provenance(torch.device("cpu"))["command"] == command
