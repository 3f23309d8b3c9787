"""Tests of eval_extrapolation.py: protocols against plain loops over tokens, records, errors."""

import json
import math
from unittest import mock

from runtime import files

import numpy as np
import pytest
import torch
from conftest import KINDS, LIMITED, evaluation, save_checkpoint, write_shards

import data_loader
import eval_extrapolation
from training import checkpoints

CPU = torch.device("cpu")


def evaluate(*flags):
    """Run the program in float32 on the CPU."""
    eval_extrapolation.main([*map(str, flags), "--device", "cpu", "--dtype", "float32"])


def read_record(run, name="toy_val"):
    """The record of `run`, the newest of those with this name."""
    return json.loads(evaluation(run, name).read_text())


@pytest.fixture
def val_tokens(data_dir):
    return torch.from_numpy(data_loader.Shards(data_dir, "val").tokens[0][:].astype(np.int64))


def token_losses(model, tokens, start, length):
    """The loss of each prediction of one window, by a forward pass of its own."""
    with torch.no_grad():
        logits = model(tokens[None, start : start + length])[0, :, :257]  # without padding
    logits = logits.double().log_softmax(-1)
    targets = tokens[start + 1 : start + length + 1]
    return (-logits[torch.arange(length), targets]).numpy()


def load(folder):
    return checkpoints.load_model(folder, CPU)[0]


def ratio_error(blocks):
    """Standard error of the mean of all losses in the blocks, which is a ratio of two sums."""
    mean, count = np.concatenate(blocks).mean(), len(blocks)
    squares = sum((block.sum() - mean * len(block)) ** 2 for block in blocks)
    return math.sqrt(squares * count / (count - 1)) / sum(map(len, blocks))


def join_blocks(losses, blocks):
    """The losses of windows, joined into so many blocks of neighboring windows."""
    return [
        np.concatenate([losses[n] for n in block])
        for block in np.array_split(np.arange(len(losses)), blocks)
    ]


