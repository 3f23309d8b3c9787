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

import attention
import bench
import posenc
from benchmarking import baselines, cases
from benchmarking.attention_cases import attention_cases
from benchmarking.setting import BenchmarkCase, Setting
from model import GPT, GPTConfig
from training.optimizer import make_optimizer


def features_of(pe, causal=True):
    """Return an encoding, q, k, v (2, 4, 8, 32) each, and the features of 8 tokens."""
    torch.manual_seed(0)
    encoding = posenc.build(pe, 4, 128, 8, 1, causal)[0]
    return (
        encoding,
        torch.randn(3, 2, 4, 8, 32),
        encoding.features(torch.randn(2, 8, 128), torch.arange(8)),
    )


@pytest.fixture
def forgetting(monkeypatch):
    """Forgetting attention row by row, under the name of its authors' package."""

    def forgetting_attention(
        q, k, v, log_fgate, *, head_first=False, sm_scale=None, adaptive_threshold=None
    ):
        assert not torch.compiler.is_compiling()  # PyTorch 2.11 cannot trace their kernels
        assert head_first and adaptive_threshold == "auto" and log_fgate.dtype == torch.float32
        rows = []
        for i in range(q.size(2)):
            decay = [log_fgate[..., j + 1 : i + 1].sum(-1) for j in range(i + 1)]
            logits = (q[:, :, i, None] * k[:, :, : i + 1]).sum(-1) * sm_scale + torch.stack(
                decay, -1
            )
            rows.append((logits.softmax(-1)[..., None] * v[:, :, : i + 1]).sum(2))
        return torch.stack(rows, 2)

    monkeypatch.setitem(
        sys.modules,
        "forgetting_transformer",
        types.SimpleNamespace(forgetting_attention=forgetting_attention, __spec__="something"),
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_forgetting_attention_equals_dense(forgetting, compiled):
    encoding, (q, k, v), features = features_of("fox")

    def attend():
        return baselines.forgetting_attention(q, k, v, encoding, *features, 0.2)

    torch.testing.assert_close(
        torch.compile(attend, backend="eager")() if compiled else attend(),
        attention.dense(q, k, v, attention.BiasInputs(encoding, *features), 0.2),
    )


def test_forgetting_transformer_is_measured_on_gpus(forgetting, monkeypatch):
    gpu = dataclasses.replace(PLAIN, device=torch.device("cuda"))
    measured = {
        pe: " theirs" in gpu.paths(pe, features_of(pe)[0]) for pe in ("fox", "cable-v1", "cable")
    }
    assert measured == {"fox": True, "cable-v1": False, "cable": False}
    assert " theirs" not in dataclasses.replace(gpu, causal=False).paths(
        "fox", features_of("fox", causal=False)[0]
    )
    assert "fox theirs" not in attention_cases(PLAIN, "fox")
    monkeypatch.setattr(Setting, "paths", lambda *_: {"": "sdpa", " theirs": "theirs"})
    found = attention_cases(PLAIN, "fox")
    assert found["fox theirs"].error() < 1e-5


def test_missing_baselines_are_not_measured(monkeypatch):
    assert not baselines.is_installed("no_such_module")
    monkeypatch.setattr(baselines, "is_installed", lambda module: False)
    assert " theirs" not in dataclasses.replace(PLAIN, device=torch.device("cuda")).paths(
        "fox", features_of("fox")[0]
    )
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


def test_ratio_to_the_authors_kernels():
    case = BenchmarkCase(lambda: None, 1, lambda: 0)
    assert bench.make_entry("fox triton", case, {"fox triton": [2], "fox theirs": [3]}, None)[
        "ratios"
    ] == {"theirs": 1.5}
