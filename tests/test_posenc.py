"""Every encoding against an independent float64 NumPy writing of its formula, and what all of them must hold."""

import importlib.util
import math

import numpy as np
import pytest
import torch
from conftest import ENCODINGS, NAMES
from numpy.testing import assert_allclose

import attention
import posenc
from errors import InputError

B, H, T, C = 2, 4, 33, 24


def make(pe, heads=H, width=C, block_size=64, causal=True):
    torch.manual_seed(0)
    encoding = posenc.build(pe, heads, width, block_size, layers=1, causal=causal)[0]
    for parameter in encoding.parameters():  # no zero biases: they would hide a mistake
        torch.nn.init.normal_(parameter, std=0.5)
    encoding.clamp_parameters_()
    return encoding


def dense_bias(encoding, x, heads=H):
    """(B, H, T, T) float64, or None for an encoding without a bias."""
    if encoding.bias is None:
        return None
    q_features, k_features = encoding.features(x, torch.arange(x.size(1)))
    bias_inputs = attention.BiasInputs(encoding, q_features, k_features)
    bias = attention.bias_matrix(bias_inputs, heads, x.size(1))
    return bias.detach().expand(x.size(0), heads, x.size(1), x.size(1)).double().numpy()


@pytest.mark.parametrize("shape, turned", [((2, 3, 40), False), ((2, 40, 3), True), ((40,), False)])
def test_running_sums_as_an_operator(shape, turned):
    """Against NumPy, its gradient against finite differences; and what compilers are told of it, strides included, is what it does."""
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    y = x.mT if turned else x
    assert_allclose(posenc.running_sum(y).detach(), np.cumsum(y.detach().numpy(), -1), atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: posenc.running_sum(x.mT if turned else x), x)
    torch.library.opcheck(torch.ops.posenc.running_sum.default, (y,))


@pytest.mark.parametrize("tokens", [1, 40])
def test_sines_and_cosines_as_an_operator(tokens):
    """At far positions too, against NumPy; what compilers are told of it is what it does."""
    angle = torch.linspace(0, 131_072, 3 * tokens * 5, dtype=torch.float64).view(3, tokens, 5)
    for radius in (1.0, 1.25):
        for ours, exact in zip(
            posenc.sin_cos(angle, radius), (np.sin(angle.numpy()), np.cos(angle.numpy()))
        ):
            assert ours.dtype == torch.float32
            assert_allclose(ours, radius * exact, rtol=1e-6, atol=1e-9)
        torch.library.opcheck(torch.ops.posenc.circle.default, (angle, radius))
        torch.library.opcheck(torch.ops.posenc.circle.default, (angle.mT, radius))


def test_a_copy_of_the_module_leaves_the_operator_alone():
    """As an exported model brings one."""
    before = torch.ops.posenc.running_sum.default
    spec = importlib.util.spec_from_file_location("copied", posenc.__file__)
    copied = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copied)
    assert torch.ops.posenc.running_sum.default is before
    assert (
        copied.running_sum(torch.ones(3)).tolist()
        == posenc.running_sum(torch.ones(3)).tolist()
        == [1, 2, 3]
    )


def linear(layer, x):
    return x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()


def cable_bias(encoding, x):
    """CABLE, equations 2 to 7, with the sign of the text: (B, H, T, T)."""
    f = np.maximum(linear(encoding.step, x), 0)  # (B, T, H)
    g = np.log1p(np.exp(linear(encoding.weight, x)))
    bias = np.zeros((B, H, T, T))
    for i in range(T):
        for j in range(i + 1):
            bias[:, :, i, j] = -g[:, i] * f[:, j + 1 : i + 1].sum(
                1
            )  # what the tokens after j let it fall
    return bias


def alibi_bias(encoding, x):
    slopes = 2.0 ** (-8 * np.arange(1, H + 1) / H)
    i, j = np.indices((T, T))
    return np.broadcast_to(-slopes[:, None, None] * (i - j), (B, H, T, T))


def cable_nw_bias(encoding, x):
    f = np.maximum(linear(encoding.step, x), 0)
    return pairs(lambda i, j: -f[:, j + 1 : i + 1].sum(1))


def fox_bias(encoding, x):
    """The Forgetting Transformer: the log of the product of the gates between key and query."""
    gates = 1 / (1 + np.exp(-linear(encoding.gate, x)))
    return pairs(lambda i, j: np.log(gates[:, j + 1 : i + 1].prod(1)))


def pairs(bias_of):
    """(B, H, T, T) of bias_of(i, j) -> (B, H), or (H,), for the past."""
    bias = np.zeros((B, H, T, T))
    for i in range(T):
        for j in range(i + 1):
            bias[:, :, i, j] = bias_of(i, j)
    return bias


