"""Positional encodings: every encoding against its NumPy formula, and the encodings of posenc.py.

The tests over NAMES and ENCODINGS hold for any registered encoding. The formulas are in
encoding_formulas.py.
"""

import importlib.util
import math

import numpy as np
import pytest
import torch
from conftest import NAMES
from encoding_formulas import (
    BIASES,
    WITHOUT_BIAS,
    B,
    C,
    H,
    T,
    cable_nw_bias,
    dense_bias,
    diet_abs_bias,
    kerple_bias,
    linear,
    make,
    mean_kernel,
    mirrored,
    power_bias,
    softplus,
    t5_encoder_bias,
)
from numpy.testing import assert_allclose

import pe_spec
import posenc
from operators import elementary

# Operators


@pytest.mark.parametrize(
    "shape, transposed", [((2, 3, 40), False), ((2, 40, 3), True), ((40,), False)]
)
def test_running_sum_matches_numpy(shape, transposed):
    """Check gradients by finite differences, and the fake implementation that compilers use."""
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = x.mT if transposed else x
    assert_allclose(posenc.running_sum(y).detach(), np.cumsum(y.detach().numpy(), -1), atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: posenc.running_sum(x.mT if transposed else x), x)
    torch.library.opcheck(torch.ops.posenc.running_sum.default, (y,))


@pytest.mark.parametrize("tokens", [1, 40])
def test_sin_cos_matches_numpy_at_far_positions(tokens):
    angle = torch.linspace(0, 131_072, 3 * tokens * 5, dtype=torch.float64).view(3, tokens, 5)
    expected = np.sin(angle.numpy()), np.cos(angle.numpy())
    for radius in (1.0, 1.25):
        for ours, exact in zip(posenc.sin_cos(angle, radius), expected, strict=True):
            assert ours.dtype == torch.float32
            assert_allclose(ours, radius * exact, rtol=1e-6, atol=1e-9)
        torch.library.opcheck(torch.ops.posenc.circle.default, (angle, radius))
        torch.library.opcheck(torch.ops.posenc.circle.default, (angle.mT, radius))


@pytest.mark.parametrize("original", [elementary, posenc])
def test_copy_of_a_module_does_not_register_operators_again(original):
    """An exported model brings copies of the files that register operators."""
    before = torch.ops.posenc.running_sum.default, torch.ops.posenc.circle.default
    spec = importlib.util.spec_from_file_location("copied", original.__file__)
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    assert (torch.ops.posenc.running_sum.default, torch.ops.posenc.circle.default) == before
    angle = torch.linspace(0, 1, 4, dtype=torch.float64).view(4, 1)
    assert copied.sin_cos(angle)[0].equal(original.sin_cos(angle)[0])


# All encodings: formulas


@pytest.mark.parametrize("pe", [*NAMES, "fire:threshold=16"])
def test_bias_matches_formula(pe):
    name = pe.split(":")[0]
    encoding, x = make(pe), torch.randn(B, T, C)
    bias = dense_bias(encoding, x)
    if name in WITHOUT_BIAS:
        assert bias is None
        return
    assert name in BIASES, "add the NumPy formula of a new encoding to BIASES"
    causal = np.tril(np.ones((T, T)))
    expected = BIASES[name](encoding, x.double().numpy())
    assert_allclose(bias * causal, expected * causal, rtol=1e-5, atol=1e-5)


def bidirectional_bias(pe, encoding, x):
    """Return the bidirectional bias: the past mirrored, except where a formula says otherwise."""
    if pe in ("cable", "k-cable"):  # the weight g is the query's on both sides
        g = softplus(linear(encoding.weight, x)).transpose(0, 2, 1)[..., None]  # (B, H, T, 1)
        bias = g * mirrored(cable_nw_bias(encoding, x))
        return -np.log(bias**2 + 1) if pe == "k-cable" else bias
    if pe == "t5":  # has buckets for each side
        return t5_encoder_bias(encoding, x)
    if pe == "diet-abs":  # has a bias for any pair of positions
        return diet_abs_bias(encoding, x)
    if pe == "mep-learned":
        t5, kerple = encoding.learned
        others = [power_bias(1), power_bias(2), kerple_bias(kerple, x)]
        return mean_kernel(t5_encoder_bias(t5, x), *map(mirrored, others))
    return mirrored(BIASES[pe.split(":")[0]](encoding, x))


