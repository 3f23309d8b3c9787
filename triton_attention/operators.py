"""PyTorch operators of the Triton kernels: posenc::attention and its backward.

`interface.fused_attention` checks the arguments.

Arguments, as tensors without data where a kind of bias does not use them:

    q, k, v        (B, H, T, D) and (B, G, S, D); or q packed (B, T, 3, H, D), and k, v empty
    s_i, g, s_j    (B, H, T), (B, H, T), (B, H, S), float32
    table, pieces  (H, N) and (H, 3, K), float32; see bias.py
    kept           what tile_skipping.kept_tiles returned, int32; empty: no tile is skipped
    kind           index into bias.KINDS
    window_size    in tokens; NO_WINDOW: all
"""

import contextlib

import torch
import triton
from torch import Tensor
from torch.nn import functional as F
from triton.runtime.errors import OutOfResources

from errors import InputError
from operators.elementary import register
from triton_attention import kernels, tile_sizes
from triton_attention.bias import KINDS

NO_WINDOW = 2**30  # tokens
MAX_PIECES = 1_024  # what kernels._find_piece bisects
# Sequences whose gradients by distance one program adds up.
SEQUENCES = 8


def _attention(q, k, v, s_i, g, s_j, table, pieces, kept, kind, scale, causal, window_size):
    """Return output (B, H, T, D) and log-sum-exp (B, H, T) in base 2."""
    q, k, v = _unpack(q, k, v)
    inputs = q, k, v, s_i, g, s_j, table, pieces
    y, lse = _attention_fake(q, k, v)
    sizes, strides = _sizes_and_strides(*inputs)
    settings = kernel_settings("forward", q, k, pieces, kind, causal, window_size)
    settings |= {"skips_tiles": kept.numel() > 0, "SKIP_KEYS": settings["N"]}
    grid = triton.cdiv(q.size(2), settings["M"]), q.size(0) * q.size(1)
    numbers = scale, *sizes, window_size, *strides
    with _device_of(q):
        _launch(kernels.attention_forward, grid, *inputs, kept, y, lse, *numbers, **settings)
    return y, lse


def _attention_fake(q, k, v, *inputs):
    q, _, _ = _unpack(q, k, v)
    return _empty_heads_last(q), q.new_empty(q.shape[:3], dtype=torch.float32)


def _attention_backward(dy, y, lse, q, k, v, s_i, g, s_j, table, pieces, kept, *settings):
    """Return the gradients of q, k, v, s_i, g, s_j, table and pieces, or empty ones.

    settings end with s_learns, g_learns and table_learns (of table or pieces).
    """
    inputs = q, k, v, s_i, g, s_j, table, pieces
    grads = _attention_backward_fake(dy, y, lse, *inputs, kept, *settings)
    with _device_of(q):
        _launch_backward(grads, dy, y, lse, (*_unpack(q, k, v), *inputs[3:]), kept, settings)
    return grads


def _launch(kernel, grid: tuple[int, ...], *arguments, **settings) -> None:
    """Launch a kernel, untyped: Triton's types do not describe a launch."""
    kernel[grid](*arguments, **settings)


