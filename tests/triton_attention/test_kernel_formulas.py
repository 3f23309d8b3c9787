"""The Triton kernels against the formulas in float64, with an audit of their memory accesses."""

import numpy as np
import pytest
import torch
from kernel_cases import (
    DEVICE,
    gradients,
    make_inputs,
    reference,
    relative_errors,
    run_kernels,
    set_tile_sizes,
    small_tiles,  # noqa: F401
    small_tiles_on_cpu,  # noqa: F401
    to_float32,
)
from torch.testing import assert_close
from triton.runtime import interpreter

import attention
import pe_spec
from triton_attention import operators
from triton_attention.bias import KINDS

# Kinds of biases and causal; a piecewise-linear bias is causal.
CASES = [(kind, causal) for kind in KINDS for causal in (True, False)]
CASES.remove(("piecewise-linear", False))


@pytest.mark.parametrize(
    "kind, causal, shape, window_size",
    [
        # Grouped-query attention: the gradient of a key is the sum over its heads.
        *((kind, True, {"H": 6, "shared": 3}, None) for kind in KINDS),
        *((kind, True, {"T": 21}, None) for kind in ("none", "decay", "log-decay")),
        *(("decay", True, {"D": D, "H": 1}, None) for D in (24, 80, 128)),
        *((*case, {}, 9) for case in CASES if case[0] in ("none", "distance", "piecewise-linear")),
    ],
)
def test_shapes_and_sliding_windows(kind, causal, shape, window_size):
    shape = {"T": 40, "S": 40, "D": 16, "B": 1} | shape
    inputs = make_inputs(kind, **shape, causal=causal)
    errors = relative_errors(kind, inputs, causal=causal, window_size=window_size)
    assert max(errors.values()) < 1e-5


FIXED = [("decay", "g"), ("decay", "s"), ("decay", "sg"), ("log-decay", "g"), ("log-decay", "s")]


