"""PoPE, and RoPE with a decay of its pairs (xPos)."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from posenc import Encoding, RoPE, sin_cos


class PoPE(Encoding):
    """sum_n softplus(q_n) softplus(k_n) cos((i - j) base^(-n/D) - delta_n), n < D.

    delta: learnable per head, within [-2 pi, 0], 0 at the start, added to the key's angle. Each
    column becomes a sine and a cosine, so queries and keys are twice as wide as values.
    Source: Gopalakrishnan et al. 2025 (PoPE), arXiv 2509.10534
    """

    names = ("pope",)
    changes_width = True
    needs_head_dimension = True

    def __init__(self, heads, channels, block_size, *, base: int = 10_000):
        super().__init__(heads, channels, block_size)
        self.base = base
        self.delta = nn.Parameter(torch.zeros(heads, 1, channels // heads))

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        width = q.size(-1)
        n = torch.arange(width, dtype=torch.float64, device=pos.device)
        dtype = torch.promote_types(q.dtype, torch.float32)
        angle = pos.double()[:, None] * self.base ** (-n / width)
        sin, cos = sin_cos(angle, 1.0, dtype)  # (T, D)
        q_length, k_length = F.softplus(q.to(dtype)), F.softplus(k.to(dtype))
        wide_q = torch.cat([q_length * cos, q_length * sin], -1)
        sin_d, cos_d = self.delta.to(dtype).sin(), self.delta.to(dtype).cos()  # (H, 1, D)
        cos_k, sin_k = cos * cos_d - sin * sin_d, sin * cos_d + cos * sin_d  # (H, T, D)
        wide_k = torch.cat([k_length * cos_k, k_length * sin_k], -1)
        return wide_q.to(q.dtype), wide_k.to(k.dtype)

    @torch.no_grad()
    def clamp_parameters_(self):
        self.delta.clamp_(min=-2 * math.pi, max=0)


class XPos(RoPE):
    """`rope` whose pair n decays by zeta_n^(d/512), zeta_n = (2n/D + 0.4) / 1.4, n < D/2.

    Queries are multiplied by zeta^(pos/512), keys by zeta^(-pos/512), which float32 holds up to
    32,768 positions; longer texts are refused.
    Source: Sun et al. 2022 (xPos), arXiv 2212.10554
    """

    names = ("xpos",)

    def __init__(self, heads, channels, block_size, *, base: int = 10_000):
        super().__init__(heads, channels, block_size, base=base)
        self.max_context = 32_768

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        rotated_q, rotated_k = super().rotate(q, k, pos)
        width = q.size(-1)
        n = torch.arange(width // 2, dtype=torch.float64, device=pos.device)
        zeta = ((2 * n / width + 0.4) / 1.4).repeat(2)  # (D,)
        scale = zeta ** (pos.double()[:, None] / 512)  # (T, D)
        dtype = torch.promote_types(q.dtype, torch.float32)
        scaled_q, scaled_k = rotated_q.to(dtype) * scale.to(dtype), rotated_k.to(dtype) / scale
        return scaled_q.to(q.dtype), scaled_k.to(k.dtype)
