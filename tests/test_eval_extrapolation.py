"""The segments protocol against a plain loop over the tokens, records that are not computed twice, and refusals."""

import json
import math
import re
import shutil

import numpy as np
import pytest
import torch
from conftest import ENCODINGS, LIMITED, evaluation, write_shards

import eval_extrapolation
from runtime import checkpoints, loading, provenance
from text_data import shards


def evaluate(*flags):
    eval_extrapolation.main(
        [str(flag) for flag in (*flags, "--device", "cpu", "--dtype", "float32")]
    )


def record_of(run):
    return json.loads(evaluation(run).read_text())


@pytest.fixture
def run(trained, tmp_path):
    """run("cable"): a copy of a finished run, to evaluate."""
    return lambda pe: shutil.copytree(trained(pe), tmp_path / pe)


@pytest.mark.parametrize("length", [16, 40])
def test_segments_is_the_mean_over_windows_of_all_tokens(run, data_dir, length):
    folder = run("alibi")
    evaluate(folder, "--lengths", length)
    entry = record_of(folder)["lengths"][str(length)]

    model, _ = loading.load_model(folder, torch.device("cpu"))
    tokens = torch.from_numpy(shards.Shards(data_dir, "val").tokens[0].astype(np.int64))
    per_window, by_position = [], []
    for start in range(0, len(tokens) - length, length):
        logits = model(tokens[None, start : start + length])[0].double().log_softmax(-1)
        losses = [-logits[i, tokens[start + i + 1]].item() for i in range(length)]
        per_window.append(sum(losses) / length)
        by_position.append(losses)
    assert entry["windows"] == len(per_window) and entry["tokens"] == len(per_window) * length
    assert entry["loss"] == pytest.approx(np.mean(per_window), abs=1e-5)
    assert entry["loss_se"] == pytest.approx(
        np.std(per_window, ddof=1) / math.sqrt(len(per_window)), rel=1e-3
    )
    assert entry["perplexity"] == pytest.approx(math.exp(np.mean(per_window)), rel=1e-5)
    assert entry["by_position"] == {
        "first": 0,
        "width": 1,
        "loss": pytest.approx(np.mean(by_position, 0), abs=1e-5),
    }


def token_losses(folder, tokens, start, length):
    """The loss of each target of one window, from a forward pass of its own."""
    model, _ = loading.load_model(folder, torch.device("cpu"))
    with torch.no_grad():
        logits = model(tokens[None, start : start + length])[0].double().log_softmax(-1)
    return (-logits[torch.arange(length), tokens[start + 1 : start + length + 1]]).numpy()


@pytest.fixture
def val_tokens(data_dir):
    return torch.from_numpy(shards.Shards(data_dir, "val").tokens[0].astype(np.int64))


def error_of(blocks):
    """Standard error of the mean of all losses in them: a ratio, of their sums to their counts."""
    mean, count = np.concatenate(blocks).mean(), len(blocks)
    rest = sum((block.sum() - mean * len(block)) ** 2 for block in blocks)
    return math.sqrt(rest * count / (count - 1)) / sum(map(len, blocks))


def test_a_stride_scores_every_token_once_with_more_before_it(run, val_tokens):
    folder = run("rope")
    evaluate(folder, "--lengths", 48, "--stride", 20)
    entry = json.loads(evaluation(folder, "toy_val_stride20").read_text())["lengths"]["48"]
    expected, by_position = [], [[] for _ in range(48)]
    for start in range(0, len(val_tokens) - 48, 20):
        counted = 20 if start else 48
        losses = token_losses(folder, val_tokens, start, 48)[-counted:]
        expected.append(losses)
        for position, loss in zip(range(48 - counted, 48), losses):
            by_position[position].append(loss)
    assert (entry["windows"], entry["tokens"]) == (len(expected), sum(map(len, expected)))
    assert entry["loss"] == pytest.approx(np.concatenate(expected).mean(), abs=1e-5)
    assert entry["by_position"]["loss"] == pytest.approx(
        [np.mean(losses) for losses in by_position], abs=1e-5
    )
    blocks = np.array_split(
        np.arange(len(expected)), len(expected) // 3
    )  # 48 / 20: windows three apart share nothing
    assert entry["loss_se"] == pytest.approx(
        error_of([np.concatenate([expected[n] for n in block]) for block in blocks]), rel=1e-3
    )


