"""The Triton kernels against the formulas in float64, values and gradients: on a GPU where there is one, else in Triton's interpreter."""

import json
import re
import sys
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ENCODINGS, evaluation
from torch.testing import assert_close

import attention
import eval_extrapolation
import posenc
import train_gpt
import triton_attention
from benchmarking import cases
from errors import InputError
from evaluation import bias_statistics
from generation.kv_cache import Cache
from model import GPT, GPTConfig
from runtime import loading

pytest.importorskip("triton", reason="triton is not installed")
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402
from triton.runtime.errors import OutOfResources  # noqa: E402

from triton_attention import (  # noqa: E402
    interface,
    kernels,
    operators,
    tile_sizes,
    tile_skipping,
)
from triton_attention.bias import KINDS, Bias  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FUSED = [pe for pe in ENCODINGS if triton_attention.supports(posenc.build(pe, 2, 8, 8, 1)[0])]


def patch_once(patch=interpreter._patch_lang):
    """Triton's interpreter patches its language whenever a kernel calls a function: half of its time. A launch's patch serves them all."""
    language = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang = lambda fn: patch(language)
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **kwargs: self.rewrite()(
        *args, **kwargs
    )


if kernels.INTERPRETED.value:
    patch_once()


def take_tiles(monkeypatch, keys):
    shapes = {
        "forward": (32, keys, 4, 1),
        "rows": (32, 16, 4, 1),
        "columns": (16, 2 * keys, 4, 1),
        "distances": (16, 16, 4, 1),
    }
    monkeypatch.setattr(tile_sizes, "select", lambda kind, head_size, dtype: shapes)


@pytest.fixture
def small_tiles(monkeypatch):
    """32 queries, 16 keys: several in a short text."""
    take_tiles(monkeypatch, 16)


@pytest.fixture(autouse=True)
def quick(request):
    if DEVICE == "cpu":  # a GPU takes its own tiles, but where a test counts them
        request.getfixturevalue("small_tiles")


def case(kind, T, S, D, B=2, H=2, steep=1.0, causal=True):
    """Float64 leaves by name: q, k, v, and what the kind of bias is made of."""
    generator = torch.Generator().manual_seed(T + S + D)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    leaves = {"q": normal(B, H, T, D), "k": normal(B, H, S, D), "v": normal(B, H, S, D)}
    if "decay" in kind:
        leaves |= {"s": -(steep * normal(B, H, S).relu()).cumsum(-1), "g": normal(B, H, T).exp()}
    if kind == "distance":
        leaves["table"] = normal(H, S if causal else 2 * S - 1)
    if kind == "piecewise-linear":
        ends = normal(7).sort().values.expand(H, 1, 7)
        leaves |= {
            "table": normal(H, S).abs().cumsum(-1) / 9,
            "g": normal(1, 1, T).exp().sort(descending=True).values,
            "ends": F.pad(ends, (0, 1), value=torch.inf),
            "slopes": normal(H, 1, 8),
        }
    return {name: x.to(DEVICE) for name, x in leaves.items()}


def formula(kind, leaves, scale, causal=True, window_size=None):
    """softmax(q k^T scale + b) v in the leaves' own precision, matrices written out; and the weights."""
    q, k, v = (leaves[name] for name in "qkv")
    T, S = q.size(2), k.size(2)
    d = (torch.arange(T, device=q.device) + S - T)[:, None] - torch.arange(S, device=q.device)
    z = q @ k.mT * scale
    if "decay" in kind:
        fall = leaves["s"][..., S - T :, None] - leaves["s"][..., None, :]
        b = leaves["g"][..., None] * (fall if causal else -fall.abs())
        z = z + (b if kind == "decay" else -torch.log(b**2 + 1))
    if kind == "distance":
        z = z + leaves["table"][:, d.clamp(min=0) if causal else d + S - 1]
    if kind == "piecewise-linear":  # 1 at 0, and from there on along the slopes
        later = torch.arange(T, device=q.device)[:, None].maximum(
            torch.arange(1 if causal else S, device=q.device)
        )
        x, ends, slopes = (
            leaves["table"][:, d.abs()] * leaves["g"][0, 0, later],
            leaves["ends"][:, 0, :7],
            leaves["slopes"][:, 0],
        )
        z = z + straight(x, ends, slopes)
    unseen = (d < 0 if causal else d < -S) | (d.abs() >= (window_size or S + 1))
    weights = z.masked_fill(unseen, -torch.inf).softmax(-1)
    return weights @ v, weights


def straight(x, ends, slopes):
    """The continuous function through 0 at the first end whose pieces have these slopes: x (H, T, S), ends (H, K - 1), slopes (H, K)."""
    value = slopes[:, 0, None, None] * (x - ends[:, 0, None, None]).clamp(max=0)
    for piece in range(1, slopes.size(1)):
        low = ends[:, piece - 1, None, None]
        high = ends[:, piece, None, None] if piece < ends.size(1) else torch.inf
        value = value + slopes[:, piece, None, None] * (x.clamp(max=high) - low).clamp(min=0)
    return value


