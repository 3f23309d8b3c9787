"""Biases, scores, falls and their summaries against what the encodings' formulas give by hand."""

import math

import pytest
import torch
from numpy.testing import assert_allclose

from evaluation import bias_statistics
from runtime import loading


@pytest.fixture
def model(trained):
    return lambda pe: loading.load_model(trained(pe), torch.device("cpu"))[0].requires_grad_(False)


def test_bias_is_the_encodings(model):
    layer = bias_statistics.layers(model("alibi"), torch.tensor([[5, 6, 7]]))[1]
    bias = layer.bias()[0]
    assert_allclose(bias[0, 2], [-2 / 16, -1 / 16, 0])  # two heads with slopes 1/16 and 1/256
    assert_allclose(bias[1, 2], [-2 / 256, -1 / 256, 0])
    assert_allclose(layer.falls(), [[[0, 1, 1]]])


def test_what_is_not_seen(model):
    layer = bias_statistics.layers(model("window:w=2+alibi"), torch.tensor([[5, 6, 7]]))[0]
    assert layer.attention_mask().tolist() == [
        [True, False, False],
        [True, True, False],
        [False, True, True],
    ]


def test_falls_add_up_to_the_bias(model):
    cable = model("cable")
    cable.posenc[-1].step.bias.data += 1  # no head without a fall
    layer = bias_statistics.layers(cable, torch.arange(9)[None])[-1]
    bias, falls = layer.bias()[0], layer.falls()[0]
    weight = bias[:, 8, 0] / -falls[:, 1:].sum(1)  # g of the last query
    assert_allclose(bias[:, 8, 3], -weight * falls[:, 4:].sum(1), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pe", ["rope", "cable", "rope+fox", "t5", "dapev2+kerple"])
def test_scores_are_those_of_attention(pe, model):
    """softmax(scores) v is what the layer's attention returns before its output projection."""
    network = model(pe)
    tokens, attn, seen = torch.arange(40, 60)[None], network.h[1].attn, []
    attn.c_proj.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    attn.c_attn.register_forward_hook(lambda _, arguments, output: seen.append(output))
    layer = bias_statistics.layers(network, tokens)[1]
    scores = layer.scores()[0]
    v = seen[0].chunk(3, -1)[2].unflatten(-1, (2, -1)).transpose(1, 2)
    weights = scores.masked_fill(torch.ones(20, 20, dtype=torch.bool).triu(1), -torch.inf).softmax(
        -1
    )
    assert_allclose((weights @ v)[0].transpose(0, 1).flatten(1), seen[1][0], atol=1e-5)
    assert (layer.bias() is None) == (pe == "rope") and (layer.falls() is None) == (
        pe in ("rope", "t5", "dapev2+kerple")
    )
    if pe == "dapev2+kerple":  # its bias is what there is beside q k^T
        q, k, _ = (x.unflatten(-1, (2, -1)).transpose(1, 2) for x in seen[0].chunk(3, -1))
        assert_allclose(layer.bias()[0], scores - (q @ k.mT)[0] * 8**-0.5, atol=1e-5)


def test_summary_of_alibi_by_hand(model):
    """16 tokens, slopes m = 1/16 and 1/256: the fall is m a token, the window exp of a geometric distribution's entropy."""
    found = bias_statistics.summary(model("alibi"), torch.arange(32).view(2, 16))
    windows = []
    for m in (1 / 16, 1 / 256):
        weights = [math.exp(-m * d) / sum(math.exp(-m * e) for e in range(16)) for d in range(16)]
        windows.append(math.exp(-sum(w * math.log(w) for w in weights)))
    assert found["slope"] == pytest.approx([(1 / 16 + 1 / 256) / 2] * 2)
    assert found["window"] == pytest.approx([sum(windows) / 2] * 2)


def test_autocast_rounds_no_sums(model):
    """As train_gpt.py asks, whose model takes them in float32, too."""
    fox, tokens = model("fox"), torch.arange(2000)[None] % 256
    exact = bias_statistics.summary(fox, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        for name, found in bias_statistics.summary(fox, tokens).items():
            assert_allclose(found, exact[name], rtol=0.02)


def test_summary_of_a_window(model):
    """The last 5 of 16 tokens alone, slopes 1/16 and 1/256."""
    found, window = (
        bias_statistics.summary(model("window:w=5+alibi"), torch.arange(32).view(2, 16)),
        0,
    )
    for m in (1 / 16, 1 / 256):
        weights = [math.exp(-m * d) / sum(math.exp(-m * e) for e in range(5)) for d in range(5)]
        window += math.exp(-sum(w * math.log(w) for w in weights)) / 2
    assert found["window"] == pytest.approx([window] * 2) and found["slope"] == pytest.approx(
        [(1 / 16 + 1 / 256) / 2] * 2
    )


def test_summary_follows_the_text(model):
    cable = model("cable")
    cable.posenc[0].step.bias.data += 5
    slopes = bias_statistics.summary(cable, torch.arange(16)[None])
    assert (
        slopes["slope"][0] > 1 > slopes["slope"][1]
        and slopes["window"][0] < 3 < slopes["window"][1] < 16
    )
    assert bias_statistics.summary(model("rope"), torch.arange(16)[None]) == {}
