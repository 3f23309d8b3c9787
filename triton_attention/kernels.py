"""How is attention computed on a GPU with its bias formed in registers? One family of Triton kernels, forward and backward.

    y = kernels.attend(q, k, v, Bias("fall", s_i=s, g=g, s_j=s), scale)          # causal; q, k, v (B, H, T, D)

Kinds of bias, z_ij = q_i k_j scale + b_ij, d = i - j:

    none        b = 0
    fall        b = g_i (S_i - S_j): cable, cable-nw, fox, alibi. S and g are float32, and subtracted before anything is rounded.
    log-fall    b = -log(1 + (g_i (S_i - S_j))^2): k-cable
    distance    b = r_h[d], one number for each head and distance: t5, t5-clip, kerple and whatever else is a function of those
    pieces      b = f_h(r[d] g_i), f_h of straight pieces: fire, whose network of ReLUs is one of its single input

Where keys after the query are seen as well (causal=False), S_i - S_j becomes -|S_i - S_j|, a table has an entry for each sign of d, as
T5's encoder wants it, and g_i of pieces becomes that of the later token, g_max(i, j). reach: keys that far away or further are not seen.

A bias that only falls makes far keys negligible, and tiles of them are left out, forward and backward: from the left, and where later
keys are seen from the right, as many as together cannot hold more than `skip_tolerance` of a row's weight, whatever their keys.
`kept_tiles` proves it tile by tile: a weight is at most exp(|q| |k| scale + the largest bias in the tile), and a row's sum is at least that
of the query's own key, whose bias is 0.

Backward recomputes the weights from the logarithms of their sums, by two kernels: one walks along rows for dq and dg, one along
columns for dk, dv and dS. Exact rows of the score's gradient sum to zero, so in a causal `fall` S_i gets no gradient by its row. What does
not learn, as alibi's S and g, takes no time there. A bias of distance or of pieces has a third kernel: tiles at the same offset from the
diagonal hold the same distances, so one program adds up those of all sequences and all places, and what is left to reduce is a tile for
each offset. Nothing has the shape (T, T), nothing is added atomically: the same bits every time.

What the inner loops do for every pair of query and key is what a GPU spends its time on. So tiles whose queries all see all keys go
first, without a mask; everything is to base 2, constants joined; a column's tile lies on its side; and FIRE asks the corners of a
tile which pieces meet it. Outputs and gradients of q, k, v lie in memory as (B, T, H, D), as the layers around attention have them.

Without a GPU the kernels run, slowly, in Triton's interpreter (TRITON_INTERPRET=1 before the first import), which is how the tests
hold them to `attention.dense` in float64. What they become, compiled, tests/gpu_simulation/emulator.py carries out.

Legend: B batch, H heads, T queries, S keys, D head size; queries are the last T of the S tokens.
"""

import contextlib
import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice
from triton.runtime.errors import OutOfResources

from attention import SKIP_TOLERANCE
from errors import InputError
from posenc import running_sum

KINDS = ("none", "fall", "log-fall", "distance", "pieces")
LOG2E = tl.constexpr(
    1.4426950408889634
)  # the softmax is taken to base 2, the only one that the hardware has
FAR = 2**30  # tokens
SEQUENCES = 8  # whose gradients of distances one program adds up: more share the work of its bias, fewer fill the GPU
HEAD_SIZES = 16, 128  # from, to
ENDS = 1_024  # of FIRE's pieces, which bisection finds
HEADS = 65_535  # of all sequences: CUDA launches no more programs along that side of a grid
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
NONE, FALL, LOG_FALL, DISTANCE, PIECES = (tl.constexpr(number) for number in range(len(KINDS)))


@dataclass
class Bias:
    """A bias of one of KINDS; all numbers float32.

    s_i: (B|1, H|1, T), g: (B|1, H|1, T|1), s_j: (B|1, H|1, S) of the falls; table: (H|1, N) of `distance`, N >= S, of distances from 0
    on, or, where attention is not causal, N = 2 S - 1, from -(S - 1) on. `pieces` has table and g, neither negative, g never rising and
    the table never falling, the same for d and -d, and pieces (H, 3, K), K a power of two: the K - 1 ascending ends of pieces (what is
    not needed infinite), then slopes and intercepts. No gradient flows to the ends: f_h has no jumps there.
    """

    kind: str = "none"
    s_i: Tensor | None = None
    g: Tensor | None = None
    s_j: Tensor | None = None
    table: Tensor | None = None
    pieces: Tensor | None = None


def bias_of(encoding, q_features: tuple, k_features: tuple, heads: int) -> Bias:
    """Of what encoding.states returned."""
    if encoding.bias is None:
        return Bias()
    with torch.autocast(k_features[0].device.type, enabled=False):  # FIRE's pieces are products
        kind, numbers = encoding.triton_bias(
            q_features, k_features, torch.arange(heads, device=k_features[0].device)
        )
    return Bias(kind, **numbers)


