"""A learned switch per head of RoPE and ALiBi: does training leave heads without position?"""

import torch
from torch import nn

from posenc import ALiBi, frequencies


class RoPEALiBiSwitch(ALiBi):
    """RoPE with the angles w_h pos 10000^(-2n/D) and the bias -w_h m_h d, w_h = sigmoid(8 s_h).

    m are ALiBi's slopes. s, the switch, is learnable, one number per
    head, 0 at the start. A head with w = 1 has both encodings, as in
    `rope+alibi`; a head with w = 0 has no position.
    """

    names = ("rope-alibi-switch",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.s = nn.Parameter(torch.zeros(heads))

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        w = (8 * self.s).sigmoid().double()[:, None]  # (H, 1)
        # In float64: sines of distant positions need the digits.
        angle = pos.double()[:, None, None] * (
            w * frequencies(q.size(-1), 10_000, q.device)
        )
        dtype = torch.promote_types(q.dtype, torch.float32)
        sin, cos = angle.sin().to(dtype), angle.cos().to(dtype)  # (T, H, D/2)

        def rotate_pairs(x):
            a, b = x.transpose(1, 2).to(dtype).chunk(2, -1)  # (B, T, H, D/2)
            rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
            return rotated.to(x.dtype).transpose(1, 2)

        return rotate_pairs(q), rotate_pairs(k)

    def features(self, x, pos, previous=None):
        (position, slopes), k_features = super().features(x, pos, previous)
        return (position, slopes * (8 * self.s).sigmoid()[:, None]), k_features
