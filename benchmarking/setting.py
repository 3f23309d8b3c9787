"""Benchmark setting, cases, and their timing in interleaved rounds.

seconds = interleave({"cable": case.prepare, "rope": other.prepare}, 5, device, "train")
entry = make_entry("cable", case, seconds, peak=None)
"""

import dataclasses
import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runtime import devices

import torch
from torch import Tensor
from tqdm import tqdm

import attention
import posenc
import triton_attention
import triton_attention.flex  # noqa: F401, registers the path "flex"
from benchmarking import profiles
from evaluation import bias_statistics
from model import GPT, GPTConfig

BASELINES = ("rope", "nope")  # encodings that every benchmark measures
# Endings of the names of cases that the hardware may not support: they are
# tried before they are timed, and left out if they fail.
OPTIONAL_SUFFIXES = (" triton", " all tiles", " flex", " flash", " cudnn")
# Longest context, in tokens, at which a compiled dense path is measured: each
# of its chunks is compiled separately.
DENSE_CONTEXT = 8192
SEED = 1


@dataclass
class Setting:
    """What all cases of a benchmark have in common."""

    model: str
    """size of the model"""
    micro_batch: int
    context: int
    device: torch.device
    dtype: torch.dtype
    compile: bool
    against: str | None = None
    """generate: "transformers" adds its models of the same size"""
    layers: list[bias_statistics.Layer] = dataclasses.field(default_factory=list)
    """attention: of a trained model, with their inputs; empty: an untrained one"""
    steps: int = 1
    """train: optimizer steps of a round"""
    micro_batches: int = 1
    """train: micro-batches of an optimizer step"""
    shape: dict[str, Any] = dataclasses.field(default_factory=dict)
    """settings of GPTConfig that replace those of the size, such as n_layer"""

    def build_model(self, pe: str, block_size: int, path: str = "auto") -> GPT:
        """Return a model with random weights on the device."""
        config = GPTConfig(
            size=self.model, pe=pe, block_size=block_size, attention=path, **self.shape
        )
        torch.manual_seed(SEED)
        return GPT(config).to(self.device)

    def paths(self, encoding: posenc.Encoding) -> dict[str, str]:
        """Return the attention paths to compare: suffix of the case's name -> path.

        "" is the path that `attention.resolve_path` selects. On a CPU " flash"
        is PyTorch's fused kernel. " all tiles" is the Triton path that skips no
        tiles, " flex" is FlexAttention.
        """
        automatic = attention.resolve_path("auto", encoding, self.device.type)
        paths = {"": automatic.name}
        has_bias = encoding.bias is not None
        short_enough = self.context <= DENSE_CONTEXT or not self.compile
        if automatic.fused and has_bias and short_enough:
            paths[" dense"] = "dense"
        if automatic.fused:
            paths |= self.backends() or {" flash": "sdpa/flash"}
        if self.device.type != "cuda":
            return paths
        if triton_attention.supports(encoding):
            paths[" triton"] = "triton"
            if getattr(encoding, "triton_kind", None) == "decay":
                paths[" all tiles"] = "all tiles"
        if has_bias and not attention.needs_rows(encoding) and encoding.window_size is None:
            paths[" flex"] = attention.resolve_path("flex", encoding).name
        return paths

    def backends(self) -> dict[str, str]:
        """Return the backends of PyTorch's fused kernel to pin: suffix of a name -> path."""
        if self.device.type != "cuda":
            return {}
        return {" flash": "sdpa/flash", " cudnn": "sdpa/cudnn"}

    def make_batch(self, vocab_size: int) -> tuple[Tensor, Tensor]:
        """Return random inputs and targets, (B, T) int64 each."""
        torch.manual_seed(SEED)
        shape = self.micro_batch, self.context + 1
        tokens = torch.randint(vocab_size, shape, device=self.device)
        return tokens[:, :-1], tokens[:, 1:]

    def maybe_compile(self, function: Callable) -> Callable:
        """Return the function, compiled if the setting says so."""
        return torch.compile(function) if self.compile else function