@pytest.mark.parametrize("targets", [1, 7])
def test_the_same_targets_whatever_the_context(run, val_tokens, targets):
    """100 windows of 64 from 3,001 tokens overlap: they begin 29.37 tokens apart, 2,937 starts in all."""
    folder = run("cable")
    evaluate(
        folder,
        "--lengths",
        "8,64",
        "--protocol",
        "same-targets",
        "--targets",
        targets,
        "--windows",
        100,
    )
    record = json.loads(evaluation(folder, f"toy_val_same-targets{targets}").read_text())
    assert record["protocol"] == {
        "name": "same-targets",
        "stride": None,
        "targets": targets,
        "span": 64,
        "spans": 100,
        "overlap": pytest.approx(1 - 29.37 / 64),
    }
    starts = [int(29.37 * n) for n in range(100)]
    for length in (8, 64):
        expected = [
            token_losses(folder, val_tokens, start + 64 - length, length)[-targets:]
            for start in starts
        ]
        entry = record["lengths"][str(length)]
        assert (entry["windows"], entry["tokens"]) == (100, 100 * targets)
        assert entry["loss"] == pytest.approx(np.mean(expected), abs=1e-5)
        assert (
            entry["by_position"]["first"] == length - targets
            and len(entry["by_position"]["loss"]) == targets
        )
        blocks = [
            np.concatenate([expected[n] for n in block])
            for block in np.array_split(np.arange(100), 100 // 3)
        ]
        assert entry["blocks"] == pytest.approx([*map(np.mean, blocks)], abs=1e-5)
        assert entry["block_tokens"] == [*map(len, blocks)] and entry["loss_se"] == pytest.approx(
            error_of(blocks), rel=1e-3
        )


def test_no_more_windows_than_there_are_starts_or_tokens_allow(run):
    """2,985 starts of windows of 16: as many windows, each a token on; and --max_tokens holds beside --windows."""
    folder = run("cable")
    for flags, spans in (
        (["--windows", 10**6], 2985),
        (["--windows", 50, "--max_tokens", 320], 20),
    ):
        evaluate(folder, "--lengths", 16, "--protocol", "same-targets", "--targets", 1, *flags)
        record = json.loads(evaluation(folder, "toy_val_same-targets1").read_text())
        assert record["protocol"]["spans"] == record["lengths"]["16"]["windows"] == spans


def test_capped_all_lengths_see_the_same_text_from_the_whole_split(run, val_tokens, monkeypatch):
    """Three windows of 100 out of thirty, and shorter ones within them."""
    folder, seen = run("alibi"), {}
    read_windows = eval_extrapolation.read_windows
    monkeypatch.setattr(
        eval_extrapolation,
        "read_windows",
        lambda shards, places, length: (
            seen.setdefault(length, []).extend(places) or read_windows(shards, places, length)
        ),
    )
    evaluate(folder, "--lengths", "25,40,100", "--windows", 3)
    assert seen[100] == [(0, 0), (0, 1000), (0, 2000)]
    assert seen[25] == [(0, start + n) for start in (0, 1000, 2000) for n in (0, 25, 50, 75)]
    assert seen[40] == [(0, start + n) for start in (0, 1000, 2000) for n in (0, 40)]


@pytest.mark.parametrize(
    "flags, ending",
    [
        ([], ""),
        (["--stride", 8], "_stride8"),
        (["--protocol", "same-targets", "--targets", 9], "_same-targets9"),
    ],
)
def test_a_cache_window_changes_nothing_where_nothing_further_is_seen(run, flags, ending):
    """A model whose bias falls by hundreds within 24 tokens, and one that sees everything."""
    steep, even = run("cable"), run("nope")
    for folder in (steep, even):
        path = checkpoints.checkpoint_path(folder)
        checkpoint = torch.load(path, weights_only=True)
        for name, value in checkpoint["model"].items():
            if name.endswith("step.bias"):
                value += 30.0
        torch.save(checkpoint, path)
        for more, name in (([], ""), (["--cache_window", 24], "_cache24")):
            evaluate(folder, "--lengths", "16,200", *flags, *more)
    for folder, equal in ((steep, True), (even, False)):
        without, with_ = (
            json.loads(evaluation(folder, f"toy_val{ending}{name}").read_text())
            for name in ("", "_cache24")
        )
        assert (without["cache_window"], with_["cache_window"]) == (None, 24)
        assert with_["lengths"]["16"]["loss"] == pytest.approx(
            without["lengths"]["16"]["loss"], abs=1e-6
        )
        assert (
            abs(with_["lengths"]["200"]["loss"] - without["lengths"]["200"]["loss"]) < 1e-6
        ) == equal


def test_captions_tell_the_protocol(run, capsys):
    folder = run("cable")
    same_targets = ["--protocol", "same-targets", "--targets", 4, "--windows", 200]
    for flags, told in (
        (["--stride", 8], "Protocol: segments with a stride of 8 tokens, "),
        (
            same_targets,
            "Protocol: same-targets, the last 4 tokens of 200 windows that overlap by 54%, "
            "800 tokens per length",
        ),
    ):
        evaluate(folder, "--lengths", "16,32", *flags)
        assert told in capsys.readouterr().out
    evaluate(folder, "--lengths", "16,32", "--cache_window", 8)
    assert "| context | cable, cache 8 |" in capsys.readouterr().out


def test_positions_are_binned_where_there_are_many(run):
    folder = run("rope")
    evaluate(folder, "--lengths", 1000)
    entry = record_of(folder)["lengths"]["1000"]
    assert entry["by_position"]["width"] == 4 and len(entry["by_position"]["loss"]) == 250
    assert np.mean(entry["by_position"]["loss"]) == pytest.approx(entry["loss"])


@pytest.mark.parametrize("pe", ENCODINGS)
def test_every_encoding_goes_as_far_as_it_can(pe, run, capsys):
    folder = run(pe)
    evaluate(folder, "--lengths", "1x,4x", "--max_tokens", 640)
    lengths = record_of(folder)["lengths"]
    assert lengths["16"]["tokens"] == 640
    if pe in LIMITED:
        assert lengths["64"] is None and "—" in capsys.readouterr().out
    else:
        assert lengths["64"]["windows"] == 10 and 1 < lengths["64"]["perplexity"] < 500


def test_record_says_where_it_comes_from(run, data_dir):
    folder = run("cable")
    evaluate(folder, "--lengths", "16", "--max_tokens", 640)
    record = record_of(folder)
    assert (record["run"], record["pe"], record["step"], record["block_size"]) == (
        "cable",
        "cable",
        6,
        16,
    )
    assert record["checkpoint_sha256"] == provenance.sha256_of(folder / "checkpoint_0000006.pt")
    assert record["data"] == {
        "dataset": "toy",
        "split": "val",
        "tokenizer": "bytes",
        "sha256": shards.Shards(data_dir, "val").sha256,
    }
    assert record["protocol"] == {
        "name": "segments",
        "stride": None,
        "targets": None,
        "span": 16,
        "spans": 40,
        "overlap": 0,
    }
    assert {"command", "commit", "torch", "device", "time"} <= record["provenance"].keys()


@pytest.mark.parametrize(
    "flags", [[], ["--protocol", "same-targets", "--targets", "4", "--windows", "12"]]
)
def test_a_split_of_several_shards(flags, run, data_dir, tmp_path):
    """Windows lie in one shard each: 110, 110 and 80 tokens."""
    val = shards.Shards(data_dir, "val").tokens[0][:300]
    folder, many = run("rope"), write_shards(tmp_path / "many", [val], shard_tokens=110)
    evaluate(folder, "--data", many, "--split", "train", "--lengths", "16,32", *flags)
    parts = [
        torch.from_numpy(tokens.astype(np.int64)) for tokens in shards.Shards(many, "train").tokens
    ]
    assert [len(part) for part in parts] == [110, 110, 80]
    entries = json.loads(max(folder.glob("eval_toy_train*")).read_text())["lengths"]
    for length in (16, 32):
        if flags:
            starts = [(part, start) for part in parts for start in range(len(part) - 32)]
            places = [starts[int(n * len(starts) / 12)] for n in range(12)]
            losses = [
                token_losses(folder, part, start + 32 - length, length)[-4:]
                for part, start in places
            ]
        else:
            losses = [
                token_losses(folder, part, start, length)
                for part in parts
                for start in range(0, len(part) - length, length)
            ]
        losses = np.concatenate(losses)
        assert entries[str(length)]["tokens"] == len(losses) and entries[str(length)][
            "loss"
        ] == pytest.approx(losses.mean(), abs=1e-5)


def test_only_what_is_missing_is_computed(run, capsys, monkeypatch):
    folder, computed = run("cable"), []
    measure = eval_extrapolation.measure
    monkeypatch.setattr(
        eval_extrapolation, "measure", lambda *a: computed.append(a[3]) or measure(*a)
    )
    evaluate(folder, "--lengths", "32,16")
    evaluate(folder, "--lengths", "16,64")
    assert computed == [16, 32, 64] and list(record_of(folder)["lengths"]) == ["16", "32", "64"]
    evaluate(folder, "--lengths", "16,64")
    assert computed == [16, 32, 64] and "already evaluated" in capsys.readouterr().out
    evaluate(folder, "--lengths", "16", "--max_tokens", 160)  # another protocol
    assert computed == [16, 32, 64, 16] and list(record_of(folder)["lengths"]) == ["16"]
    evaluate(folder, "--lengths", "16", "--max_tokens", 320)  # of a longer text
    capsys.readouterr()
    evaluate(folder / "checkpoint_0000004.pt", "--lengths", "16")
    assert "checkpoint_0000004.pt has been trained for 4 of 6 steps" in capsys.readouterr().out
    evaluate(folder, "--lengths", "16,64")  # both records are there still
    assert computed == [16, 32, 64, 16, 16, 16]
    assert {path.name for path in folder.glob("eval_*")} == {
        "eval_toy_val.json",
        "eval_toy_val_10x16.json",
        "eval_toy_val_20x16.json",
        "eval_toy_val_checkpoint_0000004.json",
    }


def test_one_window_tells_no_error(run, capsys):
    evaluate(run("rope"), "--lengths", "16,64", "--windows", 1)
    assert re.search(
        r"error over windows at most \d+\.\d%, unknown for a single window\.$",
        capsys.readouterr().out.rstrip(),
    )
    evaluate(folder := run("cable"), "--lengths", "64", "--windows", 1)
    assert (
        capsys.readouterr()
        .out.rstrip()
        .endswith("64 tokens per length; standard error over windows unknown.")
    )
    assert record_of(folder)["lengths"]["64"]["loss_se"] is None
    evaluate(run("learnable"), "--lengths", "64")  # which ends before
    assert "64 |         — |" in capsys.readouterr().out


@pytest.mark.parametrize("stride", [3, 16])
def test_a_stride_in_windows_of_the_split(run, val_tokens, stride):
    """Every token of three regions of 40 once, at every length the same ones, from what stands before the region too."""
    folder = run("rope")
    evaluate(folder, "--lengths", "16,40", "--windows", 3, "--stride", stride)
    record, starts = (
        json.loads(evaluation(folder, f"toy_val_stride{stride}").read_text()),
        (0, 1000, 2000),
    )
    for length in (16, 40):
        losses = {}
        for region in starts:
            done = region
            for end in range(
                region + stride if region else length, region + 41, stride
            ):  # the split's beginning: all that is there
                found = token_losses(folder, val_tokens, end - length, length)
                losses |= {place: found[place - end] for place in range(done, end)}
                done = end
        entry = record["lengths"][str(length)]
        assert entry["tokens"] == len(losses) and entry["loss"] == pytest.approx(
            np.mean([*losses.values()]), abs=1e-5
        )
        covered = {
            place - region
            for region in starts[1:]
            for place in losses
            if region <= place < region + 40
        }
        assert covered == set(range(40 // stride * stride))


def test_one_table_for_several_checkpoints(run, capsys):
    folders = [run(pe) for pe in ("rope", "learnable", "cable")]
    evaluate(*folders, "--lengths", "1x,2x", "--max_tokens", 320)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in table[0].strip("|").split("|")] == [
        "context",
        "cable",
        "rope",
        "learnable",
    ]
    assert len(table) == 4 and table[3].endswith("— |")


def test_a_cache_window_sees_as_many_as_it_says(run, tmp_path):
    folder, window = run("nope"), tmp_path / "window"
    evaluate(folder, "--lengths", "64", "--cache_window", 24)
    checkpoint = torch.load(checkpoints.checkpoint_path(folder), weights_only=True)
    checkpoint["gpt"]["pe"] = "window:w=24"
    window.mkdir()
    torch.save(checkpoint, window / "checkpoint_0000006.pt")
    evaluate(window, "--lengths", "64")
    cached, masked = (
        json.loads(evaluation(*where).read_text())["lengths"]["64"]["loss"]
        for where in ((folder, "toy_val_cache24"), (window,))
    )
    assert cached == pytest.approx(masked, abs=1e-6)


def test_another_dtype_is_another_record(run):
    folder = run("cable")
    evaluate(folder, "--lengths", "16")
    eval_extrapolation.main(
        [str(folder), "--lengths", "16", "--device", "cpu", "--dtype", "bfloat16"]
    )
    assert record_of(folder)["dtype"] == "bfloat16"


def test_dense_path_gives_the_same(run):
    folder = run("cable")
    evaluate(folder, "--lengths", "64")
    fused = record_of(folder)
    evaluate(folder, "--lengths", "64", "--attention", "dense")
    dense = record_of(folder)
    assert (fused["attention"], dense["attention"]) == ("sdpa", "dense")
    assert dense["lengths"]["64"]["loss"] == pytest.approx(fused["lengths"]["64"]["loss"], abs=1e-5)


def test_refusals(refused, run, tmp_path):
    folder, main = run("cable"), eval_extrapolation.main
    assert "no run named" in refused(main)[0]
    assert "contains no checkpoint: train first" in refused(main, tmp_path)[0]
    assert "give token counts or multiples" in refused(main, folder, "--lengths", "16,many")[0]
    assert "give token counts or multiples" in refused(main, folder, "--lengths", "0")[0]
    assert "too few for one window of 4096 + 1" in refused(main, folder, "--lengths", 4096)[0]
    assert (
        "max_tokens 20 is less than one window of 32"
        in refused(main, folder, "--lengths", "16,32", "--max_tokens", 20)[0]
    )
    assert (
        "has no split 'test': choose one of train val"
        in refused(main, folder, "--split", "test")[0]
    )
    assert "data folder nowhere does not exist" in refused(main, folder, "--data", "nowhere")[0]
    assert "runs/typo does not exist" in refused(main, folder, "runs/typo", "--lengths", "16")[0]
    (tmp_path / "perplexity.md").write_text("")
    assert (
        "is corrupt or not a checkpoint"
        in refused(main, folder, tmp_path / "perplexity.md", "--lengths", "16")[0]
    )
    assert not [*folder.glob("eval_*")]
    evaluate(folder, "--lengths", 16, "--windows", 2)
    path = evaluation(folder)
    other = path.read_text().replace('"dataset": "toy"', '"dataset": "tiny"')
    path.write_text(other)
    assert (
        f"{path} is a record of another text: rename it"
        in refused(main, folder, "--lengths", 16, "--windows", 2)[0]
    )
    assert path.read_text() == other
