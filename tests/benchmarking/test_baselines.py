"""Baselines compute what our code computes.

Packages that are not installed are replaced by implementations written for these tests.
"""

import dataclasses
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from test_cases import PLAIN

from benchmarking import baselines, cases
from model import GPT, GPTConfig
from training.optimizer import make_optimizer


def test_missing_baselines_are_not_measured(monkeypatch):
    assert not baselines.is_installed("no_such_module")
    monkeypatch.setattr(baselines, "is_installed", lambda module: False)
    assert list(cases.train_cases(PLAIN, "cable-v1")) == ["cable-v1"]


@pytest.fixture
def authors(monkeypatch):
    """A network with the name and signature of the CABLE authors' own."""

    class Cable(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            self.net = GPT(
                dataclasses.replace(config, pe="cable-v1", attention="dense", attn_scale=1.0)
            )

        def forward(self, tokens, targets=None):
            logits = self.net(tokens)
            return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    monkeypatch.setitem(
        sys.modules, "Cable", types.SimpleNamespace(Cable=Cable, __spec__="something")
    )


def test_authors_network_is_measured_in_training(authors):
    assert list(cases.train_cases(PLAIN, "cable")) == ["cable"]
    found = cases.train_cases(PLAIN, "cable-v1")
    assert list(found) == ["cable-v1", "cable-v1 theirs"]
    assert found["cable-v1 theirs"].flops == found["cable-v1"].flops  # same number of parameters
    assert list(cases.train_cases(dataclasses.replace(PLAIN, causal=False), "cable-v1")) == [
        "cable-v1"
    ]  # theirs is a decoder


def test_train_step_updates_the_authors_network(authors):
    """All parameters change, with and without weight decay."""
    torch.manual_seed(0)
    model = baselines.AuthorsCable(GPTConfig(size="quickstart", vocab_size=64, block_size=8))
    decayed, rest = (
        sum(p.numel() for p in group["params"]) for group in model.parameter_groups(0.1)
    )
    assert decayed + rest == model.parameter_count() and rest == sum(
        p.numel() for p in model.parameters() if p.dim() == 1
    )
    before = {name: p.clone() for name, p in model.named_parameters()}
    tokens = torch.randint(64, (2, 9))
    cases.train_step(
        model,
        make_optimizer(model),
        torch.amp.GradScaler("cpu", enabled=False),
        (tokens[:, :-1], tokens[:, 1:]),
        torch.float32,
    )
    assert all(not torch.equal(before[name], p) for name, p in model.named_parameters())
