"""Rotations that depend on the text (CARoPE, Selective RoPE), and PoPE."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import Encoding, frequencies, rotate_pairs, running_sum, sin_cos


class RunningRotation(Encoding):
    """Base class: rotates pairs (q[n], q[n + D/2]) by a running sum of `steps`.

    Its one feature is the sum (B, H, T, D/2) in float32.
    """

    running_features = (0,)
    needs_head_dimension = True

    def steps(self, x: Tensor) -> Tensor:
        """Return the angles that tokens x (B, T, C) add, (B, T, H, D/2)."""
        raise NotImplementedError

    def features(self, x, pos, previous=None):
        angles = running_sum(self.steps(x).movedim(1, -1).contiguous()).mT  # (B, H, T, D/2)
        if previous is not None:
            angles = angles + previous[0]
        return (angles,), (angles,)

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        angles = q_features[0].transpose(1, 2)  # (B, T, H, D/2)
        sin, cos = angles.sin(), angles.cos()
        return rotate_pairs(q, sin, cos), rotate_pairs(k, sin, cos)


class CARoPE(RunningRotation):
    """Angle of pair n: the sum of f^n over the tokens so far, f = 1 / (1 + Softplus(x W)), n >= 1.

    W: C -> H, N(0, 0.02): one base per token and head, near 0.6 at the start.
    `rope` has the same base for all tokens, 10000^(-2/D), to the power n - 1.
    Source: Veisi et al. 2025 (CARoPE), arXiv 2507.23083
    """

    names = ("carope",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.base = nn.Linear(channels, heads, bias=False)  # W
        self.pairs = channels // heads // 2

    def steps(self, x):
        log_f = -F.softplus(self.base(x)).log1p()[..., None]  # (B, T, H, 1)
        n = torch.arange(1, self.pairs + 1, device=x.device)
        return (n * log_f).exp()


class SelectiveRoPE(RunningRotation):
    """Angle of pair n: 10000^(-2n/D) times the sum of (U V x)[n] + exp(b[n]) over tokens so far.

    V: C -> 16 and U: 16 -> H D/2, N(0, 0.02); b = 0 at the start, so that it
    starts near `rope`. The authors' short convolution along the text and their
    phase gate are not implemented.
    Source: Movahedi et al. 2025 (Selective RoPE), arXiv 2511.17388
    """

    names = ("selective-rope",)

    def __init__(self, heads, channels, block_size, *, rank: int = 16):
        super().__init__(heads, channels, block_size)
        pairs = channels // heads // 2
        self.down = nn.Linear(channels, rank, bias=False)  # V
        self.up = nn.Linear(rank, heads * pairs, bias=False)  # U
        self.b = nn.Parameter(torch.zeros(heads, pairs))

    def steps(self, x):
        # (B, T, H, D/2)
        step = self.up(self.down(x)).unflatten(-1, self.b.shape) + self.b.exp()
        width = 2 * self.b.size(1)
        return step * frequencies(width, 10_000, x.device).to(x.dtype)


class PoPE(Encoding):
    """sum_n softplus(q_n) softplus(k_n) cos((i - j) base^(-n/D) - delta_n), n < D.

    delta: learnable per head, within [-2 pi, 0], 0 at the start, added to the
    key's angle. Each column becomes a sine and a cosine, so queries and keys
    are twice as wide as values.
    Source: Gopalakrishnan et al. 2025 (PoPE), arXiv 2509.10534
    """

    names = ("pope",)
    changes_width = True
    needs_head_dimension = True

    def __init__(self, heads, channels, block_size, *, base: int = 10_000):
        super().__init__(heads, channels, block_size)
        self.base = base
        self.delta = nn.Parameter(torch.zeros(heads, 1, channels // heads))

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        dtype = torch.promote_types(q.dtype, torch.float32)
        angle = pos.double()[:, None, :, None]  # (B|1, 1, T, 1)
        angle = angle * frequencies(2 * q.size(-1), self.base, pos.device)
        sin, cos = sin_cos(angle, 1.0, dtype)  # (B|1, 1, T, D)
        q_length, k_length = F.softplus(q.to(dtype)), F.softplus(k.to(dtype))
        wide_q = torch.cat([q_length * cos, q_length * sin], -1)
        sin_d, cos_d = self.delta.to(dtype).sin(), self.delta.to(dtype).cos()  # (H, 1, D)
        cos_k, sin_k = (
            cos * cos_d - sin * sin_d,
            sin * cos_d + cos * sin_d,
        )  # (B|1, H, T, D)
        wide_k = torch.cat([k_length * cos_k, k_length * sin_k], -1)
        return wide_q.to(q.dtype), wide_k.to(k.dtype)

    @torch.no_grad()
    def clamp_parameters_(self):
        self.delta.clamp_(min=-2 * math.pi, max=0)
