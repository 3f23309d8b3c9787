"""One attention layer apart from its network: results and errors of every path.

    layer = random_layer(config, (2, 256), torch.bfloat16, device)
    results = layer.forward_backward(lambda: layer.attend("triton"))
    errors = relative_errors(results, layer.reference())

It computes what a layer does between its two projections, encoding included.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

import attention
from model import Attention, GPTConfig
from posenc import Encoding

SEED = 1
# Smaller gradients, relative to the largest, are only rounding errors.
NEGLIGIBLE = 1e-4
Results = dict[str, Tensor]


class AttentionLayer(NamedTuple):
    """A layer without its two projections, its encoding and its inputs."""

    attn: Attention
    encoding: Encoding
    x: Tensor  # (B, T, C) float32, the layer's normalized input
    packed_qkv: Tensor  # (B, T, (H + 2 G) D), the output of the first projection
    output_grad: Tensor  # (B, T, H D)

    def attend(self, path: str) -> Tensor:
        """Return the output of a path, (B, T, H D)."""
        pos = torch.arange(self.x.size(1), device=self.x.device)[None]
        q, k, v = self.attn.split_heads(self.packed_qkv)
        packed = self.packed_qkv if self.attn.is_packed else None
        y = attention.attend(
            self.encoding,
            self.x,
            q,
            k,
            v,
            pos,
            path=attention.get_path(path),
            scale=self.attn.scale,
            packed_qkv=packed,
        )
        return y.transpose(1, 2).flatten(2)

    def forward_backward(self, forward: Callable[[], Tensor]) -> Results:
        """Return the output of `forward()` and gradients; dx: of the features."""
        y = forward()
        attn, parameters = self.attn, dict(self.encoding.named_parameters())
        inputs = [self.packed_qkv, self.x, *parameters.values()]
        dqkv, *grads = torch.autograd.grad(y, inputs, self.output_grad, materialize_grads=True)
        heads = attn.heads, attn.key_heads, attn.key_heads
        dq, dk, dv = dqkv.split([n * attn.head_dim for n in heads], -1)
        named = dict(zip(["dx", *(f"d{name}" for name in parameters)], grads, strict=True))
        return {"output": y.detach(), "dq": dq, "dk": dk, "dv": dv, **named}

    def reference(self) -> Results:
        """Return results of the dense path in float32."""
        exact = self.packed_qkv.detach().float().requires_grad_()
        layer = self._replace(packed_qkv=exact, output_grad=self.output_grad.float())
        return layer.forward_backward(lambda: layer.attend("dense"))


def random_layer(
    config: GPTConfig, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> AttentionLayer:
    """Return the first layer of an untrained network with random inputs.

    shape: (B, T); dtype: of queries, keys and values.
    """
    torch.manual_seed(SEED)
    encoding = config.make_encodings()[0].to(device)
    attn = Attention(config).to(device)
    x = torch.randn(*shape, config.n_embd, device=device)
    qkv = torch.randn(*shape, attn.c_attn.out_features, dtype=dtype, device=device)
    torch.manual_seed(SEED)
    grad = torch.randn(*shape, attn.heads * attn.head_dim, dtype=dtype, device=device)
    return AttentionLayer(attn, encoding, x.requires_grad_(), qkv.requires_grad_(), grad)


def relative_errors(results: Results, exact: Results) -> dict[str, float]:
    """Return the norm of each error, relative to the exact result's."""
    norms = {name: x.norm().item() for name, x in exact.items()}
    return {
        name: (results[name].float() - exact[name]).norm().item() / norm
        for name, norm in norms.items()
        if norm > NEGLIGIBLE * max(norms.values())
    }
