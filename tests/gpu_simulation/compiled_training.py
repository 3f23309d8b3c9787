"""Compiled trainings on the simulated H100: attention operators, layouts and compilations.

    cd tests/gpu_simulation
    bash simulate_gpu.sh python compiled_training.py --encodings cable,t5
    bash simulate_gpu.sh python compiled_training.py --out ../../results/bench/simulated/training.md

Trains every encoding with train_gpt.py in bf16: two layers of four heads of 64, 256 tokens, three
steps of two micro-batches. The attention path is sdpa if the encoding has it, else triton and
dense, whichever it has. Encodings with equal results share a row of the table. Nothing is computed,
and no GPU is measured. Exit status 1: a graph was compiled twice or has a break.
Cost: about 10 minutes on two cores, without --encodings.
"""

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when this file runs as a program

from runtime import cli  # noqa: E402
from runtime.files import atomic  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import attention  # noqa: E402
import posenc  # noqa: E402
import train_gpt  # noqa: E402
from errors import InputError  # noqa: E402
from reporting.formatting import Table  # noqa: E402

HEADS, HEAD_DIM, BLOCK_SIZE, LAYERS = 4, 64, 256, 2
STEPS = 3  # kernels are tuned in the first; the launches of the last are counted
FLAGS = (
    f"--size quickstart --n_layer {LAYERS} --n_head {HEADS} --n_embd {HEADS * HEAD_DIM} "
    f"--block_size {BLOCK_SIZE} --micro_batch 2 --tokens_per_step {4 * BLOCK_SIZE} "
    f"--steps {STEPS} --val_tokens {BLOCK_SIZE} --device cuda --dtype bfloat16"
)
SETTINGS = f"{LAYERS} layers, {HEADS} heads of {HEAD_DIM}, {BLOCK_SIZE} tokens, bfloat16"
HEADER = [
    "encodings",
    "path",
    "operators",
    "head dimension",
    "q, k, v",
    "in backward",
    "graphs",
    "breaks",
    "recompilations",
    "copies",
]
MESSAGES = {  # how a message of TORCH_LOGS starts
    "breaks": "[__graph_breaks] Graph break",
    "recompilations": "[__recompiles] Recompiling function",
}


@dataclass(frozen=True)
class Training:
    """What one compiled training did: the columns of the table after its encodings."""

    path: str
    operators: str
    """attention operators that a step calls; "-": its products are compiled like others"""
    head_dim: str
    forward: str
    """layouts of q, k and v"""
    backward: str
    """layouts of q, k, v and the output in backward, and of their gradients"""
    graphs: int
    """graphs that were compiled: one for all blocks, one for the loss"""
    breaks: int
    recompilations: int
    copies: int
    """kernels that copy a tensor by PyTorch in one step"""

    def has_problem(self) -> bool:
        return self.graphs != 2 or self.breaks > 0 or self.recompilations > 0


