"""Profile three training steps: the kernels that take the most time, and the time of each group.

    python -m benchmarking.kernel_times --model small --micro_batch 32 --pe rope --out trace.json

Groups of kernels are recognized by their names. wall_ms is the time of the fastest of three steps,
busy_ms the sum of a step's kernels: in the rest of the time the GPU waits for the host. On a CPU,
operators take the place of kernels.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from runtime import cli, devices
from runtime.files import write_json
from runtime.provenance import provenance

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarking.cases import train_case
from benchmarking.setting import Setting
from training.attention_path import Name

STEPS = 3
WARMUP = 3  # steps before, which compile
TOP = 30
OTHER = "other"
GROUPS = {  # group -> pattern of kernels' names; the first that matches counts
    "attention": r"flash|fmha|sdpa|scaled_dot_product|attention_|cudnn_generated",
    "products": r"gemm|nvjet|cutlass|cublas|\bmm\b|addmm|bmm|_mm_",
    "optimizer": r"multi_tensor|adam|foreach|lpnorm",
    "elementwise": r"triton_|elementwise|reduce|softmax|scan|copy|cat|embedding|index|norm"
    r"|mul|add|sum|gelu|gather|scatter|fill",
}


@dataclass
class Config:
    """Settings of a profile."""

    model: str = "small"
    """size of the model"""
    pe: str = "rope"
    """positional encoding"""
    micro_batch: int = cli.limited(32, 1, 10**9)
    """sequences per step"""
    context: int = cli.limited(1024, 1, 10**8)
    """tokens per sequence"""
    attention: Name = "auto"
    """attention path; auto: sdpa where it applies, else dense"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    compile: bool | None = None
    """torch.compile; null: on GPUs only"""
    out: str = "trace.json"
    """JSON file to write"""


def kernel_group(name: str) -> str:
    """Return the group of a kernel."""
    matches = (group for group in GROUPS if re.search(GROUPS[group], name, re.IGNORECASE))
    return next(matches, OTHER)


def profile_steps(step, device: torch.device) -> dict:
    """Return the top kernels and the milliseconds of each group, per call of `step()`."""
    is_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU
    kind = "CUDA" if is_gpu else "CPU"
    with profile(activities=[activity]) as profiled:
        for _ in range(STEPS):
            step()
        devices.synchronize(device)
    groups = dict.fromkeys((*GROUPS, OTHER), 0.0)
    kernels = []
    for event in profiled.key_averages():
        time = event.self_device_time_total if is_gpu else event.self_cpu_time_total
        if event.device_type.name == kind and time > 0:
            ms, group = time / 1000 / STEPS, kernel_group(event.key)
            groups[group] += ms
            calls = event.count / STEPS
            kernels.append({"name": event.key[:200], "group": group, "calls": calls, "ms": ms})
    top = sorted(kernels, key=lambda kernel: -kernel["ms"])[:TOP]
    return {"busy_ms": sum(groups.values()), "groups_ms": groups, "kernels": top}


def main(argv: list[str] | None = None) -> None:
    config = cli.parse(Config, argv, __doc__)
    device, dtype = devices.select_device(config.device, "auto")
    setting = Setting(
        model=config.model,
        micro_batch=config.micro_batch,
        context=config.context,
        device=device,
        dtype=dtype,
        compile=devices.uses_compile(config.compile, device),
    )
    model = setting.build_model(config.pe, config.context, config.attention)
    step = train_case(setting, model).prepare()
    for _ in range(WARMUP):
        step()
    seconds = [devices.measure_seconds(step, device) for _ in range(STEPS)]
    record = provenance(device)
    record |= {"model": config.model, "pe": config.pe, "attention_path": config.attention}
    record |= {"micro_batch": config.micro_batch, "context": config.context}
    record["wall_ms"] = 1000 * min(seconds)
    record |= profile_steps(step, device)
    write_json(Path(config.out), record)
    print(f"a step takes {record['wall_ms']:.1f} ms, its kernels {record['busy_ms']:.1f} ms")
    for group, milliseconds in record["groups_ms"].items():
        print(f"{group:12} {milliseconds:8.2f} ms")
    for kernel in record["kernels"][:10]:
        print(f"{kernel['ms']:8.2f} ms {kernel['calls']:6.0f} calls  {kernel['name'][:100]}")


if __name__ == "__main__":
    cli.run(main)
