"""Encodings of more_encodings/: what the tests over the registry in test_posenc.py do not cover."""

import math

import numpy as np
import pytest
import torch
from encoding_formulas import (
    SCALE,
    B,
    C,
    D,
    H,
    T,
    case,
    check_pairs,
    check_rotation,
    make,
    numbers,
    power_bias,
    sigmoid,
)
from numpy.testing import assert_allclose

import pe_spec

# Transformations of rows of logits


@pytest.mark.parametrize("window", ["", "window:w=7+"])
def test_cope_matches_formula(window):
    """Golovneva et al. 2024, eqs. 3 to 5; with 7 positions most rows reach the last one."""
    encoding, _, q, k, logits = case(f"{window}cope:positions=7")
    (e,) = map(numbers, encoding.parameters())
    plain = SCALE * q @ k.swapaxes(2, 3)
    gates = sigmoid(plain)

    def logit(i, j):
        p = np.minimum(gates[:, :, i, j : i + 1].sum(-1), 6)
        below, above = np.floor(p).astype(int), np.ceil(p).astype(int)
        row = e[below] + (p - below)[..., None] * (e[above] - e[below])
        return plain[:, :, i, j] + (row * q[:, :, i]).sum(-1)

    check_pairs(logits, logit, 1, 7 if window else T)


@pytest.mark.parametrize("pe", ["cope", "dape", "dapev2"])
def test_nan_in_a_logit_reaches_the_output(pe):
    """Training detects NaN in the loss; as an index into a table it would crash the process."""
    logits, mask = torch.randn(B, H, T, T), torch.ones(T, T, dtype=torch.bool).tril()
    logits[0, 0, 5, 3] = torch.nan
    q, bias = torch.randn(B, H, T, D), torch.zeros(1, 1, 1, 1)
    added = make(pe).logits_transform(logits, bias, q, None, None, None, mask, (), ())
    assert added[0, 0, 5, :4].isnan().any()


@pytest.mark.parametrize("causal", [True, False])
def test_shaw_matches_formula(causal):
    """Shaw et al. 2018, eq. 4: q_i a_clip(j - i) / sqrt(D) is added."""
    encoding, _, q, k, logits = case("shaw:k=5", causal=causal)
    a = numbers(encoding.a)
    assert a.shape == (6 if causal else 11, D)

    def logit(i, j):
        distance = min(max(i - j, -5), 5)
        key = SCALE * k[:, :, j] + a[distance if distance >= 0 else 11 + distance] / math.sqrt(D)
        return (q[:, :, i] * key).sum(-1)

    check_pairs(logits, logit, 1, causal=causal)


