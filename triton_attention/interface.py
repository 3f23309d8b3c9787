"""fused_attention: attention with a bias by the Triton kernels.

bias = "decay", {"s_i": s, "g": g, "s_j": s}             # or bias_from_encoding(...)
y = fused_attention(q, k, v, bias, scale=D**-0.5)        # causal; q, k, v (B, H, T, D)
"""

import torch
from torch import Tensor

from errors import InputError
from triton_attention import HEAD_DIMS, operators, tile_skipping
from triton_attention.bias import (
    KINDS,
    Bias,
    bias_from_encoding,
)
from triton_attention.kernels import INTERPRETED

__all__ = ["Bias", "bias_from_encoding", "fused_attention"]

MAX_HEADS = 65_535  # of all sequences: the limit of CUDA's grid in its second dimension
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Bias,
    scale: float,
    causal: bool = True,
    window_size: int | None = None,
    skip_tolerance: float = tile_skipping.TOLERANCE,
    packed_qkv: Tensor | None = None,
) -> Tensor:
    """Return softmax(q k^T scale + bias) v, differentiable in all tensors.

    q: (B, H, T, D), bf16, f16 or f32; the queries are the last T of S
    tokens.
    k, v: (B, G, S, D), G a divisor of H: consecutive heads share them.
    bias: see bias.py; its gradients with respect to a table need T = S.
    scale: factor of the logits, usually D**-0.5.
    causal, window_size: see attention.MaskSpec.
    skip_tolerance: fraction of a row's weight that may be skipped,
        where a decay makes distant keys negligible; 0: none.
    packed_qkv: see attention.biased_attention.
    Returns (B, H, T, D) in the dtype of q, in memory (B, T, H, D).
    Raises InputError for arguments that the kernels do not support.
    """
    kind, numbers = bias
    table, pieces = numbers.get("table"), numbers.get("pieces")
    _check(q, k, table, pieces, causal)
    B, H, T, D = q.shape
    S = k.size(2)
    unused = q.new_empty(0, dtype=torch.float32)
    s_i, g, s_j = (
        numbers[name].float().expand(B, H, count) if name in numbers else unused
        for name, count in (("s_i", T), ("g", T), ("s_j", S))
    )
    table = unused if table is None else table.float().expand(H, -1).contiguous()
    pieces = unused if pieces is None else pieces.float().contiguous()
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    kept = q.new_empty(0, dtype=torch.int32)
    if window_size is None and kind == "decay" and skip_tolerance > 0:
        kept = tile_skipping.kept_tiles(q, k, s_i, g, s_j, scale, causal, skip_tolerance)
    if packed_qkv is not None and T == S:
        q, k, v = packed_qkv.unflatten(-1, (3, H, D)), q.new_empty(0), q.new_empty(0)
    window = window_size or operators.NO_WINDOW
    index = KINDS.index(kind)
    y, _ = torch.ops.posenc.attention(
        q, k, v, s_i, g, s_j, table, pieces, kept, index, scale, causal, window
    )
    return y


def _check(q, k, table: Tensor | None, pieces: Tensor | None, causal: bool) -> None:
    """Raise InputError for arguments that the kernels do not support."""
    B, H, T, D = q.shape
    S = k.size(2)
    is_on_gpu = q.is_cuda or INTERPRETED.value
    _require(is_on_gpu, "a GPU, not {}, or TRITON_INTERPRET=1, which is slow", q.device)
    heads = "at most {:,} heads of all sequences together, not {:,}"
    _require(B * H <= MAX_HEADS, heads, MAX_HEADS, B * H)
    head_dims = "head dimensions from {} to {}, not {}"
    _require(D in HEAD_DIMS, head_dims, HEAD_DIMS[0], HEAD_DIMS[-1], D)
    _require(q.dtype in DTYPES, "bfloat16, float16 or float32, not {}", q.dtype)
    _require(T <= S, "a key for each query, not {} queries and {} keys", T, S)
    if pieces is not None:
        limit, count = operators.MAX_PIECES - 1, pieces.size(-1) - 1
        _require(count <= limit, "at most {:,} units in FIRE's network", limit)
        _require(causal, "causal attention for FIRE")
    if table is not None:
        learns = table.requires_grad and torch.is_grad_enabled()
        _require(T == S or not learns, "as many queries as keys for the gradient of a table")
        length = "{} numbers in the table of a bidirectional bias"
        _require(causal or table.size(-1) == 2 * S - 1, length, 2 * S - 1)


def _require(is_met: bool, need: str, *values) -> None:
    """Raise InputError unless a need of the kernels is met."""
    if not is_met:  # formatted only here: torch.compile traces the rest
        raise InputError(f"attention: triton needs {need.format(*values)}: use dense")
