"""Decays of CABLE and FoX that level off: as a logarithm, or at a learnable floor."""

import torch
from torch import Tensor, nn

from posenc import Cable, Fox, LogDecay, WeightedDecay


class KFox(LogDecay, Fox):
    """-log(b^2 + 1), b the bias of `cable-v1`.

    Source: Veisi et al. 2025, version 1, section 5.4, which prints the other sign
    """

    names = ("k-cable-v1",)


class LevelingDecay(WeightedDecay):
    """Base class of functions of a WeightedDecay bias b <= 0 with a parameter per head.

    Dense path only: exp((S_i - S_j) / c) is a product, but its factors overflow in long texts, and
    the Triton kernels have no such kind.
    """

    factors: None = None
    triton_bias: None = None

    def decay(self, q_features: tuple, k_features: tuple) -> Tensor:
        """Return b; 0 for later keys, whose values are masked but must be finite."""
        return WeightedDecay.bias(self, q_features, k_features, None).clamp(max=0)


class Floor(LevelingDecay):
    """Base class of biases -c_h (1 - exp(b / c_h)): b nearby, and -c_h for distant keys.

    c, learnable, starts at 4 and is at least 0.1. This smooth form has gradients everywhere, where
    max(b, -c) has none for b or none for c.
    """

    def __init__(self, heads: int, channels: int, block_size: int):
        super().__init__(heads, channels, block_size)
        self.c = nn.Parameter(torch.full((heads,), 4.0))

    def bias(self, q_features, k_features, h):
        return self.c[h] * (self.decay(q_features, k_features) / self.c[h]).expm1()

    @torch.no_grad()
    def clamp_parameters_(self):
        self.c.clamp_(min=0.1)


class CableFloor(Floor, Cable):
    """-c_h (1 - exp(b / c_h)), b the bias of `cable`: it levels off at the learnable -c_h.

    Source: this repository
    """

    names = ("cable-floor",)


class FoxFloor(Floor, Fox):
    """-c_h (1 - exp(b / c_h)), b the bias of `fox`: it levels off at the learnable -c_h.

    Source: this repository
    """

    names = ("fox-floor",)


class LogFox(LevelingDecay, Fox):
    """-r_h log(1 - b), b the bias of `fox`: KERPLE's logarithm of a sum of steps.

    r, learnable, starts at 1 and is at least 0.01.
    Source: this repository
    """

    names = ("log-fox",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.r = nn.Parameter(torch.ones(heads))

    def bias(self, q_features, k_features, h):
        return -self.r[h] * (-self.decay(q_features, k_features)).log1p()

    @torch.no_grad()
    def clamp_parameters_(self):
        self.r.clamp_(min=0.01)
