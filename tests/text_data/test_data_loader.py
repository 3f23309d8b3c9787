"""Windows against the tokens they are cut from, the sampler, and what each process is given."""

import numpy as np
import pytest
import torch
from conftest import write_shards

from errors import InputError
from text_data import data_loader, shards


def test_windows_cover_every_token_once(folder):
    windows = data_loader.Windows(shards.Shards(folder, "train"), 7)
    assert len(windows) == 99 // 7 + 99 // 7 + 49 // 7
    inputs, targets = windows.batch(range(len(windows)))
    assert inputs.dtype == torch.int64 and torch.equal(inputs[:, 1:], targets[:, :-1])
    expected = [
        t
        for first, count in ((0, 14), (100, 14), (200, 7))
        for t in range(first + 1, first + 7 * count + 1)
    ]
    assert targets.flatten().tolist() == expected


def test_too_little_data_for_the_length(folder):
    assert len(data_loader.Windows(shards.Shards(folder, "train"), 99)) == 2
    with pytest.raises(
        InputError, match="has 250 tokens, too few for one window of 100 . 1: give it more text or"
    ):
        data_loader.Windows(shards.Shards(folder, "train"), 100)


def test_token_outside_the_vocabulary_is_named(tmp_path):
    folder = write_shards(tmp_path / "toy", [[1, 2, 3, 4, 400, 6, 7, 8, 9]])
    windows = data_loader.Windows(shards.Shards(folder, "train"), 4)
    with pytest.raises(
        InputError,
        match=r"toy_train_000000.bin: token 400 at offset 4 is outside the vocabulary of 257",
    ):
        windows.batch([0])


def test_sampler_visits_every_window_once_an_epoch():
    sampler = data_loader.Sampler(10, seed=3)
    epochs = [sampler.take(10).tolist() for _ in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != data_loader.Sampler(10, seed=4).take(10).tolist()


def test_sampler_order_does_not_depend_on_the_batch_and_goes_on_anywhere():
    stream = data_loader.Sampler(10, seed=3).take(47).tolist()
    sampler, taken = data_loader.Sampler(10, seed=3), []
    for count in (
        3,
        7,
        1,
        25,
    ):  # ends of epochs in the middle, at the end, and several in one batch
        taken += sampler.take(count).tolist()
    sampler = data_loader.Sampler(10, seed=3, epoch=sampler.epoch, index=sampler.index)
    assert taken + sampler.take(11).tolist() == stream


def test_evenly_spaced():
    assert data_loader.evenly_spaced(100, 4).tolist() == [0, 25, 50, 75]
    assert data_loader.evenly_spaced(3, 10).tolist() == [0, 1, 2]


def take(batches, count):
    return [next(batches) for _ in range(count)]


@pytest.mark.parametrize("processes, micro_batch", [(1, 6), (1, 2), (2, 3), (2, 1), (3, 2)])
def test_processes_share_every_step(folder, processes, micro_batch):
    """Steps of six windows: whoever takes which, together they are the sampler's next six, and all know where it stands."""
    windows = data_loader.Windows(shards.Shards(folder, "train"), 7)
    sampler, micro_batches = (
        data_loader.Sampler(len(windows), seed=3),
        6 // processes // micro_batch,
    )
    streams = [
        data_loader.micro_batches(
            windows, data_loader.Sampler(len(windows), seed=3), 6, micro_batch, rank, processes
        )
        for rank in range(processes)
    ]
    for _ in range(9):  # 54 windows: more than one epoch of 34
        parts = [take(stream, micro_batches) for stream in streams]
        numbers = [part[0] for process in parts for part in process]
        assert [len(part) for part in numbers] == [micro_batch] * (6 // micro_batch)
        assert np.concatenate(numbers).tolist() == sampler.take(6).tolist()
        for part_numbers, inputs, targets, position in (
            part for process in parts for part in process
        ):
            assert torch.equal(inputs, windows.batch(part_numbers)[0]) and torch.equal(
                targets, windows.batch(part_numbers)[1]
            )
            assert position == {"epoch": sampler.epoch, "index": sampler.index}


def test_the_first_token_outside_the_vocabulary_is_told(tmp_path):
    windows = data_loader.Windows(
        shards.Shards(write_shards(tmp_path / "toy", [[1, 2, 3, 257, 5]]), "train"), 4
    )
    with pytest.raises(InputError, match="token 257 at offset 3 is outside the vocabulary of 257"):
        windows.batch([0])


def test_reading_ahead_changes_no_order_and_hides_no_error():
    def batches():
        for number in range(5):
            yield [number, torch.tensor([number])]
        raise InputError("token 400 is outside the vocabulary")

    read = data_loader.prefetch(batches(), torch.device("cpu"))
    assert [(number, tensor.item()) for number, tensor in take(read, 5)] == [
        (n, n) for n in range(5)
    ]
    with pytest.raises(InputError, match="token 400"):
        next(read)


def test_batches_for_a_gpu_are_pinned_in_one_piece(monkeypatch):
    """A view that skips numbers would be copied to ordinary memory first, and the host wait for it."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: pinned.append(x) or x)
    monkeypatch.setattr(torch.Tensor, "to", lambda x, *_, **__: x)
    windows = torch.arange(12).view(3, 4)
    read = data_loader.prefetch(
        iter([[np.arange(3), windows[:, :-1], windows[:, 1:], {}]]), torch.device("cuda"), depth=1
    )
    with pytest.raises(RuntimeError):  # there is no second one
        list(read)
    assert [x.is_contiguous() for x in pinned] == [True, True] and torch.equal(
        pinned[1], windows[:, 1:]
    )


def test_reading_ahead_is_ahead_and_ends():
    """While the first batch is in use, the second and third are being read; closed, nothing is read any more."""
    import itertools
    import threading

    asked = []
    read = data_loader.prefetch(
        ([asked.append(n)] for n in itertools.count()), torch.device("cpu"), depth=2
    )
    next(read)
    for _ in range(1000):
        if len(asked) == 3:
            break
        threading.Event().wait(0.01)
    assert asked == [0, 1, 2]
    read.close()
    assert len(asked) == 3 and not [
        thread for thread in threading.enumerate() if "ThreadPool" in thread.name
    ]
