"""Attention paths: values and gradients against softmax(q k^T * scale + bias) v in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose

import attention
import attention_cpu
import pe_spec
import posenc
from attention import BiasInputs

# The bias g_i (S_i - S_j) of given S and g.
DECAY = posenc.WeightedDecay(heads=2, channels=1, block_size=1)
NAMES = ("output", "dq", "dk", "dv", "df", "dg")


def make_inputs(T, decay, dtype, B=1, H=2, D=32):
    """Return q, k, v in `dtype`, and float32 steps f >= 0 and weights g >= 0.

    S = -cumsum(f) ends at -decay.
    """
    generator = torch.Generator().manual_seed(T)
    q, k, v = torch.randn(3, B, H, T, D, generator=generator).to(dtype)
    f = torch.randn(B, H, T, generator=generator).relu() + 1e-3
    g = F.softplus(torch.randn(B, H, T, generator=generator))
    return [x.requires_grad_() for x in (q, k, v, f * (decay / f.sum(-1, keepdim=True)), g)]


def results(path, inputs, float64=False):
    """Return the output and the gradients of q, k, v, f, g with the bias g_i (S_i - S_j)."""
    dtype = inputs[0].dtype
    if float64:
        inputs = [x.double() for x in inputs]
    q, k, v, f, g = inputs = [x.detach().requires_grad_() for x in inputs]
    s, scale = -f.cumsum(-1), q.size(-1) ** -0.5
    factors = DECAY.factors((s, g), (s,))
    if path == "dense":
        output = attention.dense(q, k, v, BiasInputs(DECAY, (s, g), (s,)), scale)
    elif path == "batched":
        output = attention_cpu.batched_products(q, k, v, factors, scale)
    else:
        output = attention.sdpa_with_bias(q, k, v, factors, scale)
    gradient = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    output.backward(gradient.to(dtype).to(output.dtype))
    return dict(zip(NAMES, [output.detach(), *(x.grad for x in inputs)], strict=True))


def errors(path, inputs):
    """Return relative errors, by norms, against the dense path in float64."""
    ours, exact = results(path, inputs), results("dense", inputs, float64=True)
    return {name: ((ours[name].double() - x).norm() / x.norm()).item() for name, x in exact.items()}


def numpy_attention(q, k, v, bias, scale, causal=True):
    logits = np.einsum("bhid,bhjd->bhij", q, k) * scale + bias
    if causal:
        logits[..., np.triu(np.ones(logits.shape[-2:], dtype=bool), 1)] = -np.inf
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdims=True), v)


def attend(q, k, v, bias_inputs, name):
    """Compute attention by the path that a layer of this path takes for the call."""
    path = attention.choose_path(bias_inputs.encoding, torch.device("cpu"), name=name)
    mask_spec = attention.make_mask_spec(bias_inputs.encoding)
    path = attention.select_path(path, q, k, bias_inputs, mask_spec)
    return attention.biased_attention(q, k, v, bias_inputs, 0.4, path, mask_spec)


@pytest.mark.parametrize("T", [1, 7, 40])
def test_dense_matches_the_formula(T, monkeypatch):
    monkeypatch.setattr(attention, "CHUNK_ELEMENTS", 1)  # chunks of 16 queries
    q, k, v, f, g = make_inputs(T, 0.2 * T, torch.float64, B=2)
    s = -f.double().cumsum(-1)
    bias = (g.double()[..., None] * (s[..., None] - s[..., None, :])).detach().numpy()
    expected = numpy_attention(*(x.detach().numpy() for x in (q, k, v)), bias, 0.3)
    ours = attention.dense(q, k, v, BiasInputs(DECAY, (s, g.double()), (s,)), 0.3)
    assert_allclose(ours.detach(), expected, rtol=1e-9, atol=1e-12)


def test_dense_keeps_no_logits_for_backward(monkeypatch):
    """Backward recomputes each chunk, so no tensor of the size of all logits is saved."""
    monkeypatch.setattr(attention, "CHUNK_ELEMENTS", 1)
    saved = {}  # storage -> bytes
    q, k, v, f, g = make_inputs(128, 8, torch.float32, D=8)
    s = -f.cumsum(-1)

    def record(x):
        saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(record, lambda x: x):
        output = attention.dense(q, k, v, BiasInputs(DECAY, (s, g), (s,)), 0.3)
    bytes_of_logits = 4 * 2 * 128 * 128
    assert output.requires_grad
    assert 0 < sum(saved.values()) < bytes_of_logits / 2


HALF = torch.bfloat16
EXACT = [
    (T, decay, torch.float32, *[1e-6 + 4e-8 * decay] * 4)
    for T, decay in ((1, 1), (7, 2), (257, 50), (2048, 400), (2048, 8000))
]


@pytest.mark.parametrize(
    "T, decay, dtype, output, qkv, df, dg",
    [
        *EXACT,
        (1, 1, HALF, 5e-3, 5e-3, 0, 0),
        (7, 2, HALF, 5e-3, 8e-3, 0.02, 0.01),
        (257, 50, HALF, 5e-3, 8e-3, 0.03, 0.01),
        (1024, 208, HALF, 5e-3, 8e-3, 0.03, 0.01),  # as at the start of training
        (1024, 4018, HALF, 5e-3, 8e-3, 0.06, 0.01),
        (2048, 400, HALF, 5e-3, 8e-3, 0.05, 0.02),
        (1024, 50, torch.float16, 2e-3, 2e-3, 1e-2, 2e-3),
        (1024, 4018, torch.float16, 2e-3, 2e-3, 1e-2, 2e-3),
    ],
)
def test_sdpa_with_bias_matches_dense(T, decay, dtype, output, qkv, df, dg):
    B = 4 if dtype == HALF and T < 2048 else 1
    check_errors("sdpa", make_inputs(T, decay, dtype, B=B), (output, qkv, qkv, qkv, df, dg))


def check_errors(path, inputs, bounds):
    """Check relative errors by the bounds of NAMES."""
    error = errors(path, inputs)
    if inputs[0].size(2) == 1:  # the other gradients are zero for one key
        error = {name: error[name] for name in ("output", "dv")}
    limits = dict(zip(NAMES, bounds, strict=True))
    assert all(value <= limits[name] for name, value in error.items()), error


def test_sdpa_with_bias_is_finite_beyond_the_range_of_float16():
    """g S / scale exceeds 65,504, S does not: the output stays correct."""
    inputs = make_inputs(1024, 60000, torch.float16)
    assert all(x.isfinite().all() for x in results("sdpa", inputs).values())
    assert errors("sdpa", inputs)["output"] <= 2e-3


@pytest.mark.parametrize("T, decay", [(1, 1), (7, 2), (257, 50), (1024, 4018)])
@pytest.mark.parametrize("dtype, qkv", [(torch.float32, 2e-6), (torch.bfloat16, 5e-3)])
def test_batched_products_match_dense(T, decay, dtype, qkv):
    """Unlike the fused kernel, they do not round the columns of the bias and their gradients."""
    bounds = [bound + 4e-8 * decay for bound in (*[qkv] * 4, 1e-5, 1e-5)]
    check_errors("batched", make_inputs(T, decay, dtype), bounds)


@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_batched_products(causal, monkeypatch):
    """Several blocks of rows and of texts, two columns, float64: against NumPy and differences."""
    monkeypatch.setattr(attention_cpu, "BATCHED_ROWS", 4)
    monkeypatch.setattr(attention_cpu, "BATCHED_BLOCK", 30)
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, 3, 10, 2, generator=generator, dtype=torch.float64)
    columns = torch.randn(2, 1, 3, 10, 2, generator=generator, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (q, k, v, *columns)]

    def compute(q, k, v, u, w):
        pairs = [(u, w), (u[..., 0], None)]
        return attention_cpu.batched_products(q, k, v, pairs, 0.7, causal)

    bias = np.einsum("bhir,bhjr->bhij", *(x.detach().numpy() for x in columns))
    arrays = [x.detach().numpy() for x in (q, k, v)]
    reference = numpy_attention(*arrays, bias, 0.7, causal)
    assert_allclose(compute(*inputs).detach(), reference, rtol=1e-12)
    with torch.no_grad():
        assert_allclose(compute(*inputs), reference, rtol=1e-12)
    torch.autograd.gradcheck(compute, inputs)


def test_operator_of_batched_products_is_valid():
    """PyTorch's own checks: schema, shapes without data, autograd and compilation."""
    inputs = [torch.randn(2, 4, width, requires_grad=True) for width in (8, 8, 8, 1, 1)]
    arguments = *inputs, 0.5, True, True, True
    torch.library.opcheck(torch.ops.posenc.batched_attention.default, arguments)


