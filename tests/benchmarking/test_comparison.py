"""Baselines compute what our code computes, and pairs of `bench.py compare` the same task."""

import dataclasses
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from test_cases import PLAIN

from benchmarking import baselines, cases, comparison
from errors import InputError
from model import GPT, GPTConfig
from training.optimizer import make_optimizer

SHAPE = dataclasses.replace(PLAIN, shape={"vocab_size": 64})
NANOGPT_MODEL = """
from types import SimpleNamespace as GPTConfig
import torch
class GPT(torch.nn.Linear):
    def __init__(self, config):
        super().__init__(config.n_embd, config.block_size)
        self.config = config
"""


def test_nanogpt_is_built_from_its_folder(tmp_path, monkeypatch):
    config = GPTConfig(size="quickstart", block_size=12)
    for folder in ("", str(tmp_path)):
        monkeypatch.setenv(baselines.NANOGPT, folder)
        with pytest.raises(InputError, match=f"NANOGPT is '{folder}', which has no model.py"):
            baselines.nanogpt(config)
    (tmp_path / "model.py").write_text(NANOGPT_MODEL)
    network = baselines.nanogpt(config).network
    shape = {"block_size": 12, "vocab_size": 50304, "n_layer": 4, "n_head": 4, "n_embd": 128}
    assert vars(network.config) == shape | {"dropout": 0.0, "bias": True}


def test_training_is_compared_with_a_llama_of_the_same_shape():
    """The same parameters and tokens; grouped keys, and an MLP of three matrices."""
    shape = {"vocab_size": 64, "block": "llama", "qk_norm": False, "n_kv_head": 2}
    llama = dataclasses.replace(PLAIN, shape=shape)
    ours, theirs = comparison.train(baselines.llama, "rope", llama)
    assert (ours.tokens, ours.flops) == (theirs.tokens, theirs.flops) and ours.tokens == 16
    theirs.prepare()()


@pytest.mark.parametrize("pe", ["rope", "cable"])
def test_both_generate_as_many_tokens_after_the_prompt(pe, monkeypatch):
    """Theirs starts from a cache, so that reading the prompt is not timed."""
    models, build = [], baselines.make_transformers_model

    def spy(*arguments):
        models.append(build(*arguments))
        return models[-1]

    monkeypatch.setattr(baselines, "make_transformers_model", spy)
    ours, theirs = comparison.generate(pe, SHAPE)
    prompt, new_tokens = cases.generation_task(SHAPE, 64)
    assert ours.tokens == theirs.tokens == new_tokens == 4 and len(prompt) == 4
    tokens = theirs.prepare()()
    plain = models[0].generate(torch.tensor([prompt]), max_new_tokens=5, do_sample=False)
    assert tokens.tolist() == plain.tolist()


def test_other_networks_are_named_if_missing(monkeypatch):
    monkeypatch.setattr(baselines, "find_spec", lambda module: None)
    with pytest.raises(InputError, match="no module Cable: add github.com"):
        baselines.authors_cable(GPTConfig(size="quickstart"))
    monkeypatch.setattr(comparison, "generation_cases", lambda *_: {})
    with pytest.raises(InputError, match="learnable is limited to 1024 tokens: lower --context"):
        comparison.generate("learnable", PLAIN)


class Cable(torch.nn.Module):
    """A network with the name and signature of the CABLE authors' own."""

    def __init__(self, config):
        super().__init__()
        self.net = GPT(dataclasses.replace(config, pe="cable-v1", attention="dense"))

    def forward(self, tokens, targets):
        logits = self.net(tokens)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def test_train_step_updates_the_authors_network(monkeypatch):
    """All parameters change, with and without weight decay."""
    module = types.SimpleNamespace(Cable=Cable, __spec__="something")
    monkeypatch.setitem(sys.modules, "Cable", module)
    model = baselines.authors_cable(GPTConfig(size="quickstart", vocab_size=64, block_size=8))
    groups = model.parameter_groups(0.1)
    decayed, rest = (sum(p.numel() for p in group["params"]) for group in groups)
    assert decayed + rest == model.parameter_count()
    assert rest == sum(p.numel() for p in model.parameters() if p.dim() == 1)
    before = {name: p.clone() for name, p in model.named_parameters()}
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    cases.train_step(model, make_optimizer(model), scaler, SHAPE.make_batch(64), torch.float32)
    assert all(not torch.equal(before[name], p) for name, p in model.named_parameters())
