"""How do others compute the same? `bench.py` measures them beside us; nothing else here knows of them, and no requirement names them.

flex:        PyTorch's FlexAttention, whose score_mod is the encoding's own score.
forgetting:  the kernels of the Forgetting Transformer, `fox theirs`: github.com/zhixuan-lin/forgetting-transformer, commit 883f260. They
             take GPUs, bfloat16 or float16, heads of 16, 32, 64 or 128, and einops.
Cable:       the network of CABLE's authors, whose bias is that of their first version, `cable-v1 theirs`: github.com/axiomlab/Cable,
             commit 8bc6b83.

The latter two are there where Python finds them: clone them, and put their folders `src` into PYTHONPATH.
"""

from importlib.util import find_spec

import torch
from torch import Tensor, nn

from model import GPT, GPTConfig


def installed(module: str) -> bool:
    return find_spec(module) is not None


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding,
    q_features: tuple,
    k_features: tuple,
    scale: float,
    blocks,
) -> Tensor:
    """As attention.attend; blocks: of causal_blocks, None where later keys are seen too."""
    from torch.nn.attention.flex_attention import flex_attention

    k_features = tuple(
        s.clone() for s in k_features
    )  # it takes no gradient of a tensor that the score looks into twice

    def of(features, b, h, place):
        return tuple(
            s[b if s.size(0) > 1 else 0, h if s.size(1) > 1 else 0, place if s.size(2) > 1 else 0]
            for s in features
        )

    def score_mod(z, b, h, i, j):
        return z + encoding.bias(of(q_features, b, h, i), of(k_features, b, h, j), h)

    return flex_attention(q, k, v, score_mod, blocks, scale)


def causal_blocks(tokens: int, device: torch.device):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: i >= j, None, None, tokens, tokens, device=device)


def forgetting(
    q: Tensor, k: Tensor, v: Tensor, encoding, q_features: tuple, k_features: tuple, scale: float
) -> Tensor:
    """As attention.attend, of `fox`. They add the gates up themselves, and leave out what is too small to matter ("auto")."""
    from forgetting_transformer import forgetting_attention

    gates = k_features[0].diff(
        prepend=k_features[0].new_zeros(1, 1, 1).expand(*q.shape[:2], 1)
    )  # logarithms, (B, H, T)
    return forgetting_attention(
        q, k, v, gates, head_first=True, sm_scale=scale, adaptive_threshold="auto"
    )


class Cable(nn.Module):
    """The authors' network, of our shapes, called as ours is; its weights start and decay as they say."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        from Cable import Cable

        self.config, self.network = config, Cable(config)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """(B, block_size) int64 each -> the mean cross-entropy in nats."""
        return self.network(tokens, targets.contiguous())[1]  # they take a view of them

    def parameter_groups(self, weight_decay: float) -> list[dict]:
        return [
            {
                "params": [p for p in self.parameters() if p.dim() >= 2],
                "weight_decay": weight_decay,
            },
            {"params": [p for p in self.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]

    def clamp_parameters_(self) -> None:
        """Nothing has bounds."""

    parameter_count, flops_per_token = GPT.parameter_count, GPT.flops_per_token
