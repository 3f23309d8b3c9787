"""Every encoding against an independent float64 NumPy writing of its formula, and what all of them must hold."""

import math

import numpy as np
import pytest
import torch
from conftest import ENCODINGS
from numpy.testing import assert_allclose

import attention
import posenc
from errors import InputError

B, H, T, C = 2, 4, 33, 24


def make(pe, heads=H, width=C, block_size=64):
    torch.manual_seed(0)
    encoding = posenc.build(pe, heads, width, block_size, layers=1)[0]
    for parameter in encoding.parameters():  # no zero biases: they would hide a mistake
        torch.nn.init.normal_(parameter, std=0.5)
    return encoding


def dense_bias(encoding, x, heads=H):
    """(B, H, T, T) float64, or None for an encoding without a bias."""
    if encoding.score is None:
        return None
    q_states, k_states = encoding.states(x, torch.arange(x.size(1)))
    bias = attention.bias(encoding.score, q_states, k_states, heads)
    return bias.detach().expand(x.size(0), heads, x.size(1), x.size(1)).double().numpy()


def linear(layer, x):
    return x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()


def cable_bias(encoding, x):
    """CABLE, equations 2 to 7, with the sign of the text: (B, H, T, T)."""
    f = np.maximum(linear(encoding.step, x), 0)  # (B, T, H)
    g = np.log1p(np.exp(linear(encoding.weight, x)))
    bias = np.zeros((B, H, T, T))
    for i in range(T):
        for j in range(i + 1):
            bias[:, :, i, j] = -g[:, i] * f[:, j + 1 : i + 1].sum(1)  # what the tokens after j let it fall
    return bias


def alibi_bias(encoding, x):
    slopes = 2.0 ** (-8 * np.arange(1, H + 1) / H)
    i, j = np.indices((T, T))
    return np.broadcast_to(-slopes[:, None, None] * (i - j), (B, H, T, T))


BIASES = {"nope": None, "learnable": None, "sinusoidal": None, "rope": None, "alibi": alibi_bias, "cable": cable_bias}


@pytest.mark.parametrize("pe", [pe for pe in ENCODINGS if not pe.startswith("test-")])
def test_bias_is_that_of_the_formula(pe):
    assert pe in BIASES, "write the formula of a new encoding here"
    encoding, x = make(pe), torch.randn(B, T, C)
    bias = dense_bias(encoding, x)
    if BIASES[pe] is None:
        assert bias is None
    else:
        causal = np.tril(np.ones((T, T)))
        assert_allclose(bias * causal, BIASES[pe](encoding, x.double().numpy()) * causal, rtol=1e-5, atol=1e-5)


def test_learnable_adds_its_table():
    encoding, x = make("learnable"), torch.randn(B, T, C)
    assert_allclose(encoding.embed(x, torch.arange(5, 5 + T)).detach(), x + encoding.table.weight[5 : 5 + T].detach())


def test_sinusoidal():
    x = torch.randn(B, T, C, dtype=torch.float64)
    pos, i = np.arange(100_000, 100_000 + T)[:, None], np.arange(C // 2)
    angle = pos / 10000 ** (2 * i / C)
    expected = math.sqrt(C) * x.numpy() + np.concatenate([np.sin(angle), np.cos(angle)], 1)
    assert_allclose(make("sinusoidal").embed(x, torch.arange(100_000, 100_000 + T)), expected, atol=1e-9)


@pytest.mark.parametrize("first", [0, 131_000])
def test_rope_is_a_product_of_complex_numbers(first):
    D = 8
    q, k = torch.randn(2, B, H, T, D)
    pos = np.arange(first, first + T)
    turned = make("rope").rotate(q, k, torch.arange(first, first + T))
    for x, y in zip((q, k), turned):
        x = x.double().numpy()
        z = (x[..., : D // 2] + 1j * x[..., D // 2 :]) * np.exp(1j * pos[:, None] * 10000.0 ** (-2 * np.arange(D // 2) / D))
        assert_allclose(y, np.concatenate([z.real, z.imag], -1), atol=2e-6)


def test_rope_logits_depend_on_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 16).expand(2, 1, 1, T, 16)  # the same query and key everywhere
    q, k = make("rope").rotate(q, k, torch.arange(T))
    logits = (q @ k.mT)[0, 0]
    for d in range(-T + 1, T):
        assert_allclose(logits.diagonal(d), logits.diagonal(d)[0].expand(T - abs(d)), atol=1e-5)


@pytest.mark.parametrize("heads, published", [
    (1, [2**-8]), (2, [2**-4, 2**-8]), (8, [2**-n for n in range(1, 9)]),
    (12, [2**-n for n in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    (3, [2**-4, 2**-8, 2**-2]), (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
])
def test_alibi_slopes_are_the_published_ones(heads, published):
    assert_allclose(make("alibi", heads=heads, width=heads).slopes.flatten(), published, rtol=1e-7)


def test_cable_of_unit_steps_and_alibi_weights_is_alibi_to_the_bit():
    alibi, cable = make("alibi"), make("cable")
    pos = torch.arange(1000)
    s = -torch.ones(1, H, 1000).cumsum(-1)
    g = alibi.slopes.expand(1, H, 1000)
    expected = attention.bias(alibi.score, *alibi.states(torch.randn(1, 1000, C), pos), H)
    assert torch.equal(attention.bias(cable.score, (s, g), (s,), H), expected)


@pytest.mark.parametrize("pe", ["alibi", "cable"])
def test_bias_penalises_distance(pe):
    bias = dense_bias(make(pe), torch.randn(B, T, C))
    assert (np.diff(bias, axis=-1)[..., np.tril(np.ones((T, T - 1)), -1).astype(bool)] >= 0).all()  # nearer keys, higher bias
    assert (bias[..., np.tril(np.ones((T, T))).astype(bool)] <= 0).all() and bias.min() < -0.1


@pytest.mark.parametrize("pe", ENCODINGS)
def test_states_go_on_from_the_last_token(pe):
    encoding, x, pos = make(pe), torch.randn(B, T, C), torch.arange(T)
    whole = encoding.states(x, pos)
    head = encoding.states(x[:, :20], pos[:20])
    tail = encoding.states(x[:, 20:], pos[20:], tuple(s[..., -1:] for s in head[1]))
    for all_of, first, second in zip(whole[0] + whole[1], head[0] + head[1], tail[0] + tail[1]):
        if all_of.size(-1) == T:
            assert_allclose(torch.cat([first, second], -1).detach(), all_of.detach(), rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(first, all_of) and torch.equal(second, all_of)  # a number of the head's, not the token's


@pytest.mark.parametrize("pe", [pe for pe in ENCODINGS if posenc.ENCODINGS[pe].factors])
def test_factors_add_up_to_the_score(pe):
    encoding, x = make(pe), torch.randn(B, T, C)
    q_states, k_states = encoding.states(x, torch.arange(T))
    total = sum(u[..., None].double() * (1 if w is None else w[..., None, :].double()) for u, w in encoding.factors(q_states, k_states))
    assert_allclose(total.detach().expand(B, H, T, T), dense_bias(encoding, x), rtol=1e-5, atol=1e-5)


def test_one_instance_for_all_layers_or_one_each():
    assert len({id(encoding) for encoding in posenc.build("learnable", H, C, 16, layers=3)}) == 1
    assert len({id(encoding) for encoding in posenc.build("cable", H, C, 16, layers=3)}) == 3


def test_unknown_name_names_the_nearest():
    with pytest.raises(InputError, match="'cabel': did you mean cable"):
        posenc.build("cabel", H, C, 16, layers=1)
