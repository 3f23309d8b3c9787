"""RoPE with other frequencies: p-RoPE, position interpolation, NTK-aware, YaRN."""

import math

import torch

from posenc import RoPE, frequencies


class PRoPE(RoPE):
    """RoPE of the fastest pairs alone, `percent` of them; the others do not turn: they carry meaning, whatever the distance (p-RoPE of
    Barbero et al. 2025)."""

    names = ("p-rope",)

    def __init__(self, heads, channels, block_size, *, percent: int = 75, base: int = 10_000):
        super().__init__(heads, channels, block_size, base=base)
        self.percent = percent

    def frequencies(self, width, device):
        turning = torch.arange(width // 2, device=device) < width // 2 * self.percent // 100
        return super().frequencies(width, device) * turning


class PositionInterpolation(RoPE):
    """RoPE with positions `factor` times as close together, for texts as many times as long as those trained on (Chen et al. 2023,
    eq. 4)."""

    names = ("rope-pi",)

    def __init__(self, heads, channels, block_size, *, factor: int = 4, base: int = 10_000):
        super().__init__(heads, channels, block_size, base=base)
        self.factor = factor

    def frequencies(self, width, device):
        return super().frequencies(width, device) / self.factor


class NTKAware(PositionInterpolation):
    """RoPE with the base times factor^(D/(D-2)): the slowest pair turns as with `rope-pi`, the fastest as ever, so that neighbours stay
    apart (Peng et al. 2024, section 3.1)."""

    names = ("rope-ntk",)

    def frequencies(self, width, device):
        return frequencies(width, self.base * self.factor ** (width / max(1, width - 2)), device)


class YaRN(PositionInterpolation):
    """RoPE for texts `factor` times as long: pairs that turn at least 32 times within the training length go on as they are, those that
    turn less than once are slowed down by the factor, those between by a mean, weighted linearly by their turns; queries and keys become
    0.1 ln(factor) + 1 times as long, which sharpens attention (Peng et al. 2024, sections 3.2 and 3.4; the code that they released weighs
    by the pairs' numbers instead).

    length: the training length that is meant, where it is not that of this run.
    """

    names = ("yarn",)

    def __init__(
        self,
        heads,
        channels,
        block_size,
        *,
        factor: int = 4,
        base: int = 10_000,
        length: int | None = None,
    ):
        super().__init__(heads, channels, block_size, factor=factor, base=base)
        self.length = length or block_size
        self.stretch = 0.1 * math.log(factor) + 1

    def frequencies(self, width, device):
        as_ever = frequencies(width, self.base, device)
        kept = ((self.length * as_ever / (2 * math.pi) - 1) / (32 - 1)).clamp(0, 1)
        return as_ever * (kept + (1 - kept) / self.factor)
