"""Roofline of a training step of GPT-2 on an H100: estimated milliseconds of each part.

    python -m benchmarking.roofline

An estimate from formulas, not a measurement. Time of a part: the larger of FLOPs / peak speed and
bytes / memory bandwidth. "attainable" divides both peaks by the fractions that real kernels reach
(--products, --attention, --memory). Launches that the GPU waits for are not included.

N tokens, L layers, C width, T context, V vocabulary size, P parameters; bfloat16 with float32
weights. FLOPs and bytes of forward and backward pass:

    blocks: matrix products     72 C^2 L N FLOPs     96 C L N bytes: inputs, outputs, gradients
    attention                    7 C T L N FLOPs     24 C L N bytes; causal, scores recomputed once
    blocks: elementwise                             134 C L N bytes: norms, GELU, residuals, biases
    rope: rotation                                   16 C L N bytes: reads and writes q, k
    cable: gates and columns                         31 C L N bytes, and 72/64 of attention's
    loss: matrix products        6 C V N FLOPs        6 V N bytes: writes logits, reads gradient
    loss: softmax                                     6 V N bytes: reads logits twice, writes once
    embedding, last norm                             40 C N + 12 C V bytes
    casts of weights, gradients                      12 P bytes
    AdamW, gradient norm                             40 P bytes
"""

from dataclasses import dataclass

from runtime import cli, devices

import torch

from errors import InputError
from model import GPT, GPTConfig

GPU = "H100"
BANDWIDTH = 3.35e12  # bytes/s of an H100 SXM's HBM3, from the data sheet
MICRO_BATCHES = {"small": 32, "medium": 16}  # as scripts/test_gpu.sh measures
AIMS = {"small": 450_000, "medium": 185_000}  # tokens/s of rope on one H100
# Parts of a step -> groups of kernels that a trace can tell apart.
PRODUCTS, ATTENTION, ELEMENTWISE, OPTIMIZER = "products", "attention", "elementwise", "optimizer"


@dataclass
class Config:
    """Settings of the estimate."""

    context: int = cli.limited(1024, 1, 10**8)
    """tokens per sequence"""
    products: float = 0.7
    """attainable fraction of the peak speed in matrix products (assumed)"""
    attention: float = 0.35
    """the same in attention (FlashAttention-2 on an H100, FlashAttention-3 paper, abstract)"""
    memory: float = 0.85
    """attainable fraction of the memory bandwidth (assumed)"""

    def __post_init__(self):
        problems = []
        for name in ("products", "attention", "memory"):
            if not 0 < getattr(self, name) <= 1:
                problems.append(f"{name} is {getattr(self, name)}: use a fraction above 0, up to 1")
        if problems:
            raise InputError(*problems)


@dataclass(frozen=True)
class Work:
    """What a part of a training step computes and moves."""

    part: str
    group: str
    flops: float
    bytes: float

    def milliseconds(self, speed: float = 1.0, bandwidth: float = 1.0) -> float:
        """Return the estimated time, at fractions of the peak speed and of the bandwidth."""
        peak = 1e12 * devices.PEAK_TFLOPS[GPU]
        seconds = max(self.flops / (speed * peak), self.bytes / (bandwidth * BANDWIDTH))
        return 1000 * seconds


def step_work(size: str, pe: str, micro_batch: int, context: int = 1024) -> list[Work]:
    """Return the parts of a training step. pe: rope or cable, on PyTorch's fused kernel."""
    config = GPTConfig(size=size, pe=pe, block_size=context)
    with torch.device("meta"):  # shapes only, no memory
        parameters = GPT(config).parameter_count()
    tokens, C, V = micro_batch * context, config.n_embd, config.vocab_size
    layers = config.n_layer * tokens * C
    encoding = {
        "rope": Work("rope: rotation", ELEMENTWISE, 0, 16 * layers),
        "cable": Work("cable: gates and columns", ELEMENTWISE, 0, 31 * layers),
    }
    columns = 72 / 64 if pe == "cable" else 1.0
    return [
        Work("blocks: matrix products", PRODUCTS, 72 * C * layers, 96 * layers),
        Work("attention", ATTENTION, 7 * context * layers * columns, 24 * layers * columns),
        Work("blocks: elementwise", ELEMENTWISE, 0, 134 * layers),
        encoding[pe],
        Work("loss: matrix products", PRODUCTS, 6 * C * V * tokens, 6 * V * tokens),
        Work("loss: softmax", ELEMENTWISE, 0, 6 * V * tokens),
        Work("embedding, last norm", ELEMENTWISE, 0, 40 * C * tokens + 12 * C * V),
        Work("casts of weights, gradients", ELEMENTWISE, 0, 12 * parameters),
        Work("AdamW, gradient norm", OPTIMIZER, 0, 40 * parameters),
    ]


def attainable(work: Work, config: Config) -> float:
    """Return the estimated milliseconds of a part with the attainable fractions."""
    speed = config.attention if work.group == ATTENTION else config.products
    return work.milliseconds(speed, config.memory)


def group_milliseconds(size: str, pe: str, micro_batch: int, config: Config) -> dict[str, float]:
    """Return the attainable milliseconds of a step by group of kernels."""
    totals: dict[str, float] = dict.fromkeys((PRODUCTS, ATTENTION, ELEMENTWISE, OPTIMIZER), 0.0)
    for work in step_work(size, pe, micro_batch, config.context):
        totals[work.group] += attainable(work, config)
    return totals


def table(config: Config) -> list[str]:
    """Return a Markdown table: the parts of a step with rope, and what cable has instead."""
    header, parts, totals, speeds, aims = [], {}, {}, {}, []
    for size, micro_batch in MICRO_BATCHES.items():
        tokens = micro_batch * config.context
        header += [f"{size}, peak", f"{size}, attainable"]
        for pe in ("rope", "cable"):
            works = step_work(size, pe, micro_batch, config.context)
            times = [(work.milliseconds(), attainable(work, config)) for work in works]
            for work, pair in zip(works, times, strict=True):
                if pe == "rope" or work.part.startswith("cable"):
                    parts.setdefault(work.part, []).extend(f"{time:.1f}" for time in pair)
            sums = [sum(column) for column in zip(*times, strict=True)]
            totals.setdefault(pe, []).extend(f"{time:.1f}" for time in sums)
            speeds.setdefault(pe, []).extend(f"{1000 * tokens / time:,.0f}" for time in sums)
        aims += ["", f"{1000 * tokens / AIMS[size]:.1f} ({AIMS[size]:,})"]
    rows = {
        "milliseconds of a step": header,
        "---": ["---:"] * len(header),
        **parts,
        **{f"total with `{pe}`": values for pe, values in totals.items()},
        "aim with `rope` (tokens/s)": aims,
        **{f"tokens/s with `{pe}`": values for pe, values in speeds.items()},
    }
    return [f"| {name} | {' | '.join(values)} |" for name, values in rows.items()]


def main(argv: list[str] | None = None) -> None:
    config = cli.parse(Config, argv, __doc__)
    print("\n".join(table(config)))


if __name__ == "__main__":
    cli.run(main)
