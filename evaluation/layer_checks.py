"""Checks of one layer's encoding: its hooks, gradients and attention paths.

Each takes an encoding as in --pe, and yields measured errors with their
bounds, or returns None. It raises CheckFailed, or NotApplicable with
the reason. Its docstring has the usual cause of a failure.

B batch, H heads, T queries, S keys, D head dimension, C width.
"""

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

import attention
import pe_spec
import posenc
from attention import BiasInputs
from evaluation.checks import Measurements, NotApplicable, check, compare, require, within
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
    encoding = pe_spec.build(spec, heads, width, 64, layers=1, causal=causal)[0]
    drawn = [parameter.normal_(std=std).clone() for parameter in encoding.parameters()]
    # Clamp by reflection, not onto a bound, where formulas may have a
    # kink.
    encoding.clamp_parameters_()
    for parameter, value in zip(encoding.parameters(), drawn, strict=True):
        parameter.copy_(2 * parameter - value)
    encoding.clamp_parameters_()
    return encoding


def supports_bidirectional(spec: str) -> bool:
    """Return whether all parts support bidirectional attention."""
    return all(cls.supports_bidirectional for cls, _ in pe_spec.parse(spec))


def bias_of_pairs(encoding, q_features: tuple, k_features: tuple, heads: int) -> Tensor:
    """Return `bias` of all pairs, computed directly: (B|1, H|1, T, S)."""
    h = torch.arange(heads)[:, None, None]
    return encoding.bias(*_spread_out(q_features, k_features), h)


def _spread_out(q_features: tuple, k_features: tuple) -> tuple[tuple, tuple]:
    """Return views of the features that broadcast to all pairs."""
    wide_q = tuple(feature[:, :, :, None] for feature in q_features)
    return wide_q, tuple(feature[:, :, None] for feature in k_features)


def all_pairs(q, k, v, bias_inputs: BiasInputs, scale: float, window: int) -> Tensor:
    """Return attention (B, H, T, D), computed from one matrix of all pairs.

    window: tokens attended to in each direction, the query's own
    included.
    """
    encoding, q_features, k_features = bias_inputs
    distance = torch.arange(q.size(2))[:, None] - torch.arange(k.size(2))
    mask = distance.abs() < min(window, encoding.window_size or window)
    if encoding.causal:
        mask &= distance >= 0
    logits, bias = q @ k.mT * scale, torch.zeros(1, 1, 1, 1)
    if encoding.has("bias"):
        bias = bias_of_pairs(encoding, q_features, k_features, q.size(1))
    if encoding.has("logits_transform"):
        rows = logits, bias, q, k, scale, distance, mask, q_features, k_features
        bias = bias + encoding.logits_transform(*rows)
    logits = (logits + bias).masked_fill(~mask, -torch.inf)
    total = logits.logsumexp(-1, keepdim=True)
    if encoding.has("sink"):
        total = torch.logaddexp(total, encoding.sink()[:, None, None])
    return (logits - total).exp() @ v