@pytest.mark.parametrize("causal", [True, False])
def test_transformer_xl_matches_formula(causal):
    """Dai et al. 2019, the four terms of section 3.3, for all pairs; `rotate` adds the third."""
    encoding, _, q, k, logits = case("transformer-xl", causal=causal)
    u, v, w = numbers(encoding.u[:, 0]), numbers(encoding.v[:, 0]), numbers(encoding.w)

    def logit(i, j):
        angle = (i - j) / 10000 ** (2 * np.arange(C // 2) / C)
        r = w @ np.concatenate([np.sin(angle), np.cos(angle)])  # (H, D)
        positions = ((q[:, :, i] + v) * r).sum(-1) / math.sqrt(D)
        return SCALE * ((q[:, :, i] + u) * k[:, :, j]).sum(-1) + positions

    check_pairs(logits, logit, 1, causal=causal)


@pytest.mark.parametrize("window", ["", "window:w=7+"])
@pytest.mark.parametrize("name, near", [("dape", (0,)), ("dapev2", (-1, 0, 1))])
def test_dape_matches_formula(name, near, window):
    """2H -> 5 -> H numbers of one or three neighboring keys; masked keys are 0 in both layers."""
    encoding, _, q, k, logits = case(f"{window}{name}:width=5+alibi")
    network = encoding.parts[-2]
    d = np.subtract.outer(np.arange(T), np.arange(T))
    attended = np.pad((d >= 0) & (d < (7 if window else T)), ((0, 0), (1, 1)))
    bias = np.broadcast_to(power_bias(1), (B, H, T, T))
    plain = SCALE * q @ k.swapaxes(2, 3)

    def layer(convolution, x):  # (B, channels, T, T + 2) -> the same
        weight, y = numbers(convolution.weight), np.zeros((B, convolution.out_channels, T, T + 2))
        for j in range(1, T + 1):
            y[..., j] = numbers(convolution.bias)[:, None]
            for n, offset in enumerate(near):
                y[..., j] += np.einsum("oc,bct->bot", weight[:, :, 0, n], x[..., j + offset])
        return y

    x = np.pad(np.concatenate([plain, bias], 1), ((0, 0), (0, 0), (0, 0), (1, 1)))
    hidden = layer(network.hidden, x * attended)
    added = layer(network.output, np.where(hidden > 0, hidden, 0.01 * hidden) * attended)
    expected = plain + bias + added[..., 1:-1]
    check_pairs(logits, lambda i, j: expected[:, :, i, j], 1, 7 if window else T)


# Random positions


def positions_of(embedded):
    """Return the positions of sinusoids (B, T, C), read from the slowest pair: it never wraps."""
    return np.arcsin(embedded[..., C // 2 - 1].numpy()) * 10000 ** ((C - 2) / C)


def test_shape_shifts_sequences_during_training():
    encoding = make("shape:shift=40")
    x, pos = torch.zeros(400, T, C, dtype=torch.float64), torch.arange(T)[None]
    shifts = positions_of(encoding.embed(x, pos)) - np.arange(T)
    assert np.ptp(shifts, 1).max() < 1e-6  # one shift per sequence
    assert set(shifts.mean(1).round(6)) == set(range(41))
    assert make("shape").shift == 500
    assert torch.equal(encoding.eval().embed(x, pos), make("sinusoidal").embed(x, pos))


def test_cape_shifts_jitters_and_scales_during_training():
    encoding = make("cape:shift=7,percent=20")
    x, pos = torch.zeros(400, T, C, dtype=torch.float64), torch.arange(T)[None]
    positions = positions_of(encoding.embed(x, pos))
    # The order is kept. Two neighbors move by up to 1/2 each, then are scaled by up to 20%.
    gaps = np.diff(positions, axis=1)
    assert (gaps > 0).all()
    assert 0 < gaps.min() < 0.15
    assert 1.85 < gaps.max() < 2.4
    # The scale, up to the jitter of two tokens; as many factors are above 1 as below.
    scale = (positions[:, -1] - positions[:, 0]) / (T - 1)
    assert 1 / 1.2 - 0.04 < scale.min() < 0.88
    assert 1.15 < scale.max() < 1.2 + 0.04
    assert abs(np.median(scale) - 1) < 0.05
    # The shift of a sequence, and a jitter of its own for each token.
    first = positions[:, 0]
    assert -9 < first.min() < -6.5
    assert 6.5 < first.max() < 9
    assert np.ptp(np.diff(positions - positions[:, :1], axis=1), 0).min() > 0.5
    assert (make("cape").shift, make("cape").percent) == (5, 3)
    assert torch.equal(encoding.eval().embed(x, pos), make("sinusoidal").embed(x, pos))


# RoPE and its variants


def rope_frequencies(n, D, base=10000.0):
    return base ** (-2 * n / D)


def yarn_frequencies(n, D, length, base=10000.0):
    """Peng et al. 2024, section 3.2, for factor 8: rotations within the training length decide."""
    frequencies = []
    for frequency in rope_frequencies(n, D, base):
        rotations = length * frequency / (2 * np.pi)
        weight = min(max((rotations - 1) / 31, 0), 1)
        frequencies.append((1 - weight) * frequency / 8 + weight * frequency)
    return np.array(frequencies)


ROTARY = {
    "rope": rope_frequencies,
    "rope-ntk:factor=8": lambda n, D: rope_frequencies(n, D, 10000.0 * 8 ** (D / (D - 2))),
    "yarn:factor=8": lambda n, D: yarn_frequencies(n, D, 64),
    "yarn:factor=8,base=500,length=900": lambda n, D: yarn_frequencies(n, D, 900, 500.0),
    "rope-pi:base=500,factor=2": lambda n, D: rope_frequencies(n, D, 500.0) / 2,
    "p-rope": lambda n, D: np.where(n < 9, rope_frequencies(n, D), 0),
    "p-rope:percent=50,base=500": lambda n, D: np.where(n < 6, rope_frequencies(n, D, 500.0), 0),
}


def attention_factor(pe):
    return 1 + 0.1 * math.log(8) if "yarn" in pe else 1


@pytest.mark.parametrize("first", [0, 131_000])
@pytest.mark.parametrize("pe", ROTARY)
def test_rope_is_a_product_of_complex_numbers(pe, first):
    check_rotation(pe, ROTARY[pe], first, attention_factor(pe))


YARN = [
    (f"yarn:ramp=released,factor={factor},length={length},base={base}", "yarn", base)
    for length, base in [(256, 10_000), (1024, 10_000), (4096, 500_000), (64, 10)]
    for factor in (1, 4, 16, 64)
]


@pytest.mark.parametrize("pe, kind, base", [*YARN, ("rope-llama3:length=8192", "llama3", 500_000)])
def test_scaled_rope_matches_transformers(pe, kind, base):
    """Frequencies and attention factors that released models were fine-tuned with."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    encoding = make(pe)
    rope = {"rope_type": kind, "rope_theta": float(base), "factor": float(encoding.factor)}
    rope |= {"original_max_position_embeddings": encoding.length}
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    shape = {"hidden_size": 4 * 64, "num_attention_heads": 4}
    shape["max_position_embeddings"] = encoding.factor * encoding.length
    config = LlamaConfig(**shape, rope_parameters=rope)
    expected, expected_factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    assert_allclose(encoding.frequencies(64, torch.device("cpu")), expected, rtol=1e-6)
    assert encoding.attention_factor == pytest.approx(expected_factor)


STANDARD_DEVIATIONS = {
    **{"t5": {"table": 0.02}, "t5-clip": {"table": 0.02}, "diet-abs": {"p_q": 0.02, "p_k": 0.02}},
    **{"cope": {"e": 0}, "transformer-xl": {"w": 0.02, "u": 0, "v": 0}, "shaw": {"a": 0.02}},
}


@pytest.mark.parametrize("pe", STANDARD_DEVIATIONS)
def test_initial_values_follow_the_sources(pe):
    heads, width = (1, 512) if pe == "shaw" else (64, 64)
    encoding = pe_spec.build(pe, heads, width, 512, layers=1)[0]
    for name, deviation in STANDARD_DEVIATIONS[pe].items():
        assert getattr(encoding, name).std().item() == pytest.approx(deviation, rel=0.1)


def test_initial_values_of_fire():
    fire = pe_spec.build("fire", 64, 64, 512, layers=1)[0].requires_grad_(False)
    assert (fire.c, fire.multiplier, fire.threshold) == (pytest.approx(0.1), 1, 512)
    assert fire.w2.abs().max() == pytest.approx(32**-0.5, rel=0.02)


@pytest.mark.parametrize(
    "pe, heads", [("logn", H), ("ssmax", H), ("rope+ssmax", H), ("ssmax:heads=2", 2)]
)
@pytest.mark.parametrize("window", ["", "window:w=7+"])
def test_logit_scale_matches_formula(pe, heads, window):
    """Nakanishi 2025: s_h log n of the n keys that a query attends to; logn: log n / log L."""
    encoding = make(window + pe)
    q, k = torch.randn(2, B, H, T, C // H)
    scaled, same = encoding.rotate(q, k, torch.arange(T)[None])
    if pe == "rope+ssmax":
        q, k = make("rope").rotate(q, k, torch.arange(T)[None])
    log_n = np.log(np.minimum(np.arange(T) + 1, 7 if window else T))
    parameters = [numbers(parameter) for parameter in encoding.parameters()]
    s = parameters[0] if parameters else np.full(H, 1 / np.log(64))
    expected = q.double().numpy()
    expected[:, :heads] *= s[:, None, None] * log_n[:, None]
    assert_allclose(scaled.detach(), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(same, k)


def test_ssmax_starts_with_a_mean_scale_of_one():
    encoding = pe_spec.build("ssmax", H, C, 100, layers=1)[0]
    mean = numbers(encoding.s) * np.log(np.arange(1, 101)).mean()
    assert_allclose(mean, 1, rtol=1e-6)


@pytest.mark.parametrize("first", ["rope", "transformer-xl", "cope"])
def test_order_of_a_logit_scale_does_not_matter(first):
    """Queries are scaled first: Transformer-XL's u and v are not scaled."""
    (q, k), pos = torch.randn(2, B, H, T, C // H), torch.arange(T)[None]
    one, other = make(f"{first}+logn"), make(f"logn+{first}")
    other.parts[1].load_state_dict(one.parts[0].state_dict())
    expected = one.parts[0].rotate(*make("logn").rotate(q, k, pos), pos)
    for encoding in (one, other):
        for ours, theirs in zip(encoding.rotate(q, k, pos), expected, strict=True):
            assert torch.equal(ours, theirs)
