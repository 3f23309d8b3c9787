"""DIET-ABS: absolute positions as a bias between two learnable tables.

DIET-REL, from the same paper, is `t5-clip` in posenc.py.
"""

import torch
from torch import nn

from posenc import Encoding


class DIETAbs(Encoding):
    """P_Q[i] P_K[j], two learnable tables per head, L rows of `rank` numbers; rank = D by default.

    Initialized to N(0, 0.02). Undefined beyond the training length, like `learnable`.
    Source: Chen et al. 2021 (DIET), eq. 1
    """

    names = ("diet-abs",)

    def __init__(self, heads, channels, block_size, *, rank: int | None = None):
        super().__init__(heads, channels, block_size)
        rank = channels // heads if rank is None else rank
        self.p_q = nn.Parameter(0.02 * torch.randn(rank, heads, block_size))
        self.p_k = nn.Parameter(0.02 * torch.randn(rank, heads, block_size))
        self.max_context = block_size

    def features(self, x, pos, previous=None):
        q_features = self.p_q[:, None, :, pos].unbind()  # (1, H, T), one per rank
        k_features = self.p_k[:, None, :, pos].unbind()
        return q_features, k_features

    def bias(self, q_features, k_features, h):
        return sum(p_q * p_k for p_q, p_k in zip(q_features, k_features, strict=True))

    def factors(self, q_features, k_features):
        return ((torch.stack(q_features, -1), torch.stack(k_features, -1)),)
