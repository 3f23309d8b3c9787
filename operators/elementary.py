"""PyTorch operators of the encodings: cumulative sums, and sines and cosines."""

import torch
from torch import Tensor


def running_sum(x: Tensor) -> Tensor:
    """Return x.cumsum(-1), computed by PyTorch's own kernel even in compiled code.

    That of torch.compile is not deterministic on GPUs. Also, torch 2.11 fails to compile a scan of
    a sum with a broadcast bias.
    """
    return torch.ops.posenc.running_sum(x) if x.size(-1) > 1 else x


def sin_cos(angle: Tensor, radius: float = 1.0, dtype=torch.float32) -> tuple[Tensor, Tensor]:
    """Return radius times sines and cosines of angles (..., T, N) float64, as dtype; no gradient.

    An operator, because torch.compile would compute them in float64 for each head and sequence.
    """
    if angle.size(-2) > 1 and dtype == torch.float32:
        return torch.ops.posenc.circle(angle, radius)
    return (angle.sin() * radius).to(dtype), (angle.cos() * radius).to(dtype)


def _running_sum(x):
    """Return x.cumsum(-1). Only for a single row, PyTorch's O(T^2) deterministic sum is needed."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(mode if x.numel() == x.size(-1) else 0)
    try:
        return x.cumsum(-1)
    finally:
        torch.set_deterministic_debug_mode(mode)


def _empty(angle, radius):
    like = {"dtype": torch.float32, "memory_format": torch.contiguous_format}
    return [torch.empty_like(angle, **like), torch.empty_like(angle, **like)]


def _sin_cos(angle, radius):
    sin, cos = _empty(angle, radius)
    torch.sin(angle, out=sin)
    torch.cos(angle, out=cos)
    return [sin, cos] if radius == 1 else [sin.mul_(radius), cos.mul_(radius)]


def register(name, schema, function, fake, backward=None, setup_context=None):
    """Register the operator posenc::name, unless a copy of its file in an exported model did."""
    if hasattr(torch.ops.posenc, name):
        return
    operator = torch.library.custom_op(f"posenc::{name}", function, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    if backward is not None:
        operator.register_autograd(backward, setup_context=setup_context)


register("circle", "(Tensor angle, float radius) -> (Tensor, Tensor)", _sin_cos, _empty)
register(
    "running_sum",
    "(Tensor x) -> Tensor",
    _running_sum,
    lambda x: torch.empty_like(x, memory_format=torch.contiguous_format),
    lambda ctx, grad: running_sum(grad.flip(-1)).flip(-1),
)
