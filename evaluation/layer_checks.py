"""Checks of one layer's encoding: its hooks, gradients and attention paths.

Each takes an encoding as in --pe, and yields measured errors with their bounds, or returns None. It
raises CheckFailed, or NotApplicable with the reason. Its docstring has the usual cause of a
failure.

B batch, H heads, T queries, S keys, D head dimension, C width.
"""

import inspect
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attention
import pe_spec
import posenc
from attention import BiasInputs
from evaluation.checks import Measurements, NotApplicable, check, compare, require, within
from operators.elementary import expand_columns
from triton_attention.bias import KINDS, bias_from_encoding

B, H, T, C = 2, 4, 33, 24
FAR = 32_768  # tokens of the check for finite values, or max_context
STEP_SIZES = (1e-6, 1e-4, 1e-3, 1e-2)  # large ones for rounding to float32, small for kinks


@torch.no_grad()
def make_encoding(
    spec: str, heads: int = H, width: int = C, causal: bool = True, std: float = 0.5
) -> posenc.Encoding:
    """Return an encoding with random parameters: zeros could hide a mistake."""
    if not causal and not supports_bidirectional(spec):
        raise NotApplicable("supports_bidirectional = False")
    torch.manual_seed(0)
    encoding = pe_spec.build(spec, heads, width, 64, 1, causal, managed=True)[0]
    drawn = [parameter.normal_(std=std).clone() for parameter in encoding.parameters()]
    # Clamp by reflection, not onto a bound, where formulas may have a kink.
    encoding.clamp_parameters_()
    for parameter, value in zip(encoding.parameters(), drawn, strict=True):
        parameter.copy_(2 * parameter - value)
    encoding.clamp_parameters_()
    return encoding


def supports_bidirectional(spec: str) -> bool:
    """Return whether all parts support bidirectional attention."""
    return all(cls.supports_bidirectional for cls, _ in pe_spec.parse(spec))


