"""Benchmark cases compute what their names say.

The step of train_gpt.py, the named path of attention, the tokens of a context.
"""

import copy
import dataclasses
import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import TINY

import attention
import attention_cpu
import data_loader
import pe_spec
import train_gpt
from benchmarking import cases, setting
from benchmarking.cases import attention_cases
from benchmarking.setting import BenchmarkCase, Setting
from model import GPT
from training import checkpoints, settings
from training.optimizer import make_optimizer

PLAIN = Setting("quickstart", 2, 8, torch.device("cpu"), torch.float32, False)


def test_train_step_is_that_of_train_gpt(data_dir, tmp_path):
    """Six steps of both give the same weights, on the same micro-batches and learning rates."""
    flags = ["--tokens_per_step", "32", "--pe", "kerple", "--data", str(data_dir)]
    train_gpt.main([*TINY, *flags, "--out_dir", str(tmp_path / "run")])
    trained, _ = checkpoints.load_model(tmp_path / "run", torch.device("cpu"))
    torch.manual_seed(1)
    model = GPT(copy.deepcopy(trained.config))
    config = train_gpt.Config(steps=6, warmup_steps=2, lr=1e-2, min_lr=1e-3, block_size=16)
    windows = settings.make_windows(config, data_loader.Shards(data_dir, "train"))
    batches = data_loader.micro_batches(windows, data_loader.Sampler(len(windows), 1), 2, 2)
    optimizer, scaler = make_optimizer(model), torch.amp.GradScaler("cpu", enabled=False)
    for step, (_, *batch, _) in zip(range(6), batches, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = train_gpt.learning_rate(step, config)
        cases.train_step(model, optimizer, scaler, batch, torch.float32)
    torch.testing.assert_close(model.state_dict(), trained.state_dict(), rtol=0, atol=0)


def test_attention_cases_use_the_path_they_name(monkeypatch):
    """Gradients reach the projection, the normalized input and the encoding."""
    paths, grads = [], []
    attend, grad = attention.biased_attention, torch.autograd.grad
    signature = inspect.signature(attend)

    def noting_path(*args, **options):
        paths.append(signature.bind(*args, **options).arguments["path"].name)
        return attend(*args, **options)

    def noting_gradients(*args, **options):
        grads.append(grad(*args, **options))
        return grads[-1]

    monkeypatch.setattr(attention, "biased_attention", noting_path)
    monkeypatch.setattr(torch.autograd, "grad", noting_gradients)
    for case in attention_cases(PLAIN, "cable").values():
        case.prepare()()
    assert paths == ["batched", "dense", "sdpa/flash"]
    for batched, dense, fused in zip(*grads, strict=True):
        torch.testing.assert_close(batched, dense, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(fused, dense, rtol=1e-3, atol=1e-4)
    shapes = [(2, 8, 384), (2, 8, 128), (4, 128), (4,), (4, 128), (4,)]
    assert [tuple(grad.shape) for grad in grads[0]] == shapes


def test_error_shows_wrong_outputs_and_gradients(monkeypatch):
    """Half of the bias, and NaN gradients of gates."""
    batched_products = attention_cpu.batched_products

    def half_of_the_bias(q, k, v, factors, *rest):
        return batched_products(q, k, v, [(u / 2, w) for u, w in factors], *rest)

    monkeypatch.setattr(attention_cpu, "batched_products", half_of_the_bias)
    assert attention_cases(PLAIN, "cable")["cable"].measure(1.0)["error"] > 0.01

    def without_gradient(q, k, v, factors, *rest):
        for u, _ in factors:
            u.register_hook(lambda grad: grad * math.nan)
        return batched_products(q, k, v, factors, *rest)

    monkeypatch.setattr(attention_cpu, "batched_products", without_gradient)
    # The output is correct; only the gradients of the gates are NaN.
    assert math.isnan(attention_cases(PLAIN, "cable")["cable"].measure(1.0)["error"])


def test_generation_reads_the_prompt_untimed(monkeypatch):
    """Then every new token except the last is read, up to the context."""
    read, hidden = [], GPT.hidden

    def noting(self, x, cache):
        read.append((cache.length, x.size(1)))
        return hidden(self, x, cache)

    monkeypatch.setattr(GPT, "hidden", noting)
    timed = cases.generation_cases(PLAIN, "rope")["rope"].prepare()
    assert read == [(0, 4)]
    timed()
    assert read[1:] == [(4, 1), (5, 1), (6, 1), (7, 1)]


def test_paths_on_a_gpu():
    pytest.importorskip("triton", reason="triton is not installed")
    gpu = dataclasses.replace(PLAIN, device=torch.device("cuda"))
    names = ("cable", "fire", "nope", "fire+cable")
    named = {pe: list(gpu.paths(pe_spec.build(pe, 4, 128, 8, 1)[0])) for pe in names}
    assert named == {
        "cable": ["", " dense", " flash", " cudnn", " triton", " flex"],
        "fire": ["", " dense"],  # of "auto", which is triton
        "nope": ["", " flash", " cudnn", " triton"],
        "fire+cable": [""],
    }


def test_pinned_backends_are_used(monkeypatch):
    """On a CPU flash is supported and gives the same result; cuDNN is not, without a fallback."""
    gpu = dataclasses.replace(PLAIN, device=torch.device("cuda")).backends()
    assert PLAIN.backends() == {} and list(gpu) == [" flash", " cudnn"]
    monkeypatch.setattr(Setting, "backends", lambda _: gpu)
    monkeypatch.setitem(setting.PATHS, "cpu", ("dense", "sdpa/flash", "sdpa/cudnn"))
    computed, sdpa = [], F.scaled_dot_product_attention

    def noting(*args, **options):
        computed.append(sdpa(*args, **options))
        return computed[-1]

    monkeypatch.setattr(F, "scaled_dot_product_attention", noting)
    found = attention_cases(PLAIN, "rope")
    assert [case.path for case in found.values()][:3] == ["batched", "sdpa/flash", "sdpa/cudnn"]
    assert found["sdpa flash"].is_supported("sdpa flash")
    assert not found["sdpa cudnn"].is_supported("sdpa cudnn")
    found["sdpa"].prepare()()
    torch.testing.assert_close(*computed[-2:])
    assert torch.backends.cuda.math_sdp_enabled()  # restored
    assert list(cases.train_cases(PLAIN, "rope")) == ["rope", "rope flash", "rope cudnn"]
    assert list(cases.train_cases(PLAIN, "cable")) == ["cable"]


def test_unsupported_case_is_reported_and_left_out(monkeypatch, capsys):
    def fail():
        raise RuntimeError("no such\nkernel")

    works, fails = BenchmarkCase(lambda: lambda: None, 1), BenchmarkCase(lambda: fail, 1)
    found = {"fire": works, "fire flex": fails, "fire triton": works}
    monkeypatch.setitem(cases.BENCHMARKS, "train", lambda *_: found)
    assert list(cases.build_cases("train", PLAIN, ["fire"])) == ["fire", "fire triton"]
    assert capsys.readouterr().out == "fire flex: not supported, no such kernel\n"
