"""Positional encodings: one class per encoding, with formula and source.

`pe_spec.build` makes them from --pe strings such as "rope+cable" or "t5:buckets=64". To add one,
subclass `Encoding` with `names`, in your own file (--plugin) or in more_encodings/. Override only
the hooks where it acts:

    hook              acts on                                          examples
    embed             token embeddings, once per model                 learnable, sinusoidal
    features          nothing itself: gives the next three hooks a     cable, fire, carope
                      few numbers of each token, from the layer's input
    rotate            queries and keys, in every layer                 rope, pope, carope
    bias              attention logits: a formula of the query's and   cable, alibi, fire
                      the key's features
    logits_transform  attention logits, whole rows at once             cope, dape, path
    sink              the softmax: a logit of no token                 sink
    window_size       attention mask (sliding window)                  window

The dense path, the KV cache, long contexts in chunks and bias plots need only `bias`. Tutorial:
docs/adding_an_encoding.md.

Legend: B batch, H heads, T queries, S keys, D head dimension, C width, L training length
(block_size); query position i, key position j, d = i - j. Formulas are for decoders; an encoder has
|i - j| for d and -|S_i - S_j| for S_i - S_j.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from errors import InputError
from operators.elementary import register, sin_cos

M = TypeVar("M", bound=nn.Module)
ENCODINGS: dict[str, type["Encoding"]] = {}  # --pe name -> class
Pair = tuple[tuple, tuple]  # features of queries, of keys
Parts = list[tuple["Encoding", tuple, tuple]]  # encodings with their features
MISSING: Any = None  # value of an optional hook that a class does not define


class ModuleList(nn.ModuleList, Generic[M]):
    """nn.ModuleList that declares the type of its elements."""

    if TYPE_CHECKING:
        __init__: Callable[[Iterable[M]], None]
        __getitem__: Callable[[int], M]

        def __iter__(self) -> Iterator[M]: ...


@dataclass
class Calls:
    """What a model of your own has called: True if called, or not needed.

    One instance for all layers. docs/own_model.md has the three places.
    """

    embed: bool
    prepare: bool
    attend: bool = False


def _note_call(embed: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a class's `embed` that notes its call in `required_calls`."""

    @functools.wraps(embed)
    def noting(self, x, pos):
        if self.required_calls is not None:
            self.required_calls.embed = True
        return embed(self, x, pos)

    return noting