def all_pairs(encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention (B, H, T, D) of a layer, computed from one matrix of all pairs."""
    pos = torch.arange(x.size(1))[None]
    x = encoding.embed(x, pos)
    q_features, k_features = encoding.features(x, pos)
    q, k = encoding.rotate(q, k, pos, q_features, k_features)
    distance = pos.mT - pos
    mask = distance.abs() < (encoding.window_size or x.size(1))
    if encoding.causal:
        mask &= distance >= 0
    inputs = BiasInputs(encoding, q_features, k_features)
    logits = attention.logits(q, k, inputs, 1 / math.sqrt(v.size(-1)))
    logits = logits.masked_fill(~mask, -torch.inf)
    total = logits.logsumexp(-1, keepdim=True)
    if encoding.has("sink"):
        total = torch.logaddexp(total, encoding.sink()[:, None, None])
    return (logits - total).exp() @ v


def attend(encoding, x: Tensor, qkv: Tensor, path=attention.DENSE, **options) -> Tensor:
    """Return the output (B, H, T, D) of a layer for x (B, T, C) and qkv (3, B, H, T, D)."""
    pos = torch.arange(x.size(1))[None]
    q, k, v = qkv
    x = encoding.embed(x, pos)
    return attention.attend(encoding, x, q, k, v, pos, path=path, **options)


def cpu_paths(encoding) -> Iterable[attention.Path]:
    """Return the dense path and that of "auto"."""
    auto = attention.choose_path(encoding, torch.device("cpu"))
    return dict.fromkeys((attention.DENSE, auto))


def dense_bias(encoding, x: Tensor, heads: int = H) -> np.ndarray | None:
    """Return the dense path's bias (B, H, T, T) float64, or None."""
    if not encoding.has("bias"):
        return None
    inputs = BiasInputs(encoding, *encoding.features(x, torch.arange(x.size(1))[None]))
    bias = attention.bias_matrix(inputs, heads, x.size(1))
    return bias.detach().expand(x.size(0), heads, x.size(1), x.size(1)).double().numpy()


def small_chunks():
    """Return a context in which attention takes 16 queries at a time."""
    return mock.patch.object(attention, "CHUNK_ELEMENTS", 1)


# Interface


@check("options")
def check_options(spec: str) -> None:
    """Check constructor and options, and that 2 to 12 heads are possible.

    Usual cause: __init__(self, heads, channels, block_size, *, option: int = 8) must call
    super().__init__(heads, channels, block_size) first. A default is a number, None, or one of the
    option's words in option_words
    """
    for cls, _ in pe_spec.parse(spec):
        for option in inspect.signature(cls).parameters.values():
            if option.kind is not option.KEYWORD_ONLY:
                continue
            words = cls.option_words.get(option.name, ())
            is_number = option.default is None or type(option.default) in (int, float)
            is_valid = option.default in words if words else is_number
            require(is_valid, f"the default of the option {option.name} is {option.default!r}")
            for word in words:
                pe_spec.build(f"{cls.names[0]}:{option.name}={word}", H, C, 64, layers=1)
    for heads, width, block_size in ((2, 12, 16), (3, 24, 100), (12, 96, 64)):
        pe_spec.build(spec, heads, width, block_size, layers=2)


@check("shapes")
@torch.no_grad()
def check_shapes(spec: str) -> None:
    """Check shapes and dtypes of what hooks return, and that arguments stay.

    Usual cause: a bias that reads features needs the method features. bias must index parameters of
    a head by [h], of shape (H, 1, 1).
    features must return two tuples: a linear layer of x gives (B, T, H): use .mT; pos gives (B|1,
    T): use pos.float()[:, None]. rotate must compute in float32 or float64 and return
    x.to(q.dtype); another width needs changes_width = True. x.add_() and x += y change arguments:
    use x = x + y
    """
    encoding = make_encoding(spec)
    for hook, arguments in _hook_calls(encoding):
        tensors = _tensors(arguments)
        before = [tensor.clone() for tensor in tensors]
        result = getattr(encoding, hook)(*arguments)
        unchanged = all(map(torch.equal, tensors, before))
        require(unchanged, f"{hook} modifies one of its arguments in place")
        if hook == "embed":
            _expect(hook, result, [[B], [T], [C]])
        elif hook == "features":
            # queries, keys
            for features, lengths in zip(result, ([1, T], [T]), strict=True):
                for feature in features:  # (B|1, H|1, T), or one dimension more
                    others = [[n] for n in feature.shape[3:4]]
                    _expect("a feature", feature, [[1, B], [1, H], lengths, *others])
        elif hook == "rotate":
            q, k, *others = arguments
            for dtype in (torch.float32, torch.bfloat16):
                for rotated in encoding.rotate(q.to(dtype), k.to(dtype), *others):
                    width = rotated.size(-1) if encoding.changes_width else q.size(-1)
                    _expect(hook, rotated, [[B], [H], [T], [width]], dtype)
        elif hook in ("bias", "logits_transform"):
            _expect(hook, result, [[1, B], [1, H], [1, T], [1, T]])


def _expect(what: str, x: Tensor, sizes: list, dtype: torch.dtype = torch.float32) -> None:
    """Raise CheckFailed for another dtype, or a size not in `sizes`."""
    fits = x.dim() == len(sizes) and all(map(operator.contains, sizes, x.shape))
    expected = ", ".join("|".join(map(str, each)) for each in sizes)
    require(
        fits and x.dtype == dtype,
        f"{what} is {tuple(x.shape)} {x.dtype}: ({expected}) {dtype} expected, "
        f"here B = {B}, H = {H}, T = S = {T}, C = {C}",
    )


def _hook_calls(
    encoding, tokens: int = T, queries: int = T, device: str = "cpu"
) -> Iterator[tuple[str, tuple]]:
    """Yield names and arguments of hooks, for pairs of the last `queries`."""
    pos = torch.arange(tokens, device=device)[None]
    h = torch.arange(H, device=device)[:, None, None]
    x = torch.randn(B, tokens, C, device=device)
    q, k = torch.randn(2, B, H, tokens, C // H, device=device)
    yield "embed", (x, pos)
    yield "features", (x, pos)
    q_features, k_features = encoding.features(x, pos)
    yield "rotate", (q, k, pos, q_features, k_features)
    q, q_features = q[:, :, -queries:], tuple(each[:, :, -queries:] for each in q_features)
    if encoding.has("bias"):
        yield "bias", pair_arguments(q_features, k_features, h)
    if encoding.has("factors"):
        yield "factors", (q_features, k_features)
    if encoding.has("logits_transform"):
        d = pos[0, -queries:, None] - pos
        logits = torch.randn(B, H, queries, tokens, device=device)
        bias = torch.randn(1, H, 1, 1, device=device)
        rows = logits, bias, q, k, 0.4, d, d >= 0, q_features, k_features
        yield "logits_transform", rows


def pair_arguments(q_features: tuple, k_features: tuple, h: Tensor) -> tuple:
    """Return the arguments of `bias` for all pairs."""
    wide_q = tuple(feature[:, :, :, None] for feature in q_features)
    return wide_q, tuple(feature[:, :, None] for feature in k_features), h


def _tensors(values) -> list[Tensor]:
    """Return all tensors in nested iterables."""
    if isinstance(values, Tensor):
        return [values]
    if not isinstance(values, Iterable):
        return []
    return [tensor for value in values for tensor in _tensors(value)]


@check("device")
def check_device(spec: str) -> None:
    """Call all hooks on another device (meta, without values).

    Usual cause: torch.arange and the like without device=x.device, constants without
    register_buffer, or .item()
    """
    encoding = make_encoding(spec).to("meta")
    with torch.device("cpu"):
        for hook, arguments in _hook_calls(encoding, device="meta"):
            getattr(encoding, hook)(*arguments)


# Formulas


@check("formulas", causal=(True, False))
def check_formulas(spec: str, causal: bool) -> Measurements:
    """Compare `bias` with factors, distance_bias, triton_bias, reference_bias.

    Usual cause: a sign or a missing term; or factors hold for earlier keys only: set causal_only =
    ("factors",). Override only distance_bias, not bias. For triton_bias see
    triton_attention/bias.py
    """
    encoding = make_encoding(spec, causal=causal)
    x = torch.randn(B, T, C)
    if not encoding.has("bias"):
        raise NotApplicable("the class has no method bias")
    features = encoding.features(x, torch.arange(T)[None])
    formulas = {}
    if encoding.has("factors"):
        formulas["factors"] = _sum_of_products(encoding.factors(*features))
    if encoding.has("distance_bias"):
        formulas["distance_bias"] = torch.as_tensor(dense_bias(encoding, x))
    if causal and encoding.has("triton_bias"):
        formulas["triton_bias"] = _triton_bias(encoding, *features)
    reference_bias: Any = getattr(encoding, "reference_bias", None)
    if causal and reference_bias is not None:
        formulas["reference_bias"] = torch.as_tensor(reference_bias(x.double().numpy()))
    if not formulas:
        raise NotApplicable("bias is the only formula")
    h = torch.arange(H)[:, None, None]
    expected = encoding.bias(*pair_arguments(*features, h))
    for name, bias in formulas.items():
        ours, theirs = (each.double().expand(B, H, T, T) for each in (bias, expected))
        if causal:
            ours, theirs = ours.tril(), theirs.tril()
        yield compare(ours, theirs, 1e-4, 1e-5, f"difference of {name} and bias")


def _sum_of_products(factors: Iterable) -> Tensor:
    """Return the bias (B, H, T, T) float64 of an encoding's factors."""
    total = torch.zeros((), dtype=torch.float64)
    for u, w in factors:
        w = u.new_ones(1, 1, 1) if w is None else w
        u, w = (expand_columns(side.double(), B, H, T) for side in (u, w))
        total = total + u @ w.mT
    return total


def _triton_bias(encoding, q_features: tuple, k_features: tuple) -> Tensor:
    """Return the bias (B|1, H, T, T) by the formulas of the Triton kernels."""
    kind, numbers = bias_from_encoding(encoding, q_features, k_features, H)
    require(kind in KINDS[1:], f"the kind '{kind}' is none of {', '.join(KINDS[1:])}")
    d = (torch.arange(T)[:, None] - torch.arange(T)).clamp(min=0)
    if kind == "distance":
        return numbers["table"][:, d][None]
    if kind == "piecewise-linear":
        ratio = (numbers["table"][:, d] * numbers["g"][..., None])[..., None]
        ends, slopes, intercepts = numbers["pieces"][:, :, None, None].unbind(1)
        piece = F.one_hot((ratio > ends[..., :-1]).sum(-1), ends.size(-1))
        return ((slopes * ratio + intercepts) * piece).sum(-1)
    difference = numbers["s_i"][..., None] - numbers["s_j"][..., None, :]
    difference = numbers["g"][..., None] * difference
    return difference if kind == "decay" else -difference.square().log1p()


# Numbers


@check("finite values")
def check_finite(spec: str) -> None:
    """Check hooks, also of far tokens, and attention after clamping.

    Usual cause: log(0) or 0 / 0 at distance 0: use log1p or clamp; exp overflows far away. To mask
    keys, set window_size, or use a large number such as -1e4 instead of -inf. clamp_parameters_
    bounds parameters in place, under @torch.no_grad(): self.r.clamp_(min=0)
    """
    encoding = make_encoding(spec)
    far = min(encoding.max_context or FAR, FAR)
    with torch.no_grad():
        for tokens, queries in ((T, T), (far, 1)):
            for hook, arguments in _hook_calls(encoding, tokens, queries):
                for values in _tensors(getattr(encoding, hook)(*arguments)):
                    _require_finite(values, f"{hook} at {tokens:,} tokens")
    x, qkv = torch.randn(B, T, C), torch.randn(3, B, H, T, C // H)
    parameters = dict(encoding.named_parameters())
    for value in (-1.0, 3.0):
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.fill_(value)
            encoding.clamp_parameters_()
            output = attend(encoding, x, qkv)
        _require_finite(output, f"the output, after parameters of {value:g} are clamped,")
    for name, parameter in encoding.named_parameters():
        what = f"clamp_parameters_ replaces {name}: the optimizer keeps the old one"
        require(parameter is parameters[name], what)


def _require_finite(values: Tensor, what: str) -> None:
    count = (~values.isfinite()).sum().item()
    require(count == 0, f"{what} has NaN or Inf in {count:,} of {values.numel():,} values")


@check("gradients", causal=(True, False))
def check_gradients(spec: str, causal: bool) -> Measurements:
    """Compare gradients with finite differences in float64; none is missing.

    Relative to the gradient's norm, for the best of several step sizes.

    Usual cause: detach(), .data or no_grad in a formula, a wrong backward, sqrt'(0) at distance 0,
    or a parameter that no hook uses, or only in round()
    """
    encoding = make_encoding(spec, heads=2, width=12, causal=causal).double().eval()
    x = torch.randn(1, 9, 12).double()
    qkv = torch.randn(3, 1, 2, 9, 6).double()
    weights = torch.randn(1, 2, 9, 6, dtype=torch.float64)
    named = {"x": x, "q, k and v": qkv, **dict(encoding.named_parameters())}

    def loss() -> Tensor:
        embedded = encoding.embed(x, torch.arange(9)[None])
        return (attend(encoding, x, qkv) * weights).sum() + embedded.square().mean()

    for tensor in named.values():
        tensor.requires_grad_()
    gradients = torch.autograd.grad(loss(), list(named.values()), materialize_grads=True)
    for (name, tensor), gradient in zip(named.items(), gradients, strict=True):
        if causal and isinstance(tensor, nn.Parameter):
            require(bool(gradient.any()), f"{name} has no gradient")
        errors = [difference_error(loss, [tensor], [gradient], h) for h in STEP_SIZES]
        what = f"error of the gradient of {name} against finite differences"
        yield within(min(errors), 1e-3, what)


@torch.no_grad()
def difference_error(
    loss: Callable[[], Tensor], tensors: Iterable, gradients: list[Tensor], step: float
) -> float:
    """Return the error of a directional derivative over the gradient's norm."""
    generator = torch.Generator().manual_seed(0)
    shapes = (tensor.shape for tensor in tensors)
    directions = [torch.randn(x, generator=generator, dtype=torch.float64) for x in shapes]
    losses = []
    for move in (1, -2, 1):  # the last one restores the tensors
        for tensor, direction in zip(tensors, directions, strict=True):
            tensor += move * step * direction
        losses.append(loss().item())
    difference = (losses[0] - losses[1]) / (2 * step)
    products = map(torch.mul, gradients, directions)
    derivative = sum(product.sum().item() for product in products)
    norm = torch.nn.utils.get_total_norm(gradients).item()
    return abs(derivative - difference) / max(norm, abs(difference), 1e-3)


@check("bfloat16, far tokens")
@torch.no_grad()
def check_rotation_in_bfloat16(spec: str) -> Measurements:
    """Compare rotation in bfloat16 and float32 at far positions, by norms.

    Usual cause: compute angles and sines in float32 or float64, cast the result
    """
    encoding = make_encoding(spec)
    last = min(encoding.max_context or FAR, FAR)
    pos = torch.arange(last - T, last)[None]
    q, k = torch.randn(2, 1, H, T, C // H).bfloat16()
    features = encoding.features(torch.randn(1, T, C), pos)
    exact = encoding.rotate(q.float(), k.float(), pos, *features)
    for ours, theirs in zip(encoding.rotate(q, k, pos, *features), exact, strict=True):
        # of xpos, squares overflow in float32
        ours, theirs = ours.double(), theirs.double()
        error = ((ours - theirs).norm() / theirs.norm()).item()
        yield within(error, 0.01, f"relative error at {last:,} tokens")


# Attention paths


def attention_case(spec: str, causal: bool) -> tuple[Any, Tensor, Tensor]:
    """Return an encoding, x, and q, k, v of two texts of 50 tokens."""
    encoding = make_encoding(spec, 2, 32, causal, std=0.3)
    message = "an encoder's encoding is causal: call super().set_bidirectional() in yours"
    require(encoding.causal == causal, message)
    return encoding, torch.randn(2, 50, 32), torch.randn(3, 2, 2, 50, 16)


@check("attention paths", causal=(True, False), backward=(True, False))
def check_paths(spec: str, causal: bool, backward: bool) -> Measurements:
    """Compare all paths with one matrix of all pairs; also gradients.

    Usual cause: a bias depends on T or S: use pos and d. Factors differ from bias, or hold for
    earlier keys only: set causal_only = ("factors",). Use |i - j| or |S_i - S_j| where self.causal
    is
    False. If there is no formula for later keys: supports_bidirectional = False
    """
    encoding, x, qkv = attention_case(spec, causal)
    if encoding.has("bias") and not causal:
        _check_later_keys(torch.as_tensor(dense_bias(encoding, x, 2)))
    expected = all_pairs(encoding, x, *qkv.requires_grad_(backward))
    with torch.set_grad_enabled(backward), small_chunks():
        for path in cpu_paths(encoding):
            ours = attend(encoding, x, qkv, path)
            what = f"error of the {path.name} path"
            yield compare(ours, expected, 1e-5, 1e-7, f"{what} in chunks")
            if backward:
                grad, reference = (
                    torch.autograd.grad(y.sin().sum(), qkv, retain_graph=True)[0]
                    for y in (ours, expected)
                )
                yield compare(grad, reference, 1e-5, 1e-7, f"{what}'s gradients")


def _check_later_keys(bias: Tensor) -> None:
    """Check that a bias that decays for earlier keys does so for later ones."""
    _require_finite(bias, "the bias of an encoder")
    excess = bias - bias.diagonal(dim1=2, dim2=3)[..., None]
    steps = bias.diff(dim=-1).tril(-1)  # towards the query, among earlier keys
    decays = (steps.amin((0, 2, 3)) >= 0) & (steps.amax((0, 2, 3)) > 0)  # (H,)
    later = excess.triu(1).amax((0, 2, 3))
    require(
        not (decays & (later > 1e-6)).any().item(),
        f"the bias decays towards earlier keys, but grows towards later keys by {later.max():.2g}",
    )


@check("encoder: padding", gradients=(True, False))
def check_padding(spec: str, gradients: bool) -> Measurements:
    """Compare a padded batch with each text alone; padding has no gradient.

    Usual cause: a value depends on masked tokens: use `mask` and causal sums
    """
    encoding, x, qkv = attention_case(spec, causal=False)
    qkv.requires_grad_(gradients)
    with torch.set_grad_enabled(gradients), small_chunks():
        for path in cpu_paths(encoding):
            padded = attend(encoding, x, qkv, path, lengths=torch.tensor([23, 50]))
            for row, length in ((slice(0, 1), 23), (slice(1, 2), 50)):
                alone = attend(encoding, x[row, :length], qkv[:, row, :, :length])
                what = f"error of a padded text, {path.name} path"
                yield compare(padded[row, :, :length], alone, 1e-5, 1e-7, what)
            if gradients:
                (grad,) = torch.autograd.grad(padded[0, :, :23].sin().sum(), qkv)
                grad[:, 0, :, :23] = 0  # of the text
                require(not grad.any(), "padding receives gradients")
