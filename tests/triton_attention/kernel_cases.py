"""Inputs, reference formulas and fixtures of the tests of the Triton kernels.

On a GPU the kernels run there; otherwise in Triton's interpreter.
"""

import types

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from evaluation import model_checks  # noqa: E402
from triton_attention import interface, kernels, tile_sizes  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SCALE = 0.3


def patch_interpreter_once():
    """Make the interpreter patch Triton's language once per launch, not in every function call.

    The patches take half of the interpreter's time.
    """
    patch = interpreter._patch_lang
    language = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang = lambda fn: patch(language)
    interpreter.InterpretedFunction.__call__ = lambda self, *args, **kwargs: self.rewrite()(
        *args, **kwargs
    )


if kernels.INTERPRETED.value:
    patch_interpreter_once()


def set_tile_sizes(monkeypatch, sizes):
    """Make all kernels use these tile sizes, by kernel."""
    monkeypatch.setattr(tile_sizes, "select", lambda kind, head_dim, dtype: sizes)


def set_small_tiles(monkeypatch, keys):
    """Use tiles of 32 queries and `keys` keys, so that a short text has several."""
    sizes = {"forward": (32, keys, 4, 1), "rows": (32, 16, 4, 1)}
    sizes |= {"columns": (16, 2 * keys, 4, 1), "distances": (16, 16, 4, 1)}
    set_tile_sizes(monkeypatch, sizes)


@pytest.fixture
def small_tiles(monkeypatch):
    set_small_tiles(monkeypatch, 16)


@pytest.fixture(autouse=True)
def small_tiles_on_cpu(request):
    """A GPU uses the real tile sizes, except in tests that count tiles."""
    if DEVICE == "cpu":
        request.getfixturevalue("small_tiles")


