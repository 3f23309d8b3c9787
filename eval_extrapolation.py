"""How does perplexity change with the length of context, far beyond the training length?

    python eval_extrapolation.py runs/quickstart/cable runs/quickstart/rope --lengths 256,512,1024,2048,4096
    python eval_extrapolation.py runs/medium/cable --lengths 1x,128x --stride 512 --windows 20
    python eval_extrapolation.py runs/medium/cable --protocol same-targets --windows 500
    python eval_extrapolation.py runs/medium/cable --lengths 131072 --cache_window 4096

Protocols, each with its text chosen before anything is computed:

    segments        the CABLE paper's: the split is cut into windows of L inputs, consecutive and not overlapping, each predicted
                    from its own start on; the mean is over all tokens. --stride S < L: windows begin S tokens apart, and every token
                    is predicted once, from at least L - S tokens before it (but for those at a shard's beginning).
    same-targets    the last --targets tokens of windows as long as the longest context, predicted from the last L tokens of them:
                    the targets never change, only the context grows. --targets 1 --windows 1000: the Sandwich paper's protocol.

An encoder (--objective mlm) is asked for the tokens that are masked in each window of segments, as in training.

--max_tokens and --windows take windows of the longest context, their starts evenly spaced over the split, and all lengths are tested
on the text in them, but for an end that is less than the length. --cache_window W: nothing further back than W tokens is seen, and memory does not grow with the context.
Every checkpoint gets a JSON record beside it for each text and protocol, renewed after each length; lengths that it holds already are
not computed again. Of a run it is the newest checkpoint's: that of an earlier one, of another dtype or path of attention is replaced.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from tqdm import tqdm

from attention import SKIP_TOLERANCE
from errors import InputError
from evaluation import bias_statistics
from evaluation.records import (
    perplexity,
    record_identity,
    record_path,
    shards_for_run,
    update_record,
)
from reporting import tables
from runtime import cli, devices
from runtime.checkpoints import load_checkpoint
from runtime.loading import load_model
from text_data.data_loader import (
    BATCH_TOKENS,
    Windows,
    evenly_spaced,
    masked_count,
    read_masked_windows,
    read_windows,
)
from text_data.shards import Shards

BINS = 256  # of the loss by position
BLOCKS = 1024  # of neighbouring windows, whose mean losses are kept: for the standard error, and to compare checkpoints


@dataclass
class Config:
    """Settings of an evaluation."""

    runs: list[str] = field(default_factory=list)
    """folders of runs, or checkpoints"""
    data: str | None = None
    """folder of the shards; null: the one that the run was trained on"""
    split: str = "val"
    """which split of it"""
    lengths: str = "512,1024,2048,4096,8192,15360"
    """contexts in tokens, separated by commas; 1x,2x,... are multiples of the training length"""
    protocol: Literal["segments", "same-targets"] = "segments"
    """what is predicted from what"""
    stride: int | None = None
    """segments: tokens between the starts of windows; null: their length"""
    targets: int = 256
    """same-targets: how many tokens at the end of a window are predicted"""
    max_tokens: int | None = None
    """take as many windows of the longest context as have so many tokens together; null: all there are"""
    windows: int | None = None
    """take so many windows of the longest context; same-targets: they overlap where the split is too short"""
    cache_window: int | None = None
    """how many tokens each sees, itself included, as from a key-value cache of that size; null: all"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it"""
    attention: Literal["auto", "sdpa", "dense", "triton"] = "auto"
    """how attention is computed (attention.py)"""
    skip_tolerance: float = SKIP_TOLERANCE
    """the share of a query's weight that --attention triton may leave out with far keys; 0: nothing"""

    def __post_init__(self):
        problems = cli.check_minimums(
            self, stride=1, targets=1, max_tokens=1, windows=1, cache_window=1
        )
        if self.stride and self.protocol != "segments":
            problems.append("--stride belongs to the protocol segments: leave it out")
        if problems:
            raise InputError(*problems)


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("runs", "folders of runs, or checkpoints")
    )
    if not config.runs:
        raise InputError("no run named: python eval_extrapolation.py runs/NAME ...")
    device, dtype = devices.select_device(config.device, config.dtype)
    plans = [
        plan(run, config) for run in config.runs
    ]  # all can be carried out, or nothing is computed
    records = [
        evaluate(run, *asked, config, device, dtype) for run, asked in zip(config.runs, plans)
    ]
    print(f"\n{tables.summary(records)}")


