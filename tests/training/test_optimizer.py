"""Tests of optimizers and of their step: defaults, clipping, float16, one that is registered."""

import copy
import shutil

import numpy as np
import pytest
import torch
from conftest import TINY
from in_process import digest
from torch import nn

import train_gpt
from model import GPT, GPTConfig
from training import checkpoints
from training import optimizer as optimizers
from training.optimizer import make_grad_scaler, make_optimizer, optimizer_step
from training.settings import training_settings


class Clamped(nn.Module):
    """One parameter in the interval [0, 1]."""

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.tensor([0.5]))

    def parameter_groups(self, weight_decay):
        return [{"params": [self.x], "weight_decay": weight_decay}]

    @torch.no_grad()
    def clamp_parameters_(self):
        self.x.clamp_(0, 1)


def step(loss_factor, dtype=torch.float32, **options):
    """Take one step on loss_factor * x; return the model and the gradient norm."""
    model = Clamped()
    model.posenc = [model]
    optimizer = make_optimizer(model, lr=10.0, weight_decay=0.0)
    scaler = make_grad_scaler(torch.device("cpu"), dtype)
    scaler.scale(loss_factor * model.x.sum()).backward()
    return model, optimizer_step(model, optimizer, scaler, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_step_returns_the_norm_before_clipping_and_clamps(dtype):
    """The norm is that of the loss, not of the scaled loss."""
    model, norm = step(3.0, dtype, grad_clip=1.0)
    assert norm.item() == pytest.approx(3.0)
    assert model.x.item() == 0.0
    assert model.x.grad is None


def test_overflow_in_float16_leaves_the_parameters_unchanged():
    model, norm = step(float("inf"), torch.float16)
    assert not norm.isfinite()
    assert model.x.item() == 0.5


def test_registered_optimizer_trains_and_resumes_bit_by_bit(
    data_dir, tmp_path, refused, monkeypatch
):
    """The schedule multiplies the rates of its groups; another optimizer is refused."""
    rates = []

    def momentum(model, lr, betas, weight_decay):
        groups = model.parameter_groups(weight_decay)
        groups[1]["lr"] = 3 * lr
        optimizer = torch.optim.SGD(groups, lr=lr, momentum=betas[0])
        optimizer.register_step_pre_hook(
            lambda *_: rates.append([group["lr"] for group in optimizer.param_groups])
        )
        return optimizer

    monkeypatch.setitem(optimizers.OPTIMIZERS, "test-momentum", momentum)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    flags = [*TINY, "--data", str(data_dir), "--keep_checkpoints", "3", "--out_dir"]
    name = ["--optimizer", "test-momentum"]
    train_gpt.main([*flags, str(whole), *name])
    assert [rate[1] for rate in rates] == pytest.approx([3 * rate[0] for rate in rates])
    config = train_gpt.Config(**checkpoints.load_checkpoint(whole)["config"])
    assert [rate[0] for rate in rates] == [train_gpt.learning_rate(n, config) for n in range(6)]
    shutil.copytree(whole, parts)
    for step in (4, 6):
        (parts / f"checkpoint_{step:07}.pt").unlink()
    (line,) = refused(train_gpt.main, *flags, parts, "--resume", "--optimizer", "adamw")
    assert "was trained with optimizer test-momentum, not adamw: use the same" in line
    train_gpt.main([*flags, str(parts), "--resume"])  # with the settings of the run
    one, other = map(checkpoints.load_checkpoint, (whole, parts))
    for key in ("model", "optimizer", "sampler"):
        assert digest(one[key]) == digest(other[key])
    assert training_settings(one)["optimizer"] == "test-momentum"


def newton_schulz(update):
    """Muon's orthogonalization: five steps of a quintic (Jordan et al. 2024)."""
    x = update / np.linalg.norm(update)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x


@pytest.mark.parametrize("block", ["gpt2", "llama"])
def test_muon_orthogonalizes_matrices_of_blocks_and_trains_the_rest_by_adamw(block):
    """Three steps: matrices against NumPy in float64 (PyTorch multiplies in bfloat16)."""
    torch.manual_seed(1)
    model = GPT(GPTConfig("quickstart", n_layer=1, n_head=2, n_embd=64, vocab_size=64, block=block))
    twin, lr, decay = copy.deepcopy(model), 0.1, 0.5
    muon = make_optimizer(model, lr, (0.9, 0.95), decay, name="muon")
    adamw = make_optimizer(twin, lr, (0.9, 0.95), decay)
    matrices = {x: 0.0 for x in model.h.parameters() if x.ndim == 2}  # and means of gradients
    assert {*muon.param_groups[0]["params"]} == {*matrices} and len(matrices) >= 4
    for _ in range(3):
        before = {x: x.detach().double().numpy() for x in matrices}
        for x, other in zip(model.parameters(), twin.parameters(), strict=True):
            x.grad = other.grad = torch.randn_like(x)
        muon.step()
        adamw.step()
        for x, old in before.items():
            grad = x.grad.double().numpy()
            matrices[x] = 0.95 * matrices[x] + 0.05 * grad
            # nesterov: of the gradient and the mean of all gradients
            step = 0.2 * max(x.shape) ** 0.5 * newton_schulz(0.05 * grad + 0.95 * matrices[x])
            error = x.detach().double().numpy() - (old * (1 - lr * decay) - lr * step)
            assert np.linalg.norm(error) < 0.03 * np.linalg.norm(lr * step)
    for x, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert x in matrices or torch.equal(x, other)


def test_checkpoints_without_the_settings_have_the_defaults(trained):
    checkpoint = checkpoints.load_checkpoint(trained("nope"))
    settings = training_settings(checkpoint)
    for name, value in (("optimizer", "adamw"), ("schedule", "cosine"), ("decay_fraction", 0.2)):
        assert checkpoint["config"].pop(name) == value
    assert training_settings(checkpoint) == settings
