"""Tests of the command line: values that no program can use are refused in one line."""

import importlib
import math
import shlex
import typing
from dataclasses import MISSING

from runtime import cli

import numpy as np
import pytest
import torch

import plot
import train_gpt
from errors import InputError
from setting import settings_of

PROGRAMS = shlex.split("""
bench check_encoding compare eval_extrapolation eval_hellaswag eval_recall eval_receptive_field
export_hf import_pretrained prepare_fineweb prepare_text prepare_wikitext report sample train_gpt
retrieval.evaluate retrieval.finetune retrieval.prepare
""")
CONFIGS = {name: importlib.import_module(name).Config for name in PROGRAMS}
PLOTS = plot.BiasesConfig, plot.DistancesConfig, plot.LossesConfig
CONFIGS |= {config_class.__name__: config_class for config_class in PLOTS}
SETTINGS = [
    (name, field.name, cli._type_of(field))
    for name, config_class in CONFIGS.items()
    for field in settings_of(config_class).values()
]


def is_number(kind):
    return kind in (int, float, int | None, float | None) or "int |" in str(kind)


NUMBERS = [setting for setting in SETTINGS if is_number(setting[2])]
TEXTS = [setting for setting in SETTINGS if setting[2] in (str, str | None)]


def problems(program, name, value):
    """Return the problems of a value of a setting, or of the program's own check."""
    config_class = CONFIGS[program]
    try:
        value = cli.convert(value, config_class.__dataclass_fields__[name])
        config_class(**{name: value})
    except InputError as error:
        return error.problems
    return []


@pytest.mark.parametrize("program, name, kind", NUMBERS)
def test_every_number_is_bounded(program, name, kind):
    """Any number gives a config or one line each; some are refused for every setting."""
    convert = float if kind in (float, float | None) else int
    for value in (0, -1, 1, 2**31, 2**63 - 1, -(2**63) + 1, 10**30):
        lines = problems(program, name, convert(value))
        assert all(line and "\n" not in line for line in lines)
    too_large = [math.nan, math.inf, -math.inf, 1e300] if convert is float else [2**64, 10**40]
    for value in too_large:
        (line,) = problems(program, name, value)
        assert line.startswith(f"{name} is ")
        assert " from " in line and len(line) < 200


@pytest.mark.parametrize("config_class", CONFIGS.values())
def test_defaults_are_within_the_limits(config_class):
    """And values just outside of the limits are refused."""
    for field in settings_of(config_class).values():
        if field.default is not MISSING:
            cli.convert(field.default, field)
        kind = cli._type_of(field)
        numbers = {int, float} & {kind, *typing.get_args(kind)}
        for number in numbers if field.metadata else ():
            low, high = number(field.metadata["low"]), number(field.metadata["high"])
            assert cli.convert(high, field) == high
            limits = f"{field.metadata['low']:,} to {field.metadata['high']:,}"
            for outside in (low - 1 - abs(low), 2 * high + 1):
                with pytest.raises(InputError) as found:
                    cli.convert(outside, field)
                assert str(found.value).startswith(f"{field.name} is {outside}: use ")
                assert str(found.value).endswith(f" from {limits}")


@pytest.mark.parametrize("program, name, kind", TEXTS)
def test_text_that_is_no_name_is_refused(program, name, kind):
    default = CONFIGS[program].__dataclass_fields__[name].default
    for value in ("a\0b", "\udcff", *([""] if default != "" else [])):
        (line,) = problems(program, name, value)
        assert line.startswith(f"{name} is {value or 'empty'}: use ")
        assert "text that is not empty, in UTF-8" in line


def test_booleans_may_be_capitalized():
    flags = ["--compile", "False", "--deterministic", "True", "--seed", "2"]
    config = cli.parse(train_gpt.Config, flags, None)
    assert (config.compile, config.deterministic, config.seed) == (False, True, 2)


def test_help_has_texts_and_defaults(capsys):
    with pytest.raises(SystemExit):
        train_gpt.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--lr X peak learning rate (a number; default: 0.0006)" in text


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(2**60, dtype=torch.uint8),
        lambda: np.empty(2**60, dtype=np.uint8),
        lambda: bytearray(2**60),
    ],
)
def test_too_little_memory_is_one_line(allocate, refused):
    (line,) = refused(lambda _: allocate())
    assert line.startswith("error: out of memory")


def test_other_runtime_errors_are_bugs():
    def fail():
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        cli.run(fail)


def test_one_length_is_bounded():
    assert cli.parse_lengths("16,1x", 8) == [8, 16]
    for text in ("0", str(2**31), "9" * 5000, "99999999999x"):
        with pytest.raises(InputError, match="are invalid"):
            cli.parse_lengths(text, 8)


def test_size_replaces_the_shape_of_earlier_sources(tmp_path):
    """Of files and flags the later one counts; in one place, the more specific setting."""
    path = tmp_path / "a.yaml"
    path.write_text("size: tiny\nn_layer: 3\nlr: 1.0e-3\n")

    def shape(*flags):
        config = cli.parse(train_gpt.Config, ["--config", str(path), *flags], None)
        return config.size, config.n_layer, config.lr

    assert shape() == ("tiny", 3, 1e-3)
    assert shape("--size", "small") == ("small", None, 1e-3)
    assert shape("--size", "small", "--n_layer", "5") == ("small", 5, 1e-3)
