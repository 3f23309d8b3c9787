"""How does perplexity change with the length of context, far beyond the training length?

    python eval_extrapolation.py runs/quickstart/cable runs/quickstart/rope --lengths 256,512,1024,2048,4096

Protocol `segments`, the CABLE paper's: the split is cut into windows of L inputs, consecutive and not overlapping, each
predicted from its own start on; the mean is over all predicted tokens. Every checkpoint gets a JSON record beside it,
eval_{dataset}_{split}.json, renewed after each length; lengths that it holds already are not computed again.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

import cli
import device as devices
import tables
from data import Windows
from errors import InputError
from files import write_json
from runs import checkpoint_path, earlier_record, identity_of, load_model, provenance
from shards import Shards

BATCH_TOKENS = 16_384  # tokens of one forward pass, or one window where that is longer
BINS = 256  # of the loss by position


@dataclass
class Config:
    """Settings of an evaluation."""

    runs: list[str] = field(default_factory=list)
    """folders of runs, or checkpoints"""
    data: str | None = None
    """folder of the shards; none: the one that the run was trained on"""
    split: str = "val"
    """which split of it"""
    lengths: str = "512,1024,2048,4096,8192,15360"
    """contexts in tokens, separated by commas; 1x,2x,... are multiples of the training length"""
    max_tokens: int | None = None
    """look at the first so many tokens of the split only"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it"""
    attention: Literal["auto", "sdpa", "dense"] = "auto"
    """how attention is computed (attention.py)"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("runs", "folders of runs, or checkpoints"))
    if not config.runs:
        raise InputError("no run named: python eval_extrapolation.py runs/NAME ...")
    device, dtype = devices.choose(config.device, config.dtype)
    records = [evaluate(run, config, device, dtype) for run in config.runs]
    records = tables.in_order(records)
    print()
    print(tables.markdown(*tables.perplexity(records)))
    print(tables.caption(records))


def evaluate(run: str, config: Config, device: torch.device, dtype: torch.dtype) -> dict:
    """The record of one checkpoint, with every length asked for."""
    model, checkpoint = load_model(run, device, config.attention)
    folder = config.data or checkpoint["config"]["data"]
    if folder is None:
        raise InputError(f"{run} was not trained here: name the data by --data")
    shards = Shards(folder, config.split)
    if shards.tokenizer != checkpoint["data"]["tokenizer"]:
        raise InputError(f"{shards.folder} holds {shards.tokenizer} tokens, {run} was trained on "
                         f"{checkpoint['data']['tokenizer']} tokens: name other --data")
    lengths = parse_lengths(config.lengths, checkpoint["gpt"]["block_size"])
    windows = {length: Windows(shards, length) for length in lengths}
    counts = {length: min(len(windows[length]), (config.max_tokens or shards.total) // length) for length in lengths}
    problems = [f"max_tokens {config.max_tokens} is less than one window of {length}: raise it"
                for length in lengths if not counts[length]]
    if problems:
        raise InputError(*problems)

    path = checkpoint_path(run).parent / f"eval_{shards.meta['dataset']}_{config.split}.json"
    identity = {
        **identity_of(run, model, checkpoint, dtype),
        "data": {"dataset": shards.meta["dataset"], "split": config.split, "tokenizer": shards.tokenizer, "sha256": shards.sha256},
        "protocol": {"name": "segments", "max_tokens": config.max_tokens}}
    found = earlier_record(path, identity) or {"lengths": {}}
    record = {"run": Path(run).name, **identity, "lengths": found["lengths"]}
    missing = [length for length in lengths if str(length) not in record["lengths"]]
    if not missing:
        print(f"{run}: evaluated already, see {path}")
    for length in missing:
        entry = None  # past the end of a learned table
        if model.max_context is None or length <= model.max_context:
            entry = segments(model, windows[length], counts[length], device, dtype, record["run"])
        record["lengths"][str(length)] = entry
        record["lengths"] = dict(sorted(record["lengths"].items(), key=lambda item: int(item[0])))
        write_json(path, {**record, "provenance": provenance(device)})
    return record | {"lengths": {str(length): record["lengths"][str(length)] for length in lengths}}


def parse_lengths(text: str, block_size: int) -> list[int]:
    """"512,1x,16x" -> sorted token counts. Raises InputError for anything else."""
    try:
        lengths = {block_size * int(word[:-1]) if word.endswith("x") else int(word) for word in text.replace(" ", "").split(",")}
    except ValueError:
        lengths = {0}
    if min(lengths) < 1:
        raise InputError(f"lengths '{text}': give token counts or multiples of the training length, as in 512,1024 or 1x,16x")
    return sorted(lengths)


def segments(model, windows: Windows, count: int, device, dtype, name: str) -> dict:
    """Loss over the first `count` windows: float64 sums of every token's cross-entropy in nats.

    loss_se is the standard error over windows; by_position the mean loss of equal stretches of the window.
    """
    per_batch = max(1, BATCH_TOKENS // windows.length)
    losses, by_position = [], torch.zeros(windows.length, dtype=torch.float64)
    with tqdm(total=count * windows.length, desc=f"{name} at {windows.length:,}", unit="token", unit_scale=True, disable=None) as bar:
        for start in range(0, count, per_batch):
            inputs, targets = (x.to(device) for x in windows.batch(range(start, min(start + per_batch, count))))
            with devices.autocast(device, dtype):
                loss = model.losses(inputs, targets).double().cpu()  # (n, length)
            losses.append(loss.mean(1))
            by_position += loss.sum(0)
            bar.update(loss.numel())
    losses = torch.cat(losses).numpy()
    mean, width = losses.mean(), -(-windows.length // BINS)
    error = losses.std(ddof=1) / math.sqrt(count) if count > 1 else math.nan
    bins = [part.mean().item() for part in (by_position / count).split(width)]
    return {"loss": float(mean), "loss_se": float(np.nan_to_num(error)), "perplexity": math.exp(mean), "windows": count,
            "tokens": count * windows.length, "by_position": {"width": width, "loss": bins}}


if __name__ == "__main__":
    cli.run(main)
