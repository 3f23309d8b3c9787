"""Triton kernels of attention with a bias, forward and backward.

operators.py launches them. With z_ij = q_i k_j scale + b_ij, forward computes

    y_i = sum_j exp(z_ij - lse_i) v_j,    lse_i = log sum_j exp(z_ij)

and stores y and lse. Backward recomputes the weights p_ij = exp(z_ij - lse_i):

    attention_backward_rows       walks along rows: dq, dg, dS_i and delta
    attention_backward_columns    walks along columns: dk, dv, dS_j
    attention_backward_distances  walks along diagonals: tables and pieces

Nothing has the shape (T, T). Without atomics, results are deterministic. Tiles in which every query
attends to every key run first, without masks. Exponentials, logarithms, LSE and biases have base 2,
as the hardware. Exact gradients of a row's logits sum to zero, so in a causal decay bias S_i gets
no gradient from its row.

B: sequences; H: heads; T: queries, the last of the S keys; D: head dimension; M, N: queries and
keys of a tile. t: index of a query among queries; i, j: positions of a query and a key among keys;
d = i - j. The strides of a tensor are x_b, x_h and x_t, in elements.
"""

# Triton cannot compile "kind in (DECAY, LOG_DECAY)".
# ruff: noqa: SIM109

import os

import triton
import triton.language as tl
from triton.language.extra import libdevice

from triton_attention.bias import KINDS

LOG2E = tl.constexpr(1.4426950408889634)
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
NONE = tl.constexpr(KINDS.index("none"))
DECAY = tl.constexpr(KINDS.index("decay"))
LOG_DECAY = tl.constexpr(KINDS.index("log-decay"))
DISTANCE = tl.constexpr(KINDS.index("distance"))
PIECEWISE_LINEAR = tl.constexpr(KINDS.index("piecewise-linear"))


@triton.jit
def _bias_tile(
    kind: tl.constexpr, causal: tl.constexpr, windowed: tl.constexpr, masked: tl.constexpr,
    i, j, s_i, g, s_j, table, pieces, first_piece, last_piece, S, window_size,
    NUM_PIECES: tl.constexpr,
):  # fmt: skip
    """Return tiles of b = f(g_i x_ij) in base 2, f'(g_i x_ij) and x_ij, f32.

    i, s_i, g: (M, 1) or (1, M). j, s_j: (1, N) or (N, 1). x is S_i - S_j, or the table's entry of
    the distance. masked: b is -inf where a query attends not.
    """
    x = 0.0
    b = 0.0
    slope = 1.0
    # Table entries must exist also past the end, where nothing is stored.
    d = tl.minimum(i, S - 1) - tl.minimum(j, S - 1)
    if not causal:
        d += S - 1  # the table starts at distance -(S - 1)
    elif masked:
        d = tl.maximum(d, 0)
    if kind == DECAY or kind == LOG_DECAY:
        x = s_i - s_j
        if not causal:
            x = -tl.abs(x)
        if kind == DECAY:
            b = (g * LOG2E) * x
        else:
            slope = g * x
            b = -_log2(1 + slope * slope)
            slope = -2 * slope * tl.exp2(b)
    elif kind == DISTANCE:
        b = tl.load(table + d) * LOG2E
    elif kind == PIECEWISE_LINEAR:
        x = tl.load(table + d)
        slope, b = _evaluate_pieces(g * x, pieces, first_piece, last_piece, NUM_PIECES)
        b *= LOG2E
    if masked:
        allowed = i >= j if causal else j < S
        if windowed:
            allowed = allowed & (tl.abs(i - j) < window_size)
        b = tl.where(allowed, b, -float("inf"))
    return b, slope, x


@triton.jit
def _piece_range(
    kind: tl.constexpr, table, pieces, num_distances, g, g_t, t, T, i, j,
    M: tl.constexpr, N: tl.constexpr, NUM_PIECES: tl.constexpr,
):  # fmt: skip
    """Return the first and the last piece of a tile from query t, at i, and key j on."""
    if kind != PIECEWISE_LINEAR:
        return 0, 0
    near = tl.maximum(i - j - N + 1, 0)
    far = tl.maximum(i - j + M - 1, 0)
    # The tile's corners have the extremes of g x.
    smallest_x = tl.load(table + tl.minimum(near, num_distances - 1))
    largest_x = tl.load(table + tl.minimum(far, num_distances - 1))
    smallest = smallest_x * tl.load(g + tl.minimum(t + M, T) * g_t - g_t)
    first_piece = _find_piece(smallest, pieces, NUM_PIECES)
    largest = largest_x * tl.load(g + tl.minimum(t, T - 1) * g_t)
    return first_piece, _find_piece(largest, pieces, NUM_PIECES)


