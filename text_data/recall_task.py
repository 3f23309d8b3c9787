"""Recall task: sequences in which earlier tokens determine some later ones.

Sequences consist of symbols, the token ids below SYMBOLS:

passage      8 symbols, filler, the same 8; targets: the last 6 of the copy
associative  8 pairs of key and value, filler, the pairs in another order;
             targets: the 8 values of the copy (MQAR, Arora et al. 2023)
periodic     4 to 32 symbols, repeated; targets: the repeated ones

The symbols of a passage, of the pairs or of a period differ
and are not in the filler: each counted token followed the only earlier copy of its predecessor.
Filler that is text has other symbols for its tokens in each sequence.

There are no further tokens: with tied embeddings, those that are never predicted delay learning
(`rope`: 350 steps, 900 with 320 embeddings). Sequences depend on the seed, the training step and
the window that they replace.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from data_loader import VOCABULARY_MULTIPLE, Shards, Windows
from errors import InputError

SYMBOLS = VOCABULARY_MULTIPLE
# Loss terms of each sequence, a multiple of 6 and 8, which repeat if fewer count.
TARGETS = 48
# Up to this fraction of training, all sequences are periodic; later, PERIODIC of them. A network
# first learns to predict symbols that it has read, then which.
CURRICULUM = 0.5
PERIODIC = 0.5
SHORTEST_PERIOD = 4
Filler = Literal["random", "text"]
FILLERS: tuple[Filler, ...] = ("random", "text")


@dataclass(frozen=True)
class Task:
    """A block of symbols that returns; which tokens of its second copy count."""

    name: str
    tokens: int
    counted: tuple[int, ...]  # offsets in the second copy
    has_pairs: bool = False  # pairs of two tokens, which return in another order


PASSAGE = Task("passage", 8, tuple(range(2, 8)))
ASSOCIATIVE = Task("associative", 16, tuple(range(1, 16, 2)), has_pairs=True)
TASKS = (PASSAGE, ASSOCIATIVE)
SHORTEST_LENGTH = 2 * max(task.tokens for task in TASKS)


class RecallWindows(Windows):
    """Sequences of the recall task in place of windows of text.

    sequences: of the whole training, for the curriculum. Raises InputError also if a sequence is
    too short for the task.
    """

    counts_correct = True

    def __init__(self, shards: Shards, length: int, sequences: int = 0):
        super().__init__(shards, length)
        self.curriculum = round(CURRICULUM * sequences)
        if length < SHORTEST_LENGTH:
            raise InputError(
                f"sequences of {length} tokens are too short for objective recall: use a "
                f"block_size of at least {SHORTEST_LENGTH}"
            )

    @property
    def targets_per_window(self) -> int:
        return TARGETS

    @property
    def padded_vocab_size(self) -> int:
        return SYMBOLS

    def batch(self, numbers, seed: tuple[int, ...] = ()) -> tuple[torch.Tensor, ...]:
        """Return inputs (n, length), targets and positions (n, TARGETS), int64.

        seed: the sampler's seed, epoch and index; () in validation.
        """
        inputs, next_tokens = super().batch(numbers)
        texts = torch.cat([inputs, next_tokens[:, -1:]], 1).numpy()  # (n, length + 1)
        periodic = 0.0
        if seed:
            _, epoch, index = seed
            periodic = 1.0 if epoch * len(self) + index < self.curriculum else PERIODIC
        rows, chosen = [], []
        for text, number in zip(texts, numbers, strict=True):
            generator = np.random.default_rng([*seed, *self.locate(number)])
            row, positions = self._make_sequence(text, periodic, generator)
            rows.append(row)
            chosen.append(np.resize(generator.permutation(positions), TARGETS))
        tokens = torch.from_numpy(np.stack(rows))
        positions = torch.from_numpy(np.stack(chosen))
        return tokens[:, :-1], tokens.gather(1, positions + 1), positions

    def _make_sequence(
        self, text: np.ndarray, periodic: float, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a sequence of a random kind, as `make_sequence` does."""
        tokens = len(text)
        if generator.random() < periodic:
            period = int(generator.integers(SHORTEST_PERIOD, min(tokens // 2, SYMBOLS) + 1))
            symbols = generator.permutation(SYMBOLS)[:period]
            return np.resize(symbols, tokens), np.arange(period, tokens - 1)
        task = TASKS[generator.integers(len(TASKS))]
        filler = FILLERS[generator.integers(len(FILLERS))]
        distance = int(generator.integers(task.tokens, tokens - task.tokens + 1))
        start = int(generator.integers(tokens - task.tokens - distance + 1))
        return make_sequence(text, task, filler, start, distance, generator)


def make_sequence(
    text: np.ndarray,
    task: Task,
    filler: Filler,
    start: int,
    distance: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return len(text) tokens, and the positions whose next tokens count.

    The task's block begins at `start`, its copy `distance` tokens later.
    """
    symbols = generator.permutation(SYMBOLS)
    block, others = symbols[: task.tokens], symbols[task.tokens :]
    copy = generator.permutation(block.reshape(-1, 2)).ravel() if task.has_pairs else block
    drawn = text if filler == "text" else generator.integers(len(others), size=len(text))
    tokens = others[drawn % len(others)]
    second = start + distance
    tokens[start : start + task.tokens] = block
    tokens[second : second + task.tokens] = copy
    return tokens, second - 1 + np.array(task.counted)
