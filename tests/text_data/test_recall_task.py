"""Tests of text_data/recall_task.py: what counts is determined, what is filler, seeds and ranks."""

import itertools

import numpy as np
import pytest
import torch
from conftest import write_shards

import data_loader
from data_loader import Shards
from errors import InputError
from text_data import recall_task
from text_data.recall_task import ASSOCIATIVE, FILLERS, PASSAGE, TARGETS, TASKS, RecallWindows

VOCAB = 40
CURRICULUM = 120  # sequences: two epochs and 20 windows


@pytest.fixture
def windows(tmp_path):
    """50 windows of 32 tokens for training, all in one shard."""
    tokens = np.random.default_rng(0).integers(VOCAB, size=50 * 32 + 1)
    folder = write_shards(tmp_path / "toy", [tokens], 10**6, VOCAB)
    return RecallWindows(Shards(folder, "train"), 32, sequences=2 * CURRICULUM)


def predict(tokens, position):
    """What followed the token at a position wherever it was before; None if that differs."""
    before = [n for n in range(position) if tokens[n] == tokens[position]]
    followers = {int(tokens[n + 1]) for n in before}
    return followers.pop() if len(followers) == 1 else None


def test_counted_targets_are_determined_by_earlier_tokens(windows):
    counts = []  # of different targets in a sequence
    for seed in range(4):
        inputs, targets, positions = windows.batch(range(50), (seed, 0, CURRICULUM))
        assert inputs.shape == (50, 32) and targets.shape == positions.shape == (50, TARGETS)
        assert inputs.dtype == targets.dtype == positions.dtype == torch.int64
        assert inputs.max() < recall_task.SYMBOLS == windows.padded_vocab_size
        for row, row_targets, row_positions in zip(inputs, targets, positions, strict=True):
            for target, position in zip(row_targets.tolist(), row_positions.tolist(), strict=True):
                assert predict(row, position) == target
                if position < 31:
                    assert row[position + 1] == target
            counts.append(len(set(row_positions.tolist())))
    # Six tokens of a passage, eight values, or at least half of a periodic sequence.
    expected = (1 - recall_task.PERIODIC) / 2
    for count in (6, 8):
        assert counts.count(count) / len(counts) == pytest.approx(expected, abs=0.08)
    assert all(different >= 16 for different in counts if different not in (6, 8))


@pytest.mark.parametrize("task, filler", [*itertools.product(TASKS, FILLERS)])
def test_sequence_is_filler_and_two_copies_of_its_symbols(task, filler):
    generator = np.random.default_rng(0)
    text = generator.integers(VOCAB, size=100)
    start, second = 7, 57
    tokens, positions = recall_task.make_sequence(text, task, filler, start, 50, generator)
    ends = start + task.tokens, second + task.tokens
    first, copy = tokens[start : ends[0]], tokens[second : ends[1]]
    rest = np.concatenate([tokens[:start], tokens[ends[0] : second], tokens[ends[1] :]])
    assert len(set(first)) == task.tokens and not set(first) & set(rest)
    if filler == "text":
        read = np.concatenate([text[:start], text[ends[0] : second], text[ends[1] :]])
        names = dict(zip(read, rest, strict=True))  # of each token of the text, one symbol
        assert rest.tolist() == [names[token] for token in read] and len(names) > 20
        assert len(set(names.values())) == len(names)
    else:
        assert len(set(rest)) > 20
    if task is PASSAGE:
        assert first.tolist() == copy.tolist()
        counted = range(second + 2, second + 8)
    else:
        both = np.concatenate([first, copy])
        pairs = [*map(tuple, both.reshape(-1, 2).tolist())]
        assert pairs[:8] != pairs[8:] and set(pairs[:8]) == set(pairs[8:])
        counted = range(second + 1, second + 16, 2)
    assert positions.tolist() == [target - 1 for target in counted]


def test_training_starts_with_periodic_sequences(windows):
    """In the first half of the training, also across epochs."""
    epochs, index = divmod(CURRICULUM, len(windows))
    before = divmod(CURRICULUM - 1, len(windows))
    for epoch_and_index in ((0, 0), before):
        _, _, positions = windows.batch(range(50), (0, *epoch_and_index))
        assert all(len(set(row.tolist())) >= 16 for row in positions)
    _, _, positions = windows.batch(range(50), (0, epochs, index))
    assert {6, 8} < {len(set(row.tolist())) for row in positions}


def test_validation_has_no_periodic_sequences(data_dir):
    windows = RecallWindows(Shards(data_dir, "val"), 32)
    _, _, positions = windows.batch(range(50))
    assert {len(set(row.tolist())) for row in positions} == {6, 8}
    first, second = windows.batch([3]), windows.batch([3])
    assert all(map(torch.equal, first, second))


@pytest.mark.parametrize("world_size, micro_batch", [(1, 2), (2, 3), (3, 1)])
def test_sequences_depend_on_seed_and_step_only(windows, world_size, micro_batch):
    def read_step(world_size, micro_batch, seed=5):
        rows = []
        for rank in range(world_size):
            sampler = data_loader.Sampler(len(windows), seed)
            batches = data_loader.micro_batches(windows, sampler, 6, micro_batch, rank, world_size)
            rows += [next(batches)[1] for _ in range(6 // world_size // micro_batch)]
        return torch.cat(rows)

    whole = read_step(1, 6)
    assert torch.equal(read_step(world_size, micro_batch), whole)
    assert not torch.equal(read_step(1, 6, seed=6), whole)
    first, second = windows.batch([3], (1, 0, 0))[0], windows.batch([3], (1, 0, 6))[0]
    assert not torch.equal(first, second)  # of the same window in another step


def test_too_short_sequences_are_refused(windows):
    assert ASSOCIATIVE.tokens == 16
    with pytest.raises(InputError, match="31 tokens are too short .* block_size of at least 32"):
        RecallWindows(windows.shards, 31)
