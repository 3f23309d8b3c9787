"""What bench.py times is what it says: the step of train_gpt.py, the named path of attention, the tokens of a context."""

import copy
import dataclasses
import math

import torch
import torch.nn.functional as F
from conftest import TINY

import attention
import data
import posenc
import runs
import shards
import train_gpt
import turns
from model import GPT

PLAIN = turns.Setting("quickstart", 2, 8, torch.device("cpu"), torch.float32, False)


def test_a_step_is_that_of_train_gpt(data_dir, tmp_path):
    """Weights after six steps of the program, and after six of ours over the same micro-batches, at its own learning rates."""
    train_gpt.main([*TINY, "--tokens_per_step", "32", "--pe", "kerple", "--data", str(data_dir), "--out_dir", str(tmp_path / "run")])
    theirs, _ = runs.load_model(tmp_path / "run", torch.device("cpu"))
    torch.manual_seed(1)
    model = GPT(copy.deepcopy(theirs.config))
    windows = data.Windows(shards.Shards(data_dir, "train"), 16)
    batches = data.stream(windows, data.Sampler(len(windows), 1), 2, 2)
    config = train_gpt.Config(steps=6, warmup_steps=2, lr=1e-2, min_lr=1e-3)
    optimizer, scaler = turns.optimizer_of(model), torch.amp.GradScaler("cpu", enabled=False)
    for step, (_, inputs, targets, _) in zip(range(6), batches):
        for group in optimizer.param_groups:
            group["lr"] = train_gpt.learning_rate(step, config)
        turns.optimizer_step(model, model, optimizer, scaler, inputs, targets, torch.float32)
    assert all(torch.equal(ours, theirs.state_dict()[name]) for name, ours in model.state_dict().items())


def test_attention_is_that_of_the_path_it_names(monkeypatch):
    """Gradients reach the projection, the normalised input and the encoding; the dense turn takes the dense path."""
    paths, grads = [], []
    attend, grad = attention.attend, torch.autograd.grad
    monkeypatch.setattr(attention, "attend", lambda *args: paths.append(args[-1]) or attend(*args))
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **options: grads.append(grad(*args, **options)) or grads[-1])
    for turn in turns.attend(PLAIN, "cable").values():
        turn.ready()()
    assert paths == ["sdpa", "dense"]
    for fused, dense in zip(*grads):
        torch.testing.assert_close(fused, dense, rtol=1e-3, atol=1e-4)
    assert [tuple(g.shape) for g in grads[0]] == [(2, 8, 128), (2, 8, 384), (4, 128), (4,), (4, 128), (4,)]


def test_a_path_that_computes_something_else_shows(monkeypatch):
    """Half of the bias, and gradients of gates that are no numbers."""
    factored = attention.factored
    monkeypatch.setattr(attention, "factored", lambda q, k, v, factors, *rest: factored(q, k, v, [(u / 2, w) for u, w in factors], *rest))
    assert turns.attend(PLAIN, "cable")["cable"].error() > 0.01

    def without_gradient(q, k, v, factors, *rest):
        for u, _ in factors:
            u.register_hook(lambda grad: grad * math.nan)
        return factored(q, k, v, factors, *rest)

    monkeypatch.setattr(attention, "factored", without_gradient)
    assert math.isnan(turns.attend(PLAIN, "cable")["cable"].error())  # of gates alone: the output is right


def test_generation_fills_the_context(monkeypatch):
    """The prompt is read before the clock starts; then each token but the last one drawn is read."""
    read = []
    hidden = GPT.hidden
    monkeypatch.setattr(GPT, "hidden", lambda self, x, cache: read.append((cache.length, x.size(1))) or hidden(self, x, cache))
    timed = turns.generate(PLAIN, "rope")["rope"].ready()
    assert read == [(0, 4)]
    timed()
    assert read[1:] == [(4, 1), (5, 1), (6, 1), (7, 1)]


def test_on_a_gpu_the_triton_kernels_take_part():
    gpu = dataclasses.replace(PLAIN, device=torch.device("cuda"))
    named = {pe: list(gpu.paths(pe, posenc.build(pe, 4, 128, 8, 1)[0])) for pe in ("cable", "fire", "nope", "fire+cable")}
    assert named == {"cable": ["", " dense", " triton", " flex"], "fire": ["", " triton", " flex"], "nope": ["", " triton"],
                     "fire+cable": ["", " flex"]}


def test_backends_are_those_that_are_named(monkeypatch):
    """On a CPU flash is there, and computes the same; cuDNN is not, and nothing else takes its place."""
    gpu = dataclasses.replace(PLAIN, device=torch.device("cuda")).backends()
    assert PLAIN.backends() == {} and list(gpu) == [" flash", " cudnn"]
    monkeypatch.setattr(turns.Setting, "backends", lambda _: gpu)
    computed, sdpa = [], F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *args, **options: computed.append(sdpa(*args, **options)) or computed[-1])
    found = turns.attend(PLAIN, "rope")
    assert list(found) == ["rope", "sdpa", "sdpa flash", "sdpa cudnn"]
    assert turns.possible("sdpa flash", found["sdpa flash"]) and not turns.possible("sdpa cudnn", found["sdpa cudnn"])
    found["sdpa"].ready()()
    torch.testing.assert_close(*computed[-2:])
    assert torch.backends.cuda.math_sdp_enabled()  # again
    found = turns.train(PLAIN, "rope")
    assert list(found) == ["rope", "rope flash", "rope cudnn"]
    assert [turns.possible(name, found[name]) for name in found] == [True, True, False]
    assert list(turns.train(PLAIN, "cable")) == ["cable"]


def test_a_rival_that_cannot_is_left_out(capsys):
    def fail():
        raise RuntimeError("no such\nkernel")

    assert not turns.possible("fire flex", turns.Turn(lambda: fail, 1, lambda: 0))
    assert turns.possible("t5 flex", turns.Turn(lambda: lambda: None, 1, lambda: 0))
    assert capsys.readouterr().out == "fire flex: not possible, no such kernel\n"
