"""Rotations by sums along the text: the angle of a token depends on the tokens before it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import Encoding, frequencies, rotate_pairs, running_sum


class RunningRotation(Encoding):
    """Base class: rotates the pair (q[n], q[n + D/2]) by a running sum of `steps`; keys likewise.

    Its one feature is the sum (B, H, T, D/2) in float32, of which a cache keeps the latest.
    """

    running_features = (0,)
    needs_head_dimension = True

    def steps(self, x: Tensor) -> Tensor:
        """Return the angles that tokens add, (B, T, H, D/2), for x (B, T, C)."""
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

    W: C -> H, N(0, 0.02): one base per token and head, near 0.6 at the start. `rope` has the same
    base for all tokens, 10000^(-2/D), to the power n - 1.
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

    V: C -> 16 and U: 16 -> H D/2, N(0, 0.02); b = 0 at the start, so that it starts near `rope`.
    The authors' short convolution along the text and their phase gate are not implemented.
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
        step = self.up(self.down(x)).unflatten(-1, self.b.shape) + self.b.exp()  # (B, T, H, D/2)
        width = 2 * self.b.size(1)
        return step * frequencies(width, 10_000, x.device).to(x.dtype)
