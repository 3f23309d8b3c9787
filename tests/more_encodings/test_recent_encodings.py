"""Encodings of 2025 and 2026 against NumPy formulas, pair by pair, and far from the start.

The logits are those of the dense path without a softmax; `start` is the first position.
"""

import math

import numpy as np
import pytest
import torch
from encoding_formulas import (
    SCALE,
    B,
    D,
    H,
    T,
    case,
    check_pairs,
    linear,
    make,
    numbers,
    sigmoid,
    softplus,
)
from numpy.testing import assert_allclose

import attention


def rotated_product(q, k, angle):
    """Return the product (B, H) of q and k (B, H, D) with q's pairs rotated by angle (..., D/2)."""
    half = q.shape[-1] // 2
    z = (q[..., :half] + 1j * q[..., half:]) * (k[..., :half] - 1j * k[..., half:])
    return (z * np.exp(1j * angle)).real.sum(-1)


def carope_steps(encoding, x):
    """Veisi et al. 2025: pair n of a head is rotated by the sum of f(x_t)^n, n from 1 on."""
    f = 1 / (1 + softplus(x @ numbers(encoding.base.weight).T))  # (B, T, H)
    return f.swapaxes(1, 2)[..., None] ** np.arange(1, D // 2 + 1)


def selective_rope_steps(encoding, x):
    phi = x @ numbers(encoding.down.weight).T @ numbers(encoding.up.weight).T  # (B, T, H D/2)
    phi = phi.reshape(B, T, H, D // 2) + np.exp(numbers(encoding.b))
    return phi.swapaxes(1, 2) / 10000 ** (2 * np.arange(D // 2) / D)


@pytest.mark.parametrize(
    "pe, steps_of", [("carope", carope_steps), ("selective-rope:rank=3", selective_rope_steps)]
)
def test_running_angles_match_formula(pe, steps_of):
    """Pairs are rotated by the sum of the steps (B, H, T, D/2) between key and query."""
    encoding, x, q, k, logits = case(pe)
    steps = steps_of(encoding, x)

    def logit(i, j):
        return rotated_product(q[:, :, i], k[:, :, j], steps[:, :, j + 1 : i + 1].sum(2))

    check_pairs(logits, logit)


@pytest.mark.parametrize("start", [0, 20_000])
def test_pope_matches_formula(start):
    encoding, _, q, k, logits = case("pope:base=500", start)
    theta = 500.0 ** (-np.arange(D) / D)
    delta = numbers(encoding.delta)[:, 0]  # (H, D)
    assert (delta >= -2 * math.pi).all() and (delta <= 0).all() and (delta < -0.01).any()

    def logit(i, j):
        lengths = softplus(q[:, :, i]) * softplus(k[:, :, j])
        return (lengths * np.cos((i - j) * theta - delta)).sum(-1)

    check_pairs(logits, logit)


@pytest.mark.parametrize("start", [0, 20_000])
def test_xpos_matches_formula(start):
    _, _, q, k, logits = case("xpos", start)
    n = np.arange(D // 2)
    zeta = (2 * n + 0.4 * D) / (1.4 * D)

    def logit(i, j):
        decayed = q[:, :, i] * np.tile(zeta ** ((i - j) / 512), 2)
        return rotated_product(decayed, k[:, :, j], (i - j) / 10000 ** (2 * n / D))

    check_pairs(logits, logit)


def test_partial_rope_matches_formula():
    """transformers' partial_rotary_factor: the first columns, pairs half of them apart."""
    encoding, q, k = make("rope:percent=50"), *torch.randn(2, B, H, T, 24).double()
    pos = torch.arange(7, 7 + T)[None]
    rotated = encoding.rotate(q, k, pos)
    angle = pos[0].numpy()[:, None] / 10000 ** (2 * np.arange(6) / 12)
    for x, y in zip((q.numpy(), k.numpy()), rotated, strict=True):
        z = (x[..., :6] + 1j * x[..., 6:12]) * np.exp(1j * angle)
        assert_allclose(y, np.concatenate([z.real, z.imag, x[..., 12:]], -1), atol=1e-9)


def test_path_matches_formula():
    """Yang et al. 2025: the product of Householder-like matrices after the key, to the query."""
    encoding, x, q, k, logits = case("path:rank=5")
    w = x @ numbers(encoding.down.weight).T @ numbers(encoding.up.weight).T
    w = w.reshape(B, T, H, D)
    w /= np.linalg.norm(w, axis=-1, keepdims=True)
    beta = 2 * sigmoid(linear(encoding.strength, x))  # (B, T, H)
    outer = beta[..., None, None] * w[..., :, None] * w[..., None, :]
    matrices = np.eye(D) - outer  # (B, T, H, D, D)

    def logit(i, j):
        row = k[:, :, j]  # k_j^T H_(j+1) ... H_i q_i
        for s in range(j + 1, i + 1):
            row = np.einsum("bhd,bhde->bhe", row, matrices[:, s])
        return (row * q[:, :, i]).sum(-1)

    check_pairs(logits, logit)


def test_wall_matches_formula():
    encoding, x, q, k, logits = case("wall")
    gates = sigmoid(x @ numbers(encoding.gate.weight).T + numbers(encoding.b))
    gates = gates.reshape(B, T, H, D).swapaxes(1, 2)

    def logit(i, j):
        return (q[:, :, i] * k[:, :, j] * gates[:, :, j + 1 : i + 1].prod(2)).sum(-1)

    check_pairs(logits, logit)


@pytest.mark.parametrize("pe", ["sink", "rope+sink"])
def test_sink_takes_its_part_of_the_softmax(pe):
    encoding, _, q, k, logits = case(pe)
    s = numbers(next(encoding.parameters()))  # the only ones
    v = torch.randn(B, H, T, D).double()
    pos = torch.arange(T)[None]
    rotated = encoding.rotate(torch.tensor(q), torch.tensor(k), pos)
    ours = attention.dense(*rotated, v, attention.BiasInputs(encoding, (), ()), SCALE)
    weights = np.exp(logits) * np.tril(np.ones((T, T)))
    total = weights.sum(-1, keepdims=True) + np.exp(s)[:, None, None]
    assert s.shape == (H,)
    assert_allclose(ours.detach(), weights / total @ v.numpy(), atol=1e-9)
