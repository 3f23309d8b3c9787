"""What does a program compute on, and in which precision?

device, dtype = device.choose("auto", "auto")        # prints one line that says what was chosen, and why
with device.autocast(device_, dtype): ...
"""

import contextlib
import ctypes
import itertools
import os
import platform
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from errors import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# TFLOP/s of dense products of bfloat16 (of float16 where it has none), accumulated in float32: the makers' data sheets.
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

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h


def select_device(
    device: str, dtype: str, local_rank: int | None = None
) -> tuple[torch.device, torch.dtype]:
    """device: auto, cpu, cuda or cuda:N; dtype: auto or one of DTYPES (weights stay float32, autocast does the rest).

    auto takes a GPU where there is one, and bfloat16 where the hardware computes in it: emulated on a CPU it is slower than
    float32, at worst hundreds of times. A GPU without it computes in float16. local_rank: which of several GPUs is this
    process's, where it is one of several processes. Raises InputError for a device that is not there.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"--device {device}: there is no CUDA device here: choose cpu or auto")
    try:
        chosen = torch.device(
            ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        )
    except RuntimeError:
        raise InputError(f"unknown device '{device}': choose auto, cpu, cuda or cuda:N") from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"--device {device}: there are {torch.cuda.device_count()} CUDA devices here, counted from 0"
        )
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"device '{device}' is not supported: choose auto, cpu or cuda")
    if chosen.type == "cuda" and local_rank is not None:
        if chosen.index is not None:
            raise InputError(
                f"--device {device}: several processes take a GPU each: choose cuda or auto"
            )
        chosen = torch.device("cuda", local_rank)
    for kind in (np.float32, np.float64):
        np.finfo(kind)  # NumPy before 2.4 looks for denormals once, and warns where there are none
    # Steep biases make denormal attention weights, which slow a CPU down fourfold; threads inherit this from here.
    torch.set_flush_denormal(True)
    torch.backends.cudnn.allow_tf32 = (
        False  # float32 means that, in convolutions as in matrix products
    )
    if chosen.type == "cpu":
        keep_freed_memory()
    hardware = bfloat16_in_hardware(chosen)
    name = (
        dtype
        if dtype != "auto"
        else "bfloat16"
        if hardware
        else "float16"
        if chosen.type == "cuda"
        else "float32"
    )
    why = f" ({'has' if hardware else 'has no'} bfloat16 in hardware)" if dtype == "auto" else ""
    print(f"device {describe(chosen)}, {name}{why}")
    return chosen, DTYPES[name]


def keep_freed_memory() -> None:
    """Has glibc's malloc keep what tensors free for the next ones. As it is, it gives large blocks back to the system, and a
    training step spends up to a third of its time on having them cleared again, page by page."""
    if platform.libc_ver()[0] == "glibc":
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, -1)  # give nothing back
        mallopt(M_MMAP_MAX, 0)  # nor ask the system for single blocks


def bfloat16_in_hardware(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    cpuinfo = Path(
        "/proc/cpuinfo"
    )  # the kernel's own list of features: the same under every version of torch
    if not cpuinfo.exists():
        return False
    flags = set(cpuinfo.read_text().split())
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def describe(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({torch.get_num_threads()} threads)"


def processor() -> str:
    """The name of the CPU: with the number of threads, what its speed depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        re.findall(r"^model name\s*: (.*)", cpuinfo.read_text(), re.MULTILINE)
        if cpuinfo.exists()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


def autocast(device: torch.device, dtype: torch.dtype):
    """Matrix products in dtype, the rest as torch's autocast rules say; nothing at all for float32."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)


def deterministic() -> None:
    """The same bits again from the same input, also on a GPU; an operation that cannot raises an error. Before any CUDA work."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of torch's random numbers on the CPU and, where it computes, on the GPU."""
    return {"cpu": torch.get_rng_state()} | (
        {"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {}
    )


def set_random_state(state: dict[str, torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["cpu"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """What the device could compute at most, in FLOP/s; None where that is not known."""
    if device.type != "cuda" or dtype == torch.float32:
        return None
    return named_peak(torch.cuda.get_device_name(device))


def named_peak(name: str) -> float | None:
    """PEAK_TFLOPS of a device's full name, in FLOP/s: the first entry, all of whose words it holds."""
    words = set(re.split(r"[^\w]+", name))
    return next(
        (1e12 * tflops for known, tflops in PEAK_TFLOPS.items() if words >= set(known.split())),
        None,
    )


def peak_memory(device: torch.device) -> int:
    """The most memory in use so far, in bytes: on a GPU that of tensors, on a CPU that of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Of the wall clock, until the device has done what `call()` asks of it."""
    synchronize(device)
    begun = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - begun


def busy_seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """Those that a GPU is busy with what `call()` launches: it sleeps until all of that waits in line, however long the host takes to
    launch it. Where `call()` itself waits for the GPU, and on a CPU, the same as `seconds_of`.
    """
    if device.type == "cpu":
        return seconds_of(call, device)
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for cycles in (2**25, 2**28):  # about 20 and 150 milliseconds
        synchronize(device)
        torch.cuda._sleep(cycles)
        begun.record()
        call()
        ended.record()
        in_line = not begun.query()
        synchronize(device)
        if in_line:
            break
    return begun.elapsed_time(ended) / 1000


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def memory_of(call: Callable[[], object], device: torch.device) -> int:
    """The most that tensors made during `call()` take up at a time, in bytes, beyond those that were there before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "99"
    )  # or the profiler tells on the console that it starts and stops
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        call()
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in profile.kineto_results.events()
        if event.name() == "[memory]"
    )
    return max(itertools.accumulate((size for _, size in changes), initial=0))


def largest_that_fits(attempt: Callable[[int], None], candidates: list[int]) -> int | None:
    """The largest of the ascending candidates for which `attempt` does not run out of GPU memory; None if all do."""
    low, high = -1, len(candidates)  # indices of one that fits (or none) and of one that does not
    while high - low > 1:
        middle = (low + high) // 2
        try:
            attempt(candidates[middle])
            low = middle
        except torch.OutOfMemoryError:
            high = middle
        torch.cuda.empty_cache()
    return candidates[low] if low >= 0 else None
