"""Attention: how is softmax(q k^T * scale + bias) v computed, for each kind of bias?

Three paths, one meaning:

    dense   the specification. Bias and softmax in float32, written out row by row: queries go in chunks, and each chunk is
            computed again in backward, so that memory is O(chunk * S) however long the text. On a CPU without gradients, rows
            that the whole batch shares become the mask of the fused kernel. Encodings that act on whole rows know no other path.
    sdpa    PyTorch's fused kernel, O(T) memory. A bias that is a short sum of products u_i * w_j is a dot product itself:
            u is appended to the queries as further columns, w to the keys, and the kernel never knows.
    triton  kernels.py, on GPUs: the bias of any encoding alone that says how (`in_registers`) is formed in registers. Where it is asked
            for, and where a record says that on such GPUs it is right and faster.

What is exact in float32 takes care in bf16, where the spacing of numbers near 700 is 4: each appended number is split into
two bf16 parts that add up to its float32 value, and products of parts get columns of their own. A term that is constant
along a row (w = 1) cancels in the softmax, yet it stays: the backward pass multiplies the rounding residue of a row by the
size of the bias, and only with both halves of a difference present does autograd subtract that residue again. Without gradients
it goes, and a third part takes its columns: what two parts round away shows in texts of 100,000 tokens.

What bf16 still costs: the fused kernel rounds the gradient of each token's S, of which a gate's gradient is a running sum, and that of
its bias a sum of running sums. On random numbers the latter is off by 4% at 256 tokens, by a third at 1,024, by more than itself at
4,096 (`bench.py attention`, column error); the dense path has none of it, and the Triton kernels less than 2% at 1,024.

Legend: B batch, H heads, T queries, S keys, D head size. Query number t is token `first` + t and sees the keys up to itself, or, where
the encoding is not causal, all; where `first` is not given, the queries are the last T of the S tokens.
"""

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import sdpa_kernel
from torch.utils.checkpoint import checkpoint

from errors import InputError

BACKEND = None  # of PyTorch's fused kernel, where a benchmark pins one; compiled code is guarded by it, and not by PyTorch's own setting
PATHS = ("auto", "sdpa", "dense", "triton")
SKIP_TOLERANCE = 2.0**-24  # of a row's weight: what float32 rounds away
CHUNK_ELEMENTS = 2**23  # logits of one dense chunk on a CPU: 32 MB in float32
TRANSFORMED = 4  # times as many numbers a pair where rows are transformed
GPU_CHUNK = 16  # times as many on a GPU: torch.compile takes half a second a chunk, and a block of small would have 49 of them, not 4


@dataclass(frozen=True)
class MaskSpec:
    """Which keys a query sees. causal: none after it; reach: none as far away as that; lengths: (B,) int64, how many tokens each text
    has, behind which padding begins, that only padding sees.
    """

    causal: bool = True
    window_size: int | None = None
    lengths: Tensor | None = None

    def shifted(self, first: int) -> "MaskSpec":
        """The same where keys are counted from that one on."""
        return (
            self
            if self.lengths is None
            else MaskSpec(self.causal, self.window_size, self.lengths - first)
        )


def mask_spec_of(
    encoding, window_size: int | None = None, lengths: Tensor | None = None
) -> MaskSpec:
    """What `encoding` lets a query see, no key further away than `reach`, and no padding."""
    limits = [limit for limit in (encoding.window_size, window_size) if limit is not None]
    return MaskSpec(encoding.causal, min(limits, default=None), lengths)


