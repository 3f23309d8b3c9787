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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import nn

from errors import InputError
from posenc import ENCODINGS, Calls, Encoding, ModuleList

Part = tuple[type[Encoding], dict]  # a class and its options
HEAD_OPTIONS = ("heads", "heads_percent")  # of encodings that can be on some heads only
ACTS_ON = {  # hooks of which a combination has one
    "embed": "the token embeddings",
    "rotate": "queries and keys",
    "logits_transform": "rows of logits",
    "sink": "the softmax",
}


@dataclass(frozen=True)
class PeSpec:
    """A parsed --pe string. Iterating yields each part's class and options.

    layers: the string of each layer of the pattern; parts: of each string.
    """

    text: str
    layers: list[str]
    parts: dict[str, list[Part]]

    def __iter__(self) -> Iterator[Part]:
        return (part for parts in self.parts.values() for part in parts)


Spec = str | PeSpec


def build(
    spec: Spec,
    heads: int,
    width: int,
    block_size: int,
    layers: int,
    causal: bool = True,
    managed: bool = False,
) -> ModuleList[Encoding]:
    """Return an encoding per layer; layers share equal parts of scope "model".

    causal: False for an encoder. managed: the model initializes them and clamps their parameters,
    as GPT; else they are initialized, and `attention.attend` and `prepare` check that the model
    calls what docs/own_model.md lists. Raises InputError as `parse`.
    """
    if isinstance(spec, str):
        spec = parse(spec, causal)
    pattern = spec.layers
    if len(pattern) > layers:
        raise InputError(
            f"the pattern {spec.text} has {len(pattern)} layers, but the model has {layers}: "
            f"use at most {layers}"
        )
    shared = {}  # instances of scope "model"
    layer_parts: list[list[Encoding]] = [[] for _ in range(layers)]
    for layer_spec, parts in spec.parts.items():
        numbers = [n for n in range(layers) if pattern[n % len(pattern)] == layer_spec]
        for i, (cls, options) in enumerate(parts):
            key = cls, *options.items(), parts[:i].count(parts[i])
            for number in numbers:
                encoding = shared.get(key)
                if encoding is None:
                    encoding = _make(cls, options, heads, width, block_size)
                    if not causal:
                        encoding.set_bidirectional()
                if cls.scope == "model":
                    shared[key] = encoding
                layer_parts[number].append(encoding)
    encodings = ModuleList(_combine(parts, width) for parts in layer_parts)
    if not managed:
        for module in encodings.modules():
            initialize(module)
        unused = [
            not any(encoding.has(hook) for encoding in encodings)
            for hook in ("embed", "clamp_parameters_")
        ]
        calls = Calls(*unused)
        for encoding in encodings:
            encoding.required_calls = calls
    return encodings


def prepare(encodings: Iterable[Encoding], optimizer: torch.optim.Optimizer) -> None:
    """Let the optimizer of a model of your own clamp the encodings' parameters after its steps.

    A step raises InputError if the model has never called `attention.attend`.
    """
    encodings = list(encodings)
    clamp_after_steps(encodings, optimizer)
    calls = encodings[0].required_calls
    if calls is None:
        return
    calls.prepare = True

    def check(*_) -> None:
        if not calls.attend:
            raise InputError(
                "no layer uses its encoding: call attention.attend instead of "
                "scaled_dot_product_attention"
            )

    optimizer.register_step_post_hook(check)


@torch.no_grad()
def initialize(module: nn.Module, std: float = 0.02) -> None:
    """Initialize a Linear or Embedding by N(0, std), its bias by 0; leave others as they are."""
    if isinstance(module, nn.Linear | nn.Embedding):
        module.weight.normal_(0, std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        module.bias.zero_()


def clamp_after_steps(encodings: Iterable[Encoding], optimizer: torch.optim.Optimizer) -> None:
    """Clamp bounded parameters after each step of an optimizer, as `kerple` needs."""

    @torch.no_grad()
    def clamp(*_) -> None:
        for encoding in encodings:
            encoding.clamp_parameters_()

    optimizer.register_step_post_hook(clamp)


def _combine(parts: list[Encoding], width: int) -> Encoding:
    """Return the encoding of a layer with these parts."""
    if len(parts) == 1:
        return parts[0]
    return _combinations().Composition(parts, width)


def _combinations() -> ModuleType:
    """Return more_encodings/combinations.py. InputError if only the core was copied."""
    try:
        from more_encodings import combinations
    except ModuleNotFoundError as error:
        what = "combinations as rope+cable and the options heads and heads_percent"
        raise InputError(f"{what} need the folder more_encodings: copy it, too") from error
    return combinations


def _make(cls, options: dict, heads: int, width: int, block_size: int) -> Encoding:
    """Return an instance of a class; options: its own and HEAD_OPTIONS."""
    own = {name: value for name, value in options.items() if name not in HEAD_OPTIONS}

    def make(count: int) -> Encoding:
        return cls(count, width, block_size, **own)

    if own == options:
        return make(heads)
    count = options.get("heads") or max(1, heads * options["heads_percent"] // 100)
    if count > heads:
        name = cls.names[0]
        raise InputError(
            f"{name}: heads is {count}, but the model has {heads} heads: use at most {heads}"
        )
    return _combinations().on_some_heads(make, count, heads)


def layer_specs(spec: str) -> list[str]:
    """Return the --pe string of each layer of a pattern, or the string itself.

    "rope@3_nope@1": three layers of `rope`, then one of `nope`, repeated. InputError for other uses
    of "@".
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

    Raises InputError with all problems: names, options, colliding hooks, no bidirectional form.
    """
    if " " in spec:
        raise InputError(f"--pe '{spec}' has spaces: write {spec.replace(' ', '')}")
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
                remedy = f"write {'+'.join(joined)}, as encodings are joined by + without spaces"
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
        import more_encodings  # noqa: F401


def _parse_options(name: str, cls: type[Encoding], words: str, problems: list[str]) -> dict:
    """Return the options of "option=value,..."; add the problems with them."""
    options = {}
    parameters = inspect.signature(cls).parameters.values()
    own = {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
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
            is_meant = number is not None and number == int(number) and smallest <= number < 1e12
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
    others = ("embed", "logits_transform", "sink")
    acts_elsewhere = any(getattr(cls, x) is not getattr(Encoding, x) for x in others)
    return acts and not acts_elsewhere and not cls.needs_head_dimension
