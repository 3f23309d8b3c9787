"""Tests of the shared AdamW and optimizer step: defaults, clipping, clamping, float16."""

import inspect

import pytest
import torch
from torch import nn

from train_gpt import Config
from training.optimizer import make_grad_scaler, make_optimizer, optimizer_step


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


def test_defaults_equal_training():
    config = Config()
    defaults = {
        name: parameter.default
        for function in (make_optimizer, optimizer_step)
        for name, parameter in inspect.signature(function).parameters.items()
    }
    assert defaults["lr"] == config.lr
    assert defaults["betas"] == (config.beta1, config.beta2)
    assert defaults["weight_decay"] == config.weight_decay
    assert defaults["grad_clip"] == config.grad_clip


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
