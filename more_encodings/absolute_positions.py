"""Absolute positions: SHAPE, CAPE (random in training) and DIET-ABS (bias).

In evaluation mode SHAPE and CAPE are `sinusoidal`. Random numbers are drawn per rank, so results
depend on the world size. DIET-REL is `t5-clip`.
"""

import torch
from torch import nn

from posenc import Encoding, Sinusoidal


class SHAPE(Sinusoidal):
    """`sinusoidal` at pos + s during training, s in 0..`shift` drawn for each sequence.

    Source: Kiyono et al. 2021 (SHAPE)
    """

    names = ("shape",)

    def __init__(self, heads, channels, block_size, *, shift: int = 500):
        super().__init__(heads, channels, block_size)
        self.shift = shift

    def embed(self, x, pos):
        if self.training:
            # (B, T)
            pos = pos + torch.randint(self.shift + 1, (len(x), 1), device=x.device)
        return super().embed(x, pos)


class CAPE(Sinusoidal):
    """`sinusoidal` at (pos + G + U) s during training, with random shift G, jitter U and scale s.

    Per sequence: G uniform in +-`shift`, ln s uniform in +-ln(1 + percent/100).
    Per token: U uniform in +-1/2. Positions are not centered.
    Source: Likhomanenko et al. 2021 (CAPE), section 3.1
    """

    names = ("cape",)

    def __init__(self, heads, channels, block_size, *, shift: int = 5, percent: int = 3):
        super().__init__(heads, channels, block_size)
        self.shift, self.percent = shift, percent

    def embed(self, x, pos):
        if self.training:
            # Uniform in [-1, 1), per sequence, per token, per sequence.
            shift = torch.rand(len(x), 1, device=x.device) * 2 - 1
            jitter = torch.rand(len(x), pos.size(1), device=x.device) * 2 - 1
            log_scale = torch.rand(len(x), 1, device=x.device) * 2 - 1
            scale = (1 + self.percent / 100) ** log_scale
            pos = (pos + self.shift * shift + jitter / 2) * scale  # (B, T)
        return super().embed(x, pos)


class DIETAbs(Encoding):
    """P_Q[i] P_K[j], two learnable tables per head, L rows of `rank` numbers; rank = D by default.

    Initialized to N(0, 0.02). Undefined beyond the training length.
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
        # (B|1, H, T), one per rank
        q_features = self.p_q[:, :, pos].transpose(1, 2).unbind()
        k_features = self.p_k[:, :, pos].transpose(1, 2).unbind()
        return q_features, k_features

    def bias(self, q_features, k_features, h):
        return sum(p_q * p_k for p_q, p_k in zip(q_features, k_features, strict=True))

    def factors(self, q_features, k_features):
        return ((torch.stack(q_features, -1), torch.stack(k_features, -1)),)