def _launch_backward(grads, dy, y, lse, inputs, kept, settings):
    """Write the non-empty gradients; inputs, grads: of q, k, ..., pieces."""
    kind, scale, causal, window_size, s_learns, g_learns, table_learns = settings
    q, k, v, s_i, g, s_j, table, pieces = inputs
    dq, dk, dv = _unpack(*grads[:3])
    ds_i, dg, ds_j, d_table, d_pieces = grads[3:]
    delta = torch.empty_like(lse)
    B = q.size(0)
    (H, T, S, num_distances), strides = _sizes_and_strides(*inputs)
    strides += dy.stride()[:3]
    call = q, k, pieces, kind, causal, window_size
    M, N, *_ = tile_sizes.select(KINDS[kind], q.size(-1), q.dtype)["forward"]
    common = {"s_learns": s_learns, "g_learns": g_learns}
    common |= {"skips_tiles": kept.numel() > 0, "SKIP_KEYS": N}
    rows = kernel_settings("rows", *call) | common
    columns = kernel_settings("columns", *call) | common | {"SKIP_QUERIES": M}
    numbers = scale, H, T, S, num_distances, window_size, dq.stride(2), *strides
    grid = triton.cdiv(T, rows["M"]), B * H
    tensors = *inputs, kept, y, dy, lse, delta, dq, ds_i, dg
    _launch(kernels.attention_backward_rows, grid, *tensors, *numbers, **rows)
    grid = triton.cdiv(S, columns["N"]), B * H
    by_head = dk, dv
    if k.size(1) != H:  # each head has a gradient of its own, which are added in float32
        by_head = tuple(dk.new_empty(B, S, H, q.size(-1), dtype=torch.float32) for _ in by_head)
    tensors = *inputs, kept, dy, lse, delta, *by_head, ds_j
    _launch(kernels.attention_backward_columns, grid, *tensors, *numbers, **columns)
    if k.size(1) != H:
        for grad, heads in zip((dk, dv), by_head, strict=True):
            grad.copy_(heads.unflatten(2, (k.size(1), -1)).sum(3).transpose(1, 2))
    if table_learns:
        distance_settings = kernel_settings("distances", *call)
        distance_tensors = q, k, v, g, table, pieces, dy, lse, delta
        # of q, k, v; g without its batch; dy
        distance_strides = strides[:9] + strides[13:15] + strides[18:]
        _launch_distances(
            d_table,
            d_pieces,
            distance_tensors,
            scale,
            window_size,
            distance_strides,
            distance_settings,
        )


def _launch_distances(d_table, d_pieces, tensors, scale, window_size, strides, settings):
    """Write the gradients of table and pieces."""
    dy = tensors[6]
    B, H, T, _ = dy.shape
    N = settings.pop("M")  # its tiles are square
    offsets = triton.cdiv(T, N)
    if not settings["causal"]:
        offsets = 2 * offsets - 1
    parts = triton.cdiv(B, SEQUENCES)
    sums = dy.new_zeros(parts, H, offsets, N, 2 * N, dtype=torch.float32)
    piece_sums = dy.new_zeros(parts, H, offsets, 2, settings["NUM_PIECES"], dtype=torch.float32)
    kernel = kernels.attention_backward_distances
    numbers = scale, B, H, T, d_table.size(-1), window_size, *strides
    outputs, settings["SEQUENCES"] = (sums, piece_sums), SEQUENCES
    _launch(kernel, (offsets, H, parts), *tensors, *outputs, *numbers, **settings)
    by_distance = _sum_diagonals(sums.sum((0, 3)), T, settings["causal"])
    d_table[:, : by_distance.size(1)] = by_distance
    if d_pieces.numel():
        d_pieces[:, 1:] = piece_sums.sum((0, 2))


def _attention_backward_fake(dy, y, lse, q, k, v, s_i, g, s_j, table, pieces, kept, *settings):
    kind, _, causal, _, s_learns, g_learns, table_learns = settings
    # The condition of kernels.attention_backward_rows, which fills ds_i.
    s_i_learns = s_learns and (not causal or KINDS[kind] == "log-decay")
    if q.dim() == 4:
        qkv_grads = tuple(_empty_heads_last(x) for x in (q, k, v))
    else:
        qkv_grads = tuple(x.new_empty(x.shape) for x in (q, k, v))
    return (
        *qkv_grads,
        s_i.new_empty(s_i.shape if s_i_learns else 0),
        g.new_empty(g.shape if g_learns else 0),
        s_j.new_empty(s_j.shape if s_learns else 0),
        table.new_zeros(table.shape if table_learns else 0),
        pieces.new_zeros(pieces.shape if table_learns else 0),
    )


def _save(ctx, inputs, output):
    *tensors, ctx.kind, ctx.scale, ctx.causal, ctx.window_size = inputs
    ctx.save_for_backward(*tensors, *output)