@pytest.mark.parametrize(
    "tokens, keys, lengths, expected",
    [
        (6, 6, None, "batched"),
        (7, 7, None, "sdpa"),  # longer than BATCHED_TOKENS
        (5, 6, None, "sdpa"),  # cached tokens
        (6, 6, torch.tensor([4]), "sdpa"),  # padding
    ],
)
def test_batched_products_compute_short_texts(tokens, keys, lengths, expected, monkeypatch):
    monkeypatch.setattr(attention_cpu, "BATCHED_TOKENS", 6)
    encoding = build("nope", causal=lengths is None)
    q, k = torch.randn(1, 2, tokens, 8), torch.randn(1, 2, keys, 8)
    mask_spec = attention.make_mask_spec(encoding, lengths=lengths)
    path, inputs = attention.get_path("batched"), BiasInputs(encoding, (), ())
    assert attention.select_path(path, q, k, inputs, mask_spec).name == expected


@pytest.mark.parametrize(
    "T, decay, dtype, gradients, bound",
    [
        (8192, 8000, torch.float32, True, 2e-4),
        (8192, 8000, torch.bfloat16, True, 5e-3),  # one number of S is wrong by up to 16
        # Two parts of S, as in training, would give an error of 2% in bfloat16.
        (4096, 100_000, torch.bfloat16, False, 5e-3),
        (4096, 100_000, torch.float16, False, 5e-3),
    ],
)
def test_sdpa_with_bias_after_a_large_decay(T, decay, dtype, gradients, bound):
    q, k, v, f, g = (x.detach() for x in make_inputs(T, decay, dtype, H=1))
    s = -f.cumsum(-1)
    with torch.set_grad_enabled(gradients):
        output = attention.sdpa_with_bias(q, k, v, DECAY.factors((s, g), (s,)), 0.18)
    s, g = s.double(), g.double()
    bias_inputs = BiasInputs(DECAY, (s, g), (s,))
    exact = attention.dense(q.double(), k.double(), v.double(), bias_inputs, 0.18)
    assert (output - exact).norm() / exact.norm() <= bound


def build(pe, causal=True):
    return pe_spec.build(pe, 2, 12, 16, layers=1, causal=causal)[0]


@pytest.mark.parametrize(
    "pe, causal, path",
    [
        *[
            ("cable", True, "batched"),
            ("rope", False, "batched"),
            ("diet-abs", False, "batched"),
        ],
        *[("window", True, "dense"), ("dape", True, "dense"), ("kerple", True, "dense")],
        ("cable", False, "dense"),
    ],
)
def test_batched_is_the_path_where_sdpa_is_possible_else_dense(pe, causal, path):
    """Errors of --attention sdpa: refusals.yaml."""
    assert attention.choose_path(build(pe, causal), torch.device("cpu")).name == path
