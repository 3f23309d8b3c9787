"""How do tokens get from shards to the model: windows of a text, their order, and their way to the device.

train = Windows(Shards("data/stdlib", "train"), length=256)     # every stretch of 257 tokens, 256 apart
sampler = Sampler(len(train), seed=1)
inputs, targets = train.batch(sampler.take(16))                 # (16, 256) int64 each
inputs, targets, places = MaskedWindows(shards, length=256, rate=0.15).batch(numbers)       # for an encoder
"""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from errors import InputError
from text_data.shards import Shards

BATCH_TOKENS = 16_384  # of one forward pass of an evaluation, padding included, or one text where that is longer


class Windows:
    """All stretches of length + 1 tokens, `length` apart, so that every token but a shard's first is a target once.

    A window never spans two shards; a shard's remainder is dropped. Raises InputError where not one window fits.
    """

    def __init__(self, shards: Shards, length: int):
        self.shards, self.length = shards, length
        self.first = np.cumsum(
            [0, *((len(tokens) - 1) // length for tokens in shards.tokens)]
        )  # window number, by shard
        if not len(self):
            raise InputError(
                f"{shards.folder} ({shards.split}) has {shards.total} tokens, too few for one window of "
                f"{length} + 1: give it more text or choose a shorter context"
            )

    def __len__(self) -> int:
        return int(self.first[-1])

    def locate(self, number: int) -> tuple[int, int]:
        """The shard of a window, counted from 0, and the token in it that the window begins with."""
        shard = int(np.searchsorted(self.first, number, "right")) - 1
        return shard, (int(number) - int(self.first[shard])) * self.length

    @property
    def predicted(self) -> int:
        """Targets of one window."""
        return self.length

    def batch(self, numbers, visit: tuple[int, ...] = ()) -> tuple[torch.Tensor, ...]:
        """Inputs and targets of the windows with these numbers, as `rows` gives them.

        visit: whole numbers that tell one visit to a window from another, for windows that are not the same every time.
        """
        return read_windows(self.shards, map(self.locate, numbers), self.length)


class MaskedWindows(Windows):
    """Windows some of whose tokens are to be restored, others at every visit; `batch` is that of `masked_rows`."""

    def __init__(self, shards: Shards, length: int, rate: float):
        super().__init__(shards, length)
        assert shards.vocab_size < shards.padded_vocab_size  # room for <|mask|>
        self.rate = rate

    @property
    def predicted(self) -> int:
        return masked_count(self.length, self.rate)

    def batch(self, numbers, visit=()):
        return read_masked_windows(
            self.shards, map(self.locate, numbers), self.length, self.rate, visit
        )


def read_windows(shards: Shards, places, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of `length` tokens from each place (shard, first token) on: two (n, length) int64.

    Raises InputError, naming shard and offset, for a token outside the vocabulary.
    """
    found = []
    for shard, offset in places:
        row = shards.tokens[shard][offset : offset + length + 1].astype(np.int64)
        if row.max() >= shards.vocab_size:
            bad = int((row >= shards.vocab_size).argmax())
            raise InputError(
                f"{shards.paths[shard]}: token {row[bad]} at offset {offset + bad} is outside the "
                f"vocabulary of {shards.vocab_size}: prepare the data again"
            )
        found.append(row)
    windows = torch.from_numpy(np.stack(found))
    return windows[:, :-1], windows[:, 1:]


def masked_count(length: int, rate: float) -> int:
    """How many of `length` tokens are chosen where a share `rate` of them is."""
    return max(1, round(rate * length))


def read_masked_windows(
    shards: Shards, places, length: int, rate: float, visit: tuple[int, ...] = ()
) -> tuple[torch.Tensor, ...]:
    """For masked language modeling (Devlin et al. 2019, section 3.1): inputs (n, length), and of `masked_count` tokens of each, chosen at
    random, what they were and where they are, ascending, both (n, t); all int64.

    Of those chosen, 80% are <|mask|> in the inputs, the first number that no token of the vocabulary has; 10% a token at random, 10%
    themselves. Drawn from (visit, place) alone: the same for every batch size and number of processes.
    """
    places = list(places)
    tokens, at = read_windows(shards, places, length)[0], []
    inputs = tokens.numpy().copy()
    for row, place in zip(inputs, places):
        generator = np.random.default_rng([*visit, *place])
        chosen = np.sort(generator.permutation(length)[: masked_count(length, rate)])
        kinds = generator.random(len(chosen))
        row[chosen] = np.where(
            kinds < 0.8,
            shards.vocab_size,
            np.where(
                kinds < 0.9, generator.integers(shards.vocab_size, size=len(chosen)), row[chosen]
            ),
        )
        at.append(chosen)
    at = torch.from_numpy(np.stack(at))
    return torch.from_numpy(inputs), tokens.gather(1, at), at


class Sampler:
    """The order of training: each epoch one permutation of all windows, drawn from (seed, epoch).

    The position is two integers, epoch and index within it, so that a run can stop and go on anywhere.
    """

    def __init__(self, windows: int, seed: int, epoch: int = 0, index: int = 0):
        self.windows, self.seed, self.epoch, self.index = windows, seed, epoch, index
        self._shuffle()

    def take(self, count: int) -> np.ndarray:
        """The next `count` window numbers, int64, running on into the next epoch where this one ends."""
        taken = []
        while count:
            part = self.order[self.index : self.index + count]
            taken.append(part)
            count -= len(part)
            self.index += len(part)
            if self.index == self.windows:
                self.epoch, self.index = self.epoch + 1, 0
                self._shuffle()
        return np.concatenate(taken)

    def _shuffle(self) -> None:
        self.order = np.random.default_rng([self.seed, self.epoch]).permutation(self.windows)


def micro_batches(
    windows: Windows,
    sampler: Sampler,
    sequences: int,
    micro_batch: int,
    rank: int = 0,
    processes: int = 1,
):
    """Endless micro-batches of process `rank`: (window numbers, what their batch is, the sampler's position after their step).

    A step takes the sampler's next `sequences` windows, the same ones whatever the number of processes; each process takes
    an equal stretch of them, micro_batch at a time.
    """
    share = sequences // processes
    while True:
        visit = sampler.seed, sampler.epoch, sampler.index
        numbers = sampler.take(sequences)[rank * share : (rank + 1) * share]
        position = {"epoch": sampler.epoch, "index": sampler.index}
        for start in range(0, share, micro_batch):
            chunk = numbers[start : start + micro_batch]
            yield chunk, *windows.batch(chunk, visit), position


def prefetch(batches, device: torch.device, depth: int = 2):
    """What `batches` yields, read `depth` items ahead by a thread; for a GPU, tensors are put into pinned memory there, in one piece
    each, and sent off without waiting for them to arrive."""

    def fetch():
        item = next(batches)
        return [
            x.contiguous().pin_memory() if pinned and isinstance(x, torch.Tensor) else x
            for x in item
        ]

    pinned = device.type == "cuda"
    with ThreadPoolExecutor(1) as thread:
        waiting = deque(thread.submit(fetch) for _ in range(depth))
        try:
            while True:
                item = waiting.popleft().result()
                waiting.append(thread.submit(fetch))
                yield [
                    x.to(device, non_blocking=True) if isinstance(x, torch.Tensor) else x
                    for x in item
                ]
        finally:
            for future in waiting:
                future.cancel()


def evenly_spaced(total: int, count: int) -> np.ndarray:
    """`count` of the numbers 0 .. total - 1 (all of them where there are no more), spread over the whole range."""
    return np.linspace(0, total, min(count, total), endpoint=False).astype(np.int64)