def intercepts(ends, slopes):
    """b of each piece a x + b of `straight`."""
    found = [-slopes[:, 0] * ends[:, 0]]
    for piece in range(1, slopes.size(1)):
        found.append(found[-1] + (slopes[:, piece - 1] - slopes[:, piece]) * ends[:, piece - 1])
    return torch.stack(found, 1)


def kernel(kind, leaves, scale, causal=True, window_size=None, **settings):
    T, s = leaves["q"].size(2), leaves.get("s")
    bias = Bias(
        kind,
        s_i=None if s is None else s[..., s.size(-1) - T :],
        g=leaves.get("g"),
        s_j=s,
        table=leaves.get("table"),
    )
    if kind == "piecewise-linear":
        ends, slopes = leaves["ends"], leaves["slopes"]
        bias.pieces = torch.cat([ends, slopes, intercepts(ends[:, 0], slopes[:, 0])[:, None]], 1)
        if not causal:
            bias.table = torch.cat([bias.table[:, 1:].flip(-1), bias.table], -1)
    return interface.fused_attention(
        leaves["q"], leaves["k"], leaves["v"], bias, scale, causal, window_size, **settings
    )


def gradients(compute, leaves, dtype, fixed=()):
    """Output and the gradient of every leaf that is not fixed; the numbers of a bias stay float32 or wider."""
    wide = torch.promote_types(dtype, torch.float32)
    leaves = {
        name: x.to(dtype if name in "qkv" else wide).requires_grad_(name not in fixed)
        for name, x in leaves.items()
    }
    y = compute(leaves)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
    learned = {name: x for name, x in leaves.items() if name not in ("ends", *fixed)}
    return dict(
        zip(["y", *learned], [y.detach(), *torch.autograd.grad(y, [*learned.values()], dy)])
    )


def errors(kind, leaves, dtype=torch.float32, **settings):
    """Relative errors, norms over everything."""
    exact = gradients(
        lambda x: formula(kind, x, 0.3, **settings)[0],
        {
            name: x.to(dtype).double() if name in "qkv" else x.float().double()
            for name, x in leaves.items()
        },
        torch.float64,
    )
    ours = gradients(lambda x: kernel(kind, x, 0.3, **settings), leaves, dtype)
    assert all(x.isfinite().all() for x in ours.values())  # for max() passes NaN over
    return {
        name: ((ours[name].double() - exact[name]).norm() / exact[name].norm()).item()
        for name in exact
    }


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients(kind, causal, monkeypatch):
    """37 tokens: the last tile is not full, and none of its rows or columns may leak. 3 sequences, of which no program adds up all."""
    monkeypatch.setattr(operators, "SEQUENCES", 2)
    assert (
        max(errors(kind, case(kind, 37, 37, 16, B=3, causal=causal), causal=causal).values()) < 1e-5
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "kind, fixed",
    [
        ("decay", "g"),
        ("decay", "s"),
        ("decay", "sg"),
        ("log-decay", "g"),
        ("log-decay", "s"),
        ("piecewise-linear", "g"),
    ],
)
def test_what_is_fixed_changes_no_other_gradient(kind, fixed, causal):
    """Its gradient is not computed: that of alibi's slopes and of fox's weights of one."""
    leaves = case(kind, 37, 37, 16, causal=causal)
    all_learn, some = (
        gradients(lambda x: kernel(kind, x, 0.3, causal), leaves, torch.float32, fixed=names)
        for names in ("", fixed)
    )
    assert set(all_learn) - set(some) == set(fixed)
    for name, gradient in some.items():
        assert_close(gradient, all_learn[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["decay", "distance"])
@pytest.mark.parametrize("T, causal", [(37, True), (37, False), (1, True)])
def test_one_tensor_of_all_three_is_the_same(kind, T, causal):
    """Queries, keys and values as the thirds of a projection, whose gradient is one tensor."""
    leaves = {name: x.float() for name, x in case(kind, T, T, 16, B=3, causal=causal).items()}

    def packed(x):
        whole = torch.stack([x[name].transpose(1, 2) for name in "qkv"], 2).flatten(
            2
        )  # (B, T, 3 H D)
        thirds = (third.unflatten(-1, (2, 16)).transpose(1, 2) for third in whole.chunk(3, -1))
        return kernel(kind, x | dict(zip("qkv", thirds)), 0.3, causal, packed_qkv=whole)

    apart, together = (
        gradients(compute, leaves, torch.float32)
        for compute in (lambda x: kernel(kind, x, 0.3, causal), packed)
    )
    for name, x in apart.items():
        assert torch.equal(together[name], x), name


def test_a_layer_hands_its_projection_on(monkeypatch):
    """But where it was rotated, be it the keys alone, or follows what a cache holds."""
    whole, attend = [], torch.ops.posenc.attention
    monkeypatch.setattr(
        torch.ops.posenc,
        "attention",
        lambda q, *rest: whole.append(q.dim() == 5) or attend(q, *rest),
    )
    for pe in ("cable", "rope+cable"):
        net, tokens = model(pe, "triton"), torch.zeros(1, 6, dtype=torch.int64, device=DEVICE)
        net(tokens, tokens)
        with torch.no_grad():
            cache = Cache(net, 9)
            for part in tokens.split(3, 1):
                net(part, cache=cache)
    assert whole == [True, True, False, False, False, False]
    monkeypatch.setattr(posenc.Cable, "rotate", lambda self, q, k, pos: (q, 2 * k))
    model("cable", "triton")(tokens, tokens)
    assert not whole[-1]


def test_nothing_is_looked_for_where_falls_are_slow(monkeypatch):
    """A log-fall leaves out nothing at the default tolerance, and takes no time to find that out."""
    looked = []
    monkeypatch.setattr(
        tile_skipping,
        "kept_tiles",
        lambda *arguments, found=tile_skipping.kept_tiles: (
            looked.append(arguments[2]) or found(*arguments)
        ),
    )
    for kind in ("decay", "log-decay"):
        leaves = {name: x.float() for name, x in case(kind, 40, 40, 16).items()}
        for tolerance in (0.0, attention.SKIP_TOLERANCE, 0.1):
            kernel(kind, leaves, 0.3, skip_tolerance=tolerance)
    assert looked == ["decay", "decay", "log-decay"]


@pytest.mark.parametrize("B, H", [(3, 1), (1, 3)])
def test_more_numbers_than_int32_counts(B, H):
    """Sequences, or heads, 2^30 numbers apart: the third begins 2^31 behind the first."""
    shape, apart = (B, H, 20, 16), 2**30
    x = torch.empty(
        2 * apart + 960, dtype=torch.bfloat16, device=DEVICE
    )  # hardly any of it is ever touched
    leaves = {
        name: x.as_strided(shape, (apart, apart, 16, 1), 320 * number)
        for number, name in enumerate("qkv")
    }
    leaves |= {
        name: value for name, value in case("decay", 20, 20, 16, B=B, H=H).items() if name in "sg"
    }
    for number, name in enumerate("qkv"):
        leaves[name].copy_(torch.randn(shape, generator=torch.Generator().manual_seed(number)))
    compact = {
        name: value.clone(memory_format=torch.contiguous_format) for name, value in leaves.items()
    }
    for one, other in zip(
        *(
            gradients(lambda x: kernel("decay", x, 0.3), found, torch.bfloat16).values()
            for found in (leaves, compact)
        )
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["none", "decay", "log-decay"])
def test_fewer_queries_than_keys(kind):
    assert max(errors(kind, case(kind, 21, 50, 16, B=1)).values()) < 1e-5


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_fewer_queries_than_keys_by_distance(causal):
    leaves = {
        name: x.float() for name, x in case("distance", 21, 50, 16, B=1, causal=causal).items()
    }
    assert_close(
        kernel("distance", leaves, 0.3, causal),
        formula("distance", leaves, 0.3, causal)[0],
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("D", [24, 80, 128])
def test_head_sizes(D):
    assert max(errors("decay", case("decay", 20, 20, D, B=1, H=1)).values()) < 1e-5


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", ["none", "distance", "piecewise-linear"])
def test_keys_out_of_reach(kind, causal):
    assert (
        max(
            errors(
                kind, case(kind, 40, 40, 16, B=1, causal=causal), causal=causal, window_size=9
            ).values()
        )
        < 1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["decay", "log-decay", "distance"])
def test_half_precision_keeps_the_bias_exact(kind, dtype):
    """S ends near -2,000, where neighbours in bfloat16 are 8 apart: rounded before the difference, nothing would be left of it."""
    leaves = case(kind, 64, 64, 16, B=1, steep=80.0)
    assert "s" not in leaves or leaves["s"].min() < -1500
    found = errors(kind, leaves, dtype)
    assert max(found.values()) < (0.02 if dtype == torch.bfloat16 else 0.003), found


@pytest.mark.parametrize("pe", ["cable", "fox", "k-cable", "t5", "kerple", "fire"])
def test_what_a_row_rounds_away_does_not_add_up(pe, monkeypatch):
    """In bfloat16 over a long text: gradients of gates are sums of running sums of all rows' gradients, of a table's entries sums over
    all rows. Against the dense path in float32."""
    shapes = {
        "forward": (128, 64, 4, 1),
        "rows": (128, 64, 4, 1),
        "columns": (64, 128, 4, 1),
        "distances": (128, 128, 4, 1),
    }
    monkeypatch.setattr(tile_sizes, "select", lambda kind, head_size, dtype: shapes)
    torch.manual_seed(0)
    encoding = posenc.build(pe, 1, 16, 1024, layers=1)[0].to(DEVICE)
    x, dy, *qkv = (torch.randn(1, 1, 1024, 16, device=DEVICE).bfloat16() for _ in range(5))
    found = {}
    for path, dtype in (("triton", torch.bfloat16), ("dense", torch.float32)):
        features = encoding.features(x[0].float(), torch.arange(1024, device=DEVICE))
        y = attention.attend(
            *(y.to(dtype) for y in qkv), attention.BiasInputs(encoding, *features), 0.25, path
        )
        found[path] = torch.autograd.grad(y, [*encoding.parameters()], dy.to(dtype))
    largest = max(exact.norm() for exact in found["dense"])
    for ours, exact in zip(found["triton"], found["dense"]):
        assert (ours - exact).norm() < 0.02 * max(
            exact.norm(), 1e-3 * largest
        )  # one is zero: a constant for a head changes nothing


def test_autocast_leaves_the_bias_in_float32():
    """As in training: FIRE's pieces are products."""
    torch.manual_seed(0)
    encoding = posenc.build("fire:threshold=16", 2, 32, 64, layers=1)[0].to(DEVICE)
    inputs = torch.randn(3, 1, 2, 50, 16, device=DEVICE)
    features = encoding.features(
        torch.randn(1, 50, 32, device=DEVICE), torch.arange(50, device=DEVICE)
    )
    with torch.autocast(DEVICE, torch.bfloat16):
        ours, exact = (
            attention.attend(*inputs, attention.BiasInputs(encoding, *features), 0.25, path)
            for path in ("triton", "dense")
        )
        assert_close(ours, exact, rtol=1e-5, atol=1e-6)


@pytest.fixture
def audited(monkeypatch):
    """Holds every access in the interpreter to what makes the programs of a launch independent of each other's order: it is of a number of
    one of the launch's tensors, and what is written is written once, and read by nobody else. Memory holds NaN before it is written."""
    builder, prepare = interpreter.InterpreterBuilder, interpreter.GridExecutor._init_args_hst
    load, store = builder.create_masked_load, builder.create_masked_store
    launches = []  # name of the kernel; addresses of its tensors' numbers; the program that reads each, and the one that writes it
    nobody, several = -1, -2

    def begin(self, args, kwargs):
        found = prepare(self, args, kwargs)
        numbers = [np.zeros(0, np.uint64)]
        for x in found[0]:
            if isinstance(x, torch.Tensor) and x.numel():
                places = torch.arange(x.untyped_storage().nbytes() // x.element_size()).as_strided(
                    x.shape, x.stride(), x.storage_offset()
                )
                numbers.append(
                    x.untyped_storage().data_ptr()
                    + x.element_size() * places.flatten().numpy().astype(np.uint64)
                )
        numbers = np.unique(np.concatenate(numbers))
        launches.append(
            (
                self.fn.__name__,
                numbers,
                np.full(len(numbers), nobody),
                np.full(len(numbers), nobody),
            )
        )
        return found

    def accessed(builder, pointers, mask):
        name, numbers, *_ = launches[-1]
        found = np.broadcast_to(
            pointers.data, np.broadcast_shapes(pointers.data.shape, mask.data.shape)
        )
        found = found[np.broadcast_to(mask.data.astype(bool), found.shape)]
        places = np.searchsorted(numbers, found).clip(max=len(numbers) - 1)
        assert (numbers[places] == found).all(), f"{name} leaves its tensors"
        return places, np.ravel_multi_index(builder.grid_idx, builder.grid_dim)

    def audited_load(self, pointers, mask, *rest):
        (places, program), (name, _, reader, writer) = accessed(self, pointers, mask), launches[-1]
        assert (writer[places] == nobody).all(), f"{name} reads what it writes"
        reader[places] = np.where(np.isin(reader[places], (nobody, program)), program, several)
        return load(self, pointers, mask, *rest)

    def audited_store(self, pointers, value, mask, *rest):
        (places, program), (name, _, reader, writer) = accessed(self, pointers, mask), launches[-1]
        assert len(np.unique(places)) == len(places) and (writer[places] == nobody).all(), (
            f"{name} writes twice"
        )
        assert np.isin(reader[places], (nobody, program)).all(), (
            f"{name} writes what another program reads"
        )
        writer[places] = program
        return store(self, pointers, value, mask, *rest)

    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", begin)
    monkeypatch.setattr(builder, "create_masked_load", audited_load)
    monkeypatch.setattr(builder, "create_masked_store", audited_store)
    torch.use_deterministic_algorithms(True)
    yield launches
    torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(
    DEVICE == "cuda", reason="the interpreter alone tells who reads and writes what"
)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "kind, D, steep",
    [*((kind, 16, 1.0) for kind in KINDS), ("distance", 24, 1.0), ("decay", 24, 30.0)],
)
def test_programs_run_in_any_order(kind, D, steep, causal, audited, monkeypatch):
    """Three sequences of whole tiles and a rest, a head size that fills no tile, and keys that are left out."""
    monkeypatch.setattr(operators, "SEQUENCES", 2)
    found = errors(kind, case(kind, 85, 85, D, B=3, H=1, steep=steep, causal=causal), causal=causal)
    assert max(found.values()) < 1e-5, found
    distance_bias = ["attention_backward_distances"] * (kind in ("distance", "piecewise-linear"))
    assert [name for name, *_ in audited] == [
        "attention_forward",
        "attention_backward_rows",
        "attention_backward_columns",
        *distance_bias,
    ]


def test_the_same_bits_again():
    leaves = case("piecewise-linear", 37, 37, 16)
    first, again = (
        gradients(lambda x: kernel("piecewise-linear", x, 0.3), leaves, torch.float32) for _ in range(2)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)


def skipped(kind, leaves, tolerance, causal=True):
    """Which tiles of keys each tile of queries reads, (1 or 2, B, H, tiles); and the weight in the others of every row, (B, H, T)."""
    x = {name: value.float() for name, value in leaves.items()}
    kept = tile_skipping.kept_tiles(x["q"], x["k"], kind, x["s"], x["g"], x["s"], 0.3, causal, tolerance)
    place = torch.arange(x["q"].size(2), device=DEVICE)
    M, N, *_ = tile_sizes.select(kind, 16, torch.float32)["forward"]
    ends = N * kept.repeat_interleave(M, -1)[..., : len(place), None]  # (1 or 2, B, H, T, 1)
    out = place < ends[0] if causal else (place < ends[0]) | (place >= ends[1])  # (B, H, T, S)
    return kept, (formula(kind, leaves, 0.3, causal)[1] * out).sum(-1)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "kind, tolerance, keys, T",
    [
        ("decay", 2.0**-24, 16, 128),
        ("decay", 2.0**-8, 16, 115),
        ("log-decay", 0.1, 16, 128),
        ("decay", 2.0**-24, 32, 120),
    ],
)
def test_what_is_left_out_cannot_matter(kind, tolerance, keys, T, causal, monkeypatch):
    """Tiles are left out, in the last rows several, and where later keys are seen as many in the first; what is in them weighs less than is
    said, and values and gradients show it."""
    take_tiles(monkeypatch, keys)
    leaves = case(kind, T, T, 16, B=1, H=1, steep=40.0)
    leaves["q"] = leaves["q"] / 10
    if kind == "log-decay":  # which falls like a power: only a steep one leaves little far out
        leaves["s"] = leaves["s"] * 1000
    kept, weight = skipped(kind, leaves, tolerance, causal)
    assert (
        kept[0, 0, 0, -1] * keys > 32
        and weight.max() <= tolerance
        and (causal or kept[1, 0, 0, 0] * keys < T - 32)
    )
    exact = gradients(lambda x: formula(kind, x, 0.3, causal)[0], leaves, torch.float32)
    ours = gradients(
        lambda x: kernel(kind, x, 0.3, causal, skip_tolerance=tolerance), leaves, torch.float32
    )
    for name in ours:
        assert_close(
            ours[name],
            exact[name],
            rtol=3 * tolerance + 1e-4,
            atol=3 * tolerance * exact[name].abs().max().item() + 1e-5,
        )


