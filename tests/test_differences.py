"""Differences between the papers' formulas and their code, by numbers (docs/differences.md)."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import pe_spec
import posenc
from model import GPT, SIZES, GPTConfig
from train_gpt import Config

ROOT = Path(__file__).resolve().parent.parent
DISTANCES = np.arange(8192.0)
HEADS, WIDTH = 12, 768  # of Sandwich's network
RATIOS = 8 * np.arange(1, HEADS + 1) / HEADS  # h of each head


def sum_of_cosines(first: int) -> np.ndarray:
    """Return Sandwich's sum over 64 indices from `first`, minus 64, at all distances."""
    index = first + np.arange(64)
    return np.cos(DISTANCES[:, None] / 10000 ** (2 * index / 128)).sum(1) - 64


def distance_bias(pe: str) -> np.ndarray:
    """Return the bias of an encoding of distances by name, (8192, heads)."""
    return distance_bias_of(pe_spec.build(pe_spec.parse(pe), HEADS, WIDTH, 512, 1)[0])


@torch.no_grad()
def distance_bias_of(encoding: posenc.Encoding) -> np.ndarray:
    """Return the bias of an encoding of distances, (8192, heads)."""
    pos = torch.arange(len(DISTANCES))
    features = encoding.features(torch.zeros(1, 1, WIDTH), pos)
    queries = tuple(f[..., -1:, None] for f in features[0])
    keys = tuple(f[..., None, :] for f in features[1])
    bias = encoding.bias(queries, keys, torch.arange(HEADS)[:, None, None])
    return bias.expand(1, HEADS, 1, -1)[0, :, 0].flip(-1).T.double().numpy()


def test_sum_index_of_sandwich():
    """The printed sum has the indices 1 to 64, the code of appendix E those from 0 to 63."""
    code, printed = sum_of_cosines(0), sum_of_cosines(1)
    np.testing.assert_allclose(distance_bias("sandwich"), code[:, None] / RATIOS, atol=1e-4)
    largest = np.abs(code - printed).max()
    assert largest / 8 == pytest.approx(0.25, abs=0.005)
    assert largest / RATIOS[0] == pytest.approx(3.0, abs=0.005)


def test_smoothed_curve_is_near_the_fit_to_all_distances():
    """Footnote 7 says that the curve is fitted to the 50 most recent tokens."""
    fits = {}
    for first, tokens in ((0, 50), (0, 8192), (1, 8192)):
        x = np.log1p(DISTANCES[:tokens])
        fits[first, tokens] = np.polyfit(x, sum_of_cosines(first)[:tokens] / 8, 1).round(3)
    assert fits[0, 8192].tolist() == [-0.832, -0.794]
    assert fits[0, 50].tolist() == [-1.024, -0.015]
    assert fits[1, 8192].tolist() == [-0.841, -0.611]  # with the sum of the text
    printed = -0.825 * np.log1p(DISTANCES) - 0.8
    smoothed = distance_bias("sandwich-smoothed")
    np.testing.assert_allclose(smoothed, printed[:, None] * 8 / RATIOS, rtol=1e-5)


@torch.no_grad()
def test_smoothed_sandwich_is_a_special_case_of_kerple():
    """Sandwich, section 6.3: r1 = 0.825 (at h = 8), r2 = 1, up to a constant in each row."""
    kerple = pe_spec.build(pe_spec.parse("kerple"), HEADS, WIDTH, 512, 1)[0]
    kerple.r1.copy_(torch.tensor(0.825 * 8 / RATIOS))
    kerple.r2.fill_(1)
    difference = distance_bias_of(kerple) - distance_bias("sandwich-smoothed")
    np.testing.assert_allclose(difference, np.tile(6.4 / RATIOS, (8192, 1)), atol=1e-4)


def test_literal_alibi_of_sandwich_is_shift_3():
    """Equations 1 and 3: the bias -d 2^(-h) is divided by sqrt(768 / 12) = 8."""
    printed = -DISTANCES[:, None] * 2.0**-RATIOS / np.sqrt(WIDTH / HEADS)
    np.testing.assert_allclose(distance_bias("alibi-shift:shift=3"), printed, rtol=1e-5)
    np.testing.assert_allclose(distance_bias("alibi-shift:shift=0"), printed * 8, rtol=1e-5)


def test_printed_slopes_of_alibi_are_those_of_8_heads():
    """CABLE, section 3: 1/2^h in head h, at every number of heads."""
    for heads in (8, 12, 16):
        slopes = 2 ** -posenc.alibi_exponents(heads).numpy()
        printed = 0.5 ** np.arange(1, heads + 1)
        assert np.array_equal(slopes, printed) == (heads == 8)


def test_gates_read_the_whole_width():
    """Equations 2 and 6 print vectors w for each head, without a bias term."""
    encoding = pe_spec.build(pe_spec.parse("cable"), HEADS, WIDTH, 512, 1)[0]
    shapes = {name: tuple(p.shape) for name, p in encoding.named_parameters()}
    assert shapes == {
        "step.weight": (HEADS, WIDTH),
        "step.bias": (HEADS,),
        "weight.weight": (HEADS, WIDTH),
        "weight.bias": (HEADS,),
    }


def test_parameters_of_kerple_and_t5():
    """KERPLE's authors share r1 and r2 over all layers; gpt-neox multiplies T5's table by 8."""
    layers = pe_spec.build(pe_spec.parse("kerple"), HEADS, WIDTH, 512, 12)
    parameters = {id(p): p.numel() for layer in layers for p in layer.parameters()}
    assert sum(p.numel() for p in layers[0].parameters()) == 24
    assert sum(parameters.values()) == 288
    t5 = pe_spec.build(pe_spec.parse("t5"), HEADS, WIDTH, 512, 1)[0]
    nearest = distance_bias_of(t5)[0]
    assert nearest.tolist() == pytest.approx(t5.table[:, 0].tolist(), rel=1e-6)


def test_sizes_of_the_papers():
    """By hand: 12 L C^2 + 13 L C in the blocks, V C in the embeddings, 2 C in the last norm."""

    def by_hand(layers, width, vocabulary):
        return 12 * layers * width**2 + 13 * layers * width + vocabulary * width + 2 * width

    millions = {}
    for size, layers, width in (("tiny", 6, 512), ("small", 12, 768), ("medium", 24, 1024)):
        one_layer = GPT(GPTConfig(size=size, n_layer=1, vocab_size=64, pe="alibi"))
        assert one_layer.parameter_count() == by_hand(1, width, 64)
        assert SIZES[size][::2] == (layers, width)
        millions[size] = round(by_hand(layers, width, 50304) / 1e6, 1)
    assert millions == {"tiny": 44.7, "small": 123.7, "medium": 353.8}
    untied = 50304 * 768 / 1e6
    assert round(untied, 1) == 38.6 and round(millions["small"] + untied) == 162
    assert WIDTH % 10  # the printed number of heads of GPT-2 small


@pytest.mark.parametrize("size, epochs", [("tiny", 10), ("small", 5), ("medium", 3)])
def test_epochs_of_the_configs(size, epochs):
    """The epochs that v3 prints are those of 131,072 tokens per step, not of 524,288."""
    settings = yaml.safe_load((ROOT / f"configs/wikitext103_{size}.yaml").read_text())
    tokens = 118e6  # of WikiText-103's training split
    config = Config(**settings)
    assert (config.size, config.block_size) == (size, 1024)
    assert settings["steps"] * settings["tokens_per_step"] / tokens == pytest.approx(epochs, 0.12)
    assert settings["steps"] * Config.tokens_per_step / tokens > 4 * epochs * 0.95
