"""Encodings of a model from a --pe string.

    encodings = pe_spec.build("cable", heads=8, width=512, block_size=1024, layers=6)
    pe_spec.build("t5:buckets=64", ...)           # options are keyword arguments of the class
    pe_spec.build("cable:heads=2", ...)           # on the first two heads only
    pe_spec.build("rope+cable", ...)              # several encodings at once
    pe_spec.build("window+rope@3_nope@1", ...)    # three layers, then one, and so on
    pe_spec.build("cable", ..., causal=False)     # for an encoder (bidirectional attention)

The classes are in posenc.py and more_encodings/, imported when needed.
"""

import difflib
import importlib.util
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from errors import InputError
from posenc import ENCODINGS, Encoding, RoPE, accepts_grouped_keys

M = TypeVar("M", bound=nn.Module)
Part = tuple[type[Encoding], dict]  # a class and its options
HEAD_OPTIONS = ("heads", "heads_percent")  # of encodings that can be on some heads only
ACTS_ON = {  # hooks of which a combination has one
    "embed": "the token embeddings",
    "rotate": "queries and keys",
    "logits_transform": "rows of logits",
    "sink": "the softmax",
}


class ModuleList(nn.ModuleList, Generic[M]):
    """nn.ModuleList that declares the type of its elements."""

    if TYPE_CHECKING:
        __init__: Callable[[Iterable[M]], None]
        __getitem__: Callable[[int], M]

        def __iter__(self) -> Iterator[M]: ...


@dataclass(frozen=True)
class PeSpec:
    """A parsed --pe string. Iterating yields each part's class and options.

    layers: the string of each layer of the pattern; parts: of each
    string.
    """

    text: str
    layers: list[str]
    parts: dict[str, list[Part]]

    def __iter__(self) -> Iterator[Part]:
        return (part for parts in self.parts.values() for part in parts)


Spec = str | PeSpec