def runs_on(device: torch.device) -> bool:
    """Whether Triton computes there."""
    return device.type == "cuda" or INTERPRETED.value


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Bias,
    scale: float,
    causal: bool = True,
    window_size: int | None = None,
    skip_tolerance: float = SKIP_TOLERANCE,
    packed_qkv: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T scale + bias) v: q (B, H, T, D), k and v (B, H, S, D), bfloat16, float16 or float32 -> (B, H, T, D), dtype of q.

    Differentiable in q, k, v and the numbers of the bias. Gradients of `distance` need T = S. skip_tolerance: of a row's weight, 0
    leaves nothing out; biases that need not fall ignore it, and a log-fall, which is slow, one as small as the default.
    packed_qkv: see attention.attend. Raises InputError for what the kernels cannot do.
    """
    B, H, T, D = q.shape
    S = k.size(2)
    if not runs_on(q.device):
        raise InputError(
            f"attention: triton needs a GPU, not {q.device}, or TRITON_INTERPRET=1, which is slow: choose auto"
        )
    if not HEAD_SIZES[0] <= D <= HEAD_SIZES[1]:
        raise InputError(
            f"attention: triton takes head sizes from 16 to 128, not {D}: choose dense"
        )
    if B * H > HEADS:
        raise InputError(
            f"attention: triton takes at most {HEADS:,} heads of all sequences together, not {B * H:,}: take fewer sequences "
            "at a time, or choose dense"
        )
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        raise InputError(f"attention: triton does not compute in {q.dtype}: choose dense")
    if T > S:
        raise InputError(f"attention: {T} queries of {S} keys: give a key for each query")
    if bias.pieces is not None and bias.pieces.size(-1) > ENDS:
        raise InputError(
            f"attention: triton takes at most {ENDS - 1:,} units of FIRE's network: choose dense"
        )
    if T != S and bias.table is not None and bias.table.requires_grad and torch.is_grad_enabled():
        raise InputError(
            "attention: gradients of a bias of distance need as many queries as keys: choose dense"
        )
    if (
        not causal
        and bias.table is not None
        and (bias.table.size(-1) != 2 * S - 1 or bias.kind == "pieces" and T != S)
    ):
        raise InputError(
            f"attention: without a causal mask a bias of distance needs {2 * S - 1} numbers, from distance {1 - S} on, and "
            "FIRE's as many queries as keys"
        )
    nothing = q.new_empty(0, dtype=torch.float32)
    s_i, g, s_j = _of_tokens(bias, B, H, T, S, nothing)
    table = nothing if bias.table is None else bias.table.float().expand(H, -1).contiguous()
    pieces = nothing if bias.pieces is None else bias.pieces.float().contiguous()
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    skips = window_size is None and leaves_out(bias.kind, skip_tolerance)
    kept = (
        kept_tiles(q, k, bias.kind, s_i, g, s_j, scale, causal, skip_tolerance)
        if skips
        else q.new_empty(0, dtype=torch.int32)
    )
    if packed_qkv is not None and T == S:
        q, k, v = packed_qkv.unflatten(-1, (3, H, D)), *[q.new_empty(0)] * 2
    return torch.ops.posenc.attention(
        q,
        k,
        v,
        s_i,
        g,
        s_j,
        table,
        pieces,
        kept,
        KINDS.index(bias.kind),
        scale,
        causal,
        window_size or FAR,
    )[0]


def _parts(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values (B, H, T, D), also of all three in q, (B, T, 3, H, D)."""
    return q.transpose(1, 3).unbind(2) if q.dim() == 5 else (q, k, v)


def leaves_out(kind: str, tolerance: float) -> bool:
    """Whether far tiles are looked for: a log-fall is too slow for any to be negligible to float32."""
    return kind == "fall" and tolerance > 0 or kind == "log-fall" and tolerance > SKIP_TOLERANCE


def _of_tokens(bias, B, H, T, S, nothing):
    """s_i, g (B, H, T) and s_j (B, H, S), float32."""
    s_i, g = (nothing if x is None else x.float().expand(B, H, T) for x in (bias.s_i, bias.g))
    return s_i, g, nothing if bias.s_j is None else bias.s_j.float().expand(B, H, S)


