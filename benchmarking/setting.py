"""Benchmark setting, cases, and their timing in interleaved rounds.

cases = {"cable": case.prepare, "rope": other.prepare}
seconds = interleave(cases, 5, device, "train")
entry = make_entry("cable", case, seconds, peak=None)
"""

import gc
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

import attention
import posenc
from benchmarking.profiles import measure_seconds
from model import GPT, GPTConfig

BASELINES = ("rope", "nope")  # encodings that every benchmark measures
# Paths that are compared with that of "auto" where they support the encoding. They are tried before
# they are timed, and left out if the hardware fails.
PATHS: dict[str, tuple[str, ...]] = {"cpu": ("dense", "sdpa/flash")}
PATHS["cuda"] = (*PATHS["cpu"], "sdpa/cudnn", "triton", "flex")
# Longest context of a compiled dense path: each chunk is compiled separately.
DENSE_CONTEXT = 8192
SEED = 1


@dataclass
class Setting:
    """What all cases of a benchmark have in common."""

    model: str  # size
    micro_batch: int
    context: int
    device: torch.device
    dtype: torch.dtype
    compile: bool
    steps: int = 1  # train: optimizer steps of a round
    micro_batches: int = 1  # train: of an optimizer step
    # settings of GPTConfig that replace those of the size, such as n_layer
    shape: dict[str, Any] = field(default_factory=dict)

    def build_model(self, pe: str, block_size: int, path: str = "auto") -> GPT:
        """Return a model with random weights on the device."""
        shape = {"block_size": block_size, "attention": path, **self.shape}
        torch.manual_seed(SEED)
        model = GPT(GPTConfig(size=self.model, pe=pe, **shape)).to(self.device)
        model.choose_paths(self.device, self.dtype)
        return model

    def paths(self, encoding: posenc.Encoding) -> dict[str, str]:
        """Return the attention paths to compare: ending of a case's name -> path."""
        automatic = attention.choose_path(encoding, self.device, self.dtype).name
        others = {*PATHS[self.device.type]} - {automatic}
        if not encoding.has("bias"):
            others -= {"dense", "flex"}
        if self.compile and self.context > DENSE_CONTEXT:
            others -= {"dense"}
        names = [path for path in PATHS[self.device.type] if path in others]
        supported = [x for x in names if not attention.get_path(x).reason_against(encoding)]
        return {"": automatic} | {ending(name): name for name in supported}

    def backends(self) -> dict[str, str]:
        """Return the backends of PyTorch's fused kernel to compare on a GPU, as `paths`."""
        names = PATHS["cuda"] if self.device.type == "cuda" else ()
        return {ending(name): name for name in names if name in attention.BACKENDS}

    def make_batch(self, vocab_size: int) -> tuple[Tensor, Tensor]:
        """Return random inputs and targets, (B, T) int64 each."""
        torch.manual_seed(SEED)
        shape = self.micro_batch, self.context + 1
        tokens = torch.randint(vocab_size, shape, device=self.device)
        return tokens[:, :-1], tokens[:, 1:]

    def maybe_compile(self, function: Callable) -> Callable:
        """Return the function, compiled if the setting says so."""
        return torch.compile(function) if self.compile else function


def ending(path: str) -> str:
    """Return the ending of a case's name for a path: " flash" for "sdpa/flash"."""
    return f" {path.rpartition('/')[2]}"


@dataclass
class BenchmarkCase:
    """One thing to time.

    prepare: prepares a round, untimed, and returns the function to
    time.
    measure: returns further fields of the entry, such as memory in
        bytes, from the median of a round.
    path: attention: value of --attention that selects what is timed.
    """

    prepare: Callable[[], Callable[[], object]]
    tokens: int  # per round
    measure: Callable[[float], dict] | None = None
    flops: float | None = None  # per token, if defined
    path: str | None = None

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
    clock: Callable[[Callable, torch.device], float] = measure_seconds,
) -> dict[str, list[float]]:
    """Return the seconds of `repeats` rounds by name, after one that is not counted.

    prepare: as that of BenchmarkCase. Python's garbage collection is off.
    """
    seconds = {name: [] for name in prepare}
    gc.collect()
    gc.disable()
    total = (1 + repeats) * len(prepare)
    try:
        with tqdm(total=total, desc=label, unit="case", disable=None, leave=False) as bar:
            for _ in range(1 + repeats):
                for name, prepare_round in prepare.items():
                    seconds[name].append(clock(prepare_round(), device))
                    bar.update()
    finally:
        gc.enable()
    return {name: rounds[1:] for name, rounds in seconds.items()}


def make_entry(
    name: str, case: BenchmarkCase, seconds: dict[str, list[float]], peak: float | None
) -> dict:
    """Return the numbers of one case, from the seconds of all measured together.

    "others" has the seconds of the cases that it is compared with, "ratios" its speed over theirs,
    the median over rounds. peak: FLOP/s of the device, None if unknown.
    """
    median = statistics.median(seconds[name])
    rate = case.tokens / median
    pe = name.removesuffix(" triton")
    plain = "sdpa" if "sdpa" in seconds else "rope"
    compared = {key: key for key in (*BASELINES, "sdpa")}
    compared |= {key: f"{plain} {key}" for key in ("flash", "cudnn")}
    compared |= {key: f"{pe} {key}" for key in ("dense", "flex")}
    others = {key: seconds[other] for key, other in compared.items() if other in seconds}
    return {
        "seconds": seconds[name],
        "others": others,
        "tokens": case.tokens,
        "tokens_per_second": rate,
        "ratios": {
            key: statistics.median(b / a for a, b in zip(seconds[name], other, strict=True))
            for key, other in others.items()
        },
        "mfu": rate * case.flops / peak if peak and case.flops else None,
        **(case.measure(median) if case.measure else {}),
    }