def build(
    spec: Spec, heads: int, width: int, block_size: int, layers: int, causal: bool = True
) -> ModuleList[Encoding]:
    """Return an encoding per layer; layers share equal parts of scope "model".

    causal: False for an encoder. Raises InputError as `parse`.
    """
    if isinstance(spec, str):
        spec = parse(spec, causal)
    pattern = spec.layers
    if len(pattern) > layers:
        raise InputError(
            f"the pattern {spec.text} has {len(pattern)} layers, but the model has {layers}: "
            f"use at most {layers}"
        )
    shape = heads, width, block_size
    shared, encodings = {}, {}  # instances of scope "model"; the encoding of each layer
    for layer_spec, parts in spec.parts.items():
        numbers = [n for n in range(layers) if pattern[n % len(pattern)] == layer_spec]
        columns = []  # for each part of the spec: its instance in each of these layers
        for i, (cls, options) in enumerate(parts):
            key = cls, *options.items(), parts[:i].count(parts[i])
            count = 1 if cls.scope == "model" else len(numbers)
            instances = shared.get(key)
            if instances is None:
                instances = [_make(cls, options, *shape) for _ in range(count)]
                for instance in instances if not causal else ():
                    instance.set_bidirectional()
            if cls.scope == "model":
                shared[key] = instances
            columns.append(instances * (len(numbers) // count))
        for number, *layer in zip(numbers, *columns, strict=True):
            encodings[number] = layer[0] if len(layer) == 1 else Composition(layer, width)
    return ModuleList(encodings[number] for number in range(layers))


def prepare(encodings: Iterable[Encoding], optimizer: torch.optim.Optimizer) -> None:
    """Initialize new encodings as GPT does, and let the optimizer clamp their parameters.

    For a model of your own. Linear and Embedding: N(0, 0.02), biases 0.
    """
    encodings = ModuleList(encodings)
    for module in encodings.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    clamp_after_steps(encodings, optimizer)


def clamp_after_steps(
    encodings: Iterable[Encoding], optimizer: torch.optim.Optimizer
) -> None:
    """Clamp bounded parameters after each step of an optimizer, as `kerple` needs."""

    def clamp(*_) -> None:
        for encoding in encodings:
            encoding.clamp_parameters_()

    optimizer.register_step_post_hook(clamp)


def _make(cls, options: dict, heads: int, width: int, block_size: int) -> Encoding:
    """Return an instance of a class; options: its own and HEAD_OPTIONS."""
    own = {name: value for name, value in options.items() if name not in HEAD_OPTIONS}

    def make(count: int) -> Any:
        return cls(count, width, block_size, **own)

    if own == options:
        return make(heads)
    name = cls.names[0]
    count = options.get("heads") or max(1, heads * options["heads_percent"] // 100)
    if count > heads:
        raise InputError(
            f"{name}: heads is {count}, but the model has {heads} heads: use at most {heads}"
        )
    if cls.rotate is RoPE.rotate:  # rotates other heads by 0
        rope = make(heads)
        rope.rotated_heads = count
        rope.rotates_heads_alike = False
        return rope
    encoding = make(count)
    if encoding.window_size is not None:
        raise InputError(f"{name} is a window, which acts on all heads: remove heads")
    for buffer, of_all_heads in zip(encoding.buffers(), make(heads).buffers(), strict=True):
        buffer.copy_(of_all_heads[tuple(map(slice, buffer.shape))])
    return SomeHeads(encoding, count, heads)


def layer_specs(spec: str) -> list[str]:
    """Return the --pe string of each layer of a pattern, or the string itself.

    "rope@3_nope@1": three layers of `rope`, then one of `nope`,
    repeated. InputError for other uses of "@".
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


def parse(spec: str, causal: bool = True) -> PeSpec:
    """Return a --pe string as classes with their options.

    Raises InputError with all problems: names, options, colliding
    hooks, no bidirectional form.
    """
    pattern = layer_specs(spec)
    problems: list[str] = []
    parsed = {}
    for layer in dict.fromkeys(pattern):
        parsed[layer] = _parse_parts(layer, causal, problems)
    result = PeSpec(spec, pattern, parsed)
    for part in result:
        is_in_all_layers = all(part in parts for parts in parsed.values())
        if part[0].embed is not Encoding.embed and not is_in_all_layers:
            problems.append(
                f"{part[0].names[0]} acts on the embeddings of the whole model: use it, with the "
                "same options, in all layers of the pattern, or in none"
            )
    if problems:
        raise InputError(*dict.fromkeys(problems))
    return result


def _parse_parts(spec: str, causal: bool, problems: list[str]) -> list[Part]:
    """Return one layer's classes with options; add the problems with them."""
    parsed: list[Part] = []
    for part in spec.split("+"):
        name, _, words = part.partition(":")
        if name not in ENCODINGS:
            _register_more()
        if name not in ENCODINGS:
            close = difflib.get_close_matches(name.lower(), ENCODINGS, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            joined = [word for word in re.split(r"[\s,;_]+", name) if word]
            if {*joined} <= ENCODINGS.keys():
                remedy = (
                    f"write {'+'.join(joined)}, as encodings are joined by + without spaces"
                )
                problems.append(f"unknown positional encoding '{name}': {remedy}")
                continue
            known = f"use one of {' '.join(sorted(ENCODINGS))}"
            own = "or pass --plugin FILE for your own"
            problems.append(f"unknown positional encoding '{name}': {hint}{known}, {own}")
            continue
        cls = ENCODINGS[name]
        if not causal and not cls.supports_bidirectional:
            remedy = "use another one for an encoder"
            problems.append(f"{name} supports decoders only: {remedy}")
        parsed.append((cls, _parse_options(name, cls, words, problems)))
    for hook, place in ACTS_ON.items():
        unused = getattr(Encoding, hook)
        acting = [cls for cls, _ in parsed if getattr(cls, hook) is not unused]
        for scales in (False, True):
            names = [cls.names[0] for cls in acting if cls.scales_queries == scales]
            if len(names) > 1:
                problems.append(
                    f"{' and '.join(names)} cannot be combined, both act on {place}: "
                    "choose one of them"
                )
    return parsed


def _register_more() -> None:
    """Import more_encodings/, unless only the core was copied."""
    if importlib.util.find_spec("more_encodings"):
        importlib.import_module("more_encodings")


def _parse_options(name: str, cls: type[Encoding], words: str, problems: list[str]) -> dict:
    """Return the options of "option=value,..."; add the problems with them."""
    options = {}
    parameters = inspect.signature(cls).parameters.values()
    own = {
        p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY
    }
    known = [*own, *(HEAD_OPTIONS if _acts_on_heads(cls) else ())]
    for word in filter(None, words.split(",")):
        option, _, value = word.partition("=")
        allowed = cls.option_words.get(option)
        smallest = 1 if option in HEAD_OPTIONS else cls.min_option_value
        number = _number(value)
        is_integer = re.fullmatch("-?[0-9]{1,12}", value) and int(value) >= smallest
        if option not in known:
            hint = f"choose from {' '.join(known)}" if known else "it has none"
            problems.append(f"{name} has no option '{option}': {hint}")
        elif allowed and value not in allowed:
            problems.append(f"{name}: {option} is '{value}': use {' or '.join(allowed)}")
        elif allowed:
            options[option] = value
        elif isinstance(own.get(option), float):
            if number is None:
                problems.append(f"{name}: {option} is '{value}': use a number, as in 0.5")
            options[option] = number
        elif not is_integer:
            is_meant = (
                number is not None and number == int(number) and smallest <= number < 1e12
            )
            example = int(number) if number and is_meant else 8
            problems.append(
                f"{name}: {option} is '{value}': it must be an integer of at least "
                f"{smallest} and at most 12 digits, as in {name}:{option}={example}"
            )
        else:
            options[option] = int(value)
    if (percent := options.get("heads_percent", 1)) > 100:
        problems.append(f"{name}: heads_percent is {percent}: use 1 to 100")
    if options.keys() >= {*HEAD_OPTIONS}:
        problems.append(f"{name}: heads and heads_percent exclude each other: use one")
    return options


def _number(text: str) -> float | None:
    """Return a finite number, or None for other text."""
    try:
        return number if math.isfinite(number := float(text)) else None
    except ValueError:
        return None


def _acts_on_heads(cls: type[Encoding]) -> bool:
    """Return whether a class acts only on queries, keys or biases, of any heads."""
    acts = cls.rotate is not Encoding.rotate or cls.bias is not None
    acts = acts and cls.embed is Encoding.embed and cls.logits_transform is None
    return acts and not cls.needs_head_dimension


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
            if part.sink is not None:
                self.sink = part.sink
        if all(part.logits_transform is None for part in parts):
            self.logits_transform = None  # pyright: ignore[reportAttributeAccessIssue]
        self.changes_width = any(part.changes_width for part in parts)
        self.rotates_heads_alike = all(map(accepts_grouped_keys, parts))
        biased = [part for part in parts if part.bias is not None]
        if not biased:
            self.bias = None  # pyright: ignore[reportAttributeAccessIssue]
        if not biased or any(part.factors is None for part in biased):
            self.factors = None  # pyright: ignore[reportAttributeAccessIssue]
        if len(biased) == 1:
            self.distance_bias = biased[0].distance_bias
        if len(biased) != 1 or biased[0].triton_bias is None:
            self.triton_bias = None  # pyright: ignore[reportAttributeAccessIssue]
        # Count (query features, key features) of each part, for one
        # token.
        x, pos = torch.zeros(1, 1, channels), torch.zeros(1, dtype=torch.int64)
        self.counts = [[*map(len, part.features(x, pos))] for part in parts]
        first = 0
        for part, (_, k_count) in zip(parts, self.counts, strict=True):
            self.running_features += tuple(first + index for index in part.running_features)
            first += k_count

    @property
    def rotates(self):
        return any(part.rotates for part in self.parts)

    def embed(self, x, pos):
        for part in self.parts:
            x = part.embed(x, pos)
        return x

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        split = self.split(q_features, k_features)
        for scales_queries in (True, False):  # the order of the parts must not matter
            for part, part_q, part_k in split:
                if part.scales_queries == scales_queries:
                    q, k = part.rotate(q, k, pos, part_q, part_k)
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

    def triton_bias(self, q_features, k_features, h):
        part, *features = self._only_part("triton_bias", q_features, k_features)
        return part.triton_bias(*features, h)

    def logits_transform(self, logits, bias, q, k, scale, d, mask, q_features, k_features):
        part, *features = self._only_part("logits_transform", q_features, k_features)
        return part.logits_transform(logits, bias, q, k, scale, d, mask, *features)

    def _only_part(self, hook: str, q_features: tuple, k_features: tuple) -> tuple:
        """Return the only part with an optional hook, and its features."""
        split = self.split(q_features, k_features)
        return next(each for each in split if getattr(each[0], hook) is not None)

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


class SomeHeads(Encoding):
    """An encoding on the first `count` heads only, as in `cable:heads=2`.

    encoding: one of `count` heads. Features per head are padded with
    zeros.
    """

    encoding: Any  # its optional hooks are called only if it has them

    def __init__(self, encoding: Encoding, count: int, heads: int):
        nn.Module.__init__(self)
        self.encoding, self.count, self.heads = encoding, count, heads
        self.max_context = encoding.max_context
        self.scales_queries = encoding.scales_queries
        self.running_features = encoding.running_features
        self.changes_width = encoding.changes_width
        self.rotates_heads_alike = not self.rotates
        self.remove_missing_hooks()

    def remove_missing_hooks(self) -> None:
        """Set the optional hooks that the encoding does not have to None."""
        for hook in ("bias", "factors", "triton_bias", "distance_bias"):
            if getattr(self.encoding, hook) is None:
                setattr(self, hook, None)

    @property
    def rotates(self):
        return self.encoding.rotates

    def set_bidirectional(self):
        super().set_bidirectional()
        self.encoding.set_bidirectional()
        self.remove_missing_hooks()

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        if not self.rotates:
            return q, k
        sizes = self.count, self.heads - self.count
        (first_q, rest_q), (first_k, rest_k) = q.split(sizes, 1), k.split(sizes, 1)
        own = self._own(q_features), self._own(k_features)
        rotated_q, rotated_k = self.encoding.rotate(first_q, first_k, pos, *own)
        new_k = k if rotated_k is first_k else _join_heads(rotated_k, rest_k)
        return _join_heads(rotated_q, rest_q), new_k

    def features(self, x, pos, previous=None):
        previous = None if previous is None else self._own(previous)
        q_features, k_features = self.encoding.features(x, pos, previous)
        return self._padded(q_features), self._padded(k_features)

    def bias(self, q_features, k_features, h):
        bias = self.encoding.bias(q_features, k_features, h.clamp(max=self.count - 1))
        return torch.where(h < self.count, bias, 0)

    def distance_bias(self, d, h):
        bias = self.encoding.distance_bias(d, h.clamp(max=self.count - 1))
        return torch.where(h < self.count, bias, 0)

    def factors(self, q_features, k_features):
        pairs = self.encoding.factors(self._own(q_features), self._own(k_features))
        return tuple((self._pad(u), w if w is None else self._pad(w)) for u, w in pairs)

    def triton_bias(self, q_features, k_features, h):
        own = self._own(q_features), self._own(k_features)
        kind, tensors = self.encoding.triton_bias(*own, h[: self.count])
        dims = {"table": 0, "pieces": 0}
        return kind, {key: self._pad(x, dims.get(key, 1)) for key, x in tensors.items()}

    def zero_others(self, x: Tensor) -> Tensor:
        """Return x (B|1, H|1, T) as (B|1, H, T), with zeros for others."""
        return self._pad(x[:, : self.count])

    def clamp_parameters_(self):
        self.encoding.clamp_parameters_()

    def _own(self, features: tuple) -> tuple:
        """Return features of the encoding's own heads."""
        return tuple(x[:, : self.count] for x in features)

    def _padded(self, features: tuple) -> tuple:
        """Return features with zeros for others; one head stands for all."""
        return tuple(x if x.size(1) == 1 else self._pad(x) for x in features)

    def _pad(self, x: Tensor, dim: int = 1) -> Tensor:
        """Return x, one or `count` heads along `dim`, with zeros for others."""
        sizes = list(x.shape)
        sizes[dim] = self.count
        x = x.expand(sizes)
        sizes[dim] = self.heads - self.count
        return torch.cat([x, x.new_zeros(sizes)], dim)


def unwrap(encoding: Encoding) -> Encoding:
    """Return an encoding without its wrapper, if it has one."""
    return encoding.encoding if isinstance(encoding, SomeHeads) else encoding


def _join_heads(first: Tensor, rest: Tensor) -> Tensor:
    """Return (B, H, T, D), in memory (B, T, H, D); pad `rest` with columns."""
    rest = F.pad(rest, (0, first.size(-1) - rest.size(-1)))
    return torch.cat([first.transpose(1, 2), rest.transpose(1, 2)], 2).transpose(1, 2)
