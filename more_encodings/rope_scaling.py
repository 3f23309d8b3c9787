"""RoPE's variants: p-RoPE, interpolation, NTK-aware, YaRN, Llama 3, xPos.

They have no parameters, so that a trained `rope` can be evaluated or fine-tuned with them
(train_gpt.py --init_from).
"""

import math

import torch
from torch import Tensor

from errors import InputError
from posenc import RoPE, frequencies


class PRoPE(RoPE):
    """`rope` that rotates only the fastest `percent` of the pairs.

    The others carry content independent of the distance.
    Source: Barbero et al. 2025 (p-RoPE)
    """

    names = ("p-rope",)

    def __init__(self, heads, channels, block_size, *, percent: int = 75, base: int = 10_000):
        super().__init__(heads, channels, block_size, base=base)
        self.percent = percent

    def frequencies(self, width, device):
        rotated = torch.arange(width // 2, device=device) < width // 2 * self.percent // 100
        return super().frequencies(width, device) * rotated


class PositionInterpolation(RoPE):
    """`rope` at positions pos / factor, for texts `factor` times as long as in training.

    Source: Chen et al. 2023 (position interpolation), eq. 4
    """

    names = ("rope-pi",)

    def __init__(self, heads, channels, block_size, *, factor: int = 4, base: int = 10_000):
        super().__init__(heads, channels, block_size, base=base)
        self.factor = factor

    def frequencies(self, width, device):
        return super().frequencies(width, device) / self.factor


class NTKAware(PositionInterpolation):
    """`rope` with base * factor^(D/(D-2)): the slowest pair as in `rope-pi`, the fastest unchanged.

    Source: Peng et al. 2024 (YaRN), section 3.1
    """

    names = ("rope-ntk",)

    def frequencies(self, width, device):
        base = self.base * self.factor ** (width / max(1, width - 2))
        return frequencies(width, base, device)


class YaRN(PositionInterpolation):
    """`rope-pi` for slow pairs only; queries and keys are multiplied by 0.1 ln(factor) + 1.

    Pairs with at least 32 rotations within the training length are unchanged,
    pairs with less than one are interpolated by `factor`, pairs in between use
    a mean of both, with weights linear in the number of rotations, as the paper
    prints, or, with ramp=released, in the pair's index, between whole indices,
    as in the authors' code and in transformers. `length`: the training length
    to scale from, if it is not that of this run.
    Source: Peng et al. 2024 (YaRN), sections 3.2 and 3.4
    """

    names = ("yarn",)
    option_words = {"ramp": ("paper", "released")}
    most_rotations = 32

    def __init__(
        self,
        heads,
        channels,
        block_size,
        *,
        factor: int = 4,
        base: int = 10_000,
        length: int | None = None,
        ramp: str = "paper",
    ):
        super().__init__(heads, channels, block_size, factor=factor, base=base)
        if ramp == "released" and base == 1:
            raise InputError("yarn: ramp=released has no ramp for base=1: use a larger base")
        self.length = length or block_size
        self.ramp = ramp
        self.attention_factor = 0.1 * math.log(factor) + 1

    def frequencies(self, width, device):
        original = frequencies(width, self.base, device)
        if self.ramp == "released":
            kept = self.released_weights(width, device)
        else:
            rotations = self.length * original / (2 * math.pi)
            kept = ((rotations - 1) / (self.most_rotations - 1)).clamp(0, 1)
        return original * (kept + (1 - kept) / self.factor)

    def released_weights(self, width: int, device: torch.device) -> Tensor:
        """Return the weights of ramp=released, (width/2,) float64."""

        def pair_with(rotations):  # within the training length; the index is not an integer
            wavelength = self.length / (2 * math.pi * rotations)
            return width * math.log(wavelength) / (2 * math.log(self.base))

        first = max(math.floor(pair_with(self.most_rotations)), 0)
        last = min(math.ceil(pair_with(1)), width - 1)
        if first == last:
            last += 0.001  # as in the authors' code
        pair = torch.arange(width // 2, dtype=torch.float64, device=device)
        return 1 - ((pair - first) / (last - first)).clamp(0, 1)


class Llama3(YaRN):
    """`rope` whose slow pairs are interpolated by `factor`, as in Llama 3.1.

    As `yarn`, with at least 4 rotations for unchanged pairs and without its
    factor of queries and keys. `length`: the training length to scale from, if
    it is not that of this run.
    Source: transformers' rope_type "llama3" with low_freq_factor 1 and high_freq_factor 4
    """

    names = ("rope-llama3",)
    option_words = {}
    most_rotations = 4

    def __init__(
        self,
        heads,
        channels,
        block_size,
        *,
        factor: int = 8,
        base: int = 500_000,
        length: int | None = None,
    ):
        super().__init__(heads, channels, block_size, factor=factor, base=base, length=length)
        self.attention_factor = 1.0


class XPos(RoPE):
    """`rope` whose pair n decays by zeta_n^(d/512), zeta_n = (2n/D + 0.4) / 1.4, n < D/2.

    Queries are multiplied by zeta^(pos/512), keys by zeta^(-pos/512), which
    float32 holds up to 32,768 positions; longer texts are refused.
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
        dtype = torch.promote_types(q.dtype, torch.float32)
        # (B|1, 1, T, D)
        scale = (zeta ** (pos.double()[:, None, :, None] / 512)).to(dtype)
        scaled_q, scaled_k = rotated_q.to(dtype) * scale, rotated_k.to(dtype) / scale
        return scaled_q.to(q.dtype), scaled_k.to(k.dtype)
