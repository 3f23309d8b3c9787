"""Positional encodings: one class per encoding, with its formula and its source.

    encodings = posenc.build("cable", heads=8, width=512, block_size=1024, layers=6)
    posenc.build("t5:buckets=64", ...)           # options are keyword arguments of the class
    posenc.build("cable:heads=2", ...)           # on the first two heads only
    posenc.build("rope+cable", ...)              # several encodings at once
    posenc.build("window+rope@3_nope@1", ...)    # three layers, then one, and so on
    posenc.build("cable", ..., causal=False)     # for an encoder (bidirectional attention)

To add an encoding, write a subclass of `Encoding` with `names`, in a file of your own (--plugin) or
in more_encodings/. Override only the hooks where the encoding acts:

    hook              acts on                                          examples
    embed             token embeddings, once per model                 learnable, sinusoidal
    rotate            queries and keys, in every layer                 rope, yarn, ssmax
    features + bias   attention logits: a formula of a few numbers     cable, alibi, fire
                      (features) of the query's and the key's token
    logits_transform  attention logits, whole rows at once             cope, dape, shaw
    window_size       attention mask (sliding window)                  window

The dense attention path, the KV cache, long contexts in chunks, and bias plots use only `bias`.
Three optional hooks make it faster, see `Encoding`. Tutorial: docs/adding_an_encoding.md.

Legend: B batch, H heads, T queries, S keys, D head dimension, C width (channels), L training length
(block_size); query position i, key position j, distance d = i - j. Formulas are for decoders. In an
encoder d is |i - j| and S_i - S_j is -|S_i - S_j|. Biases are added to the scaled logits.
"""

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from errors import InputError

ENCODINGS: dict[str, type["Encoding"]] = {}  # --pe name -> class
WRAPPERS: dict[str, Any] = {}  # option of many encodings -> the class that adds it to them
FeaturePair = tuple[tuple, tuple]  # of queries, of keys
M = TypeVar("M", bound=nn.Module)


class ModuleList(nn.ModuleList, Generic[M]):
    """nn.ModuleList that declares the type of its elements."""

    if TYPE_CHECKING:
        __init__: Callable[[Iterable[M]], None]
        __getitem__: Callable[[int], M]

        def __iter__(self) -> Iterator[M]: ...


