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
    world_sizes = [1, 2, 4, 8, 16]
    if path.stem == "ladder_3":
        world_sizes.remove(16)  # 8 sequences per step: the tokens of a step on rung 2
    for world_size in world_sizes:
        config.sequences_per_step(world_size)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_config_opens_with_its_cost_and_a_command(path):
    header = path.read_text().split("\ndata:")[0].split("\nsize:")[0]
    assert all(line.startswith("#") for line in header.splitlines())
    assert "# Cost: " in header
    assert f"configs/{path.name}" in header or f"--scale {path.stem}" in header


@pytest.mark.parametrize("size", ["tiny", "small", "medium"])
def test_fineweb_edu_is_one_epoch_of_10b_tokens(size):
    config = Config(**yaml.safe_load((ROOT / f"configs/fineweb-edu_{size}.yaml").read_text()))
    assert (config.size, config.steps, config.tokens_per_step) == (size, 19000, 524288)
    assert (config.lr, config.min_lr, config.warmup_steps) == (6e-4, 6e-5, 750)
    assert config.steps * config.tokens_per_step == pytest.approx(9.9e9, rel=0.01)


def test_bert_has_the_settings_of_section_5_5():
    config = Config(**yaml.safe_load((ROOT / "configs/fineweb-edu_bert.yaml").read_text()))
    assert (config.objective, config.steps) == ("mlm", 14000)
    assert (config.block_size, config.lr) == (512, 1e-4)
    assert config.tokens_per_step == 4 * 32 * 512
    assert config.micro_batch == 32


def test_sandwich_has_the_recipe_of_kerple():
    """Table 7; the rest is kerple_configs/train.yml of the same authors' code for KERPLE."""
    config = Config(**yaml.safe_load((ROOT / "configs/sandwich_small.yaml").read_text()))
    assert (config.size, config.block_size, config.steps, config.lr) == ("small", 512, 50000, 6e-4)
    assert config.tokens_per_step == 32 * config.block_size
    assert (config.beta1, config.beta2, config.weight_decay) == (0.9, 0.999, 0)
    assert (config.grad_clip, config.min_lr) == (1, 0)
    assert config.warmup_steps == config.steps // 100