@torch.no_grad()
def left_out(
    q: Tensor, k: Tensor, bias: Bias, scale: float, causal: bool, skip_tolerance: float
) -> float:
    """Which share of the tiles that attention has to read `attend` leaves out."""
    (B, H, T, D), S, (M, N, *_) = (
        q.shape,
        k.size(2),
        tiles(bias.kind, q.size(-1), q.dtype)["forward"],
    )
    if not leaves_out(bias.kind, skip_tolerance):
        return 0.0
    kept = (
        kept_tiles(
            q, k, bias.kind, *_of_tokens(bias, B, H, T, S, None), scale, causal, skip_tolerance
        )
        .double()
        .mean((1, 2))
    )
    ends = (
        (torch.arange(kept.size(-1), device=q.device) + 1) * M + S - T
    )  # of what a causal tile of queries sees
    every = (ends.clamp(max=S) / N).ceil() if causal else torch.full_like(kept[0], -(-S // N))
    return 1 - (((every if causal else kept[1]) - kept[0]).sum() / every.sum()).item()


@torch.no_grad()
def kept_tiles(
    q: Tensor,
    k: Tensor,
    kind: str,
    s_i: Tensor,
    g: Tensor,
    s_j: Tensor,
    scale: float,
    causal: bool,
    tolerance: float,
) -> Tensor:
    """Which tiles of keys a tile of queries has to read: those before and behind them hold together at most `tolerance` of every row's
    weight, half of it on either side where later keys are seen.

    Of falls; states (B, H, T) and (B, H, S). -> (1 or 2, B, H, tiles of queries) int32: the number of the first, and, where later keys are
    seen, that behind the last.
    """
    M, N, *_ = tiles(kind, q.size(-1), q.dtype)["forward"]
    own = (q.float() * k[:, :, k.size(2) - q.size(2) :].float()).sum(
        -1
    ) * scale  # the logit of a query and its own key
    share = tolerance if causal else tolerance / 2

    def extreme(
        x, size, largest
    ):  # (B, H, n) -> of each tile; the last one is filled up with what cannot win
        x = torch.nn.functional.pad(
            x, (0, -x.size(-1) % size), value=-torch.inf if largest else torch.inf
        ).unflatten(-1, (-1, size))
        return x.amax(-1) if largest else x.amin(-1)

    lowest_key, highest_key, longest_key = (
        x[:, :, None]
        for x in (
            extreme(s_j, N, False),
            extreme(s_j, N, True),
            extreme(k.float().norm(dim=-1), N, True),
        )
    )  # (B, H, 1, tiles) each
    of_queries = (
        extreme(s_i, M, False),
        extreme(s_i, M, True),
        extreme(g, M, False),
        extreme(g, M, True),
        extreme(q.float().norm(dim=-1), M, True),
        extreme(own, M, False),
    )  # (B, H, tiles) each
    found = []
    for rows in torch.arange(of_queries[0].size(-1), device=q.device).split(
        256
    ):  # not all pairs of tiles at a time
        lowest, highest, lightest, heaviest, longest, least = (
            x[:, :, rows, None] for x in of_queries
        )
        fall = highest - lowest_key
        if not causal:
            fall = fall.minimum(highest_key - lowest).clamp(max=0)
        bound = torch.where(fall < 0, lightest, heaviest) * fall
        if kind == "log-fall":
            bound = -bound.clamp(max=0).square().log1p()
        weight = (
            N * (longest * longest_key * scale + bound - least).exp()
        )  # of the tile, at most, over the row's sum
        # With the key of one of its queries a tile weighs N at least: from neither side anything is left out beyond.
        before = (running_sum(weight) <= share).sum(-1, dtype=torch.int32)
        behind = (
            []
            if causal
            else [
                weight.size(-1) - (running_sum(weight.flip(-1)) <= share).sum(-1, dtype=torch.int32)
            ]
        )
        found.append(torch.stack([before, *behind]))
    return torch.cat(found, -1)


def tiles(kind: str, head_size: int, dtype: torch.dtype) -> dict[str, tuple[int, int, int, int]]:
    """(queries, keys) of a tile, warps and pipeline stages of a program, for each kernel. Not yet measured on any GPU.

    They are those that, compiled for Hopper, keep nearly everything in registers and need the fewest instructions for a pair of query and
    key, where a program reads at most 20 bytes a cycle: 128 queries or keys stay, the others pass by. All fit into the 99 KB of shared
    memory that an RTX 4090 gives a program. `forward` and `rows` have the same queries, and the keys of `rows` divide those of `forward`,
    whose tiles are the ones that can be left out.
    """
    if dtype == torch.float32:
        return dict.fromkeys(("forward", "rows", "columns", "distances"), (32, 32, 4, 2))
    if head_size > 64:
        return {
            "forward": (128, 64, 8, 2),
            "rows": (128, 32, 8, 2),
            "columns": (32, 128, 8, 2),
            "distances": (64, 64, 8, 2),
        }
    if kind in ("none", "fall"):
        return {"forward": (128, 64, 4, 3), "rows": (128, 32, 4, 2), "columns": (32, 128, 4, 2)}
    columns = (32, 128, 4, 2) if kind == "distance" else (64, 128, 8, 2)
    stages = (
        2 if kind == "distance" else 3
    )  # numbers of the table are fetched ahead too, one for each pair
    return {
        "forward": (128, 64, 8, stages),
        "rows": (128, 64, 8, 2),
        "columns": columns,
        "distances": (64, 64, 4, 2),
    }


@triton.jit
def _bias(
    kind: tl.constexpr,
    causal: tl.constexpr,
    limited: tl.constexpr,
    edge: tl.constexpr,
    i,
    j,
    s_i,
    g,
    s_j,
    table,
    pieces,
    low,
    high,
    S,
    window_size,
    ENDS: tl.constexpr,
):
    """A tile of b = f(g_i x_ij) to base 2, of f' and of x, float32; only kinds with a g have use for f' and x.

    i, s_i, g lie along one side of the tile, j and s_j along the other: (M, 1) and (1, N), or (1, M) and (N, 1). x is the fall, or the
    table's number of the distance; pieces that are not causal have the keys' g as s_j. edge: where some queries may not see some keys, and
    b is minus infinity. low, high: see `_between`.
    """
    x = 0.0
    b = 0.0
    slope = 1.0
    d = tl.minimum(i, S - 1) - tl.minimum(j, S - 1)  # beyond the end of the text, whatever is there
    if not causal:
        d += S - 1  # its place in the table
    elif edge:
        d = tl.maximum(d, 0)
    if kind == FALL or kind == LOG_FALL:
        x = s_i - s_j
        if not causal:
            x = -tl.abs(x)
        if kind == FALL:
            b = (g * LOG2E) * x
        else:
            slope = g * x
            b = -_log2(1 + slope * slope)
            slope = -2 * slope * tl.exp2(b)
    elif kind == DISTANCE:
        b = tl.load(table + d) * LOG2E
    elif kind == PIECES:
        x = tl.load(table + d)
        if not causal:
            g = tl.minimum(g, s_j)  # the later token's, as g never rises
        slope, b = _line(g * x, pieces, low, high, ENDS)
        b *= LOG2E
    if edge:
        seen = i >= j if causal else j < S
        if limited:
            seen = seen & (tl.abs(i - j) < window_size)
        b = tl.where(seen, b, -float("inf"))
    return b, slope, x


@triton.jit
def _between(
    kind: tl.constexpr,
    causal: tl.constexpr,
    table,
    pieces,
    distances,
    g,
    g_t,
    t,
    T,
    i,
    j,
    M: tl.constexpr,
    N: tl.constexpr,
    ENDS: tl.constexpr,
):
    """The first and the last piece in the tile of M queries from t = place i on and N keys from j on: its corners tell, for the table does
    not fall with the distance, and g does not rise."""
    if kind != PIECES:
        return 0, 0
    near = tl.maximum(i - j - N + 1, 0)
    far = tl.maximum(i - j + M - 1, 0)
    first = t
    last = t + M
    if not causal:
        near = tl.maximum(near, j - i - M + 1) + distances // 2
        far = tl.maximum(far, j - i + N - 1) + distances // 2
        first = tl.maximum(t, j)
        last = tl.maximum(last, j + N)
    near = tl.load(table + tl.minimum(near, distances - 1))
    far = tl.load(table + tl.minimum(far, distances - 1))
    return (
        _piece(near * tl.load(g + tl.minimum(last, T) * g_t - g_t), pieces, ENDS),
        _piece(far * tl.load(g + tl.minimum(first, T - 1) * g_t), pieces, ENDS),
    )


@triton.jit
def _piece(r, pieces, ENDS: tl.constexpr):
    """How many of the ENDS - 1 ascending ends lie below r, by bisection."""
    found = (r * 0).to(tl.int32)
    for level in tl.static_range(1, 11):  # up to 1,024 of them
        step = ENDS >> level
        if step > 0:
            found = tl.where(r > tl.load(pieces + found + step - 1), found + step, found)
    return found


@triton.jit
def _line(r, pieces, low, high, ENDS: tl.constexpr):
    """Slope and value at each r, all of which lie in pieces from low to high: mostly one or a few."""
    slope = tl.zeros(r.shape, tl.float32) + tl.load(pieces + ENDS + low)
    value = slope * r + tl.load(pieces + 2 * ENDS + low)
    for number in range(low + 1, high + 1):
        beyond = r > tl.load(pieces + number - 1)
        steep = tl.load(pieces + ENDS + number)
        slope = tl.where(beyond, steep, slope)
        value = tl.where(beyond, steep * r + tl.load(pieces + 2 * ENDS + number), value)
    return slope, value


@triton.jit
def _tile(x, rows, count, stride, columns, D: tl.constexpr):
    """Rows of a matrix (count, D), zeros beyond its ends: (len(rows), len(columns))."""
    inside = rows[:, None] < count
    if columns.shape[0] != D:
        inside = inside & (columns[None, :] < D)
    return tl.load(
        x + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask=inside, other=0.0
    )


@triton.jit
def _store(x, y, rows, count, stride, columns, D: tl.constexpr):
    """What `_tile` loads."""
    tl.store(
        x + rows.to(tl.int64)[:, None] * stride + columns[None, :],
        y.to(x.dtype.element_ty),
        mask=(rows[:, None] < count) & (columns[None, :] < D),
    )


@triton.jit
def _dot(a, b, precision: tl.constexpr):
    """a b in float32. The interpreter cannot multiply bfloat16: there its values go as float32."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=precision)
    return tl.dot(a, b, input_precision=precision)


@triton.jit
def _log2(x):
    """To 2^-22, in one instruction; the interpreter has only the exact one."""
    if INTERPRETED:
        return tl.log2(x)
    return libdevice.fast_log2f(x)


@triton.jit
def _row(x, places, count, stride, used: tl.constexpr):
    """Numbers of some tokens, zeros beyond the end, or where the kind of bias does not use them."""
    if used:
        return tl.load(x + places * stride, mask=places < count, other=0.0)
    return tl.zeros((places.shape[0],), tl.float32)


@triton.jit
def _sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))


@triton.jit
def _forward(
    Q,
    K,
    V,
    S_I,
    G,
    S_J,
    TABLE,
    PIECE,
    KEPT,
    Y,
    LSE,
    scale,
    H,
    T,
    S,
    distances,
    window_size,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_t,
    v_b,
    v_h,
    v_t,
    si_b,
    si_h,
    si_t,
    g_b,
    g_h,
    g_t,
    sj_b,
    sj_h,
    sj_t,
    kind: tl.constexpr,
    causal: tl.constexpr,
    limited: tl.constexpr,
    skips: tl.constexpr,
    UNIT: tl.constexpr,
    ENDS: tl.constexpr,
    D: tl.constexpr,
    D_TILE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    precision: tl.constexpr,
):
    """A program: M queries of one head. Y (B, T, H, D) and LSE (B, H, T), the base-2 logarithm of each row's sum.

    KEPT (1 or 2, B, H, tiles of queries): how many times UNIT keys are left out before those that are read, and where these end.
    """
    block = (
        tl.num_programs(0) - 1 - tl.program_id(0)
    )  # the longest rows first: what starts last should be short
    batch, head = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    t = block * M + tl.arange(0, M)
    i = t + S - T  # among the keys
    columns = tl.arange(0, D_TILE)
    falls: tl.constexpr = kind == FALL or kind == LOG_FALL
    weighted: tl.constexpr = falls or kind == PIECES
    both: tl.constexpr = kind == PIECES and not causal
    K += batch * k_b + head * k_h
    V += batch * v_b + head * v_h
    S_J += batch * sj_b + head * sj_h
    G += batch * g_b + head * g_h
    TABLE += head * distances
    PIECE += head * 3 * ENDS
    q = _tile(Q + batch * q_b + head * q_h, t, T, q_t, columns, D)
    s_i = _row(S_I + batch * si_b + head * si_h, t, T, si_t, falls)[:, None]
    g = _row(G, t, T, g_t, weighted)[:, None]
    highest = tl.full((M,), -float("inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    y = tl.zeros((M, D_TILE), tl.float32)
    place = block * M + S - T  # of the first query
    begin = tl.maximum(0, place - window_size + 1) // N * N
    stop = tl.minimum(S, place + M + (0 if causal else window_size))
    if skips:
        KEPT += tl.program_id(1) * tl.num_programs(0) + block
        begin = tl.load(KEPT) * UNIT
        if not causal:
            stop = tl.minimum(S, tl.load(KEPT + tl.num_programs(0) * tl.num_programs(1)) * UNIT)
    whole = (
        begin if limited else tl.maximum(begin, (place + 1 if causal else stop) // N * N)
    )  # all queries see all keys up to here
    for edge in tl.static_range(2):
        for start in range(whole if edge else begin, stop if edge else whole, N):
            j = start + tl.arange(0, N)
            k = _tile(K, j, S, k_t, columns, D)
            low, high = _between(
                kind,
                causal,
                TABLE,
                PIECE,
                distances,
                G,
                g_t,
                block * M,
                T,
                place,
                start,
                M,
                N,
                ENDS,
            )
            s_j = _row(G if both else S_J, j, S, g_t if both else sj_t, falls or both)[None, :]
            b, _, _ = _bias(
                kind,
                causal,
                limited,
                edge,
                i[:, None],
                j[None, :],
                s_i,
                g,
                s_j,
                TABLE,
                PIECE,
                low,
                high,
                S,
                window_size,
                ENDS,
            )
            z = _dot(q, tl.trans(k), precision) * (scale * LOG2E) + b
            now = tl.maximum(
                tl.maximum(highest, tl.max(z, 1)), -1e30
            )  # finite where no key of the tile is seen
            p = tl.exp2(z - now[:, None])
            shrink = tl.exp2(highest - now)
            total = total * shrink + tl.sum(p, 1)
            v = _tile(V, j, S, v_t, columns, D)
            y = y * shrink[:, None] + _dot(p.to(v.dtype), v, precision)
            highest = now
    total = tl.maximum(total, 1e-30)  # beyond the last query no key is seen
    _store(Y + (batch * T * H + head) * D, y / total[:, None], t, T, H * D, columns, D)
    tl.store(LSE + tl.program_id(1).to(tl.int64) * T + t, highest + tl.log2(total), mask=t < T)


@triton.jit
def _backward_rows(
    Q,
    K,
    V,
    S_I,
    G,
    S_J,
    TABLE,
    PIECE,
    KEPT,
    Y,
    DY,
    LSE,
    DELTA,
    DQ,
    DS_I,
    DG,
    scale,
    H,
    T,
    S,
    distances,
    window_size,
    of_row,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_t,
    v_b,
    v_h,
    v_t,
    si_b,
    si_h,
    si_t,
    g_b,
    g_h,
    g_t,
    sj_b,
    sj_h,
    sj_t,
    dy_b,
    dy_h,
    dy_t,
    kind: tl.constexpr,
    causal: tl.constexpr,
    limited: tl.constexpr,
    skips: tl.constexpr,
    UNIT: tl.constexpr,
    g_learns: tl.constexpr,
    s_learns: tl.constexpr,
    ENDS: tl.constexpr,
    D: tl.constexpr,
    D_TILE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    precision: tl.constexpr,
):
    """A program: dq, dg and S_i's gradient of M queries of one head; and DELTA (B, H, T), what the other kernels subtract in each row.

    That is dy y, y exact, for then the gradients of a row's logits add up to zero. Y is rounded, and in half precision they do not: what
    is left over adds up along the columns, and in the running sums that a gate's gradient is made of. Here it is found, and goes along.
    of_row: numbers from a token's dq to the next one's.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, head = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    t = block * M + tl.arange(0, M)
    i = t + S - T
    columns = tl.arange(0, D_TILE)
    falls: tl.constexpr = kind == FALL or kind == LOG_FALL
    weighted: tl.constexpr = falls or kind == PIECES
    both: tl.constexpr = kind == PIECES and not causal
    to_g: tl.constexpr = weighted and g_learns
    by_row: tl.constexpr = s_learns and (
        kind == LOG_FALL or (falls and not causal)
    )  # else S_i's gradient is zero
    exact: tl.constexpr = (falls and s_learns and not by_row) or kind == PIECES
    K += batch * k_b + head * k_h
    V += batch * v_b + head * v_h
    S_J += batch * sj_b + head * sj_h
    G += batch * g_b + head * g_h
    TABLE += head * distances
    PIECE += head * 3 * ENDS
    row = tl.program_id(1).to(tl.int64) * T + t
    q = _tile(Q + batch * q_b + head * q_h, t, T, q_t, columns, D)
    dy = _tile(DY + batch * dy_b + head * dy_h, t, T, dy_t, columns, D)
    y = _tile(Y + (batch * T * H + head) * D, t, T, H * D, columns, D)
    delta = tl.sum(dy.to(tl.float32) * y.to(tl.float32), 1)
    rest = tl.zeros((M,), tl.float32)
    lse = tl.load(LSE + row, mask=t < T, other=float("inf"))[:, None]  # weights of nobody are zero
    s_i = _row(S_I + batch * si_b + head * si_h, t, T, si_t, falls)[:, None]
    g = _row(G, t, T, g_t, weighted)[:, None]
    dq = tl.zeros((M, D_TILE), tl.float32)
    dg = tl.zeros((M,), tl.float32)
    ds = tl.zeros((M,), tl.float32)
    place = block * M + S - T
    begin = tl.maximum(0, place - window_size + 1) // N * N
    stop = tl.minimum(S, place + M + (0 if causal else window_size))
    if skips:
        KEPT += tl.program_id(1) * tl.num_programs(0) + block
        begin = tl.load(KEPT) * UNIT
        if not causal:
            stop = tl.minimum(S, tl.load(KEPT + tl.num_programs(0) * tl.num_programs(1)) * UNIT)
    whole = begin if limited else tl.maximum(begin, (place + 1 if causal else stop) // N * N)
    for edge in tl.static_range(2):
        for start in range(whole if edge else begin, stop if edge else whole, N):
            j = start + tl.arange(0, N)
            k = _tile(K, j, S, k_t, columns, D)
            v = _tile(V, j, S, v_t, columns, D)
            s_j = _row(G if both else S_J, j, S, g_t if both else sj_t, falls or both)[None, :]
            low, high = _between(
                kind,
                causal,
                TABLE,
                PIECE,
                distances,
                G,
                g_t,
                block * M,
                T,
                place,
                start,
                M,
                N,
                ENDS,
            )
            b, slope, x = _bias(
                kind,
                causal,
                limited,
                edge,
                i[:, None],
                j[None, :],
                s_i,
                g,
                s_j,
                TABLE,
                PIECE,
                low,
                high,
                S,
                window_size,
                ENDS,
            )
            p = tl.exp2(_dot(q, tl.trans(k), precision) * (scale * LOG2E) + (b - lse))
            dz = p * (_dot(dy, tl.trans(v), precision) - delta[:, None])
            dq += _dot(dz.to(k.dtype), k, precision)
            if exact:
                rest += tl.sum(dz, 1)
            if to_g or by_row:
                dz *= slope
            if to_g:
                dg += tl.sum(tl.where(j[None, :] <= i[:, None], dz * x, 0.0) if both else dz * x, 1)
            if by_row:
                ds += tl.sum(dz if causal else dz * _sign(s_j - s_i), 1)
    tl.store(DELTA + row, delta + rest, mask=t < T)
    _store(DQ + batch * T * of_row + head * D, dq * scale, t, T, of_row, columns, D)
    if to_g:
        tl.store(DG + row, dg, mask=t < T)
    if by_row:
        tl.store(DS_I + row, ds * tl.sum(g, 1), mask=t < T)


@triton.jit
def _backward_columns(
    Q,
    K,
    V,
    S_I,
    G,
    S_J,
    TABLE,
    PIECE,
    KEPT,
    DY,
    LSE,
    DELTA,
    DK,
    DV,
    DS_J,
    scale,
    H,
    T,
    S,
    distances,
    window_size,
    of_row,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_t,
    v_b,
    v_h,
    v_t,
    si_b,
    si_h,
    si_t,
    g_b,
    g_h,
    g_t,
    sj_b,
    sj_h,
    sj_t,
    dy_b,
    dy_h,
    dy_t,
    kind: tl.constexpr,
    causal: tl.constexpr,
    limited: tl.constexpr,
    skips: tl.constexpr,
    UNIT: tl.constexpr,
    QUERIES: tl.constexpr,
    g_learns: tl.constexpr,
    s_learns: tl.constexpr,
    ENDS: tl.constexpr,
    D: tl.constexpr,
    D_TILE: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    precision: tl.constexpr,
):
    """A program: dk, dv and S_j's gradient of N keys of one head; where pieces see both ways, the rest of g's, which DS_J holds so far.

    Tiles lie on their sides, (N, M): a product of two of them is the next one's left factor as it is, in registers. KEPT is that of
    `_forward`, of tiles of QUERIES queries: which of them look at these keys is read from there.
    """
    batch, head = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    j = tl.program_id(0) * N + tl.arange(0, N)
    columns = tl.arange(0, D_TILE)
    falls: tl.constexpr = kind == FALL or kind == LOG_FALL
    weighted: tl.constexpr = falls or kind == PIECES
    both: tl.constexpr = kind == PIECES and not causal
    Q += batch * q_b + head * q_h
    DY += batch * dy_b + head * dy_h
    S_I += batch * si_b + head * si_h
    G += batch * g_b + head * g_h
    TABLE += head * distances
    PIECE += head * 3 * ENDS
    LSE += tl.program_id(1).to(tl.int64) * T
    DELTA += tl.program_id(1).to(tl.int64) * T
    k = _tile(K + batch * k_b + head * k_h, j, S, k_t, columns, D)
    v = _tile(V + batch * v_b + head * v_h, j, S, v_t, columns, D)
    s_j = _row(
        G if both else S_J + batch * sj_b + head * sj_h, j, S, g_t if both else sj_t, falls or both
    )[:, None]
    dk = tl.zeros((N, D_TILE), tl.float32)
    dv = tl.zeros((N, D_TILE), tl.float32)
    ds = tl.zeros((N,), tl.float32)
    place = tl.program_id(0) * N - (S - T)  # of the first key among the queries
    begin = tl.maximum(0, place - (0 if causal else window_size)) // M * M
    stop = tl.minimum(T, place + N + window_size)
    if skips:
        blocks = tl.cdiv(T, QUERIES)
        KEPT += tl.program_id(1) * blocks
        first = blocks
        last = 0  # the number behind it
        for some in range(0, blocks, 128):
            block = some + tl.arange(0, 128)
            starts = tl.load(KEPT + block, mask=block < blocks, other=1 << 20) * UNIT
            looks = (starts < tl.program_id(0) * N + N) & (starts < S)
            last = tl.maximum(last, tl.max(tl.where(looks, block + 1, 0), 0))
            if not causal:
                ends = (
                    tl.load(
                        KEPT + tl.num_programs(1) * blocks + block, mask=block < blocks, other=0
                    )
                    * UNIT
                )
                first = tl.minimum(
                    first, tl.min(tl.where(ends > tl.program_id(0) * N, block, blocks), 0)
                )
        stop = tl.minimum(T, last * QUERIES)
        if not causal:
            begin = first * QUERIES
    whole = begin  # all queries from here on see all keys; those beyond the last have no weights, and keys beyond the last are not stored
    if causal:
        whole = tl.minimum(stop, tl.maximum(begin, (tl.maximum(0, place + N - 1) + M - 1) // M * M))
    if limited:
        whole = stop
    for edge in tl.static_range(1, -1, -1):
        for start in range(begin if edge else whole, whole if edge else stop, M):
            t = start + tl.arange(0, M)
            i = t + S - T
            q = _tile(Q, t, T, q_t, columns, D)
            dy = _tile(DY, t, T, dy_t, columns, D)
            lse = tl.load(LSE + t, mask=t < T, other=float("inf"))[None, :]
            delta = tl.load(DELTA + t, mask=t < T, other=0.0)[None, :]
            s_i = _row(S_I, t, T, si_t, falls)[None, :]
            g = _row(G, t, T, g_t, weighted)[None, :]
            low, high = _between(
                kind,
                causal,
                TABLE,
                PIECE,
                distances,
                G,
                g_t,
                start,
                T,
                start + S - T,
                tl.program_id(0) * N,
                M,
                N,
                ENDS,
            )
            b, slope, x = _bias(
                kind,
                causal,
                limited,
                edge,
                i[None, :],
                j[:, None],
                s_i,
                g,
                s_j,
                TABLE,
                PIECE,
                low,
                high,
                S,
                window_size,
                ENDS,
            )
            p = tl.exp2(_dot(k, tl.trans(q), precision) * (scale * LOG2E) + (b - lse))
            dv += _dot(p.to(dy.dtype), dy, precision)
            dz = p * (_dot(v, tl.trans(dy), precision) - delta)
            dk += _dot(dz.to(q.dtype), q, precision)
            if falls and s_learns:
                dz *= slope * g
                ds -= tl.sum(dz if causal else dz * _sign(s_j - s_i), 1)
            elif both and g_learns:
                ds += tl.sum(tl.where(i[None, :] < j[:, None], dz * slope * x, 0.0), 1)
    _store(DK + batch * S * of_row + head * D, dk * scale, j, S, of_row, columns, D)
    _store(DV + batch * S * of_row + head * D, dv, j, S, of_row, columns, D)
    numbers = DS_J + tl.program_id(1).to(tl.int64) * S + j
    if both and g_learns:
        ds += tl.load(numbers, mask=j < S)
    if (falls and s_learns) or (both and g_learns):
        tl.store(numbers, ds, mask=j < S)


@triton.jit
def _backward_distances(
    Q,
    K,
    V,
    G,
    TABLE,
    PIECE,
    DY,
    LSE,
    DELTA,
    SUMS,
    D_PIECE,
    scale,
    B,
    H,
    T,
    distances,
    window_size,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_t,
    v_b,
    v_h,
    v_t,
    g_h,
    g_t,
    dy_b,
    dy_h,
    dy_t,
    kind: tl.constexpr,
    causal: tl.constexpr,
    limited: tl.constexpr,
    ENDS: tl.constexpr,
    D: tl.constexpr,
    D_TILE: tl.constexpr,
    N: tl.constexpr,
    SEQUENCES: tl.constexpr,
    precision: tl.constexpr,
):
    """A program: all tiles (N, N) of one head that are equally many tiles off the diagonal, of some sequences, added up.

    SUMS (parts of the batch, H, tiles off, N, 2 N), zeros at first: row r of the sum, shifted by N - 1 + r columns and turned round, so
    that each column holds one distance. D_PIECE (parts, H, tiles off, 2, ENDS): gradients of the slopes and intercepts of `pieces`, whose g
    is the same for all sequences.
    """
    blocks = tl.cdiv(T, N)
    off = tl.program_id(0) if causal else tl.program_id(0) - blocks + 1  # tiles, below the diagonal
    head = tl.program_id(1).to(tl.int64)
    r, columns = tl.arange(0, N), tl.arange(0, D_TILE)
    G += head * g_h
    TABLE += head * distances
    PIECE += head * 3 * ENDS
    total = tl.zeros((N, N), tl.float32)
    slopes = tl.zeros((ENDS,), tl.float32)
    intercepts = tl.zeros((ENDS,), tl.float32)
    for place in range(0, blocks - tl.abs(off)):
        block = place + tl.maximum(off, 0)
        i, j = block * N + r, (block - off) * N + r
        g = _row(G, i, T, g_t, kind == PIECES)[:, None]
        if kind == PIECES and not causal:
            g = tl.minimum(g, _row(G, j, T, g_t, True)[None, :])
        low, high = _between(
            kind,
            causal,
            TABLE,
            PIECE,
            distances,
            G,
            g_t,
            block * N,
            T,
            block * N,
            (block - off) * N,
            N,
            N,
            ENDS,
        )
        b, slope, x = _bias(
            kind,
            causal,
            limited,
            True,
            i[:, None],
            j[None, :],
            g,
            g,
            g,
            TABLE,
            PIECE,
            low,
            high,
            T,
            window_size,
            ENDS,
        )
        dz = tl.zeros((N, N), tl.float32)
        for batch in range(
            tl.program_id(2) * SEQUENCES, tl.minimum(B, (tl.program_id(2) + 1) * SEQUENCES)
        ):
            batch = tl.cast(batch, tl.int64)
            row = (batch * H + head) * T
            q = _tile(Q + batch * q_b + head * q_h, i, T, q_t, columns, D)
            k = _tile(K + batch * k_b + head * k_h, j, T, k_t, columns, D)
            v = _tile(V + batch * v_b + head * v_h, j, T, v_t, columns, D)
            dy = _tile(DY + batch * dy_b + head * dy_h, i, T, dy_t, columns, D)
            lse = tl.load(LSE + row + i, mask=i < T, other=float("inf"))[:, None]
            delta = tl.load(DELTA + row + i, mask=i < T, other=0.0)[:, None]
            p = tl.exp2(_dot(q, tl.trans(k), precision) * (scale * LOG2E) + (b - lse))
            dz += p * (_dot(dy, tl.trans(v), precision) - delta)
        if kind == PIECES:
            ratio = g * x
            piece = _piece(ratio, PIECE, ENDS)
            for number in range(low, high + 1):
                here = tl.where(piece == number, dz, 0.0)  # and zero where no query looks
                slopes += tl.where(tl.arange(0, ENDS) == number, tl.sum(here * ratio), 0.0)
                intercepts += tl.where(tl.arange(0, ENDS) == number, tl.sum(here), 0.0)
            dz *= slope * g
        total += dz
    program = ((tl.program_id(2) * H + head) * tl.num_programs(0) + tl.program_id(0)).to(tl.int64)
    tl.store(
        SUMS + program * 2 * N * N + r[:, None] * 2 * N + (N - 1 + r[:, None] - r[None, :]), total
    )
    if kind == PIECES:
        tl.store(D_PIECE + program * 2 * ENDS + tl.arange(0, ENDS), slopes)
        tl.store(D_PIECE + program * 2 * ENDS + ENDS + tl.arange(0, ENDS), intercepts)


def _numbers(q, k, v, s_i, g, s_j, table, *_):
    """What every kernel takes: sizes, then strides. Missing states have strides of zero."""
    sizes = q.size(1), q.size(2), k.size(2), table.size(-1)
    return sizes, [
        stride
        for x in (q, k, v, s_i, g, s_j)
        for stride in (x.stride()[:3] if x.numel() else (0, 0, 0))
    ]


def _settings(kernel, q, pieces, kind, causal, window_size):
    """Compile-time settings of a kernel."""
    M, N, warps, stages = tiles(KINDS[kind], q.size(-1), q.dtype)[kernel]
    return {
        "kind": kind,
        "causal": causal,
        "limited": window_size < FAR,
        "ENDS": max(1, pieces.size(-1)),
        "D": q.size(-1),
        "D_TILE": triton.next_power_of_2(q.size(-1)),
        "M": M,
        "N": N,
        "precision": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": warps,
        "num_stages": stages,
        "enable_fp_fusion": True,
    }


def _rows_of_heads(x):
    """Uninitialised, in the shape of x (B, H, T, D), and in memory (B, T, H, D), as the layers before and after attention have it."""
    return x.new_empty(x.transpose(1, 2).shape).transpose(1, 2)


@contextlib.contextmanager
def _gpu_of(q):
    """Where q is: Triton launches on the current one. InputError where a program does not fit into it."""
    try:
        with torch.cuda.device_of(q):
            yield
    except OutOfResources as error:
        raise InputError(
            f"attention: this GPU is too small for triton's tiles ({error}): choose auto or dense"
        ) from None


@torch.library.custom_op("posenc::attention", mutates_args=())
def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s_i: Tensor,
    g: Tensor,
    s_j: Tensor,
    table: Tensor,
    pieces: Tensor,
    kept: Tensor,
    kind: int,
    scale: float,
    causal: bool,
    window_size: int,
) -> tuple[Tensor, Tensor]:
    q, k, v = _parts(q, k, v)
    inputs = q, k, v, s_i, g, s_j, table, pieces
    y, lse = _attention_fake(*inputs, kept, kind, scale, causal, window_size)
    sizes, strides = _numbers(*inputs)
    settings = _settings("forward", q, pieces, kind, causal, window_size)
    with _gpu_of(q):
        _forward[triton.cdiv(q.size(2), settings["M"]), q.size(0) * q.size(1)](
            *inputs,
            kept,
            y,
            lse,
            scale,
            *sizes,
            window_size,
            *strides,
            skips=kept.numel() > 0,
            UNIT=settings["N"],
            **settings,
        )
    return y, lse


@_attention.register_fake
def _attention_fake(q, k, v, s_i, g, s_j, table, pieces, kept, kind, scale, causal, window_size):
    q, _, _ = _parts(q, k, v)
    return _rows_of_heads(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("posenc::attention_backward", mutates_args=())
def _attention_backward(
    dy: Tensor,
    y: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s_i: Tensor,
    g: Tensor,
    s_j: Tensor,
    table: Tensor,
    pieces: Tensor,
    kept: Tensor,
    kind: int,
    scale: float,
    causal: bool,
    window_size: int,
    s_learns: bool,
    g_learns: bool,
    table_learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, s_i, g, s_j, table and pieces, empty for those that have none; of states in their full shapes, (B, H, T)."""
    arguments = (
        q,
        k,
        v,
        s_i,
        g,
        s_j,
        table,
        pieces,
        kept,
        kind,
        scale,
        causal,
        window_size,
        s_learns,
        g_learns,
        table_learns,
    )
    grads = _attention_backward_fake(dy, y, lse, *arguments)
    with _gpu_of(q):
        _fill(grads, dy, y, lse, *_parts(q, k, v), *arguments[3:])
    return grads


def _fill(grads, dy, y, lse, *arguments):
    *inputs, kept, kind, scale, causal, window_size, s_learns, g_learns, table_learns = arguments
    q, k, v, s_i, g, s_j, table, pieces = inputs
    dq, dk, dv, ds_i, dg, ds_j, dtable, dpieces = *_parts(*grads[:3]), *grads[3:]
    delta = torch.empty_like(lse)
    (H, T, S, distances), strides = _numbers(*inputs)
    strides += dy.stride()[:3]
    rows, columns = (
        _settings(kernel, q, pieces, kind, causal, window_size)
        | {"s_learns": s_learns, "g_learns": g_learns}
        for kernel in ("rows", "columns")
    )
    M, N, *_ = tiles(KINDS[kind], q.size(-1), q.dtype)["forward"]
    skips = kept.numel() > 0
    numbers = scale, H, T, S, distances, window_size, dq.stride(2), *strides
    _backward_rows[triton.cdiv(T, rows["M"]), q.size(0) * H](
        *inputs, kept, y, dy, lse, delta, dq, ds_i, dg, *numbers, skips=skips, UNIT=N, **rows
    )
    ds_j = dg if pieces.numel() and not causal else ds_j
    _backward_columns[triton.cdiv(S, columns["N"]), q.size(0) * H](
        *inputs,
        kept,
        dy,
        lse,
        delta,
        dk,
        dv,
        ds_j,
        *numbers,
        skips=skips,
        UNIT=N,
        QUERIES=M,
        **columns,
    )
    if table_learns:
        settings, parts = (
            _settings("distances", q, pieces, kind, causal, window_size),
            triton.cdiv(q.size(0), SEQUENCES),
        )
        N = settings.pop("M")
        offs = triton.cdiv(T, N) * (1 if causal else 2) - (0 if causal else 1)
        sums = dy.new_zeros(parts, H, offs, N, 2 * N, dtype=torch.float32)
        of_pieces = dy.new_zeros(parts, H, offs, 2, settings["ENDS"], dtype=torch.float32)
        _backward_distances[offs, H, parts](
            q,
            k,
            v,
            g,
            table,
            pieces,
            dy,
            lse,
            delta,
            sums,
            of_pieces,
            scale,
            q.size(0),
            H,
            T,
            distances,
            window_size,
            *strides[:9],
            *strides[13:15],
            *strides[18:],
            SEQUENCES=SEQUENCES,
            **settings,
        )
        found = _along_diagonals(sums.sum((0, 3)), T, causal)
        dtable[:, : found.size(1)] = found
        if pieces.numel():
            dpieces[:, 1:] = of_pieces.sum((0, 2))


@_attention_backward.register_fake
def _attention_backward_fake(
    dy,
    y,
    lse,
    q,
    k,
    v,
    s_i,
    g,
    s_j,
    table,
    pieces,
    kept,
    kind,
    scale,
    causal,
    window_size,
    s_learns,
    g_learns,
    table_learns,
):
    by_row = s_learns and (
        not causal or KINDS[kind] == "log-fall"
    )  # as in `_backward_rows`, which fills what is not empty here
    features = (
        x.new_empty(x.shape if found else 0)
        for x, found in ((s_i, by_row), (g, g_learns), (s_j, s_learns))
    )
    of_qkv = (
        (_rows_of_heads(x) for x in (q, k, v))
        if q.dim() == 4
        else (x.new_empty(x.shape) for x in (q, k, v))
    )
    return (
        *of_qkv,
        *features,
        *(x.new_zeros(x.shape if table_learns else 0) for x in (table, pieces)),
    )


def _along_diagonals(sums: Tensor, T: int, causal: bool) -> Tensor:
    """(H, tiles off, 2 N), each tile's sums by distance -> the gradient of each distance: from 0 on, (H, T), or from -(T - 1) on."""
    offs, N = sums.size(1), sums.size(-1) // 2
    near, far = sums.split(
        N, -1
    )  # of a tile, the N distances up to its diagonal, and those beyond: the next one's too
    lines = torch.nn.functional.pad(near, (0, 0, 0, 1)) + torch.nn.functional.pad(
        far, (0, 0, 1, 0)
    )  # (H, offs + 1, N)
    line, zero = lines.flatten(1), N - 1 if causal else (offs // 2 + 1) * N - 1
    return line[:, zero if causal else zero - T + 1 : zero + T]


def _save(ctx, inputs, output):
    *tensors, ctx.kind, ctx.scale, ctx.causal, ctx.window_size = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx, dy, _):
    *inputs, y, lse = ctx.saved_tensors
    dy = dy if dy.stride(-1) == 1 else dy.contiguous()
    _, _, _, s_i, g, s_j, table, pieces, *_ = ctx.needs_input_grad
    grads = torch.ops.posenc.attention_backward(
        dy,
        y,
        lse,
        *inputs,
        ctx.kind,
        ctx.scale,
        ctx.causal,
        ctx.window_size,
        s_i or s_j,
        g,
        table or pieces,
    )
    return *(x if x.numel() else None for x in grads), None, None, None, None, None


_attention.register_autograd(_backward, setup_context=_save)
