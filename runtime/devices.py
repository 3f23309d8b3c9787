"""Devices: dtype, mixed precision, random states, speed, provenance."""

import contextlib
import ctypes
import datetime
import itertools
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from errors import InputError

# Peak TFLOP/s of dense bfloat16 products (else float16) with float32 sums, from the vendors' data
# sheets.
PEAK_TFLOPS = {
    "B200": 2250,
    "H100 PCIe": 756,
    "H100 NVL": 835,
    "H100": 989,
    "H200": 989,
    "GH200": 989,
    "A100": 312,
    "A40": 150,
    "A10": 125,
    "A10G": 70,
    "L40S": 362,
    "L40": 181,
    "L4": 121,
    "A6000": 155,
    "V100": 125,
    "T4": 65,
    "RTX 5090": 209,
    "RTX 4090": 165,
    "RTX 3090": 71,
}
CPUINFO = Path("/proc/cpuinfo")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h


def select_device(
    device: str, dtype: str, local_rank: int | None = None
) -> tuple[torch.device, torch.dtype]:
    """Return the device and the dtype of matrix products; print both.

    Also configures the backends. device: auto, cpu, cuda or cuda:N.
    dtype: auto or PyTorch's name; auto is bfloat16 if in hardware, else float16 on a GPU, float32
    on a CPU. local_rank: the GPU, with several processes. Raises InputError for a device that does
    not exist.
    """
    count = torch.cuda.device_count()
    name = ("cuda" if count else "cpu") if device == "auto" else device
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if not match:
        raise InputError(f"unknown device '{device}': use auto, cpu, cuda or cuda:N")
    if name != "cpu" and (number := int(match[1] or 0)) >= count:
        raise InputError(f"--device {device}: there is no CUDA device {number}: use auto")
    selected = torch.device(name)
    if selected.type == "cuda" and local_rank is not None:
        if selected.index is not None:
            raise InputError(f"--device {device} is one GPU for all processes: use cuda")
        selected = torch.device("cuda", local_rank)
    configure_backends(selected)
    # torch has no stable function for bfloat16 of CPUs.
    has_bfloat16 = {*CPUINFO.read_text().split()} & {"avx512_bf16", "amx_bf16", "bf16"}
    if selected.type == "cuda":
        has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    in_hardware = ["bfloat16"] if has_bfloat16 else []
    in_hardware.append("float16" if selected.type == "cuda" else "float32")
    dtype = in_hardware[0] if dtype == "auto" else dtype
    print(f"device {describe(selected)}, {dtype}")
    if selected.type == "cpu" and dtype not in in_hardware:
        print(f"note: {dtype} is emulated on this CPU, up to ten times as slow: use auto")
    return selected, getattr(torch, dtype)


def configure_backends(device: torch.device) -> None:
    """Set process-wide options: denormals, TF32, memory of CPUs."""
    # Before 2.4, NumPy warns at the first call once denormals are flushed.
    np.finfo(np.float32)
    np.finfo(np.float64)
    # Denormal attention weights of steep biases slow a CPU down fourfold.
    torch.set_flush_denormal(True)
    torch.backends.cudnn.allow_tf32 = False  # in convolutions, as in products
    if device.type == "cpu" and platform.libc_ver()[0] == "glibc":
        # malloc keeps freed memory: page faults take a third of a step.
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, -1)
        mallopt(M_MMAP_MAX, 0)


def describe(device: torch.device) -> str:
    """Return the device with the GPU's name or the number of threads."""
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({torch.get_num_threads()} threads)"


def provenance(device: torch.device) -> dict:
    """Return command, commit, versions, hardware and time, for a record."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program = [Path(sys.argv[0]).name]
    if spec:  # not started as a file
        program = ["python", "-m", spec.name.removesuffix(".__main__")]
    return {
        "command": shlex.join([*program, *sys.argv[1:]]),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": describe(device),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """Return the commit, "-dirty" if files changed; None outside of git."""
    folder = Path(__file__).parent.parent
    command = ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"]
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    try:
        git = subprocess.run(command, cwd=folder, env=environment, capture_output=True)
    except OSError:
        return None
    return git.stdout.decode().strip() or None


def cpu_name() -> str:
    """Return the name of the CPU."""
    match = re.search(r"^model name\s*: (.*)", CPUINFO.read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def autocast(device: torch.device, dtype: torch.dtype):
    """Return a context with matrix products in `dtype`; none for float32."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)


def enable_determinism() -> None:
    """Make a GPU's results bitwise reproducible; call it before any work there.

    Operations without a deterministic implementation then raise an error.
    """
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    # Otherwise every new tensor is filled with NaN first, for debugging.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Return the states of torch's random numbers, on the CPU and the GPU."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    """Restore what `random_state` returned; PyTorch raises errors for others."""
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def peak_flops(name: str, dtype: torch.dtype = torch.bfloat16) -> float | None:
    """Return the peak FLOP/s of a device, or None if it is unknown.

    name: of a GPU, or from `describe`; the first key of PEAK_TFLOPS whose words are all in it
    counts.
    """
    words = {*re.split(r"[^\w]+", name)}
    found = [peak for known, peak in PEAK_TFLOPS.items() if words >= {*known.split()}]
    return 1e12 * found[0] if found and dtype != torch.float32 else None


def peak_memory(device: torch.device) -> int:
    """Return the peak bytes: of tensors on a GPU, of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in KiB on Linux


def measure_peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Return the peak bytes of the tensors that `call()` allocates."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # prints nothing
    profile = torch.autograd.profiler.profile(profile_memory=True)
    with profile:
        call()
    assert profile.kineto_results is not None  # set at the end of the block
    # torch's stub of events has no nbytes.
    changes = sorted(
        (event.start_ns(), event.nbytes())  # pyright: ignore[reportAttributeAccessIssue]
        for event in profile.kineto_results.events()
        if event.name() == "[memory]"
    )
    return max(itertools.accumulate((size for _, size in changes), initial=0))