class Encoding(nn.Module):
    """Base class of encodings. Subclasses with `names` register themselves.

    Optional hooks; `has` reports whether an instance has one. h: head indices:

    bias(q_features, k_features, h) -> (B|1, H|1, T, S) float32
        Added to the scaled logits. Elementwise over features that broadcast to
        (B, H, T, S); index parameters of a head with [h], h: (H, 1, 1). Must be
        finite for later keys, too.
    factors(q_features, k_features) -> pairs (u, w)
        Products u_i w_j add up to the bias. u: (B|1, H|1, T), w: (B|1, H|1, S)
        float32, or with a fourth dimension for several products; w = None means
        ones. Parameters of all heads: self.r[None, :, None].
    triton_bias(q_features, k_features, h) -> (kind, tensors by name), h: (H,)
        The bias as one of the kinds in triton_attention/bias.py.
    distance_bias(d, h) -> bias, elementwise over d and h: (H, 1, 1) or (H, 1)
        d: float32, negative only if bidirectional. Only in a DistanceBias.
    logits_transform(logits, bias, q, k, scale, d, mask, q_features, k_features)
        -> (B, H, T, S), added to logits + bias. logits: q k^T * scale; bias:
        (B|1, H|1, T|1, S|1), zeros if there is none; q: (B, H, T, D) and k:
        (B, H, S, D), after `rotate`; d: (T, S) int64; mask: (T, S) bool, True
        where a query attends to a key; others must not affect the result.
    start_at_zero_() makes the bias nearly 0, to add it to a trained model.
    sink() -> (H,), a logit of no token in each row's softmax.
    """

    names: tuple[str, ...] = ()  # --pe names
    scope = "layer"  # "layer": one instance per layer; "model": one instance for all layers
    max_context: int | None = None  # longest supported sequence in tokens; None: no limit
    is_elementwise = True  # False: FlexAttention cannot compile it, as matrix products
    running_features: tuple[int, ...] = ()  # indices of key features that only `rotate` reads
    window_size: int | None = None  # attend only to |d| < window_size; None: to all
    causal = True  # do not attend to later keys; `set_bidirectional` sets it to False
    required_calls: Calls | None = None  # in a model of your own, from `pe_spec.build`
    combined_window_size: int | None = None  # of the combination that this is a part of
    supports_bidirectional = True  # whether an encoder can use the encoding
    scales_queries = False  # whether `rotate` only scales queries: combines with others
    needs_head_dimension = False  # whether D = C / H counts: then no option `heads`
    changes_width = False  # whether `rotate` returns q and k of another width than D
    rotates_heads_alike = False  # whether `rotate` takes fewer heads of keys
    min_option_value = 1  # smallest value of integer options
    option_words: dict[str, tuple[str, ...]] = {}  # options that are words -> allowed words
    causal_only: tuple[str, ...] = ()  # optional hooks that are wrong for later keys
    bias: Callable[..., Tensor] = MISSING
    factors: Callable[..., Iterable[tuple[Tensor, Tensor | None]]] = MISSING
    triton_bias: Callable[..., tuple[str, dict[str, Tensor]]] = MISSING
    distance_bias: Callable[..., Tensor] = MISSING
    logits_transform: Callable[..., Tensor] = MISSING
    sink: Callable[[], Tensor] = MISSING

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "embed" in vars(cls):
            cls.embed = _note_call(cls.embed)
        ENCODINGS.update(dict.fromkeys(cls.names, cls))

    def __init__(self, heads: int, channels: int, block_size: int):
        """Subclasses add options as keyword-only arguments."""
        super().__init__()

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Return embeddings x (B, T, C) with positions pos (B|1, T) int64 added."""
        return x

    def rotate(
        self,
        q: Tensor,
        k: Tensor,
        pos: Tensor,
        q_features: tuple = (),
        k_features: tuple = (),
    ) -> tuple[Tensor, Tensor]:
        """Return q (B, H, T, D), k (B, H|G, T, D) at pos (B|1, T), transformed; same dtypes.

        Keys that heads share are repeated first, unless `rotates_heads_alike`.
        """
        return q, k

    def features(self, x: Tensor, pos: Tensor, previous: tuple | None = None) -> Pair:
        """Return (query features, key features), tuples of x's dtype.

        Each is (B|1, H|1, T), or (B|1, H|1, T, N) for N numbers each.
        x: (B, T, C) float32 or float64, the layer's normalized input; pos: (B|1, T) int64.
        previous: key features of the preceding token, each (B|1, H|1, 1[, N]), when x continues a
        sequence (KV cache). Add it to cumulative sums (`running_sum`). Query features that are
        equal for all tokens may have T = 1. Of `running_features` a KV cache keeps only the latest
        token's.
        """
        return (), ()

    def has(self, hook: str) -> bool:
        """Return whether it defines a hook, such as "factors", for its mode."""
        own = getattr(self, hook)
        is_own = getattr(own, "__func__", own) is not getattr(Encoding, hook)
        return is_own and (self.causal or hook not in self.causal_only)

    @property
    def needs_rows(self) -> bool:
        """Whether it acts on full rows of logits, which only the dense path has."""
        return self.has("logits_transform") or self.has("sink")

    def clamp_parameters_(self) -> None:
        """Clamp after a step; in forward it would zero gradients."""

    def set_bidirectional(self) -> None:
        """Switch to bidirectional attention, for an encoder; encodings inside, too."""
        self.causal = False
        for child in self.modules():
            if isinstance(child, Encoding) and child is not self:
                child.set_bidirectional()

    def split(self, q_features: tuple, k_features: tuple) -> Parts:
        """Return (part, its query features, its key features) of all parts."""
        return [(self, q_features, k_features)]


class WeightedDecay(Encoding):
    """Base class of biases g_i (S_i - S_j), S decreasing, weights g_i >= 0.

    Query features (S, g), key features (S,). Differences are taken in float32.
    Bidirectional: no factors, because |S_i - S_j| is no sum of products.
    """

    triton_kind = "decay"
    causal_only = ("factors",)

    @staticmethod
    def cumulative_sum(steps: Tensor, previous: tuple | None) -> Tensor:
        """Return S (B, H, T), the sum of steps (B, T, H) from `previous` on."""
        s = running_sum(steps.mT.contiguous())
        return s if previous is None else s + previous[0]

    def bias(self, q_features, k_features, h):
        (s_i, g_i), (s_j,) = q_features, k_features
        decay = s_i - s_j
        return g_i * (decay if self.causal else -decay.abs())

    def factors(self, q_features, k_features):
        (s_i, g_i), (s_j,) = q_features, k_features
        # Centered: half the rounding error in bf16. Not detached: the gradient of S sums to zero,
        # as the exact one.
        center = s_i[..., s_i.size(-1) // 2, None]
        return (g_i * (s_i - center), None), (-g_i, s_j - center)

    def triton_bias(self, q_features, k_features, h):
        (s_i, g_i), (s_j,) = q_features, k_features
        return self.triton_kind, {"s_i": s_i, "g": g_i, "s_j": s_j}


class Cable(WeightedDecay):
    """g_i (S_i - S_j), S = cumsum(-ReLU(x w_c)), g = Softplus(x w_s).

    w_c and w_s are linear layers C -> H, N(0, 0.02), with zero biases. As
    printed, equations 5 and 7 make the bias positive; the paper's text and the
    authors' code make it decay.
    Source: Veisi et al. 2025 (CABLE), eqs. 2-7
    """

    names = ("cable",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.step = nn.Linear(channels, heads)  # w_c
        self.weight = nn.Linear(channels, heads)  # w_s

    def features(self, x, pos, previous=None):
        matrix = torch.cat([self.step.weight, self.weight.weight])  # (2 H, C)
        offset = torch.cat([self.step.bias, self.weight.bias])  # (2 H,)
        step, g = F.linear(x, matrix, offset).chunk(2, -1)  # (B, T, H) each
        s = self.cumulative_sum(-F.relu(step), previous)
        return (s, F.softplus(g).mT.contiguous()), (s,)

    @torch.no_grad()
    def start_at_zero_(self):
        self.step.weight.zero_()
        self.step.bias.fill_(1e-9)  # at 0, ReLU would have no gradient


class CableNW(WeightedDecay):
    """S_i - S_j, S = cumsum(-ReLU(x w_c)): CABLE without the weights g.

    Source: Veisi et al. 2025 (CABLE), eq. 5, there CABLE_NW
    """

    names = ("cable-nw",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.step = nn.Linear(channels, heads)  # w_c

    def features(self, x, pos, previous=None):
        s = self.cumulative_sum(-F.relu(self.step(x)), previous)
        return (s, s.new_ones(1, 1, 1)), (s,)


class Fox(WeightedDecay):
    """S_i - S_j, S = cumsum(log sigmoid(x w_f + b_f)), a forget gate per token and head.

    It is also the bias of CABLE's first version (eqs. 2-4) with the sign of the
    weights flipped, since -Softplus(z) = log sigmoid(-z).
    Source: Lin et al. 2025 (Forgetting Transformer); Veisi et al. 2025, version 1
    """

    names = ("fox", "cable-v1")

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.gate = nn.Linear(channels, heads)

    def features(self, x, pos, previous=None):
        s = self.cumulative_sum(F.logsigmoid(self.gate(x)), previous)
        return (s, s.new_ones(1, 1, 1)), (s,)


class LogDecay(WeightedDecay):
    """Base class of biases -log(b^2 + 1), b a WeightedDecay bias."""

    factors = MISSING
    start_at_zero_: None = None  # there, the slope of the logarithm is 0
    triton_kind = "log-decay"

    def bias(self, q_features, k_features, h):
        return -super().bias(q_features, k_features, h).square().log1p()


class KCable(LogDecay, Cable):
    """-log(b^2 + 1), b the bias of `cable`. Meant for shallow models.

    Source: Veisi et al. 2025 (CABLE), section 5.6
    """

    names = ("k-cable",)


class KFox(LogDecay, Fox):
    """-log(b^2 + 1), b the bias of `cable-v1`.

    Source: Veisi et al. 2025, version 1, section 5.4, which prints the other sign
    """

    names = ("k-cable-v1",)


class NoPE(Encoding):
    """No positional encoding: only the causal mask depends on positions.

    Source: Haviv et al. 2022; Kazemnejad et al. 2024
    """

    names = ("nope",)


class ALiBi(WeightedDecay):
    """-m_h d, fixed slopes m_h = 2^(-8n/H), n = 1..H.

    If H is not a power of two, slopes are interleaved. S = -pos, g = m.
    Source: Press et al. 2021
    """

    names = ("alibi",)
    slopes: Tensor  # (1, H, 1)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.set_slopes(alibi_exponents(heads))

    def set_slopes(self, exponents: Tensor) -> None:
        """Set the slopes to 2^(-exponents), exponents (H,) float64."""
        self.register_buffer("slopes", torch.exp2(-exponents).float()[None, :, None], False)

    def features(self, x, pos, previous=None):
        s = -pos.to(x.dtype)[:, None]  # (B|1, 1, T)
        return (s, self.slopes), (s,)


class DistanceBias(Encoding):
    """Base class of functions of the distance: define only `distance_bias`."""

    distance_bias: Callable[..., Tensor]

    def features(self, x, pos, previous=None):
        p = pos.to(x.dtype)[:, None]  # (B|1, 1, T)
        return (p,), (p,)

    def bias(self, q_features, k_features, h):
        d = q_features[0] - k_features[0]
        return self.distance_bias(d.clamp(min=0) if self.causal else d, h)

    def triton_bias(self, q_features, k_features, h):
        d = distances(k_features[0].size(-1), self.causal, h.device)
        return "distance", {"table": self.distance_bias(d, h[:, None])}


class Kerple(DistanceBias):
    """-r1 log(1 + r2 d), r1 ~ U(0, 2) and r2 ~ U(0, 1) learnable per head, both >= 0.01.

    Source: Chi et al. 2022 (KERPLE), logarithmic variant
    """

    names = ("kerple",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.r1 = nn.Parameter(2 * torch.rand(heads))
        self.r2 = nn.Parameter(torch.rand(heads))
        self.clamp_parameters_()

    def distance_bias(self, d, h):
        return -self.r1[h] * (self.r2[h] * d.abs()).log1p()

    @torch.no_grad()
    def clamp_parameters_(self):
        self.r1.clamp_(min=0.01)
        self.r2.clamp_(min=0.01)


class T5(DistanceBias):
    """r_h[bucket(d)], buckets exact up to half of them, then logarithmic up to max_distance.

    All layers share r ~ N(0, 0.02). Bidirectional: half are for later keys.
    Source: Raffel et al. 2020 (T5)
    """

    names = ("t5",)
    scope = "model"

    def __init__(self, heads, channels, block_size, *, buckets: int = 32, max_distance: int = 128):
        super().__init__(heads, channels, block_size)
        if buckets < 4 or max_distance <= buckets // 2:
            remedy = "use at least 4 buckets and a max_distance above half of them"
            raise InputError(f"t5: no bucket is logarithmic: {remedy}")
        self.buckets, self.max_distance = buckets, max_distance
        self.table = nn.Parameter(0.02 * torch.randn(heads, buckets))

    def distance_bias(self, d, h):
        buckets = self.buckets if self.causal else self.buckets // 2
        exact = buckets // 2
        distance = d.abs()
        longest = math.log(self.max_distance / exact)
        log_ratio = (distance.clamp(min=exact) / exact).log() / longest
        logarithmic = (exact + log_ratio * (buckets - exact)).floor().clamp(max=buckets - 1)
        bucket = torch.where(distance < exact, distance, logarithmic).long()
        return self.table[h, bucket + buckets * (d < 0)]


class T5Clip(DistanceBias):
    """r_h[min(d, k)], one learnable bias per distance; k = L - 1 by default.

    The CABLE paper's description of T5's bias, and DIET-REL. r ~ N(0, 0.02).
    Source: Veisi et al. 2025 (CABLE), T5-bias; Chen et al. 2021 (DIET-REL), eq. 3
    """

    names = ("t5-clip", "diet-rel")

    def __init__(self, heads, channels, block_size, *, k: int | None = None):
        super().__init__(heads, channels, block_size)
        self.k = block_size - 1 if k is None else k
        self.table = nn.Parameter(0.02 * torch.randn(heads, self.k + 1))

    def distance_bias(self, d, h):
        return self.table[h, d.abs().clamp(max=self.k).long()]


class RoPE(Encoding):
    """Rotates the pair (q[n], q[n + R/2]) by the angle pos base^(-2n/R), n < R/2; keys likewise.

    R is D, or `percent` of it. Pairs are half of R apart, as in Llama.
    Source: Su et al. 2024 (RoFormer), eq. 34
    """

    names = ("rope",)
    rotates_heads_alike = True
    attention_factor = 1.0  # scale of queries and keys; YaRN changes it
    rotated_heads: int | None = None  # the first heads, which are rotated; None: all

    def __init__(self, heads, channels, block_size, *, base: int = 10_000, percent: int = 100):
        super().__init__(heads, channels, block_size)
        self.base = base
        if percent > 100:
            raise InputError(f"rope: percent is {percent}: use 1 to 100")
        self.rotated_percent = percent

    def frequencies(self, width: int, device: torch.device) -> Tensor:
        """Return radians per token of each of width/2 pairs, float64."""
        return frequencies(width, self.base, device)

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        width = max(2, q.size(-1) * self.rotated_percent // 200 * 2)  # R
        # (B|1, T, R/2)
        angle = pos.double()[..., None] * self.frequencies(width, pos.device)
        dtype = torch.promote_types(q.dtype, torch.float32)
        # (B|1, T, 1, R/2)
        sin, cos = (x[:, :, None] for x in sin_cos(angle, self.attention_factor, dtype))
        if self.rotated_heads is not None:  # others by 0: faster than splitting heads
            acts = torch.arange(q.size(1), device=q.device)[:, None] < self.rotated_heads
            # (B|1, T, H, R/2)
            sin, cos = torch.where(acts, sin, 0), torch.where(acts, cos, 1)
        if pos.size(1) == 1 and self.rotated_heads is None:  # half the operations for a token
            rotated = rotate_pairs(torch.cat([q, k], 1), sin, cos)
            return rotated.split([q.size(1), k.size(1)], 1)
        return rotate_pairs(q, sin, cos), rotate_pairs(k, sin, cos)


class Learnable(Encoding):
    """x + P[pos], P a learnable table with L rows.

    GPT-2's own: P ~ N(0, 0.02). Longer sequences raise an error.
    Source: Radford et al. 2019 (GPT-2)
    """

    names = ("learnable",)
    scope = "model"

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.table = nn.Embedding(block_size, channels)
        self.max_context = block_size

    def embed(self, x, pos):
        return x + self.table(pos)


class Sinusoidal(Encoding):
    """sqrt(C) x + [sin, cos](pos / 10000^(2n/C)), n < C/2.

    Without sqrt(C), embeddings of 0.02 are negligible next to the sines; `scaled=0` leaves it out.
    Source: Vaswani et al. 2017, sections 3.4 and 3.5
    """

    names = ("sinusoidal",)
    scope = "model"
    min_option_value = 0

    def __init__(self, heads, channels, block_size, *, scaled: int = 1):
        super().__init__(heads, channels, block_size)
        self.scale = math.sqrt(channels) if scaled else 1.0

    def embed(self, x, pos):
        return self.scale * x + sinusoids(pos, x.size(-1)).to(x.dtype)


def accepts_grouped_keys(encoding: Encoding) -> bool:
    """Return whether attention itself may get fewer heads of keys."""
    return encoding.rotates_heads_alike or not encoding.has("rotate")


def alibi_exponents(heads: int) -> Tensor:
    """Return x of slopes 2^-x (H,): of P = 2^n <= H, then half of 2P's."""
    below = 1 << heads.bit_length() - 1
    n = torch.cat([torch.arange(1, below + 1), torch.arange(0.5, below)[: heads - below]])
    return 8 * n.double() / below


