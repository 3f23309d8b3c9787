"""What others computed is what we compute: the measurement compares equals. Their own code is not here: stand-ins take its place."""

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
from model import GPT, GPTConfig
from runtime.optimizer import make_optimizer


def states_of(pe, causal=True):
    """An encoding, queries, keys and values (2, 4, 8, 32), and the states of 8 tokens."""
    torch.manual_seed(0)
    encoding = posenc.build(pe, 4, 128, 8, 1, causal)[0]
    return (
        encoding,
        torch.randn(3, 2, 4, 8, 32),
        encoding.features(torch.randn(2, 8, 128), torch.arange(8)),
    )


@pytest.mark.parametrize(
    "pe", ["cable", "k-cable", "alibi", "kerple-power", "t5", "t5-clip", "fox", "rope+cable"]
)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.filterwarnings("ignore")  # torch's, that FlexAttention should be compiled
def test_flex_computes_the_same(pe, causal):
    """On a CPU it has no gradients."""
    encoding, (q, k, v), features = states_of(pe, causal)
    with torch.no_grad():
        theirs = baselines.flex(
            q,
            k,
            v,
            encoding,
            *features,
            0.2,
            baselines.causal_blocks(8, torch.device("cpu")) if causal else None,
        )
        bias_inputs = attention.BiasInputs(encoding, *features)
        torch.testing.assert_close(theirs, attention.dense(q, k, v, bias_inputs, 0.2))


@pytest.fixture
def forgetting(monkeypatch):
    """Forgetting attention, row by row, logits and the logarithms of all gates between, under the name of its authors' package."""

    def forgetting_attention(
        q, k, v, log_fgate, *, head_first=False, sm_scale=None, adaptive_threshold=None
    ):
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


def test_forgetting_attention_gets_our_gates(forgetting):
    encoding, (q, k, v), features = states_of("fox")
    torch.testing.assert_close(
        baselines.forgetting(q, k, v, encoding, *features, 0.2),
        attention.dense(q, k, v, attention.BiasInputs(encoding, *features), 0.2),
    )


def test_the_forgetting_transformer_takes_part_on_gpus(forgetting, monkeypatch):
    gpu = dataclasses.replace(PLAIN, device=torch.device("cuda"))
    taking_part = {
        pe: " theirs" in gpu.paths(pe, states_of(pe)[0]) for pe in ("fox", "cable-v1", "cable")
    }
    assert taking_part == {"fox": True, "cable-v1": False, "cable": False}
    assert " theirs" not in dataclasses.replace(gpu, causal=False).paths(
        "fox", states_of("fox", causal=False)[0]
    )
    assert "fox theirs" not in cases.attend(PLAIN, "fox")
    monkeypatch.setattr(cases.Setting, "paths", lambda *_: {"": "sdpa", " theirs": "theirs"})
    found = cases.attend(PLAIN, "fox")
    assert found["fox theirs"].rival and found["fox theirs"].error() < 1e-5


def test_peers_that_are_not_there_take_no_part(monkeypatch):
    assert not baselines.installed("no_such_module")
    monkeypatch.setattr(baselines, "installed", lambda module: False)
    assert " theirs" not in dataclasses.replace(PLAIN, device=torch.device("cuda")).paths(
        "fox", states_of("fox")[0]
    )
    assert list(cases.train(PLAIN, "cable-v1")) == ["cable-v1"]


@pytest.fixture
def authors(monkeypatch):
    """A network under the name, and with the signature, of that by CABLE's authors."""

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


def test_the_authors_network_takes_part_in_training(authors):
    assert list(cases.train(PLAIN, "cable")) == ["cable"]
    found = cases.train(PLAIN, "cable-v1")
    assert list(found) == ["cable-v1", "cable-v1 theirs"] and found["cable-v1 theirs"].rival
    assert found["cable-v1 theirs"].flops == found["cable-v1"].flops  # no more parameters, no fewer
    assert list(cases.train(dataclasses.replace(PLAIN, causal=False), "cable-v1")) == [
        "cable-v1"
    ]  # theirs is a decoder


def test_a_step_of_theirs_is_a_step(authors):
    """From a batch to new weights, of those that decay and those that do not."""
    torch.manual_seed(0)
    model = baselines.Cable(GPTConfig(size="quickstart", vocab_size=64, block_size=8))
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


def test_its_ratio_is_told():
    turn = cases.BenchmarkCase(lambda: None, 1, lambda: 0)
    assert bench.entry("fox triton", turn, {"fox triton": [2], "fox theirs": [3]}, None)[
        "ratios"
    ] == {"theirs": 1.5}
