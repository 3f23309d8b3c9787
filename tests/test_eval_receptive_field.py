"""Gradients against finite differences, fields that are known, records, tables, plots and verdicts, and refusals."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import write_shards

import eval_receptive_field
import report
from model import GPT, GPTConfig
from reporting import claims, tables
from text_data.data_loader import Windows
from text_data.shards import Shards


def network(pe, layers=2, width=8, seed=0):
    torch.manual_seed(seed)
    model = GPT(
        GPTConfig(
            size="custom",
            n_layer=layers,
            n_head=2,
            n_embd=width,
            vocab_size=50,
            block_size=16,
            pe=pe,
        )
    )
    for p in model.parameters():
        p.data += 0.3 * torch.randn_like(p)  # far from the start, where attention is nearly uniform
    model.activation_checkpointing = True
    return model.requires_grad_(False).eval()


@pytest.mark.parametrize("pe", ["fox", "sinusoidal", "kerple"])
def test_shares_are_those_of_finite_differences(pe):
    model = network(pe).double()
    model.posenc.float()  # as states are computed
    tokens, target = torch.randint(50, (1, 6)), torch.tensor([7])
    found = eval_receptive_field.shares(model, tokens, target)[0]

    def loss(place, column, step):
        def moved(module, arguments, output):
            output = output.clone()
            output[0, place, column] += step
            return output

        hook = model.wte.register_forward_hook(moved)
        logits = model(tokens)[0, -1]
        hook.remove()
        return (logits.logsumexp(0) - logits[target[0]]).item()

    gradient = np.array(
        [
            [(loss(place, column, 1e-3) - loss(place, column, -1e-3)) / 2e-3 for column in range(8)]
            for place in range(6)
        ]
    )
    norms = np.linalg.norm(gradient, axis=1)
    assert np.allclose(found, norms / norms.sum(), rtol=2e-3)
    assert found.sum().item() == pytest.approx(1, abs=1e-12)


def test_no_field_is_wider_than_windows_reach():
    """Three tokens in each of two layers reach five in all, and the last of them counts: it is hidden by neither."""
    model, tokens = network("window:w=3"), torch.randint(50, (4, 16))
    found = eval_receptive_field.shares(model, tokens, torch.tensor([1, 2, 3, 4]))
    assert (found[:, :11] == 0).all() and (found[:, 11:] > 0).all()


@pytest.fixture
def windows(tmp_path):
    tokens = np.random.default_rng(0).integers(50, size=40 * 16 + 1)
    return Windows(Shards(write_shards(tmp_path / "toy", [tokens], 10**6, 50), "train"), 16)


def test_fields_and_curve_of_known_shares(windows, monkeypatch):
    """All of the gradient on the last token, in every second window; as much of it on each of eight, in the others."""

    def known(model, tokens, targets):
        assert torch.equal(tokens, expected[: len(tokens), -8:]) and torch.equal(
            targets, following[: len(tokens)]
        )
        rows = torch.zeros(len(tokens), 8, dtype=torch.float64)
        rows[::2, -1], rows[1::2] = 1, 1 / 8
        return rows

    inputs, targets = windows.batch(range(20))
    expected, following = inputs, targets[:, -1]
    monkeypatch.setattr(eval_receptive_field, "shares", known)
    entry = eval_receptive_field.measure(
        None, windows, np.arange(20), 8, torch.device("cpu"), "known"
    )
    assert entry["receptive_field"] == 4.5 and entry["receptive_field_se"] == pytest.approx(
        3.5 * math.sqrt(20 / 19) / math.sqrt(20)
    )
    curve = dict(zip(entry["cumulative"]["tokens"], entry["cumulative"]["share"]))
    assert curve == pytest.approx(
        {
            1: 0.5 + 1 / 16,
            2: 0.5 + 2 / 16,
            3: 0.5 + 3 / 16,
            4: 0.5 + 4 / 16,
            5: 0.5 + 5 / 16,
            6: 0.5 + 6 / 16,
            7: 0.5 + 7 / 16,
            8: 1,
        }
    )


def test_as_a_user(trained, tmp_path, capsys):
    """A record, not computed twice; beside a record of perplexity a table, two plots and verdicts."""
    run = str(trained("window:w=8"))
    ask = [run, "--lengths", "1x,2x", "--windows", "3", "--device", "cpu"]
    eval_receptive_field.main(ask)
    path = next(
        line.removeprefix("record: ")
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("record: ")
    )
    eval_receptive_field.main(ask)
    assert "is already evaluated" in capsys.readouterr().out
    record = json.loads(open(path).read())
    assert (
        record["metric"] == "Receptive field"
        and record["dtype"] == "float32"
        and len(record["lengths"]) == 2
    )
    report.main([path, "--out_dir", str(tmp_path / "out")])
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        *(f"receptive_field{suffix}" for suffix in (".md", ".csv", ".tex", ".png")),
        "cumulative_gradient.png",
    }
    text = (tmp_path / "out" / "receptive_field.md").read_text()
    assert (
        "| context | window:w=8 |" in text
        and "**not measured**" in text
        and "99% of the gradient" in text
    )


def column(pe, key, values, block_size=100):
    lengths = {str(length): {key: value} for length, value in values.items()}
    metric = {"metric": "Receptive field"} if key == "receptive_field" else {}
    return tables.Column(
        pe,
        pe,
        [
            {
                "pe": pe,
                "size": "small",
                "block_size": block_size,
                "recipe": "r",
                "run": pe,
                "lengths": lengths,
            }
            | metric
        ],
    )


def test_verdicts():
    fields = [
        column(pe, "receptive_field", {100: field / 2, 400: field})
        for pe, field in (
            ("window:w=4", 40),
            ("window:w=8", 99),
            ("window:w=16", 120),
            ("alibi", 200),
            ("sandwich", 5),
        )
    ]
    grown = [
        column(pe, "perplexity", {100: 10.0, 1600: 10 * growth})
        for pe, growth in (
            ("window:w=4", 1.0),
            ("window:w=8", 1.06),
            ("window:w=16", 1.5),
            ("alibi", 2.0),
            ("sandwich", 9.0),
        )
    ]
    small, eight, large, together = claims.judge_receptive_fields(fields, [grown])
    assert (
        small.holds
        and "1.000, receptive field 0.40 training lengths" in str(small)
        and "<= 1.05, because its receptive field is shorter" in small.claim
    )
    assert (
        eight.holds is False
        and large.holds
        and "> 1.05, because its receptive field is longer" in large.claim
    )
    assert together.holds and "1.00 over 4" in together.measured  # sandwich is none of them
    for field, at in (
        (fields[1], 99),
        (fields[2], 60),
    ):  # another seed, read no further than 100: it is the mean there that counts
        longest, shorter = field.records[0]["lengths"]["400"], {"100": {"receptive_field": at}}
        seeds = tables.Column(
            field.label,
            field.pe,
            [*field.records, field.records[0] | {"seed": 2, "lengths": shorter}],
        )
        verdict = claims.judge_receptive_fields([seeds], [grown])[0]
        assert f"{(longest['receptive_field'] / 2 + at) / 200:.2f} training lengths" in str(verdict)
    grown[0], grown[3] = (
        column("window:w=4", "perplexity", {100: 1.0, 1600: 3.0}),
        column("alibi", "perplexity", {100: 1.0, 1500: 1.0}),
    )
    assert claims.judge_receptive_fields(fields, [grown])[-1].holds is False
    assert all(verdict.holds is None for verdict in claims.judge_receptive_fields(fields, []))


def test_refusals(trained, refused):
    run = trained("window:w=8")
    assert "no run named" in refused(eval_receptive_field.main)[0]
    assert "windows" in refused(eval_receptive_field.main, run, "--windows", "1")[0]
    assert (
        "has text for a single window"
        in refused(eval_receptive_field.main, run, "--lengths", "2000")[0]
    )
