"""Sinusoidal embeddings with random positions during training: SHAPE and CAPE."""

import torch

from posenc import Sinusoidal


class SHAPE(Sinusoidal):
    """`sinusoidal` with positions shifted, while it trains, by a number from 0 to `shift` drawn for each sequence (Kiyono et al. 2021): the
    network cannot but go by differences, and comes to know positions beyond its training length."""

    names = ("shape",)

    def __init__(self, heads, channels, block_size, *, shift: int = 500):
        super().__init__(heads, channels, block_size)
        self.shift = shift

    def embed(self, x, pos):
        if self.training:
            pos = pos + torch.randint(self.shift + 1, (len(x), 1), device=x.device)  # (B, T)
        return super().embed(x, pos)


class CAPE(Sinusoidal):
    """`sinusoidal` with positions (pos + G + U) s while it trains: for each sequence G uniform in +-`shift` and ln s in +-ln(1 +
    percent/100), for each token U in +-1/2, which keeps the order (Likhomanenko et al. 2021, section 3.1, as for text: not centred)."""

    names = ("cape",)

    def __init__(self, heads, channels, block_size, *, shift: int = 5, percent: int = 3):
        super().__init__(heads, channels, block_size)
        self.shift, self.percent = shift, percent

    def embed(self, x, pos):
        if self.training:
            shift, jitter, stretch = (
                torch.rand(len(x), n, device=x.device) * 2 - 1 for n in (1, len(pos), 1)
            )
            pos = (pos + self.shift * shift + jitter / 2) * (
                1 + self.percent / 100
            ) ** stretch  # (B, T)
        return super().embed(x, pos)
