"""my_fade.py: each key chooses how fast it fades, between not at all and twice ALiBi's slope."""

import torch
from torch import nn

from posenc import Encoding


class Fade(Encoding):
    """-2 m_h sigmoid(x_j w_h + c_h) d, m_h learnable slopes from ALiBi's on, d the distance."""

    names = ("fade",)
    supports_bidirectional = False  # the factors hold for earlier keys only

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        # log2 of the slopes
        self.log_m = nn.Parameter(-8 * torch.arange(1, heads + 1) / heads)
        self.rate = nn.Linear(channels, heads)  # w, c

    def features(self, x, pos, previous=None):
        p = pos.to(x.dtype)[None, None]  # (1, 1, T)
        slope = 2 * self.log_m.exp2() * self.rate(x).sigmoid()  # of each key, (B, T, H)
        return (p,), (p, slope.mT)

    def bias(self, q_features, k_features, h):
        return -k_features[1] * (q_features[0] - k_features[0])

    def factors(self, q_features, k_features):
        (i,), (j, slope) = q_features, k_features
        center = i[..., i.size(-1) // 2, None]
        return (i - center, -slope), (torch.ones_like(i), slope * (j - center))
