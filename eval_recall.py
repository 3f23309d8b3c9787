"""How far back does a model make use of what it has read?

    python eval_recall.py runs/quickstart/cable runs/quickstart/rope
    python eval_recall.py runs/medium/* --distances 256,1x,4x,16x --trials 500

A model reads a passage, then unrelated text, and, so many tokens after its beginning, the passage once more. The recall is what the first
reading was good for: by how many percent it lowers the perplexity of the second half of the passage, read again. 0 where the first
reading is forgotten, near 100 where the model copies. It is compared with the same where another passage, of no relation either, was
read first; the two sequences differ in nothing else.

Perplexity that does not rise on texts longer than any in training (eval_extrapolation.py) may be that of a model that makes no use of
what is far back; this tells them apart. The texts begin at windows evenly spaced over the split, passages, others and what is between a
third of it apart: all distances ask for the same tokens. Every checkpoint gets a JSON record beside it, renewed after each distance;
distances that it holds already are not computed again.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from errors import InputError
from evaluation.records import record_identity, record_path, shards_for_run, update_record
from reporting import tables
from runtime import cli, devices
from runtime.checkpoints import load_checkpoint
from runtime.loading import load_model
from text_data.data_loader import BATCH_TOKENS, Windows, evenly_spaced


@dataclass
class Config:
    """Settings of an evaluation."""

    runs: list[str] = field(default_factory=list)
    """folders of runs, or checkpoints"""
    data: str | None = None
    """folder of the shards; null: the one that the run was trained on"""
    split: str = "val"
    """which split of it"""
    distances: str = "64,128,256,512,1024,2048,4096"
    """tokens between the beginnings of the two readings, separated by commas; 1x,2x,... are multiples of the training length"""
    passage: int = 64
    """tokens of the passage"""
    trials: int = 250
    """passages; fewer where the split has no more windows"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it"""
    attention: Literal["auto", "sdpa", "dense", "triton"] = "auto"
    """how attention is computed (attention.py)"""

    def __post_init__(self):
        problems = cli.check_minimums(self, passage=2, trials=3)
        if problems:
            raise InputError(*problems)


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("runs", "folders of runs, or checkpoints")
    )
    if not config.runs:
        raise InputError("no run named: python eval_recall.py runs/NAME ...")
    device, dtype = devices.select_device(config.device, config.dtype)
    plans = [
        plan(run, config) for run in config.runs
    ]  # all can be carried out, or nothing is computed
    records = [
        evaluate(run, *asked, config, device, dtype) for run, asked in zip(config.runs, plans)
    ]
    print(f"\n{tables.summary(records)}")


def plan(run: str, config: Config) -> tuple[list[int], Windows, np.ndarray]:
    """What a checkpoint is asked: the distances, the windows of the text, and the numbers of those that are the trials'."""
    checkpoint = load_checkpoint(run, causal=True, weights=False)
    shards = shards_for_run(run, checkpoint, config.data, config.split)
    distances = cli.parse_lengths(config.distances, checkpoint["gpt"]["block_size"])
    if distances[0] < config.passage:
        raise InputError(
            f"distance {distances[0]} is less than the {config.passage} tokens of the passage: leave it out, or lower "
            "--passage"
        )
    windows = Windows(shards, distances[-1])
    numbers = evenly_spaced(len(windows), config.trials)
    if len(numbers) < 3:
        raise InputError(
            f"{shards.folder} ({config.split}) has text for {len(numbers)} windows of {windows.length:,} tokens, of three "
            "that it takes: lower --distances"
        )
    return distances, windows, numbers


def evaluate(
    run: str,
    distances: list[int],
    windows: Windows,
    numbers: np.ndarray,
    config: Config,
    device: torch.device,
    dtype: torch.dtype,
) -> dict:
    """The record of one checkpoint, with every distance asked for."""
    model, checkpoint = load_model(run, device, dtype, config.attention)
    shards = windows.shards
    path = record_path(
        run,
        "eval",
        "recall",
        shards.meta["dataset"],
        config.split,
        f"{config.passage}of{len(numbers)}x{windows.length}",
    )
    identity = {
        **record_identity(run, model, checkpoint, dtype),
        "data": shards.identity,
        "protocol": {"passage": config.passage, "trials": len(numbers), "span": windows.length},
        "metric": tables.RECALL.name,
    }

    def at(distance):
        if distance + config.passage - 1 > (model.max_context or math.inf):
            return None  # past the end of a learned table
        return measure(
            model, windows, numbers, distance, config.passage, device, dtype, Path(run).name
        )

    return update_record(run, path, identity, distances, at, device)


def readings(
    windows: Windows, numbers: np.ndarray, chosen: np.ndarray, distance: int, passage: int
) -> torch.Tensor:
    """Tokens (2 n, distance + passage) of the trials `chosen`: n that begin with another passage, and n with the one that they end with.

    Of the windows with these numbers, all trials' together: passages are their beginnings, what is between is the rest of one.
    """
    third = len(numbers) // 3
    asked, other, between = (
        windows.batch(numbers[(chosen + n * third) % len(numbers)])[0] for n in range(3)
    )
    asked, other, between = asked[:, :passage], other[:, :passage], between[:, passage:distance]
    return torch.cat([torch.cat([first, between, asked], 1) for first in (other, asked)])


def measure(
    model,
    windows: Windows,
    numbers: np.ndarray,
    distance: int,
    passage: int,
    device,
    dtype,
    name: str,
) -> dict:
    """recall: percent of the perplexity saved; recall_se: its standard error over trials. loss, loss_without: means over trials, in nats,
    of the second half of the passage, after it was read and after another was. by_trial: the nats saved in each."""
    per_batch, found = max(1, BATCH_TOKENS // (2 * (distance + passage))), []
    with tqdm(
        total=len(numbers), desc=f"{name}, {distance:,} tokens back", unit="trial", disable=None
    ) as bar:
        for chosen in np.array_split(np.arange(len(numbers)), -(-len(numbers) // per_batch)):
            tokens = readings(windows, numbers, chosen, distance, passage).to(device)
            with devices.autocast(device, dtype):
                losses = model.losses(tokens[:, :-1], tokens[:, -(passage // 2) :])
            found.append(losses.double().mean(1).view(2, -1).cpu().numpy())
            bar.update(len(chosen))
    without, after = np.concatenate(found, 1)
    saved = without - after
    left = math.exp(-saved.mean())
    return {
        "recall": 100 * (1 - left),
        "recall_se": float(100 * left * saved.std(ddof=1) / math.sqrt(len(saved))),
        "loss": float(after.mean()),
        "loss_without": float(without.mean()),
        "by_trial": saved.tolist(),
    }


if __name__ == "__main__":
    cli.run(main)
