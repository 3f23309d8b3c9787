"""Products along the text between query and key: PaTH and Wall."""

import torch
import torch.nn.functional as F
from torch import nn

from posenc import Encoding, running_sum

BLOCK = 32  # keys that are processed at a time


class PaTH(Encoding):
    """scale k_j^T H_(j+1) ... H_i q_i, H_s = I - beta_s w_s w_s^T, beta = 2 sigmoid(x b).

    w = x V U, normalized per head; V: C -> 32 and U: 32 -> C. The authors'
    short convolution of w along the text is not implemented. Combines with
    biases, as in `path+fox`: flash-linear-attention multiplies the sums of
    `fox` by the scale of the logits; this repository does not, like the
    Forgetting Transformer.
    Source: Yang et al. 2025 (PaTH), arXiv 2505.16381
    """

    names = ("path",)
    supports_bidirectional = False

    def __init__(self, heads, channels, block_size, *, rank: int = 32):
        super().__init__(heads, channels, block_size)
        self.heads = heads
        self.down = nn.Linear(channels, rank, bias=False)  # V
        self.up = nn.Linear(rank, channels, bias=False)  # U
        self.strength = nn.Linear(channels, heads)  # b

    def features(self, x, pos, previous=None):
        # (B, H, T, D)
        w = self.up(self.down(x)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        beta = 2 * self.strength(x).sigmoid().mT.contiguous()  # (B, H, T)
        return (), (F.normalize(w, dim=-1), beta)

    def logits_transform(self, logits, bias, q, k, scale, d, mask, q_features, k_features):
        w, beta = (feature.to(q.dtype) for feature in k_features)
        w_beta = w * beta[..., None]
        query = d[:, :1]  # (T, 1), the index of each query among the keys
        blocks, x = [], q
        # from the last keys on
        for start in range((k.size(2) - 1) // BLOCK * BLOCK, -1, -BLOCK):
            keys = slice(start, start + BLOCK)
            block_w, block_w_beta = w[:, :, keys], w_beta[:, :, keys]
            index = torch.arange(start, start + block_w.size(2), device=q.device)
            # u_s = w_s^T x before H_s acts on x: a triangular system, last token first.
            right = (x @ block_w.mT).masked_fill(index > query, 0)  # (B, H, T, tokens)
            system = (block_w @ block_w_beta.mT).triu(1)
            solve = torch.linalg.solve_triangular
            u = solve(system, right.mT, upper=True, unitriangular=True).mT
            later = (k[:, :, keys] @ block_w_beta.mT).triu(1)  # H_s acts on keys before s
            blocks.append(x @ k[:, :, keys].mT - u @ later.mT)
            x = x - u @ block_w_beta
        return torch.cat(blocks[::-1], -1) * scale - logits


class Wall(Encoding):
    """sum_n q_in k_jn exp(P_in - P_jn), times the scale; P = cumsum log sigmoid(x W + b).

    A decay per column. W: C -> C, N(0, 0.02); b = 8 at the start: nearly no
    decay.
    Source: Averbuch and Pai 2026, flash-linear-attention's WallAttention
    """

    names = ("wall",)
    supports_bidirectional = False

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.gate = nn.Linear(channels, channels, bias=False)  # W
        self.b = nn.Parameter(torch.full((channels,), 8.0))
        self.heads = heads

    def features(self, x, pos, previous=None):
        log_gates = F.logsigmoid(self.gate(x) + self.b)  # (B, T, C)
        p = running_sum(log_gates.mT.contiguous()).unflatten(1, (self.heads, -1)).mT
        p = p if previous is None else p + previous[0]  # (B, H, T, D)
        return (p,), (p,)

    def logits_transform(self, logits, bias, q, k, scale, d, mask, q_features, k_features):
        (p_i,), (p_j,) = q_features, k_features
        T, S = d.shape
        query = d[:, 0]  # the index of each query among the keys
        padding = -S % BLOCK
        p_blocks, k_blocks = (
            F.pad(x, (0, 0, 0, padding)).unflatten(2, (-1, BLOCK)) for x in (p_j, k)
        )  # (B, H, blocks, tokens, D)
        # A query and a block before it: through the block's last token, so that no exponent is
        # positive.
        last = p_blocks[..., -1:, :]  # (B, H, blocks, 1, D)
        decayed_k = k_blocks * (last - p_blocks).clamp(max=0).exp()
        decay = (p_i[:, :, :, None] - last[:, :, None, :, 0]).clamp(max=0).exp()
        decayed_q = q[:, :, :, None] * decay  # (B, H, T, blocks, D)
        result = torch.einsum("bhtnd,bhnsd->bhtns", decayed_q, decayed_k)
        # Within the query's own block: each pair by itself.
        own = query // BLOCK
        own_p, own_k = p_blocks[:, :, own], k_blocks[:, :, own]  # (B, H, T, tokens, D)
        pairs = (p_i[:, :, :, None] - own_p).clamp(max=0).exp() * own_k * q[:, :, :, None]
        # (T, blocks)
        is_own = torch.arange(result.size(3), device=q.device) == own[:, None]
        result = torch.where(is_own[..., None], pairs.sum(-1)[:, :, :, None], result)
        return result.flatten(3)[..., :S] * scale - logits
