"""Tests of the data loader: shards, windows, sampler, micro-batches per rank, and prefetch."""

import itertools
import os
import resource
import shutil
import threading

import numpy as np
import pytest
import torch
from conftest import write_shards

import data_loader
from errors import InputError

LAST = "toy_train_000002.bin"


def overwrite(path, offset, content):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(content)


def write_meta(shard, text):
    (shard.parent / "meta.json").write_text(text)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda shard: shard.unlink(), "does not exist: run the preparation again"),
        (lambda shard: shard.write_bytes(b""), "is not a shard"),
        (
            lambda shard: os.truncate(shard, 1024 + 198),
            "holds 99 tokens, its header says 100, meta.json 100: "
            "remove it and run the preparation again",
        ),
        (lambda shard: overwrite(shard, 8, b"\x5a"), "its header says 90, meta.json 100"),
        (lambda shard: overwrite(shard, 8, b"\0"), "is empty"),
        (lambda shard: overwrite(shard, 0, b"\x01"), "is not a shard"),
        (lambda shard: overwrite(shard, 4, b"\x07"), "is a shard of version 7, not 1 or 2"),
        (lambda shard: overwrite(shard, 1024, b"\x09"), "has been changed since it was written"),
        (lambda shard: shutil.copy(shard.with_name(LAST), shard), "meta.json 100"),
        (lambda shard: write_meta(shard, '{"complete'), "meta.json cannot be read"),
        (lambda shard: write_meta(shard, "[]"), "meta.json: expected object, got array"),
    ],
)
def test_each_problem_is_reported_in_one_line(folder, damage, message):
    damage(folder / "toy_train_000001.bin")
    with pytest.raises(InputError) as error:
        data_loader.Shards(folder, "train")
    assert len(error.value.problems) == 1 and message in error.value.problems[0]


def test_hashing_can_be_turned_off(folder, monkeypatch):
    """By default, large data is not hashed."""
    overwrite(folder / "toy_train_000001.bin", 1024, b"\x09")
    assert data_loader.Shards(folder, "train", verify="never").total == 250
    monkeypatch.setattr(data_loader, "AUTO_VERIFY_TOKENS", 249)
    assert data_loader.Shards(folder, "train").total == 250
    for limit, verify in ((249, "always"), (250, "auto")):
        monkeypatch.setattr(data_loader, "AUTO_VERIFY_TOKENS", limit)
        with pytest.raises(InputError, match="has been changed"):
            data_loader.Shards(folder, "train", verify)


def test_truncated_file_is_reported_when_it_is_read(folder):
    """A memory-mapped file would end the process with SIGBUS."""
    train = data_loader.Shards(folder, "train")
    os.truncate(train.tokens[0].path, 1024 + 2 * 40)
    assert train.tokens[0][:40].tolist() == list(range(40))
    message = "toy_train_000000.bin cannot be read any more .it is shorter than before."
    with pytest.raises(InputError, match=message):
        train.tokens[0][30:50]
    assert train.tokens[1][::40].tolist() == [100, 140, 180]
    train.tokens[1].path.unlink()
    with pytest.raises(InputError, match="any more .No such file or directory.: prepare"):
        train.tokens[1][:7]


def test_slices_of_a_file_are_those_of_its_array(folder):
    tokens = data_loader.Shards(folder, "train").tokens[0]
    array = np.arange(100, dtype=np.uint16)
    for part in (slice(None), slice(3, 7), slice(7, 3), slice(-5, None), slice(95, 200)):
        assert tokens[part].dtype == np.uint16
        assert tokens[part].tolist() == array[part].tolist()