class AttentionCalls(TorchDispatchMode):
    """Records the attention operators of compiled code, with the layouts of their tensors."""

    def __init__(self):
        super().__init__()
        self.operators, self.head_dims = {}, {}  # ordered sets, as dicts
        self.forward, self.backward = {}, {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # otherwise PyTorch would not compile

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        results = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        if "attention" in name:
            self.operators[name.removeprefix("_scaled_dot_product_")] = None
            self.head_dims[str(args[0].size(-1))] = None
            if "backward" in name:
                self._add(self.backward, (*args, *results))
            else:
                self._add(self.forward, args)
        return results

    def _add(self, layouts: dict, tensors: Iterable) -> None:
        for x in tensors:
            is_tensor = isinstance(x, torch.Tensor) and x.dim() >= 4
            if is_tensor and x.numel() and x.size(-1) > 1:  # not statistics of rows
                layouts[layout(x)] = None


def layout(x: torch.Tensor) -> str:
    """Return the order of a tensor's dimensions in memory; x: (B, H, T, D) or (B, T, 3, H, D)."""
    if x.dim() == 5:
        return "(B, T, 3, H, D)" if x.is_contiguous() else f"strides {x.stride()}"
    _, H, T, D = x.shape
    if x.transpose(1, 2).is_contiguous():
        return "(B, T, H, D)"
    if x.is_contiguous():
        return "(B, H, T, D)"
    if x.stride() == (3 * T * H * D, D, 3 * H * D, 1):
        return "slice of (B, T, 3, H, D)"
    return f"strides {x.stride()}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encodings", metavar="NAMES", help="comma-separated; default: all")
    parser.add_argument("--out", metavar="FILE", help="write the table to this Markdown file")
    options = parser.parse_args(argv)
    names = options.encodings.split(",") if options.encodings else sorted(posenc.ENCODINGS)
    trainings: dict[Training, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        enable_logs(scratch)
        write_data(scratch)
        for pe in names:
            for path in paths(pe):
                training = train(pe, path, scratch)
                print(pe, *astuple(training), sep=" | ", flush=True)
                trainings.setdefault(training, []).append(pe)
    table = format_table(trainings)
    print(table)
    if options.out:
        with atomic(options.out) as file:
            file.write(f"{table}\n".encode())
    if any(training.has_problem() for training in trainings):
        sys.exit(1)


def enable_logs(scratch: Path) -> None:
    """Log launches, recompilations and graph breaks to files in `scratch`.

    The simulated driver reads its variable at the first launch.
    """
    os.environ["LAUNCHES"] = str(scratch / "launches.txt")
    os.environ["TORCH_LOGS_OUT"] = str(scratch / "messages.txt")
    torch._logging.set_logs(recompiles=True, graph_breaks=True)


def write_data(scratch: Path) -> None:
    """Write shards of one repeated token: what the tokens are does not matter."""
    for split in ("train", "val"):
        np.ones(16 * BLOCK_SIZE * STEPS, "u2").tofile(scratch / f"{split}.bin")


def paths(pe: str) -> list[str]:
    """Return the attention paths to train an encoding with."""
    encodings = posenc.build(pe, HEADS, HEADS * HEAD_DIM, BLOCK_SIZE, LAYERS)
    found = []
    for path in ("sdpa", "triton", "dense"):
        with contextlib.suppress(InputError):
            found.append(attention.resolve_paths(path, encodings))
    return found[:1] if "sdpa" in found else found


def train(pe: str, path: str, scratch: Path) -> Training:
    """Train one encoding and return what was recorded."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    launches, messages = scratch / "launches.txt", scratch / "messages.txt"
    skipped = size(messages)
    calls, starts = AttentionCalls(), []

    class RecordedTrainer(train_gpt.Trainer):
        def train_step(self):
            starts.append(size(launches))
            with calls:
                super().train_step()
            starts.append(size(launches))

    trainer, train_gpt.Trainer = train_gpt.Trainer, RecordedTrainer
    flags = ["--data", scratch, "--out_dir", scratch / f"{pe}-{path}"]
    flags += ["--pe", pe, "--attention", path]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            train_gpt.main([*FLAGS.split(), *map(str, flags)])
    finally:
        train_gpt.Trainer = trainer
    last_step = launches.read_bytes()[starts[-2] : starts[-1]].decode()
    text = messages.read_bytes()[skipped:].decode() if messages.exists() else ""
    return Training(
        path,
        *(", ".join(found) or "–" for found in (calls.operators, calls.head_dims)),
        *(", ".join(sorted(found)) or "–" for found in (calls.forward, calls.backward)),
        graphs=torch._dynamo.utils.counters["stats"]["unique_graphs"],
        **count_messages(text),
        copies=len(re.findall("direct_copy", last_step)),
    )


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def count_messages(text: str) -> dict[str, int]:
    """Return the numbers of graph breaks and recompilations that PyTorch logged."""
    return {name: text.count(start) for name, start in MESSAGES.items()}


def format_table(trainings: dict[Training, list[str]]) -> str:
    """Return the Markdown table with its caption; trainings: encodings by their result."""
    rows = [[", ".join(names), *map(str, astuple(x))] for x, names in trainings.items()]
    rows.sort(key=lambda row: (row[1:], row[0]))
    cudnn = torch.backends.cudnn.version() or 0
    major, minor = divmod(cudnn // 100, 100)
    versions = f"PyTorch {torch.__version__}, Triton {version('triton')}, cuDNN {major}.{minor}"
    caption = (
        f"Compiled trainings on a simulated H100, which computes nothing: {SETTINGS}, {STEPS} "
        f"steps of 2 micro-batches. {versions}. Layouts are orders in memory; copies: launches of "
        "PyTorch's copy kernel in one step."
    )
    return f"{Table([HEADER, *rows]).markdown()}\n\n{caption}"


if __name__ == "__main__":
    cli.run(main)