class Encoding(nn.Module):
    """Base class of all encodings; adds nothing. Subclasses with `names` register themselves.

    Optional hooks, None unless a subclass defines them as methods; h are the indices of the heads:

    bias(q_features, k_features, h) -> (B|1, H|1, T, S) float32, added to the scaled logits.
        Elementwise over features that broadcast to (B, H, T, S); h: (H, 1, 1), index parameters
        of a head with [h]. Values for later keys must be finite; they are masked later.
    factors(q_features, k_features) -> pairs (u, w), whose products u_i w_j add up to the bias.
        u: (B|1, H|1, T), w: (B|1, H|1, S) float32, or with a fourth dimension for several
        products at once; w = None means ones. There is no h: use self.r[None, :, None].
    triton_bias(q_features, k_features, h) -> (kind, tensors by name), h: (H,).
        The bias as one of the kinds in triton_attention/bias.py.
    distance_bias(d, h) -> bias, elementwise over d and h: (H, 1, 1) or (H, 1).
        d: float32, negative only if bidirectional. Only for subclasses of DistanceBias.
    logits_transform(logits, bias, q, d, mask) -> (B, H, T, S), added to logits + bias.
        logits: (B, H, T, S), scaled; bias: (B|1, H|1, T|1, S|1), zeros if there is none;
        q: (B, H, T, D), after `rotate`; d: (T, S) int64; mask: (T, S) bool, True where a query
        attends to a key; others must not affect the result. No fused kernel provides full rows.
    """

    names: tuple[str, ...] = ()  # --pe names
    shared_options: tuple[str, ...] = ()  # that it adds to others, see more_encodings/some_heads.py
    scope = "layer"  # "layer": one instance per layer; "model": one instance for all layers
    max_context: int | None = None  # longest supported sequence in tokens; None: no limit
    window_size: int | None = None  # attend only to keys with |d| < window_size; None: to all
    causal = True  # do not attend to later keys; `set_bidirectional` sets it to False
    combined_window_size: int | None = None  # of the combination that this is a part of
    supports_bidirectional = True  # whether an encoder can use the encoding
    scales_queries = False  # whether `rotate` is only a factor of queries: combines with others
    min_option_value = 1  # smallest value of integer options
    option_words: dict[str, tuple[str, ...]] = {}  # options that are words -> allowed words
    bias: Callable[..., Tensor] | None = None
    factors: Callable[..., Iterable[tuple[Tensor, Tensor | None]]] | None = None
    triton_bias: Callable[..., tuple[str, dict[str, Tensor]]] | None = None
    distance_bias: Callable[..., Tensor] | None = None
    logits_transform: Callable[..., Tensor] | None = None

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        ENCODINGS.update(dict.fromkeys(cls.names, cls))
        WRAPPERS.update(dict.fromkeys(cls.shared_options, cls))

    def __init__(self, heads: int, channels: int, block_size: int):
        """Create the encoding; subclasses add options as keyword-only arguments."""
        super().__init__()

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Return token embeddings x (B, T, C) at positions pos (T,) int64 with positions added."""
        return x

    def rotate(self, q: Tensor, k: Tensor, pos: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys (B, H, T, D) at positions pos (T,), transformed; same dtypes."""
        return q, k

    def features(self, x: Tensor, pos: Tensor, previous: tuple | None = None) -> FeaturePair:
        """Return (query features, key features): two tuples of tensors (B|1, H|1, T), dtype of x.

        x: (B, T, C) float32 or float64, the layer's normalized input; pos: (T,) int64.
        previous: key features of the preceding token, each (B|1, H|1, 1), when x continues a
        sequence (KV cache). Use `running_sum` for cumulative sums and add `previous` to them.
        A feature that is the same for all tokens may have T = 1, but only among the query features.
        """
        return (), ()

    def clamp_parameters_(self) -> None:
        """Clamp parameters after an optimizer step; in forward it would zero their gradients."""

    def set_bidirectional(self) -> None:
        """Switch to bidirectional attention, for an encoder."""
        self.causal = False

    def split(self, q_features: tuple, k_features: tuple) -> list[tuple["Encoding", tuple, tuple]]:
        """Return (part, its query features, its key features) for all parts."""
        return [(self, q_features, k_features)]


