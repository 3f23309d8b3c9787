"""How far back does a prediction reach?

    python eval_receptive_field.py runs/quickstart/cable runs/quickstart/rope
    python eval_receptive_field.py runs/medium/* --lengths 1x,4x --windows 500

The cumulative normalized gradient of Chi et al. 2023, section 5.1: of the gradient of the last token's loss, which share belongs to the
embeddings of the n tokens before it? Each token's is the norm of its gradient over the sum of all. The receptive field is the smallest n
that holds more than 99%: by that paper a model reads texts longer than in training well where its training length covers that, and its
perplexity grows where it does not.

Unlike what a bias shuts out (`train_gpt.py` logs it), it counts what reaches the prediction by way of other tokens, layer by layer; unlike
recall (eval_recall.py), it does not ask whether that is of any use. All in float32: in bf16 the fused kernel's gradient of a gate's sum
is rounded by an amount that spreads over the whole text, and a field of 23 tokens (`fox`, 1,024 of context) became one of 440.

The texts are windows of the longest context, evenly spaced over the
split, and all contexts end with the same token. Every checkpoint gets a JSON record beside it, renewed after each length; lengths that it
holds already are not computed again.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from errors import InputError
from model import GPT
from evaluation.records import record_identity, record_path, shards_for_run, update_record
from reporting import tables
from runtime import cli, devices
from runtime.checkpoints import load_checkpoint
from runtime.loading import load_model
from text_data.data_loader import BATCH_TOKENS, Windows, evenly_spaced

HELD = 0.99  # the share of the gradient that the receptive field holds: the paper's
STEPS = 4  # of the recorded curve, to each doubling of n


@dataclass
class Config:
    """Settings of an evaluation."""

    runs: list[str] = field(default_factory=list)
    """folders of runs, or checkpoints"""
    data: str | None = None
    """folder of the shards; null: the one that the run was trained on"""
    split: str = "val"
    """which split of it"""
    lengths: str = "1x,2x,4x"
    """contexts in tokens, separated by commas; 1x,2x,... are multiples of the training length"""
    windows: int = 100
    """predictions, each of a window of its own; fewer where the split has no more"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    attention: Literal["auto", "sdpa", "dense", "triton"] = "auto"
    """how attention is computed (attention.py)"""

    def __post_init__(self):
        problems = cli.check_minimums(self, windows=2)
        if problems:
            raise InputError(*problems)


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("runs", "folders of runs, or checkpoints")
    )
    if not config.runs:
        raise InputError("no run named: python eval_receptive_field.py runs/NAME ...")
    device, _ = devices.select_device(config.device, "float32")
    plans = [
        plan(run, config) for run in config.runs
    ]  # all can be carried out, or nothing is computed
    records = [evaluate(run, *asked, config, device) for run, asked in zip(config.runs, plans)]
    print(f"\n{tables.summary(records)}")


def plan(run: str, config: Config) -> tuple[list[int], Windows, np.ndarray]:
    """What a checkpoint is asked: the lengths, the windows of the text, and the numbers of those that are taken."""
    checkpoint = load_checkpoint(run, causal=True, weights=False)
    lengths = cli.parse_lengths(config.lengths, checkpoint["gpt"]["block_size"])
    windows = Windows(shards_for_run(run, checkpoint, config.data, config.split), lengths[-1])
    numbers = evenly_spaced(len(windows), config.windows)
    if len(numbers) < 2:
        raise InputError(
            f"{windows.shards.folder} ({config.split}) has text for a single window of {windows.length:,} tokens, of two that "
            "it takes: lower --lengths"
        )
    return lengths, windows, numbers


def evaluate(
    run: str,
    lengths: list[int],
    windows: Windows,
    numbers: np.ndarray,
    config: Config,
    device: torch.device,
) -> dict:
    """The record of one checkpoint, with every length asked for."""
    model, checkpoint = load_model(run, device, attention=config.attention)
    model.requires_grad_(False)
    model.activation_checkpointing = True  # the memory of one layer, however long the text
    shards = windows.shards
    path = record_path(
        run,
        "eval",
        "receptive-field",
        shards.meta["dataset"],
        config.split,
        f"{len(numbers)}x{windows.length}",
    )
    identity = {
        **record_identity(run, model, checkpoint, torch.float32),
        "data": shards.identity,
        "protocol": {"windows": len(numbers), "span": windows.length, "held": HELD},
        "metric": tables.RECEPTIVE_FIELD.name,
    }

    def at(length):
        if length > (model.max_context or math.inf):
            return None  # past the end of a learned table
        return measure(model, windows, numbers, length, device, Path(run).name)

    return update_record(run, path, identity, lengths, at, device)


def shares(model: GPT, tokens: Tensor, targets: Tensor) -> Tensor:
    """Each token's share of the gradient of the last one's loss: tokens (B, T), targets (B,) int64 -> (B, T) float64, rows of sum 1.

    The model's parameters need no gradient.
    """
    embedded = []

    def note(module, arguments, output):
        embedded.append(output.requires_grad_())
        return output

    hook = model.wte.register_forward_hook(note)
    hidden = model.hidden(tokens)[:, -1]
    hook.remove()
    loss = F.cross_entropy(hidden @ model.wte.weight.T, targets, reduction="sum")
    norms = torch.autograd.grad(loss, embedded)[0].double().norm(dim=-1)  # (B, T)
    return norms / norms.sum(1, keepdim=True)


def measure(
    model: GPT, windows: Windows, numbers: np.ndarray, length: int, device, name: str
) -> dict:
    """receptive_field: in tokens, mean over the windows, and its standard error. cumulative: which share of the gradient the last n tokens
    hold, mean over the windows."""
    per_batch, cumulative = (
        max(1, BATCH_TOKENS // length),
        [],
    )  # of every window (length,), from its end on
    with tqdm(total=len(numbers), desc=f"{name} at {length:,}", unit="window", disable=None) as bar:
        for batch in np.array_split(numbers, -(-len(numbers) // per_batch)):
            inputs, targets = (x[:, -length:].to(device) for x in windows.batch(batch))
            cumulative.append(shares(model, inputs, targets[:, -1]).flip(1).cumsum(1).cpu().numpy())
            bar.update(len(batch))
    cumulative = np.concatenate(cumulative)
    fields = (cumulative <= HELD).sum(1) + 1
    at = sorted(
        {round(2 ** (step / STEPS)) for step in range(int(STEPS * math.log2(length)) + 1)}
        | {length}
    )
    return {
        "receptive_field": float(fields.mean()),
        "receptive_field_se": float(fields.std(ddof=1) / math.sqrt(len(fields))),
        "cumulative": {"tokens": at, "share": cumulative[:, np.array(at) - 1].mean(0).tolist()},
    }


if __name__ == "__main__":
    cli.run(main)
