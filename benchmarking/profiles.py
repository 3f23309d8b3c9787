"""Profile of a round: where its time goes, and the longest kernels.

Kernels belong to a group by their name. "waiting" is the rest of the wall time,
in which the device waits for the host. On a CPU, operators take the place of
kernels, and the profiled round is slower than others.
"""

import re
from collections.abc import Callable

from runtime import devices

import torch
from torch.profiler import ProfilerActivity, profile

TOP = 20
OTHER, WAITING = "elementwise", "waiting"  # all kernels that no pattern matches; the rest
GROUPS = {  # group -> pattern of kernels' names; the first that matches counts
    "attention": r"flash|fmha|sdpa|scaled_dot_product|attention_|cudnn_generated",
    "products": r"gemm|nvjet|cutlass|cublas|\bmm\b|addmm|bmm|_mm_",
    "optimizer": r"multi_tensor|adam|foreach|lpnorm",
}


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
        wall = devices.measure_seconds(call, device)
    milliseconds = 1000 * (seconds if is_gpu else wall)
    groups = dict.fromkeys((*GROUPS, OTHER), 0.0)
    kernels = []
    for event in profiled.key_averages():
        time = (event.self_device_time_total if is_gpu else event.self_cpu_time_total) / 1000
        if event.device_type.name == kind and time > 0:
            groups[kernel_group(event.key)] += time
            kernels.append({"name": event.key[:200], "calls": event.count, "ms": time})
    groups[WAITING] = max(0.0, milliseconds - sum(groups.values()))
    total = sum(groups.values())
    kernels.sort(key=lambda kernel: -kernel["ms"])
    time = {group: ms / total for group, ms in groups.items()}
    return {"time": time, "kernels": kernels[:TOP]}