def resolve_path(path: str, encoding, q: Tensor | None = None) -> str:
    """The path that `encoding` takes where the user asked for `path`: "sdpa", "dense" or "triton".

    q: a tensor with the device, dtype and head size of queries to come; without it "auto" does not look for records of the kernels.
    Raises InputError for a path that the encoding, or this machine, cannot take.
    """
    rows = encoding.logits_transform is not None
    fused = (
        not rows
        and encoding.window_size is None
        and (encoding.bias is None or encoding.factors is not None)
    )
    if path not in PATHS:
        raise InputError(f"unknown attention path '{path}': choose one of {' '.join(PATHS)}")
    if path == "sdpa" and not fused:
        why = (
            "which acts on whole rows"
            if rows
            else "which hides keys"
            if encoding.window_size
            else "whose bias has no factors"
            if encoding.causal
            else "whose bias has no factors where later keys are seen"
        )
        raise InputError(
            f"attention: sdpa cannot compute {type(encoding).__name__}, {why}: choose auto or dense"
        )
    if path == "triton":
        if not triton_supports(encoding):
            raise InputError(
                f"attention: triton cannot form the bias of {type(encoding).__name__}: choose auto or dense"
            )
        _kernels()
        return path
    if path == "auto" and q is not None and q.is_cuda and _recorded(encoding, q):
        return "triton"
    return "sdpa" if fused and path != "dense" else "dense"


def _kernels():
    """The Triton kernels, imported where they are asked for: nothing else needs triton. InputError where they cannot run."""
    try:
        from triton_attention import kernels
    except ImportError as error:
        raise InputError(
            f"attention: triton needs kernels.py and triton, on a GPU ({error}): choose auto, or pip install triton"
        ) from None
    if not (torch.cuda.is_available() or kernels.INTERPRETED.value):
        raise InputError(
            "attention: triton needs a GPU, or TRITON_INTERPRET=1, which is slow: choose auto"
        )
    return kernels


def triton_supports(encoding) -> bool:
    """Whether the Triton kernels can form what the encoding adds."""
    return encoding.logits_transform is None and (
        encoding.bias is None or encoding.triton_bias is not None
    )


def _recorded(encoding, q: Tensor) -> bool:
    try:
        return (
            triton_supports(encoding)
            and encoding.window_size is None
            and _kernels().recorded(encoding.names, encoding.causal, q)
        )
    except InputError:  # there is no triton here
        return False


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding,
    q_features: tuple,
    k_features: tuple,
    scale: float,
    path: str,
    first: Tensor | None = None,
    window_size: int | None = None,
    skip_tolerance: float = SKIP_TOLERANCE,
    lengths: Tensor | None = None,
    packed: Tensor | None = None,
) -> Tensor:
    """Attention with the bias of `encoding`, causal where that is: q (B, H, T, D), k and v (B, H, S, D) -> (B, H, T, D), dtype of q.

    q_states, k_states: what encoding.states returned for these queries and keys; path: what `choose` returned.
    first: int64 (1,), without gradients and for few queries: keys after the queries are there, whatever they hold.
    reach: without gradients: keys this far back or further are not seen.
    skip_tolerance: which share of a row's weight the Triton kernels may leave out, where a bias makes far keys that small; 0: nothing.
    lengths: (B,) int64, T = S: how many tokens each text has, at least 1; padding follows them. Of use where later keys are seen; no
    fused bias knows of it, so that such a batch is masked row by row, by `dense` where it is given gradients.
    packed: (B, T, 3 C), of which q, and k and v but for earlier tokens, are the thirds as they lie: the Triton kernels give it its
    gradient whole, which saves a copy.
    """
    mask_spec = mask_spec_of(encoding, window_size, lengths)
    if first is not None:
        rows = _masked_rows if encoding.logits_transform is None else _dense_rows
        return rows(q, k, v, q_features, k_features, encoding, scale, first, mask_spec)
    if encoding.logits_transform is not None:
        return dense(q, k, v, encoding, q_features, k_features, scale, mask_spec)
    if (mask_spec.window_size is not None or lengths is not None) and not torch.is_grad_enabled():
        return _in_chunks(_masked_rows, q, k, v, q_features, k_features, encoding, scale, mask_spec)
    if encoding.bias is None and path == "sdpa":
        return _sdpa(q, k, v, scale, mask_spec)
    if lengths is not None:
        return dense(q, k, v, encoding, q_features, k_features, scale, mask_spec)
    # One bias for the whole batch, or one query: the rows of the bias are few enough to be a mask of the fused kernel.
    shared = q.device.type == "cpu" and all(s.size(0) == 1 for s in q_features + k_features)
    if (
        not torch.is_grad_enabled()
        and encoding.bias is not None
        and (q.size(2) == 1 if path != "dense" else shared)
    ):
        return _in_chunks(_masked_rows, q, k, v, q_features, k_features, encoding, scale, mask_spec)
    if path == "triton":
        kernels = _kernels()
        bias = kernels.bias_of(encoding, q_features, k_features, q.size(1))
        return kernels.attend(
            q, k, v, bias, scale, mask_spec.causal, mask_spec.window_size, skip_tolerance, packed
        )
    if path == "sdpa":
        return sdpa_with_bias(
            q, k, v, encoding.factors(q_features, k_features), scale, mask_spec.causal
        )
    return dense(q, k, v, encoding, q_features, k_features, scale, mask_spec)


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    encoding,
    q_features: tuple,
    k_features: tuple,
    scale: float,
    mask_spec: MaskSpec | None = None,
) -> Tensor:
    """The specification: float32 (float64 for float64 inputs), chunked over queries, recomputed in backward."""
    rows = _dense_rows
    if torch.is_grad_enabled():
        rows = functools.partial(checkpoint, rows, use_reentrant=False, preserve_rng_state=False)
    return _in_chunks(
        rows, q, k, v, q_features, k_features, encoding, scale, mask_spec or mask_spec_of(encoding)
    )


