"""MEP: the mean of several kernels, each the exponential of a bias of the distance."""

import math

import torch
from torch import Tensor

from posenc import T5, DistanceBias, Kerple, ModuleList, alibi_exponents


class MEP(DistanceBias):
    """log((exp(-m d) + exp(-m d / 2) + exp(-m d^2)) / 3), m ALiBi's slopes.

    Source: Gao 2024 (MEP), without parameters, as in the released code
    """

    names = ("mep",)
    slopes: Tensor  # (H,)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        slopes = torch.exp2(-alibi_exponents(heads)).float()
        self.register_buffer("slopes", slopes, persistent=False)

    def distance_bias(self, d, h):
        log_kernels = torch.broadcast_tensors(*self.log_kernels(d, h))
        return torch.stack(log_kernels).logsumexp(0) - math.log(len(log_kernels))

    def log_kernels(self, d: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        """Return the logarithms of the kernels at distances d in heads h."""
        m, d = self.slopes[h], d.abs()
        return -m * d, -m * d / 2, -m * d**2


class MEPLearned(MEP):
    """log of the mean of exp(b) over four biases b: `t5`, `kerple`, -m d and -m d^2.

    All layers share the learnable `t5` and `kerple`.
    Source: Gao 2024 (MEP), with parameters, as in the released code
    """

    names = ("mep-learned",)
    scope = "model"

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.learned: ModuleList[DistanceBias] = ModuleList(
            [T5(heads, channels, block_size), Kerple(heads, channels, block_size)]
        )

    def log_kernels(self, d, h):
        exponential, _, gaussian = super().log_kernels(d, h)
        return exponential, gaussian, *(bias.distance_bias(d, h) for bias in self.learned)

    def set_bidirectional(self):
        super().set_bidirectional()
        for bias in self.learned:
            bias.set_bidirectional()

    def clamp_parameters_(self):
        for bias in self.learned:
            bias.clamp_parameters_()