@pytest.mark.parametrize("tokens, lengths", [(283_287, (512, 1024, 8192, 15360)), (700, (64, 96))])
@pytest.mark.parametrize("stride", [None, 50])
@pytest.mark.parametrize("limit", [None, 200_000, 10**9, "all", "all but one"])
def test_every_length_predicts_the_same_tokens(tokens, lengths, stride, limit, tmp_path):
    """All of the split if it is within the limit; 283,287: WikiText-103's test set. Two shards.

    Those after a stride have full contexts, also from before their region.
    """
    zeros = np.zeros(tokens, np.uint8)
    folder = write_shards(tmp_path / "toy", [zeros], shard_tokens=int(0.6 * tokens))
    split = data_loader.Shards(folder, "train")
    inputs = sum(len(part) - 1 for part in split.tokens)
    limit = {"all": inputs, "all but one": inputs - 1}.get(limit, limit)
    flags = {"lengths": ",".join(map(str, lengths)), "stride": stride, "max_tokens": limit}
    config = eval_extrapolation.Config(runs=["none"], **flags)
    text = eval_extrapolation.select_text(split, list(lengths), config)
    protocol, regions = text.protocol, text.regions
    everything = {(n, i) for n, part in enumerate(split.tokens) for i in range(1, len(part))}
    expected = everything
    if limit and limit < inputs:
        windows = sum((len(part) - 1) // lengths[-1] for part in split.tokens)
        spans = min(windows, limit // lengths[-1])
        assert (protocol["span"], protocol["spans"]) == (lengths[-1], spans)
        expected = {(n, start + 1 + i) for n, start, size in regions for i in range(size)}
        assert len(expected) == spans * lengths[-1] and expected < everything
    ends = {(n, start + size) for n, start, size in regions}
    for length in lengths:
        counted = []
        for window in eval_extrapolation.list_windows(text, length):
            end = window.start + window.length
            counted += [(window.shard, end - n) for n in range(window.counted)]
            assert window.length == length or (window.shard, end) in ends
            assert not (stride and window.start) or window.counted <= stride
        assert len(counted) == len(expected) and set(counted) == expected


def hugging_face_losses(model, tokens, max_length, stride):
    """Losses by the recipe of Hugging Face's guide "Perplexity of fixed-length models".

    There, max_length includes the token that is only predicted, and the labels of tokens that
    another window has predicted are -100.
    """
    losses, windows, previous_end = [], 0, 0
    for begin in range(0, len(tokens), stride):
        end = min(begin + max_length, len(tokens))
        labels = tokens[begin:end].clone()
        labels[: -(end - previous_end)] = -100
        with torch.no_grad():
            logits = model(tokens[None, begin:end])[0, :-1, :257].double()
        loss = torch.nn.functional.cross_entropy(logits, labels[1:], reduction="none")
        losses.append(loss[labels[1:] != -100].numpy())
        previous_end, windows = end, windows + 1
        if end == len(tokens):
            break
    return losses


@pytest.mark.parametrize(
    "length, stride, last, disjoint", [(16, None, 8, 1), (40, None, 40, 1), (48, 20, 12, 3)]
)
def test_segments_are_hugging_faces_recipe(length, stride, last, disjoint, run, val_tokens):
    """All 3,000 targets count once, also the last ones, as (3,000 - 48) % 20 = 12.

    disjoint: 48 / 20, so that every third window is disjoint.
    """
    folder = run("alibi")
    evaluate(folder, "--lengths", length, *(["--stride", stride] if stride else []))
    name = f"toy_val_stride{stride}" if stride else "toy_val"
    entry = read_record(folder, name)["lengths"][str(length)]

    stride = stride or length
    losses = hugging_face_losses(load(folder), val_tokens, max_length=length + 1, stride=stride)
    by_position = [[] for _ in range(length)]
    for number, window in enumerate(losses):
        for position, loss in enumerate(window, length - stride if number else 0):
            by_position[position].append(loss)
    assert [len(losses[n]) for n in (0, 1, -1)] == [length, stride, last]
    assert (entry["windows"], entry["tokens"]) == (len(losses), 3000)
    mean = np.concatenate(losses).mean()
    assert entry["loss"] == pytest.approx(mean, abs=1e-5)
    assert entry["perplexity"] == pytest.approx(math.exp(mean), rel=1e-5)
    by_position = pytest.approx([*map(np.mean, by_position)], abs=1e-5)
    assert entry["by_position"] == {"first": 0, "width": 1, "loss": by_position}
    blocks = join_blocks(losses, len(losses) // disjoint)
    assert entry["loss_se"] == pytest.approx(ratio_error(blocks), rel=1e-3)


@pytest.mark.parametrize("targets", [1, 7])
def test_same_targets_at_every_context_length(run, val_tokens, targets, tmp_path):
    """100 windows of 64 from shards of 1,100, 1,100 and 801 tokens overlap, but not two shards.

    They have 2,809 starts, of which every 28.09th is used.
    """
    folder = run("cable")
    many = write_shards(tmp_path / "many", [val_tokens], shard_tokens=1100)
    flags = ["--protocol", "same-targets", "--targets", targets, "--windows", 100]
    evaluate(folder, "--data", many, "--split", "train", "--lengths", "8,64", *flags)
    record = read_record(folder, f"toy_train_same-targets{targets}")
    protocol = {"name": "same-targets", "stride": None, "targets": targets}
    overlap = pytest.approx(1 - 28.09 / 64)
    assert record["protocol"] == protocol | {"span": 64, "spans": 100, "overlap": overlap}
    model = load(folder)
    starts = [*range(1100 - 64), *range(1100, 2200 - 64), *range(2200, 3001 - 64)]
    starts = [starts[int(28.09 * n)] for n in range(100)]
    for length in (8, 64):
        ends = [start + 64 - length for start in starts]
        losses = [token_losses(model, val_tokens, start, length)[-targets:] for start in ends]
        entry = record["lengths"][str(length)]
        assert (entry["windows"], entry["tokens"]) == (100, 100 * targets)
        assert entry["loss"] == pytest.approx(np.mean(losses), abs=1e-5)
        assert entry["by_position"]["first"] == length - targets
        assert len(entry["by_position"]["loss"]) == targets
        blocks = join_blocks(losses, 100 // 3)
        assert entry["blocks"] == pytest.approx([*map(np.mean, blocks)], abs=1e-5)
        assert entry["block_tokens"] == [*map(len, blocks)]
        assert entry["loss_se"] == pytest.approx(ratio_error(blocks), rel=1e-3)


def test_windows_inside_documents(run, data_dir):
    """All windows of 700 inputs that are inside one document, and sevenths of them."""
    folder = run("rope")
    flags = ["--split", "train", "--within_documents"]
    evaluate(folder, "--lengths", "100,700", *flags)
    record = read_record(folder, "toy_train_documents")
    tokens = torch.from_numpy(data_loader.Shards(data_dir, "train").tokens[0][:].astype(np.int64))
    starts = [first + 700 * n for first in (0, 3001, 6002, 9003) for n in range(4)]
    assert [tokens[first] for first in starts[::4]] == 4 * [256]
    assert (record["protocol"]["documents"], record["protocol"]["spans"]) == (4, len(starts))
    model = load(folder)
    for length in (100, 700):
        pieces = [start + n for start in starts for n in range(0, 700, length)]
        losses = [token_losses(model, tokens, start, length) for start in pieces]
        losses = np.array(losses).reshape(len(starts), 700)
        entry = record["lengths"][str(length)]
        assert entry["loss"] == pytest.approx(losses.mean(), abs=1e-5)
        by_offset = [losses[:, n : n + 3].mean() for n in range(0, 700, 3)]  # 256 bins at most
        assert entry["by_offset"]["loss"] == pytest.approx(by_offset, abs=1e-5)
    evaluate(folder, "--lengths", "100,700", *flags, "--protocol", "same-targets", "--targets", 6)
    by_length = read_record(folder, "toy_train_same-targets6_documents")["lengths"]
    by_offset = losses.mean(0)[-6:].reshape(2, 3).mean(1)  # of those of 700
    assert by_length["700"]["by_offset"]["loss"] == pytest.approx(by_offset, abs=1e-5)
    assert by_length["100"]["by_offset"]["first"] == 694


@pytest.mark.parametrize(
    "limits, count",
    [
        ({"windows": 10**6}, 2985),
        ({"windows": 50, "max_tokens": 320}, 20),
        ({"max_tokens": 10}, 1),
    ],
)
def test_windows_are_limited_by_starts_and_by_max_tokens(data_dir, limits, count):
    """The split has 2,985 starts of windows of 16 inputs."""
    config = eval_extrapolation.Config(["none"], protocol="same-targets", targets=1, **limits)
    text = eval_extrapolation.select_text(data_loader.Shards(data_dir, "val"), [16], config)
    assert text.protocol["spans"] == len({*text.regions}) == count


@pytest.mark.parametrize(
    "flags, suffix",
    [
        ([], ""),
        (["--stride", 8], "_stride8"),
        (["--protocol", "same-targets", "--targets", 9], "_same-targets9"),
    ],
)
def test_a_cache_window_equals_window_attention(run, tmp_path, flags, suffix):
    folder, window = run("nope"), tmp_path / "window"
    evaluate(folder, "--lengths", "200", *flags)
    evaluate(folder, "--lengths", "200", *flags, "--cache_window", 24)
    checkpoint = torch.load(checkpoints.checkpoint_path(folder), weights_only=True)
    checkpoint["gpt"]["pe"] = "window:w=24"
    window.mkdir()
    save_checkpoint(checkpoint, window / "checkpoint_0000006.pt")
    evaluate(window, "--lengths", "200", *flags)
    name = f"toy_val{suffix}"
    records = [read_record(folder, name), read_record(folder, f"{name}_cache24")]
    assert [record["cache_window"] for record in records] == [None, 24]
    records.append(read_record(window, name))
    full, cached, masked = (record["lengths"]["200"]["loss"] for record in records)
    assert cached == pytest.approx(masked, abs=1e-6)
    assert abs(cached - full) > 1e-6


@pytest.mark.parametrize("pe", [*KINDS, *LIMITED[1:]])
def test_encodings_up_to_their_longest_context(pe, run, capsys):
    """Two runs are in one table."""
    folders = [run("alibi"), run(pe)]
    evaluate(*folders, "--lengths", "1x,4x", "--max_tokens", 640)
    rows = capsys.readouterr().out.split("\n\n")[-1].splitlines()[1:]
    for folder, row in zip(folders, rows, strict=True):
        _, long = read_record(folder)["lengths"].values()
        printed = "—" if folder.name in LIMITED else f"{long['perplexity']:.2f}"
        assert row.split()[::2] == [str(evaluation(folder)), printed]


def test_record_identifies_checkpoint_text_and_protocol(run, data_dir):
    folder = run("cable")
    evaluate(folder, "--lengths", "16", "--max_tokens", 640)
    record = read_record(folder)
    identity = [record[key] for key in ("run", "pe", "step", "block_size")]
    assert identity == ["cable", "cable", 6, 16]
    assert record["checkpoint_sha256"] == files.hash_file(folder / "checkpoint_0000006.pt")
    assert record["settings"].items() >= {"lr": 1e-2, "steps": 6, "n_embd": 16}.items()
    assert record["settings"].keys().isdisjoint({"pe", "seed", "data", "out_dir", "device"})
    assert record["training_text"] == data_loader.Shards(data_dir, "train").sha256
    val = {"dataset": "toy", "split": "val", "tokenizer": "bytes"}
    assert record["data"] == val | {"sha256": data_loader.Shards(data_dir, "val").sha256}
    protocol = {"name": "segments", "stride": None, "targets": None, "remainder": "counted"}
    assert record["protocol"] == protocol | {"span": 16, "spans": 40, "overlap": 0}
    assert {"command", "commit", "torch", "device", "time"} <= record["provenance"].keys()


def test_each_text_and_checkpoint_has_its_record(run, capsys, monkeypatch):
    """Only missing lengths are computed."""
    folder, measure = run("cable"), mock.Mock(wraps=eval_extrapolation.measure)
    monkeypatch.setattr(eval_extrapolation, "measure", measure)
    evaluate(folder, "--lengths", "32,16")
    evaluate(folder, "--lengths", "16,64")
    assert [call.args[1] for call in measure.call_args_list] == [16, 32, 64]
    whole = read_record(folder)
    assert [*whole["lengths"]] == ["16", "32", "64"]
    evaluate(folder, "--lengths", "16", "--max_tokens", 16)
    assert read_record(folder)["lengths"]["16"]["loss_se"] is None  # of a single window
    evaluate(folder, "--lengths", "16", "--max_tokens", 320)
    capsys.readouterr()
    evaluate(folder / "checkpoint_0000004.pt", "--lengths", "16")
    assert "checkpoint_0000004.pt has been trained for 4 of 6 steps" in capsys.readouterr().out
    evaluate(folder, "--lengths", "16,64")
    assert "is already evaluated" in capsys.readouterr().out
    assert json.loads((folder / "eval_toy_val.json").read_text()) == whole
    assert {path.name for path in folder.glob("eval_*")} == {
        "eval_toy_val.json",
        "eval_toy_val_1x16.json",
        "eval_toy_val_20x16.json",
        "eval_toy_val_checkpoint_0000004.json",
    }