def build(
    spec: str | list, heads: int, width: int, block_size: int, layers: int, causal: bool = True
) -> ModuleList[Encoding]:
    """Return the encodings of a model, one per layer; layers share equal parts of scope "model".

    spec: "NAME", "NAME:option=value,option=value", several joined by "+", or a pattern of layers
    (see `layer_specs`); or what `parse` returned, if that was no pattern. causal: True for a
    decoder, False for an encoder. Raises InputError like `parse`, and for what does not fit the
    model.
    """
    pattern = layer_specs(spec) if isinstance(spec, str) else [""]
    parsed = _parse_layers(pattern, causal) if isinstance(spec, str) else {"": spec}
    if len(pattern) > layers:
        raise InputError(
            f"the pattern {spec} has {len(pattern)} layers, but the model has {layers}: "
            f"use at most {layers}"
        )
    shared, encodings = {}, {}  # instances of scope "model"; the encoding of each layer
    for layer_spec, parts in parsed.items():
        numbers = [n for n in range(layers) if pattern[n % len(pattern)] == layer_spec]
        columns = []  # for each part of the spec: its instance in each of these layers
        for i, (cls, options) in enumerate(parts):
            key = cls, *options.items(), parts[:i].count(parts[i])
            count = 1 if cls.scope == "model" else len(numbers)
            instances = shared.get(key)
            if instances is None:
                instances = [_make(cls, options, heads, width, block_size) for _ in range(count)]
                for instance in instances if not causal else ():
                    instance.set_bidirectional()
            if cls.scope == "model":
                shared[key] = instances
            columns.append(instances * (len(numbers) // count))
        for number, *layer in zip(numbers, *columns, strict=True):
            encodings[number] = layer[0] if len(layer) == 1 else Composition(layer, width)
    return ModuleList(encodings[number] for number in range(layers))


def _make(cls, options: dict, heads: int, width: int, block_size: int) -> Encoding:
    """Return an instance of a class; options: its own and those of WRAPPERS."""
    own_options = {name: value for name, value in options.items() if name not in WRAPPERS}

    def make(heads: int) -> Encoding:
        return cls(heads, width, block_size, **own_options)

    wrapper = next((WRAPPERS[name] for name in options if name in WRAPPERS), None)
    return make(heads) if wrapper is None else wrapper.wrap(cls, make, options, heads)


def layer_specs(spec: str) -> list[str]:
    """Return the --pe string of each layer of a pattern, or the string itself if it is none.

    "rope@3_nope@1" stands for three layers of `rope` and one of `nope`, repeated over all layers.
    Raises InputError for other uses of "@".
    """
    if "@" not in spec:
        return [spec]
    if not re.fullmatch("[^@]+@[1-9][0-9]?(_[^@]+@[1-9][0-9]?)*", spec):
        raise InputError(
            f"'{spec}' is no pattern of layers: join encodings with counts of 1 to 99 by '_', as "
            "in rope@3_nope@1"
        )
    pairs = re.findall("([^@]+)@([0-9]+)_?", spec)
    return [layer for layer, count in pairs for _ in range(int(count))]


def parse(spec: str, causal: bool = True) -> list[tuple[type[Encoding], dict]]:
    """Return the classes of a --pe string, each with its options; of a pattern, all layers' parts.

    Raises InputError with all problems: names, options, hooks that collide, no bidirectional form.
    """
    return sum(_parse_layers(layer_specs(spec), causal).values(), [])


def _parse_layers(pattern: list[str], causal: bool) -> dict[str, list]:
    """Return {--pe string of a layer: what `parse` returns for it}; raise InputError like it."""
    parsed, problems = {}, []
    for spec in dict.fromkeys(pattern):
        parsed[spec], layer_problems = _parse_parts(spec, causal)
        problems += layer_problems
    all_parts = [part for parts in parsed.values() for part in parts]
    for part in all_parts:
        if part[0].embed is not Encoding.embed and any(part not in x for x in parsed.values()):
            problems.append(
                f"{part[0].names[0]} acts on the embeddings of the whole model: use it, with the "
                "same options, in all layers of the pattern, or in none"
            )
    if problems:
        raise InputError(*dict.fromkeys(problems))
    return parsed


def _parse_parts(spec: str, causal: bool) -> tuple[list[tuple[type[Encoding], dict]], list[str]]:
    """Return the classes of one layer's encoding, with options, and the problems with them."""
    parsed, problems = [], []
    for part in spec.split("+"):
        name, _, words = part.partition(":")
        if name not in ENCODINGS:
            close = difflib.get_close_matches(name, ENCODINGS, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            known = f"{' '.join(sorted(ENCODINGS))}, or pass --plugin FILE for your own"
            problems.append(f"unknown positional encoding '{name}': {hint}choose one of {known}")
            continue
        cls = ENCODINGS[name]
        if not causal and not cls.supports_bidirectional:
            problems.append(f"{name} supports decoders only: use another encoding for an encoder")
        options, option_problems = _parse_options(name, cls, words)
        problems += option_problems
        parsed.append((cls, options))
    for hook in ("embed", "rotate", "logits_transform"):
        unused = getattr(Encoding, hook)
        acting = [cls for cls, _ in parsed if getattr(cls, hook) is not unused]
        for scales in (False, True):
            names = [cls.names[0] for cls in acting if cls.scales_queries == scales]
            if len(names) > 1:
                problems.append(
                    f"{' and '.join(names)} cannot be combined, both act on {hook}: "
                    "choose one of them"
                )
    return parsed, problems


def _parse_options(name: str, cls: type[Encoding], words: str) -> tuple[dict, list[str]]:
    """Return the options of "option=value,option=value" and the problems with them."""
    options, problems = {}, []
    parameters = inspect.signature(cls).parameters.values()
    known = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    wrappers = {option: wrapper for option, wrapper in WRAPPERS.items() if wrapper.supports(cls)}
    known += wrappers
    for word in filter(None, words.split(",")):
        option, _, value = word.partition("=")
        allowed = cls.option_words.get(option)
        smallest = wrappers.get(option, cls).min_option_value
        is_integer = re.fullmatch("-?[0-9]{1,9}", value) and int(value) >= smallest
        if option not in known:
            hint = f"choose from {' '.join(known)}" if known else "it has none"
            problems.append(f"{name} has no option '{option}': {hint}")
        elif allowed and value not in allowed:
            problems.append(f"{name}: {option} is '{value}': use {' or '.join(allowed)}")
        elif not allowed and not is_integer:
            problems.append(
                f"{name}: {option} is '{value}': it must be an integer of at least "
                f"{smallest} and at most 9 digits, as in {name}:{option}=8"
            )
        else:
            options[option] = value if allowed else int(value)
    for wrapper in {wrappers[option] for option in options if option in wrappers}:
        problems += wrapper.problems(name, options)
    return options, problems


class Composition(Encoding):
    """Several encodings at once, as in `rope+cable`: biases are added, then transformed."""

    def __init__(self, parts: list[Encoding], channels: int):
        nn.Module.__init__(self)
        self.parts = ModuleList(parts)
        self.causal = parts[0].causal
        limits = [part.max_context for part in parts if part.max_context is not None]
        windows = [part.window_size for part in parts if part.window_size is not None]
        self.max_context = min(limits, default=None)
        self.window_size = min(windows, default=None)
        for module in self.modules():
            if isinstance(module, Encoding):
                module.combined_window_size = self.window_size
        for part in parts:
            if part.logits_transform is not None:
                self.logits_transform = part.logits_transform
        biased = [part for part in parts if part.bias is not None]
        if not biased:
            self.bias = None  # pyright: ignore[reportAttributeAccessIssue]
        if not biased or any(part.factors is None for part in biased):
            self.factors = None  # pyright: ignore[reportAttributeAccessIssue]
        if len(biased) == 1:
            self.distance_bias = biased[0].distance_bias
            self.triton_bias = biased[0].triton_bias
        # Compute the features of one token to count them: (query features, key features) per part.
        x, pos = torch.zeros(1, 1, channels), torch.zeros(1, dtype=torch.int64)
        self.counts = [[len(features) for features in part.features(x, pos)] for part in parts]

    def embed(self, x, pos):
        for part in self.parts:
            x = part.embed(x, pos)
        return x

    def rotate(self, q, k, pos):
        for scales_queries in (True, False):  # the order of the parts must not matter
            for part in self.parts:
                if part.scales_queries == scales_queries:
                    q, k = part.rotate(q, k, pos)
        return q, k

    def features(self, x, pos, previous=None):
        q_features, k_features = (), ()
        for part, _, part_previous in self.split((), previous or ()):
            q, k = part.features(x, pos, None if previous is None else part_previous)
            q_features += q
            k_features += k
        return q_features, k_features

    def bias(self, q_features, k_features, h):
        split = self.split(q_features, k_features)
        return sum(part.bias(q, k, h) for part, q, k in split if part.bias is not None)

    def factors(self, q_features, k_features):
        split = self.split(q_features, k_features)
        sums = [part.factors(q, k) for part, q, k in split if part.factors is not None]
        return tuple(pair for pairs in sums for pair in pairs)

    def clamp_parameters_(self):
        for part in self.parts:
            part.clamp_parameters_()

    def split(self, q_features, k_features):
        split, q_start, k_start = [], 0, 0
        for part, (q_count, k_count) in zip(self.parts, self.counts, strict=True):
            q_stop, k_stop = q_start + q_count, k_start + k_count
            split.append((part, q_features[q_start:q_stop], k_features[k_start:k_stop]))
            q_start, k_start = q_stop, k_stop
        return split


class WeightedDecay(Encoding):
    """Base class of biases g_i (S_i - S_j): S decreases along the text, g_i >= 0 weighs the decay.

    Query features (S, g), key features (S,). Differences are taken in float32, before any rounding.
    The bidirectional form -g_i |S_i - S_j| is not a sum of products, so it has no factors.
    """

    triton_kind = "decay"

    @staticmethod
    def cumulative_sum(steps: Tensor, previous: tuple | None) -> Tensor:
        """Return S (B, H, T), the cumulative sum of steps (B, T, H) that continues `previous`."""
        s = running_sum(steps.mT.contiguous())
        return s if previous is None else s + previous[0]

    def bias(self, q_features, k_features, h):
        (s_i, g_i), (s_j,) = q_features, k_features
        decay = s_i - s_j
        return g_i * (decay if self.causal else -decay.abs())

    def set_bidirectional(self):
        super().set_bidirectional()
        self.factors = None  # pyright: ignore[reportAttributeAccessIssue]

    def factors(self, q_features, k_features):
        (s_i, g_i), (s_j,) = q_features, k_features
        # Centering S at the middle query halves its range and the rounding error in bf16. The
        # center is not detached: the gradient of S sums to zero, as the exact gradient does.
        center = s_i[..., s_i.size(-1) // 2, None]
        return (g_i * (s_i - center), None), (-g_i, s_j - center)

    def triton_bias(self, q_features, k_features, h):
        (s_i, g_i), (s_j,) = q_features, k_features
        return self.triton_kind, {"s_i": s_i, "g": g_i, "s_j": s_j}


class Cable(WeightedDecay):
    """g_i (S_i - S_j), S = cumsum(-ReLU(x w_c)), g = Softplus(x w_s).

    w_c and w_s are linear layers C -> H, N(0, 0.02), with zero biases. As printed, equations 5 and
    7 make the bias positive. The paper's text (the bias penalizes distance, and is ALiBi for steps
    of -1) and the authors' code make it decay, like here.
    Source: Veisi et al. 2025 (CABLE), eqs. 2-7
    """

    names = ("cable",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.step = nn.Linear(channels, heads)  # w_c
        self.weight = nn.Linear(channels, heads)  # w_s

    def features(self, x, pos, previous=None):
        # One matrix product for both layers, so that x is read once.
        matrix = torch.cat([self.step.weight, self.weight.weight])  # (2 H, C)
        offset = torch.cat([self.step.bias, self.weight.bias])  # (2 H,)
        step, g = F.linear(x, matrix, offset).chunk(2, -1)  # (B, T, H) each
        s = self.cumulative_sum(-F.relu(step), previous)
        return (s, F.softplus(g).mT.contiguous()), (s,)


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

    Since -Softplus(z) = log sigmoid(-z), it is also the bias of CABLE's first version with the sign
    of the weights flipped (eqs. 2-4 there; its printed eq. 4 has the other sign, like Cable).
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
    """Base class of biases -log(b^2 + 1), b a WeightedDecay bias: a slower decay."""

    factors: None = None
    triton_kind = "log-decay"

    def bias(self, q_features, k_features, h):
        return -super().bias(q_features, k_features, h).square().log1p()


class KCable(LogDecay, Cable):
    """-log(b^2 + 1), b the bias of `cable`. Meant for shallow models.

    Source: Veisi et al. 2025 (CABLE), section 5.6
    """

    names = ("k-cable",)


class NoPE(Encoding):
    """No positional encoding: only the causal mask depends on positions.

    Source: Haviv et al. 2022; Kazemnejad et al. 2024
    """

    names = ("nope",)


class ALiBi(WeightedDecay):
    """-m_h d, fixed slopes m_h = 2^(-8n/H), n = 1..H.

    If H is not a power of two, slopes are interleaved as in the paper. S = -pos, g = m.
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
        s = -pos.to(x.dtype)[None, None]  # (1, 1, T)
        return (s, self.slopes), (s,)


class DistanceBias(Encoding):
    """Base class of biases of the distance alone: subclasses define only `distance_bias`."""

    distance_bias: Callable[..., Tensor]

    def features(self, x, pos, previous=None):
        p = pos.to(x.dtype)[None, None]  # (1, 1, T)
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

    All layers share r ~ N(0, 0.02). Bidirectional: half of the buckets are for later keys.
    Source: Raffel et al. 2020 (T5)
    """

    names = ("t5",)
    scope = "model"

    def __init__(self, heads, channels, block_size, *, buckets: int = 32, max_distance: int = 128):
        super().__init__(heads, channels, block_size)
        if buckets < 4 or max_distance <= buckets // 2:
            raise InputError(
                f"t5: buckets={buckets},max_distance={max_distance} leaves no logarithmic bucket: "
                "use at least 4 buckets and a max_distance above half of them"
            )
        self.buckets, self.max_distance = buckets, max_distance
        self.table = nn.Parameter(0.02 * torch.randn(heads, buckets))

    def distance_bias(self, d, h):
        buckets = self.buckets if self.causal else self.buckets // 2
        exact = buckets // 2
        distance = d.abs()
        log_ratio = (distance.clamp(min=exact) / exact).log() / math.log(self.max_distance / exact)
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
    """Rotates the pair (q[n], q[n + D/2]) by the angle pos base^(-2n/D), n < D/2; keys likewise.

    Logits depend on the distance alone. Pairs are half a head apart, as in Llama and GPT-NeoX.
    Source: Su et al. 2024 (RoFormer), eq. 34
    """

    names = ("rope",)
    attention_factor = 1.0  # scale of queries and keys; YaRN changes it
    rotated_heads: int | None = None  # the first heads, which are rotated; None: all

    def __init__(self, heads, channels, block_size, *, base: int = 10_000):
        super().__init__(heads, channels, block_size)
        self.base = base

    def frequencies(self, width: int, device: torch.device) -> Tensor:
        """Return radians per token of each pair of a head with `width` columns: (D/2,) float64."""
        return frequencies(width, self.base, device)

    def rotate(self, q, k, pos):
        angle = pos.double()[:, None] * self.frequencies(q.size(-1), pos.device)  # (T, D/2)
        dtype = torch.promote_types(q.dtype, torch.float32)
        sin, cos = (x[:, None] for x in sin_cos(angle, self.attention_factor, dtype))  # (T, 1, D/2)
        if self.rotated_heads is not None:  # others by 0: faster than splitting and joining heads
            acts = torch.arange(q.size(1), device=q.device)[:, None] < self.rotated_heads
            sin, cos = torch.where(acts, sin, 0), torch.where(acts, cos, 1)  # (T, H, D/2)

        def rotate_pairs(x: Tensor) -> Tensor:
            # In the layer's memory layout (B, T, H, D), which attention returns: avoids a copy.
            a, b = x.transpose(1, 2).to(dtype).chunk(2, -1)
            rotated = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
            return rotated.to(x.dtype).transpose(1, 2)

        if len(pos) == 1 and self.rotated_heads is None:  # half the operations for one token
            return torch.tensor_split(rotate_pairs(torch.cat([q, k], 1)), 2, 1)
        return rotate_pairs(q), rotate_pairs(k)


class Learnable(Encoding):
    """x + P[pos], P a learnable table with L rows.

    GPT-2's own encoding, P ~ N(0, 0.02). Longer sequences raise an error; tables print "—".
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

    Without sqrt(C), embeddings that start at 0.02 would be negligible next to the sines.
    Source: Vaswani et al. 2017, sections 3.4 and 3.5
    """

    names = ("sinusoidal",)
    scope = "model"

    def embed(self, x, pos):
        return math.sqrt(x.size(-1)) * x + sinusoids(pos, x.size(-1)).to(x.dtype)


def alibi_exponents(heads: int) -> Tensor:
    """Return x of the slopes 2^-x, (H,): for the largest P = 2^n <= H, then every second of 2P."""
    below = 1 << heads.bit_length() - 1
    n = torch.cat([torch.arange(1, below + 1), torch.arange(0.5, below)[: heads - below]])
    return 8 * n.double() / below


def distances(keys: int, causal: bool, device: torch.device) -> Tensor:
    """Return all distances between `keys` tokens, ascending, negative ones only if not causal."""
    return torch.arange(0 if causal else 1 - keys, keys, device=device, dtype=torch.float32)


def frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """Return base^(-2n/width), n < width/2: (width/2,) float64."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def angles(pos: Tensor, width: int) -> Tensor:
    """Return pos / 10000^(2n/width), n < width/2, (..., width/2), in float64 for far positions."""
    return pos.double()[..., None] * frequencies(width, 10_000, pos.device)


def sinusoids(pos: Tensor, width: int) -> Tensor:
    """Return [sin, cos](pos / 10000^(2n/width)), n < width/2: (..., width) float64."""
    angle = angles(pos, width)
    return torch.cat([angle.sin(), angle.cos()], -1)


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


def _register_operator(name, schema, function, fake, backward=None):
    """Register the operator posenc::name, unless a copy of this file in an exported model did."""
    if hasattr(torch.ops.posenc, name):
        return
    operator = torch.library.custom_op(f"posenc::{name}", function, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    if backward is not None:
        operator.register_autograd(backward)


_register_operator("circle", "(Tensor angle, float radius) -> (Tensor, Tensor)", _sin_cos, _empty)
_register_operator(
    "running_sum",
    "(Tensor x) -> Tensor",
    _running_sum,
    lambda x: torch.empty_like(x, memory_format=torch.contiguous_format),
    lambda ctx, grad: running_sum(grad.flip(-1)).flip(-1),
)
