"""Tests of models with the triton attention path."""

import pytest
import torch
from conftest import ENCODINGS
from kernel_cases import (
    DEVICE,
    make_model,
    small_tiles,  # noqa: F401
    small_tiles_on_cpu,  # noqa: F401
)
from torch.testing import assert_close

import pe_spec
import triton_attention
from evaluation.layer_checks import supports_bidirectional


def is_supported(pe, causal):
    layers = len(pe_spec.layer_specs(pe))
    return all(map(triton_attention.supports, pe_spec.build(pe, 2, 8, 8, layers, causal)))


# In the interpreter, one decoder of each kind of bias: the check "triton bias" has all of them.
DECODERS = ["rope", "cable", "k-cable", "kerple", "fire", "cable:heads=2"]
if DEVICE == "cuda":
    DECODERS = [pe for pe in ENCODINGS if is_supported(pe, True)]
ENCODERS = [pe for pe in ENCODINGS if supports_bidirectional(pe) and is_supported(pe, False)]


@pytest.mark.parametrize(
    "pe, causal", [*((pe, True) for pe in DECODERS), *((pe, False) for pe in ENCODERS)]
)
def test_every_supported_encoding_matches_the_dense_path(pe, causal):
    tokens = torch.randint(96, (2, 28), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    losses, grads = {}, {}
    for path in ("dense", "triton"):
        model = make_model(pe, path, causal)
        with torch.no_grad():
            # Larger parameters than at initialization, so that the bias matters.
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
                parameter.add_(noise.to(DEVICE), alpha=0.2)
            model.clamp_parameters_()
        losses[path] = model(tokens, tokens)
        losses[path].backward()
        grads[path] = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert_close(losses["triton"], losses["dense"])
    assert_close(grads["triton"], grads["dense"], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("pe, causal", [("rope+fox", False), ("t5", True), ("fire", True)])
def test_model_compiles_to_one_graph(pe, causal):
    """The graph includes tile skipping and the gradients of the encoding's parameters."""
    tokens = torch.randint(96, (2, 32), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    model = make_model(pe, "triton", causal)
    torch._dynamo.reset()
    grads = []
    for forward in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        forward(tokens, tokens).backward()
        grads.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert_close(*grads, rtol=1e-3, atol=1e-6)
