"""Numbers of docs/differences.md: the papers' sizes and epochs."""

from pathlib import Path

import pytest
import yaml

from model import GPT, SIZES, GPTConfig
from train_gpt import Config

ROOT = Path(__file__).resolve().parent.parent


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


@pytest.mark.parametrize("size, epochs", [("tiny", 10), ("small", 5), ("medium", 3)])
def test_epochs_of_the_configs(size, epochs):
    """The epochs that v3 prints are those of 131,072 tokens per step, not of 524,288."""
    settings = yaml.safe_load((ROOT / f"configs/wikitext103_{size}.yaml").read_text())
    tokens = 118e6  # of WikiText-103's training split
    config = Config(**settings)
    assert (config.size, config.block_size) == (size, 1024)
    assert settings["steps"] * settings["tokens_per_step"] / tokens == pytest.approx(epochs, 0.12)
    assert settings["steps"] * Config.tokens_per_step / tokens > 4 * epochs * 0.95
