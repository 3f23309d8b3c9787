"""The segments protocol against a plain loop over the tokens, records that are not computed twice, and refusals."""

import json
import math
import shutil

import numpy as np
import pytest
import torch
from conftest import ENCODINGS

import shards
import eval_extrapolation
import runs


def evaluate(*flags):
    eval_extrapolation.main([str(flag) for flag in (*flags, "--device", "cpu", "--dtype", "float32")])


def record_of(run):
    return json.loads((run / "eval_toy_val.json").read_text())


@pytest.fixture
def run(trained, tmp_path):
    """run("cable"): a copy of a finished run, to evaluate."""
    return lambda pe: shutil.copytree(trained(pe), tmp_path / pe)


@pytest.mark.parametrize("length", [16, 40])
def test_segments_is_the_mean_over_windows_of_all_tokens(run, data_dir, length):
    folder = run("alibi")
    evaluate(folder, "--lengths", length)
    entry = record_of(folder)["lengths"][str(length)]

    model, _ = runs.load_model(folder, torch.device("cpu"))
    tokens = torch.from_numpy(shards.Shards(data_dir, "val").tokens[0].astype(np.int64))
    per_window, by_position = [], []
    for start in range(0, len(tokens) - length, length):
        logits = model(tokens[None, start : start + length])[0].double().log_softmax(-1)
        losses = [-logits[i, tokens[start + i + 1]].item() for i in range(length)]
        per_window.append(sum(losses) / length)
        by_position.append(losses)
    assert entry["windows"] == len(per_window) and entry["tokens"] == len(per_window) * length
    assert entry["loss"] == pytest.approx(np.mean(per_window), abs=1e-5)
    assert entry["loss_se"] == pytest.approx(np.std(per_window, ddof=1) / math.sqrt(len(per_window)), rel=1e-3)
    assert entry["perplexity"] == pytest.approx(math.exp(np.mean(per_window)), rel=1e-5)
    assert entry["by_position"] == {"width": 1, "loss": pytest.approx(np.mean(by_position, 0), abs=1e-5)}


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
    if "learnable" in pe:
        assert lengths["64"] is None and "—" in capsys.readouterr().out
    else:
        assert lengths["64"]["windows"] == 10 and 1 < lengths["64"]["perplexity"] < 500


def test_record_says_where_it_comes_from(run, data_dir):
    folder = run("cable")
    evaluate(folder, "--lengths", "16", "--max_tokens", 640)
    record = record_of(folder)
    assert (record["run"], record["pe"], record["step"], record["block_size"]) == ("cable", "cable", 6, 16)
    assert record["checkpoint_sha256"] == runs.sha256_of(folder / "checkpoint_0000006.pt")
    assert record["data"] == {"dataset": "toy", "split": "val", "tokenizer": "bytes", "sha256": shards.Shards(data_dir, "val").sha256}
    assert record["protocol"] == {"name": "segments", "max_tokens": 640}
    assert {"command", "commit", "torch", "device", "time"} <= record["provenance"].keys()


def test_only_what_is_missing_is_computed(run, capsys, monkeypatch):
    folder, computed = run("cable"), []
    segments = eval_extrapolation.segments
    monkeypatch.setattr(eval_extrapolation, "segments", lambda *a: computed.append(a[1].length) or segments(*a))
    evaluate(folder, "--lengths", "32,16")
    evaluate(folder, "--lengths", "16,64")
    assert computed == [16, 32, 64] and list(record_of(folder)["lengths"]) == ["16", "32", "64"]
    evaluate(folder, "--lengths", "16,64")
    assert computed == [16, 32, 64] and "evaluated already" in capsys.readouterr().out
    evaluate(folder, "--lengths", "16", "--max_tokens", 160)  # another protocol
    assert computed == [16, 32, 64, 16] and list(record_of(folder)["lengths"]) == ["16"]


def test_one_table_for_several_checkpoints(run, capsys):
    folders = [run(pe) for pe in ("rope", "learnable", "cable")]
    evaluate(*folders, "--lengths", "1x,2x", "--max_tokens", 320)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in table[0].strip("|").split("|")] == ["context", "cable", "rope", "learnable"]
    assert len(table) == 4 and table[3].endswith("— |")


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
    assert "holds no checkpoint: train first" in refused(main, tmp_path)[0]
    assert "give token counts or multiples" in refused(main, folder, "--lengths", "16,many")[0]
    assert "give token counts or multiples" in refused(main, folder, "--lengths", "0")[0]
    assert "too few for one window of 4096 + 1" in refused(main, folder, "--lengths", 4096)[0]
    assert "max_tokens 20 is less than one window of 32" in refused(main, folder, "--lengths", "16,32", "--max_tokens", 20)[0]
    assert "has no split 'test': choose one of train val" in refused(main, folder, "--split", "test")[0]
    assert "data folder nowhere does not exist" in refused(main, folder, "--data", "nowhere")[0]
    assert not (folder / "eval_toy_val.json").exists()
