"""Evaluate perplexity against context length, far beyond the training length.

    python eval_extrapolation.py runs/quickstart/cable runs/quickstart/rope --lengths 256,1024,4096
    python eval_extrapolation.py runs/medium/cable --lengths 1x,128x --stride 512 --windows 20
    python eval_extrapolation.py runs/medium/cable --protocol same-targets --windows 500
    python eval_extrapolation.py runs/medium/cable --lengths 131072 --cache_window 4096

Protocols. L is one of --lengths: the number of input tokens of a window. All predictions use
teacher forcing: a token is predicted from the true tokens before it in its window.

    segments      The text is cut into consecutive windows of L inputs; the last one is shorter. The
                  n-th prediction of a window has n tokens of context, from 1 to L. The loss is
                  the mean over all predictions.
                  --stride S, with S <= L, makes it a sliding window: windows start S tokens
                  apart, and only the predictions that no earlier window made count: the last S.
                  Every token is predicted once, from more than L - S tokens of context, except at
                  the start of a shard.
    same-targets  The targets are the last --targets tokens of windows as long as the longest of
                  --lengths. They are predicted from the last L inputs of the window. The targets
                  are the same at all lengths; only the context grows.
                  --targets 1 --windows 1000 is the Sandwich paper's protocol.

Encoders (--objective mlm) are evaluated with `segments` only: in each window, tokens are masked as
in training, and the masked tokens are predicted from the whole window.

The text of `segments` is all of the split: every token but the first of each shard is predicted. If
the split is longer than --max_tokens, or with --windows, the text is windows of the longest length,
evenly spaced over the split. The same tokens are predicted at all lengths.

--within_documents tests only windows of the longest length that start and end in one document.
Windows across documents reward a model that forgets. Shorter lengths cut the same windows.

--cache_window W is sliding-window attention, as with a KV cache of W tokens: each token attends to
the last W tokens, itself included, and memory does not grow with L.

Each run gets one JSON record for each text and protocol, next to its checkpoints and written after
each length; recorded lengths are skipped. The record of a run folder is of its newest checkpoint.
It replaces a record of an older checkpoint, another dtype or another attention implementation.
"""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from runtime import cli, devices
from runtime.checkpoints import load_checkpoint
from runtime.schema import perplexity

import numpy as np
import torch
from tqdm import tqdm

from attention import SKIP_TOLERANCE
from errors import InputError
from evaluation.runner import (
    RUNS_ARGUMENT,
    Plan,
    TextEvaluationConfig,
    evaluation_ranks,
    run_evaluation,
    shards_for_run,
)
from model import GPT
from reporting import metrics
from text_data.data_loader import (
    BATCH_TOKENS,
    Windows,
    evenly_spaced,
    masked_count,
    read_masked_windows,
    read_windows,
)
from text_data.shards import Shards
from text_data.tokenizer import load_tokenizer

MAX_BINS = 256  # of the loss by position in the window
MAX_BLOCKS = 1024  # of neighboring windows, whose mean losses the record keeps


@dataclass
class Config(TextEvaluationConfig):
    """Settings of the length extrapolation evaluation."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """dtype of matrix products; auto: bfloat16 if the hardware supports it"""
    skip_tolerance: float = SKIP_TOLERANCE
    """fraction of each query's attention weight that --attention triton may skip; 0: nothing"""
    lengths: str = "512,1024,2048,4096,8192,15360"
    """context lengths in tokens, separated by commas; 1x,2x,... are multiples of the training
    length"""
    protocol: Literal["segments", "same-targets"] = "segments"
    """which tokens are predicted from which context"""
    stride: int | None = cli.limited(None, 1)
    """segments: tokens between the starts of windows; null: the context length"""
    targets: int = cli.limited(256, 1)
    """same-targets: number of tokens predicted at the end of each window"""
    max_tokens: int | None = cli.limited(None, 1)
    """if the split is longer, take as many windows of the longest length as hold this number of
    tokens; null: no limit"""
    windows: int | None = cli.limited(None, 1)
    """take this number of windows of the longest length; null: as many as fit without overlap. With
    same-targets, windows overlap if the split is too short"""
    within_documents: bool = False
    """take windows of the longest length inside single documents"""
    cache_window: int | None = cli.limited(None, 1)
    """number of tokens that each token attends to, itself included, as with a KV cache of this
    size; null: all"""

    def __post_init__(self):
        super().__post_init__()
        if self.stride and self.protocol != "segments":
            raise InputError("--stride applies to the protocol segments only: remove it")
        if self.stride and self.within_documents:
            raise InputError("--stride reads text before a window: remove it or --within_documents")


class Region(NamedTuple):
    """A stretch of text on which all lengths are evaluated."""

    shard: int
    start: int  # offset of its first token in the shard
    inputs: int  # number of input tokens; targets are one further