@triton.jit
def _find_piece(r, pieces, NUM_PIECES: tl.constexpr):
    """Return how many of the ascending ends are below r, by bisection."""
    piece = (r * 0).to(tl.int32)
    for level in tl.static_range(1, 11):  # operators.MAX_PIECES = 2**10
        step = NUM_PIECES >> level
        if step > 0:
            piece = tl.where(r > tl.load(pieces + piece + step - 1), piece + step, piece)
    return piece


@triton.jit
def _evaluate_pieces(r, pieces, first_piece, last_piece, NUM_PIECES: tl.constexpr):
    """Return slope and value at each r, all within a short range of pieces."""
    slope = tl.zeros(r.shape, tl.float32) + tl.load(pieces + NUM_PIECES + first_piece)
    value = slope * r + tl.load(pieces + 2 * NUM_PIECES + first_piece)
    for piece in range(first_piece + 1, last_piece + 1):
        above = r > tl.load(pieces + piece - 1)
        piece_slope = tl.load(pieces + NUM_PIECES + piece)
        slope = tl.where(above, piece_slope, slope)
        intercept = tl.load(pieces + 2 * NUM_PIECES + piece)
        value = tl.where(above, piece_slope * r + intercept, value)
    return slope, value


@triton.jit
def _load_tile(x, rows, count, stride, columns, D: tl.constexpr, inner: tl.constexpr = False):
    """Load rows of a matrix (count, D), zeros past its ends; inner: there are none."""
    pointers = x + rows.to(tl.int64)[:, None] * stride + columns[None, :]
    if inner and columns.shape[0] == D:
        return tl.load(pointers)
    inside = rows[:, None] < count
    if columns.shape[0] != D:
        inside = inside & (columns[None, :] < D)
    return tl.load(pointers, mask=inside, other=0.0)


@triton.jit
def _store_tile(x, y, rows, count, stride, channels, D: tl.constexpr):
    """Store rows of a matrix (count, D), the inverse of `_load_tile`."""
    tl.store(
        x + rows.to(tl.int64)[:, None] * stride + channels[None, :],
        y.to(x.dtype.element_ty),
        mask=(rows[:, None] < count) & (channels[None, :] < D),
    )