def test_more_shards_than_open_files_are_allowed(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = write_shards(tmp_path / "many", [np.arange(300) % 9], shard_tokens=1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 100, hard))
    try:
        opened = data_loader.Shards(folder, "train")
        assert [int(tokens[:][0]) for tokens in opened.tokens] == [n % 9 for n in range(300)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_windows_cover_every_token_once(folder):
    windows = data_loader.Windows(data_loader.Shards(folder, "train"), 7)
    assert len(windows) == 99 // 7 + 99 // 7 + 49 // 7
    inputs, targets = windows.batch(range(len(windows)))
    assert inputs.dtype == torch.int64 and torch.equal(inputs[:, 1:], targets[:, :-1])
    expected = []
    for first, count in ((0, 14), (100, 14), (200, 7)):
        expected += range(first + 1, first + 7 * count + 1)
    assert targets.flatten().tolist() == expected


def test_too_few_tokens_for_one_window(folder):
    assert len(data_loader.Windows(data_loader.Shards(folder, "train"), 99)) == 2
    message = "has 250 tokens, too few for one window of 100 . 1: prepare more text or"
    with pytest.raises(InputError, match=message):
        data_loader.Windows(data_loader.Shards(folder, "train"), 100)


@pytest.mark.parametrize("token", [400, 257])  # 257: the first id after the vocabulary
def test_token_outside_the_vocabulary_is_reported_with_shard_and_offset(tmp_path, token):
    folder = write_shards(tmp_path / "toy", [[1, 2, 3, 4, token, 6, 7, 8, 9]])
    windows = data_loader.Windows(data_loader.Shards(folder, "train"), 4)
    message = f"toy_train_000000.bin: token {token} at offset 4 is outside the vocabulary of 257"
    with pytest.raises(InputError, match=message):
        windows.batch([0])


def test_sampler_visits_every_window_once_per_epoch():
    sampler = data_loader.Sampler(10, seed=3)
    epochs = [sampler.take(10).tolist() for _ in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != data_loader.Sampler(10, seed=4).take(10).tolist()


def test_sampler_order_is_independent_of_batch_size_and_resumes_anywhere():
    expected = data_loader.Sampler(10, seed=3).take(47).tolist()
    sampler, taken = data_loader.Sampler(10, seed=3), []
    # An epoch ends within a batch, at the end of a batch, and several times in one batch.
    for count in (3, 7, 1, 25):
        taken += sampler.take(count).tolist()
    sampler = data_loader.Sampler(10, seed=3, epoch=sampler.epoch, index=sampler.index)
    assert taken + sampler.take(11).tolist() == expected


def test_evenly_spaced():
    assert data_loader.evenly_spaced(100, 4).tolist() == [0, 25, 50, 75]
    assert data_loader.evenly_spaced(3, 10).tolist() == [0, 1, 2]


def take(batches, count):
    return [next(batches) for _ in range(count)]


@pytest.mark.parametrize("world_size, micro_batch", [(1, 6), (1, 2), (2, 3), (2, 1), (3, 2)])
def test_ranks_share_every_step(folder, world_size, micro_batch):
    """In each step the ranks together read the sampler's next six windows, and all agree on its
    state after the step."""
    windows = data_loader.Windows(data_loader.Shards(folder, "train"), 7)
    sampler = data_loader.Sampler(len(windows), seed=3)
    per_rank = 6 // world_size // micro_batch
    loaders = []
    for rank in range(world_size):
        own = data_loader.Sampler(len(windows), seed=3)
        loader = data_loader.micro_batches(windows, own, 6, micro_batch, rank, world_size)
        loaders.append(loader)
    for _ in range(9):  # 54 windows: more than one epoch of 34
        batches = [batch for loader in loaders for batch in take(loader, per_rank)]
        numbers = [batch[0] for batch in batches]
        assert [len(part) for part in numbers] == [micro_batch] * (6 // micro_batch)
        assert np.concatenate(numbers).tolist() == sampler.take(6).tolist()
        for batch_numbers, inputs, targets, state in batches:
            expected_inputs, expected_targets = windows.batch(batch_numbers)
            assert torch.equal(inputs, expected_inputs)
            assert torch.equal(targets, expected_targets)
            assert state == {"epoch": sampler.epoch, "index": sampler.index}


def test_prefetch_keeps_the_order_and_raises_errors():
    def batches():
        for number in range(5):
            yield [number, torch.tensor([number])]
        raise InputError("token 400 is outside the vocabulary")

    loader = data_loader.prefetch(batches(), torch.device("cpu"))
    items = [(number, tensor.item()) for number, tensor in take(loader, 5)]
    assert items == [(n, n) for n in range(5)]
    with pytest.raises(InputError, match="token 400"):
        next(loader)


def test_prefetch_reads_ahead_and_stops_when_closed():
    """While the first item is in use, the second and third are read; after close(), none."""
    read = []
    earlier_threads = set(threading.enumerate())  # libraries in other tests keep thread pools
    items = ([read.append(n)] for n in itertools.count())
    loader = data_loader.prefetch(items, torch.device("cpu"), depth=2)
    next(loader)
    for _ in range(1000):
        if len(read) == 3:
            break
        threading.Event().wait(0.01)
    assert read == [0, 1, 2]
    assert len(set(threading.enumerate()) - earlier_threads) == 1
    loader.close()
    assert len(read) == 3
    assert set(threading.enumerate()) <= earlier_threads


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 8])
def test_ranks_share_numbers_in_parts_of_one_length(world_size):
    """The parts without their padding are all numbers, in order."""
    numbers = np.arange(10, 17)
    shares = [data_loader.rank_share(numbers, rank, world_size) for rank in range(world_size)]
    assert len({len(part) for part, _ in shares}) == 1
    assert np.array_equal(np.concatenate([part[:count] for part, count in shares]), numbers)
    assert all(set(part) <= set(numbers) for part, _ in shares)