class Window(NamedTuple):
    """A sequence of inputs, predicted in one forward pass."""

    shard: int
    start: int  # offset of its first token in the shard
    length: int  # number of inputs: the context length, or less at the end of a region
    counted: int  # number of predictions that count: the last ones, or those of masked tokens
    offset: int = 0  # of its first token in the region


@dataclass(kw_only=True)
class ExtrapolationPlan(Plan):
    """The text of one run's evaluation and how it is cut into windows."""

    config: Config
    regions: list[Region]
    mask_rate: float | None  # fraction of masked tokens; None for a decoder


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=RUNS_ARGUMENT)
    options = {"skip_tolerance": config.skip_tolerance, "causal": None}
    with evaluation_ranks(config, config.dtype) as ranks:
        records = run_evaluation(config, plan, measure, ranks, **options)
        print(f"\n{metrics.summary(records)}")


def plan(run: str, config: Config) -> ExtrapolationPlan:
    """Return what to evaluate on one run. Raises InputError if the settings do not fit the run."""
    checkpoint = load_checkpoint(run)
    causal = checkpoint["gpt"]["causal"]
    mask_rate = None if causal else checkpoint["config"]["mask_rate"]
    if mask_rate and (config.protocol != "segments" or config.stride or config.cache_window):
        raise InputError(
            f"{run} is an encoder, which predicts the masked tokens of segments: "
            "remove --protocol, --stride and --cache_window"
        )
    shards = shards_for_run(run, checkpoint, config.data, config.split)
    lengths = cli.parse_lengths(config.lengths, checkpoint["gpt"]["block_size"])
    protocol, regions = select_text(shards, lengths, config)
    if mask_rate:
        protocol["mask_rate"] = mask_rate
    return ExtrapolationPlan(
        run=run,
        shards=shards,
        lengths=lengths,
        protocol=protocol,
        identity={"cache_window": config.cache_window},
        record_name=record_name(shards, protocol, config),
        config=config,
        regions=regions,
        mask_rate=mask_rate,
    )


def record_name(shards: Shards, protocol: dict, config: Config) -> list[str]:
    """Return the words of the record's file name: one record for each text and protocol."""
    words = [shards.meta["dataset"], config.split]
    if protocol["targets"]:
        words.append(f"same-targets{config.targets}")
    if config.within_documents:
        words.append("documents")
    if config.stride:
        words.append(f"stride{config.stride}")
    if config.cache_window:
        words.append(f"cache{config.cache_window}")
    if protocol["span"]:
        words.append(f"{protocol['spans']}x{protocol['span']}")
    return words