def plan(run: str, config: Config) -> tuple[Shards, list[int], dict, list[tuple[int, int, int]]]:
    """What a checkpoint is asked: the text, the lengths, and what `regions_of` returns."""
    checkpoint = load_checkpoint(run, weights=False)
    mask_rate = None if checkpoint["gpt"].get("causal", True) else checkpoint["config"]["mask_rate"]
    if mask_rate and (config.protocol != "segments" or config.stride or config.cache_window):
        raise InputError(
            f"{run} is an encoder, which restores masked tokens in segments: "
            "leave out --protocol, --stride and --cache_window"
        )
    shards = shards_for_run(run, checkpoint, config.data, config.split)
    lengths = cli.parse_lengths(config.lengths, checkpoint["gpt"]["block_size"])
    protocol, regions = regions_of(shards, lengths, config)
    return shards, lengths, protocol | ({"mask_rate": mask_rate} if mask_rate else {}), regions


def evaluate(
    run: str,
    shards: Shards,
    lengths: list[int],
    protocol: dict,
    regions: list[tuple[int, int, int]],
    config: Config,
    device: torch.device,
    dtype: torch.dtype,
) -> dict:
    """The record of one checkpoint, with every length asked for."""
    model, checkpoint = load_model(
        run, device, dtype, config.attention, config.skip_tolerance, causal=None
    )
    parts = [
        "eval",
        shards.meta["dataset"],
        config.split,
        *([f"same-targets{config.targets}"] if protocol["targets"] else []),
        *([f"stride{config.stride}"] if config.stride else []),
        *([f"cache{config.cache_window}"] if config.cache_window else []),
        *([f"{protocol['spans']}x{protocol['span']}"] if protocol["span"] else []),
    ]
    path = record_path(run, *parts)
    identity = {
        **record_identity(run, model, checkpoint, dtype),
        "data": shards.identity,
        "protocol": protocol,
        "cache_window": config.cache_window,
    }

    def at(length):
        if length > (model.max_context or length):
            return None  # past the end of a learned table
        windows = windows_of(regions, length, config, protocol.get("mask_rate"))
        return measure(
            model, shards, windows, length, protocol, config, device, dtype, Path(run).name
        )

    return update_record(run, path, identity, lengths, at, device)


def regions_of(
    shards: Shards, lengths: list[int], config: Config
) -> tuple[dict, list[tuple[int, int, int]]]:
    """What the record says of the protocol, and the stretches of text that all lengths share: (shard, first token, inputs).

    These are windows of the longest context, evenly spaced, or, where nothing caps the work of `segments`, the whole split.
    """
    longest, same_targets = lengths[-1], config.protocol == "same-targets"
    whole = Windows(shards, longest)
    problems = [
        f"max_tokens {config.max_tokens} is less than one window of {longest}: raise it"
    ] * (config.max_tokens is not None and config.max_tokens < longest)
    problems += [
        f"targets {config.targets} is more than the context {lengths[0]}: lower --targets or leave out that length"
    ] * (same_targets and config.targets > lengths[0])
    problems += [
        f"stride {config.stride} is more than the context {lengths[0]}: lower --stride"
    ] * ((config.stride or 0) > lengths[0])
    if problems:
        raise InputError(*problems)
    protocol = {
        "name": config.protocol,
        "stride": config.stride,
        "targets": config.targets if same_targets else None,
    }
    if not same_targets and config.max_tokens is None and config.windows is None:
        return protocol | {"span": None, "spans": None, "overlap": 0.0}, [
            (shard, 0, len(tokens) - 1) for shard, tokens in enumerate(shards.tokens)
        ]
    count = min(
        config.windows or len(whole),
        config.max_tokens // longest if config.max_tokens else math.inf,
    )
    if same_targets:
        sizes = np.cumsum(
            [0, *(max(0, len(tokens) - longest) for tokens in shards.tokens)]
        )  # starts there are, by shard
        starts = evenly_spaced(int(sizes[-1]), int(count))
        in_shard = np.searchsorted(sizes, starts, "right") - 1
        places = [(int(shard), int(start - sizes[shard])) for shard, start in zip(in_shard, starts)]
        spacing = sizes[-1] / len(places)
    else:
        places = [whole.locate(number) for number in evenly_spaced(len(whole), int(count))]
        spacing = longest
    return protocol | {
        "span": longest,
        "spans": len(places),
        "overlap": max(0.0, float(1 - spacing / longest)),
    }, [(shard, offset, longest) for shard, offset in places]