@pytest.mark.parametrize(
    "causal, keys, rows",
    [
        (True, slice(16), slice(96, 128)),
        (False, slice(16), slice(96, 128)),
        (False, slice(112, 128), slice(32)),
    ],
)
def test_tiles_that_are_left_out_are_not_read(causal, keys, rows, small_tiles):
    """The first keys, or the last, by rows far from them; and such rows, for the gradients of these keys."""

    def results(dy=torch.ones(16, device=DEVICE), **settings):
        learning = {name: x.clone().requires_grad_() for name, x in leaves.items()}
        y = kernel("decay", learning, 0.3, causal, **settings)
        dq, dk, dv = torch.autograd.grad(y, [learning[name] for name in "qkv"], dy.expand_as(y))
        return y.detach()[..., rows, :], dq[..., rows, :], dk[..., keys, :], dv[..., keys, :]

    leaves = {
        name: x.float() for name, x in case("decay", 128, 128, 16, B=1, H=1, steep=30.0).items()
    }
    dy = torch.ones(128, 16, device=DEVICE)
    dy[rows] = torch.nan
    before, unknown, all_read = results(), results(dy), results(dy, skip_tolerance=0.0)
    assert (
        all(torch.equal(*pair) for pair in zip(unknown[2:], before[2:]))
        and all_read[2].isnan().all()
        and all_read[3].isnan().all()
    )
    leaves["v"][..., keys, :] = torch.nan
    after, all_read = results(), results(skip_tolerance=0.0)
    assert (
        all(torch.equal(*pair) for pair in zip(after[:2], before[:2]))
        and all_read[0].isnan().all()
        and all_read[1].isnan().all()
    )


