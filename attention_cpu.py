"""Attention on CPUs: batched matrix products, the attention path "batched".

`auto` takes it on a CPU instead of "sdpa". It computes whole texts of at most BATCHED_TOKENS
tokens, faster than PyTorch's fused kernel; "sdpa" computes longer texts and cached tokens.

Legend: B batch, H heads, T tokens, D head dimension, N texts and heads, R products of the bias.
"""

import torch
from torch import Tensor

from operators.elementary import expand_columns, register, repeat_heads

# Limits of calls: tokens, and logits (results/bench/attention.jsonl); of blocks: queries, and
# logits per thread, which fit into the cache.
BATCHED_TOKENS = 1024
BATCHED_LOGITS = 2**26
BATCHED_ROWS = 128
BATCHED_BLOCK = 2**18


def fits(q: Tensor, k: Tensor, mask_spec) -> bool:
    """Return whether a call has whole, short texts on a CPU."""
    B, H, T, _ = q.shape
    is_short = T <= BATCHED_TOKENS and B * H * T * T <= BATCHED_LOGITS
    is_whole = k.size(2) == T and mask_spec.lengths is None
    return q.device.type == "cpu" and is_short and is_whole


def compute(q, k, v, bias_inputs, scale, mask_spec, packed_qkv=None):
    """Compute attention by `batched_products`; see `attention.biased_attention`."""
    encoding, q_features, k_features = bias_inputs
    if k.size(1) != q.size(1):
        k, v = (repeat_heads(x, q.size(1)) for x in (k, v))
    factors = [] if not encoding.has("bias") else encoding.factors(q_features, k_features)
    return batched_products(q, k, v, factors, scale, mask_spec.causal)


def batched_products(
    q: Tensor, k: Tensor, v: Tensor, factors, scale: float, causal: bool = True
) -> Tensor:
    """Compute attention with the bias sum_r u_r[i] w_r[j] by batched products.

    q, k (B, H, T, D), v (B, H, T, E) -> (B, H, T, E). factors: pairs (u, w), see posenc.py. Logits,
    softmax and bias are float32.
    """
    B, H, T, _ = q.shape
    dtype = torch.promote_types(q.dtype, torch.float32)
    columns = [(u, w) for u, w in factors if w is not None]  # others cancel in the softmax
    u_columns = [expand_columns(u.to(dtype), B, H, T) for u, _ in columns]
    w_columns = [expand_columns(w.to(dtype), B, H, T) for _, w in columns]
    none = q.new_empty(B, H, T, 0, dtype=dtype)
    u = torch.cat([none, *u_columns], -1)
    w = torch.cat([none, *w_columns], -1)
    gradients = torch.is_grad_enabled()
    bias_learns = gradients and (u.requires_grad or w.requires_grad)
    inputs = (x.flatten(0, 1) for x in (q, k, v, u, w))
    y, _ = torch.ops.posenc.batched_attention(*inputs, scale, causal, gradients, bias_learns)
    return y.view(v.shape)


# q, k (N, T, D), v (N, T, E), u, w (N, T, R) -> (N, T, E). An operator, because torch.compile would
# unroll its loop.
def _batched_attention(q, k, v, u, w, scale, causal, gradients, bias_learns):
    """Return softmax(q k^T * scale + u w^T) v and all blocks' weights, for backward."""
    y, saved = _batched_attention_fake(q, k, v, u, w, scale, causal, gradients, bias_learns)
    with torch.autocast("cpu", enabled=False):
        left = torch.cat([q.to(u.dtype) * scale, u], -1)
        right = torch.cat([k.to(w.dtype), w], -1)
        future = left.new_full((BATCHED_ROWS, BATCHED_ROWS), -torch.inf).triu(1)
        for texts, queries, keys, block in _blocks(q, causal):
            logits = left[texts, queries] @ right[texts, keys].mT
            if causal:
                rows = logits.size(1)
                logits[..., -rows:] += future[:rows, :rows]
            weights = logits.softmax(-1)
            rounded = weights.to(v.dtype)
            y[texts, queries] = rounded @ v[texts, keys]
            if gradients:
                saved[block].view(weights.shape).copy_(weights if bias_learns else rounded)
    return y, saved


def _batched_attention_fake(q, k, v, u, w, scale, causal, gradients, bias_learns):
    elements = 0
    if gradients:
        *_, (_, _, _, last) = _blocks(q, causal)
        elements = last.stop
    saved = q.new_empty(elements, dtype=u.dtype if bias_learns else v.dtype)
    return torch.empty_like(v, memory_format=torch.contiguous_format), saved


def _batched_attention_backward(dy, q, k, v, u, w, saved, scale, causal, bias_learns):
    """Return the gradients of q, k, v, u, w; the latter two may be zeros."""
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    dk, dv, du, dw = (x.new_zeros(x.shape, dtype=u.dtype) for x in (k, v, u, w))
    with torch.autocast("cpu", enabled=False):
        # The bias's gradients are sums along the text, which need float32.
        wide_dy, wide_v = (x.to(u.dtype) if bias_learns else x for x in (dy, v))
        for texts, queries, keys, block in _blocks(q, causal):
            d_weights = wide_dy[texts, queries] @ wide_v[texts, keys].mT
            weights = saved[block].view(d_weights.shape)
            softmax_backward = torch.ops.aten._softmax_backward_data
            d_logits = softmax_backward(d_weights, weights, -1, weights.dtype)
            if bias_learns:
                # Transposed products are faster for a few columns.
                du[texts, queries] = (w[texts, keys].mT @ d_logits.mT).mT
                dw[texts, keys] += (u[texts, queries].mT @ d_logits).mT
            d_logits = d_logits.to(q.dtype)
            dq[texts, queries] = d_logits @ k[texts, keys]
            dk[texts, keys] += d_logits.mT @ q[texts, queries]
            dv[texts, keys] += weights.to(dy.dtype).mT @ dy[texts, queries]
    return dq.mul_(scale), dk.mul_(scale).to(k.dtype), dv.to(v.dtype), du, dw


def _batched_attention_backward_fake(dy, q, k, v, u, w, saved, scale, causal, bias_learns):
    return tuple(x.new_empty(x.shape) for x in (q, k, v, u, w))


def _save_for_backward(ctx, inputs, output):
    """Save what backward needs, without a gradient of the saved weights."""
    q, k, v, u, w, ctx.scale, ctx.causal, _, ctx.bias_learns = inputs
    ctx.save_for_backward(q, k, v, u, w, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _batched_gradients(ctx, dy, _):
    """Return the gradients of `_batched_attention`'s arguments."""
    if dy is None:  # nothing depends on the output
        return (None,) * 9
    grads = torch.ops.posenc.batched_attention_backward(
        dy, *ctx.saved_tensors, ctx.scale, ctx.causal, ctx.bias_learns
    )
    return *grads, None, None, None, None


def _blocks(q: Tensor, causal: bool):
    """Yield each block's slices: texts and heads, queries, keys, weights."""
    N, T, _ = q.shape
    block_logits = BATCHED_BLOCK * torch.get_num_threads()
    first = 0
    for start in range(0, T, BATCHED_ROWS):
        stop = min(start + BATCHED_ROWS, T)
        keys = stop if causal else T
        step = max(1, block_logits // ((stop - start) * keys))
        for text in range(0, N, step):
            texts = slice(text, min(text + step, N))
            end = first + (texts.stop - text) * (stop - start) * keys
            yield texts, slice(start, stop), slice(0, keys), slice(first, end)
            first = end


register(
    "batched_attention_backward",
    "(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor u, Tensor w, Tensor saved, float scale, "
    "bool causal, bool bias_learns) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _batched_attention_backward,
    _batched_attention_backward_fake,
)
register(
    "batched_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor u, Tensor w, float scale, bool causal, bool gradients, "
    "bool bias_learns) -> (Tensor, Tensor)",
    _batched_attention,
    _batched_attention_fake,
    _batched_gradients,
    _save_for_backward,
)
