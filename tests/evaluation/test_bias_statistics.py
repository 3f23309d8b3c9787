"""Biases, scores, decays and summaries against values computed by hand."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from evaluation import bias_statistics
from model import GPT, GPTConfig
from training import checkpoints


@pytest.fixture
def model(trained):
    def load(pe):
        network, _ = checkpoints.load_model(trained(pe), torch.device("cpu"))
        return network.requires_grad_(False)

    return load


@pytest.mark.parametrize(
    "pe, slope, decay",
    [("alibi", 1 / 256, [[0, 1, 1]]), ("alibi:heads=1", 0, [[0, 1, 1], 3 * [0]])],
)
def test_bias_and_decay_of_alibi(pe, slope, decay, model):
    """Two heads have the slopes 1/16 and 1/256, or one head has the slope 1/16."""
    layer = bias_statistics.layers(model(pe), torch.tensor([[5, 6, 7]]))[1]
    assert_allclose(layer.bias()[0, :, 2], np.outer([1 / 16, slope], [-2, -1, 0]))
    assert_allclose(layer.decay(), [decay])


def test_decay_adds_up_to_the_bias(model):
    cable = model("cable")
    cable.posenc[-1].step.bias.data += 1  # every head decays
    layer = bias_statistics.layers(cable, torch.arange(9)[None])[-1]
    bias, decay = layer.bias()[0], layer.decay()[0]
    weight = bias[:, 8, 0] / -decay[:, 1:].sum(1)  # g of the last query
    assert_allclose(bias[:, 8, 3], -weight * decay[:, 4:].sum(1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pe", ["rope", "cable", "window:w=9+fox", "t5", "dapev2+kerple"])
def test_scores_reproduce_attention(pe, model):
    """softmax(logits) v is the input of the output projection."""
    network = model(pe)
    tokens, attn = torch.arange(40, 60)[None], network.h[1].attn
    seen = []
    attn.c_proj.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    attn.c_attn.register_forward_hook(lambda _, arguments, output: seen.append(output))
    layer = bias_statistics.layers(network, tokens)[1]
    projection, attention_output = seen[:2]
    logits = layer.logits()[0]
    q, k, v = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in projection.chunk(3, -1))
    distance = torch.arange(20)[:, None] - torch.arange(20)
    mask = (distance >= 0) & (distance < (9 if "window" in pe else 20))
    assert torch.equal(layer.attention_mask(), mask)
    weights = logits.masked_fill(~mask, -torch.inf).softmax(-1)
    y = (weights @ v)[0].transpose(0, 1).flatten(1)
    assert_allclose(y, attention_output[0], atol=1e-5)
    assert (layer.bias() is None) == (pe == "rope")
    assert (layer.decay() is None) == (pe in ("rope", "t5", "dapev2+kerple"))
    if pe == "dapev2+kerple":  # its bias is all that is added to q k^T
        assert_allclose(layer.bias()[0], logits - (q @ k.mT)[0] * 8**-0.5, atol=1e-5)


def test_logits_of_heads_that_share_keys():
    """Of four heads, the first two share keys, and the last two."""
    shape = {"n_layer": 1, "n_head": 4, "n_embd": 32, "block_size": 16, "vocab_size": 64}
    network = GPT(GPTConfig(size="custom", block="llama", n_kv_head=2, pe="alibi", **shape))
    layer = bias_statistics.layers(network, torch.arange(9)[None])[0]
    q, k, _ = layer.attn.split_heads(layer.attn.c_attn(layer.x))
    products = (layer.logits() - layer.bias())[0] / layer.attn.scale
    assert_allclose(products[3].detach(), (q[0, 3] @ k[0, 1].mT).detach(), atol=1e-4)