def numbers(parameter):
    return parameter.detach().double().numpy()


def t5_bias(encoding, x):
    """Raffel et al. 2020, section 2.1 and its code: half of the buckets for single distances, half logarithmic."""

    def bucket(d):
        return d if d < 16 else min(31, 16 + int(math.log(d / 16) / math.log(128 / 16) * 16))

    return pairs(lambda i, j: numbers(encoding.table)[:, bucket(i - j)])


def t5_clip_bias(encoding, x):
    return pairs(lambda i, j: numbers(encoding.table)[:, min(i - j, 63)])


def diet_abs_bias(encoding, x):
    p_q, p_k = numbers(encoding.p_q), numbers(encoding.p_k)  # (rank, H, positions)
    return np.broadcast_to(
        (p_q.transpose(1, 2, 0) @ p_k.transpose(1, 0, 2))[:, :T, :T], (B, H, T, T)
    )


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


def compression_ratios():
    return np.arange(1, H + 1) * 8 / H


def sandwich_bias(encoding, x):
    """Chi et al. 2023, appendix E: inner products of sinusoidal embeddings, the largest subtracted."""
    angle = np.arange(T)[:, None] / 10000 ** (2 * np.arange(64) / 128)
    embedded = np.concatenate([np.sin(angle), np.cos(angle)], 1)
    return pairs(lambda i, j: (embedded[i] @ embedded[j] - 64) / compression_ratios())


def sandwich_smoothed_bias(encoding, x):
    return pairs(lambda i, j: 8 / compression_ratios() * (-0.825 * np.log(1 + i - j) - 0.8))


def powers(power, scale=1):
    """-scale m (i - j)^power, m ALiBi's slopes."""
    return pairs(lambda i, j: -scale * 2.0 ** (-8 * np.arange(1, H + 1) / H) * (i - j) ** power)


def mean_kernel(*biases):
    return np.log(np.mean([np.exp(bias) for bias in np.broadcast_arrays(*biases)], 0))


def mep_learned_bias(encoding, x):
    t5, kerple = encoding.learned
    return mean_kernel(powers(1), powers(2), t5_bias(t5, x), kerple_bias(kerple, x))


BIASES = {
    "nope": None,
    "learnable": None,
    "sinusoidal": None,
    "rope": None,
    "p-rope": None,
    "rope-pi": None,
    "rope-ntk": None,
    "yarn": None,
    "alibi": alibi_bias,
    "cable": cable_bias,
    "cable-nw": cable_nw_bias,
    "fox": fox_bias,
    "cable-v1": fox_bias,
    "k-cable": lambda encoding, x: -np.log(cable_bias(encoding, x) ** 2 + 1),
    "k-cable-v1": lambda encoding, x: -np.log(fox_bias(encoding, x) ** 2 + 1),
    "t5": t5_bias,
    "t5-clip": t5_clip_bias,
    "kerple": kerple_bias,
    "kerple-power": kerple_power_bias,
    "fire": fire_bias,
    "sandwich": sandwich_bias,
    "sandwich-smoothed": sandwich_smoothed_bias,
    "alibi-shift": lambda encoding, x: pairs(
        lambda i, j: (j - i) / 2 ** (compression_ratios() + 2)
    ),
    "alibi-equal": lambda encoding, x: pairs(lambda i, j: np.full(H, (j - i) / 2**2)),
    "diet-rel": t5_clip_bias,
    "diet-abs": diet_abs_bias,
    "mep": lambda encoding, x: mean_kernel(powers(1), powers(1, 0.5), powers(2)),
    "mep-learned": mep_learned_bias,
    "window": None,
    "cope": None,
    "dape": None,
    "dapev2": None,
    "shape": None,
    "cape": None,
    "shaw": None,
    "transformer-xl": None,
}


@pytest.mark.parametrize(
    "pe", [pe for pe in NAMES if not pe.startswith("test-")] + ["fire:threshold=16"]
)
def test_bias_is_that_of_the_formula(pe):
    assert pe.split(":")[0] in BIASES, "write the formula of a new encoding here"
    encoding, x = make(pe), torch.randn(B, T, C)
    formula = BIASES[pe.split(":")[0]]
    bias = dense_bias(encoding, x)
    if formula is None:
        assert bias is None
    else:
        causal = np.tril(np.ones((T, T)))
        assert_allclose(
            bias * causal, formula(encoding, x.double().numpy()) * causal, rtol=1e-5, atol=1e-5
        )


