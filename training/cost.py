"""Cost of trainings, from their settings: parameters, tokens, FLOPs, hours and disk. Needs no GPU.

    print(describe_cost(config))  # train_gpt.py --dry_run
    cost = estimate_cost(config)  # the numbers

Hours assume 40% model FLOPs utilization (MFU).
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from runtime import cli, devices

import torch

from attention import resolve_paths
from model import GPT, GPTConfig
from text_data import recall_task
from text_data.data_loader import masked_count
from text_data.shards import Shards
from training import metrics, settings

MFU = 0.4
BYTES = 320  # padded vocabulary of prepare_text.py without flags, which writes Config.data
DEVICES = ("H100", "A100", "RTX 4090")


@dataclass
class Cost:
    """Cost of one training or evaluation. model: without memory; epochs: as in "0.5 epochs of"."""

    model: GPT
    epochs: str
    parameters: int
    steps: int
    tokens: int
    flops_per_token: float
    targets: float
    """fraction of the tokens whose logits are computed"""
    checkpoint_gb: float
    """weights and AdamW's two moments, 4 bytes each"""

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.tokens


def estimate_cost(config, vocab_size: int | None = None, use_data: bool = True) -> Cost:
    """Return the cost of a training.

    config: the `Config` of train_gpt.py. vocab_size: padded, assumed where the data does not exist;
    None: that of the default data, or GPT-2's. use_data: whether to open the data if it exists.
    Raises InputError if tokens_per_step is not a multiple of block_size, and if the data cannot be
    used.
    """
    config.sequences_per_step(1)  # raises InputError
    if use_data and Path(config.data).is_dir():
        train = settings.make_windows(config, Shards(config.data, "train", "never"))
        vocab_size = train.padded_vocab_size
        epochs = metrics.describe_epochs(config, train)
    else:
        is_default = config.data == settings.Config.data
        vocab_size = vocab_size or (BYTES if is_default else GPTConfig.vocab_size)
        state = "is not used" if Path(config.data).is_dir() else "does not exist yet"
        epochs = f"{config.data} {state}, assuming a vocabulary of {vocab_size}"
    with torch.device("meta"):  # shapes only, no memory
        model = GPT(config.gpt_config(vocab_size))
    model.attention_paths = resolve_paths(config.attention, model.posenc, "cuda")
    targets = {
        "clm": config.block_size,
        "mlm": masked_count(config.block_size, config.mask_rate),
        "recall": recall_task.TARGETS,
    }[config.objective]
    parameters = model.parameter_count()
    return Cost(
        model=model,
        epochs=epochs,
        parameters=parameters,
        steps=config.steps,
        tokens=config.steps * config.tokens_per_step,
        flops_per_token=model.flops_per_token(config.block_size, targets),
        targets=targets / config.block_size,
        checkpoint_gb=12 * parameters / 1e9,
    )


def describe_cost(config) -> str:
    """Return a text with parameters, tokens, epochs, FLOPs, hours and disk of a training run."""
    cost = estimate_cost(config)
    formula = f"{cost.flops_per_token:.3g} a token = 6 N + 12 L C T, N = {cost.parameters:,}"
    if config.objective != "clm":
        formula += f", of the logits for {cost.targets:.1%} of the tokens"
    files = 1 + config.keep_checkpoints
    lines = [
        cost.model.describe(),
        f"{cost.steps:,} steps of {config.tokens_per_step:,} tokens = {cost.tokens:,} tokens "
        f"({cost.epochs})",
        f"{cost.flops:.3g} FLOPs: {formula}",
        describe_hours(cost.flops),
        f"disk: {cost.checkpoint_gb:.2f} GB a checkpoint, {files} of them while one is written",
    ]
    return "\n".join(lines)


def hours(flops: float, device: str) -> float:
    """Return the hours of one device for these FLOPs, at 40% MFU."""
    return flops / (MFU * 1e12 * devices.PEAK_TFLOPS[device]) / 3600


def describe_hours(flops: float) -> str:
    """Return a line with the time of one and of eight devices."""
    words = [
        f"{count} {name} {format_hours(hours(flops, name) / count)}"
        for name in DEVICES
        for count in (1, 8)
    ]
    return f"time at {MFU:.0%} MFU: {', '.join(words)}"


def format_hours(value: float) -> str:
    """Return a time in hours, or in minutes or seconds below one: "2.12 h"."""
    for unit, factor in (("h", 1), ("min", 60)):
        if value * factor >= 1:
            return f"{value * factor:,.2f} {unit}"
    return f"{value * 3600:.2g} s"


def describe_costs(
    trainings: dict, evaluations: list[tuple[str, str, str, int]], vocab_size: int | None
) -> str:
    """Return a table with a line for each training and evaluation, the total, and the disk.

    trainings: {name: `Config` of train_gpt.py}; evaluations: (name, name of the training, context
    lengths, tokens at each); vocab_size: as in `estimate_cost`.
    """
    costs, gigabytes = {}, 0.0
    for name, config in trainings.items():
        exists = Path(config.data).is_dir()
        costs[name] = estimate_cost(config, vocab_size, use_data=exists)
        gigabytes += costs[name].checkpoint_gb * (1 + config.keep_checkpoints)
    for name, trained, text, tokens in evaluations:
        training, lengths = costs[trained], cli.parse_lengths(text, trainings[trained].block_size)
        forward = [training.model.flops_per_token(length) / 3 for length in lengths]
        costs[name] = dataclasses.replace(
            training, tokens=tokens * len(lengths), flops_per_token=sum(forward) / len(lengths)
        )
    lines = [f"{'parameters':>13} {'tokens':>15} {'FLOPs':>8} {'H100 hours':>10}  job"]
    for name, cost in costs.items():
        time = hours(cost.flops, "H100")
        shown = f"{time:,.2f}" if time >= 0.01 else "<0.01"
        lines.append(
            f"{cost.parameters:>13,} {cost.tokens:>15,} {cost.flops:>8.2g} {shown:>10}  {name}"
        )
    flops = sum(cost.flops for cost in costs.values())
    lines += [f"total of {len(trainings)} trainings: {flops:.3g} FLOPs", describe_hours(flops)]
    return "\n".join([*lines, f"disk: {gigabytes:,.1f} GB of checkpoints"])
