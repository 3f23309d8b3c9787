"""What a trial reads, models whose memory is known, records that are not computed twice, tables, and refusals."""

import json
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import write_shards

import eval_recall
import report
from runtime import loading
from text_data.data_loader import Windows
from text_data.shards import Shards

CPU = ["--device", "cpu", "--dtype", "float32"]


@pytest.fixture
def windows(tmp_path):
    """60 windows of 48 tokens, none of which comes twice."""
    tokens = np.random.default_rng(0).permutation(5000)[: 60 * 48 + 1]
    return Windows(Shards(write_shards(tmp_path / "toy", [tokens], 10**6, 5000), "train"), 48)


def test_two_sequences_differ_in_what_is_read_first(windows):
    numbers = np.arange(0, 60, 2)  # 30 trials: a third is 10 of them, 20 windows
    found = {
        distance: eval_recall.readings(windows, numbers, np.array([3, 25]), distance, 8)
        for distance in (8, 20, 40)
    }
    text = windows.batch(range(60))[0]
    for distance, tokens in found.items():
        assert tokens.shape == (4, distance + 8)
        for row, (asked, other, between) in enumerate([(6, 26, 46), (50, 10, 30)]):
            without, after = tokens[row], tokens[2 + row]
            assert torch.equal(without[:8], text[other, :8]) and torch.equal(
                after[:8], text[asked, :8]
            )
            for sequence in (without, after):
                assert torch.equal(sequence[8:distance], text[between, 8:distance]) and torch.equal(
                    sequence[distance:], text[asked, :8]
                )


class Parrot:
    """Expects what followed this token when it last stood among the `memory` tokens before: 0.1 nats where that is right, else 5."""

    def __init__(self, memory):
        self.memory = memory

    def losses(self, tokens, targets):
        found, first = [], tokens.size(1) - targets.size(1)
        for row, expected in zip(tokens.tolist(), targets.tolist()):
            for place, target in enumerate(expected, first):
                seen = [
                    n for n in range(max(0, place - self.memory), place) if row[n] == row[place]
                ]
                found.append(0.1 if seen and row[seen[-1] + 1] == target else 5.0)
        return torch.tensor(found).view(targets.shape)


def test_recall_of_a_known_memory(windows):
    """A parrot that remembers 30 tokens saves 4.9 nats up to there, and nothing beyond."""
    for distance, saved in ((8, 4.9), (30, 4.9), (31, 0.0), (48, 0.0)):
        entry = eval_recall.measure(
            Parrot(30),
            windows,
            np.arange(60),
            distance,
            8,
            torch.device("cpu"),
            torch.float32,
            "parrot",
        )
        assert entry["recall"] == pytest.approx(100 * (1 - math.exp(-saved)), abs=1e-4)
        assert entry["loss_without"] == 5.0 and entry["loss"] == pytest.approx(5 - saved)
        assert entry["by_trial"] == pytest.approx([saved] * 60) and entry[
            "recall_se"
        ] == pytest.approx(0, abs=1e-6)


def test_the_error_is_that_of_the_mean_over_trials(windows):
    losses = torch.rand(60, 2, 1, generator=torch.Generator().manual_seed(0)) + torch.tensor(
        [[1.0], [0.0]]
    )  # of each trial without, after
    places = iter(range(60))

    def one_trial(tokens, targets):
        return losses[next(places)].expand(2, targets.size(1))

    model, batch = SimpleNamespace(losses=one_trial), eval_recall.BATCH_TOKENS
    try:
        eval_recall.BATCH_TOKENS = 1  # a trial at a time
        entry = eval_recall.measure(
            model, windows, np.arange(60), 48, 8, torch.device("cpu"), torch.float32, "random"
        )
    finally:
        eval_recall.BATCH_TOKENS = batch
    saved = (losses[:, 0] - losses[:, 1]).double()
    again = [
        100
        * (
            1
            - math.exp(
                -saved[torch.randint(60, (60,), generator=torch.Generator().manual_seed(n))].mean()
            )
        )
        for n in range(2000)
    ]
    assert entry["recall"] == pytest.approx(100 * (1 - math.exp(-saved.mean())), rel=1e-6)
    assert entry["recall_se"] == pytest.approx(np.std(again), rel=0.1)  # bootstrap


