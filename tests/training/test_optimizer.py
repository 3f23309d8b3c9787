"""Tests of optimizers and of their step: defaults, clipping, float16, one that is registered."""

import shutil

from runtime import checkpoints

import numpy as np
import pytest
import torch
from conftest import TINY
from in_process import digest
from torch import nn

import train_gpt
from model import GPT, GPTConfig, optimizer_step
from training import optimizer as optimizers
from training.optimizer import make_grad_scaler, make_optimizer


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
    (line,) = refused(train_gpt.main, *flags, parts, "--resume")
    assert "was trained with optimizer test-momentum, not adamw: use the same" in line
    train_gpt.main([*flags, str(parts), *name, "--resume"])
    one, other = map(checkpoints.load_checkpoint, (whole, parts))
    for key in ("model", "optimizer", "sampler"):
        assert digest(one[key]) == digest(other[key])
    assert checkpoints.training_settings(one)["optimizer"] == "test-momentum"


def newton_schulz(update):
    """Muon's orthogonalization: five steps of a quintic (Jordan et al. 2024)."""
    x = update / np.linalg.norm(update)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x


@pytest.mark.parametrize("block", ["gpt2", "llama"])
def test_muon_orthogonalizes_matrices_of_blocks_and_trains_the_rest_by_adamw(block):
    """Three steps against NumPy in float64; PyTorch multiplies in bfloat16."""
    torch.manual_seed(1)
    model = GPT(GPTConfig("quickstart", n_layer=1, n_head=2, n_embd=64, vocab_size=64, block=block))
    lr, decay = 0.1, 0.5
    optimizer = make_optimizer(model, lr, (0.9, 0.95), decay, name="muon")
    matrices = {*model.h.parameters()} - {x for x in model.h.parameters() if x.ndim < 2}
    assert {*optimizer.param_groups[0]["params"]} == matrices and len(matrices) >= 4
    grouped = [x for group in optimizer.param_groups for x in group["params"]]
    assert len(grouped) == len({*grouped}) == len([*model.parameters()])
    decaying = {*optimizer.param_groups[0]["params"], *optimizer.param_groups[1]["params"]}
    moments = {name: (0.0, 0.0) for name, _ in model.named_parameters()}
    for count in range(1, 4):
        before = {name: x.detach().double().numpy().copy() for name, x in model.named_parameters()}
        for x in model.parameters():
            x.grad = torch.randn_like(x)
        grads = {name: x.grad.double().numpy().copy() for name, x in model.named_parameters()}
        optimizer.step()
        for name, x in model.named_parameters():
            old, grad = before[name] * (1 - lr * decay * (x in decaying)), grads[name]
            mean, square = moments[name]
            if x in matrices:
                # nesterov: of the gradient and the mean of all gradients
                mean = 0.95 * mean + 0.05 * grad
                step = 0.2 * max(x.shape) ** 0.5 * newton_schulz(0.05 * grad + 0.95 * mean)
            else:
                mean, square = 0.9 * mean + 0.1 * grad, 0.95 * square + 0.05 * grad**2
                scale = np.sqrt(square / (1 - 0.95**count)) + 1e-8
                step = mean / (1 - 0.9**count) / scale
            moments[name] = mean, square
            error = np.linalg.norm(x.detach().double().numpy() - (old - lr * step))
            assert error < (0.03 if x in matrices else 1e-4) * np.linalg.norm(lr * step), name


def test_checkpoints_without_the_settings_have_the_defaults(trained):
    checkpoint = checkpoints.load_checkpoint(trained("nope"))
    settings = checkpoints.training_settings(checkpoint)
    for name, value in (("optimizer", "adamw"), ("schedule", "cosine"), ("decay_fraction", 0.2)):
        assert checkpoint["config"].pop(name) == value
    assert checkpoints.training_settings(checkpoint) == settings
