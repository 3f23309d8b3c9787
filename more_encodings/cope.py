"""CoPE (Golovneva et al. 2024): contextual positions."""

import torch
from torch import nn

from posenc import Encoding, running_sum


class CoPE(Encoding):
    """q_i e[p_ij], p_ij = sum_{t=j..i} sigmoid(logit_it) clipped to the last row of e, which is interpolated between whole numbers
    (Golovneva et al. 2024, section 4): positions that count the tokens which the query asks for.

    Learned: e, `positions` rows, one table for all heads, zero at the start. It counts from the key to a query after it.
    """

    names = ("cope",)
    supports_bidirectional = False

    def __init__(self, heads, channels, block_size, *, positions: int = 64):
        super().__init__(heads, channels, block_size)
        self.e = nn.Parameter(torch.zeros(positions, channels // heads))

    def logits_transform(self, logits, bias, q, d, mask):
        gates = logits.sigmoid().masked_fill(~mask, 0)
        p = running_sum(gates.flip(-1)).flip(-1).clamp(max=len(self.e) - 1)
        of_rows = q.to(logits.dtype) @ self.e.T.to(logits.dtype)  # (B, H, T, positions)
        last = len(self.e) - 1  # clamped for the sake of a NaN, which goes on to the output by p
        below, above = (
            of_rows.gather(-1, end.long().clamp(0, last)) for end in (p.floor(), p.ceil())
        )
        return torch.lerp(below, above, p - p.floor())
