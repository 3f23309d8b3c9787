"""What bench.py times is what it says: the step of train_gpt.py, the named path of attention, the tokens of a context."""

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import TINY
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn.attention import SDPBackend

import attention
import posenc
import train_gpt
from benchmarking import cases
from model import GPT
from runtime import loading
from runtime.optimizer import make_optimizer
from text_data import data_loader, shards

PLAIN = cases.Setting("quickstart", 2, 8, torch.device("cpu"), torch.float32, False)


@pytest.mark.parametrize("objective", ["clm", "mlm"])
def test_a_step_is_that_of_train_gpt(objective, data_dir, tmp_path):
    """Weights after six steps of the program, and after six of ours over the same micro-batches, at its own learning rates."""
    train_gpt.main(
        [
            *TINY,
            "--tokens_per_step",
            "32",
            "--pe",
            "kerple",
            "--data",
            str(data_dir),
            "--out_dir",
            str(tmp_path / "run"),
            "--objective",
            objective,
        ]
    )
    theirs, _ = loading.load_model(tmp_path / "run", torch.device("cpu"), causal=None)
    torch.manual_seed(1)
    model = GPT(copy.deepcopy(theirs.config))
    config = train_gpt.Config(
        steps=6, warmup_steps=2, lr=1e-2, min_lr=1e-3, block_size=16, objective=objective
    )
    windows = config.windows(shards.Shards(data_dir, "train"))
    batches = data_loader.micro_batches(windows, data_loader.Sampler(len(windows), 1), 2, 2)
    optimizer, scaler = make_optimizer(model), torch.amp.GradScaler("cpu", enabled=False)
    for step, (_, *batch, _) in zip(range(6), batches):
        for group in optimizer.param_groups:
            group["lr"] = train_gpt.learning_rate(step, config)
        cases.train_step(model, optimizer, scaler, batch, torch.float32)
    assert all(
        torch.equal(ours, theirs.state_dict()[name]) for name, ours in model.state_dict().items()
    )


def test_attention_is_that_of_the_path_it_names(monkeypatch):
    """Gradients reach the projection, the normalised input and the encoding; the dense turn takes the dense path."""
    paths, grads = [], []
    attend, grad = attention.attend, torch.autograd.grad
    monkeypatch.setattr(
        attention,
        "attend",
        lambda *args, **options: paths.append(args[-1]) or attend(*args, **options),
    )
    monkeypatch.setattr(
        torch.autograd,
        "grad",
        lambda *args, **options: grads.append(grad(*args, **options)) or grads[-1],
    )
    for turn in cases.attend(PLAIN, "cable").values():
        turn.ready()()
    assert paths == ["sdpa", "dense"]
    for fused, dense in zip(*grads):
        torch.testing.assert_close(fused, dense, rtol=1e-3, atol=1e-4)
    assert [tuple(g.shape) for g in grads[0]] == [
        (2, 8, 128),
        (2, 8, 384),
        (4, 128),
        (4,),
        (4, 128),
        (4,),
    ]


@pytest.mark.parametrize("pe, keys", [("cable", "cable"), ("nope", "nope"), ("rope", "rope sdpa")])
def test_attention_of_an_encoder_sees_both_ways(pe, keys, monkeypatch):
    """What every turn computes, and its gradients, from softmax(q k^T / sqrt(D) + b) v written out over all keys."""
    computed, grad = [], torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd,
        "grad",
        lambda y, *args, **options: computed.append(y) or grad(y, *args, **options),
    )
    encoder = dataclasses.replace(PLAIN, causal=False)
    encoding, heads, x, projection = cases.random_layer(encoder, pe)
    found = cases.attend(encoder, pe)
    assert list(found) == keys.split()
    for turn in found.values():
        turn.ready()()
    pos = torch.arange(8)
    q, k, v = (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in projection.chunk(3, -1))
    for y, (one, other) in zip(
        computed, ((encoding.rotate(q, k, pos)), (q, k))
    ):  # PyTorch's kernel alone does not rotate
        bias = 0
        if pe == "cable":
            (s, g), _ = encoding.features(x, pos)
            bias = -g[..., None] * (s[..., None] - s[..., None, :]).abs()
        right = ((one @ other.mT) / math.sqrt(q.size(-1)) + bias).softmax(-1) @ v
        torch.testing.assert_close(y, right.transpose(1, 2).flatten(2), rtol=1e-4, atol=1e-5)


def test_an_encoder_is_asked_for_the_tokens_at_their_places():
    """15% of 40 tokens of each text, in order, and what stands there; FLOPs are those of their logits alone."""
    encoder = dataclasses.replace(PLAIN, causal=False, context=40)
    inputs, targets, masked_positions = encoder.batch(50)
    assert (
        inputs.shape == (2, 40)
        and targets.shape == masked_positions.shape == (2, 6)
        and (masked_positions.diff() > 0).all()
        and masked_positions.max() < 40
    )
    assert torch.equal(inputs.gather(1, masked_positions), targets) and not torch.equal(
        *masked_positions
    )
    turn = cases.train(encoder, "nope")["nope"]
    C, V, layers = 128, 50304, 4
    weights = 6 * (
        layers * (12 * C * C + 13 * C) + 2 * C + 0.15 * V * C
    )  # projections and MLP, biases and norms; logits
    assert turn.flops == pytest.approx(weights + 12 * layers * C * 40)


