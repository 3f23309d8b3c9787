"""Checks of one layer's encoding: its hooks, gradients and attention paths.

Each function takes an encoding as in --pe, and returns the largest error and its bound (or None if
nothing is measured). It raises CheckFailed, or NotApplicable with the reason. The table of all
checks is in encoding_checks.py.

Legend: B batch, H heads, T queries, S keys, D head dimension, C width.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

import attention
import pe_spec
import posenc
from attention import BiasInputs
from evaluation.measurement import (
    CheckFailed,
    Measurement,
    NotApplicable,
    compare,
    require,
    within,
    worst,
)
from triton_attention.bias import Bias, bias_from_encoding

B, H, T, C = 2, 4, 33, 24
FAR = 32_768  # tokens of the check for finite values, or max_context
STEP_SIZES = (1e-6, 1e-4, 1e-3, 1e-2)  # of finite differences


def make_encoding(
    spec: str,
    heads: int = H,
    width: int = C,
    block_size: int = 64,
    causal: bool = True,
    std: float | None = 0.5,
) -> posenc.Encoding:
    """Return one layer's encoding with random parameters: zeros could hide a mistake.

    std: standard deviation of the parameters; None: their initial values.
    """
    if not causal and not supports_bidirectional(spec):
        raise NotApplicable("supports_bidirectional = False")
    torch.manual_seed(0)
    encoding = pe_spec.build(spec, heads, width, block_size, layers=1, causal=causal)[0]
    if std is not None:
        for parameter in encoding.parameters():
            nn.init.normal_(parameter, std=std)
        _clamp_by_reflection(encoding)
    return encoding


@torch.no_grad()
def _clamp_by_reflection(encoding: posenc.Encoding) -> None:
    """Clamp random parameters, but not onto a bound, where the formula may have a kink."""
    drawn = [parameter.clone() for parameter in encoding.parameters()]
    encoding.clamp_parameters_()
    for parameter, value in zip(encoding.parameters(), drawn, strict=True):
        parameter.copy_(2 * parameter - value)
    encoding.clamp_parameters_()


def supports_bidirectional(spec: str) -> bool:
    """Return whether all parts of an encoding support bidirectional attention."""
    return all(cls.supports_bidirectional for cls, _ in pe_spec.parse(spec))


def bias_of_pairs(encoding, q_features: tuple, k_features: tuple, heads: int) -> Tensor:
    """Return the formula `bias` of all pairs, computed directly: (B|1, H|1, T, S)."""
    h = torch.arange(heads)[:, None, None]
    return encoding.bias(*_spread_out(q_features, k_features), h)


def _spread_out(q_features: tuple, k_features: tuple) -> tuple[tuple, tuple]:
    """Return views of the features that broadcast to all pairs."""
    wide_q = tuple(feature[:, :, :, None] for feature in q_features)
    return wide_q, tuple(feature[:, :, None] for feature in k_features)


def all_pairs(q, k, v, bias_inputs: BiasInputs, scale: float, window: int) -> Tensor:
    """Return the output of attention (B, H, T, D), computed directly from one matrix of all pairs.

    window: tokens that each token attends to in each direction, itself included.
    """
    encoding, q_features, k_features = bias_inputs
    distance = torch.arange(q.size(2))[:, None] - torch.arange(k.size(2))
    mask = distance.abs() < min(window, encoding.window_size or window)
    if encoding.causal:
        mask &= distance >= 0
    logits, bias = q @ k.mT * scale, torch.zeros(1, 1, 1, 1)
    if encoding.bias is not None:
        bias = bias_of_pairs(encoding, q_features, k_features, q.size(1))
    if encoding.logits_transform is not None:
        rows = logits, bias, q, k, scale, distance, mask, q_features, k_features
        bias = bias + encoding.logits_transform(*rows)
    logits = (logits + bias).masked_fill(~mask, -torch.inf)
    total = logits.logsumexp(-1, keepdim=True)
    if encoding.sink is not None:
        total = torch.logaddexp(total, encoding.sink()[:, None, None])
    return (logits - total).exp() @ v


def dense_output(encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return the output of the dense path (B, H, T, D) for token embeddings x (B, T, C)."""
    pos = torch.arange(x.size(1))
    features = encoding.features(encoding.embed(x, pos), pos)
    q, k = encoding.rotate(q, k, pos, *features)
    return attention.dense(q, k, v, BiasInputs(encoding, *features), 0.4)


