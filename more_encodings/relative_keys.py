"""Relative keys: Shaw et al. (2018) and Transformer-XL."""

import math

import torch
from torch import nn

from posenc import Encoding, sinusoids


class Shaw(Encoding):
    """q_i a[min(d, k)] / sqrt(D): relative keys (Shaw et al. 2018, eqs. 4 and 5; relative values, which they found to add nothing, are
    left out).

    Learned: a, k + 1 rows, of all heads, ~ N(0, 0.02); both ways, k more for keys after the query.
    """

    names = ("shaw",)

    def __init__(self, heads, channels, block_size, *, k: int = 16):
        super().__init__(heads, channels, block_size)
        self.k = k
        self.a = nn.Parameter(0.02 * torch.randn(k + 1, channels // heads))

    def set_bidirectional(self):
        super().set_bidirectional()
        self.a = nn.Parameter(
            0.02 * torch.randn(2 * self.k + 1, self.a.size(1))
        )  # the last k of distances -k to -1

    def logits_transform(self, logits, bias, q, d, mask):
        of_rows = q @ self.a.T.to(q.dtype) / math.sqrt(q.size(-1))  # (B, H, T, rows)
        return of_rows.gather(-1, (d.clamp(-self.k, self.k) % len(self.a)).expand_as(logits))


class TransformerXL(Encoding):
    """((q_i + u) k_j + (q_i + v) W r_d) / sqrt(D), r_d the sinusoids of the distance (Dai et al. 2019, section 3.3).

    Learned: W ~ N(0, 0.02), and for each head u and v, zero at the start.
    """

    names = ("transformer-xl",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.u, self.v = (nn.Parameter(torch.zeros(heads, 1, channels // heads)) for _ in range(2))
        self.w = nn.Parameter(0.02 * torch.randn(heads, channels // heads, channels))

    def rotate(self, q, k, pos):
        return q + self.u.to(q.dtype), k

    def logits_transform(self, logits, bias, q, d, mask):
        last = d[-1, 0]  # the longest distance; then all the others, descending
        r = sinusoids(last - torch.arange(sum(d.shape) - 1, device=d.device), self.w.size(-1)).to(
            q.dtype
        )  # (T + S - 1, C)
        found = (
            (q - self.u + self.v) @ (self.w.to(q.dtype) @ r.T) / math.sqrt(q.size(-1))
        )  # (B, H, T, T + S - 1)
        return found.gather(-1, (last - d).expand_as(logits))