def test_keys_find_their_queries_among_many_tiles(monkeypatch):
    """130 tiles of queries, in an encoder, nearly all of which leave a tile of keys out."""
    monkeypatch.setattr(
        tile_sizes,
        "select",
        lambda kind, head_size, dtype: dict.fromkeys(
            ("forward", "rows", "columns"), (16, 16, 4, 1)
        ),
    )
    leaves = case("decay", 2070, 2070, 16, B=1, H=1, steep=30.0)
    kept, _ = skipped("decay", leaves, 2.0**-24, False)
    assert kept.size(-1) == 130 and kept[0, 0, 0, -1] > 120
    exact = gradients(lambda x: formula("decay", x, 0.3, False)[0], leaves, torch.float32)
    ours = gradients(lambda x: kernel("decay", x, 0.3, False), leaves, torch.float32)
    for name in ours:
        assert_close(ours[name], exact[name], rtol=1e-3, atol=1e-4 * exact[name].abs().max().item())


@pytest.mark.parametrize("causal", [True, False])
def test_far_keys_that_matter_are_not_left_out(causal, small_tiles):
    """One query far out whose product with an early key outweighs the fall, and one without a fall: their tiles keep all keys."""
    leaves = case("decay", 192, 192, 16, B=1, H=1)
    leaves["s"] = -torch.arange(192.0, device=DEVICE, dtype=torch.float64).expand(1, 1, -1)
    leaves["g"] = torch.ones_like(leaves["g"])
    leaves["q"], leaves["k"] = leaves["q"] * 0.1, leaves["k"] * 0.1
    before, _ = skipped("decay", leaves, 2.0**-24, causal)
    assert before[0, 0, 0].tolist()[4:] == [6, 8] and (
        causal or before[1, 0, 0].tolist() == [4, 6, 8, 10, 12, 12]
    )
    leaves["q"][..., 150, 0], leaves["k"][..., 3, 0] = (
        30.0,
        25.0,
    )  # 225 of score against a fall of 147
    after, weight = skipped("decay", leaves, 2.0**-24, causal)
    assert (
        after[0, 0, 0, 4] == 0
        and after[0, 0, 0, 5] == before[0, 0, 0, 5]
        and weight.max() <= 2.0**-24
    )
    assert formula("decay", leaves, 0.3, causal)[1][..., 150, 3] > 0.999
    if not causal:  # and the other way round
        leaves["q"][..., 9, 1], leaves["k"][..., 190, 1] = (
            30.0,
            30.0,
        )  # 270 of score against a fall of 181
        after, weight = skipped("decay", leaves, 2.0**-24, causal)
        assert after[1, 0, 0].tolist() == [12, 6, 8, 10, 12, 12] and weight.max() <= 2.0**-24
        assert formula("decay", leaves, 0.3, causal)[1][..., 9, 190] > 0.999
    for name in "qk":  # one that is no number may be anything
        broken = {**leaves, name: leaves[name].clone()}
        broken[name][..., 150, 0] = torch.nan
        kept = skipped("decay", broken, 2.0**-24, causal)[0]
        assert kept[0, 0, 0, 4] == 0 and (causal or kept[1, 0, 0, 4] == 12)
    leaves["g"][..., 170] = 0.0  # this query sees all keys alike: its tile leaves out none
    after, weight = skipped("decay", leaves, 2.0**-24, causal)
    assert after[0, 0, 0, 5] == 0 and weight.max() <= 2.0**-24
    ours = kernel("decay", {name: x.float() for name, x in leaves.items()}, 0.3, causal)
    assert_close(ours.double(), formula("decay", leaves, 0.3, causal)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "weight, causal, tiles",
    [
        (0.9, True, 2),
        (1.5, True, 1),
        (2.1, True, 0),
        (0.45, False, 2),
        (0.75, False, 1),
        (1.05, False, 0),
    ],
)
def test_the_bound_is_reached_and_not_passed(weight, causal, tiles, small_tiles):
    """Two flat tiles of keys on either side of 32 queries, to the nearest of which the 32 weigh so many times the tolerance, and S falling
    so steeply between that a row holds hardly more than its own key. Half of the tolerance is for either side."""
    tolerance, steep = 2.0**-10, 60.0
    fall = -np.log(weight * tolerance / 32)
    s = -np.concatenate(
        [np.zeros(32), fall + steep * np.arange(32), np.full(32, 2 * fall + steep * 31)]
    )
    leaves = case("decay", 96, 96, 16, B=1, H=1) | {
        "s": torch.from_numpy(s)[None, None].to(DEVICE),
        "g": torch.ones(1, 1, 96, device=DEVICE),
    }
    leaves["q"] = leaves["k"] = torch.ones(1, 1, 96, 16, dtype=torch.float64, device=DEVICE)
    kept, held = skipped("decay", leaves, tolerance, causal)
    assert kept[:, 0, 0, 1].tolist() == [tiles, 6 - tiles][: len(kept)]
    assert_close(held[0, 0, 32].item(), weight * tolerance * tiles / 2, rtol=0.01, atol=0)


