"""MEP (Gao 2024): means of several kernels of the distance."""

import math

import torch
from torch import nn

from posenc import T5, DistanceBias, Kerple, alibi_exponents


class MEP(DistanceBias):
    """log((exp(-m d) + exp(-m d / 2) + exp(-m d^2)) / 3), m ALiBi's slopes: the mean of three kernels (Gao 2024, without parameters, as
    in the code that it released)."""

    names = ("mep",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.register_buffer(
            "slopes", torch.exp2(-alibi_exponents(heads)).float(), persistent=False
        )

    def distance_bias(self, d, h):
        kernels = self.kernels(d, h)
        return torch.stack(torch.broadcast_tensors(*kernels)).logsumexp(0) - math.log(len(kernels))

    def kernels(self, d, h):
        """Their logarithms."""
        m, d = self.slopes[h], d.abs()
        return -m * d, -m * d / 2, -m * d**2


class MEPLearned(MEP):
    """log of the mean of exp(b) over four biases b: `t5` and `kerple`, learned, one of each for all layers, -m d and -m d^2 (Gao 2024, with
    parameters, as in the code that it released)."""

    names = ("mep-learned",)
    scope = "model"

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.learned = nn.ModuleList(cls(heads, channels, block_size) for cls in (T5, Kerple))

    def kernels(self, d, h):
        exponential, _, gaussian = super().kernels(d, h)
        return exponential, gaussian, *(bias.distance_bias(d, h) for bias in self.learned)

    def set_bidirectional(self):
        super().set_bidirectional()
        for bias in self.learned:
            bias.set_bidirectional()

    def clamp_parameters_(self):
        for bias in self.learned:
            bias.clamp_parameters_()
