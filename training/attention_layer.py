"""One attention layer apart from its network: forward, backward and errors of every path.

    layer = random_layer("cable", 12, 768, 1024, (2, 256), torch.bfloat16, device)
    results = layer.forward_backward(lambda: layer.attend("triton"))
    errors = relative_errors(results, layer.reference())

It starts from a layer's projection and its normalized input, and ends with the outputs of all
heads. It includes everything that the encoding adds: rotation, features and bias.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import attention
import pe_spec
import posenc
from attention import SKIP_TOLERANCE

SEED = 1
# Gradients below this fraction of the largest one are only rounding errors, as those of a bias that
# is constant per head.
NEGLIGIBLE = 1e-4


@dataclass
class AttentionLayer:
    """An encoding and the inputs of one attention layer."""

    encoding: posenc.Encoding
    heads: int
    x: Tensor
    """(B, T, C) float32, the layer's normalized input"""
    projection: Tensor
    """(B, T, 3 C), queries, keys and values in one tensor"""
    attn_scale: float | None = None
    """factor of q k^T; None: 1 / sqrt(D)"""
    output_grad: Tensor | None = None
    """(B, T, C); None: random numbers in the projection's dtype"""

    def __post_init__(self):
        if self.output_grad is None:
            generator = torch.Generator(self.x.device).manual_seed(SEED)
            normal = torch.randn(self.x.shape, generator=generator, device=self.x.device)
            self.output_grad = normal.to(self.projection.dtype)

    @property
    def scale(self) -> float:
        return self.attn_scale or (self.x.size(-1) // self.heads) ** -0.5

    def qkv(self) -> tuple[Tensor, ...]:
        """Return queries, keys and values (B, H, T, D), views of the projection."""
        parts = self.projection.chunk(3, -1)
        return tuple(part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)

    def attend(self, path: str, skip_tolerance: float = SKIP_TOLERANCE) -> Tensor:
        """Return the output of a path, (B, T, C), as a block has it.

        The transposition is part of the compiled function: outside of it, the gradient would be
        copied, which training does not do.
        """
        q, k, v = self.qkv()
        positions = torch.arange(self.x.size(1), device=self.x.device)
        features = self.encoding.features(self.x, positions)
        rotated_q, rotated_k = self.encoding.rotate(q, k, positions, *features)
        packed_qkv = None
        if rotated_q is q and rotated_k is k:  # as in model.py
            packed_qkv = self.projection
        bias_inputs = attention.BiasInputs(self.encoding, *features)
        mask_spec = attention.make_mask_spec(self.encoding, skip_tolerance=skip_tolerance)
        inputs = rotated_q, rotated_k, v, bias_inputs, self.scale
        y = attention.attend(*inputs, attention.PATHS[path], mask_spec, packed_qkv)
        return y.transpose(1, 2).flatten(2)

    def forward_backward(self, forward: Callable[[], Tensor]) -> dict[str, Tensor | None]:
        """Return the output of `forward()` and the gradients by name; None: it has no influence.

        dx is that of the features: the input of the encoding.
        """
        y = forward()
        parameters = dict(self.encoding.named_parameters())
        inputs = [self.projection, self.x, *parameters.values()]
        assert self.output_grad is not None  # by __post_init__
        dy = self.output_grad.to(y.dtype)
        dqkv, *grads = torch.autograd.grad(y, inputs, dy, allow_unused=True)
        dq, dk, dv = dqkv.chunk(3, -1)
        names = ["dx", *(f"d{name}" for name in parameters)]
        named = dict(zip(names, grads, strict=True))
        return {"output": y.detach(), "dq": dq, "dk": dk, "dv": dv, **named}

    def reference(self) -> dict[str, Tensor | None]:
        """Return the results of the dense path in float32."""
        projection = self.projection.detach().float().requires_grad_()
        layer = dataclasses.replace(self, projection=projection)
        return layer.forward_backward(lambda: layer.attend("dense"))


def random_layer(
    pe: str,
    heads: int,
    width: int,
    block_size: int,
    shape: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    causal: bool = True,
    attn_scale: float | None = None,
) -> AttentionLayer:
    """Return a layer with an untrained encoding and random inputs.

    block_size: training length, for the encoding. shape: (B, T) of the inputs.
    """
    torch.manual_seed(SEED)
    encoding = pe_spec.build(pe, heads, width, block_size, 1, causal)[0].to(device)
    x = torch.randn(*shape, width, device=device, requires_grad=True)
    projection = torch.randn(*shape, 3 * width, dtype=dtype, device=device, requires_grad=True)
    return AttentionLayer(encoding, heads, x, projection, attn_scale)


def relative_errors(
    results: dict[str, Tensor | None], exact: dict[str, Tensor | None]
) -> dict[str, float]:
    """Return the norm of each result's error divided by the norm of the exact result, by name."""
    norms = {name: 0.0 if x is None else x.norm().item() for name, x in exact.items()}
    smallest = NEGLIGIBLE * max(norms.values())
    errors = {}
    for name, x in exact.items():
        if x is None or norms[name] <= smallest:
            continue
        result = results[name]
        if result is None:
            errors[name] = 1.0
        else:
            errors[name] = (result.float() - x).norm().item() / norms[name]
    return errors