@pytest.mark.parametrize("causal", [True, False])
def test_the_share_left_out(causal, small_tiles):
    """Of two heads, ALiBi's with a slope of 1/2 and one without: at most what weighs too little in all rows, and nearly that."""
    T, tolerance = 300, 1e-6
    s = -0.5 * torch.arange(T, device=DEVICE) * torch.tensor([1.0, 0.0], device=DEVICE)[:, None]
    q = torch.zeros(1, 2, T, 16, device=DEVICE)
    bias = Bias("decay", s_i=s[None], g=torch.ones(1, 1, 1, device=DEVICE), s_j=s[None])
    weights = np.exp(-0.5 * abs(np.subtract.outer(np.arange(T), np.arange(T))))
    weights = np.tril(weights) if causal else weights
    weights /= weights.sum(1, keepdims=True)
    read, light = [], []
    for start in range(0, T, 32):
        in_tiles = np.add.reduceat(weights[start : start + 32], np.arange(0, T, 16), 1)
        read.append(-(-min(T, start + 32) // 16) if causal else 19)
        light.append((in_tiles.cumsum(1) <= tolerance).all(0)[: start // 16].sum())
        if not causal:
            light.append(
                (in_tiles[:, ::-1].cumsum(1) <= tolerance).all(0)[: max(0, 17 - start // 16)].sum()
            )
    found = tile_skipping.skipped_fraction(q, q, bias, 1.0, causal, tolerance) * 2 * sum(read)
    assert sum(max(0, n - 2) for n in light) <= found <= sum(light) and found > sum(read) / 2
    assert (
        tile_skipping.skipped_fraction(q, q, bias, 1.0, causal, 0.0)
        == tile_skipping.skipped_fraction(q, q, Bias(), 1.0, causal, tolerance)
        == 0
    )


SLOPE = "alibi-equal:h=4"  # one head is enough
NETWORK = [
    "--size",
    "quickstart",
    "--n_layer",
    "2",
    "--n_head",
    "1",
    "--n_embd",
    "16",
    "--pe",
    SLOPE,
    "--block_size",
    "160",
    "--micro_batch",
    "1",
    "--tokens_per_step",
    "160",
    "--steps",
    "2",
    "--val_tokens",
    "160",
    "--compile",
    "false",
    "--device",
    DEVICE,
    "--dtype",
    "float32",
]


def test_programs_tell_what_is_left_out(data_dir, tmp_path, capsys, small_tiles):
    """A training at a coarse tolerance, and an evaluation at the default one, whose loss is that of the dense path."""
    train_gpt.main(
        [
            *NETWORK,
            "--data",
            str(data_dir),
            "--attention",
            "triton",
            "--skip_tolerance",
            "0.5",
            "--out_dir",
            str(tmp_path),
        ]
    )
    assert re.search(r"val loss .* \d+\.\d% of attention left out", capsys.readouterr().out)
    logged = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert (
        all(0 < share < 1 for share in logged[-1]["left_out"]) and len(logged[-1]["left_out"]) == 2
    )
    found = {}
    for path in ("triton", "dense"):
        eval_extrapolation.main(
            [
                str(tmp_path),
                "--lengths",
                "384",
                "--windows",
                "1",
                *NETWORK[-4:],
                "--attention",
                path,
            ]
        )
        found[path] = json.loads(evaluation(tmp_path).read_text())
    entries = {path: record["lengths"]["384"] for path, record in found.items()}
    assert found["triton"]["skip_tolerance"] == 2**-24 and all(
        0 < share < 1 for share in entries["triton"]["left_out"]
    )
    assert (
        "left_out" not in entries["dense"]
        and abs(entries["triton"]["loss"] / entries["dense"]["loss"] - 1) < 1e-5
    )


def test_attention_of_a_run_is_timed(data_dir, tmp_path, monkeypatch, small_tiles):
    """As on a GPU, whose paths bench.py takes here: ALiBi leaves something out, and the gradients are those of the other path."""
    train_gpt.main([*NETWORK, "--data", str(data_dir), "--out_dir", str(tmp_path)])
    monkeypatch.setattr(cases.Setting, "paths", lambda *_: {"": "sdpa", " triton": "triton"})
    setting = cases.Setting("quickstart", 1, 384, torch.device(DEVICE), torch.float32, False)
    setting.layers, found = cases.reads(setting, *loading.load_model(tmp_path, setting.device))
    assert 0 < found["left_out"][0] < 1
    grads, grad = [], torch.autograd.grad
    monkeypatch.setattr(
        torch.autograd,
        "grad",
        lambda *args, **options: grads.append(grad(*args, **options)) or grads[-1],
    )
    both = cases.attend(setting, SLOPE)
    assert (
        both[f"{SLOPE} triton"].rival and not both[SLOPE].rival
    )  # what does not compile keeps nobody else from being measured
    for name in (SLOPE, f"{SLOPE} triton"):
        both[name].ready()()
    for (_, exact), (_, ours) in zip(
        grads[:2], grads[2:], strict=True
    ):  # of each layer's input, and of its projection
        assert_close(ours, exact, rtol=1e-3, atol=1e-4)


def test_auto_never_selects_triton():
    for pe, causal, path in (
        ("cable", True, "sdpa"),
        ("t5", True, "dense"),
        ("t5", False, "dense"),
    ):
        encoding = posenc.build(pe, 2, 8, 8, 1, causal=causal)[0]
        assert triton_attention.supports(encoding)
        assert attention.resolve_path("auto", encoding) == path
        assert attention.resolve_path("triton", encoding) == "triton"


def model(pe, path, causal=True):
    torch.manual_seed(0)
    return GPT(
        GPTConfig(
            size="quickstart",
            pe=pe,
            vocab_size=96,
            block_size=32,
            n_layer=1,
            n_head=2,
            n_embd=32,
            attention=path,
            causal=causal,
        )
    ).to(DEVICE)


def test_encoders_leave_out_on_both_sides(small_tiles):
    """What a decoder leaves out on its one, but for half of the tolerance."""
    tokens = torch.zeros(1, 512, dtype=torch.int64, device=DEVICE)
    (decoder,), (encoder,) = (
        bias_statistics.left_out(model("alibi", "triton", causal), tokens)
        for causal in (True, False)
    )
    assert 0.03 < encoder <= decoder < encoder + 0.02


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pe", FUSED)
def test_every_encoding_it_can_form(pe, causal):
    tokens = torch.randint(96, (2, 28), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    losses, grads = [], []
    for path in ("dense", "triton"):
        net = model(pe, path, causal)
        with torch.no_grad():
            for (
                name,
                parameter,
            ) in net.named_parameters():  # stronger than at the start, so that the bias matters
                parameter.add_(
                    torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)).to(
                        DEVICE
                    ),
                    alpha=0.2,
                )
            net.clamp_parameters_()
        losses.append(net(tokens, tokens))
        losses[-1].backward()
        grads.append({name: parameter.grad for name, parameter in net.named_parameters()})
    assert_close(losses[1], losses[0])
    for name, exact in grads[0].items():
        assert_close(
            grads[1][name], exact, rtol=1e-3, atol=1e-5, msg=lambda text: f"{name}: {text}"
        )


def test_an_operator_like_torchs_own():
    """Its schema, shapes without data, and gradients are what torch.compile relies on; and no graph break."""
    leaves = {name: x.float().requires_grad_() for name, x in case("decay", 20, 20, 16, B=1).items()}
    nothing, none = torch.empty(0, device=DEVICE), torch.empty(0, dtype=torch.int32, device=DEVICE)
    torch.library.opcheck(
        torch.ops.posenc.attention,
        (
            *(leaves[name] for name in ("q", "k", "v", "s", "g", "s")),
            nothing,
            nothing,
            none,
            1,
            0.3,
            True,
            2**30,
        ),
    )
    compiled = torch.compile(lambda x: kernel("decay", x, 0.3), fullgraph=True, backend="aot_eager")
    for one, other in zip(
        *(
            gradients(compute, leaves, torch.float32).values()
            for compute in (compiled, lambda x: kernel("decay", x, 0.3))
        )
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "pe, causal", [("rope+fox", True), ("rope+fox", False), ("t5", True), ("fire", True)]
)
def test_a_model_compiles_to_one_graph(pe, causal):
    """With what is left out at each step, and the gradients of what belongs to an encoding."""
    tokens = torch.randint(96, (2, 32), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    net, grads = model(pe, "triton", causal), []
    torch._dynamo.reset()
    for forward in (net, torch.compile(net, fullgraph=True, backend="aot_eager")):
        net.zero_grad()
        forward(tokens, tokens).backward()
        grads.append({name: parameter.grad for name, parameter in net.named_parameters()})
    for name, eager in grads[0].items():
        assert_close(
            grads[1][name], eager, rtol=1e-3, atol=1e-6, msg=lambda text: f"{name}: {text}"
        )


def test_refusals(monkeypatch):
    with pytest.raises(
        InputError, match="triton cannot compute the bias of Composition: use auto or dense"
    ):
        model("fire+cable", "triton")
    for kind, T in (("distance", 4), ("piecewise-linear", 2)):  # a table for causal attention; fewer queries
        with pytest.raises(
            InputError,
            match="needs 7 numbers, from distance -3 on, and FIRE's as many queries as keys: use dense",
        ):
            kernel(
                kind,
                {name: x.float() for name, x in case(kind, T, 4, 16).items()},
                0.3,
                causal=False,
            )
    with pytest.raises(InputError, match="head dimensions from 16 to 128, not 8"):
        kernel("none", case("none", 4, 4, 8), 0.3)
    with pytest.raises(InputError, match="5 queries but only 4 keys: pass a key for each query"):
        kernel("none", {name: x.float() for name, x in case("none", 5, 4, 16).items()}, 0.3)
    with pytest.raises(InputError, match="at most 1,023 units in FIRE's network: use dense"):
        q = torch.zeros(1, 1, 4, 16, device=DEVICE)
        interface.fused_attention(
            q,
            q,
            q,
            Bias(
                "piecewise-linear",
                g=q[..., 0],
                table=q[0, ..., 0],
                pieces=torch.zeros(1, 3, 2048, device=DEVICE),
            ),
            0.3,
        )
    with pytest.raises(InputError, match="does not support torch.float64"):
        kernel("none", case("none", 4, 4, 16), 0.3)
    with pytest.raises(
        InputError, match="at most 65,535 heads of all sequences together, not 65,536"
    ):
        kernel(
            "none",
            {name: x.float() for name, x in case("none", 1, 1, 16, B=32768, H=2).items()},
            0.3,
        )
    with pytest.raises(
        InputError, match="gradients of a distance bias need as many queries as keys"
    ):
        kernel(
            "distance",
            {name: x.float().requires_grad_() for name, x in case("distance", 4, 8, 16).items()},
            0.3,
        )

    class TooLarge:
        def __getitem__(self, grid):
            raise OutOfResources(1 << 20, 101376, "shared memory")

    monkeypatch.setattr(kernels, "attention_forward", TooLarge())
    with pytest.raises(
        InputError,
        match="this GPU is too small for triton's tiles .*Required: 1048576.*: use auto or dense",
    ):
        kernel("none", {name: x.float() for name, x in case("none", 4, 4, 16).items()}, 0.3)
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels.INTERPRETED, "value", False)
        with pytest.raises(InputError, match="the triton path needs a GPU, or TRITON_INTERPRET=1"):
            model("cable", "triton")
        with pytest.raises(InputError, match="needs a GPU, not cpu"):
            kernel("none", {name: x.float() for name, x in case("none", 4, 4, 16).items()}, 0.3)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(InputError, match="needs Triton .*sys.modules.*pip install triton"):
        attention.resolve_path("triton", posenc.build("cable", 2, 8, 8, 1)[0])
