"""Tests of fused_attention's interface: packed projections, operators, refusals."""

import sys

import pytest
import torch
from kernel_cases import (
    DEVICE,
    SCALE,
    gradients,
    make_inputs,
    make_model,
    run_kernels,
    small_tiles,  # noqa: F401
    small_tiles_on_cpu,  # noqa: F401
    to_float32,
)
from triton.runtime.errors import OutOfResources

import attention
import pe_spec
from errors import InputError
from triton_attention import interface, kernels
from triton_attention.bias import KINDS


@pytest.mark.parametrize("kind", ["decay", "distance"])
@pytest.mark.parametrize("T, causal", [(37, True), (37, False), (1, True)])
def test_packed_projection_gives_the_same_results(kind, T, causal):
    """Queries, keys and values can be the thirds of a projection, whose gradient is one tensor."""
    inputs = to_float32(make_inputs(kind, T, T, 16, causal=causal))

    def separate(x):
        return run_kernels(kind, x, causal=causal)

    def packed(x):
        qkv = torch.stack([x[name].transpose(1, 2) for name in "qkv"], 2)  # (B, T, 3, H, D)
        projection = qkv.flatten(2)  # (B, T, 3 H D)
        thirds = (third.unflatten(-1, (2, 16)).transpose(1, 2) for third in projection.chunk(3, -1))
        x = x | dict(zip("qkv", thirds, strict=True))
        return run_kernels(kind, x, causal=causal, packed_qkv=projection)

    expected = gradients(separate, inputs, torch.float32)
    actual = gradients(packed, inputs, torch.float32)
    for name, x in expected.items():
        assert torch.equal(actual[name], x), name


def test_operator_passes_opcheck():
    """torch.compile relies on the schema, the shapes without data and the gradients."""
    inputs = to_float32(make_inputs("decay", 20, 20, 16, B=1))
    inputs = {name: x.requires_grad_() for name, x in inputs.items()}
    unused = torch.empty(0, device=DEVICE)
    kept = torch.empty(0, dtype=torch.int32, device=DEVICE)
    tensors = [inputs[name] for name in ("q", "k", "v", "s", "g", "s")]
    settings = KINDS.index("decay"), SCALE, True, 2**30
    torch.library.opcheck(torch.ops.posenc.attention, (*tensors, unused, unused, kept, *settings))


def test_unsupported_encoding_is_refused():
    message = "triton attention path cannot compute Composition, because the kernels have no such"
    with pytest.raises(InputError, match=message):
        make_model("fire+cable", "triton")


@pytest.mark.parametrize(
    "kind, T, S, D, options, message",
    [
        ("none", 4, 4, 8, {}, "head dimensions from 16 to 128, not 8: use dense"),
        ("none", 5, 4, 16, {}, "a key for each query, not 5 queries and 4 keys"),
        ("none", 1, 1, 16, {"B": 32768}, "at most 65,535 heads of all sequences together, not 65,"),
        ("distance", 4, 8, 16, {}, "as many queries as keys for the gradient of a table"),
        ("distance", 4, 4, 16, {"causal": False}, "7 numbers in the table of a bidirectional bias"),
        ("piecewise-linear", 4, 4, 16, {"causal": False}, "causal attention for FIRE: use dense"),
    ],
)
def test_unsupported_arguments_are_refused(kind, T, S, D, options, message):
    """The table of a bidirectional distance bias is a causal one."""
    inputs = to_float32(make_inputs(kind, T, S, D, B=options.get("B", 2)))
    causal = options.get("causal", True)
    inputs = {name: x.requires_grad_(causal) for name, x in inputs.items()}
    with pytest.raises(InputError, match=message):
        run_kernels(kind, inputs, causal=causal)


def test_unsupported_dtypes_and_networks_are_refused():
    with pytest.raises(InputError, match="float16 or float32, not torch.float64: use dense"):
        run_kernels("none", make_inputs("none", 4, 4, 16))
    q = torch.zeros(1, 1, 4, 16, device=DEVICE)
    pieces = torch.zeros(1, 3, 2048, device=DEVICE)
    bias = "piecewise-linear", {"g": q[..., 0], "table": q[0, ..., 0], "pieces": pieces}
    with pytest.raises(InputError, match="at most 1,023 units in FIRE's network: use dense"):
        interface.fused_attention(q, q, q, bias, SCALE)


def test_gpu_with_too_little_shared_memory_is_refused(monkeypatch):
    class OversizedKernel:
        def __getitem__(self, grid):
            raise OutOfResources(1 << 20, 101376, "shared memory")

    monkeypatch.setattr(kernels, "attention_forward", OversizedKernel())
    message = "too small for triton's tiles .*Required: 1048576.*: use auto or dense"
    with pytest.raises(InputError, match="this GPU is " + message):
        run_kernels("none", to_float32(make_inputs("none", 4, 4, 16)))


@pytest.mark.skipif(DEVICE == "cuda", reason="needs a machine without a GPU")
def test_cpu_is_refused_without_the_interpreter(monkeypatch):
    monkeypatch.setattr(kernels.INTERPRETED, "value", False)
    with pytest.raises(InputError, match="because it needs a GPU, or TRITON_INTERPRET=1"):
        make_model("cable", "triton")
    with pytest.raises(InputError, match="needs a GPU, not cpu"):
        run_kernels("none", to_float32(make_inputs("none", 4, 4, 16)))


def test_missing_triton_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(InputError, match="needs Triton .*sys.modules.*pip install triton"):
        attention.choose_path(
            pe_spec.build("cable", 2, 8, 8, 1)[0], torch.device("cpu"), name="triton"
        )
