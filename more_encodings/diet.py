"""DIET-ABS (Chen et al. 2021). DIET-REL is `t5-clip` in posenc.py."""

import torch
from torch import nn

from posenc import Encoding


class DIETAbs(Encoding):
    """P_Q[i] P_K[j], two learned tables of positions in each head, `rank` numbers a row: where tokens are, weighed apart from what they are
    (DIET-ABS, Chen et al. 2021, eq. 1).

    ~ N(0, 0.02); as wide as the head unless given, as theirs. Past block_size, the tables' last rows, it is undefined, as `learnable` is.
    """

    names = ("diet-abs",)

    def __init__(self, heads, channels, block_size, *, rank: int | None = None):
        super().__init__(heads, channels, block_size)
        rank = channels // heads if rank is None else rank
        self.p_q, self.p_k = (
            nn.Parameter(0.02 * torch.randn(rank, heads, block_size)) for _ in range(2)
        )
        self.max_context = block_size

    def features(self, x, pos, last=None):
        return tuple(
            table[:, None, :, pos].unbind() for table in (self.p_q, self.p_k)
        )  # of each rank (1, H, T)

    def bias(self, q_features, k_features, h):
        return sum(p_q * p_k for p_q, p_k in zip(q_features, k_features))

    def factors(self, q_features, k_features):
        return ((torch.stack(q_features, -1), torch.stack(k_features, -1)),)
