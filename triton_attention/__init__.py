"""Triton kernels for attention with a bias: the attention path "triton".

The first use of the path imports Triton:

    interface      fused_attention and its checks; what a user of the kernels imports
    bias           kinds of biases; building one from an encoding
    tile_skipping  which tiles of keys cannot matter
    operators      PyTorch operators: launches, autograd, torch.compile
    tile_sizes     tile sizes, warps and stages of each kernel
    kernels        the Triton kernels
    flex           PyTorch's FlexAttention: the attention path "flex", for training

Without a GPU the kernels run, slowly, in Triton's interpreter, if TRITON_INTERPRET=1 is set.
"""

import torch
from torch import Tensor

from posenc import Encoding

HEAD_DIMS = range(16, 129)  # of the kernels

# Exported folders copy this file alone. torch.compile cannot trace globals().
IN_EXPORT = "__path__" not in globals()


def supports(encoding: Encoding) -> bool:
    """Return whether the Triton kernels can compute the bias of an encoding."""
    if encoding.needs_rows or encoding.changes_width:
        return False
    return not encoding.has("bias") or encoding.has("triton_bias")


def reason_against(encoding: Encoding) -> str | None:
    """Return why the kernels cannot compute an encoding here, or None."""
    if IN_EXPORT:
        return "exported folders do not include it"
    if not supports(encoding):
        return "the kernels have no such bias"
    try:
        import triton  # noqa: F401

        from triton_attention.interface import INTERPRETED
    except ImportError as error:
        return f"it needs Triton ({error}; pip install triton)"
    if not (torch.cuda.is_available() or INTERPRETED.value):
        return "it needs a GPU, or TRITON_INTERPRET=1, which is slow"
    return None


def compute(q, k, v, bias_inputs, scale, mask_spec, packed_qkv=None) -> Tensor:
    """Compute attention by the kernels; arguments of `attention.biased_attention`."""
    from triton_attention import interface

    encoding, q_features, k_features = bias_inputs
    bias = interface.bias_from_encoding(encoding, q_features, k_features, q.size(1))
    causal, window_size = mask_spec.causal, mask_spec.window_size
    return interface.fused_attention(
        q, k, v, bias, scale, causal, window_size, packed_qkv=packed_qkv
    )