@pytest.fixture
def run(trained, tmp_path):
    """run("cable"): a copy of a finished run, to evaluate."""
    return lambda pe: shutil.copytree(trained(pe), tmp_path / pe)


def test_records_go_on_and_become_a_table(run, data_dir, tmp_path, capsys):
    folders = [run("learnable"), run("cable")]  # the first of at most 16 tokens
    flags = [*map(str, folders), *CPU, "--passage", "4", "--trials", "50"]
    eval_recall.main([*flags, "--distances", "8,1x,32"])
    printed = capsys.readouterr().out
    assert "| distance | cable | learnable |" in printed
    paths = [folder / "eval_recall_toy_val_4of50x32.json" for folder in folders]
    before = [json.loads(path.read_text()) for path in paths]
    assert all(f"record: {path}" in printed for path in paths)
    assert (
        [*before[0]["lengths"]] == ["8", "16", "32"]
        and before[0]["lengths"]["8"]
        and before[0]["lengths"]["16"] is None
    )

    model, _ = loading.load_model(
        folders[1], torch.device("cpu")
    )  # each trial by itself, from the logits
    windows = Windows(Shards(data_dir, "val"), 32)
    numbers, saved = np.linspace(0, len(windows), 50, endpoint=False).astype(int), []
    for trial in range(50):
        asked, other, between = (
            windows.batch([numbers[(trial + n * 16) % 50]])[0][0] for n in range(3)
        )
        losses = []
        for first in (other, asked):
            sequence = torch.cat([first[:4], between[4:16], asked[:4]])
            logits = model(sequence[None, :-1])[0].double().log_softmax(-1)
            losses.append(-sum(logits[place - 1, sequence[place]].item() for place in (18, 19)) / 2)
        saved.append(losses[0] - losses[1])
    assert before[1]["lengths"]["16"]["by_trial"] == pytest.approx(saved, abs=1e-5)

    eval_recall.main([*flags, "--distances", "16,32"])  # nothing is computed again
    assert (
        capsys.readouterr().out.count("is already evaluated") == 2
        and [json.loads(path.read_text()) for path in paths] == before
    )
    report.main([*map(str, paths), "--out_dir", str(tmp_path / "report")])
    table = (tmp_path / "report" / "recall.md").read_text()
    assert [line.split("|")[1].strip() for line in table.splitlines()[2:5]] == ["8", "16", "32"]
    assert f" {before[1]['lengths']['16']['recall']:z.2f} |" in table.splitlines()[3]
    assert (
        "the second half of a passage of 4 tokens" in table
        and "50 passages of toy (val, byte tokens)" in table
    )
    assert "perplexity at" not in table  # the claims are on perplexity
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "recall.md",
        "recall.csv",
        "recall.tex",
        "recall.png",
    }


def test_refusals(run, trained, refused):
    folder = run("cable")
    assert refused(eval_recall.main) == ["error: no run named: python eval_recall.py runs/NAME ..."]
    assert (
        "passage is 1: it must be at least 2"
        in refused(eval_recall.main, folder, "--passage", 1)[0]
    )
    for flags, line in (
        (["--distances", 8, "--passage", 9], "distance 8 is less than the 9 tokens of the passage"),
        (
            ["--distances", 1200],
            "has text for 2 windows of 1,200 tokens, of three that it takes: lower --distances",
        ),
    ):
        assert line in refused(eval_recall.main, folder, *CPU, *flags)[0]
    assert (
        "is an encoder and cannot continue text"
        in refused(eval_recall.main, trained("alibi", "--objective", "mlm"), *CPU)[0]
    )
    assert not [*folder.glob("eval_recall*")]