def t5_encoder_bias(encoding, x):
    """As `t5_bias`, for either side 16 buckets, 8 of them for single distances; those of keys after the query come last."""

    def bucket(d):
        return d if d < 8 else min(15, 8 + int(math.log(d / 8) / math.log(128 / 8) * 8))

    table = numbers(encoding.table)
    return np.stack(
        [[table[:, bucket(abs(i - j)) + 16 * (j > i)] for j in range(T)] for i in range(T)]
    ).transpose(2, 0, 1)[None]


def mirrored(bias):
    past = np.tril(bias)
    return past + np.tril(past, -1).swapaxes(2, 3)


@pytest.mark.parametrize(
    "pe", [pe for pe, formula in BIASES.items() if formula] + ["fire:threshold=16"]
)
def test_bias_both_ways_is_that_of_the_formula(pe):
    """What the past does to a query, the future does as well; but the weight g is the query's, and T5 has buckets for each side."""
    encoding, x = make(pe, causal=False), torch.randn(B, T, C)
    X = x.double().numpy()
    if pe in ("cable", "k-cable"):
        g = np.log1p(np.exp(linear(encoding.weight, X))).transpose(0, 2, 1)[
            ..., None
        ]  # (B, H, T, 1)
        past = cable_nw_bias(encoding, X)
        expected = g * (past + past.swapaxes(2, 3))
        expected = -np.log(expected**2 + 1) if pe == "k-cable" else expected
    elif pe == "t5":
        expected = t5_encoder_bias(encoding, X)
    elif pe == "diet-abs":  # of any pair of positions
        expected = diet_abs_bias(encoding, X)
    elif pe == "mep-learned":
        t5, kerple = encoding.learned
        expected = mean_kernel(
            t5_encoder_bias(t5, X), *map(mirrored, (powers(1), powers(2), kerple_bias(kerple, X)))
        )
    else:
        expected = mirrored(BIASES[pe.split(":")[0]](encoding, X))
    assert_allclose(
        dense_bias(encoding, x), np.broadcast_to(expected, (B, H, T, T)), rtol=1e-5, atol=1e-5
    )


def test_an_encoder_knows_keys_on_both_sides():
    with pytest.raises(
        InputError,
        match="cope supports decoders only: use another encoding for an encoder",
    ):
        posenc.build("cope+alibi", H, C, 64, layers=1, causal=False)
    assert not any(
        encoding.causal for encoding in posenc.build("rope+cable", H, C, 64, layers=2, causal=False)
    )
    assert (
        make("cable").causal
        and make("cable").factors
        and make("rope+cable", causal=False).factors is None
    )


@pytest.mark.parametrize(
    "pe",
    [
        "t5",
        "t5-clip:k=7",
        "kerple",
        "kerple-power",
        "sandwich",
        "sandwich-smoothed",
        "mep",
        "mep-learned",
    ],
)
@pytest.mark.parametrize("causal", [True, False])
def test_bias_by_distance_is_the_score_pair_by_pair(pe, causal):
    encoding, x = make(pe, causal=causal), torch.randn(1, T, C)
    (i,), (j,) = encoding.features(x, torch.arange(T))
    bias = encoding.bias(
        (i[..., None],), (j[..., None, :],), torch.arange(H)[:, None, None]
    ).detach()
    seen = np.tri(T) if causal else 1
    assert_allclose(dense_bias(encoding, x) * seen, bias.numpy() * seen, rtol=1e-6)


