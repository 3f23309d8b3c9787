"""FlexAttention: the attention path "flex".

PyTorch's FlexAttention compiles a kernel for the encoding's own formula (`Encoding.bias`), forward
and, on GPUs, backward. It does not fit calls without gradients: it would be compiled for each
length, or hold all logits.
"""

import functools

import torch
from torch import Tensor

from posenc import Encoding


def reason_against(encoding: Encoding) -> str | None:
    """Return why FlexAttention cannot compute an encoding, or None."""
    if encoding.needs_rows:
        return "it acts on full rows of logits"
    if not all(getattr(part, "is_elementwise", True) for part in encoding.modules()):
        return "its bias is not elementwise"
    # A decorator would import the compiler, which takes seconds.
    torch.compiler.assume_constant_result(_block_mask)
    return None


def fits(q: Tensor, k: Tensor, mask_spec) -> bool:
    """Return whether the path computes a call: with gradients."""
    return torch.is_grad_enabled()


def compute(q, k, v, bias_inputs, scale, mask_spec, packed_qkv=None) -> Tensor:
    """Compute attention by FlexAttention; arguments of `attention.biased_attention`."""
    run = _compiled() if q.is_cuda and not torch.compiler.is_compiling() else _flex_attention
    return run(q, k, v, bias_inputs, scale, mask_spec)


@functools.cache
def _compiled():
    return torch.compile(_flex_attention, dynamic=False)


def _flex_attention(q, k, v, bias_inputs, scale, mask_spec):
    from torch.nn.attention import flex_attention

    encoding, q_features, k_features = bias_inputs
    # No gradients flow to a tensor that score_mod indexes twice.
    k_features = tuple(feature.clone() for feature in k_features)

    def score_mod(score, b, h, i, j):
        q_values = _at(q_features, b, h, i)
        return score + encoding.bias(q_values, _at(k_features, b, h, j), h)

    block_mask = None
    if mask_spec.causal or mask_spec.window_size is not None:
        lengths = q.size(2), k.size(2)
        block_mask = _block_mask(mask_spec.causal, mask_spec.window_size, *lengths, q.device)
    modify = None if not encoding.has("bias") else score_mod
    grouped = k.size(1) != q.size(1)
    return flex_attention.flex_attention(q, k, v, modify, block_mask, scale, grouped)


def _at(features, b, h, token):
    """Return the features of one token of a sequence and head, each ()."""
    values = []
    for feature in features:
        batch, heads, tokens = feature.shape[:3]
        index = b if batch > 1 else 0, h if heads > 1 else 0, token if tokens > 1 else 0
        values.append(feature[index])
    return tuple(values)


@functools.lru_cache(8)
def _block_mask(causal, window_size, queries, keys, device):
    """Return the block mask; the queries are the last of the keys."""
    from torch.nn.attention.flex_attention import create_block_mask

    def is_attended(b, h, i, j):
        d = i + keys - queries - j
        attended = d >= 0 if causal else d > -keys
        return attended if window_size is None else attended & (d.abs() < window_size)

    return create_block_mask(is_attended, None, None, queries, keys, device=device)