@pytest.mark.parametrize("pe", [*BIASES, "fire:threshold=16"])
def test_bidirectional_bias_matches_formula(pe):
    encoding, x = make(pe, causal=False), torch.randn(B, T, C)
    expected = bidirectional_bias(pe, encoding, x.double().numpy())
    expected = np.broadcast_to(expected, (B, H, T, T))
    assert_allclose(dense_bias(encoding, x), expected, rtol=1e-5, atol=1e-5)


# The encodings of posenc.py


def test_alibi_matches_transformers():
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for heads in (1, 2, 3, 4, 6, 8, 12, 25):
        # theirs: slope times key position
        theirs = build_alibi_tensor(torch.ones(1, T), heads, torch.float32)[:, 0]
        encoding = make("alibi", heads=heads, width=heads)
        ours = dense_bias(encoding, torch.randn(1, T, heads), heads)[0, :, -1]
        assert_allclose(ours, theirs - theirs[:, -1:], rtol=1e-5, atol=1e-6)


def test_t5_matches_transformers():
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(2000)
    theirs = T5Attention._relative_position_bucket(
        -distances, bidirectional=False, num_buckets=32, max_distance=128
    )
    encoding = make("t5")
    ours = encoding.distance_bias(distances.float(), torch.arange(H)[:, None])
    assert_allclose(ours.detach(), encoding.table[:, theirs].detach())


@pytest.mark.parametrize("pe", ["kerple", "kerple-power", "mep-learned", "kerple:heads=9999"])
def test_kerple_starts_and_stays_within_its_bounds(pe):
    torch.manual_seed(0)
    whole = pe_spec.build(pe, 10_000, C, 64, layers=1)[0]
    encoding = next(module for module in whole.modules() if hasattr(module, "r1"))
    top1, top2 = (1, 2) if pe == "kerple-power" else (2, 1)
    for parameter, top in ((encoding.r1, top1), (encoding.r2, top2)):
        assert parameter.min() >= 0.01
        assert 0.98 * top < parameter.max() <= top
        assert abs(parameter.mean() - top / 2) < 0.02 * top
    with torch.no_grad():
        encoding.r1.fill_(-1)
        encoding.r2.fill_(3)
    whole.clamp_parameters_()
    assert (encoding.r1 == np.float32(0.01)).all()
    assert (encoding.r2 == (2 if pe == "kerple-power" else 3)).all()


def test_learnable_adds_its_table():
    encoding, x = make("learnable").requires_grad_(False), torch.randn(B, T, C)
    embedded = encoding.embed(x, torch.arange(5, 5 + T)[None])
    assert_allclose(embedded, x + encoding.table.weight[5 : 5 + T])