def rows(window_size=T):
    """Logits, biases and queries at random, distances, and the attention mask."""
    torch.manual_seed(1)
    d = torch.arange(T)[:, None] - torch.arange(T)
    return (
        2 * torch.randn(B, H, T, T),
        torch.randn(1, H, T, T),
        torch.randn(B, H, T, C // H),
        d,
        (d >= 0) & (d < window_size),
    )


@pytest.mark.parametrize("window_size", [T, 7])
def test_cope_is_the_formula(window_size):
    """Golovneva et al. 2024, equations 3 to 5, pair by pair; with 7 positions most rows reach the last one."""
    encoding, (logits, bias, q, d, mask) = make("cope:positions=7"), rows(window_size)
    found, e = (
        encoding.logits_transform(logits, bias, q, d, mask).detach().numpy(),
        numbers(encoding.e),
    )
    gates = 1 / (1 + np.exp(-logits.double().numpy()))
    for i in range(T):
        for j in range(max(0, i - window_size + 1), i + 1):
            p = np.minimum(gates[:, :, i, j : i + 1].sum(-1), 6)
            below, above = np.floor(p).astype(int), np.ceil(p).astype(int)
            row = e[below] + (p - below)[..., None] * (e[above] - e[below])
            assert_allclose(
                found[:, :, i, j], (row * q[:, :, i].numpy()).sum(-1), rtol=1e-4, atol=1e-4
            )


@pytest.mark.parametrize("pe", ["cope", "dape", "dapev2"])
def test_a_logit_that_is_no_number_goes_on(pe):
    """To the loss, where training finds it; as a place in a table it would end the process."""
    logits, *others = rows()
    logits[0, 0, 5, 3] = torch.nan
    assert make(pe).logits_transform(logits, *others)[0, 0, 5, :4].isnan().any()


@pytest.mark.parametrize("pe", ["cope", "dape", "dapev2", "shaw", "transformer-xl"])
def test_rows_in_float64(pe):
    encoding, (*numbers, d, mask) = make(pe), rows()
    found = encoding.logits_transform(*(x.double() for x in numbers), d, mask)
    assert (
        found.dtype == torch.float64
        and (found - encoding.logits_transform(*numbers, d, mask)).abs().max() < 1e-4
    )


@pytest.mark.parametrize("first", [0, 90])
@pytest.mark.parametrize("causal", [True, False])
def test_shaw_is_the_formula(causal, first):
    """Shaw et al. 2018, equation 4: q_i (k_j + a_clip(j - i)) / sqrt(D), pair by pair, of a text's beginning and of its continuation."""
    encoding, (logits, bias, q, d, mask) = make("shaw:k=5", causal=causal), rows()
    found, a = (
        encoding.logits_transform(logits, bias, q, d + first, mask).detach().numpy(),
        numbers(encoding.a),
    )
    assert a.shape == (6 if causal else 11, C // H)
    for i in range(T):
        for j in range(i + 1 if causal else T):
            distance = min(max(first + i - j, -5), 5)
            expected = (
                q[:, :, i].numpy()
                @ a[distance if distance >= 0 else 11 + distance]
                / math.sqrt(C // H)
            )
            assert_allclose(found[:, :, i, j], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("first", [0, 90])
def test_transformer_xl_is_the_formula(first):
    """Dai et al. 2019, the four terms of section 3.3, keys on both sides of the query; `rotate` gives the third."""
    encoding, (_, bias, q, d, mask) = make("transformer-xl"), rows()
    k = torch.randn(B, H, T, C // H)
    moved, same = encoding.rotate(q, k, torch.arange(T))
    logits = moved @ same.mT / math.sqrt(C // H)
    found = (
        (logits + encoding.logits_transform(logits, bias, moved, d + first, mask)).detach().numpy()
    )
    u, v, w = (numbers(parameter) for parameter in (encoding.u[:, 0], encoding.v[:, 0], encoding.w))
    for i in range(T):
        for j in range(T):
            angle = (first + i - j) / 10000 ** (2 * np.arange(C // 2) / C)
            r = w @ np.concatenate([np.sin(angle), np.cos(angle)])  # (H, D)
            qi, kj = q[:, :, i].double().numpy(), k[:, :, j].double().numpy()
            terms = (qi * kj).sum(-1) + (qi * r).sum(-1) + (u * kj).sum(-1) + (v * r).sum(-1)
            assert_allclose(found[:, :, i, j], terms / math.sqrt(C // H), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window_size", [T, 7])
@pytest.mark.parametrize("pe, near", [("dape:width=5", (0,)), ("dapev2:width=5", (-1, 0, 1))])
def test_dape_is_the_formula(pe, near, window_size):
    """2H -> 5 -> H numbers of a pair, or of three neighbouring keys; what a query does not see is zero, hidden numbers too."""
    encoding, (logits, bias, q, d, mask) = make(pe), rows(window_size)
    found = encoding.logits_transform(logits, bias, q, d, mask).detach().numpy()
    seen = np.pad(mask.numpy(), ((0, 0), (1, 1)))  # one key more on either side, which is none

    def layer(convolution, x):  # (B, channels, T, T + 2) -> the same
        weight, y = numbers(convolution.weight), np.zeros((B, convolution.out_channels, T, T + 2))
        for j in range(1, T + 1):
            y[..., j] = numbers(convolution.bias)[:, None] + sum(
                np.einsum("oc,bct->bot", weight[:, :, 0, n], x[..., j + near[n]])
                for n in range(len(near))
            )
        return y

    x = (
        np.pad(
            np.concatenate([logits, bias.expand(B, -1, -1, -1)], 1).astype(float),
            ((0, 0), (0, 0), (0, 0), (1, 1)),
        )
        * seen
    )
    hidden = layer(encoding.hidden, x)
    expected = layer(encoding.output, np.where(hidden > 0, hidden, 0.01 * hidden) * seen)
    assert_allclose((found * mask.numpy()), (expected * seen)[..., 1:-1], rtol=1e-4, atol=1e-4)


def test_alibi_shifted_and_equal():
    steep, plain = make("alibi-shift:shift=-3"), make("alibi")
    assert torch.equal(steep.slopes, 8 * plain.slopes)  # of four heads, h is ALiBi's exponent
    assert torch.equal(
        make("alibi-shift:shift=3", heads=12).slopes.flatten(),
        (2 ** -(8 * torch.arange(1, 13).double() / 12 + 3)).float(),
    )
    assert make("alibi-equal:h=0").slopes.flatten().tolist() == [1] * H


def test_a_composition_sees_as_far_as_the_part_that_sees_least():
    assert (
        make("window:w=9+alibi").window_size == make("rope+window:w=20+window:w=9").window_size == 9
        and make("rope+alibi").window_size is None
    )


def test_t5_is_that_of_transformers():
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(2000)
    theirs = T5Attention._relative_position_bucket(
        -distances, bidirectional=False, num_buckets=32, max_distance=128
    )
    encoding = make("t5")
    ours = encoding.distance_bias(distances.float(), torch.arange(H)[:, None])
    assert_allclose(ours.detach(), encoding.table[:, theirs].detach())


def test_alibi_is_that_of_transformers():
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    for heads in (4, 8, 12, 25):
        theirs = build_alibi_tensor(torch.ones(1, T), heads, torch.float32)[
            :, 0
        ]  # slope times key position
        ours = dense_bias(make("alibi", heads=heads, width=heads), torch.randn(1, T, heads), heads)[
            0, :, -1
        ]
        assert_allclose(ours, theirs - theirs[:, -1:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "pe, rope_type, base, settings",
    [
        ("rope", "default", 10000.0, {}),
        ("rope:base=500", "default", 500.0, {}),
        ("p-rope:percent=60", "proportional", 10000.0, {"partial_rotary_factor": 0.6}),
        ("rope-pi:factor=8", "linear", 10000.0, {"factor": 8.0}),
        (
            "rope-ntk:factor=8,base=500",
            "dynamic",
            500.0,
            {"factor": 1.0},
        ),  # theirs for eight times the length, below
        (
            "yarn:factor=8",
            "llama3",
            10000.0,
            {
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 32.0,
                "original_max_position_embeddings": 1000,
            },
        ),  # the same ramp, without a stretch
    ],
)
def test_rope_and_its_variants_are_those_of_transformers(pe, rope_type, base, settings):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    width, length = 4 * C, 1000
    q, k = torch.randn(2, B, H, T, width // H)
    rotary = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=width,
            num_attention_heads=H,
            max_position_embeddings=length,
            rope_parameters={"rope_type": "default", "rope_theta": base},
        )
    )
    if rope_type != "default":
        config = LlamaConfig(
            hidden_size=width,
            num_attention_heads=H,
            max_position_embeddings=length,
            rope_parameters={"rope_type": rope_type, "rope_theta": base, **settings},
        )
        rotary.inv_freq, _ = ROPE_INIT_FUNCTIONS[rope_type](
            config, None, 8 * length if rope_type == "dynamic" else None
        )
    theirs = apply_rotary_pos_emb(q, k, *rotary(q, torch.arange(T)[None]))
    encoding = make(pe, width=width, block_size=length)
    stretch = 1 + 0.1 * math.log(8) if "yarn" in pe else 1
    for ours, expected in zip(encoding.rotate(q, k, torch.arange(T)), theirs):
        assert_allclose(ours / stretch, expected, atol=1e-5)


def test_fox_and_the_first_cable_differ_by_the_sign_of_their_weights():
    """cumsum(-Softplus(x w)), CABLE version 1, is cumsum(log sigmoid(-x w))."""
    assert posenc.ENCODINGS["fox"] is posenc.ENCODINGS["cable-v1"]
    fox, x = make("fox"), torch.randn(B, T, C)
    (s, _), _ = fox.features(x, torch.arange(T))
    expected = -np.cumsum(np.log1p(np.exp(-linear(fox.gate, x.double().numpy()))), 1)
    assert_allclose(s.mT.detach(), expected, rtol=1e-5)


@pytest.mark.parametrize("pe", ["kerple", "kerple-power", "mep-learned"])
def test_kerple_starts_and_stays_within_its_bounds(pe):
    torch.manual_seed(0)
    whole = posenc.build(pe, 10_000, C, 64, layers=1)[0]
    encoding = whole.learned[1] if pe == "mep-learned" else whole
    top1, top2 = (1, 2) if pe == "kerple-power" else (2, 1)
    for parameter, top in ((encoding.r1, top1), (encoding.r2, top2)):
        assert 0.01 <= parameter.min() and 0.98 * top < parameter.max() <= top
        assert abs(parameter.mean() - top / 2) < 0.02 * top
    with torch.no_grad():
        encoding.r1.fill_(-1)
        encoding.r2.fill_(3)
    whole.clamp_parameters_()
    assert (encoding.r1 == np.float32(0.01)).all() and (
        encoding.r2 == (2 if pe == "kerple-power" else 3)
    ).all()


def test_starting_values_are_those_of_the_sources():
    def start(pe, heads=64, width=64):
        return posenc.build(pe, heads, width, 512, layers=1)[0].requires_grad_(False)

    assert start("t5").table.std() == pytest.approx(0.02, rel=0.1) and start(
        "t5-clip"
    ).table.std() == pytest.approx(0.02, rel=0.05)
    assert start("diet-abs").p_q.std() == pytest.approx(0.02, rel=0.05) and start(
        "diet-abs", 4, 48
    ).p_k.shape == (12, 4, 512)
    fire = start("fire")
    assert (fire.c, fire.multiplier, fire.threshold) == (pytest.approx(0.1), 1, 512)
    assert fire.w2.abs().max() == pytest.approx(32**-0.5, rel=0.02) and not start("cope").e.any()
    xl = start("transformer-xl")
    assert xl.w.std() == pytest.approx(0.02, rel=0.1) and not xl.u.any() and not xl.v.any()
    assert start("shaw", 1, 512).a.std() == pytest.approx(0.02, rel=0.1)


def test_options_are_constructor_keywords():
    assert make("fire:width=5").w1.shape == (5,)
    assert make("t5-clip:k=7").table.shape == (H, 8) and make("t5-clip").table.shape == (H, 64)
    assert (
        make("t5:buckets=8,max_distance=32").table.shape == (H, 8)
        and len(make("diet-abs:rank=3").p_q) == 3
    )


def test_composition_rotates_and_biases():
    both, (rope, cable) = make("rope+cable"), (make("rope"), make("cable"))
    cable.load_state_dict(both.parts[1].state_dict())
    x, pos = torch.randn(B, T, C), torch.arange(T)
    q, k = torch.randn(2, B, H, T, 6)
    assert all(torch.equal(a, b) for a, b in zip(both.rotate(q, k, pos), rope.rotate(q, k, pos)))
    assert_allclose(dense_bias(both, x), dense_bias(cable, x))
    assert (
        both.factors is not None
        and make("rope+kerple").factors is None
        and make("rope+learnable").bias is None
    )


def test_composition_adds_biases():
    both = make("kerple+cable+t5-clip")
    x = torch.randn(B, T, C)
    expected = sum(np.tril(dense_bias(part, x)) for part in both.parts)
    assert_allclose(np.tril(dense_bias(both, x)), expected, rtol=1e-5, atol=1e-5)


def test_composition_shares_what_the_model_shares():
    layers = posenc.build("learnable+cable", H, C, 16, layers=3)
    assert (
        len({id(layer.parts[0]) for layer in layers}) == 1
        and len({id(layer.parts[1]) for layer in layers}) == 3
    )
    assert layers[0].max_context == 16


@pytest.mark.parametrize(
    "spec, told",
    [
        ("cabel", "unknown positional encoding 'cabel': did you mean cable"),
        ("rope+", "unknown positional encoding ''"),
        ("fire:depth=3", "fire has no option 'depth': choose from width threshold"),
        ("cable:k=3", "cable has no option 'k': it has none"),
        (
            "t5-clip:k=many",
            "t5-clip: k is 'many': it must be a whole number of at least 1, as in t5-clip:k=8",
        ),
        ("t5-clip:k=0", "k is '0'"),
        ("t5-clip:k", "k is ''"),
        (
            "alibi-shift:shift=-9",
            "shift is '-9': it must be a whole number of at least -8, as in alibi-shift:shift=8",
        ),
        ("alibi-equal:h=-9", "at least -8"),
        ("sandwich:dimension=1", "at least 2"),
        ("window:w=1-", "w is '1-'"),
        (
            "dape+kerple+dapev2",
            "dape and dapev2 cannot be combined, both act on logits_transform: choose one of them",
        ),
        (
            "learnable+sinusoidal",
            "learnable and sinusoidal cannot be combined, both act on embed: choose one of them",
        ),
    ],
)
def test_wrong_specs_are_told(spec, told):
    with pytest.raises(InputError) as error:
        posenc.build(spec, H, C, 16, layers=1)
    assert len(error.value.problems) == 1 and told in error.value.problems[0]


def test_all_problems_of_a_spec_are_told_together():
    with pytest.raises(InputError) as error:
        posenc.parse("fire:depth=3+rope+rope+cabel")
    assert len(error.value.problems) == 3


def test_learnable_adds_its_table():
    encoding, x = make("learnable"), torch.randn(B, T, C)
    assert_allclose(
        encoding.embed(x, torch.arange(5, 5 + T)).detach(),
        x + encoding.table.weight[5 : 5 + T].detach(),
    )


def test_sinusoidal():
    x = torch.randn(B, T, C, dtype=torch.float64)
    pos, i = np.arange(100_000, 100_000 + T)[:, None], np.arange(C // 2)
    angle = pos / 10000 ** (2 * i / C)
    expected = math.sqrt(C) * x.numpy() + np.concatenate([np.sin(angle), np.cos(angle)], 1)
    assert_allclose(
        make("sinusoidal").embed(x, torch.arange(100_000, 100_000 + T)), expected, atol=1e-9
    )


def positions_of(embedded):
    """At which positions sinusoids (B, T, C) were taken, by the slowest pair alone, which does not come round."""
    return np.arcsin(embedded[..., C // 2 - 1].numpy()) * 10000 ** ((C - 2) / C)


def test_shape_shifts_sequences_while_it_trains():
    encoding, x, pos = (
        make("shape:shift=40"),
        torch.zeros(400, T, C, dtype=torch.float64),
        torch.arange(T),
    )
    shifts = positions_of(encoding.embed(x, pos)) - np.arange(T)
    assert np.ptp(shifts, 1).max() < 1e-6 and set(shifts.mean(1).round(6)) == set(
        range(41)
    )  # one for a sequence, any of 41
    assert make("shape").shift == 500
    assert torch.equal(encoding.eval().embed(x, pos), make("sinusoidal").embed(x, pos))


def test_cape_shifts_jitters_and_stretches_while_it_trains():
    encoding, x, pos = (
        make("cape:shift=7,percent=20"),
        torch.zeros(400, T, C, dtype=torch.float64),
        torch.arange(T),
    )
    found = positions_of(encoding.embed(x, pos))
    assert (np.diff(found, axis=1) > 0).all()  # the order stays
    gaps = np.diff(found, axis=1)
    assert (
        0 < gaps.min() < 0.15 and 1.85 < gaps.max() < 2.4
    )  # two neighbours are moved by a half each, then all stretched by a fifth
    stretch = (found[:, -1] - found[:, 0]) / (T - 1)  # to the jitter of two tokens
    assert 1 / 1.2 - 0.04 < stretch.min() < 0.88 and 1.15 < stretch.max() < 1.2 + 0.04
    assert abs(np.median(stretch) - 1) < 0.05  # of factors, as many above as below one
    first = found[:, 0]
    assert -9 < first.min() < -6.5 and 6.5 < first.max() < 9
    assert (
        np.ptp(np.diff(found - found[:, :1], axis=1), 0).min() > 0.5
    )  # each token's own, not the sequence's
    assert (make("cape").shift, make("cape").percent) == (5, 3)
    assert torch.equal(encoding.eval().embed(x, pos), make("sinusoidal").embed(x, pos))


def yarn_angles(i, D, length, base=10000.0):
    """Peng et al. 2024, section 3.2, pair by pair: turns within the training length decide."""
    found = []
    for angle in base ** (-2 * i / D):
        turns = length * angle / (2 * np.pi)
        weight = 0 if turns < 1 else 1 if turns > 32 else (turns - 1) / 31
        found.append((1 - weight) * angle / 8 + weight * angle)
    return np.array(found)


ROTARY = {
    "rope": lambda i, D: 10000.0 ** (-2 * i / D),
    "rope:base=500": lambda i, D: 500.0 ** (-2 * i / D),
    "p-rope": lambda i, D: np.where(i < 9, 10000.0 ** (-2 * i / D), 0),
    "rope-pi:factor=8": lambda i, D: 10000.0 ** (-2 * i / D) / 8,
    "rope-ntk:factor=8": lambda i, D: (10000.0 * 8 ** (D / (D - 2))) ** (-2 * i / D),
    "yarn:factor=8": lambda i, D: yarn_angles(i, D, 64),
    "yarn:factor=8,length=900": lambda i, D: yarn_angles(i, D, 900),
    "yarn:factor=8,base=500": lambda i, D: yarn_angles(i, D, 64, 500.0),
    "rope-pi:base=500,factor=2": lambda i, D: 500.0 ** (-2 * i / D) / 2,
    "p-rope:percent=50,base=500": lambda i, D: np.where(i < 6, 500.0 ** (-2 * i / D), 0),
}


@pytest.mark.parametrize("first", [0, 131_000])
@pytest.mark.parametrize("pe", ROTARY)
def test_rope_is_a_product_of_complex_numbers(pe, first):
    D = 24
    q, k = torch.randn(2, B, H, T, D)
    pos = np.arange(first, first + T)
    turned = make(pe).rotate(q, k, torch.arange(first, first + T))
    stretch = 1 + 0.1 * math.log(8) if "yarn" in pe else 1
    for x, y in zip((q, k), turned):
        x = x.double().numpy()
        z = (
            (x[..., : D // 2] + 1j * x[..., D // 2 :])
            * np.exp(1j * pos[:, None] * ROTARY[pe](np.arange(D // 2), D))
            * stretch
        )
        assert_allclose(y, np.concatenate([z.real, z.imag], -1), atol=3e-6)


@pytest.mark.parametrize("pe", ROTARY)
def test_rope_logits_depend_on_distance_alone(pe):
    q, k = torch.randn(2, 1, 1, 1, 16).expand(2, 1, 1, T, 16)  # the same query and key everywhere
    q, k = make(pe).rotate(q, k, torch.arange(T))
    logits = (q @ k.mT)[0, 0]
    for d in range(-T + 1, T):
        assert_allclose(logits.diagonal(d), logits.diagonal(d)[0].expand(T - abs(d)), atol=1e-5)


@pytest.mark.parametrize(
    "heads, published",
    [
        (1, [2**-8]),
        (2, [2**-4, 2**-8]),
        (8, [2**-n for n in range(1, 9)]),
        (12, [2**-n for n in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
        (3, [2**-4, 2**-8, 2**-2]),
        (6, [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]),
    ],
)
def test_alibi_slopes_are_the_published_ones(heads, published):
    assert_allclose(make("alibi", heads=heads, width=heads).slopes.flatten(), published, rtol=1e-7)


def test_cable_of_unit_steps_and_alibi_weights_is_alibi_to_the_bit():
    alibi, cable = make("alibi"), make("cable")
    pos = torch.arange(1000)
    s = -torch.ones(1, H, 1000).cumsum(-1)
    g = alibi.slopes.expand(1, H, 1000)
    alibi_inputs = attention.BiasInputs(alibi, *alibi.features(torch.randn(1, 1000, C), pos))
    expected = attention.bias_matrix(alibi_inputs, H, 1000)
    cable_inputs = attention.BiasInputs(cable, (s, g), (s,))
    assert torch.equal(attention.bias_matrix(cable_inputs, H, 1000), expected)


@pytest.mark.parametrize(
    "pe",
    ["alibi", "cable", "cable-nw", "fox", "k-cable", "kerple", "kerple-power", "sandwich-smoothed"],
)
def test_bias_penalises_distance(pe):
    bias = dense_bias(make(pe), torch.randn(B, T, C))
    assert (
        np.diff(bias, axis=-1)[..., np.tril(np.ones((T, T - 1)), -1).astype(bool)] >= 0
    ).all()  # nearer keys, higher bias
    assert (bias[..., np.tril(np.ones((T, T))).astype(bool)] <= 0).all() and bias.min() < -0.1


@pytest.mark.parametrize("pe", ENCODINGS)
def test_states_go_on_from_the_last_token(pe):
    encoding, x, pos = make(pe), torch.randn(B, T, C), torch.arange(T)
    whole = encoding.features(x, pos)
    head = encoding.features(x[:, :20], pos[:20])
    tail = encoding.features(x[:, 20:], pos[20:], tuple(s[..., -1:] for s in head[1]))
    for all_of, first, second in zip(whole[0] + whole[1], head[0] + head[1], tail[0] + tail[1]):
        if all_of.size(-1) == T:
            assert_allclose(
                torch.cat([first, second], -1).detach(), all_of.detach(), rtol=1e-5, atol=1e-5
            )
        else:
            assert torch.equal(first, all_of) and torch.equal(
                second, all_of
            )  # a number of the head's, not the token's


@pytest.mark.parametrize("pe", [pe for pe in ENCODINGS if make(pe).factors])
def test_factors_add_up_to_the_score(pe):
    encoding, x = make(pe), torch.randn(B, T, C)
    q_features, k_features = encoding.features(x, torch.arange(T))
    total = 0
    for u, w in encoding.factors(q_features, k_features):
        u, w = (
            x[..., None].double() if x.dim() == 3 else x.double()
            for x in (u, torch.ones(1, 1, 1) if w is None else w)
        )
        total = total + u @ w.mT
    assert_allclose(
        total.detach().expand(B, H, T, T), dense_bias(encoding, x), rtol=1e-5, atol=1e-5
    )


def test_one_instance_for_all_layers_or_one_each():
    assert len({id(encoding) for encoding in posenc.build("learnable", H, C, 16, layers=3)}) == 1
    assert len({id(encoding) for encoding in posenc.build("cable", H, C, 16, layers=3)}) == 3