def dense_bias(encoding, x: Tensor, heads: int = H) -> np.ndarray | None:
    """Return the bias (B, H, T, T) float64 of the dense path; None for encodings without one."""
    if encoding.bias is None:
        return None
    inputs = BiasInputs(encoding, *encoding.features(x, torch.arange(x.size(1))))
    bias = attention.bias_matrix(inputs, heads, x.size(1))
    return bias.detach().expand(x.size(0), heads, x.size(1), x.size(1)).double().numpy()


def last_queries(q_features: tuple, count: int) -> tuple:
    """Return the query features of the last `count` tokens."""
    return tuple(
        feature[:, :, -count:] if feature.size(2) > 1 else feature for feature in q_features
    )


def small_chunks():
    """Return a context in which attention processes 16 queries at a time."""
    return mock.patch.object(attention, "CHUNK_ELEMENTS", 1)


def outputs(q, k, v, bias_inputs, mask_spec=None) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the output of each path: the dense reference and the one of "auto"."""
    encoding = bias_inputs.encoding
    mask_spec = mask_spec or attention.make_mask_spec(encoding)
    paths = {
        path.name: path for path in (attention.DENSE, attention.resolve_path("auto", encoding))
    }
    for name, path in paths.items():
        path = attention.select_path(path, q, k, bias_inputs, mask_spec)
        yield name, attention.attend(q, k, v, bias_inputs, 0.4, path, mask_spec)


# Interface


def check_options(spec: str) -> None:
    """Check constructor and options, and that 2 to 12 heads are possible."""
    for cls, _ in pe_spec.parse(spec):
        parameters = list(inspect.signature(cls).parameters.values())
        options = [p for p in parameters if p.kind is p.KEYWORD_ONLY]
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        require(
            len(positional) == 3 or any(p.kind is p.VAR_POSITIONAL for p in parameters),
            f"{cls.__name__}.__init__ has the arguments {', '.join(positional)}",
            "use (self, heads, channels, block_size, *, option: int = 8)",
        )
        for option in options:
            words = cls.option_words.get(option.name, ())
            is_integer = option.default is None or type(option.default) is int
            require(
                option.default in words if words else is_integer,
                f"the default of the option {option.name} is {option.default!r}",
                "a default is an integer, None, or one of the option's words in option_words",
            )
            for value in words or [option.default]:
                if value is not None:
                    pe_spec.build(f"{cls.names[0]}:{option.name}={value}", H, C, 64, layers=1)
    for heads, width, block_size in ((2, 12, 16), (3, 24, 100), (12, 96, 64)):
        pe_spec.build(spec, heads, width, block_size, layers=2)


@torch.no_grad()
def check_shapes(spec: str) -> None:
    """Check shapes and dtypes of what the hooks return."""
    encoding = make_encoding(spec)
    for hook, arguments in _hook_calls(encoding):
        result = getattr(encoding, hook)(*arguments)
        if hook == "embed":
            shape = tuple(result.shape)
            require(shape == (B, T, C), f"embed returns {shape} for (B, T, C)")
        elif hook == "features":
            _check_feature_shapes(result[0], "query", (1, T))
            _check_feature_shapes(result[1], "key", (T,))
        elif hook == "rotate":
            _check_rotated_shapes(encoding, *arguments)
        elif hook in ("bias", "logits_transform"):
            _check_pairs(result, hook)


def _check_rotated_shapes(encoding, q: Tensor, k: Tensor, *others) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for rotated in encoding.rotate(q.to(dtype), k.to(dtype), *others):
            width = rotated.size(-1) if encoding.changes_width else q.size(-1)
            require(
                rotated.shape == (*q.shape[:3], width) and rotated.dtype == dtype,
                f"rotate returns {_describe(rotated)} for {_describe(q.to(dtype))}",
                "compute in float32 or float64 and return x.to(q.dtype); another width needs "
                "changes_width = True",
            )


def _check_feature_shapes(features: tuple, kind: str, lengths: tuple[int, ...]) -> None:
    for feature in features:
        sizes = tuple(feature.shape)
        valid = len(sizes) in (3, 4) and sizes[0] in (1, B) and sizes[1] in (1, H)
        require(
            valid and sizes[2] in lengths and feature.dtype == torch.float32,
            f"a {kind} feature is {_describe(feature)}: (B|1, H|1, T[, N]) float32 expected, "
            f"here B = {B}, H = {H}, T = {T}",
            "a linear layer of x gives (B, T, H): use .mT; pos gives (T,): use "
            "pos.float()[None, None]",
        )


def _check_pairs(values: Tensor, hook: str) -> None:
    sizes = tuple(values.shape)
    valid = len(sizes) == 4 and all(
        size in (1, full) for size, full in zip(sizes, (B, H, T, T), strict=True)
    )
    require(
        valid and values.dtype == torch.float32,
        f"{hook} returns {_describe(values)}: (B|1, H|1, T, S) float32 expected, "
        f"here B = {B}, H = {H}, T = S = {T}",
        "index parameters of a head by [h], which has the shape (H, 1, 1)",
    )


def _describe(x: Tensor) -> str:
    return f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"


def _hook_calls(
    encoding, tokens: int = T, queries: int = T, device: str = "cpu"
) -> Iterator[tuple[str, tuple]]:
    """Yield the name and the arguments of each hook that an encoding has.

    queries: number of the last tokens whose pairs are computed; `rotate` gets the last T tokens.
    """
    pos, h = torch.arange(tokens, device=device), torch.arange(H, device=device)[:, None, None]
    x = torch.randn(B, tokens, C, device=device)
    q, k = torch.randn(2, B, H, tokens, C // H, device=device)
    yield "embed", (x, pos)
    yield "features", (x, pos)
    q_features, k_features = encoding.features(x, pos)
    latest = q[:, :, -T:], k[:, :, -T:], pos[-T:]
    yield "rotate", (*latest, last_queries(q_features, T), last_queries(k_features, T))
    q, q_features = q[:, :, -queries:], last_queries(q_features, queries)
    if encoding.bias is not None:
        yield "bias", (*_spread_out(q_features, k_features), h)
    if encoding.factors is not None:
        yield "factors", (q_features, k_features)
    if encoding.logits_transform is not None:
        d = pos[-queries:, None] - pos
        logits = torch.randn(B, H, queries, tokens, device=device)
        bias = torch.randn(1, H, 1, 1, device=device)
        yield "logits_transform", (logits, bias, q, k, 0.4, d, d >= 0, q_features, k_features)


def _tensors(values) -> list[Tensor]:
    """Return all tensors in the arguments or the result of a hook, nested iterables."""
    if isinstance(values, Tensor):
        return [values]
    if not isinstance(values, Iterable):
        return []
    return [tensor for value in values for tensor in _tensors(value)]


@torch.no_grad()
def check_inputs_unchanged(spec: str) -> None:
    """Check that no hook modifies its arguments."""
    encoding = make_encoding(spec)
    for hook, arguments in _hook_calls(encoding):
        tensors = _tensors(arguments)
        before = [tensor.clone() for tensor in tensors]
        getattr(encoding, hook)(*arguments)
        for tensor, copy in zip(tensors, before, strict=True):
            require(
                torch.equal(tensor, copy),
                f"{hook} modifies one of its arguments in place",
                "replace operations such as x.add_() and x += y by x = x + y",
            )


def check_device(spec: str) -> None:
    """Move the encoding to another device (meta, without values) and call all hooks there."""
    encoding = make_encoding(spec).to("meta")
    with torch.device("cpu"):
        try:
            for hook, arguments in _hook_calls(encoding, device="meta"):
                getattr(encoding, hook)(*arguments)
        except (RuntimeError, NotImplementedError) as error:
            raise CheckFailed(
                f"a hook fails on another device: {' '.join(str(error).split())[:160]}",
                "pass device=x.device (or pos.device) to torch.arange and the like, use "
                "register_buffer for constants, and no .item()",
            ) from error


# Formulas


def check_form(
    spec: str, form: str, causal: bool = True, atol: float = 1e-5, rtol: float = 1e-5
) -> Measurement:
    """Compare the bias of all pairs that attend with another way to compute it.

    form: a method of the class that FORMS evaluates.
    """
    encoding, x = make_encoding(spec, causal=causal), torch.randn(B, T, C)
    if encoding.bias is None or getattr(encoding, form, None) is None:
        raise NotApplicable(f"the class has no method {form}")
    features = encoding.features(x, torch.arange(T))
    ours = FORMS[form](encoding, x, *features).double().expand(B, H, T, T)
    expected = bias_of_pairs(encoding, *features, H).double().expand(B, H, T, T)
    if causal:
        ours, expected = ours.tril(), expected.tril()
    return compare(f"{form} differs from bias", ours, expected, atol, rtol)


def _sum_of_factors(encoding, x: Tensor, q_features: tuple, k_features: tuple) -> Tensor:
    """Return the sum of the products of `factors`."""
    total = torch.zeros((), dtype=torch.float64)
    for u, w in encoding.factors(q_features, k_features):
        w = torch.ones(1, 1, 1) if w is None else w
        u, w = (side[..., None] if side.dim() == 3 else side for side in (u, w))
        total = total + u.double() @ w.double().mT
    return total


def _bias_of_distances(encoding, x: Tensor, *features: tuple) -> Tensor:
    return torch.as_tensor(dense_bias(encoding, x))


def _bias_of_kernels(encoding, x: Tensor, *features: tuple) -> Tensor:
    q_features, k_features = features
    return _evaluate_kernel_bias(bias_from_encoding(encoding, q_features, k_features, H))


def _bias_of_reference(encoding, x: Tensor, *features: tuple) -> Tensor:
    return torch.as_tensor(np.asarray(encoding.reference_bias(x.double().numpy())))


FORMS: dict[str, Callable[..., Tensor]] = {
    "reference_bias": _bias_of_reference,
    "factors": _sum_of_factors,
    "distance_bias": _bias_of_distances,
    "triton_bias": _bias_of_kernels,
}


def _evaluate_kernel_bias(bias: Bias) -> Tensor:
    """Return the bias of all pairs, later keys excepted, by the formulas of triton_attention."""
    d = (torch.arange(T)[:, None] - torch.arange(T)).clamp(min=0)
    if bias.kind == "distance":
        assert bias.table is not None, "triton_bias returns no table"
        return bias.table[:, d][None]
    assert bias.g is not None, "triton_bias returns no g"
    if bias.kind == "piecewise-linear":
        assert bias.table is not None, "triton_bias returns no table"
        assert bias.pieces is not None, "triton_bias returns no pieces"
        ratio = (bias.table[:, d] * bias.g.expand(1, -1, T)[0, :, :, None]).expand(H, T, T)
        ends, slopes, intercepts = bias.pieces.unbind(1)  # (H, K) each
        flat = ratio.flatten(1).contiguous()
        piece = torch.searchsorted(ends[:, :-1].contiguous(), flat)
        return (slopes.gather(1, piece) * flat + intercepts.gather(1, piece)).view(1, H, T, T)
    assert bias.s_i is not None and bias.s_j is not None, "triton_bias returns no S"
    decay = bias.g[..., None] * (bias.s_i[..., None] - bias.s_j[..., None, :])
    return decay if bias.kind == "decay" else -decay.square().log1p()


def check_continued_features(spec: str) -> Measurement | None:
    """Compare features of a text in one piece and in two, the second with `previous`."""
    encoding, x, pos = make_encoding(spec), torch.randn(B, T, C), torch.arange(T)
    whole = encoding.features(x, pos)
    head = encoding.features(x[:, :20], pos[:20])
    previous = tuple(feature[:, :, -1:] for feature in head[1])
    tail = encoding.features(x[:, 20:], pos[20:], previous)
    parts = zip(whole[0] + whole[1], head[0] + head[1], tail[0] + tail[1], strict=True)
    errors = []
    for feature, first, second in parts:
        if feature.size(2) == T:
            what = "features of tokens 20 to 32 differ if they continue tokens 0 to 19"
            continued = torch.cat([first, second], 2)
            errors.append(compare(what, continued, feature, atol=1e-5, rtol=1e-5))
        else:  # the same for all tokens
            same = torch.equal(first, feature) and torch.equal(second, feature)
            require(same, "a feature with T = 1 differs between parts of a text")
    if not errors:
        raise NotApplicable("no features per token")
    return worst(errors)


# Numbers


def check_gradients(spec: str, causal: bool = True) -> Measurement | None:
    """Compare gradients with finite differences in float64, along one random direction each.

    Of the input, queries, keys, and all parameters, through the dense path. The error is relative
    to the norm of the gradient, and the smallest of several step sizes: encodings that round to
    float32 need large steps, those with kinks small ones.
    """
    encoding = make_encoding(spec, heads=2, width=12, causal=causal).double().eval()
    pos, weights = torch.arange(9), torch.randn(1, 2, 9, 6, dtype=torch.float64)
    x, (q, k, v) = torch.randn(1, 9, 12).double(), torch.randn(3, 1, 2, 9, 6).double()
    named = {"x": x, "q": q, "k": k, **dict(encoding.named_parameters())}

    def loss() -> Tensor:
        output = dense_output(encoding, x, q, k, v)
        return (output * weights).sum() + encoding.embed(x, pos).square().mean()

    for tensor in named.values():
        tensor.requires_grad_()
    gradients = torch.autograd.grad(loss(), list(named.values()), allow_unused=True)
    errors = []
    for (name, tensor), gradient in zip(named.items(), gradients, strict=True):
        gradient = torch.zeros_like(tensor) if gradient is None else gradient
        error = min(difference_error(loss, [tensor], [gradient], step) for step in STEP_SIZES)
        what = f"the gradient of {name} differs from finite differences"
        errors.append(within(Measurement(error, 1e-3), what))
    return worst(errors)


@torch.no_grad()
def difference_error(
    loss: Callable[[], Tensor], tensors: list[Tensor], gradients: list[Tensor], step: float
) -> float:
    """Return the error of the derivative along a random direction, over the gradient's norm."""
    generator = torch.Generator().manual_seed(0)
    directions = [
        torch.randn(tensor.shape, generator=generator, dtype=torch.float64) for tensor in tensors
    ]
    losses, saved = [], [tensor.clone() for tensor in tensors]
    for sign in (1, -1, 0):
        for tensor, start, direction in zip(tensors, saved, directions, strict=True):
            tensor.copy_(start + sign * step * direction)
        losses.append(loss().item())
    difference = (losses[0] - losses[1]) / (2 * step)
    pairs = zip(gradients, directions, strict=True)
    derivative = sum((gradient * direction).sum().item() for gradient, direction in pairs)
    norm = sum(gradient.square().sum().item() for gradient in gradients) ** 0.5
    return abs(derivative - difference) / max(norm, abs(difference), 1e-3)


