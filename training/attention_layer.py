"""One attention layer apart from its network: results and errors of every path.

    layer = random_layer(config, (2, 256), torch.bfloat16, device)
    results = layer.forward_backward(lambda: layer.attend("triton"))
    errors = relative_errors(results, layer.reference())

It computes what a layer does between its two projections, encoding included.
"""

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

import attention
import pe_spec
from model import Attention, GPTConfig
from posenc import Encoding

SEED = 1
# Smaller gradients, relative to the largest, are only rounding errors.
NEGLIGIBLE = 1e-4
Results = dict[str, Tensor]


class Projection(nn.Module):
    """Stands for a layer's projection: returns given values."""

    def __init__(self, values: Tensor):
        super().__init__()
        self.values = nn.Parameter(values)

    def forward(self, x: Tensor) -> Tensor:
        return self.values


class AttentionLayer(NamedTuple):
    """A layer without its two projections, its encoding and its inputs."""

    attn: Attention
    """its c_attn is a `Projection` of values (B, T, (H + 2 G) D)"""
    encoding: Encoding
    x: Tensor
    """(B, T, C) float32, the layer's normalized input"""
    output_grad: Tensor
    """(B, T, H D)"""

    def attend(self, path: str) -> Tensor:
        """Return the output of a path, (B, T, H D)."""
        pos = torch.arange(self.x.size(1), device=self.x.device)
        return self.attn(self.x, pos, self.encoding, attention.PATHS[path], None, None)

    def forward_backward(self, forward: Callable[[], Tensor]) -> Results:
        """Return the output of `forward()` and gradients; dx: of the features."""
        y = forward()
        attn, parameters = self.attn, dict(self.encoding.named_parameters())
        inputs = [attn.c_attn.values, self.x, *parameters.values()]
        dqkv, *grads = torch.autograd.grad(y, inputs, self.output_grad, materialize_grads=True)
        heads = attn.heads, attn.key_heads, attn.key_heads
        dq, dk, dv = dqkv.split([n * attn.head_dim for n in heads], -1)
        named = dict(zip(["dx", *(f"d{name}" for name in parameters)], grads, strict=True))
        return {"output": y.detach(), "dq": dq, "dk": dk, "dv": dv, **named}

    def reference(self) -> Results:
        """Return results of the dense path in float32."""
        attn, grad = copy.deepcopy(self.attn).float(), self.output_grad.float()
        layer = self._replace(attn=attn, output_grad=grad)
        return layer.forward_backward(lambda: layer.attend("dense"))


def make_layer(attn: Attention, encoding: Encoding, x: Tensor, values: Tensor) -> AttentionLayer:
    """Return a layer with a random gradient; attn: changes."""
    torch.manual_seed(SEED)
    shape = *x.shape[:2], attn.heads * attn.head_dim
    output_grad = torch.randn(shape, dtype=values.dtype, device=x.device)
    attn.set_submodule("c_attn", Projection(values))
    attn.set_submodule("c_proj", nn.Identity())
    return AttentionLayer(attn, encoding, x.requires_grad_(), output_grad)


def random_layer(
    config: GPTConfig, shape: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> AttentionLayer:
    """Return the first layer of an untrained network with random inputs.

    shape: (B, T); dtype: of queries, keys and values.
    """
    torch.manual_seed(SEED)
    size = config.n_head, config.n_embd, config.block_size, config.n_layer
    encoding = pe_spec.build(config.encodings, *size, config.causal)[0].to(device)
    attn = Attention(config).to(device)
    x = torch.randn(*shape, config.n_embd, device=device)
    projection = torch.randn(*shape, attn.c_attn.out_features, dtype=dtype, device=device)
    return make_layer(attn, encoding, x, projection)


def relative_errors(results: Results, exact: Results) -> dict[str, float]:
    """Return the norm of each error, relative to the exact result's."""
    norms = {name: x.norm().item() for name, x in exact.items()}
    return {
        name: (results[name].float() - exact[name]).norm().item() / norm
        for name, norm in norms.items()
        if norm > NEGLIGIBLE * max(norms.values())
    }