def test_a_path_that_computes_something_else_shows(monkeypatch):
    """Half of the bias, and gradients of gates that are no numbers."""
    sdpa_with_bias = attention.sdpa_with_bias
    monkeypatch.setattr(
        attention,
        "sdpa_with_bias",
        lambda q, k, v, factors, *rest: sdpa_with_bias(
            q, k, v, [(u / 2, w) for u, w in factors], *rest
        ),
    )
    assert cases.attend(PLAIN, "cable")["cable"].error() > 0.01

    def without_gradient(q, k, v, factors, *rest):
        for u, _ in factors:
            u.register_hook(lambda grad: grad * math.nan)
        return sdpa_with_bias(q, k, v, factors, *rest)

    monkeypatch.setattr(attention, "sdpa_with_bias", without_gradient)
    assert math.isnan(
        cases.attend(PLAIN, "cable")["cable"].error()
    )  # of gates alone: the output is right


def test_generation_fills_the_context(monkeypatch):
    """The prompt is read before the clock starts; then each token but the last one drawn is read."""
    read = []
    hidden = GPT.hidden
    monkeypatch.setattr(
        GPT,
        "hidden",
        lambda self, x, cache: read.append((cache.length, x.size(1))) or hidden(self, x, cache),
    )
    timed = cases.generate(PLAIN, "rope")["rope"].ready()
    assert read == [(0, 4)]
    timed()
    assert read[1:] == [(4, 1), (5, 1), (6, 1), (7, 1)]


def test_on_a_gpu_the_triton_kernels_take_part():
    gpu = dataclasses.replace(PLAIN, device=torch.device("cuda"))
    named = {
        pe: list(gpu.paths(pe, posenc.build(pe, 4, 128, 8, 1)[0]))
        for pe in ("cable", "fire", "nope", "fire+cable")
    }
    assert named == {
        "cable": ["", " dense", " triton", " all tiles", " flex"],
        "fire": ["", " triton", " flex"],
        "nope": ["", " triton"],
        "fire+cable": ["", " flex"],
    }


def test_backends_are_those_that_are_named(monkeypatch):
    """On a CPU flash is there, and computes the same; cuDNN is not, and nothing else takes its place."""
    gpu = dataclasses.replace(PLAIN, device=torch.device("cuda")).backends()
    assert PLAIN.backends() == {} and list(gpu) == [" flash", " cudnn"]
    monkeypatch.setattr(cases.Setting, "backends", lambda _: gpu)
    computed, sdpa = [], F.scaled_dot_product_attention
    monkeypatch.setattr(
        F,
        "scaled_dot_product_attention",
        lambda *args, **options: computed.append(sdpa(*args, **options)) or computed[-1],
    )
    found = cases.attend(PLAIN, "rope")
    assert list(found) == ["rope", "sdpa", "sdpa flash", "sdpa cudnn"]
    assert cases.possible("sdpa flash", found["sdpa flash"]) and not cases.possible(
        "sdpa cudnn", found["sdpa cudnn"]
    )
    found["sdpa"].ready()()
    torch.testing.assert_close(*computed[-2:])
    assert torch.backends.cuda.math_sdp_enabled()  # again
    found = cases.train(PLAIN, "rope")
    assert list(found) == ["rope", "rope flash", "rope cudnn"]
    assert [cases.possible(name, found[name]) for name in found] == [True, True, False]
    assert list(cases.train(PLAIN, "cable")) == ["cable"]


def test_compiled_a_backend_is_the_one_that_is_named_too(monkeypatch):
    """Others share its code, which is compiled for each: the operators of its graph tell."""
    targets = set()

    def look(graph, inputs):
        targets.update(node.target for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    compiler = aot_autograd(fw_compiler=look, bw_compiler=look)
    monkeypatch.setattr(
        cases.Setting, "compiled", lambda _, function: torch.compile(function, backend=compiler)
    )
    monkeypatch.setattr(
        cases.Setting,
        "backends",
        lambda _: {" math": SDPBackend.MATH, " flash": SDPBackend.FLASH_ATTENTION},
    )
    torch._dynamo.reset()
    found, flash = (
        cases.attend(PLAIN, "rope"),
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    )
    for name, taken in (("sdpa", True), ("sdpa math", False), ("sdpa flash", True)):
        targets.clear()
        found[name].ready()()
        assert targets and (flash in targets) == taken, name


def test_untrained_falls_leave_tiles_out(monkeypatch):
    """Of log sigmoid(about 0), 0.7 a token, over 512 tokens in tiles of 64; of no bias nothing."""
    pytest.importorskip("triton", reason="triton is not installed")
    setting = dataclasses.replace(PLAIN, device=torch.device("cpu"), context=512)
    monkeypatch.setattr(
        cases.Setting,
        "paths",
        lambda *_: {"": "sdpa", " triton": "triton", " all tiles": "all tiles"},
    )
    found = {pe: cases.attend(setting, pe) for pe in ("fox", "rope")}
    assert (
        found["fox"]["fox triton"].left_out() > 0.3 and found["rope"]["rope triton"].left_out() == 0
    )
    assert found["fox"]["fox all tiles"].left_out is None and found["fox"]["fox all tiles"].rival


def test_a_rival_that_cannot_is_left_out(capsys):
    def fail():
        raise RuntimeError("no such\nkernel")

    assert not cases.possible("fire flex", cases.BenchmarkCase(lambda: fail, 1, lambda: 0))
    assert cases.possible("t5 flex", cases.BenchmarkCase(lambda: lambda: None, 1, lambda: 0))
    assert capsys.readouterr().out == "fire flex: not possible, no such kernel\n"
