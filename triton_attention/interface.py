"""fused_attention: attention with a bias by the Triton kernels.

bias = Bias("decay", s_i=s, g=g, s_j=s)                  # or bias_from_encoding(...)
y = fused_attention(q, k, v, bias, scale=D**-0.5)        # causal; q, k, v (B, H, T, D)
"""

import torch
from torch import Tensor

from errors import InputError
from triton_attention import operators, tile_skipping
from triton_attention.bias import KINDS, Bias, bias_from_encoding
from triton_attention.kernels import INTERPRETED

__all__ = ["Bias", "bias_from_encoding", "fused_attention"]

MIN_HEAD_DIM, MAX_HEAD_DIM = 16, 128
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

    q: (B, H, T, D), bf16, f16 or f32; the queries are the last T of S tokens.
    k, v: (B, G, S, D), G a divisor of H: consecutive heads share them.
    bias: its gradients with respect to a table need T = S.
    scale: factor of the logits, usually D**-0.5.
    causal, window_size: see attention.MaskSpec.
    skip_tolerance: fraction of a row's weight that may be skipped, where a
        decay makes distant keys negligible; 0: none.
    packed_qkv: see attention.attend.
    Returns (B, H, T, D) in the dtype of q, in memory (B, T, H, D).
    Raises InputError for arguments that the kernels do not support.
    """
    _check(q, k, bias, causal)
    B, H, T, D = q.shape
    S = k.size(2)
    unused = q.new_empty(0, dtype=torch.float32)
    s_i, g, s_j = bias.expand_features(B, H, T, S, unused)
    table = unused if bias.table is None else bias.table.float().expand(H, -1).contiguous()
    pieces = unused if bias.pieces is None else bias.pieces.float().contiguous()
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    kept = q.new_empty(0, dtype=torch.int32)
    if window_size is None and bias.kind == "decay" and skip_tolerance > 0:
        kept = tile_skipping.kept_tiles(q, k, s_i, g, s_j, scale, causal, skip_tolerance)
    if packed_qkv is not None and T == S:
        q, k, v = packed_qkv.unflatten(-1, (3, H, D)), q.new_empty(0), q.new_empty(0)
    kind, window = KINDS.index(bias.kind), window_size or operators.NO_WINDOW
    inputs = q, k, v, s_i, g, s_j, table, pieces, kept
    return torch.ops.posenc.attention(*inputs, kind, scale, causal, window)[0]


def _check(q: Tensor, k: Tensor, bias: Bias, causal: bool) -> None:
    """Raise InputError for arguments that the kernels do not support."""
    B, H, T, D = q.shape
    S = k.size(2)
    if not (q.is_cuda or INTERPRETED.value):
        raise InputError(
            f"attention: triton needs a GPU, not {q.device}, or TRITON_INTERPRET=1, which is slow: "
            "use auto"
        )
    if not MIN_HEAD_DIM <= D <= MAX_HEAD_DIM:
        raise InputError(
            f"attention: triton supports head dimensions from {MIN_HEAD_DIM} to {MAX_HEAD_DIM}, "
            f"not {D}: use dense"
        )
    if B * H > MAX_HEADS:
        raise InputError(
            f"attention: triton supports at most {MAX_HEADS:,} heads of all sequences together, "
            f"not {B * H:,}: use a smaller batch, or dense"
        )
    if q.dtype not in DTYPES:
        raise InputError(f"attention: triton does not support {q.dtype}: use dense")
    if T > S:
        raise InputError(f"attention: {T} queries but only {S} keys: pass a key for each query")
    if bias.pieces is not None and bias.pieces.size(-1) > operators.MAX_PIECES:
        raise InputError(
            f"attention: triton supports at most {operators.MAX_PIECES - 1:,} units in FIRE's "
            "network: use dense"
        )
    if bias.table is None:
        return
    if T != S and bias.table.requires_grad and torch.is_grad_enabled():
        raise InputError(
            "attention: gradients of a distance bias need as many queries as keys: use dense"
        )
    wrong_length = bias.table.size(-1) != 2 * S - 1
    if not causal and (wrong_length or (bias.kind == "piecewise-linear" and T != S)):
        raise InputError(
            f"attention: a bidirectional distance bias needs {2 * S - 1} numbers, from distance "
            f"{1 - S} on, and FIRE's as many queries as keys: use dense"
        )