def windows_of(
    regions: list[tuple[int, int, int]], length: int, config: Config, mask_rate: float | None
) -> list[tuple[int, int, int]]:
    """(shard, first token, how many targets count: of the last inputs, or of masked ones) of every window of `length` inputs."""
    if config.protocol == "same-targets":
        return [
            (shard, offset + inputs - length, config.targets) for shard, offset, inputs in regions
        ]
    stride, found = config.stride or length, []
    for shard, offset, inputs in regions:
        first = max(0, offset + stride - length)  # what it sees before the region is not counted
        found += [
            (shard, start, stride if start > first else first + length - offset)
            for start in range(first, offset + inputs - length + 1, stride)
        ]
    return (
        [(shard, start, masked_count(length, mask_rate)) for shard, start, _ in found]
        if mask_rate
        else found
    )


def measure(model, shards, windows, length, protocol, config, device, dtype, name) -> dict:
    """Loss over the windows at one length: float64 sums of every counted token's cross-entropy in nats.

    loss_se is the standard error over blocks of neighbouring windows, of one window each where these are few and do not overlap, and
    none of a single one;
    by_position: the mean loss of equal stretches of the window, from position `first` on; none where nothing was masked. left_out: of
    the first window, by layer.
    """
    per_batch = max(1, BATCH_TOKENS // length)
    sums, counts = np.zeros(len(windows)), np.array([counted for _, _, counted in windows])
    by_position, seen = np.zeros(length), np.zeros(length)
    with tqdm(
        total=int(counts.sum()),
        desc=f"{name} at {length:,}",
        unit="token",
        unit_scale=True,
        disable=None,
    ) as bar:
        for counted in np.unique(counts):
            for batch in np.array_split(
                same := np.flatnonzero(counts == counted), -(-len(same) // per_batch)
            ):
                inputs, targets, at = asked(
                    shards,
                    [windows[n][:2] for n in batch],
                    length,
                    counted,
                    protocol.get("mask_rate"),
                )
                with devices.autocast(device, dtype):
                    loss = (
                        model.losses(
                            inputs.to(device),
                            targets.to(device),
                            None if model.config.causal else at.to(device),
                            config.cache_window,
                        )
                        .double()
                        .cpu()
                        .numpy()
                    )  # (n, counted)
                sums[batch] = loss.sum(1)
                np.add.at(by_position, at.numpy(), loss)
                np.add.at(seen, at.numpy(), 1)
                bar.update(loss.size)
    overlapping = (
        math.ceil(1 / (1 - protocol["overlap"]))
        if protocol["targets"]
        else -(-length // (config.stride or length))
    )
    blocks = np.array_split(
        np.arange(len(windows)), min(BLOCKS, max(1, len(windows) // overlapping))
    )
    tokens = np.array(
        [counts[block].sum() for block in blocks]
    )  # not the same for all where the windows do not divide
    means = np.array([sums[block].sum() for block in blocks]) / tokens
    mean, first, width = sums.sum() / counts.sum(), int((seen > 0).argmax()), -(-length // BINS)
    scatter = ((means - mean) * tokens / tokens.mean()).std(ddof=1) if len(blocks) > 1 else None
    error = None if scatter is None else float(scatter / math.sqrt(len(blocks)))
    parts = [slice(start, start + width) for start in range(first, length, width)]
    bins = [
        float(by_position[part].sum() / seen[part].sum()) if seen[part].any() else None
        for part in parts
    ]
    entry = {
        "loss": float(mean),
        "loss_se": error,
        "perplexity": perplexity(mean),
        "windows": len(windows),
        "tokens": int(counts.sum()),
        "blocks": means.tolist(),
        "block_tokens": tokens.tolist(),
        "by_position": {"first": first, "width": width, "loss": bins},
    }
    if model.path == "triton" and config.cache_window is None:
        with devices.autocast(device, dtype):
            entry["left_out"] = bias_statistics.left_out(
                model, read_windows(shards, [windows[0][:2]], length)[0].to(device)
            )
    return entry


def asked(
    shards: Shards,
    places: list[tuple[int, int]],
    length: int,
    counted: int,
    mask_rate: float | None,
) -> tuple[torch.Tensor, ...]:
    """Inputs (n, length), the `counted` targets of each that count, (n, counted), and where in the window they are predicted, likewise."""
    if mask_rate:
        return read_masked_windows(shards, places, length, mask_rate)
    inputs, targets = read_windows(shards, places, length)
    return (
        inputs,
        targets[:, -counted:],
        torch.arange(length - counted, length).expand(len(places), counted),
    )


if __name__ == "__main__":
    cli.run(main)
