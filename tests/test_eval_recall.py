"""Tests of eval_recall.py: trial sequences, models of known memory, records, tables, errors."""

import json
import shutil
from types import SimpleNamespace

from runtime.distributed import Processes

import numpy as np
import pytest
import torch
from conftest import write_shards

import eval_recall
from data_loader import Shards, Windows
from evaluation.runner import LoadedRun
from text_data import recall_task
from training import checkpoints

CPU_FLAGS = ["--device", "cpu", "--dtype", "float32"]
CPU = torch.device("cpu")


@pytest.fixture
def windows(tmp_path):
    """60 windows of 48 tokens; no token occurs twice."""
    tokens = np.random.default_rng(0).permutation(5000)[: 60 * 48 + 1]
    return Windows(Shards(write_shards(tmp_path / "toy", [tokens], 10**6, 5000), "train"), 48)


def loaded(model):
    return LoadedRun("test", model, {}, Processes(), CPU, torch.float32)


class CopyingNetwork:
    """Embeds each token as the logits of what followed its latest copy in the last `memory` tokens.

    Without such a copy the logits are random.
    """

    def __init__(self, memory, vocab_size=recall_task.SYMBOLS):
        self.memory = memory
        self.output_embeddings = torch.eye(vocab_size)
        self.wte = SimpleNamespace(weight=self.output_embeddings)
        self.generator = torch.Generator().manual_seed(0)

    def hidden(self, tokens):
        logits = torch.rand(*tokens.shape, len(self.wte.weight), generator=self.generator)
        for row, values in zip(logits, tokens.tolist(), strict=True):
            for position, token in enumerate(values):
                before = values[max(0, position - self.memory) : position]
                if token in before:
                    latest = len(before) - 1 - before[::-1].index(token)
                    row[position, (before + [token])[latest + 1]] = 2
        return logits


@pytest.mark.parametrize("task", recall_task.TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize("filler", recall_task.FILLERS)
def test_accuracy_of_a_network_of_known_memory(windows, task, filler):
    """Copies further back than the memory give chance. Pairs are up to 14 tokens closer."""
    trials = eval_recall.TaskSequences(windows, np.arange(60), task, filler, shortest=32)
    for memory, distance, expected in ((100, 16, 100), (100, 32, 100), (17, 32, None)):
        entry = eval_recall.measure_accuracy(loaded(CopyingNetwork(memory)), distance, trials)
        if expected:
            assert (entry["accuracy"], entry["accuracy_se"]) == (expected, 0)
        else:
            chance = 100 / recall_task.SYMBOLS
            assert entry["accuracy"] == pytest.approx(chance, abs=4 * entry["accuracy_se"])


def test_task_sequences_end_with_the_second_copy(windows):
    everything = (windows, np.arange(60), recall_task.PASSAGE, "text", 32)
    trials = eval_recall.TaskSequences(*everything)
    shown = []
    for distance, length in ((8, 32), (24, 32), (40, 48)):
        tokens, positions = trials.batch(np.array([3, 9]), distance)
        assert tokens.shape == (2, length)
        assert positions.tolist() == [[*range(length - 7, length - 1)]] * 2
        assert torch.equal(tokens[:, length - 8 :], tokens[:, length - 8 - distance :][:, :8])
        shown.append(tokens[:, -8:])
    assert torch.equal(shown[0], shown[1]) and torch.equal(shown[0], shown[2])


def test_accuracies_are_kept(trained, tmp_path, capsys):
    flags = ["--objective", "recall", "--block_size", "32", "--tokens_per_step", "256"]
    runs = [shutil.copytree(trained(pe, *flags), tmp_path / pe) for pe in ("learnable", "cable")]
    evaluate = [*map(str, runs), *CPU_FLAGS, "--trials", "20", "--distances", "8,16,1x"]
    eval_recall.main(evaluate)
    paths = [path for run in runs for path in run.glob("eval_recall_*.json")]
    records = {path: json.loads(path.read_text()) for path in paths}
    name = "eval_recall_passage_text_toy_val_20x40.json"
    assert [*records[runs[0] / name]["lengths"]] == ["8", "16", "32"]
    assert records[runs[0] / name]["lengths"]["32"] is None  # 39 inputs
    assert records[runs[1] / name]["steps_to_95"] is None
    capsys.readouterr()
    eval_recall.main(evaluate)
    assert capsys.readouterr().out.count("is already evaluated") == 8
    assert {path: json.loads(path.read_text()) for path in paths} == records


def test_steps_to_learn_are_those_of_the_log(tmp_path):
    lines = [("val", 50, 0.5), ("train", 60, 1.0), ("val", 100, 0.951), ("val", 150, 0.94)]
    log = [
        {"kind": kind, "step": step, "loss": 1.0, "accuracy": accuracy}
        for kind, step, accuracy in lines
    ]
    for count, expected in ((1, None), (2, None), (4, 100)):
        text = "".join(json.dumps(record) + "\n" for record in log[:count])
        (tmp_path / "log.jsonl").write_text(text)
        assert eval_recall.steps_to_learn(str(tmp_path)) == expected


def saved_nats(model, windows, trial, trials, distance, passage):
    """What reading the passage before saves in one trial, from the logits of single sequences."""
    numbers = np.linspace(0, len(windows), trials, endpoint=False).astype(int)
    texts = []
    for n in range(3):
        number = numbers[(trial + n * (trials // 3)) % trials]
        texts.append(windows.batch([number])[0][0])
    passage_text, other, filler = texts
    half = range(distance + passage // 2, distance + passage)
    losses = []
    for first in (other, passage_text):
        parts = [first[:passage], filler[passage:distance], passage_text[:passage]]
        sequence = torch.cat(parts)
        logits = model(sequence[None, :-1])[0, :, :257].double().log_softmax(-1)
        losses.append(-sum(logits[n - 1, sequence[n]].item() for n in half) / len(half))
    return losses[0] - losses[1]


def test_records_have_the_recall_of_each_trial(run, data_dir):
    folders = [run("learnable"), run("cable")]  # learnable supports at most 16 tokens
    flags = [*map(str, folders), *CPU_FLAGS, "--passage", "4", "--trials", "50"]
    eval_recall.main([*flags, "--distances", "8,1x,32"])
    paths = [folder / "eval_recall_toy_val_4of50x32.json" for folder in folders]
    learnable, cable = [json.loads(path.read_text()) for path in paths]
    assert [*learnable["lengths"]] == ["8", "16", "32"]
    assert learnable["lengths"]["8"] and learnable["lengths"]["16"] is None

    model, _ = checkpoints.load_model(folders[1], CPU)
    windows = Windows(Shards(data_dir, "val"), 32)
    expected = [saved_nats(model, windows, trial, 50, 16, 4) for trial in range(50)]
    entry = cable["lengths"]["16"]
    assert entry["by_trial"] == pytest.approx(expected, abs=1e-5)
    mean = np.mean(expected)
    assert entry["loss_without"] - entry["loss"] == pytest.approx(mean, abs=1e-5)
    assert entry["recall"] == pytest.approx(100 * (1 - np.exp(-mean)), abs=1e-3)
    draws = np.random.default_rng(0).integers(50, size=(4000, 50))
    bootstrap = 100 * (1 - np.exp(-np.array(expected)[draws].mean(1)))
    assert entry["recall_se"] == pytest.approx(bootstrap.std(), rel=0.1)
