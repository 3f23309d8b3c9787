"""Sandwich, and the variants of ALiBi from the same paper."""

import torch
from torch import Tensor

from posenc import ALiBi, DistanceBias, frequencies


class Sandwich(DistanceBias):
    """(sum_n cos(d / 10000^(2n/D')) - D'/2) / h, n < D'/2, h = 8m/H for head m = 1..H.

    Products of sinusoids of dimension D' (`dimension`), shifted to 0 at d = 0.
    Source: Chi et al. 2023 (Sandwich), eq. 6
    """

    names = ("sandwich",)
    min_option_value = 2
    h: Tensor  # (H,)

    def __init__(self, heads, channels, block_size, *, dimension: int = 128):
        super().__init__(heads, channels, block_size)
        self.dimension = dimension
        self.register_buffer("h", compression_ratios(heads), persistent=False)

    def distance_bias(self, d, h):
        angles = d.double()[..., None] * frequencies(self.dimension, 10_000, d.device)
        return ((angles.cos() - 1).sum(-1) / self.h[h]).to(d.dtype)


class SandwichSmoothed(Sandwich):
    """8/h (-0.825 log(1 + d) - 0.8), h = 8m/H for head m = 1..H: a fit to Sandwich at h = 8.

    Source: Chi et al. 2023 (Sandwich), section 6.2
    """

    names = ("sandwich-smoothed",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)

    def distance_bias(self, d, h):
        return (8 / self.h[h] * (-0.825 * d.abs().double().log1p() - 0.8)).to(d.dtype)


class ALiBiShift(ALiBi):
    """-d 2^(-(8m/H + shift)) for head m = 1..H: ALiBi with smaller or larger slopes.

    A positive `shift` makes slopes smaller. They are never interleaved.
    Source: Chi et al. 2023 (Sandwich), section 4.1 (shift is Delta there)
    """

    names = ("alibi-shift",)
    min_option_value = -8

    def __init__(self, heads, channels, block_size, *, shift: int = 2):
        super().__init__(heads, channels, block_size)
        self.set_slopes(compression_ratios(heads) + shift)


class ALiBiEqual(ALiBi):
    """-d 2^(-h), the same slope in all heads.

    Source: Chi et al. 2023 (Sandwich), section 4.2
    """

    names = ("alibi-equal",)
    min_option_value = -8

    def __init__(self, heads, channels, block_size, *, h: int = 2):
        super().__init__(heads, channels, block_size)
        self.set_slopes(torch.full((heads,), h, dtype=torch.float64))


def compression_ratios(heads: int) -> Tensor:
    """Return Sandwich's h = 8m/H, m = 1..H: (H,) float64."""
    return 8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads
