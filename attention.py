"""Attention with the additive bias of a positional encoding.

    y = attend(encoding, x, q, k, v, pos)    # in a layer, instead of PyTorch's function

computes softmax(q k^T * scale + bias) v. Paths are its implementations:

    dense   The reference: bias and softmax in float32, in full rows. Chunks of
            queries are recomputed in backward, so memory is O(chunk * S). The
            only path of encodings that act on full rows of logits.
    sdpa    PyTorch's scaled_dot_product_attention, with O(T) memory. A bias that
            is a short sum of products u_i * w_j is itself a dot product: u is
            appended to the queries as extra columns and w to the keys.
            sdpa/flash, sdpa/cudnn and sdpa/efficient name PyTorch's backend,
            an error where it does not support the shapes.
    masked  PyTorch's kernel with the bias as its attn_mask, without gradients, for
            sliding windows, padding, fixed shapes and small biases. On a GPU
            this rounds the bias to the dtype of q.

`get_path` imports the others when they are used: "batched" (attention_cpu), "triton" and "flex"
(triton_attention). A user's setting (`PathName`) can be neither "batched", which is auto's, nor
"masked", which `select_path` takes for single calls.

Precision of the sdpa path in bf16, whose numbers near 700 are 4 apart: each appended number is
split into two bf16 parts, and each product of parts except the smallest gets its own columns. A
term that is constant along a row (w = 1) cancels in the softmax, but is kept in training, because
the gradients of a row's logits do not sum to exactly zero. Without gradients its columns hold a
third part, which long texts need. The kernel still rounds the gradient of each token's S to bf16;
gradients of the gates are sums of those.

Legend: B batch, H heads, T queries, S keys, D head dimension.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from errors import InputError
from operators.elementary import at_least_float32, expand_columns, repeat_heads
from posenc import Encoding, accepts_grouped_keys

# torch.compile does not guard on PyTorch's own setting of backends.
BACKENDS = {
    "sdpa/flash": SDPBackend.FLASH_ATTENTION,
    "sdpa/cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa/efficient": SDPBackend.EFFICIENT_ATTENTION,
}
PathName = Literal[
    "auto", "sdpa", "sdpa/flash", "sdpa/cudnn", "sdpa/efficient", "triton", "flex", "dense"
]
GPU_PATHS = {"sdpa/cudnn", "sdpa/efficient", "flex"}  # without gradients on a CPU
NONDETERMINISTIC = {"sdpa/cudnn", "flex"}  # gradients are sums in any order
CUDNN_VERSION = 91501  # 9.15.1, the oldest one that `auto` takes
CHUNK_ELEMENTS = 2**23  # logits in one chunk of the dense path on a CPU: 32 MB in float32
FULL_ROW_FACTOR = 4  # numbers held per logit by encodings that act on full rows
# Larger chunks on a GPU: torch.compile takes half a second for each.
GPU_CHUNK_FACTOR = 16
CHECKPOINTING: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}


@dataclass(frozen=True)
class MaskSpec:
    """Mask specification: which keys each query attends to.

    causal:         no key after the query.
    window_size:    only keys nearer than this many tokens; None: all.
    lengths:        (B,) int64, tokens of each text, at least 1; the rest is
                    padding. Needs T = S. None: no padding.
    query_offset:   position of the first query among the keys, int or int64
                    (1,); None: the queries are the last T of the S tokens. With
                    a tensor the keys are a buffer of fixed shape, masked after
                    the queries.
    """

    causal: bool = True
    window_size: int | None = None
    lengths: Tensor | None = None
    query_offset: int | Tensor | None = None

    def offset(self, queries: int, keys: int) -> int | Tensor:
        """Return the position of the first query among the keys."""
        return keys - queries if self.query_offset is None else self.query_offset


class BiasInputs(NamedTuple):
    """An encoding and its features of these queries and keys."""

    encoding: Encoding
    q_features: tuple[Tensor, ...]
    k_features: tuple[Tensor, ...]


def accept(encoding: Encoding) -> None:
    """Accept every encoding: a path has no reason against it."""


@dataclass(frozen=True)
class Path:
    """An implementation of attention; each layer has one.

    compute(q, k, v, bias_inputs, scale, mask_spec, packed_qkv): as `biased_attention`.
    reason_against(encoding): why the path cannot compute it here, or None.
    takes_padding: whether it computes padded texts of encodings without a bias.
    fits(q, k, mask_spec): whether it computes a call, or else a general path.
    head_dims: head dimensions for which `auto` takes it.
    """

    name: str
    compute: Callable[..., Tensor]
    reason_against: Callable[[Encoding], str | None] = accept
    takes_padding: bool = False
    fits: Callable[[Tensor, Tensor, MaskSpec], bool] | None = None
    head_dims: range = range(1, 1 << 20)


def make_mask_spec(
    encoding: Encoding,
    window_size: int | None = None,
    lengths: Tensor | None = None,
    query_offset: int | Tensor | None = None,
) -> MaskSpec:
    """Return the mask specification of an encoding; the smaller window counts."""
    sizes = [size for size in (encoding.window_size, window_size) if size is not None]
    smallest = min(sizes, default=None)
    return MaskSpec(encoding.causal, smallest, lengths, query_offset)


def attention_mask(q: Tensor, k: Tensor, mask_spec: MaskSpec) -> Tensor:
    """Return the attention mask, True where a query attends to a key.

    q (B, H, T, D), k (B, H, S, D) -> (T, S) bool, or (B, 1, T, S) with lengths.
    """
    i, j = _token_indices(q, k, mask_spec)
    mask = i >= j if mask_spec.causal else (i >= 0).expand(-1, len(j))
    if mask_spec.window_size is not None:
        mask = mask & ((i - j).abs() < mask_spec.window_size)
    if mask_spec.lengths is not None:
        lengths = mask_spec.lengths[:, None, None, None]
        # Queries in the padding attend to all keys, so that no row is empty.
        mask = mask & ((i >= lengths) | (j < lengths))
    return mask


def _masks_nothing(q, mask_spec):
    """Return whether q is only the last cached token, which attends to all."""
    limits = (mask_spec.window_size, mask_spec.lengths, mask_spec.query_offset)
    return q.size(2) == 1 and all(limit is None for limit in limits)


def _token_indices(q, k, mask_spec):
    """Return the token indices of the queries (T, 1) and of the keys (S,)."""
    queries, keys = q.size(2), k.size(2)
    i = mask_spec.offset(queries, keys) + torch.arange(queries, device=q.device)
    return i[:, None], torch.arange(keys, device=q.device)


def attend(
    encoding: Encoding,
    x: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    pos: Tensor,
    *,
    path: Path | None = None,
    cache=None,
    lengths: Tensor | None = None,
    scale: float | None = None,
    packed_qkv: Tensor | None = None,
) -> Tensor:
    """Compute a layer's attention, as F.scaled_dot_product_attention, with its encoding.

    q (B, H, T, D), k, v (B, G, T, D) -> (B, H, T, D), dtype of q. G divides H: consecutive heads
    share keys and values.

    x: (B, T, C), the layer's normalized input. pos: (B|1, T) int64, positions of the tokens.
    path: of the layer, from `choose_path`; None: that of "auto". cache: the LayerCache with the
    earlier tokens, which is extended. lengths: (B,) int64, tokens of each text, for padded batches
    of encoders. scale: of q k^T; None: 1 / sqrt(D). packed_qkv: (B, T, 3 H D), of which q, k and v
    are views, with H = G; the Triton kernels return one gradient for it.
    """
    if encoding.required_calls is not None:
        _check_calls(encoding)
    if k.size(2) != x.size(1):
        raise InputError(
            f"attend got keys of {k.size(2)} tokens, but x of {x.size(1)}: pass those of the "
            "same new tokens, and earlier tokens as a kv_cache.LayerCache"
        )
    if scale is None:
        scale = 1 / math.sqrt(q.size(-1))
    previous = cache.last() if cache else None
    with torch.autocast(x.device.type, enabled=False):  # sums along the text need float32
        q_features, k_features = encoding.features(at_least_float32(x), pos, previous)
    if any(feature.size(2) != x.size(1) for feature in k_features):
        name = type(encoding).__name__
        raise InputError(
            f"{name}.features returns key features for another number of tokens: make them "
            "(B or 1, H or 1, T), of pos (B or 1, T) by pos.to(x.dtype)[:, None]"
        )
    heads = q.size(1)
    if k.size(1) < heads and not accepts_grouped_keys(encoding):
        k, v = repeat_heads(k, heads), repeat_heads(v, heads)
    rotated_q, rotated_k = encoding.rotate(q, k, pos, q_features, k_features)
    if rotated_q is not q or rotated_k is not k:
        packed_qkv = None
    q, k = rotated_q, rotated_k
    window_size = query_offset = None
    if cache:
        # (B, G, S, D), S cached and new
        k, v, *k_features = cache.extend(k, v, *k_features)
        window_size = cache.window
        query_offset = cache.position
    bias_inputs = BiasInputs(encoding, q_features, tuple(k_features))
    mask_spec = make_mask_spec(encoding, window_size, lengths, query_offset)
    path = choose_path(encoding, q.device) if path is None else path
    path = select_path(path, q, k, bias_inputs, mask_spec)
    return biased_attention(q, k, v, bias_inputs, scale, path, mask_spec, packed_qkv)


def _check_calls(encoding: Encoding) -> None:
    """Raise InputError if a model of your own does not call what the encoding needs."""
    calls = encoding.required_calls
    assert calls is not None
    calls.attend = True
    if not calls.embed:
        raise InputError(
            "the encoding acts on the embeddings: call x = posenc[0].embed(x, pos) after the "
            "token embedding"
        )
    if not calls.prepare and encoding.training and torch.is_grad_enabled():
        raise InputError(
            "the encoding has bounded parameters: call pe_spec.prepare(posenc, optimizer) before "
            "training"
        )


def biased_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias_inputs: BiasInputs,
    scale: float,
    path: Path,
    mask_spec: MaskSpec | None = None,
    packed_qkv: Tensor | None = None,
) -> Tensor:
    """Compute attention with given features by a path.

    q (B, H, T, D), k (B, G, S, D), v (B, G, S, E) -> (B, H, T, E), dtype of q. E is D, unless the
    encoding changes the width of q and k. path: from `choose_path` for whole texts without padding,
    else from `select_path`. mask_spec: None: the encoding's. The arithmetic has the dtype of k and
    v (KV cache on a CPU).
    """
    mask_spec = mask_spec or make_mask_spec(bias_inputs.encoding)
    with torch.autocast(q.device.type, enabled=False):  # biases and softmax need float32
        y = path.compute(q.to(k.dtype), k, v, bias_inputs, scale, mask_spec, packed_qkv)
    return y.to(q.dtype)


def select_path(
    path: Path, q: Tensor, k: Tensor, bias_inputs: BiasInputs, mask_spec: MaskSpec
) -> Path:
    """Return the path of one call of a layer that has `path`.

    In training it is `path`, if it fits and there is no padding; for inference MASKED, if `path`
    does not know the mask, or the bias is small.
    """
    encoding, q_features, k_features = bias_inputs
    if path.fits is not None and not path.fits(q, k, mask_spec):
        path = _general_path(encoding)
    inference = not torch.is_grad_enabled()
    padding = mask_spec.lengths is not None
    if encoding.needs_rows:
        return DENSE
    if mask_spec.query_offset is not None:
        return MASKED
    if inference and (padding or mask_spec.window_size is not None):
        return MASKED
    if padding:
        return path if path.takes_padding and not encoding.has("bias") else DENSE
    if inference and encoding.has("bias"):
        bias_is_small = q.size(2) == 1  # one row
        if path.name == DENSE.name:  # or one bias for all texts of the batch
            is_shared = all(feature.size(0) == 1 for feature in q_features + k_features)
            bias_is_small = is_shared and q.device.type == "cpu"
        if bias_is_small:
            return MASKED
    return path


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias_inputs: BiasInputs,
    scale: float,
    mask_spec: MaskSpec | None = None,
    packed_qkv: Tensor | None = None,
) -> Tensor:
    """Compute attention by the reference, in float32 or float64; see `biased_attention`."""
    mask_spec = mask_spec or make_mask_spec(bias_inputs.encoding)
    k, v = repeat_heads(k, q.size(1)), repeat_heads(v, q.size(1))
    if mask_spec.query_offset is not None:
        return _dense_rows(q, k, v, bias_inputs, scale, mask_spec)
    compute_rows = _dense_rows
    if torch.is_grad_enabled():
        compute_rows = functools.partial(checkpoint, _dense_rows, **CHECKPOINTING)
    return _in_chunks(compute_rows, q, k, v, bias_inputs, scale, mask_spec)


def _masked(q, k, v, bias_inputs, scale, mask_spec, packed_qkv=None):
    """Compute attention with the bias as attn_mask; without gradients."""
    if _masks_nothing(q, mask_spec) or mask_spec.query_offset is not None:
        return _masked_rows(q, k, v, bias_inputs, scale, mask_spec)
    return _in_chunks(_masked_rows, q, k, v, bias_inputs, scale, mask_spec)


def _fused(q, k, v, bias_inputs, scale, mask_spec, packed_qkv=None, backend=None):
    """Compute attention by the fused kernel, the bias as extra columns."""
    encoding, q_features, k_features = bias_inputs
    if not encoding.has("bias"):
        return sdpa(q, k, v, scale, mask_spec, backend)
    factors = encoding.factors(q_features, k_features)
    return sdpa_with_bias(q, k, v, factors, scale, mask_spec.causal, backend)


def _in_chunks(compute_rows, q, k, v, bias_inputs, scale, mask_spec):
    """Apply _dense_rows or _masked_rows to a few queries at a time."""
    chunks = list(_chunks(q, k, v, bias_inputs, mask_spec))
    if torch.is_grad_enabled():
        return torch.cat([compute_rows(*chunk, scale, spec) for chunk, spec in chunks], 2)
    # The last chunk needs the most memory, which the others reuse.
    outputs = [compute_rows(*chunk, scale, spec) for chunk, spec in reversed(chunks)]
    return torch.cat(outputs[::-1], 2)


def _chunks(q, k, v, bias_inputs, mask_spec):
    """Yield ((q, k, v, bias_inputs), mask_spec) of a few queries each."""
    encoding, q_features, k_features = bias_inputs
    B, H, T, _ = q.shape
    S = k.size(2)
    causal, window_size = mask_spec.causal, mask_spec.window_size
    reach, lengths = window_size or S, mask_spec.lengths
    elements = CHUNK_ELEMENTS * (GPU_CHUNK_FACTOR if q.is_cuda else 1)
    if encoding.has("logits_transform"):
        elements //= FULL_ROW_FACTOR
    rows_per_chunk = max(16, elements // (B * H * S))
    for start in range(0, T, rows_per_chunk):
        stop = min(start + rows_per_chunk, T)
        first_query, end_query = S - T + start, S - T + stop
        first_key = max(0, first_query - reach + 1)
        end_key = end_query if causal else min(S, end_query + reach - 1)
        queries, keys = slice(start, stop), slice(first_key, end_key)
        chunk_inputs = BiasInputs(
            encoding,
            tuple(x[:, :, queries] if x.size(2) > 1 else x for x in q_features),
            tuple(x[:, :, keys] for x in k_features),
        )
        chunk = q[:, :, queries], k[:, :, keys], v[:, :, keys], chunk_inputs
        chunk_lengths = None if lengths is None else lengths - first_key
        offset = first_query - first_key
        yield chunk, MaskSpec(causal, window_size, chunk_lengths, offset)


def _dense_rows(q, k, v, bias_inputs, scale, mask_spec):
    """Compute attention for all of q at once, in float32 or float64."""
    mask = attention_mask(q, k, mask_spec)
    all_logits = logits(q, k, bias_inputs, scale, mask_spec)
    all_logits = all_logits.masked_fill(~mask, -torch.inf)
    if not bias_inputs.encoding.has("sink"):
        weights = all_logits.softmax(-1)  # (B, H, T, S)
    else:
        sink = bias_inputs.encoding.sink().to(all_logits.dtype)[:, None, None]
        columns = all_logits, sink.expand(*all_logits.shape[:3], 1)
        weights = torch.cat(columns, -1).softmax(-1)[..., :-1]
    return (weights @ v.to(weights.dtype)).to(q.dtype)


def logits(
    q: Tensor,
    k: Tensor,
    bias_inputs: BiasInputs,
    scale: float,
    mask_spec: MaskSpec | None = None,
) -> Tensor:
    """Return logits q k^T * scale + bias, meaningful where the mask is True.

    -> (B, H, T, S), at least float32.
    """
    encoding = bias_inputs.encoding
    mask_spec = mask_spec or make_mask_spec(encoding)
    q = at_least_float32(q)
    scaled = q @ k.to(q.dtype).mT * scale  # (B, H, T, S)
    if not encoding.has("bias") and not encoding.has("logits_transform"):
        return scaled
    bias = scaled.new_zeros(1, 1, 1, 1)
    if encoding.has("bias"):
        query_offset = mask_spec.offset(q.size(2), k.size(2))
        bias = bias_matrix(bias_inputs, q.size(1), q.size(2), query_offset)
    if encoding.has("logits_transform"):
        i, j = _token_indices(q, k, mask_spec)
        mask = attention_mask(q, k, mask_spec)
        pairs = q, k.to(q.dtype), scale, i - j, mask
        features = bias_inputs.q_features, bias_inputs.k_features
        bias = bias + encoding.logits_transform(scaled, bias, *pairs, *features)
    return scaled + bias


def bias_matrix(
    bias_inputs: BiasInputs, heads: int, queries: int, query_offset: int | Tensor = 0
) -> Tensor:
    """Return the bias of `queries` tokens from index `query_offset` on.

    -> (B|1, H|1, T, S), dtype of the features, later keys included. A bias of the distance is
    computed once for each distance.
    """
    encoding, q_features, k_features = bias_inputs
    h = torch.arange(heads, device=k_features[0].device)
    if not encoding.has("distance_bias"):
        assert encoding.has("bias"), "the encoding has no bias"
        return encoding.bias(
            tuple(feature[:, :, :, None] for feature in q_features),
            tuple(feature[:, :, None] for feature in k_features),
            h[:, None, None],
        )
    # of running features there are fewer
    keys = max(feature.size(2) for feature in k_features)
    last_query = query_offset + queries - 1
    # Distances of the last query, then those that only earlier queries have.
    d = last_query - torch.arange(keys + queries - 1, device=h.device)
    d = d.clamp(min=0) if encoding.causal else d
    line = encoding.distance_bias(d.to(k_features[0].dtype), h[:, None])
    return line.unfold(1, keys, 1).flip(1)[None]  # (1, H, T, S)


def _masked_rows(q, k, v, bias_inputs, scale, mask_spec):
    """Compute attention for all of q with a mask; without gradients."""
    mask = None if _masks_nothing(q, mask_spec) else attention_mask(q, k, mask_spec)
    if not bias_inputs.encoding.has("bias"):
        return _scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    query_offset = mask_spec.offset(q.size(2), k.size(2))
    bias = bias_matrix(bias_inputs, q.size(1), q.size(2), query_offset)
    if mask is not None:
        bias = bias.masked_fill(~mask, -torch.inf)
    if q.device.type != "cpu" or q.dtype == torch.float64:
        # GPU kernels need one dtype; the CPU kernel accepts float32
        bias = bias.to(q.dtype)
    return _scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)


def _scaled_dot_product_attention(q, k, v, **options):
    """Pad v, or q and k: with two widths PyTorch takes its slowest kernel."""
    width = v.size(-1)
    if k.size(1) != q.size(1):
        if q.size(2) == 1 and not options.get("is_causal"):
            return _one_query_per_head(q, k, v, **options)
        options["enable_gqa"] = True
    missing = q.size(-1) - width
    if missing > 0:
        v = F.pad(v, (0, missing))
    elif missing < 0:
        q, k = F.pad(q, (0, -missing)), F.pad(k, (0, -missing))
    y = F.scaled_dot_product_attention(q, k, v, **options)
    return y[..., :width] if missing > 0 else y


def _one_query_per_head(q, k, v, attn_mask=None, scale=None):
    """Pass heads that share a key as queries, so that keys are not copied."""
    B, H, _, D = q.shape
    groups = k.size(1)
    if attn_mask is not None and attn_mask.dim() == 4 and attn_mask.size(1) > 1:
        attn_mask = attn_mask.reshape(-1, groups, H // groups, attn_mask.size(-1))
    queries = q.reshape(B, groups, -1, D)
    y = _scaled_dot_product_attention(queries, k, v, attn_mask=attn_mask, scale=scale)
    return y.reshape(B, H, 1, -1)


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask_spec: MaskSpec,
    backend: SDPBackend | None = None,
) -> Tensor:
    """Compute attention without a bias by the fused kernel.

    q (B, H, T, D), k (B, H, S, D), v (B, H, S, E) -> (B, H, T, E).
    backend: None: PyTorch selects it. What a given one does not support is an error with gradients;
    without, other kernels compute it, as bias columns in three parts widen q.
    """
    if backend is not None:
        others = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        others = [] if torch.is_grad_enabled() else others
        with sdpa_kernel([backend, *others], set_priority=True):
            return sdpa(q, k, v, scale, mask_spec)
    causal = mask_spec.causal
    padding = mask_spec.lengths is not None
    if not padding and (q.size(2) == k.size(2) or not causal):
        return _scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)
    # is_causal aligns to the upper left: fewer queries than keys need a mask.
    mask = attention_mask(q, k, mask_spec) if padding or q.size(2) > 1 else None
    return _scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def sdpa_with_bias(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Iterable[tuple[Tensor, Tensor | None]],
    scale: float,
    causal: bool = True,
    backend: SDPBackend | None = None,
) -> Tensor:
    """Compute attention with the bias sum_r u_r[i] w_r[j] as extra columns.

    q (B, H, T, D), k (B, H, S, D), v (B, H, S, E) -> (B, H, T, E).
    factors: pairs (u, w), see posenc.py. backend: see `sdpa`.
    """
    B, H, T, D = q.shape
    S, E = v.shape[2:]
    k, v = repeat_heads(k, H), repeat_heads(v, H)
    gradients = torch.is_grad_enabled()
    parts = 2 if gradients else 3
    columns = []
    for u, w in factors:
        if w is not None or gradients:
            columns += _columns(u / scale, w, q.dtype, parts)
    q_columns = [expand_columns(u, B, H, T) for u, _ in columns]
    k_columns = [expand_columns(w, B, H, S) for _, w in columns]
    width = D + sum(x.size(-1) for x in q_columns)
    width += -width % 8  # fused kernels need head dimensions that are multiples of 8
    q, k = _append(q, q_columns, width), _append(k, k_columns, width)
    y = sdpa(q, k, _append(v, [], width), scale, MaskSpec(causal), backend)
    if y.is_cuda:  # so that the gradient has this order
        return y.transpose(1, 2)[..., :E].transpose(1, 2)
    return y[..., :E]


def _append(x: Tensor, columns: list[Tensor], width: int) -> Tensor:
    """Return x (B, H, T, D) with columns (B, H, T, N), then zeros, appended."""
    padding = width - sum(part.size(-1) for part in (x, *columns))
    parts = [x, *columns, x.new_zeros(*x.shape[:3], padding)]
    if x.is_cuda:  # in memory (B, T, H, width): else flash attention's backward copies
        return torch.cat([part.transpose(1, 2) for part in parts], -1).transpose(1, 2)
    return torch.cat(parts, -1)


def _columns(
    u: Tensor, w: Tensor | None, dtype: torch.dtype, parts: int
) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of columns in `dtype` whose products add up to u * w."""
    u_parts = _split(u, dtype, parts)
    if w is None:
        ones = u.new_ones((), dtype=dtype)
        return [(part, ones) for part in u_parts]
    w_parts = _split(w, dtype, parts)
    return [(a, b) for i, a in enumerate(u_parts) for b in w_parts[: parts - i]]


def _split(x: Tensor, dtype: torch.dtype, parts: int) -> list[Tensor]:
    """Split x into `dtype` parts: x rounded, then rounding errors, detached."""
    if torch.promote_types(dtype, x.dtype) == dtype:
        return [x.to(dtype)]
    # A bias of float16's maximum, 65,504, means "do not attend" anyway.
    limit = torch.finfo(dtype).max
    rounded = []
    for _ in range(parts):
        rounded.append(x.clamp(-limit, limit).to(dtype))
        x = (x - rounded[-1].to(x.dtype)).detach()
    return rounded


def _general_path(encoding: Encoding) -> Path:
    """Return the path for any length and device."""
    return DENSE if reason_against_sdpa(encoding) else PATHS["sdpa"]


def reason_against_sdpa(encoding: Encoding) -> str | None:
    """Return why the fused kernel cannot compute an encoding, or None."""
    if encoding.needs_rows:
        return "it acts on full rows of logits"
    if encoding.window_size is not None:
        return "it has a sliding window"
    if not encoding.has("bias") or encoding.has("factors"):
        return None
    where = "" if encoding.causal else " in bidirectional attention"
    return f"its bias has no factors{where}"


PATHS = {
    name: Path(
        name,
        functools.partial(_fused, backend=backend),
        reason_against_sdpa,
        takes_padding=True,
    )
    for name, backend in {"sdpa": None, **BACKENDS}.items()
}
DENSE = PATHS["dense"] = Path("dense", dense)
MASKED = Path("masked", _masked)


def get_path(name: str) -> Path:
    """Return the path with this name; imports the folder that computes it.

    Raises InputError for an unknown name. A path whose folder is missing has a reason against every
    encoding.
    """
    if name in PATHS:
        return PATHS[name]
    try:
        if name == "batched":
            import attention_cpu as cpu

            path = Path(name, cpu.compute, reason_against_sdpa, takes_padding=True, fits=cpu.fits)
        elif name == "triton":
            import triton_attention as kernels

            dims = kernels.HEAD_DIMS
            path = Path(name, kernels.compute, kernels.reason_against, head_dims=dims)
        elif name == "flex":
            from triton_attention import flex

            path = Path(name, flex.compute, flex.reason_against, fits=flex.fits)
        else:
            known = " ".join(get_args(PathName))
            raise InputError(f"unknown attention path '{name}': use one of {known}")
    except ImportError as error:
        reason = f"this folder lacks {error.name}"
        path = Path(name, dense, lambda encoding: reason)
    PATHS[name] = path
    return path


def choose_path(
    encoding: Encoding,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    head_dim: int = 64,
    *,
    training: bool = False,
    deterministic: bool = False,
    name: str = "auto",
) -> Path:
    """Return the attention path of a layer: `name`, or the first one of its row for "auto".

    device  use        encoding        paths
    cpu     both       all             batched (short texts; sdpa computes the others), sdpa
    cuda    training   rotation only   sdpa/cudnn (see `_prefers_cudnn`), sdpa, triton, flex
                       others          triton (its head dimensions), sdpa, flex
            inference  all             sdpa, triton
    all     both       those left      dense

    dtype: of queries and keys; head_dim: D. deterministic: without NONDETERMINISTIC. Raises
    InputError if the named path cannot compute the encoding here.
    """
    if name != "auto":
        if training and device.type == "cpu" and name in GPU_PATHS:
            raise InputError(f"attention {name} needs a GPU: use auto, sdpa or dense")
        if deterministic and name in NONDETERMINISTIC:
            raise InputError(f"attention {name} is not deterministic: use auto, sdpa or dense")
        path = get_path(name)
        if reason := path.reason_against(encoding):
            raise InputError(
                f"the {name} attention path cannot compute {type(encoding).__name__}, because "
                f"{reason}: use auto or dense"
            )
        return path
    rotates_only = encoding.has("rotate") and not encoding.has("bias")
    if device.type == "cpu":
        names = ["batched", "sdpa"]
    elif not training:
        names = ["sdpa", "triton"]
    elif rotates_only:
        names = ["sdpa/cudnn", "sdpa", "triton", "flex"]
    else:
        names = ["triton", "sdpa", "flex"]
    left_out = {*NONDETERMINISTIC} if deterministic else set()
    if "sdpa/cudnn" in names and not _prefers_cudnn(encoding, device, dtype, head_dim):
        left_out.add("sdpa/cudnn")
    if find_spec("triton") is None:  # it compiles FlexAttention
        left_out.add("flex")
    for path in (get_path(candidate) for candidate in names if candidate not in left_out):
        if head_dim in path.head_dims and path.reason_against(encoding) is None:
            return path
    return DENSE


def _prefers_cudnn(encoding, device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Return whether cuDNN's kernel computes a rotation right, and the fastest on an H100.

    Before 9.15.1 it reads out of bounds at lengths that 128 does not divide. AMD's GPUs report
    capability 9, too.
    """
    if torch.version.hip or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    is_supported = head_dim % 8 == 0 and head_dim <= 128 and not encoding.changes_width
    return (
        is_supported
        and dtype != torch.float32
        and (torch.backends.cudnn.version() or 0) >= CUDNN_VERSION
    )


def join_names(paths: Iterable[Path]) -> str:
    """Return one name if all paths are equal, else all, joined by "_"."""
    names = [path.name for path in paths]
    return names[0] if len(set(names)) == 1 else "_".join(names)


def path_of_texts(path: Path, encoding: Encoding, shape: tuple[int, int, int]) -> Path:
    """Return the path of a layer that has `path`, for whole texts; shape: (B, H, T)."""
    q = torch.empty(1).expand(*shape, 1)
    if path.fits is None or path.fits(q, q, MaskSpec()):
        return path
    return _general_path(encoding)
