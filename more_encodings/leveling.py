"""Logarithms of the decay of FoX."""

import torch
from torch import nn

from posenc import Fox, LogDecay, WeightedDecay


class KFox(LogDecay, Fox):
    """-log(b^2 + 1), b the bias of `cable-v1`.

    Source: Veisi et al. 2025, version 1, section 5.4, which prints the other sign
    """

    names = ("k-cable-v1",)


class LogFox(Fox):
    """-r_h log(1 - b), b the bias of `fox`: KERPLE's logarithm of a sum of steps.

    r, learnable, starts at 1 and is at least 0.01. Dense path only: no kernel has it.
    Source: this repository
    """

    names = ("log-fox",)
    factors: None = None
    triton_bias: None = None

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.r = nn.Parameter(torch.ones(heads))

    def bias(self, q_features, k_features, h):
        decay = WeightedDecay.bias(self, q_features, k_features, h)
        decay = decay.clamp(max=0)  # later keys are masked, but must be finite
        return -self.r[h] * (-decay).log1p()

    @torch.no_grad()
    def clamp_parameters_(self):
        self.r.clamp_(min=0.01)
