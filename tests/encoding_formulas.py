"""Independent NumPy formulas of all encodings, and what the tests of encodings share.

A bias formula takes the encoding, for its parameters, and the layer's input x (B, T, C) float64. It
returns the bias (B, H, T, T) of a decoder, computed pair by pair; later keys do not count.
"""

import math

import numpy as np
import torch
from numpy.testing import assert_allclose

import attention
from evaluation.layer_checks import B, C, H, T, dense_bias  # noqa: F401
from evaluation.layer_checks import make_encoding as make

D = C // H
SCALE = 0.4


def numbers(parameter):
    """Return a parameter as a float64 array."""
    return parameter.detach().double().numpy()


def linear(layer, x):
    """Return a linear layer of x in float64."""
    return x @ numbers(layer.weight).T + numbers(layer.bias)


def pairs(bias_of):
    """Return (B, H, T, T) of bias_of(i, j) -> (B, H) or (H,), for keys j <= i."""
    bias = np.zeros((B, H, T, T))
    for i in range(T):
        for j in range(i + 1):
            bias[:, :, i, j] = bias_of(i, j)
    return bias


def mirrored(bias):
    """Return a bias (B, H, T, T) with later keys like earlier ones."""
    past = np.tril(bias)
    return past + np.tril(past, -1).swapaxes(2, 3)


def softplus(x):
    return np.log1p(np.exp(x))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def alibi_slopes():
    return 2.0 ** (-8 * np.arange(1, H + 1) / H)


# CABLE and its family


def cable_bias(encoding, x):
    """CABLE, equations 2 to 7, with the sign of the paper's text."""
    f = np.maximum(linear(encoding.step, x), 0)  # (B, T, H)
    g = softplus(linear(encoding.weight, x))
    return pairs(lambda i, j: -g[:, i] * f[:, j + 1 : i + 1].sum(1))


def cable_nw_bias(encoding, x):
    f = np.maximum(linear(encoding.step, x), 0)
    return pairs(lambda i, j: -f[:, j + 1 : i + 1].sum(1))


def fox_bias(encoding, x):
    """The Forgetting Transformer: log of the product of the gates between key and query."""
    gates = sigmoid(linear(encoding.gate, x))
    return pairs(lambda i, j: np.log(gates[:, j + 1 : i + 1].prod(1)))


def k_cable_bias(encoding, x):
    return -np.log(cable_bias(encoding, x) ** 2 + 1)


def k_fox_bias(encoding, x):
    return -np.log(fox_bias(encoding, x) ** 2 + 1)


# Baselines of the CABLE paper


def power_bias(power, scale=1):
    """Return -scale m d^power, m ALiBi's slopes."""
    return pairs(lambda i, j: -scale * alibi_slopes() * (i - j) ** power)


def alibi_bias(encoding, x):
    return power_bias(1)


def t5_bias(encoding, x):
    """Raffel et al. 2020, section 2.1 and code: half of the buckets are exact, half logarithmic."""

    def bucket(d):
        return d if d < 16 else min(31, 16 + int(math.log(d / 16) / math.log(128 / 16) * 16))

    return pairs(lambda i, j: numbers(encoding.table)[:, bucket(i - j)])


def t5_encoder_bias(encoding, x):
    """Like `t5_bias`, with 16 buckets per side, 8 of them exact; later keys use the last 16."""

    def bucket(d):
        return d if d < 8 else min(15, 8 + int(math.log(d / 8) / math.log(128 / 8) * 8))

    table = numbers(encoding.table)
    bias = np.zeros((1, H, T, T))
    for i in range(T):
        for j in range(T):
            bias[0, :, i, j] = table[:, bucket(abs(i - j)) + 16 * (j > i)]
    return bias


def t5_clip_bias(encoding, x):
    return pairs(lambda i, j: numbers(encoding.table)[:, min(i - j, 63)])


def kerple_bias(encoding, x):
    return pairs(lambda i, j: -numbers(encoding.r1) * np.log(1 + numbers(encoding.r2) * (i - j)))


def kerple_power_bias(encoding, x):
    return pairs(lambda i, j: -numbers(encoding.r1) * (i - j) ** numbers(encoding.r2))


def fire_bias(encoding, x):
    w1, b1, w2, b2, c = (numbers(getattr(encoding, name)) for name in ("w1", "b1", "w2", "b2", "c"))
    threshold = abs(encoding.threshold * numbers(encoding.multiplier))

    def bias(i, j):
        ratio = math.log(abs(c) * (i - j) + 1) / math.log(abs(c) * max(threshold, i) + 1)
        return w2 @ np.maximum(w1 * ratio + b1, 0) + b2

    return pairs(bias)


# Further encodings


def compression_ratios():
    return np.arange(1, H + 1) * 8 / H


