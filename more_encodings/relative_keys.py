"""Relative keys: embeddings of distances, or CoPE's positions, in keys."""

import math

import torch
from torch import nn

from posenc import Encoding, running_sum, sinusoids


class Shaw(Encoding):
    """q_i a[min(d, k)] / sqrt(D), a learnable key for each distance, shared by all heads.

    Initialized to N(0, 0.02). Bidirectional: k more, for later keys.
    Relative values are not implemented: the paper found no gain from them.
    Source: Shaw et al. 2018, eqs. 4 and 5
    """

    names = ("shaw",)

    def __init__(self, heads, channels, block_size, *, k: int = 16):
        super().__init__(heads, channels, block_size)
        self.k = k
        self.a = nn.Parameter(0.02 * torch.randn(k + 1, channels // heads))

    def set_bidirectional(self):
        super().set_bidirectional()
        # Rows 0..k are the distances 0..k, the last k rows -k..-1.
        self.a = nn.Parameter(0.02 * torch.randn(2 * self.k + 1, self.a.size(1)))

    def logits_transform(self, logits, bias, q, k, scale, d, mask, q_features, k_features):
        products = q @ self.a.T.to(q.dtype) / math.sqrt(q.size(-1))  # (B, H, T, rows of a)
        row = d.clamp(-self.k, self.k) % len(self.a)  # (T, S)
        return products.gather(-1, row.expand_as(logits))


class TransformerXL(Encoding):
    """((q_i + u) k_j + (q_i + v) W r_d) / sqrt(D), r_d the sinusoids of the distance.

    Per head: W ~ N(0, 0.02), u and v start at zero; `rotate` adds u.
    Source: Dai et al. 2019 (Transformer-XL), section 3.3
    """

    names = ("transformer-xl",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.u = nn.Parameter(torch.zeros(heads, 1, channels // heads))
        self.v = nn.Parameter(torch.zeros(heads, 1, channels // heads))
        self.w = nn.Parameter(0.02 * torch.randn(heads, channels // heads, channels))

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        return q + self.u.to(q.dtype), k

    def logits_transform(self, logits, bias, q, k, scale, d, mask, q_features, k_features):
        # All T + S - 1 distances of queries and keys, descending.
        longest = d[-1, 0]
        distances = longest - torch.arange(sum(d.shape) - 1, device=d.device)
        r = sinusoids(distances, self.w.size(-1)).to(q.dtype)  # (T + S - 1, C)
        keys = self.w.to(q.dtype) @ r.T  # (H, D, T + S - 1)
        products = (q - self.u + self.v) @ keys / math.sqrt(q.size(-1))
        return products.gather(-1, (longest - d).expand_as(logits))


class CoPE(Encoding):
    """q_i e[p_ij], p_ij = sum_{t=j..i} sigmoid(logit_it), clipped to the last row of e.

    e is a learnable table of `positions` rows, shared by all heads, zero at the
    start, interpolated between integers. There is no bidirectional form.
    Source: Golovneva et al. 2024 (CoPE), section 4
    """

    names = ("cope",)
    supports_bidirectional = False

    def __init__(self, heads, channels, block_size, *, positions: int = 64):
        super().__init__(heads, channels, block_size)
        self.e = nn.Parameter(torch.zeros(positions, channels // heads))

    def logits_transform(self, logits, bias, q, k, scale, d, mask, q_features, k_features):
        last = len(self.e) - 1
        gates = logits.sigmoid().masked_fill(~mask, 0)
        p = running_sum(gates.flip(-1)).flip(-1).clamp(max=last)
        products = q.to(logits.dtype) @ self.e.T.to(logits.dtype)  # (B, H, T, positions)
        # NaN in p reaches the output by lerp; as an index it must be in range.
        below = products.gather(-1, p.floor().long().clamp(0, last))
        above = products.gather(-1, p.ceil().long().clamp(0, last))
        return torch.lerp(below, above, p - p.floor())
