"""Record the environment of a session on a GPU: driver, versions, clocks and PyTorch's backends.

    python -m benchmarking.gpu_session.environment --out runs/test_gpu/h100 cuda

Writes environment.json, first without what needs PyTorch, which may take long to import.
"""

import argparse
import csv
import io
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from runtime import devices, provenance
from runtime.files import write_json

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

FIELDS = (
    "name",
    "driver_version",
    "compute_mode",
    "persistence_mode",
    "power.limit",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "memory.total",
    "memory.used",
    "temperature.gpu",
    "utilization.gpu",
)
PACKAGES = ("torch", "triton", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "numpy", "pytest")

# Columns of q and k: the head dimension, and with those that CABLE appends in bfloat16.
COLUMNS = {"head dimension 64": 64, "cable's 72 columns": 72}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("device")
    arguments = parser.parse_args(argv)
    record = {"gpus": query_gpus(), "packages": package_versions()}
    write_json(arguments.out / "environment.json", record)
    device = torch.device(arguments.device)
    record |= provenance.provenance(device)
    record["processor"] = devices.cpu_name()
    record["backends"] = {name: chosen_backend(device, count) for name, count in COLUMNS.items()}
    if device.type == "cuda":
        record["cuda"] = torch.version.cuda
        record["cudnn"] = torch.backends.cudnn.version()
        record["capability"] = torch.cuda.get_device_capability(device)
    write_json(arguments.out / "environment.json", record)
    for gpu in record["gpus"]:
        print(", ".join(f"{name} {value}" for name, value in gpu.items()))
    for name, backend in record["backends"].items():
        print(f"scaled_dot_product_attention, {name}: {backend}")


def query_gpus() -> list[dict[str, str]]:
    """Return what nvidia-smi prints about each GPU; [] without nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, text=True, capture_output=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = csv.reader(io.StringIO(done.stdout), skipinitialspace=True)
    return [dict(zip(FIELDS, row, strict=False)) for row in rows]


def package_versions() -> dict[str, str]:
    """Return the versions of those PACKAGES that are installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def chosen_backend(device: torch.device, columns: int) -> str:
    """Return the backend that PyTorch selects for causal attention in bfloat16."""
    q = torch.zeros(1, 12, 1024, columns, device=device, dtype=torch.bfloat16, requires_grad=True)
    chosen = torch.ops.aten._fused_sdp_choice(q, q, q, is_causal=True)
    F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    return SDPBackend(chosen).name.lower().removesuffix("_attention")


if __name__ == "__main__":
    main()