def select_text(shards: Shards, lengths: list[int], config: Config) -> tuple[dict, list[Region]]:
    """Return the record's description of the protocol and the text that all lengths share.

    The text is all of the split, or windows of the longest length, evenly spaced: for same-targets,
    with --windows, or if the split is longer than --max_tokens. Raises InputError for settings that
    do not fit.
    """
    longest = lengths[-1]
    check_lengths(lengths, config)
    windows = Windows(shards, longest)  # raises InputError if the split is too short for one
    same_targets = config.protocol == "same-targets"
    protocol = {
        "name": config.protocol,
        "stride": config.stride,
        "targets": config.targets if same_targets else None,
    }
    if not (same_targets or config.within_documents):
        protocol["remainder"] = "counted"  # the end of a text fills a shorter window
        regions = [Region(shard, 0, len(tokens) - 1) for shard, tokens in enumerate(shards.tokens)]
        limit = math.inf if config.max_tokens is None else config.max_tokens
        if config.windows is None and sum(region.inputs for region in regions) <= limit:
            return protocol | {"span": None, "spans": None, "overlap": 0.0}, regions

    count = config.windows or len(windows)
    if config.max_tokens:
        count = min(count, config.max_tokens // longest)
    spacing = longest
    if config.within_documents:
        starts, protocol["documents"] = starts_in_documents(shards, longest, count)
    elif same_targets:
        starts, spacing = overlapping_starts(shards, longest, count)
    else:
        starts = [windows.locate(number) for number in evenly_spaced(len(windows), count)]
    protocol |= {
        "span": longest,
        "spans": len(starts),
        "overlap": max(0.0, float(1 - spacing / longest)),
    }
    return protocol, [Region(shard, start, longest) for shard, start in starts]


def starts_in_documents(
    shards: Shards, length: int, count: int
) -> tuple[list[tuple[int, int]], int]:
    """Return the starts (shard, offset) of windows inside one document each, and how many of these.

    At most `count` of all such windows that do not overlap, evenly spaced. A document begins with
    the end-of-text token. Raises InputError if none is long enough.
    """
    end = load_tokenizer(shards.tokenizer, shards.folder).eot
    windows = []  # (shard, first token of the window, first token of the document)
    for shard, tokens in enumerate(shards.tokens):
        bounds = [*np.flatnonzero(tokens[:] == end).tolist(), len(tokens)]
        for first, stop in itertools.pairwise(bounds):
            windows += [(shard, start, first) for start in range(first, stop - length, length)]
    if not windows:
        raise InputError(
            f"no document in {shards.folder} has {length + 1} tokens: use shorter --lengths, or "
            "prepare data with --min_tokens"
        )
    chosen = [windows[number] for number in evenly_spaced(len(windows), count)]
    documents = {(shard, first) for shard, _, first in chosen}
    return [(shard, start) for shard, start, _ in chosen], len(documents)


def check_lengths(lengths: list[int], config: Config) -> None:
    """Raise InputError if --max_tokens, --targets or --stride do not fit the lengths."""
    shortest, longest = lengths[0], lengths[-1]
    problems = []
    if config.max_tokens is not None and config.max_tokens < longest:
        problems.append(
            f"max_tokens {config.max_tokens} is less than one window of {longest}: raise it"
        )
    if config.protocol == "same-targets" and config.targets > shortest:
        problems.append(
            f"targets {config.targets} is more than the context length {shortest}: "
            "lower --targets or remove that length"
        )
    if config.stride is not None and config.stride > shortest:
        problems.append(
            f"stride {config.stride} is more than the context length {shortest}: lower --stride"
        )
    if problems:
        raise InputError(*problems)


def overlapping_starts(
    shards: Shards, length: int, count: int
) -> tuple[list[tuple[int, int]], float]:
    """Return the starts (shard, offset) of windows, and their mean spacing in tokens.

    The starts are evenly spaced over all offsets at which a window of `length` inputs can start, at
    most `count` of them. Windows overlap if the spacing is less than `length`.
    """
    starts_per_shard = [max(0, len(tokens) - length) for tokens in shards.tokens]
    first = np.cumsum([0, *starts_per_shard])  # number of the first start of each shard
    total = int(first[-1])
    numbers = evenly_spaced(total, count)
    shard_numbers = np.searchsorted(first, numbers, "right") - 1
    starts = [
        (int(shard), int(number - first[shard]))
        for shard, number in zip(shard_numbers, numbers, strict=True)
    ]
    return starts, total / len(starts)


def list_windows(plan: ExtrapolationPlan, length: int) -> list[Window]:
    """Return all windows, in the order of the text: of `length` inputs, or fewer at a region's end.

    With a stride, windows and counted predictions are those of Hugging Face's guide "Perplexity of
    fixed-length models", in each region.
    """
    if plan.config.protocol == "same-targets":
        return [
            Window(shard, start + inputs - length, length, plan.config.targets, inputs - length)
            for shard, start, inputs in plan.regions
        ]
    stride = plan.config.stride or length
    windows = []
    for shard, region_start, inputs in plan.regions:
        region_end = region_start + inputs
        # The first window ends `stride` tokens into the region, if the shard has enough tokens
        # before the region. Predictions before the region do not count.
        start = max(0, region_start + stride - length)
        counted_to = region_start
        while counted_to < region_end:
            end = min(start + length, region_end)
            offset = start - region_start
            windows.append(Window(shard, start, end - start, end - counted_to, offset))
            counted_to = end
            start += stride
    if plan.mask_rate:
        windows = [
            window._replace(counted=masked_count(window.length, plan.mask_rate))
            for window in windows
        ]
    return windows


def measure(
    model: GPT, plan: ExtrapolationPlan, length: int, device: torch.device, dtype: torch.dtype
) -> dict:
    """Return the loss at one context length, in nats per token, and the perplexity.

    loss: mean over all predictions that count, summed in float64.
    loss_se: its standard error over blocks of windows; None if there is a single block.
    blocks, block_tokens: mean loss and number of predictions of each block, for compare.py.
    by_position: mean losses of the bins of `width` positions, from position `first` of the window
    on; None for a bin without predictions.
    by_offset: with --within_documents, the same by position in the window of the longest length.
    """
    windows = list_windows(plan, length)
    counts = np.array([window.counted for window in windows])
    sums, curves = sum_losses(model, plan, windows, length, device, dtype)
    mean = sums.sum() / counts.sum()

    blocks = split_into_blocks(plan, len(windows), length)
    block_tokens = np.array([counts[block].sum() for block in blocks])
    block_means = np.array([sums[block].sum() for block in blocks]) / block_tokens
    return {
        "loss": float(mean),
        "loss_se": standard_error(block_means, block_tokens, mean),
        "perplexity": perplexity(mean),
        "windows": len(windows),
        "tokens": int(counts.sum()),
        "blocks": block_means.tolist(),
        "block_tokens": block_tokens.tolist(),
        **curves,
    }


def sum_losses(
    model: GPT,
    plan: ExtrapolationPlan,
    windows: list[Window],
    length: int,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[np.ndarray, dict[str, dict]]:
    """Return the sum of the losses of each window, (windows,) float64, and `measure`'s curves.

    The windows of a batch have the same length and the same number of predictions that count.
    """
    by_shape = {}  # (length, counted) -> numbers of the windows
    for number, window in enumerate(windows):
        by_shape.setdefault((window.length, window.counted), []).append(number)
    batches = []  # (length, counted, numbers)
    for shape, numbers in sorted(by_shape.items()):
        per_batch = max(1, BATCH_TOKENS // shape[0])
        parts = np.array_split(numbers, -(-len(numbers) // per_batch))
        batches += [(*shape, part) for part in parts]
    own = batches[plan.processes.rank :: plan.processes.world_size]
    sums = np.zeros(len(windows))
    totals = {"by_position": np.zeros((2, length))}  # sums and numbers of losses
    if plan.config.within_documents:
        totals["by_offset"] = np.zeros((2, plan.protocol["span"]))
    with tqdm(
        total=sum(counted * len(numbers) for _, counted, numbers in own),
        desc=f"{Path(plan.run).name} at {length:,}",
        unit="token",
        unit_scale=True,
        disable=None,
    ) as bar:
        for inputs_per_window, counted, batch in own:
            starts = [windows[number][:2] for number in batch]
            inputs, targets, positions = read_batch(plan, starts, inputs_per_window, counted)
            masked_positions = None if model.config.causal else positions.to(device)
            with devices.autocast(device, dtype):
                losses = model.losses(
                    inputs.to(device),
                    targets.to(device),
                    masked_positions,
                    plan.config.cache_window,
                )
            losses = losses.double().cpu().numpy()  # (B, counted)
            sums[batch] = losses.sum(1)
            offsets = np.array([[windows[number].offset] for number in batch])
            places = {"by_position": positions.numpy(), "by_offset": positions.numpy() + offsets}
            for name, (total, count) in totals.items():
                np.add.at(total, places[name], losses)
                np.add.at(count, places[name], 1)
            bar.update(losses.size)
    for array in (sums, *totals.values()):
        plan.processes.sum(torch.from_numpy(array))  # in place
    return sums, {name: bin_positions(*total) for name, total in totals.items()}


def read_batch(
    plan: ExtrapolationPlan, starts: list[tuple[int, int]], length: int, counted: int
) -> tuple[torch.Tensor, ...]:
    """Return the windows that begin at `starts` (shard, offset).

    Returns inputs (B, length), targets that count (B, counted), and the positions in the window at
    which they are predicted (B, counted); all int64.
    """
    if plan.mask_rate:
        return read_masked_windows(plan.shards, starts, length, plan.mask_rate)
    inputs, targets = read_windows(plan.shards, starts, length)
    positions = torch.arange(length - counted, length).expand(len(starts), counted)
    return inputs, targets[:, -counted:], positions


def bin_positions(sums: np.ndarray, counts: np.ndarray) -> dict:
    """Return mean losses by position, in at most MAX_BINS bins of equal width.

    sums, counts: (length,) sum of the losses and number of predictions at each position.
    """
    length = len(sums)
    first = int((counts > 0).argmax())
    width = -(-length // MAX_BINS)
    losses = []
    for start in range(first, length, width):
        bin_ = slice(start, start + width)
        known = counts[bin_].any()
        losses.append(float(sums[bin_].sum() / counts[bin_].sum()) if known else None)
    return {"first": first, "width": width, "loss": losses}


def split_into_blocks(plan: ExtrapolationPlan, windows: int, length: int) -> list[np.ndarray]:
    """Return the numbers of the windows of each block of neighboring windows.

    A block has at least as many windows as overlap at one token, so that blocks are nearly
    independent: one window if windows do not overlap and there are at most MAX_BLOCKS.
    """
    if plan.protocol["targets"]:
        overlapping = math.ceil(1 / (1 - plan.protocol["overlap"]))
    else:
        overlapping = -(-length // (plan.config.stride or length))
    count = min(MAX_BLOCKS, max(1, windows // overlapping))
    return np.array_split(np.arange(windows), count)


def standard_error(block_means: np.ndarray, block_tokens: np.ndarray, mean: float) -> float | None:
    """Return the standard error of the mean over all tokens; None for a single block.

    Blocks may differ in their number of tokens, so that the mean is a ratio of two sums.
    """
    if len(block_means) == 1:
        return None
    deviations = (block_means - mean) * block_tokens / block_tokens.mean()
    return float(deviations.std(ddof=1) / math.sqrt(len(block_means)))


if __name__ == "__main__":
    cli.run(main)
