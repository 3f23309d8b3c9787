"""Sinusoidal embeddings with random positions during training: SHAPE and CAPE.

In evaluation mode both are `sinusoidal`. Random numbers are drawn per rank, so results depend on
the world size.
"""

import torch

from posenc import Sinusoidal


class SHAPE(Sinusoidal):
    """`sinusoidal` at pos + s during training, s in 0..`shift` drawn for each sequence.

    The network learns to use differences of positions, and is trained on positions beyond its
    training length.
    Source: Kiyono et al. 2021 (SHAPE)
    """

    names = ("shape",)

    def __init__(self, heads, channels, block_size, *, shift: int = 500):
        super().__init__(heads, channels, block_size)
        self.shift = shift

    def embed(self, x, pos):
        if self.training:
            pos = pos + torch.randint(self.shift + 1, (len(x), 1), device=x.device)  # (B, T)
        return super().embed(x, pos)


class CAPE(Sinusoidal):
    """`sinusoidal` at (pos + G + U) s during training, with random shift G, jitter U and scale s.

    Per sequence: G uniform in +-`shift`, ln s uniform in +-ln(1 + percent/100). Per token: U
    uniform in +-1/2, which keeps the order. Positions are not centered, as in the paper for text.
    Source: Likhomanenko et al. 2021 (CAPE), section 3.1
    """

    names = ("cape",)

    def __init__(self, heads, channels, block_size, *, shift: int = 5, percent: int = 3):
        super().__init__(heads, channels, block_size)
        self.shift, self.percent = shift, percent

    def embed(self, x, pos):
        if self.training:
            # Uniform in [-1, 1): one number per sequence, per token, per sequence.
            shift = torch.rand(len(x), 1, device=x.device) * 2 - 1
            jitter = torch.rand(len(x), len(pos), device=x.device) * 2 - 1
            log_scale = torch.rand(len(x), 1, device=x.device) * 2 - 1
            scale = (1 + self.percent / 100) ** log_scale
            pos = (pos + self.shift * shift + jitter / 2) * scale  # (B, T)
        return super().embed(x, pos)