def _in_chunks(rows, q, k, v, q_features, k_features, encoding, scale, mask_spec):
    """What `rows` returns, _dense_rows or _masked_rows, of a few queries at a time.

    The last ones, which see the most keys, go first: what they free is large enough for all that follow. The other way round
    every chunk asks the system for more, and 32,768 tokens under `kerple` took 8 GB. With gradients backward would turn them round again.
    """
    if (
        encoding.distance_bias is not None and not torch.is_grad_enabled()
    ):  # a number for each distance, which all chunks share
        with torch.autocast(q.device.type, enabled=False):
            h, d = (
                torch.arange(q.size(1), device=q.device),
                torch.arange(0 if mask_spec.causal else 1 - k.size(2), k.size(2), device=q.device),
            )
            rows = functools.partial(rows, table=encoding.distance_bias(d.float(), h[:, None]))
    chunks = list(
        _row_chunks(
            q,
            k,
            v,
            q_features,
            k_features,
            mask_spec,
            1 if encoding.logits_transform is None else TRANSFORMED,
        )
    )
    turn = 1 if torch.is_grad_enabled() else -1
    return torch.cat(
        [rows(*chunk, encoding, scale, *place) for chunk, place in chunks[::turn]][::turn], 2
    )


def _row_chunks(q, k, v, q_features, k_features, mask_spec=MaskSpec(), numbers=1):
    """((q, k, v, q_states, k_states), (first, sight)) of a few queries at a time and of the keys that they see; numbers: of a pair and
    head."""
    B, H, T, _ = q.shape
    S = k.size(2)
    rows = max(16, CHUNK_ELEMENTS * (GPU_CHUNK if q.is_cuda else 1) // (B * H * S * numbers))
    for start in range(0, T, rows):
        stop = min(start + rows, T)
        begin = max(0, S - T + start - mask_spec.window_size + 1) if mask_spec.window_size else 0
        end = (
            S - T + stop
            if mask_spec.causal
            else min(S, S - T + stop + mask_spec.window_size - 1)
            if mask_spec.window_size
            else S
        )
        seen = slice(begin, end)  # by any query of the chunk
        yield (
            (
                q[:, :, start:stop],
                k[:, :, seen],
                v[:, :, seen],
                tuple(s[..., start:stop] if s.size(-1) > 1 else s for s in q_features),
                tuple(s[..., seen] for s in k_features),
            ),
            (S - T + start - begin, mask_spec.shifted(begin)),
        )


def _dense_rows(q, k, v, q_features, k_features, encoding, scale, first, mask_spec, table=None):
    with torch.autocast(q.device.type, enabled=False):
        rows = logits(
            q, k, encoding, q_features, k_features, scale, first, mask_spec, table
        ).masked_fill(unseen(q, k, first, mask_spec), -torch.inf)
        return (rows.softmax(-1) @ v.to(rows.dtype)).to(q.dtype)


def logits(
    q: Tensor,
    k: Tensor,
    encoding,
    q_features: tuple,
    k_features: tuple,
    scale: float,
    first: int | Tensor = 0,
    mask_spec: MaskSpec = MaskSpec(),
    table: Tensor | None = None,
) -> Tensor:
    """What the softmax is taken of, where keys are seen; the first query is token `first`; table: see `bias`.

    -> (B, H, T, S) float32, float64 for float64 inputs.
    """
    with torch.autocast(q.device.type, enabled=False):
        q = q.to(torch.promote_types(q.dtype, torch.float32))
        found = q @ k.to(q.dtype).mT * scale
        if encoding.bias is None and encoding.logits_transform is None:
            return found
        added = found.new_zeros(1, 1, 1, 1)
        if encoding.bias is not None:
            added = bias_matrix(
                encoding, q_features, k_features, q.size(1), q.size(2), first, table
            )
        if encoding.logits_transform is not None:
            i, j = _token_indices(q, k, first)
            added = added + encoding.logits_transform(
                found, added, q, i - j, unseen(q, k, first, mask_spec)
            )
        return found + added


def bias_matrix(
    encoding,
    q_features: tuple,
    k_features: tuple,
    heads: int,
    queries: int,
    first: int | Tensor = 0,
    table: Tensor | None = None,
) -> Tensor:
    """The matrix B of `queries` tokens from token `first` on, future keys included: (B|1, H|1, T, S) float32.

    A bias of distance alone is computed once for each distance, or found in `table` (H, distances), of all distances there are, in
    their order; its gradient is summed along diagonals by unfold.
    """
    h = torch.arange(heads, device=k_features[0].device)
    if encoding.distance_bias is not None:
        S = k_features[0].size(-1)
        last = first + queries - 1
        d = last - torch.arange(
            S + queries - 1, device=h.device
        )  # of the last query, then earlier ones
        d = d.clamp(min=0) if encoding.causal else d
        if table is None:
            line = encoding.distance_bias(d.float(), h[:, None])
        else:
            line = table[:, d if encoding.causal else d + table.size(1) // 2]
        return line.unfold(1, S, 1).flip(1)[None]
    return encoding.bias(
        tuple(s[..., None] for s in q_features),
        tuple(s[..., None, :] for s in k_features),
        h[:, None, None],
    )


def unseen(
    q: Tensor, k: Tensor, first: int | Tensor = 0, mask_spec: MaskSpec = MaskSpec()
) -> Tensor:
    """Which keys a query does not see: q (B, H, T, D), k (B, H, S, D) -> (T, S) bool, or (B, 1, T, S) where texts have lengths."""
    i, j = _token_indices(q, k, first)
    hidden = i < j if mask_spec.causal else (i < 0).expand(-1, len(j))
    if mask_spec.window_size is not None:
        hidden = hidden | ((i - j).abs() >= mask_spec.window_size)
    if mask_spec.lengths is not None:
        lengths = mask_spec.lengths[:, None, None, None]
        hidden = hidden | (i < lengths) & (j >= lengths)
    return hidden


def _token_indices(q, k, first):
    """Numbers of the queries' tokens (T, 1) and of the keys' (S,)."""
    i, j = (torch.arange(x.size(2), device=q.device) for x in (q, k))
    return (first + i)[:, None], j


def _masked_rows(q, k, v, q_features, k_features, encoding, scale, first, mask_spec, table=None):
    """The fused kernel with the rows of the bias as its mask; without gradients."""
    with torch.autocast(q.device.type, enabled=False):
        hidden = unseen(q, k, first, mask_spec)
        if encoding.bias is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden, scale=scale)
        rows = bias_matrix(
            encoding, q_features, k_features, q.size(1), q.size(2), first, table
        ).masked_fill(hidden, -torch.inf)
        rows = (
            rows if q.device.type == "cpu" else rows.to(q.dtype)
        )  # GPU kernels want one dtype, the CPU's takes float32
        return F.scaled_dot_product_attention(q, k, v, attn_mask=rows, scale=scale)


def _sdpa(q, k, v, scale, mask_spec):
    """The fused kernel; is_causal means the upper left corner, so fewer queries than keys need a mask of their own."""
    if BACKEND is not None:
        with sdpa_kernel(BACKEND):
            return F.scaled_dot_product_attention(q, k, v, is_causal=mask_spec.causal, scale=scale)
    if mask_spec.lengths is None and (q.size(2) == k.size(2) or not mask_spec.causal):
        return F.scaled_dot_product_attention(q, k, v, is_causal=mask_spec.causal, scale=scale)
    first = k.size(2) - q.size(2)
    mask = (
        ~unseen(q, k, first, mask_spec) if q.size(2) > 1 or mask_spec.lengths is not None else None
    )
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def sdpa_with_bias(
    q: Tensor, k: Tensor, v: Tensor, factors, scale: float, causal: bool = True
) -> Tensor:
    """SDPA with the bias sum_r u_r[i] w_r[j] as further columns of q and k; factors: pairs (u, w) as of posenc.py."""
    B, H, T, D = q.shape
    S = k.size(2)
    with torch.autocast(q.device.type, enabled=False):
        grad = torch.is_grad_enabled()
        columns = [
            column
            for u, w in factors
            if grad or w is not None
            for column in _columns(u / scale, w, q.dtype, 2 if grad else 3)
        ]
        of_q, of_k = (
            [_wide(u, B, H, T) for u, _ in columns],
            [_wide(w, B, H, S) for _, w in columns],
        )
        pad = -(D + sum(x.size(-1) for x in of_q)) % 8  # fused kernels want head sizes in eights
        q = torch.cat([q, *of_q, q.new_zeros(B, H, T, pad)], -1)
        k = torch.cat([k, *of_k, k.new_zeros(B, H, S, pad)], -1)
        v = F.pad(v, (0, q.size(-1) - D))
        return _sdpa(q, k, v, scale, MaskSpec(causal))[..., :D]


def _wide(x: Tensor, *shape: int) -> Tensor:
    """One column, or several at once, as (*shape, columns)."""
    return (x if x.dim() == 4 else x[..., None]).expand(*shape, -1)


def _columns(
    u: Tensor, w: Tensor | None, dtype: torch.dtype, parts: int
) -> list[tuple[Tensor, Tensor]]:
    """Pairs of columns in `dtype` whose products add up to u w, in float32's precision with three parts each, nearly with two.

    Gradients flow through the leading parts alone, whose partners add up to the whole other factor.
    """
    u_parts = _split(u, dtype, parts)
    if w is None:
        return [(part, u.new_ones((), dtype=dtype)) for part in u_parts]
    w_parts = _split(w, dtype, parts)
    return [(a, b) for i, a in enumerate(u_parts) for j, b in enumerate(w_parts) if i + j < parts]


def _split(x: Tensor, dtype: torch.dtype, parts: int) -> list[Tensor]:
    """x as a sum in `dtype`: x itself where it fits, else the rounded value and, detached, what rounding lost, part by part."""
    if torch.promote_types(dtype, x.dtype) == dtype:
        return [x.to(dtype)]
    limit = torch.finfo(
        dtype
    ).max  # float16 ends at 65,504: a bias as large means "do not look there" all the same
    found = []
    for _ in range(parts):
        found.append(x.clamp(-limit, limit).to(dtype))
        x = (x - found[-1].to(x.dtype)).detach()
    return found
