"""Data loader: windows of token shards, their order, and batches on the device.

    train = Windows(Shards("data/stdlib", "train"), length=256)  # 257 tokens
    sampler = Sampler(len(train), seed=1)
    inputs, targets = train.batch(sampler.take(16))  # (16, 256) int64 each

`micro_batches` yields the batches of one rank; `prefetch` reads them ahead.
"""

from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from errors import InputError
from text_data.shards import Shards

# Tokens per forward pass of an evaluation, with padding, or one longer text.
BATCH_TOKENS = 16_384


class Windows:
    """Windows of length + 1 tokens, `length` apart, none across two shards.

    A shard's first token and its remainder are never targets, the
    others once. Raises InputError if no window fits.
    """

    counts_correct = (
        False  # whether a validation reports the fraction of correct predictions
    )

    def __init__(self, shards: Shards, length: int):
        self.shards = shards
        self.length = length
        per_shard = ((len(tokens) - 1) // length for tokens in shards.tokens)
        # Number of each shard's first window, then the number of windows.
        self.first = np.cumsum([0, *per_shard])
        if not len(self):
            raise InputError(
                f"{shards.folder} ({shards.split}) has {shards.total} tokens, too few for one "
                f"window of {length} + 1: prepare more text or use a shorter context"
            )

    def __len__(self) -> int:
        return int(self.first[-1])

    def locate(self, number: int) -> tuple[int, int]:
        """Return the shard of a window, and its offset there."""
        shard = int(np.searchsorted(self.first, number, "right")) - 1
        return shard, (int(number) - int(self.first[shard])) * self.length

    @property
    def targets_per_window(self) -> int:
        return self.length

    @property
    def padded_vocab_size(self) -> int:
        """Number of embeddings of a model that reads the batches."""
        return self.shards.padded_vocab_size

    def batch(self, numbers, seed: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
        """Return what `read_windows` does; subclasses use `seed`."""
        return read_windows(self.shards, map(self.locate, numbers), self.length)


class MaskedWindows(Windows):
    """Windows for masked language modeling, with targets at a fraction `rate`."""

    def __init__(self, shards: Shards, length: int, rate: float):
        super().__init__(shards, length)
        assert shards.vocab_size < shards.padded_vocab_size  # room for <|mask|>
        self.rate = rate

    @property
    def targets_per_window(self) -> int:
        return masked_count(self.length, self.rate)

    def batch(self, numbers, seed: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
        positions = map(self.locate, numbers)
        return read_masked_windows(self.shards, positions, self.length, self.rate, seed)


def read_windows(shards: Shards, positions, length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of windows, two (n, length) int64 tensors.

    positions: n pairs (shard, offset of the first token). Raises
    InputError for a token outside the vocabulary.
    """
    positions = list(positions)
    for shard, offset in positions:  # a network disk then serves all windows at once
        shards.tokens[shard].prefetch(offset, length + 1)
    rows = []
    for shard, offset in positions:
        row = shards.tokens[shard][offset : offset + length + 1].astype(np.int64)
        if row.max() >= shards.vocab_size:
            bad = int((row >= shards.vocab_size).argmax())
            raise InputError(
                f"{shards.paths[shard]}: token {row[bad]} at offset {offset + bad} is outside the "
                f"vocabulary of {shards.vocab_size}: prepare the data again"
            )
        rows.append(row)
    windows = torch.from_numpy(np.stack(rows))
    return windows[:, :-1], windows[:, 1:]


def masked_count(length: int, rate: float) -> int:
    """Return how many of `length` tokens are masked, at least one."""
    return max(1, round(rate * length))


def read_masked_windows(
    shards: Shards, positions, length: int, rate: float, mask_seed: tuple[int, ...] = ()
) -> tuple[Tensor, ...]:
    """Return inputs (n, length), targets and masked positions (n, t), int64.

    Of t = masked_count(length, rate) random tokens per window, 80%
    become <|mask|> (the first id after the vocabulary), 10% a random
    token, 10% stay (Devlin et al. 2019, section 3.1). They depend only
    on mask_seed and the window's position. Other arguments and errors:
    `read_windows`.
    """
    positions = list(positions)
    tokens, _ = read_windows(shards, positions, length)
    inputs = tokens.numpy().copy()
    chosen_by_row = []
    for row, position in zip(inputs, positions, strict=True):
        generator = np.random.default_rng([*mask_seed, *position])
        chosen = np.sort(generator.permutation(length)[: masked_count(length, rate)])
        kinds = generator.random(len(chosen))
        random_tokens = generator.integers(shards.vocab_size, size=len(chosen))
        replaced = np.where(kinds < 0.9, random_tokens, row[chosen])
        row[chosen] = np.where(kinds < 0.8, shards.vocab_size, replaced)
        chosen_by_row.append(chosen)
    masked_positions = torch.from_numpy(np.stack(chosen_by_row))
    targets = tokens.gather(1, masked_positions)
    return torch.from_numpy(inputs), targets, masked_positions


class Sampler:
    """The order of training: a permutation of all windows per (seed, epoch).

    Its state is `epoch` and `index` in it. Raises InputError for an
    index that the data does not have.
    """

    def __init__(self, windows: int, seed: int, epoch: int = 0, index: int = 0):
        if index >= windows:
            raise InputError(
                f"the checkpoint resumes at window {index} of the data, which has {windows} "
                "windows: use an earlier checkpoint, or start a new run with --init_from"
            )
        self.windows = windows
        self.seed = seed
        self.epoch = epoch
        self.index = index
        self._shuffle()

    def take(self, count: int) -> np.ndarray:
        """Return the next `count` window numbers, int64, across epochs."""
        taken = []
        while count:
            part = self.order[self.index : self.index + count]
            taken.append(part)
            count -= len(part)
            self.index += len(part)
            if self.index == self.windows:
                self.epoch += 1
                self.index = 0
                self._shuffle()
        return np.concatenate(taken)

    def _shuffle(self) -> None:
        generator = np.random.default_rng([self.seed, self.epoch])
        self.order = generator.permutation(self.windows)


def micro_batches(
    windows: Windows,
    sampler: Sampler,
    sequences: int,
    micro_batch: int,
    rank: int = 0,
    world_size: int = 1,
):
    """Yield the micro-batches of one rank, without end.

    A step takes the sampler's next `sequences` windows, each rank an
    equal, contiguous part. Yields (window numbers, *tensors of
    `windows.batch`, sampler state after the step as {"epoch": int,
    "index": int}).
    """
    per_rank = sequences // world_size
    while True:
        seed = (sampler.seed, sampler.epoch, sampler.index)
        numbers = sampler.take(sequences)[rank * per_rank : (rank + 1) * per_rank]
        state = {"epoch": sampler.epoch, "index": sampler.index}
        for start in range(0, per_rank, micro_batch):
            chunk = numbers[start : start + micro_batch]
            yield chunk, *windows.batch(chunk, seed), state


def prefetch(
    batches, device: torch.device, depth: int = 2
) -> Generator[list[Any], None, None]:
    """Yield `batches` with tensors on `device`, read `depth` ahead by a thread."""

    def read_next():
        item = next(batches)
        if device.type == "cuda":
            # A strided view would be copied to pageable memory, with a wait.
            item = [x.contiguous().pin_memory() if torch.is_tensor(x) else x for x in item]
        return item

    with ThreadPoolExecutor(1) as thread:
        waiting = deque(thread.submit(read_next) for _ in range(depth))
        try:
            while True:
                item = waiting.popleft().result()
                waiting.append(thread.submit(read_next))
                yield [
                    x.to(device, non_blocking=True) if torch.is_tensor(x) else x
                    for x in item
                ]
        finally:
            for future in waiting:
                future.cancel()


def rank_share(numbers: np.ndarray, rank: int, world_size: int) -> tuple[np.ndarray, int]:
    """Return a rank's part, padded to one length, and how many count."""
    size = -(-len(numbers) // world_size)
    own = numbers[rank * size : (rank + 1) * size]
    return np.append(own, np.repeat(numbers[:1], size - len(own))), len(own)


def evenly_spaced(total: int, count: int) -> np.ndarray:
    """Return min(count, total) evenly spaced numbers below total, int64."""
    return np.linspace(0, total, min(count, total), endpoint=False).astype(np.int64)