@pytest.mark.parametrize(
    "kind, fixed, causal",
    [
        *((*case, causal) for case in FIXED for causal in (True, False)),
        ("piecewise-linear", "g", True),
    ],
)
def test_fixed_inputs_change_no_other_gradient(kind, fixed, causal):
    """ALiBi's slopes and FoX's weights of one have no gradient, and none is computed."""
    inputs = make_inputs(kind, 37, 37, 16, causal=causal)

    def compute(x):
        return run_kernels(kind, x, causal=causal)

    all_gradients = gradients(compute, inputs, torch.float32)
    some_gradients = gradients(compute, inputs, torch.float32, fixed=fixed)
    assert set(all_gradients) - set(some_gradients) == set(fixed)
    for name, gradient in some_gradients.items():
        assert_close(gradient, all_gradients[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_fewer_queries_than_keys_by_distance(causal):
    inputs = to_float32(make_inputs("distance", 21, 50, 16, B=1, causal=causal))
    expected, _ = reference("distance", inputs, causal=causal)
    assert_close(run_kernels("distance", inputs, causal=causal), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["decay", "log-decay", "distance"])
def test_half_precision_keeps_the_bias_exact(kind, dtype):
    """S ends near -2,000, where neighbors in bfloat16 are 8 apart, so S must not be rounded."""
    inputs = make_inputs(kind, 64, 64, 16, B=1, steep=80.0)
    assert "s" not in inputs or inputs["s"].min() < -1500
    errors = relative_errors(kind, inputs, dtype)
    assert max(errors.values()) < (0.02 if dtype == torch.bfloat16 else 0.003), errors


@pytest.mark.parametrize("pe", ["cable", "k-cable", "t5", "fire"])
def test_rounding_errors_of_rows_do_not_accumulate(pe, monkeypatch):
    """Gradients in bfloat16 over a long text agree with the dense path in float32.

    Gates' gradients are sums of running sums over all rows, a table's are sums over all rows.
    """
    sizes = dict.fromkeys(("forward", "rows"), (128, 64, 4, 1))
    sizes |= {"columns": (64, 128, 4, 1), "distances": (128, 128, 4, 1)}
    set_tile_sizes(monkeypatch, sizes)
    torch.manual_seed(0)
    encoding = pe_spec.build(pe, 1, 16, 1024, layers=1, managed=True)[0].to(DEVICE)
    x, dy, *qkv = (torch.randn(1, 1, 1024, 16, device=DEVICE).bfloat16() for _ in range(5))
    grads = {}
    for path, dtype in (("triton", torch.bfloat16), ("dense", torch.float32)):
        features = encoding.features(x[0].float(), torch.arange(1024, device=DEVICE)[None])
        bias_inputs = attention.BiasInputs(encoding, *features)
        y = attention.biased_attention(
            *(y.to(dtype) for y in qkv), bias_inputs, 0.25, attention.get_path(path)
        )
        grads[path] = torch.autograd.grad(y, [*encoding.parameters()], dy.to(dtype))
    largest = max(exact.norm() for exact in grads["dense"])
    for actual, exact in zip(grads["triton"], grads["dense"], strict=True):
        # One exact gradient is zero, because a constant per head changes nothing.
        assert (actual - exact).norm() < 0.02 * max(exact.norm(), 1e-3 * largest)


def test_autocast_keeps_the_bias_in_float32():
    """FIRE's pieces are products of weights, which autocast would round."""
    torch.manual_seed(0)
    encoding = pe_spec.build("fire:threshold=16", 2, 32, 64, layers=1)[0].to(DEVICE)
    qkv = torch.randn(3, 1, 2, 50, 16, device=DEVICE)
    x, pos = torch.randn(1, 50, 32, device=DEVICE), torch.arange(50, device=DEVICE)[None]
    features = encoding.features(x, pos)
    bias_inputs = attention.BiasInputs(encoding, *features)
    with torch.autocast(DEVICE, torch.bfloat16):
        actual = attention.biased_attention(*qkv, bias_inputs, 0.25, attention.get_path("triton"))
        exact = attention.biased_attention(*qkv, bias_inputs, 0.25, attention.get_path("dense"))
        assert_close(actual, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("B, H", [(3, 1), (1, 3)])
def test_offsets_beyond_int32(B, H):
    """Sequences or heads are 2^30 elements apart, so the third starts at offset 2^31."""
    shape, stride = (B, H, 20, 16), 2**30
    # The operating system allocates only the few pages that are written.
    x = torch.empty(2 * stride + 960, dtype=torch.bfloat16, device=DEVICE)
    numbers = make_inputs("decay", 20, 20, 16, B=B, H=H)
    inputs = {name: numbers[name] for name in "sg"}
    for number, name in enumerate("qkv"):
        inputs[name] = x.as_strided(shape, (stride, stride, 16, 1), 320 * number)
        inputs[name].copy_(torch.randn(shape, generator=torch.Generator().manual_seed(number)))
    compact = {name: x.clone(memory_format=torch.contiguous_format) for name, x in inputs.items()}

    def compute(x):
        return run_kernels("decay", x)

    expected = gradients(compute, compact, torch.bfloat16)
    for name, actual in gradients(compute, inputs, torch.bfloat16).items():
        assert torch.equal(actual, expected[name]), name


# Results do not depend on the order in which programs run


def element_addresses(x):
    """Return the addresses of a tensor's elements."""
    count = x.untyped_storage().nbytes() // x.element_size()
    offsets = torch.arange(count).as_strided(x.shape, x.stride(), x.storage_offset())
    offsets = offsets.flatten().numpy().astype(np.uint64)
    return x.untyped_storage().data_ptr() + x.element_size() * offsets


@pytest.fixture
def audited(monkeypatch):
    """Record every memory access in the interpreter; yield the list of launches, none on a GPU.

    A launch is (name, addresses of its tensors' elements, addresses read, addresses written).
    Memory holds NaN until it is written.
    """
    builder = interpreter.InterpreterBuilder
    prepare = interpreter.GridExecutor._init_args_hst
    load, store = builder.create_masked_load, builder.create_masked_store
    launches = []
    if DEVICE == "cuda":
        yield launches
        return

    def audited_launch(self, args, kwargs):
        prepared = prepare(self, args, kwargs)
        tensors = [x for x in prepared[0] if isinstance(x, torch.Tensor) and x.numel()]
        launches.append((self.fn.__name__, [*map(element_addresses, tensors)], [], []))
        return prepared

    def active(pointers, mask):
        return pointers.data[np.broadcast_to(mask.data.astype(bool), pointers.data.shape)]

    def audited_load(self, pointers, mask, *rest):
        launches[-1][2].append(np.unique(active(pointers, mask)))
        return load(self, pointers, mask, *rest)

    def audited_store(self, pointers, value, mask, *rest):
        launches[-1][3].append(active(pointers, mask))
        return store(self, pointers, value, mask, *rest)

    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", audited_launch)
    monkeypatch.setattr(builder, "create_masked_load", audited_load)
    monkeypatch.setattr(builder, "create_masked_store", audited_store)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)  # fills uninitialized memory with NaN
    yield launches
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "kind, causal, D, steep",
    [
        *((*case, 16, 1.0) for case in CASES),
        *(("distance", causal, 24, 1.0) for causal in (True, False)),
        *(("decay", causal, 24, 30.0) for causal in (True, False)),
    ],
)
def test_values_gradients_and_memory_accesses(kind, causal, D, steep, audited, monkeypatch):
    """Covers partial tiles, a padded head dimension, three sequences and skipped tiles."""
    monkeypatch.setattr(operators, "SEQUENCES", 2)
    T = 53 if steep == 1 else 85  # tiles have up to 32 tokens
    inputs = make_inputs(kind, T, T, D, B=3, H=1, steep=steep, causal=causal)
    errors = relative_errors(kind, inputs, causal=causal)
    assert max(errors.values()) < 1e-5, errors
    expected = ["attention_forward", "attention_backward_rows", "attention_backward_columns"]
    if kind in ("distance", "piecewise-linear"):
        expected.append("attention_backward_distances")
    assert [name for name, *_ in audited] == (expected if DEVICE == "cpu" else [])
    for name, *accesses in audited:
        elements, read, written = map(np.concatenate, accesses)
        assert np.isin([*read, *written], elements).all(), f"{name} leaves its tensors"
        assert len(np.unique(written)) == len(written), f"{name} writes twice"
        assert not np.isin(written, read).any(), f"{name} reads what it writes"
