"""Evaluate perplexity against context length, far beyond the training length.

    python eval_extrapolation.py runs/quickstart/* --lengths 256,1024,4096
    python eval_extrapolation.py runs/medium/cable --lengths 1x,128x --stride 512 --windows 20
    python eval_extrapolation.py runs/medium/cable --protocol same-targets --windows 500
    python eval_extrapolation.py runs/medium/cable --lengths 131072 --cache_window 4096

Protocols (docs/evaluation.md), with windows of L input tokens:

    segments      consecutive windows, whose predictions all count; --stride S:
                  sliding windows S tokens apart, whose last S predictions count
    same-targets  the last --targets tokens of windows of the longest length,
                  predicted from the last L inputs of each

Encoders are evaluated with `segments`, on tokens masked as in training.
The text is all of the split, or windows of the longest length, evenly
spaced, if it is longer than --max_tokens or with --windows. All lengths
predict the same tokens. Records are written next to checkpoints, after
each length.
"""

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from runtime import cli

import numpy as np
import torch

import data_loader
from data_loader import Shards
from errors import InputError
from evaluation import runner
from evaluation.runner import LoadedRun, Plan
from losses import perplexity
from setting import setting
from text_data.tokenizer import load_tokenizer

MAX_BINS = 256  # of the loss by position in the window
MAX_BLOCKS = 1024  # of neighboring windows, whose mean losses the record keeps


@dataclass
class Config(runner.TextEvaluationConfig):
    """Settings of the length extrapolation evaluation."""

    lengths: str = "512,1024,2048,4096,8192,15360"
    """context lengths in tokens, separated by commas; 1x: the training length"""
    protocol: Literal["segments", "same-targets"] = "segments"
    """which tokens are predicted from which context"""
    stride: int | None = setting(None, 1)
    """segments: tokens between the starts of windows; null: the context length"""
    targets: int = setting(256, 1)
    """same-targets: number of tokens predicted at the end of each window"""
    max_tokens: int | None = setting(None, 1)
    """take the windows of the longest length that fit into this many tokens, at least one; null:
    all"""
    windows: int | None = setting(None, 1)
    """take this number of windows of the longest length; null: as many as fit without overlap. With
    same-targets, windows overlap if the split is too short"""
    within_documents: bool = False
    """take windows of the longest length that start and end in one document"""
    cache_window: int | None = setting(None, 1)
    """tokens that each token attends to, itself included, as with a KV cache of this size"""

    def __post_init__(self):
        super().__post_init__()
        if self.stride and (self.protocol != "segments" or self.within_documents):
            other = "--within_documents" if self.within_documents else "--protocol"
            problem = "--stride is for segments of the whole text"
            raise InputError(f"{problem}: remove it or {other}")


class Window(NamedTuple):
    """A sequence of inputs, predicted in one forward pass."""

    shard: int
    start: int  # offset of its first token in the shard
    length: int  # number of inputs: the context length, or less at the end of a region
    counted: int  # predictions that count: the last ones, or those of masked tokens
    offset: int  # of its first token in the region


@dataclass
class Text:
    """The text of one run's evaluation, and how it is cut into windows."""

    shards: Shards
    config: Config
    protocol: dict  # of the record; "mask_rate": fraction of masked tokens, of encoders
    # Stretches of text on which all lengths are evaluated: shard, offset of the first token, number
    # of input tokens. Targets are one further.
    regions: list[tuple[int, int, int]]


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    runner.run_evaluation(config, plan, causal=None)


def plan(run: str, checkpoint: dict, shards: Shards, config: Config) -> list[Plan]:
    """Return a run's plan. Raises InputError if the settings do not fit."""
    mask_rate = None if checkpoint["gpt"]["causal"] else checkpoint["config"]["mask_rate"]
    is_plain = config.protocol == "segments" and not config.stride
    if mask_rate and (config.cache_window or not is_plain):
        raise InputError(
            f"{run} is an encoder, which predicts the masked tokens of segments: "
            "remove --protocol, --stride and --cache_window"
        )
    lengths = cli.parse_lengths(config.lengths, checkpoint["gpt"]["block_size"])
    text = select_text(shards, lengths, config, mask_rate)
    protocol, cache = text.protocol, config.cache_window
    words = []  # of the record's file name: one record for each text and protocol
    if protocol["targets"]:
        words.append(f"same-targets{config.targets}")
    if config.within_documents:
        words.append("documents")
    if config.stride:
        words.append(f"stride{config.stride}")
    if cache:
        words.append(f"cache{cache}")
    if protocol["span"]:
        words.append(f"{protocol['spans']}x{protocol['span']}")
    return [
        Plan(
            measure=partial(measure, text=text),
            value="perplexity",
            shards=shards,
            lengths=lengths,
            protocol=protocol,
            identity={"cache_window": cache},
            file_words=([], words),
        )
    ]