def check_finite(spec: str) -> None:
    """Check that hooks, attention and gradients are finite, hooks also for far tokens."""
    encoding = make_encoding(spec)
    far = min(encoding.max_context or FAR, FAR)
    with torch.no_grad():
        for tokens, queries in ((T, T), (far, 1)):
            for hook, arguments in _hook_calls(encoding, tokens, queries):
                for values in _tensors(getattr(encoding, hook)(*arguments)):
                    _require_finite(values, f"{hook} at {tokens:,} tokens")
    q, k, v = torch.randn(3, B, H, T, C // H)
    output = dense_output(encoding, torch.randn(B, T, C), q, k, v)
    _require_finite(output, "the output of attention")
    if output.requires_grad:
        output.sin().sum().backward()
    for name, parameter in encoding.named_parameters():
        if parameter.grad is not None:
            _require_finite(parameter.grad, f"the gradient of {name}")


def _require_finite(values: Tensor, what: str, cause: str = "") -> None:
    count = (~values.isfinite()).sum().item()
    require(
        count == 0,
        f"{what} has NaN or Inf in {count:,} of {values.numel():,} values",
        cause
        or "log(0), 0 / 0 and sqrt'(0) occur at distance 0: use log1p or clamp; powers and exp "
        "overflow far away; parameters, which are random here, need bounds in clamp_parameters_",
    )


def check_rotation_in_bfloat16(spec: str) -> Measurement:
    """Compare rotated queries and keys in bfloat16 with float32 at far positions, by norms."""
    encoding = make_encoding(spec)
    last = min(encoding.max_context or FAR, FAR)
    pos, (q, k) = torch.arange(last - T, last), torch.randn(2, 1, H, T, C // H).bfloat16()
    with torch.no_grad():
        features = encoding.features(torch.randn(1, T, C), pos)
        exact = encoding.rotate(q.float(), k.float(), pos, *features)
        errors = [
            ((ours.float() - theirs).norm() / theirs.norm()).item()
            for ours, theirs in zip(encoding.rotate(q, k, pos, *features), exact, strict=True)
        ]
    what = f"the relative error of rotate in bfloat16 at {last:,} tokens"
    return within(Measurement(max(errors), 0.01), what)


def check_clamping(spec: str) -> None:
    """Check that `clamp_parameters_` works in place, and that outputs are finite after it."""
    encoding = pe_spec.build(spec, H, C, 64, layers=1)[0]
    parameters = dict(encoding.named_parameters())
    if not parameters:
        raise NotApplicable("no parameters")
    encoding.clamp_parameters_()
    for name, parameter in encoding.named_parameters():
        require(
            parameter is parameters[name] and parameter.is_leaf and parameter.requires_grad,
            f"clamp_parameters_ replaces {name}, so that the optimizer keeps the old one",
            "clamp in place under @torch.no_grad(): self.r.clamp_(min=0)",
        )
    x, qkv = torch.randn(B, T, C), torch.randn(3, B, H, T, C // H)
    for value in (-1.0, 3.0):
        with torch.no_grad():
            for parameter in parameters.values():
                parameter.fill_(value)
            encoding.clamp_parameters_()
            output = dense_output(encoding, x, *qkv)
        cause = "bound parameters for which the formula is undefined in clamp_parameters_"
        _require_finite(output, f"the output, after parameters of {value:g} are clamped,", cause)


# Attention paths


def check_paths(spec: str, queries: int, gradients: bool) -> Measurement | None:
    """Compare all paths, in chunks, with the dense path; the last `queries` of 65 tokens."""
    encoding = make_encoding(spec, 2, 12, 128, std=None)
    x, (q, k, v) = torch.randn(2, 65, 12), torch.randn(3, 2, 2, 65, 6)
    q_features, k_features = encoding.features(x, torch.arange(65))
    q, q_features = q[:, :, -queries:], last_queries(q_features, queries)
    bias_inputs = BiasInputs(encoding, q_features, k_features)
    expected = attention.dense(q, k, v, bias_inputs, 0.4).detach()
    bound = 2e-6
    if encoding.factors is not None:  # products are rounded relative to the largest bias
        bias = dense_bias(encoding, x, 2)
        assert bias is not None, "an encoding with factors has no bias"
        bound *= max(1.0, abs(bias).max() / 64)
    errors = []
    with torch.set_grad_enabled(gradients), small_chunks():
        for path, y in outputs(q, k, v, bias_inputs):
            what = f"the {path} path in chunks differs from the dense path"
            errors.append(compare(what, y, expected, atol=bound, rtol=1e-7))
    return worst(errors)


def bidirectional_case(spec: str):
    """Return a bidirectional encoding, x, and q, k, v of two texts of 50 tokens."""
    encoding = make_encoding(spec, 2, 32, 64, causal=False, std=0.3)
    cause = "call super().set_bidirectional() where you override it"
    require(not encoding.causal, "an encoder's encoding is causal", cause)
    return encoding, torch.randn(2, 50, 32), torch.randn(3, 2, 2, 50, 16)


def check_bidirectional(spec: str, queries: int, gradients: bool) -> Measurement | None:
    """Compare all paths, in chunks, with one matrix of all pairs; also the gradients of k and v."""
    encoding, x, (q, k, v) = bidirectional_case(spec)
    k, v = k.requires_grad_(gradients), v.requires_grad_(gradients)
    q_features, k_features = encoding.features(x, torch.arange(50))
    if encoding.bias is not None:
        _check_later_keys(bias_of_pairs(encoding, q_features, k_features, 2))
    everything = BiasInputs(encoding, q_features, k_features)
    expected = all_pairs(q, k, v, everything, 0.4, 50)[:, :, -queries:]
    q, q_features = q[:, :, -queries:], last_queries(q_features, queries)
    bias_inputs = BiasInputs(encoding, q_features, k_features)
    errors = []
    with torch.set_grad_enabled(gradients), small_chunks():
        for path, ours in outputs(q, k, v, bias_inputs):
            what = f"the {path} path differs from the formula of all pairs"
            errors.append(compare(what, ours, expected, atol=1e-5, rtol=1e-7))
            if gradients:
                grads = torch.autograd.grad(ours.sin().sum(), (k, v))
                references = torch.autograd.grad(expected.sin().sum(), (k, v), retain_graph=True)
                for grad, reference in zip(grads, references, strict=True):
                    what = f"gradients of the {path} path differ from the formula of all pairs"
                    errors.append(compare(what, grad, reference, atol=1e-5, rtol=1e-7))
    return worst(errors)


def _check_later_keys(bias: Tensor) -> None:
    """Check that a bias that decays with the distance of earlier keys does so for later keys."""
    cause = "the logarithm or root of a negative distance: use |i - j| where self.causal is False"
    _require_finite(bias, "the bias of an encoder", cause)
    bias = bias.expand(-1, -1, 50, 50)
    excess = bias - bias.diagonal(dim1=2, dim2=3)[..., None]
    steps = bias.diff(dim=-1).tril(-1)  # towards the query, among earlier keys
    decays = (steps.amin((0, 2, 3)) >= 0) & (steps.amax((0, 2, 3)) > 0)  # (H,)
    later = excess.triu(1).amax((0, 2, 3))
    wrong = decays & (later > 1e-6)
    require(
        not wrong.any().item(),
        "the bias decays towards earlier keys, but grows towards later keys, "
        f"by up to {later.max().item():.2g}",
        "use the absolute distance, |i - j| or |S_i - S_j|, where self.causal is False; factors "
        "then no longer hold: self.factors = None in set_bidirectional",
    )


def check_padding(spec: str, gradients: bool) -> Measurement | None:
    """Check that texts of 23 and 50 tokens give what each gives alone; padding has no gradient."""
    encoding, x, qkv = bidirectional_case(spec)
    qkv.requires_grad_(gradients)
    lengths = (23, 50)
    errors = []
    with torch.set_grad_enabled(gradients), small_chunks():
        bias_inputs = BiasInputs(encoding, *encoding.features(x, torch.arange(50)))
        mask_spec = attention.make_mask_spec(encoding, lengths=torch.tensor(lengths))
        for _, padded in outputs(qkv[0], qkv[1], qkv[2], bias_inputs, mask_spec):
            _require_finite(padded, "the output of a padded batch")
            for row, length in enumerate(lengths):
                features = encoding.features(x[row : row + 1, :length], torch.arange(length))
                q, k, v = qkv[:, row : row + 1, :, :length]
                alone = attention.dense(q, k, v, BiasInputs(encoding, *features), 0.4)
                what = "the output of a padded text differs from the text alone"
                errors.append(
                    compare(what, padded[row : row + 1, :, :length], alone, 1e-5, rtol=1e-7)
                )
            if gradients:
                (grad,) = torch.autograd.grad(padded[0, :, :23].sin().sum(), qkv)
                masked = not grad[:, 0, :, 23:].any() and not grad[:, 1].any()
                require(masked, "padding receives gradients", "use the argument `mask`")
                require(grad[:, 0, :, :23].abs().sum().item() > 0, "no token has a gradient")
    return worst(errors)
