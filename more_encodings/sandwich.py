"""Sandwich (Chi et al. 2023) and the ALiBi variants of the same paper."""

import torch

from posenc import ALiBi, DistanceBias, angles


class Sandwich(DistanceBias):
    """(sum_i cos(d / 10000^(2i/D')) - D'/2) / h, i < D'/2, h = 8n/H, D' = 128 (Chi et al. 2023, eq. 6): inner products of sinusoidal
    embeddings, 0 at the query's own place. Nothing is learned. `dimension` is D'."""

    names = ("sandwich",)
    min_option_value = 2

    def __init__(self, heads, channels, block_size, *, dimension: int = 128):
        super().__init__(heads, channels, block_size)
        self.dimension = dimension
        self.register_buffer("h", compression_ratios(heads), persistent=False)

    def distance_bias(self, d, h):
        cosines = angles(d, self.dimension).cos()
        return ((cosines - 1).sum(-1) / self.h[h]).float()


class SandwichSmoothed(Sandwich):
    """8/h (-0.825 log(1 + d) - 0.8), h = 8n/H: the curve fitted to Sandwich at h = 8 (Chi et al. 2023, section 6.2)."""

    names = ("sandwich-smoothed",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)

    def distance_bias(self, d, h):
        return (8 / self.h[h] * (-0.825 * d.abs().double().log1p() - 0.8)).float()


class ALiBiShift(ALiBi):
    """-d 2^(-(8n/H + shift)), n = 1..H (Chi et al. 2023, section 4.1, its Delta): where H is a power of two, ALiBi with all slopes gentler,
    or steeper; elsewhere ALiBi interleaves its slopes, and this does not."""

    names = ("alibi-shift",)
    min_option_value = -8

    def __init__(self, heads, channels, block_size, *, shift: int = 2):
        super().__init__(heads, channels, block_size)
        self.set_slopes(compression_ratios(heads) + shift)


class ALiBiEqual(ALiBi):
    """-d 2^(-h), the same in all heads (Chi et al. 2023, section 4.2)."""

    names = ("alibi-equal",)
    min_option_value = -8

    def __init__(self, heads, channels, block_size, *, h: int = 2):
        super().__init__(heads, channels, block_size)
        self.set_slopes(torch.full((heads,), h, dtype=torch.float64))


def compression_ratios(heads: int) -> torch.Tensor:
    """Sandwich's h = 8n/H, n = 1..H, (H,) float64."""
    return 8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads
