"""What does a program compute on, and in which precision?

    device, dtype = device.choose("auto", "auto")        # prints one line that says what was chosen, and why
    with device.autocast(device_, dtype): ...
"""

import contextlib
from pathlib import Path

import torch

from errors import InputError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose(device: str, dtype: str) -> tuple[torch.device, torch.dtype]:
    """device: auto, cpu, cuda or cuda:N; dtype: auto, float32 or bfloat16 (weights stay float32, autocast does the rest).

    auto takes a GPU where there is one, and bfloat16 where the hardware computes in it: emulated on a CPU it is slower than
    float32, at worst hundreds of times. Raises InputError for a device that is not there.
    """
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InputError(f"--device {device}: there is no CUDA device here: choose cpu or auto")
    try:
        chosen = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    except RuntimeError:
        raise InputError(f"unknown device '{device}': choose auto, cpu, cuda or cuda:N") from None
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device {device}: there are {torch.cuda.device_count()} CUDA devices here, counted from 0")
    if chosen.type not in ("cpu", "cuda"):
        raise InputError(f"device '{device}' is not supported: choose auto, cpu or cuda")
    # Steep biases make denormal attention weights, which slow a CPU down fourfold; threads inherit this from here.
    torch.set_flush_denormal(True)
    hardware = bfloat16_in_hardware(chosen)
    name = ("bfloat16" if hardware else "float32") if dtype == "auto" else dtype
    why = f"{'has' if hardware else 'has no'} bfloat16 in hardware"
    print(f"device {describe(chosen)}, {name} ({why})" if dtype == "auto" else f"device {describe(chosen)}, {name}")
    return chosen, DTYPES[name]


def bfloat16_in_hardware(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    cpuinfo = Path("/proc/cpuinfo")  # the kernel's own list of features: the same under every version of torch
    if not cpuinfo.exists():
        return False
    flags = set(cpuinfo.read_text().split())
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def describe(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"
    return f"cpu ({torch.get_num_threads()} threads)"


def autocast(device: torch.device, dtype: torch.dtype):
    """Matrix products in dtype, the rest as torch's autocast rules say; nothing at all for float32."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)
