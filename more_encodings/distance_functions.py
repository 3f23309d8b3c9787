"""Further functions of the distance: KERPLE's power variant, FIRE and MEP.

MEP is the mean of kernels, each the exponential of a bias.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import (
    T5,
    DistanceBias,
    Encoding,
    Kerple,
    ModuleList,
    alibi_exponents,
    distances,
)


class KerplePower(DistanceBias):
    """-r1 d^r2, r1 ~ U(0, 1), >= 0.01, and r2 ~ U(0, 2), in [0.01, 2], learnable per head.

    Source: Chi et al. 2022 (KERPLE), power variant
    """

    names = ("kerple-power",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.r1 = nn.Parameter(torch.rand(heads))
        self.r2 = nn.Parameter(2 * torch.rand(heads))
        self.clamp_parameters_()

    def distance_bias(self, d, h):
        return -self.r1[h] * d.abs() ** self.r2[h]

    @torch.no_grad()
    def clamp_parameters_(self):
        self.r1.clamp_(min=0.01)
        self.r2.clamp_(0.01, 2)


class FIRE(Encoding):
    """f(psi(d) / psi(max(threshold, i))), psi(x) = log(abs(c) x + 1), f an MLP 1 -> width -> H.

    f has a ReLU; c starts at 0.1; `threshold` has a learnable factor that
    starts at 1. Bidirectional: max(i, j) replaces i.
    Source: Li et al. 2024 (FIRE), eqs. 5-7
    """

    names = ("fire",)
    is_elementwise = False
    causal_only = ("triton_bias",)
    features = DistanceBias.features

    def __init__(self, heads, channels, block_size, *, width: int = 32, threshold: int = 512):
        super().__init__(heads, channels, block_size)
        self.threshold = threshold
        self.c = nn.Parameter(torch.tensor(0.1))
        self.multiplier = nn.Parameter(torch.tensor(1.0))
        # Like torch.nn.Linear; N(0, 0.02) and zero biases would kill half.
        self.w1 = nn.Parameter(torch.empty(width).uniform_(-1, 1))
        self.b1 = nn.Parameter(torch.empty(width).uniform_(-1, 1))
        self.w2 = nn.Parameter(torch.empty(heads, width).uniform_(-1, 1) / width**0.5)
        self.b2 = nn.Parameter(torch.empty(heads).uniform_(-1, 1) / width**0.5)

    def bias(self, q_features, k_features, h):
        (i,), (j,) = q_features, k_features
        ratio = self.psi((i - j).abs()) / self.normalizer(torch.maximum(i, j))
        hidden = F.relu(ratio[..., None] * self.w1 + self.b1)  # (1, 1, T, S, width)
        heads = h.flatten()
        # (1, H, T, S)
        return F.linear(hidden, self.w2[heads], self.b2[heads])[0].movedim(-1, 1)

    def psi(self, x: Tensor) -> Tensor:
        """Return log(|c| x + 1)."""
        return (self.c.abs() * x).log1p()

    def normalizer(self, i: Tensor) -> Tensor:
        """Return psi(max(threshold, i)), i the later position of both."""
        return self.psi(torch.maximum(i, (self.threshold * self.multiplier).abs()))

    def triton_bias(self, q_features, k_features, h):
        d = distances(k_features[0].size(-1), True, h.device)
        table, g = self.psi(d)[None], 1 / self.normalizer(q_features[0])
        return "piecewise-linear", {"table": table, "g": g, "pieces": self.linear_pieces()}

    def linear_pieces(self) -> Tensor:
        """Return f's linear pieces, (H, 3, K), K a power of two above `width`.

        [:, 0]: ascending breakpoints, padded with infinity; [:, 1] and [:, 2]: slopes and
        intercepts of the pieces before, between and after them.
        """
        count = 1 << len(self.w1).bit_length()
        with torch.no_grad():
            breakpoints, order = torch.where(self.w1 == 0, torch.inf, -self.b1 / self.w1).sort()
            rank = order.argsort()  # of each unit's breakpoint
            piece = torch.arange(count, device=rank.device)[:, None]
            active = torch.where(self.w1 > 0, piece > rank, piece <= rank)  # (K, width)
            active = torch.where(self.w1 == 0, self.b1 > 0, active).to(self.w1.dtype)
        slopes = (self.w2 * self.w1) @ active.T  # (H, K)
        intercepts = (self.w2 * self.b1) @ active.T + self.b2[:, None]
        breakpoints = F.pad(breakpoints, (0, count - len(breakpoints)), value=torch.inf)
        return torch.stack([breakpoints.expand_as(slopes), slopes, intercepts], 1)


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

    def clamp_parameters_(self):
        for bias in self.learned:
            bias.clamp_parameters_()
