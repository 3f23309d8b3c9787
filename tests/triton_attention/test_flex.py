"""Tests of the attention path "flex". FlexAttention has no backward pass on CPUs."""

import pytest
import torch
from torch.testing import assert_close

import attention
import pe_spec
import triton_attention.flex  # noqa: F401
from errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")  # FlexAttention is not compiled here


def make_inputs(pe, causal=True):
    """Return q, k, v, bias inputs and scale for 40 tokens, without gradients."""
    torch.manual_seed(0)
    encoding = pe_spec.build(pe, 2, 12, 64, 1, causal)[0].requires_grad_(False)
    q, k, v = torch.randn(3, 2, 2, 40, 16)
    features = encoding.features(torch.randn(2, 40, 12), torch.arange(40)[None])
    return q, k, v, attention.BiasInputs(encoding, *features), 0.4


@pytest.mark.parametrize(
    "pe, causal",
    [
        ("cable", True),
        ("fox", True),
        ("alibi", True),
        ("kerple", True),
        ("t5", True),
        ("kerple+cable", True),
        ("window:w=9+alibi", True),
        ("cable", False),
        ("t5", False),
        ("window:w=9", False),
    ],
)
def test_flex_equals_dense(pe, causal):
    inputs = make_inputs(pe, causal)
    flex, dense = (
        attention.biased_attention(*inputs, attention.get_path(path)) for path in ("flex", "dense")
    )
    assert_close(flex, dense)


def test_flex_is_traced_as_one_graph():
    """Also with its block mask, which is computed once."""
    inputs = make_inputs("cable")
    attention.choose_path(inputs[3].encoding, torch.device("cpu"), name="flex")
    torch._dynamo.reset()
    compiled = torch.compile(attention.biased_attention, backend="aot_eager", fullgraph=True)
    expected = attention.biased_attention(*inputs, attention.get_path("dense"))
    assert_close(compiled(*inputs, attention.get_path("flex")), expected)


@pytest.mark.parametrize("pe, name", [("cable", "sdpa"), ("window:w=9+kerple", "masked")])
def test_without_gradients_the_rule_decides(pe, name):
    """FlexAttention that is not compiled would hold all logits."""
    q, k, v, bias_inputs, *_ = make_inputs(pe)
    mask_spec = attention.make_mask_spec(bias_inputs.encoding)
    flex, inputs = attention.get_path("flex"), (q, k, bias_inputs, mask_spec)
    assert attention.select_path(flex, *inputs) is flex
    with torch.no_grad():
        assert attention.select_path(flex, *inputs).name == name


def test_flex_refuses_full_rows_of_logits():
    with pytest.raises(InputError, match="flex attention path cannot compute DAPE"):
        attention.choose_path(
            pe_spec.build("dape", 2, 12, 64, 1)[0], torch.device("cpu"), name="flex"
        )