@dataclass
class BenchmarkCase:
    """One thing to time."""

    prepare: Callable[[], Callable[[], object]]
    """prepares a round, untimed, and returns the function to time"""
    tokens: int
    """tokens per round"""
    memory: Callable[[], int]
    """measures memory in bytes"""
    weights: int | None = None
    """generate: bytes of the weights"""
    flops: float | None = None
    """FLOPs per token, if defined"""
    error: Callable[[], float] | None = None
    """attention: measures the relative error of outputs and gradients"""
    left_out: Callable[[], float] | None = None
    """attention: measures the fraction of key tiles that the Triton kernels skip"""
    is_profiled: bool = False
    """whether to profile a round"""
    path: str | None = None
    """attention: value of --attention that selects what is timed"""

    def is_supported(self, name: str) -> bool:
        """Run the case once. Print the error and return False if it fails."""
        try:
            self.prepare()()
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # errors of GPU kernels surface here
            return True
        except Exception as error:  # compilers raise many types
            print(f"{name}: not supported, {' '.join(str(error).split())[:200]}")
            return False


def tensor_bytes(tensors) -> int:
    """Return the total size of tensors in bytes."""
    return sum(x.nbytes for x in tensors)


def interleave(
    prepare: dict[str, Callable[[], Callable]],
    repeats: int,
    device: torch.device,
    label: str,
    clock: Callable[[Callable, torch.device], float] = devices.measure_seconds,
    uncounted: int = 1,
) -> dict[str, list[float]]:
    """Return the seconds of `repeats` rounds by name, after `uncounted` rounds.

    prepare: functions that prepare a round, untimed, and return the function to
    time. Python's garbage collection is off.
    """
    seconds = {name: [] for name in prepare}
    gc.collect()
    gc.disable()
    total = (repeats + uncounted) * len(prepare)
    try:
        with tqdm(total=total, desc=label, unit="case", disable=None, leave=False) as bar:
            for _ in range(repeats + uncounted):
                for name, prepare_round in prepare.items():
                    seconds[name].append(clock(prepare_round(), device))
                    bar.update()
    finally:
        gc.enable()
    return {name: rounds[uncounted:] for name, rounds in seconds.items()}


def make_entry(
    name: str,
    case: BenchmarkCase,
    seconds: dict[str, list[float]],
    peak: float | None,
    device: torch.device | None = None,
) -> dict:
    """Return the numbers of one case.

    seconds: of all cases measured together. peak: FLOP/s of the device, or None
    if unknown. device: to profile a round of cases that are profiled. "others"
    has the seconds of the cases that it is compared with, "ratios" its speed
    over theirs, the median over rounds.
    """
    rate = case.tokens / statistics.median(seconds[name])
    pe = name.removesuffix(" triton").removesuffix(" all tiles")
    plain = "sdpa" if "sdpa" in seconds else "rope"
    compared = {key: key for key in (*BASELINES, "sdpa")}
    compared |= {key: f"{plain} {key}" for key in ("flash", "cudnn")}
    compared |= {key: f"{pe} {key}" for key in ("dense", "flex", "transformers")}
    others = {key: seconds[other] for key, other in compared.items() if other in seconds}
    entry = {
        "seconds": seconds[name],
        "others": others,
        "tokens": case.tokens,
        "tokens_per_second": rate,
        "ratios": {
            key: statistics.median(b / a for a, b in zip(seconds[name], other, strict=True))
            for key, other in others.items()
        },
        "mfu": rate * case.flops / peak if peak and case.flops else None,
        "memory": case.memory(),
    }
    if case.weights is not None:
        entry["weights"] = case.weights
    if case.is_profiled and device:
        entry |= profiles.profile_round(case.prepare(), device, statistics.median(seconds[name]))
    if case.error:
        entry["error"] = case.error()
    if case.left_out:
        entry["left_out"] = case.left_out()
    return entry
