"""Tests of configs/: they are valid, minimal, and equal the papers' settings."""

import pytest
import yaml
from conftest import ROOT

from train_gpt import Config

FILES = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_is_valid_and_repeats_no_default(path):
    """size and micro_batch may equal the default, because a reader looks for them."""
    values = yaml.safe_load(path.read_text())
    config = Config(**values)
    defaults = {name for name, value in values.items() if getattr(Config(), name) == value}
    assert defaults <= {"size", "micro_batch"}
    for world_size in (1, 2, 4, 8, 16):
        config.sequences_per_step(world_size)


EPOCH = {"steps": 19000, "tokens_per_step": 524288}  # of FineWeb-Edu-10B
RECIPES = {
    **{
        f"fineweb-edu_{size}": EPOCH
        | {"size": size, "lr": 6e-4, "min_lr": 6e-5, "warmup_steps": 750}
        for size in ("tiny", "small", "medium")
    },
    # CABLE, section 5.5
    "fineweb-edu_bert": {"objective": "mlm", "steps": 14000, "block_size": 512, "lr": 1e-4}
    | {"tokens_per_step": 524288, "micro_batch": 32},
    # Sandwich, table 7; the rest is kerple_configs/train.yml of the same authors' code for KERPLE.
    "sandwich_small": {"size": "small", "block_size": 512, "steps": 50000, "lr": 6e-4}
    | {"tokens_per_step": 32 * 512, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0}
    | {"grad_clip": 1, "min_lr": 0, "warmup_steps": 500},
}


@pytest.mark.parametrize("name", RECIPES)
def test_config_has_the_papers_settings(name):
    config = Config(**yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text()))
    assert {key: getattr(config, key) for key in RECIPES[name]} == RECIPES[name]


@pytest.mark.parametrize("size, epochs", [("tiny", 10), ("small", 5), ("medium", 3)])
def test_epochs_of_the_configs(size, epochs):
    """The epochs that v3 prints are those of 131,072 tokens per step, not of 524,288."""
    settings = yaml.safe_load((ROOT / f"configs/wikitext103_{size}.yaml").read_text())
    tokens = 118e6  # of WikiText-103's training split
    config = Config(**settings)
    assert (config.size, config.block_size) == (size, 1024)
    assert settings["steps"] * settings["tokens_per_step"] / tokens == pytest.approx(epochs, 0.12)
    assert settings["steps"] * Config.tokens_per_step / tokens > 4 * epochs * 0.95
