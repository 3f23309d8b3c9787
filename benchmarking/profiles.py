"""Time of a call, and its profile: where the time goes, and the longest kernels.

Kernels belong to a group by their name. "waiting" is the rest of the wall time, in which the device
waits for the host. On a CPU, operators take the place of kernels, and the profiled round is slower
than others.
"""

import re
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

TOP = 20
OTHER, WAITING = "elementwise", "waiting"  # all kernels that no pattern matches; the rest
GROUPS = {  # group -> pattern of kernels' names; the first that matches counts
    "attention": r"flash|fmha|sdpa|scaled_dot_product|attention_|cudnn_generated",
    "products": r"gemm|nvjet|cutlass|cublas|\bmm\b|addmm|bmm|_mm_",
    "optimizer": r"multi_tensor|adam|foreach|lpnorm",
}


def measure_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of `call()`, until the device has finished."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def measure_gpu_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds for which a GPU is busy with what `call()` launches.

    The GPU sleeps until all kernels are queued: slow launches do not count. On a CPU, or if
    `call()` waits for the GPU, this is `measure_seconds`.
    """
    if device.type == "cpu":
        return measure_seconds(call, device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for cycles in (2**25, 2**28):  # about 20 and 150 milliseconds
        synchronize(device)
        torch.cuda._sleep(cycles)
        start.record()
        call()
        end.record()
        all_queued = not start.query()
        synchronize(device)
        if all_queued:
            break
    return start.elapsed_time(end) / 1000


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def kernel_group(name: str) -> str:
    """Return the group of a kernel."""
    matches = (group for group in GROUPS if re.search(GROUPS[group], name, re.IGNORECASE))
    return next(matches, OTHER)


def profile_round(call: Callable[[], object], device: torch.device, seconds: float) -> dict:
    """Return the fractions of the time of `call()` by group, and the longest kernels with ms.

    seconds: wall time of a call that is not profiled, which counts on a GPU.
    """
    is_gpu = device.type == "cuda"
    kind = "CUDA" if is_gpu else "CPU"
    with profile(activities=[getattr(ProfilerActivity, kind)]) as profiled:
        wall = measure_seconds(call, device)
    milliseconds = 1000 * (seconds if is_gpu else wall)
    groups = dict.fromkeys((*GROUPS, OTHER), 0.0)
    kernels = []
    for event in profiled.key_averages():
        spent = (event.self_device_time_total if is_gpu else event.self_cpu_time_total) / 1000
        if event.device_type.name == kind and spent > 0:
            groups[kernel_group(event.key)] += spent
            kernels.append({"name": event.key[:200], "calls": event.count, "ms": spent})
    groups[WAITING] = max(0.0, milliseconds - sum(groups.values()))
    total = sum(groups.values())
    kernels.sort(key=lambda kernel: -kernel["ms"])
    fractions = {group: ms / total for group, ms in groups.items()}
    return {"time": fractions, "kernels": kernels[:TOP]}