def select_text(
    shards: Shards, lengths: list[int], config: Config, mask_rate: float | None = None
) -> Text:
    """Return the text of all lengths; InputError if the settings do not fit."""
    shortest, longest = lengths[0], lengths[-1]
    targets = config.targets if config.protocol == "same-targets" else None
    within, limit = config.within_documents, config.max_tokens or math.inf
    name, value = ("targets", targets) if targets else ("stride", config.stride or 0)
    if value > shortest:
        raise InputError(
            f"{name} {value} is more than the context length {shortest}: "
            f"lower --{name} or remove that length"
        )
    # raises InputError if the split is too short for one
    windows = data_loader.Windows(shards, longest)
    protocol = {"name": config.protocol, "stride": config.stride, "targets": targets}
    if mask_rate:
        protocol["mask_rate"] = mask_rate
    if not (targets or within):
        protocol["remainder"] = "counted"  # the end of a text fills a shorter window
    regions = [(n, 0, len(tokens) - 1) for n, tokens in enumerate(shards.tokens)]
    is_longer = sum(inputs for *_, inputs in regions) > limit
    if not (targets or within or config.windows or is_longer):
        protocol |= {"span": None, "spans": None, "overlap": 0.0}
        return Text(shards, config, protocol, regions)

    count = int(min(config.windows or len(windows), max(1, limit / longest)))
    step = 1 if targets and not within else longest
    regions, starts, documents = spread_regions(shards, longest, count, step, within)
    if within:
        protocol["documents"] = documents
    overlap = max(0.0, 1 - starts * step / len(regions) / longest)
    protocol |= {"span": longest, "spans": len(regions), "overlap": overlap}
    return Text(shards, config, protocol, regions)


def spread_regions(
    shards: Shards, length: int, count: int, step: int, within_documents: bool
) -> tuple[list[tuple[int, int, int]], int, int]:
    """Return regions, the number of possible starts, and that of documents.

    At most `count` regions of `length` inputs, evenly spaced over starts that are `step` apart in
    each shard or document. A document begins with the end-of-text token.
    """
    pieces = []  # shard and starts, of a shard or a document
    for shard, tokens in enumerate(shards.tokens):
        bounds = [0, len(tokens)]
        if within_documents:
            end = load_tokenizer(shards.tokenizer, shards.folder).eot
            bounds = [*np.flatnonzero(tokens[:] == end).tolist(), len(tokens)]
        for first, stop in itertools.pairwise(bounds):
            pieces.append((shard, range(first, stop - length, step)))
    first_numbers = np.cumsum([0, *(len(starts) for _, starts in pieces)])
    total = int(first_numbers[-1])
    if not total:
        raise InputError(
            f"no document in {shards.folder} has {length + 1} tokens: use shorter --lengths, or "
            "prepare data with --min_tokens"
        )
    numbers = data_loader.evenly_spaced(total, count)
    chosen = np.searchsorted(first_numbers, numbers, "right") - 1
    regions = []
    for piece, number in zip(chosen, numbers - first_numbers[chosen], strict=True):
        shard, starts = pieces[piece]
        regions.append((shard, starts[number], length))
    return regions, total, len({*chosen})


def list_windows(text: Text, length: int) -> list[Window]:
    """Return all windows in the order of the text, of at most `length` inputs.

    A stride is that of Hugging Face's guide "Perplexity of fixed-length models", in each region.
    """
    targets = text.protocol["targets"]
    mask_rate = text.protocol.get("mask_rate")
    stride = text.config.stride or length
    windows = []
    for shard, first, inputs in text.regions:
        if targets:
            offset = inputs - length
            windows.append(Window(shard, first + offset, length, targets, offset))
            continue
        # The first window ends `stride` tokens into the region, if the shard has enough before it.
        # Predictions before the region do not count.
        start, counted_to = max(0, first + stride - length), first
        while counted_to < first + inputs:
            end = min(start + length, first + inputs)
            counted = end - counted_to
            if mask_rate:
                counted = data_loader.masked_count(end - start, mask_rate)
            windows.append(Window(shard, start, end - start, counted, start - first))
            start, counted_to = start + stride, end
    return windows