def make_inputs(kind, T, S, D, B=2, H=2, steep=1.0, causal=True, shared=1):
    """Return float64 q, k, v and the numbers of a kind of bias, by name.

    shared: the number of heads that have the same key.
    """
    generator = torch.Generator().manual_seed(T + S + D)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = {"q": normal(B, H, T, D)}
    inputs |= {name: normal(B, H // shared, S, D) for name in "kv"}
    if "decay" in kind:
        inputs["s"] = -(steep * normal(B, H, S).relu()).cumsum(-1)
        inputs["g"] = normal(B, H, T).exp()
    if kind == "distance":
        inputs["table"] = normal(H, S if causal else 2 * S - 1)
    if kind == "piecewise-linear":
        ends = normal(7).sort().values.expand(H, 1, 7)
        inputs["table"] = normal(H, S).abs().cumsum(-1) / 9
        inputs["g"] = normal(1, 1, T).exp().sort(descending=True).values
        inputs["ends"] = F.pad(ends, (0, 1), value=torch.inf)
        inputs["slopes"] = normal(H, 1, 8)
    return {name: x.to(DEVICE) for name, x in inputs.items()}


def to_float32(inputs):
    return {name: x.float() for name, x in inputs.items()}


def reference(kind, inputs, scale=SCALE, causal=True, window_size=None):
    """Return softmax(q k^T scale + b) v and the weights, in the precision of the inputs."""
    q, k, v = (inputs[name] for name in "qkv")
    k, v = (x.repeat_interleave(q.size(1) // k.size(1), 1) for x in (k, v))
    T, S = q.size(2), k.size(2)
    d = (torch.arange(T, device=q.device) + S - T)[:, None] - torch.arange(S, device=q.device)
    z = q @ k.mT * scale
    if "decay" in kind:
        difference = inputs["s"][..., S - T :, None] - inputs["s"][..., None, :]
        b = inputs["g"][..., None] * (difference if causal else -difference.abs())
        z = z + (b if kind == "decay" else -torch.log(b**2 + 1))
    if kind == "distance":
        z = z + inputs["table"][:, d.clamp(min=0) if causal else d + S - 1]
    if kind == "piecewise-linear":
        x = inputs["table"][:, d.clamp(min=0)] * inputs["g"][0, 0, :, None]
        z = z + piecewise_linear(x, inputs["ends"][:, 0, :7], inputs["slopes"][:, 0])
    masked = (d < 0 if causal else d < -S) | (d.abs() >= (window_size or S + 1))
    weights = z.masked_fill(masked, -torch.inf).softmax(-1)
    return weights @ v, weights


def piecewise_linear(x, ends, slopes):
    """Return the continuous function with these slopes that is 0 at the first end.

    x: (H, T, S). ends: (H, K - 1). slopes: (H, K).
    """
    value = slopes[:, 0, None, None] * (x - ends[:, 0, None, None]).clamp(max=0)
    for piece in range(1, slopes.size(1)):
        low = ends[:, piece - 1, None, None]
        high = ends[:, piece, None, None] if piece < ends.size(1) else torch.inf
        value = value + slopes[:, piece, None, None] * (x.clamp(max=high) - low).clamp(min=0)
    return value


def intercepts(ends, slopes):
    """Return b of each piece a x + b of `piecewise_linear`."""
    values = [-slopes[:, 0] * ends[:, 0]]
    for piece in range(1, slopes.size(1)):
        change = slopes[:, piece - 1] - slopes[:, piece]
        values.append(values[-1] + change * ends[:, piece - 1])
    return torch.stack(values, 1)


def run_kernels(kind, inputs, scale=SCALE, causal=True, window_size=None, **options):
    """Return the output of `fused_attention` for the inputs of `make_inputs`."""
    T, s = inputs["q"].size(2), inputs.get("s")
    numbers = {name: inputs[name] for name in ("g", "table") if name in inputs}
    if s is not None:
        numbers |= {"s_i": s[..., s.size(-1) - T :], "s_j": s}
    if kind == "piecewise-linear":
        ends, slopes = inputs["ends"], inputs["slopes"]
        parts = [ends, slopes, intercepts(ends[:, 0], slopes[:, 0])[:, None]]
        numbers["pieces"] = torch.cat(parts, 1)
    qkv, bias = (inputs[name] for name in "qkv"), (kind, numbers)
    return interface.fused_attention(*qkv, bias, scale, causal, window_size, **options)


def gradients(compute, inputs, dtype, fixed=()):
    """Return the output "y" and the gradient of every input that is not fixed, by name.

    q, k and v are converted to dtype; the numbers of a bias to float32 or wider.
    """
    wide = torch.promote_types(dtype, torch.float32)
    inputs = {name: x.to(dtype if name in "qkv" else wide) for name, x in inputs.items()}
    for name, x in inputs.items():
        inputs[name] = x.detach().requires_grad_(name not in fixed)
    y = compute(inputs)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
    learned = {name: x for name, x in inputs.items() if name not in ("ends", *fixed)}
    grads = torch.autograd.grad(y, [*learned.values()], dy)
    return {"y": y.detach(), **dict(zip(learned, grads, strict=True))}


def relative_errors(kind, inputs, dtype=torch.float32, **options):
    """Return the norm of each error of the kernels relative to the exact result's norm, by name."""
    rounded = {
        name: x.to(dtype).double() if name in "qkv" else x.float().double()
        for name, x in inputs.items()
    }
    exact = gradients(lambda x: reference(kind, x, **options)[0], rounded, torch.float64)
    actual = gradients(lambda x: run_kernels(kind, x, **options), inputs, dtype)
    assert all(x.isfinite().all() for x in actual.values())  # max() ignores NaN
    errors = {name: actual[name].double() - x for name, x in exact.items()}
    return {name: (errors[name].norm() / x.norm()).item() for name, x in exact.items()}


def make_model(pe, path, causal=True):
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 32}
    return model_checks.make_model(pe, attention=path, causal=causal, **shape).to(DEVICE)