def dense_output(encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the dense path's output (B, H, T, D) for x (B, T, C)."""
    pos = torch.arange(x.size(1))[None]
    features = encoding.features(encoding.embed(x, pos), pos)
    q, k = encoding.rotate(q, k, pos, *features)
    return attention.dense(q, k, v, BiasInputs(encoding, *features), 0.4)


def dense_bias(encoding, x: Tensor, heads: int = H) -> np.ndarray | None:
    """Return the dense path's bias (B, H, T, T) float64, or None."""
    if not encoding.has("bias"):
        return None
    inputs = BiasInputs(encoding, *encoding.features(x, torch.arange(x.size(1))[None]))
    bias = attention.bias_matrix(inputs, heads, x.size(1))
    return bias.detach().expand(x.size(0), heads, x.size(1), x.size(1)).double().numpy()


def last_queries(features: tuple, count: int) -> tuple:
    """Return the query features of the last `count` tokens."""
    return tuple(x[:, :, -count:] if x.size(2) > 1 else x for x in features)


def small_chunks():
    """Return a context in which attention takes 16 queries at a time."""
    return mock.patch.object(attention, "CHUNK_ELEMENTS", 1)


def outputs(q, k, v, bias_inputs, mask_spec=None) -> Iterator[tuple[str, Tensor]]:
    """Yield names and outputs of the dense path and of the one of "auto"."""
    encoding = bias_inputs.encoding
    mask_spec = mask_spec or attention.make_mask_spec(encoding)
    for path in dict.fromkeys((attention.DENSE, attention.choose_path(encoding, q.device))):
        chosen = attention.select_path(path, q, k, bias_inputs, mask_spec)
        yield (
            path.name,
            attention.biased_attention(q, k, v, bias_inputs, 0.4, chosen, mask_spec),
        )


# Interface


@check("options")
def check_options(spec: str) -> None:
    """Check constructor and options, and that 2 to 12 heads are possible.

    Usual cause: __init__(self, heads, channels, block_size, *, option:
    int = 8) must call super().__init__(heads, channels, block_size)
    first. A default is an integer, None, or one of the option's words
    in option_words
    """
    for cls, _ in pe_spec.parse(spec):
        parameters = list(inspect.signature(cls).parameters.values())
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        require(
            len(positional) == 3 or any(p.kind is p.VAR_POSITIONAL for p in parameters),
            f"{cls.__name__}.__init__ has the arguments {', '.join(positional)}",
        )
        for option in (p for p in parameters if p.kind is p.KEYWORD_ONLY):
            default = option.default
            words = cls.option_words.get(option.name, ())
            is_integer = default is None or type(default) is int
            is_valid = default in words if words else is_integer
            require(is_valid, f"the default of the option {option.name} is {default!r}")
            for value in words or [default]:
                if value is not None:
                    with_option = f"{cls.names[0]}:{option.name}={value}"
                    pe_spec.build(with_option, H, C, 64, layers=1)
    for heads, width, block_size in ((2, 12, 16), (3, 24, 100), (12, 96, 64)):
        pe_spec.build(spec, heads, width, block_size, layers=2)


@check("shapes")
@torch.no_grad()
def check_shapes(spec: str) -> None:
    """Check shapes and dtypes of what hooks return, and that arguments stay.

    Usual cause: a bias that reads features needs the method features.
    bias must index parameters of a head by [h], of shape (H, 1, 1).
    features must return two tuples: a linear layer of x gives (B, T,
    H): use .mT; pos gives (B|1, T): use pos.float()[:, None]. rotate
    must compute in float32 or float64 and return x.to(q.dtype); another
    width needs changes_width = True. x.add_() and x += y change
    arguments: use x = x + y
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
    latest = q[:, :, -T:], k[:, :, -T:], pos[:, -T:]
    yield "rotate", (*latest, last_queries(q_features, T), last_queries(k_features, T))
    q, q_features = q[:, :, -queries:], last_queries(q_features, queries)
    if encoding.has("bias"):
        yield "bias", (*_spread_out(q_features, k_features), h)
    if encoding.has("factors"):
        yield "factors", (q_features, k_features)
    if encoding.has("logits_transform"):
        d = pos[0, -queries:, None] - pos
        logits = torch.randn(B, H, queries, tokens, device=device)
        bias = torch.randn(1, H, 1, 1, device=device)
        rows = logits, bias, q, k, 0.4, d, d >= 0, q_features, k_features
        yield "logits_transform", rows


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

    Usual cause: torch.arange and the like without device=x.device,
    constants without register_buffer, or .item()
    """
    encoding = make_encoding(spec).to("meta")
    with torch.device("cpu"):
        for hook, arguments in _hook_calls(encoding, device="meta"):
            getattr(encoding, hook)(*arguments)


# Formulas


@check("formulas", causal=(True, False))
def check_formulas(spec: str, causal: bool) -> Measurements:
    """Compare `bias` with factors, distance_bias, triton_bias, reference_bias.

    Usual cause: a sign or a missing term; or factors hold for earlier
    keys only: set causal_only = ("factors",). Override only
    distance_bias, not bias. For triton_bias see triton_attention/bias.py
    """
    encoding = make_encoding(spec, causal=causal)
    x = torch.randn(B, T, C)
    if not encoding.has("bias"):
        raise NotApplicable("the class has no method bias")
    features = encoding.features(x, torch.arange(T)[None])
    formulas = {}  # name -> values, absolute and relative tolerance
    if encoding.has("factors"):
        formulas["factors"] = _sum_of_products(encoding.factors(*features)), 1e-5, 1e-5
    if encoding.has("distance_bias"):
        formulas["distance_bias"] = torch.as_tensor(dense_bias(encoding, x)), 0.0, 1e-6
    if causal and encoding.has("triton_bias"):
        formulas["triton_bias"] = _triton_bias(encoding, *features), 1e-4, 1e-4
    reference_bias: Any = getattr(encoding, "reference_bias", None)
    if causal and reference_bias is not None:
        reference = torch.as_tensor(reference_bias(x.double().numpy()))
        formulas["reference_bias"] = reference, 1e-5, 1e-5
    if not formulas:
        raise NotApplicable("bias is the only formula")
    expected = bias_of_pairs(encoding, *features, H).double().expand(B, H, T, T)
    for name, (ours, atol, rtol) in formulas.items():
        pairs = [ours.double().expand(B, H, T, T), expected]
        ours, theirs = (bias.tril() if causal else bias for bias in pairs)
        yield compare(ours, theirs, atol, rtol, f"difference of {name} and bias")


def _sum_of_products(factors: Iterable) -> Tensor:
    """Return the bias (B|1, H|1, T, S) float64 of an encoding's factors."""
    total = torch.zeros((), dtype=torch.float64)
    for u, w in factors:
        w = torch.ones(1, 1, 1) if w is None else w
        u, w = (side[..., None] if side.dim() == 3 else side for side in (u, w))
        total = total + u.double() @ w.double().mT
    return total


def _triton_bias(encoding, q_features: tuple, k_features: tuple) -> Tensor:
    """Return the bias (B|1, H, T, T) by the formulas of the Triton kernels."""
    kind, numbers = bias_from_encoding(encoding, q_features, k_features, H)
    require(kind in KINDS[1:], f"the kind '{kind}' is none of {', '.join(KINDS[1:])}")
    d = (torch.arange(T)[:, None] - torch.arange(T)).clamp(min=0)
    if kind == "distance":
        return numbers["table"][:, d][None]
    if kind == "piecewise-linear":
        ratio = numbers["table"][:, d] * numbers["g"][..., None]
        ratio = ratio[..., None]  # (1, H, T, T, 1)
        pieces = numbers["pieces"][:, :, None, None]
        ends, slopes, intercepts = pieces.unbind(1)  # (H, 1, 1, K) each
        piece = (ratio > ends[..., :-1]).sum(-1, keepdim=True)
        values = (
            torch.take_along_dim(each[None], piece, -1) for each in (slopes, intercepts)
        )
        slope, intercept = values
        return (slope * ratio + intercept)[..., 0]
    difference = numbers["s_i"][..., None] - numbers["s_j"][..., None, :]
    difference = numbers["g"][..., None] * difference
    return difference if kind == "decay" else -difference.square().log1p()


@check("continued features")
def check_continued_features(spec: str) -> Measurements:
    """Compare features of a text in one piece and in two, with `previous`.

    Usual cause: features ignore `previous`: add previous[0] to
    cumulative sums; use pos, not torch.arange(T); or they use later
    tokens, as by x.mean(1)
    """
    encoding = make_encoding(spec)
    x, pos = torch.randn(B, T, C), torch.arange(T)[None]
    whole = sum(encoding.features(x, pos), ())
    what = "error of features of tokens 20 to 32"
    head = encoding.features(x[:, :20], pos[:, :20])
    previous = tuple(feature[:, :, -1:] for feature in head[1])
    tail = encoding.features(x[:, 20:], pos[:, 20:], previous)
    for feature, first, second in zip(whole, sum(head, ()), sum(tail, ()), strict=True):
        if feature.size(2) == T:
            continued = torch.cat([first, second], 2)
            yield compare(continued, feature, 1e-5, 1e-5, what)
        else:  # the same for all tokens
            same = torch.equal(first, feature) and torch.equal(second, feature)
            require(same, "a feature with T = 1 differs between parts of a text")
    if all(feature.size(2) < T for feature in whole):
        raise NotApplicable("no features per token")


# Numbers


@check("finite values")
def check_finite(spec: str) -> None:
    """Check hooks (also of far tokens), attention, gradients, and clamping.

    Usual cause: log(0), 0 / 0, sqrt'(0) at distance 0: use log1p or
    clamp; exp overflows far away. To mask keys, set window_size, or use
    a large number such as -1e4 instead of -inf. clamp_parameters_ bounds
    parameters in place, under @torch.no_grad(): self.r.clamp_(min=0)
    """
    encoding = make_encoding(spec)
    far = min(encoding.max_context or FAR, FAR)
    with torch.no_grad():
        for tokens, queries in ((T, T), (far, 1)):
            for hook, arguments in _hook_calls(encoding, tokens, queries):
                for values in _tensors(getattr(encoding, hook)(*arguments)):
                    _require_finite(values, f"{hook} at {tokens:,} tokens")
    x = torch.randn(B, T, C)
    qkv = torch.randn(3, B, H, T, C // H)
    output = dense_output(encoding, x, *qkv)
    _require_finite(output, "the output of attention")
    if output.requires_grad:
        output.sin().sum().backward()
    parameters = dict(encoding.named_parameters())
    encoding.clamp_parameters_()
    for name, parameter in encoding.named_parameters():
        what = f"clamp_parameters_ replaces {name}: the optimizer keeps the old one"
        require(parameter is parameters[name], what)
        if parameter.grad is not None:
            _require_finite(parameter.grad, f"the gradient of {name}")
    for value in (-1.0, 3.0):
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.fill_(value)
            encoding.clamp_parameters_()
            output = dense_output(encoding, x, *qkv)
        _require_finite(output, f"the output, after parameters of {value:g} are clamped,")


def _require_finite(values: Tensor, what: str) -> None:
    count = (~values.isfinite()).sum().item()
    require(count == 0, f"{what} has NaN or Inf in {count:,} of {values.numel():,} values")


@check("gradients", causal=(True, False))
def check_gradients(spec: str, causal: bool) -> Measurements:
    """Compare gradients with finite differences in float64; none is missing.

    Relative to the gradient's norm, for the best of several step sizes.

    Usual cause: detach(), .data or no_grad in a formula, a wrong
    backward, or a parameter that no hook uses, or only in round()
    """
    encoding = make_encoding(spec, heads=2, width=12, causal=causal).double().eval()
    pos = torch.arange(9)[None]
    weights = torch.randn(1, 2, 9, 6, dtype=torch.float64)
    x = torch.randn(1, 9, 12).double()
    q, k, v = torch.randn(3, 1, 2, 9, 6).double()
    named = {"x": x, "q": q, "k": k, **dict(encoding.named_parameters())}

    def loss() -> Tensor:
        output = dense_output(encoding, x, q, k, v)
        return (output * weights).sum() + encoding.embed(x, pos).square().mean()

    @torch.no_grad()
    def is_constant(parameter: Tensor) -> bool:
        """Return whether it adds to whole rows, as in fire: the softmax cancels that."""
        before = dense_bias(encoding, x, 2)
        if before is None:
            return False
        parameter += 1
        steps = np.tril(dense_bias(encoding, x, 2) - before)
        parameter -= 1
        spread = np.tril(steps - steps[..., :1])
        return np.abs(spread).max() < 1e-9 < np.abs(steps).max()

    for tensor in named.values():
        tensor.requires_grad_()
    gradients = torch.autograd.grad(loss(), list(named.values()), allow_unused=True)
    for (name, tensor), gradient in zip(named.items(), gradients, strict=True):
        if causal and isinstance(tensor, nn.Parameter):
            has_gradient = gradient is not None and bool(gradient.any())
            require(has_gradient or is_constant(tensor), f"{name} has no gradient")
        gradient = torch.zeros_like(tensor) if gradient is None else gradient
        errors = [difference_error(loss, [tensor], [gradient], h) for h in STEP_SIZES]
        what = f"error of the gradient of {name} against finite differences"
        yield within(min(errors), 1e-3, what)


@torch.no_grad()
def difference_error(
    loss: Callable[[], Tensor], tensors: list[Tensor], gradients: list[Tensor], step: float
) -> float:
    """Return the error of a directional derivative over the gradient's norm."""
    flat = [torch.cat([x.flatten() for x in each]) for each in (tensors, gradients)]
    start, gradient = flat
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(len(start), generator=generator, dtype=torch.float64)
    losses = []
    for sign in (1, -1, 0):  # 0 restores the tensors
        vector_to_parameters(start + sign * step * direction, tensors)
        losses.append(loss().item())
    difference = (losses[0] - losses[1]) / (2 * step)
    derivative = (gradient @ direction).item()
    scale = max(gradient.norm().item(), abs(difference), 1e-3)
    return abs(derivative - difference) / scale


@check("bfloat16, far tokens")
@torch.no_grad()
def check_rotation_in_bfloat16(spec: str) -> Measurements:
    """Compare rotation in bfloat16 and float32 at far positions, by norms.

    Usual cause: compute angles and sines in float32 or float64, cast
    the result
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


@check("attention paths", causal=(True, False), queries=(1, 7, 50), backward=(True, False))
def check_paths(spec: str, causal: bool, queries: int, backward: bool) -> Measurements:
    """Compare all paths with one matrix of all pairs; also gradients of k, v.

    Usual cause: a bias depends on T or S: use pos and d. Factors differ
    from bias, or hold for earlier keys only: set causal_only =
    ("factors",). Use |i - j| or |S_i - S_j| where self.causal is
    False. If there is no formula for later keys: supports_bidirectional
    = False
    """
    encoding, x, (q, k, v) = attention_case(spec, causal)
    k, v = k.requires_grad_(backward), v.requires_grad_(backward)
    q_features, k_features = encoding.features(x, torch.arange(50)[None])
    if encoding.has("bias") and not causal:
        _check_later_keys(bias_of_pairs(encoding, q_features, k_features, 2))
    everything = BiasInputs(encoding, q_features, k_features)
    expected = all_pairs(q, k, v, everything, 0.4, 50)[:, :, -queries:]
    references = torch.autograd.grad(expected.sin().sum(), (k, v)) if backward else ()
    q, q_features = q[:, :, -queries:], last_queries(q_features, queries)
    bias_inputs = BiasInputs(encoding, q_features, k_features)
    with torch.set_grad_enabled(backward), small_chunks():
        for path, ours in outputs(q, k, v, bias_inputs):
            yield compare(ours, expected, 1e-5, 1e-7, f"error of the {path} path in chunks")
            if backward:
                grads = torch.autograd.grad(ours.sin().sum(), (k, v))
                what = f"error of gradients of the {path} path"
                for grad, reference in zip(grads, references, strict=True):
                    yield compare(grad, reference, 1e-5, 1e-7, what)


def _check_later_keys(bias: Tensor) -> None:
    """Check that a bias that decays for earlier keys does so for later ones."""
    _require_finite(bias, "the bias of an encoder")
    bias = bias.expand(-1, -1, 50, 50)
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

    Usual cause: a value depends on masked tokens: use `mask` and causal
    sums
    """
    encoding, x, qkv = attention_case(spec, causal=False)
    qkv.requires_grad_(gradients)
    lengths = (23, 50)
    with torch.set_grad_enabled(gradients), small_chunks():
        bias_inputs = BiasInputs(encoding, *encoding.features(x, torch.arange(50)[None]))
        mask_spec = attention.make_mask_spec(encoding, lengths=torch.tensor(lengths))
        for path, padded in outputs(qkv[0], qkv[1], qkv[2], bias_inputs, mask_spec):
            _require_finite(padded, "the output of a padded batch")
            what = f"error of a padded text, {path} path"
            for row, length in enumerate(lengths):
                text = x[row : row + 1, :length]
                features = encoding.features(text, torch.arange(length)[None])
                q, k, v = qkv[:, row : row + 1, :, :length]
                alone = attention.dense(q, k, v, BiasInputs(encoding, *features), 0.4)
                yield compare(padded[row : row + 1, :, :length], alone, 1e-5, 1e-7, what)
            if gradients:
                (grad,) = torch.autograd.grad(padded[0, :, :23].sin().sum(), qkv)
                masked = not grad[:, 0, :, 23:].any() and not grad[:, 1].any()
                require(masked, "padding receives gradients")
                total = grad[:, 0, :, :23].abs().sum().item()
                require(total > 0, "no token has a gradient")