@triton.jit
def _dot(a, b, precision: tl.constexpr):
    """Return a b in float32; the interpreter cannot multiply bfloat16."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=precision)
    return tl.dot(a, b, input_precision=precision)


@triton.jit
def _log2(x):
    """Return log2 in one instruction, error 2^-22; exact in the interpreter."""
    if INTERPRETED:
        return tl.log2(x)
    return libdevice.fast_log2f(x)


@triton.jit
def _load_vector(x, indices, count, stride, used: tl.constexpr, inner: tl.constexpr = False):
    """Load one number per token; zeros past the end, or if unused."""
    if used:
        if inner:
            return tl.load(x + indices * stride)
        return tl.load(x + indices * stride, mask=indices < count, other=0.0)
    return tl.zeros((indices.shape[0],), tl.float32)


@triton.jit
def _partial_sums(x, M: tl.constexpr, N: tl.constexpr):
    """Return (M, 8), sums over n with equal n % 8: one thread has all their columns."""
    return tl.sum(tl.reshape(x, (M, N // 8, 8)), 1)


@triton.jit
def _sign(x):
    return tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))


@triton.jit
def attention_forward(
    Q, K, V, S_I, G, S_J, TABLE, PIECES, KEPT_TILES, Y, LSE,
    scale, H, T, S, num_distances, window_size,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t,
    si_b, si_h, si_t, g_b, g_h, g_t, sj_b, sj_h, sj_t,
    kind: tl.constexpr, causal: tl.constexpr, windowed: tl.constexpr,
    skips_tiles: tl.constexpr, SKIP_KEYS: tl.constexpr, NUM_PIECES: tl.constexpr,
    D: tl.constexpr, D_TILE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    SHARED: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute the output and the log-sum-exp of M queries of one head.

    Grid: (tiles of queries, B H).

    Q: (B, H, T, D), K, V: (B, H / SHARED, S, D), bf16, f16 or f32.
    S_I, G: (B, H, T), S_J: (B, H, S), f32; unused ones are empty with strides of 0. TABLE: (H,
    num_distances), f32. PIECES: (H, 3, NUM_PIECES), f32: ends,
    slopes, intercepts. KEPT_TILES: (1 or 2, B, H, tiles of queries), int32, in units of SKIP_KEYS
    keys: where the keys to read begin (and end).
    Y: output, in memory (B, T, H, D). LSE: output (B, H, T), f32, in base 2.
    window_size: in tokens. D_TILE: D rounded up to a power of 2.
    """
    # Start with the longest rows: the last programs should be short.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, head = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    t = block * M + tl.arange(0, M)
    i = t + S - T
    channels = tl.arange(0, D_TILE)
    decays: tl.constexpr = kind == DECAY or kind == LOG_DECAY
    uses_g: tl.constexpr = decays or kind == PIECEWISE_LINEAR
    K += batch * k_b + head // SHARED * k_h
    V += batch * v_b + head // SHARED * v_h
    S_J += batch * sj_b + head * sj_h
    G += batch * g_b + head * g_h
    TABLE += head * num_distances
    PIECES += head * 3 * NUM_PIECES
    q = _load_tile(Q + batch * q_b + head * q_h, t, T, q_t, channels, D)  # (M, D_TILE)
    s_i = _load_vector(S_I + batch * si_b + head * si_h, t, T, si_t, decays)[:, None]
    g = _load_vector(G, t, T, g_t, uses_g)[:, None]
    row_max = tl.full((M,), -float("inf"), tl.float32)
    row_sum = tl.zeros((M, 8), tl.float32)
    y = tl.zeros((M, D_TILE), tl.float32)
    first_i = block * M + S - T
    begin = tl.maximum(0, first_i - window_size + 1) // N * N
    stop = tl.minimum(S, first_i + M + (0 if causal else window_size))
    if skips_tiles:
        KEPT_TILES += tl.program_id(1) * tl.num_programs(0) + block
        begin = tl.load(KEPT_TILES) * SKIP_KEYS
        if not causal:
            KEPT_TILES += tl.num_programs(0) * tl.num_programs(1)
            stop = tl.minimum(S, tl.load(KEPT_TILES) * SKIP_KEYS)
    # Every query of the tile attends to every key before this one.
    unmasked_stop = begin
    if not windowed:
        unmasked_stop = tl.maximum(begin, (first_i + 1 if causal else stop) // N * N)
    for masked in tl.static_range(2):
        loop_begin = unmasked_stop if masked else begin
        loop_stop = stop if masked else unmasked_stop
        for start in range(loop_begin, loop_stop, N):
            j = start + tl.arange(0, N)
            k = _load_tile(K, j, S, k_t, channels, D, not masked)  # (N, D_TILE)
            first_piece, last_piece = _piece_range(
                kind, TABLE, PIECES, num_distances, G, g_t, block * M, T, first_i, start,
                M, N, NUM_PIECES,
            )  # fmt: skip
            s_j = _load_vector(S_J, j, S, sj_t, decays, not masked)[None, :]
            b, _, _ = _bias_tile(
                kind, causal, windowed, masked, i[:, None], j[None, :], s_i, g, s_j,
                TABLE, PIECES, first_piece, last_piece, S, window_size, NUM_PIECES,
            )  # fmt: skip
            z = _dot(q, tl.trans(k), precision) * (scale * LOG2E) + b  # (M, N)
            # Finite also if no query of the tile attends to any key so far.
            new_max = tl.maximum(tl.maximum(row_max, tl.max(z, 1)), -1e30)
            p = tl.exp2(z - new_max[:, None])
            rescale = tl.exp2(row_max - new_max)
            row_sum = row_sum * rescale[:, None] + _partial_sums(p, M, N)
            v = _load_tile(V, j, S, v_t, channels, D, not masked)
            y = y * rescale[:, None] + _dot(p.to(v.dtype), v, precision)
            row_max = new_max
    # rows past the last query attend to nothing
    row_sum = tl.maximum(tl.sum(row_sum, 1), 1e-30)
    _store_tile(Y + (batch * T * H + head) * D, y / row_sum[:, None], t, T, H * D, channels, D)
    LSE += tl.program_id(1).to(tl.int64) * T
    tl.store(LSE + t, row_max + tl.log2(row_sum), mask=t < T)


@triton.jit
def attention_backward_rows(
    Q, K, V, S_I, G, S_J, TABLE, PIECES, KEPT_TILES, Y, DY, LSE, DELTA, DQ, DS_I, DG,
    scale, H, T, S, num_distances, window_size, grad_t,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t,
    si_b, si_h, si_t, g_b, g_h, g_t, sj_b, sj_h, sj_t, dy_b, dy_h, dy_t,
    kind: tl.constexpr, causal: tl.constexpr, windowed: tl.constexpr,
    skips_tiles: tl.constexpr, SKIP_KEYS: tl.constexpr,
    g_learns: tl.constexpr, s_learns: tl.constexpr, NUM_PIECES: tl.constexpr,
    D: tl.constexpr, D_TILE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    SHARED: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute dq, dg, dS_i and delta of M queries of one head.

    Grid: (tiles of queries, B H). Inputs as in `attention_forward`.

    DY: (B, H, T, D), gradient of the output. DQ: output, in memory (B, T, H, D) or a third of (B,
    T, 3, H, D): grad_t is its stride from one token to the next. DS_I, DG: outputs (B, H, T), f32.
    DELTA:
    output (B, H, T), f32: sum_j p_ij (dy_i v_j), for other kernels.

    delta is dy y if y is exact; then the gradients of a row's logits sum to zero. If y is rounded
    they do not, and the residue would add up along columns and in a gate's running sums, so this
    kernel adds it to delta.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    batch, head = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    t = block * M + tl.arange(0, M)
    i = t + S - T
    channels = tl.arange(0, D_TILE)
    decays: tl.constexpr = kind == DECAY or kind == LOG_DECAY
    uses_g: tl.constexpr = decays or kind == PIECEWISE_LINEAR
    grad_g: tl.constexpr = uses_g and g_learns
    grad_s_i: tl.constexpr = s_learns and (kind == LOG_DECAY or (decays and not causal))
    only_s_j: tl.constexpr = decays and s_learns and not grad_s_i
    needs_residue: tl.constexpr = only_s_j or kind == PIECEWISE_LINEAR
    K += batch * k_b + head // SHARED * k_h
    V += batch * v_b + head // SHARED * v_h
    S_J += batch * sj_b + head * sj_h
    G += batch * g_b + head * g_h
    TABLE += head * num_distances
    PIECES += head * 3 * NUM_PIECES
    row = tl.program_id(1).to(tl.int64) * T + t
    q = _load_tile(Q + batch * q_b + head * q_h, t, T, q_t, channels, D)  # (M, D_TILE)
    dy = _load_tile(DY + batch * dy_b + head * dy_h, t, T, dy_t, channels, D)
    y = _load_tile(Y + (batch * T * H + head) * D, t, T, H * D, channels, D)
    delta = tl.sum(dy.to(tl.float32) * y.to(tl.float32), 1)
    residue = tl.zeros((M, 8), tl.float32)
    # Weights of rows past the last query are exp(-inf) = 0.
    lse = tl.load(LSE + row, mask=t < T, other=float("inf"))[:, None]
    s_i = _load_vector(S_I + batch * si_b + head * si_h, t, T, si_t, decays)[:, None]
    g = _load_vector(G, t, T, g_t, uses_g)[:, None]
    dq = tl.zeros((M, D_TILE), tl.float32)
    dg = tl.zeros((M, 8), tl.float32)
    ds = tl.zeros((M,), tl.float32)
    first_i = block * M + S - T
    begin = tl.maximum(0, first_i - window_size + 1) // N * N
    stop = tl.minimum(S, first_i + M + (0 if causal else window_size))
    if skips_tiles:
        KEPT_TILES += tl.program_id(1) * tl.num_programs(0) + block
        begin = tl.load(KEPT_TILES) * SKIP_KEYS
        if not causal:
            KEPT_TILES += tl.num_programs(0) * tl.num_programs(1)
            stop = tl.minimum(S, tl.load(KEPT_TILES) * SKIP_KEYS)
    unmasked_stop = begin
    if not windowed:
        unmasked_stop = tl.maximum(begin, (first_i + 1 if causal else stop) // N * N)
    for masked in tl.static_range(2):
        loop_begin = unmasked_stop if masked else begin
        loop_stop = stop if masked else unmasked_stop
        for start in range(loop_begin, loop_stop, N):
            j = start + tl.arange(0, N)
            k = _load_tile(K, j, S, k_t, channels, D, not masked)  # (N, D_TILE)
            v = _load_tile(V, j, S, v_t, channels, D, not masked)
            s_j = _load_vector(S_J, j, S, sj_t, decays, not masked)[None, :]
            first_piece, last_piece = _piece_range(
                kind, TABLE, PIECES, num_distances, G, g_t, block * M, T, first_i, start,
                M, N, NUM_PIECES,
            )  # fmt: skip
            b, slope, x = _bias_tile(
                kind, causal, windowed, masked, i[:, None], j[None, :], s_i, g, s_j,
                TABLE, PIECES, first_piece, last_piece, S, window_size, NUM_PIECES,
            )  # fmt: skip
            # (M, N)
            p = tl.exp2(_dot(q, tl.trans(k), precision) * (scale * LOG2E) + (b - lse))
            dz = p * (_dot(dy, tl.trans(v), precision) - delta[:, None])
            dq += _dot(dz.to(k.dtype), k, precision)
            if needs_residue:
                residue += _partial_sums(dz, M, N)
            if grad_g or grad_s_i:
                dz *= slope
            if grad_g:
                dg += _partial_sums(dz * x, M, N)
            if grad_s_i:
                ds += tl.sum(dz if causal else dz * _sign(s_j - s_i), 1)
    tl.store(DELTA + row, delta + tl.sum(residue, 1), mask=t < T)
    _store_tile(DQ + batch * T * grad_t + head * D, dq * scale, t, T, grad_t, channels, D)
    if grad_g:
        tl.store(DG + row, tl.sum(dg, 1), mask=t < T)
    if grad_s_i:
        tl.store(DS_I + row, ds * tl.sum(g, 1), mask=t < T)


@triton.jit
def attention_backward_columns(
    Q, K, V, S_I, G, S_J, TABLE, PIECES, KEPT_TILES, DY, LSE, DELTA, DK, DV, DS_J,
    scale, H, T, S, num_distances, window_size, grad_t,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t,
    si_b, si_h, si_t, g_b, g_h, g_t, sj_b, sj_h, sj_t, dy_b, dy_h, dy_t,
    kind: tl.constexpr, causal: tl.constexpr, windowed: tl.constexpr,
    skips_tiles: tl.constexpr, SKIP_KEYS: tl.constexpr, SKIP_QUERIES: tl.constexpr,
    g_learns: tl.constexpr, s_learns: tl.constexpr, NUM_PIECES: tl.constexpr,
    D: tl.constexpr, D_TILE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    SHARED: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Compute dk, dv and dS_j of N keys of one head.

    Grid: (tiles of keys, B H). Inputs as in `attention_backward_rows`.

    DK, DV: outputs, in memory (B, S, H, D) or thirds of (B, S, 3, H, D), with a stride of grad_t
    from one token to the next. DS_J: output (B, H, S), f32.
    SKIP_QUERIES: queries of the tiles of KEPT_TILES.
    Tiles are transposed, (N, M): products are the next left factors.
    """
    batch, head = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    j = tl.program_id(0) * N + tl.arange(0, N)
    channels = tl.arange(0, D_TILE)
    decays: tl.constexpr = kind == DECAY or kind == LOG_DECAY
    uses_g: tl.constexpr = decays or kind == PIECEWISE_LINEAR
    Q += batch * q_b + head * q_h
    DY += batch * dy_b + head * dy_h
    S_I += batch * si_b + head * si_h
    G += batch * g_b + head * g_h
    TABLE += head * num_distances
    PIECES += head * 3 * NUM_PIECES
    LSE += tl.program_id(1).to(tl.int64) * T
    DELTA += tl.program_id(1).to(tl.int64) * T
    # (N, D_TILE)
    k = _load_tile(K + batch * k_b + head // SHARED * k_h, j, S, k_t, channels, D)
    v = _load_tile(V + batch * v_b + head // SHARED * v_h, j, S, v_t, channels, D)
    s_j = _load_vector(S_J + batch * sj_b + head * sj_h, j, S, sj_t, decays)[:, None]
    dk = tl.zeros((N, D_TILE), tl.float32)
    dv = tl.zeros((N, D_TILE), tl.float32)
    ds = tl.zeros((N, 8), tl.float32)
    first_t = tl.program_id(0) * N - (S - T)  # index of the first key among queries
    begin = tl.maximum(0, first_t - (0 if causal else window_size)) // M * M
    stop = tl.minimum(T, first_t + N + window_size)
    if skips_tiles:
        # The first and the last tile of queries that reads these keys.
        blocks = tl.cdiv(T, SKIP_QUERIES)
        KEPT_TILES += tl.program_id(1) * blocks
        first = blocks
        last = 0  # the number after the last tile
        for first_block in range(0, blocks, 128):
            block = first_block + tl.arange(0, 128)
            starts = tl.load(KEPT_TILES + block, mask=block < blocks, other=1 << 20) * SKIP_KEYS
            reads = (starts < tl.program_id(0) * N + N) & (starts < S)
            last = tl.maximum(last, tl.max(tl.where(reads, block + 1, 0), 0))
            if not causal:
                kept_ends = KEPT_TILES + tl.num_programs(1) * blocks
                ends = tl.load(kept_ends + block, mask=block < blocks, other=0) * SKIP_KEYS
                reading = tl.where(ends > tl.program_id(0) * N, block, blocks)
                first = tl.minimum(first, tl.min(reading, 0))
        stop = tl.minimum(T, last * SKIP_QUERIES)
        if not causal:
            begin = first * SKIP_QUERIES
    # Every query from this one on attends to every key of the tile; those past the end have no
    # weights.
    unmasked_begin = begin
    if causal:
        diagonal_stop = (tl.maximum(0, first_t + N - 1) + M - 1) // M * M
        unmasked_begin = tl.minimum(stop, tl.maximum(begin, diagonal_stop))
    if windowed:
        unmasked_begin = stop
    for masked in tl.static_range(1, -1, -1):
        loop_begin = begin if masked else unmasked_begin
        loop_stop = unmasked_begin if masked else stop
        for start in range(loop_begin, loop_stop, M):
            t = start + tl.arange(0, M)
            i = t + S - T
            q = _load_tile(Q, t, T, q_t, channels, D)  # (M, D_TILE)
            dy = _load_tile(DY, t, T, dy_t, channels, D)
            lse = tl.load(LSE + t, mask=t < T, other=float("inf"))[None, :]
            delta = tl.load(DELTA + t, mask=t < T, other=0.0)[None, :]
            s_i = _load_vector(S_I, t, T, si_t, decays)[None, :]
            g = _load_vector(G, t, T, g_t, uses_g)[None, :]
            first_piece, last_piece = _piece_range(
                kind, TABLE, PIECES, num_distances, G, g_t, start, T, start + S - T,
                tl.program_id(0) * N, M, N, NUM_PIECES,
            )  # fmt: skip
            b, slope, x = _bias_tile(
                kind, causal, windowed, masked, i[None, :], j[:, None], s_i, g, s_j,
                TABLE, PIECES, first_piece, last_piece, S, window_size, NUM_PIECES,
            )  # fmt: skip
            # (N, M)
            p = tl.exp2(_dot(k, tl.trans(q), precision) * (scale * LOG2E) + (b - lse))
            dv += _dot(p.to(dy.dtype), dy, precision)
            dz = p * (_dot(v, tl.trans(dy), precision) - delta)
            dk += _dot(dz.to(q.dtype), q, precision)
            if decays and s_learns:
                dz *= slope * g
                ds -= _partial_sums(dz if causal else dz * _sign(s_j - s_i), N, M)
    _store_tile(DK + batch * S * grad_t + head * D, dk * scale, j, S, grad_t, channels, D)
    _store_tile(DV + batch * S * grad_t + head * D, dv, j, S, grad_t, channels, D)
    if decays and s_learns:
        tl.store(DS_J + tl.program_id(1).to(tl.int64) * S + j, tl.sum(ds, 1), mask=j < S)


@triton.jit
def attention_backward_distances(
    Q, K, V, G, TABLE, PIECES, DY, LSE, DELTA, SUMS, D_PIECES,
    scale, B, H, T, num_distances, window_size,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_h, g_t, dy_b, dy_h, dy_t,
    kind: tl.constexpr, causal: tl.constexpr, windowed: tl.constexpr, NUM_PIECES: tl.constexpr,
    D: tl.constexpr, D_TILE: tl.constexpr, N: tl.constexpr, SEQUENCES: tl.constexpr,
    SHARED: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of one head's tiles (N, N) at one offset.

    Grid: (offsets, H, parts of the batch), SEQUENCES sequences each. T = S. Inputs as in
    `attention_backward_columns`; G is the same for all sequences.

    SUMS: output (parts, H, offsets, N, 2 N), f32, zeros at first. Row r of the sum is reversed and
    shifted by N - 1 + r columns, so that each column holds one distance. D_PIECES: output (parts,
    H, offsets, 2, NUM_PIECES), f32: gradients of slopes and intercepts of a piecewise-linear bias.
    """
    blocks = tl.cdiv(T, N)
    # in tiles below the diagonal
    offset = tl.program_id(0) if causal else tl.program_id(0) - blocks + 1
    head = tl.program_id(1).to(tl.int64)
    r, channels = tl.arange(0, N), tl.arange(0, D_TILE)
    G += head * g_h
    TABLE += head * num_distances
    PIECES += head * 3 * NUM_PIECES
    total = tl.zeros((N, N), tl.float32)
    d_slopes = tl.zeros((NUM_PIECES,), tl.float32)
    d_intercepts = tl.zeros((NUM_PIECES,), tl.float32)
    for step in range(0, blocks - tl.abs(offset)):
        block = step + tl.maximum(offset, 0)
        i, j = block * N + r, (block - offset) * N + r
        g = _load_vector(G, i, T, g_t, kind == PIECEWISE_LINEAR)[:, None]
        first_piece, last_piece = _piece_range(
            kind, TABLE, PIECES, num_distances, G, g_t, block * N, T, block * N,
            (block - offset) * N, N, N, NUM_PIECES,
        )  # fmt: skip
        b, slope, x = _bias_tile(
            kind, causal, windowed, True, i[:, None], j[None, :], g, g, g,
            TABLE, PIECES, first_piece, last_piece, T, window_size, NUM_PIECES,
        )  # fmt: skip
        dz = tl.zeros((N, N), tl.float32)
        first_batch = tl.program_id(2) * SEQUENCES
        for batch in range(first_batch, tl.minimum(B, first_batch + SEQUENCES)):
            batch = tl.cast(batch, tl.int64)
            row = (batch * H + head) * T
            q = _load_tile(Q + batch * q_b + head * q_h, i, T, q_t, channels, D)
            k = _load_tile(K + batch * k_b + head // SHARED * k_h, j, T, k_t, channels, D)
            v = _load_tile(V + batch * v_b + head // SHARED * v_h, j, T, v_t, channels, D)
            dy = _load_tile(DY + batch * dy_b + head * dy_h, i, T, dy_t, channels, D)
            lse = tl.load(LSE + row + i, mask=i < T, other=float("inf"))[:, None]
            delta = tl.load(DELTA + row + i, mask=i < T, other=0.0)[:, None]
            p = tl.exp2(_dot(q, tl.trans(k), precision) * (scale * LOG2E) + (b - lse))
            dz += p * (_dot(dy, tl.trans(v), precision) - delta)
        if kind == PIECEWISE_LINEAR:
            ratio = g * x
            piece = _find_piece(ratio, PIECES, NUM_PIECES)
            for number in range(first_piece, last_piece + 1):
                in_piece = tl.where(piece == number, dz, 0.0)  # dz is 0 where masked
                is_number = tl.arange(0, NUM_PIECES) == number
                d_slopes += tl.where(is_number, tl.sum(in_piece * ratio), 0.0)
                d_intercepts += tl.where(is_number, tl.sum(in_piece), 0.0)
            dz *= slope * g
        total += dz
    program = (tl.program_id(2) * H + head) * tl.num_programs(0) + tl.program_id(0)
    program = program.to(tl.int64)
    columns = N - 1 + r[:, None] - r[None, :]
    tl.store(SUMS + program * 2 * N * N + r[:, None] * 2 * N + columns, total)
    if kind == PIECEWISE_LINEAR:
        D_PIECES += program * 2 * NUM_PIECES
        tl.store(D_PIECES + tl.arange(0, NUM_PIECES), d_slopes)
        tl.store(D_PIECES + NUM_PIECES + tl.arange(0, NUM_PIECES), d_intercepts)