def distances(keys: int, causal: bool, device: torch.device) -> Tensor:
    """Return all distances of `keys` tokens, ascending; causal: from 0."""
    return torch.arange(0 if causal else 1 - keys, keys, device=device, dtype=torch.float32)


def rotate_pairs(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Return x (B, H, T, D) with the pairs (x[n], x[n + R/2]) rotated.

    sin, cos: (B|1, T, H|1, R/2), in the arithmetic's dtype.
    """
    # The layer's memory layout (B, T, H, D) avoids a copy.
    columns = x.transpose(1, 2).to(sin.dtype)
    size = sin.size(-1)
    a, b = columns[..., :size], columns[..., size : 2 * size]
    parts = [a * cos - b * sin, b * cos + a * sin]
    if columns.size(-1) > 2 * size:
        parts.append(columns[..., 2 * size :])
    return torch.cat(parts, -1).to(x.dtype).transpose(1, 2)


def frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """Return base^(-2n/width), n < width/2: (width/2,) float64."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def sinusoids(pos: Tensor, width: int) -> Tensor:
    """Return [sin, cos](pos / 10000^(2n/width)): (..., width) float64."""
    angle = pos.double()[..., None] * frequencies(width, 10_000, pos.device)
    return torch.cat([angle.sin(), angle.cos()], -1)


def running_sum(x: Tensor) -> Tensor:
    """Return x.cumsum(-1) by PyTorch's kernel; a compiled one is not deterministic."""
    return torch.ops.posenc.running_sum(x) if x.size(-1) > 1 else x


def _running_sum(x):
    """Return x.cumsum(-1).

    PyTorch's fast sum is deterministic unless there is a single row, which takes O(T^2) then.
    """
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(mode if x.numel() == x.size(-1) else 0)
    try:
        return x.cumsum(-1)
    finally:
        torch.set_deterministic_debug_mode(mode)


register(
    "running_sum",
    "(Tensor x) -> Tensor",
    _running_sum,
    lambda x: torch.empty_like(x, memory_format=torch.contiguous_format),
    lambda ctx, grad: running_sum(grad.flip(-1)).flip(-1),
)
