"""CoPE: positions that count the tokens that a query selects."""

import torch
from torch import nn

from posenc import Encoding, running_sum


class CoPE(Encoding):
    """q_i e[p_ij], p_ij = sum_{t=j..i} sigmoid(logit_it), clipped to the last row of e.

    e is a learnable table of `positions` rows, shared by all heads, zero at the start, and is
    interpolated between integers. Positions are counted from the key to a later query, so there
    is no bidirectional form.
    Source: Golovneva et al. 2024 (CoPE), section 4
    """

    names = ("cope",)
    supports_bidirectional = False

    def __init__(self, heads, channels, block_size, *, positions: int = 64):
        super().__init__(heads, channels, block_size)
        self.e = nn.Parameter(torch.zeros(positions, channels // heads))

    def logits_transform(self, logits, bias, q, d, mask):
        last = len(self.e) - 1
        gates = logits.sigmoid().masked_fill(~mask, 0)
        p = running_sum(gates.flip(-1)).flip(-1).clamp(max=last)
        products = q.to(logits.dtype) @ self.e.T.to(logits.dtype)  # (B, H, T, positions)
        # NaN in p reaches the output through lerp; as an index it must still be in range.
        below = products.gather(-1, p.floor().long().clamp(0, last))
        above = products.gather(-1, p.ceil().long().clamp(0, last))
        return torch.lerp(below, above, p - p.floor())