@pytest.mark.parametrize("pe, scale", [("sinusoidal", math.sqrt(C)), ("sinusoidal:scaled=0", 1)])
def test_sinusoidal_matches_formula(pe, scale):
    x = torch.randn(B, T, C, dtype=torch.float64)
    pos, n = np.arange(100_000, 100_000 + T)[:, None], np.arange(C // 2)
    angle = pos / 10000 ** (2 * n / C)
    expected = scale * x.numpy() + np.concatenate([np.sin(angle), np.cos(angle)], 1)
    embedded = make(pe).embed(x, torch.arange(100_000, 100_000 + T)[None])
    assert_allclose(embedded, expected, atol=1e-9)


@pytest.mark.parametrize("pe", [*NAMES, "rope+cable", "rope:heads=2", "logn+rope"])
def test_rows_with_other_positions_are_as_alone(pe):
    """Two texts in a batch, one of which continues at position 5, as a document in a window."""
    encoding, x = make(pe).eval(), torch.randn(2, T, C)
    q, k = torch.randn(2, 2, H, T, C // H)
    pos = torch.stack([torch.arange(T), torch.arange(5, 5 + T)])

    def outputs(rows: slice) -> list:
        features = encoding.features(x[rows], pos[rows])
        rotated = encoding.rotate(q[rows], k[rows], pos[rows], *features)
        tensors = encoding.embed(x[rows], pos[rows]), *rotated, *features[0], *features[1]
        return [each.expand(len(x[rows]), *each.shape[1:]) for each in tensors]

    alone = zip(outputs(slice(0, 1)), outputs(slice(1, 2)), strict=True)
    for both, (first, second) in zip(outputs(slice(0, 2)), alone, strict=True):
        assert_allclose(both.detach(), torch.cat([first, second]).detach(), rtol=2e-6, atol=2e-6)


# --pe strings: options and combinations


def test_encoder_is_bidirectional_in_all_layers():
    encodings = pe_spec.build("rope+cable", H, C, 64, layers=2, causal=False)
    parts = [part for encoding in encodings for part in encoding.parts]
    assert not any(each.causal for each in (*encodings, *parts))


def test_composition_rotates_and_adds_biases():
    both, x = make("rope+kerple+cable+t5-clip"), torch.randn(B, T, C)
    pos, (q, k) = torch.arange(T)[None], torch.randn(2, B, H, T, 6)
    for ours, rotated in zip(both.rotate(q, k, pos), make("rope").rotate(q, k, pos), strict=True):
        assert torch.equal(ours, rotated)
    expected = sum(np.tril(dense_bias(part, x)) for part in both.parts[1:])
    assert_allclose(np.tril(dense_bias(both, x)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pe", ["cable", "kerple", "t5", "fire", "k-cable", "diet-abs", "mep"])
@pytest.mark.parametrize("count", [1, 3])
def test_bias_of_some_heads_is_zero_on_the_others(pe, count, causal):
    """On its own heads it is that of the encoding with as many heads, but for fixed slopes."""
    encoding, x = make(f"{pe}:heads={count}", causal=causal), torch.randn(B, T, C)
    bias = dense_bias(encoding, x)
    assert not bias[:, count:].any()
    own = make(pe, heads=count, causal=causal)
    own.load_state_dict(encoding.encoding.state_dict())
    if pe == "mep":
        own.slopes.copy_(make(pe).slopes[:count])
    assert_allclose(bias[:, :count], dense_bias(own, x, count), rtol=1e-5, atol=1e-6)
    assert not encoding.has("factors") or own.has("factors")
    sizes = [[p.numel() for p in each.parameters()] for each in (encoding, own)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    "pe, slopes",
    [
        ("alibi:heads=2", [1 / 4, 1 / 16]),
        ("alibi-shift:shift=-2,heads=2", [1, 1 / 4]),
        ("alibi-shift:shift=-2,heads_percent=99", [1, 1 / 4, 1 / 16]),
        ("alibi:heads_percent=1", [1 / 4]),
    ],
)
def test_slopes_of_some_heads_are_those_of_the_first_of_all_heads(pe, slopes):
    assert_allclose(make(pe).encoding.slopes.flatten(), slopes)


def test_rotation_of_some_heads_leaves_the_others():
    q, k = torch.randn(2, B, H, T, 6)
    rotated = make("rope:heads=3").rotate(q, k, torch.arange(T)[None])
    expected = make("rope").rotate(q, k, torch.arange(T)[None])
    for ours, whole, before in zip(rotated, expected, (q, k), strict=True):
        assert torch.equal(ours[:, :3], whole[:, :3])
        assert torch.equal(ours[:, 3:], before[:, 3:])


def test_pattern_repeats_over_the_layers():
    layers = pe_spec.build("t5+window:w=9@2_t5+cable:heads=2@1", H, C, 16, layers=7)
    assert [layer.window_size for layer in layers] == [9, 9, None, 9, 9, None, 9]
    assert len({layer.parts[0] for layer in layers}) == 1  # t5 is shared
    assert len({layer.parts[1] for layer in layers}) == 7
    assert [cls.names[0] for cls, _ in pe_spec.parse("rope@2_t5+fire@1")] == ["rope", "t5", "fire"]
    assert pe_spec.layer_specs("rope:heads_percent=75@1_t5:max_distance=64@2") == [
        "rope:heads_percent=75",
        "t5:max_distance=64",
        "t5:max_distance=64",
    ]


def test_embedding_of_a_pattern_acts_once():
    layers = pe_spec.build("learnable+window@1_learnable@1", H, C, 16, layers=4)
    assert layers[0].parts[0] is layers[1]
    assert layers[2].parts[0] is layers[3] is layers[1]


def test_composition_uses_the_smallest_window():
    assert make("rope+window:w=20+window:w=9").window_size == 9