def sandwich_bias(encoding, x):
    """Chi et al. 2023, appendix E: products of sinusoidal embeddings minus the largest one."""
    angle = np.arange(T)[:, None] / 10000 ** (2 * np.arange(64) / 128)
    embedded = np.concatenate([np.sin(angle), np.cos(angle)], 1)
    return pairs(lambda i, j: (embedded[i] @ embedded[j] - 64) / compression_ratios())


def sandwich_smoothed_bias(encoding, x):
    return pairs(lambda i, j: 8 / compression_ratios() * (-0.825 * np.log(1 + i - j) - 0.8))


def alibi_shift_bias(encoding, x):
    return pairs(lambda i, j: (j - i) / 2 ** (compression_ratios() + 2))


def alibi_equal_bias(encoding, x):
    return pairs(lambda i, j: np.full(H, (j - i) / 2**2))


def diet_abs_bias(encoding, x):
    p_q, p_k = numbers(encoding.p_q), numbers(encoding.p_k)  # (rank, H, positions)
    bias = p_q.transpose(1, 2, 0) @ p_k.transpose(1, 0, 2)
    return np.broadcast_to(bias[:, :T, :T], (B, H, T, T))


def mean_kernel(*biases):
    """Return log of the mean of exp(bias) over several biases."""
    return np.log(np.mean([np.exp(bias) for bias in np.broadcast_arrays(*biases)], 0))


def mep_bias(encoding, x):
    return mean_kernel(power_bias(1), power_bias(1, 0.5), power_bias(2))


def mep_learned_bias(encoding, x):
    t5, kerple = encoding.learned
    return mean_kernel(power_bias(1), power_bias(2), t5_bias(t5, x), kerple_bias(kerple, x))


BIASES = {
    "alibi": alibi_bias,
    "cable": cable_bias,
    "cable-nw": cable_nw_bias,
    "fox": fox_bias,
    "cable-v1": fox_bias,
    "k-cable": k_cable_bias,
    "k-cable-v1": k_fox_bias,
    "t5": t5_bias,
    "t5-clip": t5_clip_bias,
    "kerple": kerple_bias,
    "kerple-power": kerple_power_bias,
    "fire": fire_bias,
    "sandwich": sandwich_bias,
    "sandwich-smoothed": sandwich_smoothed_bias,
    "alibi-shift": alibi_shift_bias,
    "alibi-equal": alibi_equal_bias,
    "diet-rel": t5_clip_bias,
    "diet-abs": diet_abs_bias,
    "mep": mep_bias,
    "mep-learned": mep_learned_bias,
}
# Encodings that act elsewhere.
WITHOUT_BIAS = {
    *("nope", "learnable", "sinusoidal", "shape", "cape", "rope", "p-rope", "rope-pi", "rope-ntk"),
    *("yarn", "window", "logn", "ssmax", "cope", "dape", "dapev2", "shaw", "transformer-xl"),
    *("rope-llama3", "xpos", "pope", "carope", "selective-rope", "path", "wall", "sink"),
}


# Logits


def case(pe, start=0, causal=True):
    """Return an encoding, x (B, T, C), q and k (B, H, T, D), logits (B, H, T, T), in float64.

    The logits are those of the dense path without a softmax; start: the first position.
    """
    encoding = make(pe, causal=causal).double()
    x = torch.randn(B, T, C).double()
    q, k = torch.randn(2, B, H, T, D).double()
    pos = torch.arange(start, start + T)[None]
    features = encoding.features(x, pos)
    rotated = encoding.rotate(q, k, pos, *features)
    inputs = attention.BiasInputs(encoding, *features)
    logits = attention.logits(*rotated, inputs, SCALE).detach().numpy()
    return encoding, x.numpy(), q.numpy(), k.numpy(), logits


def check_pairs(logits, logit_of, scale=SCALE, window=T, causal=True):
    """Compare the logits of the pairs in the mask with scale * logit_of(i, j) -> (B, H)."""
    for i in range(T):
        for j in range(max(0, i - window + 1), i + 1 if causal else T):
            expected = scale * logit_of(i, j)
            assert_allclose(logits[:, :, i, j], expected, rtol=1e-6, atol=1e-6)


def check_rotation(pe, frequencies, first, factor=1):
    """Compare `rotate` with products of complex numbers, from position `first` on.

    frequencies: function of the pair numbers n and the head dimension D. factor: scale of queries
    and keys.
    """
    D = 24
    q, k = torch.randn(2, B, H, T, D)
    pos = np.arange(first, first + T)
    rotated = make(pe).rotate(q, k, torch.arange(first, first + T)[None])
    rotation = factor * np.exp(1j * pos[:, None] * frequencies(np.arange(D // 2), D))
    for x, y in zip((q, k), rotated, strict=True):
        x = x.double().numpy()
        z = (x[..., : D // 2] + 1j * x[..., D // 2 :]) * rotation
        assert_allclose(y, np.concatenate([z.real, z.imag], -1), atol=3e-6)