def measure(loaded: LoadedRun, length: int, text: Text) -> dict:
    """Return the loss at a context length, in nats per token, and perplexity.

    loss: mean over all predictions that count, summed in float64.
    loss_se: its standard error over blocks of windows; None for one block.
    blocks, block_tokens: mean loss and number of predictions of each block. by_position, by_offset
    (with --within_documents): see bin_positions.
    """
    windows = np.array(list_windows(text, length))  # (windows, 5), see Window
    counts = windows[:, 3]
    sums, curves = sum_losses(loaded, text, windows, length)
    mean = sums.sum() / counts.sum()

    # Blocks of as many windows as overlap at a token are nearly independent.
    overlapping = -(-length // (text.config.stride or length))
    if text.protocol["targets"]:
        overlapping = math.ceil(1 / (1 - text.protocol["overlap"]))
    count = min(MAX_BLOCKS, max(1, len(windows) // overlapping))
    blocks = np.array_split(np.arange(len(windows)), count)
    block_tokens = np.array([counts[block].sum() for block in blocks])
    block_means = np.array([sums[block].sum() for block in blocks]) / block_tokens
    # Blocks may differ in their tokens: the mean is a ratio of two sums.
    deviations = (block_means - mean) * block_tokens / block_tokens.mean()
    return {
        "loss": float(mean),
        "loss_se": float(deviations.std(ddof=1) / math.sqrt(count)) if count > 1 else None,
        "perplexity": perplexity(mean),
        "windows": len(windows),
        "tokens": int(counts.sum()),
        "blocks": block_means.tolist(),
        "block_tokens": block_tokens.tolist(),
        **curves,
    }


def sum_losses(
    loaded: LoadedRun, text: Text, windows: np.ndarray, length: int
) -> tuple[np.ndarray, dict[str, dict]]:
    """Return summed losses of windows, (windows,) float64, and curves."""
    shapes = windows[:, 2:4]  # lengths and predictions that count
    sums, label = np.zeros(len(windows)), f"at {length:,}"
    mask_rate = text.protocol.get("mask_rate")
    totals = {"by_position": np.zeros((2, length))}  # sums and numbers of losses
    if text.config.within_documents:
        totals["by_offset"] = np.zeros((2, text.protocol["span"]))
    for size, counted in np.unique(shapes, axis=0).tolist():
        numbers = np.flatnonzero((shapes == (size, counted)).all(1))
        for batch in loaded.batches(numbers, size, label, "window"):
            starts = windows[batch, :2].tolist()
            if mask_rate:
                inputs, targets, positions = data_loader.read_masked_windows(
                    text.shards, starts, size, mask_rate
                )
            else:
                inputs, targets = data_loader.read_windows(text.shards, starts, size)
                targets = targets[:, -counted:]
                positions = torch.arange(size - counted, size).expand(targets.shape)
            places = {"by_position": positions.numpy()}
            places["by_offset"] = positions.numpy() + windows[batch, 4:]
            masked = positions if mask_rate else None
            losses = loaded.losses(inputs, targets, masked, text.config.cache_window)
            sums[batch] = losses.sum(1)
            for name, (total, count) in totals.items():
                np.add.at(total, places[name], losses)
                np.add.at(count, places[name], 1)
    curves = {name: bin_positions(*loaded.sum(total)) for name, total in totals.items()}
    return loaded.sum(sums), curves


def bin_positions(sums: np.ndarray, counts: np.ndarray) -> dict:
    """Return mean losses by position, in at most MAX_BINS bins from `first` on.

    sums, counts: (length,), of losses. None: a bin without predictions.
    """
    length = len(sums)
    first = int((counts > 0).argmax())
    width = -(-length // MAX_BINS)
    losses = []
    for start in range(first, length, width):
        count = counts[start : start + width].sum()
        losses.append(float(sums[start : start + width].sum() / count) if count else None)
    return {"first": first, "width": width, "loss": losses}


if __name__ == "__main__":
    cli.run(main)
