"""Tensor functions that several core files use; registration of PyTorch operators."""

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Return x as float32, or as it is if it is float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat keys or values (B, G, S, D) for the heads that share them."""
    return x if x.size(1) == heads else x.repeat_interleave(heads // x.size(1), 1)


def expand_columns(x: Tensor, *shape: int) -> Tensor:
    """Expand columns (B|1, H|1, T[, N]) to (*shape, N)."""
    columns = x if x.dim() == 4 else x[..., None]
    return columns.expand(*shape, -1)


def sin_cos(angle: Tensor, radius: float = 1.0, dtype=torch.float32) -> tuple[Tensor, Tensor]:
    """Return radius times sines, cosines of angles (..., T, N) float64.

    No gradients. torch.compile would compute float64 per head and sequence.
    """
    if angle.size(-2) > 1 and dtype == torch.float32:
        return torch.ops.posenc.circle(angle, radius)
    return (angle.sin() * radius).to(dtype), (angle.cos() * radius).to(dtype)


def _empty(angle, radius):
    like = {"dtype": torch.float32, "memory_format": torch.contiguous_format}
    return [torch.empty_like(angle, **like), torch.empty_like(angle, **like)]


def _sin_cos(angle, radius):
    sin, cos = _empty(angle, radius)
    torch.sin(angle, out=sin)
    torch.cos(angle, out=cos)
    return [sin, cos] if radius == 1 else [sin.mul_(radius), cos.mul_(radius)]


def register(name, schema, function, fake, backward=None, setup_context=None):
    """Register posenc::name, unless a copy in an exported model did.

    torch.library.custom_op would import all of torch._dynamo at the first call, half of the time of
    a short evaluation.
    """
    if hasattr(torch.ops.posenc, name):
        return
    operator = f"posenc::{name}"
    torch.library.define(operator, schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(operator, "default", function)
    torch.library.register_fake(operator, fake)
    if backward is not None:
        torch.library.register_autograd(operator, backward, setup_context=setup_context)


register("circle", "(Tensor angle, float radius) -> (Tensor, Tensor)", _sin_cos, _empty)
