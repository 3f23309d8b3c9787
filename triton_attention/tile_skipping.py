"""Tile skipping: which tiles of keys cannot matter to a tile of queries.

The kernels skip tiles of keys from the left, and in bidirectional attention also from the right,
that together hold at most `skip_tolerance` of every row's weight. The proof needs no logits: a
weight is at most exp(|q| |k| scale + the largest bias in the tile), and the sum of a row is at
least the weight of the query's own key, whose bias is 0.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from operators.elementary import repeat_heads
from posenc import running_sum
from triton_attention import tile_sizes

TOLERANCE = 2.0**-24  # of a row's weight: below float32's precision


@torch.no_grad()
def kept_tiles(
    q: Tensor,
    k: Tensor,
    s_i: Tensor,
    g: Tensor,
    s_j: Tensor,
    scale: float,
    causal: bool,
    tolerance: float,
) -> Tensor:
    """Return which tiles of keys each tile of queries has to read.

    Others hold at most `tolerance` of every row's weight; half of it on each side if not causal.

    q: (B, H, T, D). k: (B, G, S, D). s_i, g: (B, H, T). s_j: (B, H, S).
    Returns (1 or 2, B, H, tiles of queries), int32: the first tile of keys and, if not causal, the
    one after the last.
    """
    M, N, *_ = tile_sizes.select("decay", q.size(-1), q.dtype)["forward"]
    T, S = q.size(2), k.size(2)
    k = repeat_heads(k, q.size(1))
    own_logits = (q.float() * k[:, :, S - T :].float()).sum(-1) * scale
    tolerance_per_side = tolerance if causal else tolerance / 2
    # (B, H, 1, tiles of keys) each
    min_s_j = _tile_min(s_j, N)[:, :, None]
    max_s_j = _tile_max(s_j, N)[:, :, None]
    max_k_norm = _tile_max(k.float().norm(dim=-1), N)[:, :, None]
    # (B, H, tiles of queries) each
    per_query_tile = (
        _tile_min(s_i, M),
        _tile_max(s_i, M),
        _tile_min(g, M),
        _tile_max(g, M),
        _tile_max(q.float().norm(dim=-1), M),
        _tile_min(own_logits, M),
    )
    tile_count = per_query_tile[0].size(-1)
    kept = []
    # Chunks of rows bound the memory, quadratic in the number of tiles.
    for rows in torch.arange(tile_count, device=q.device).split(256):
        parts = [x[:, :, rows, None] for x in per_query_tile]
        min_s_i, max_s_i, min_g, max_g, max_q_norm, min_own = parts
        max_difference = max_s_i - min_s_j
        if not causal:
            max_difference = max_difference.minimum(max_s_j - min_s_i).clamp(max=0)
        max_bias = torch.where(max_difference < 0, min_g, max_g) * max_difference
        # Upper bound on a tile's fraction of the row's weight. On the diagonal it is at least N: no
        # side is skipped past it.
        weight = N * (max_q_norm * max_k_norm * scale + max_bias - min_own).exp()
        kept.append(_count_kept(weight, tolerance_per_side, causal))
    return torch.cat(kept, -1)


def _count_kept(weight: Tensor, tolerance: float, causal: bool) -> Tensor:
    """Return the range (1 or 2, B, H, rows), weight (B, H, rows, tiles)."""
    skipped_left = (running_sum(weight) <= tolerance).sum(-1, dtype=torch.int32)
    if causal:
        return skipped_left[None]
    skipped_right = (running_sum(weight.flip(-1)) <= tolerance).sum(-1, dtype=torch.int32)
    return torch.stack([skipped_left, weight.size(-1) - skipped_right])


def _tile_max(x: Tensor, size: int) -> Tensor:
    """Return the maximum of each tile: (B, H, n) -> (B, H, tiles)."""
    padded = F.pad(x, (0, -x.size(-1) % size), value=-torch.inf)
    return padded.unflatten(-1, (-1, size)).amax(-1)


def _tile_min(x: Tensor, size: int) -> Tensor:
    return -_tile_max(-x, size)