def _backward(ctx, dy, _):
    *inputs, y, lse = ctx.saved_tensors
    dy = dy if dy.stride(-1) == 1 else dy.contiguous()
    _, _, _, s_i, g, s_j, table, pieces, *_ = ctx.needs_input_grad
    settings = ctx.kind, ctx.scale, ctx.causal, ctx.window_size
    learns = s_i or s_j, g, table or pieces
    grads = torch.ops.posenc.attention_backward(dy, y, lse, *inputs, *settings, *learns)
    # kept, kind, scale, causal and window_size have no gradients.
    return *(x if x.numel() else None for x in grads), None, None, None, None, None


INPUTS = "Tensor q, Tensor k, Tensor v, Tensor s_i, Tensor g, Tensor s_j, Tensor table, "
INPUTS += "Tensor pieces, Tensor kept, SymInt kind, float scale, bool causal, "
INPUTS += "SymInt window_size"
schema = f"(Tensor dy, Tensor y, Tensor lse, {INPUTS}, bool s_learns, bool g_learns, "
schema += f"bool table_learns) -> ({', '.join(8 * ['Tensor'])})"
register("attention_backward", schema, _attention_backward, _attention_backward_fake)
schema = f"({INPUTS}) -> (Tensor, Tensor)"
register("attention", schema, _attention, _attention_fake, _backward, _save)


def _unpack(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v (B, H, T, D), also of a packed q (B, T, 3, H, D)."""
    if q.dim() == 5:
        q, k, v = q.transpose(1, 3).unbind(2)
    return q, k, v


def _sizes_and_strides(q, k, v, s_i, g, s_j, table, pieces):
    """Return H, T, S, the table's length, and strides, 0 of empty tensors."""
    sizes = q.size(1), q.size(2), k.size(2), table.size(-1)
    strides = ()
    for x in (q, k, v, s_i, g, s_j):
        strides += x.stride()[:3] if x.numel() else (0, 0, 0)
    return sizes, strides


def kernel_settings(kernel, q, k, pieces, kind, causal, window_size):
    """Return the compile-time settings of one of the four kernels."""
    M, N, warps, stages = tile_sizes.select(KINDS[kind], q.size(-1), q.dtype)[kernel]
    return {
        "kind": kind,
        "causal": causal,
        "windowed": window_size < NO_WINDOW,
        "NUM_PIECES": max(1, pieces.size(-1)),
        "D": q.size(-1),
        "D_TILE": triton.next_power_of_2(q.size(-1)),
        "M": M,
        "N": N,
        "SHARED": q.size(1) // k.size(1),
        "precision": "ieee" if q.dtype == torch.float32 else "tf32",
        "num_warps": warps,
        "num_stages": stages,
        "enable_fp_fusion": True,
    }


def _empty_heads_last(x: Tensor) -> Tensor:
    """Return an empty (B, H, T, D), in memory (B, T, H, D) as in layers."""
    return x.new_empty(x.transpose(1, 2).shape).transpose(1, 2)


@contextlib.contextmanager
def _device_of(q: Tensor):
    """Make q's GPU current; InputError if a program needs more than it has."""
    try:
        with torch.cuda.device_of(q):
            yield
    except OutOfResources as error:
        raise InputError(
            f"attention: this GPU is too small for triton's tiles ({error}): use auto or dense"
        ) from None


def _sum_diagonals(sums: Tensor, T: int, causal: bool) -> Tensor:
    """Return gradients (H, T | 2 T - 1) of distances from (H, offsets, 2 N)."""
    offsets, N = sums.size(1), sums.size(-1) // 2
    # A tile's last N distances belong to the next tile, too.
    near, far = sums.split(N, -1)
    lines = F.pad(near, (0, 0, 0, 1)) + F.pad(far, (0, 0, 1, 0))  # (H, offsets + 1, N)
    by_distance = lines.flatten(1)
    if causal:
        zero = N - 1  # index of distance 0
        return by_distance[:, zero : zero + T]
    zero = (offsets // 2 + 1) * N - 1
    return by_distance[:, zero - T + 1 : zero + T]
