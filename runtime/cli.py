"""How does a command line become a typed config, and a user's mistake one clear line?

A program's settings are a dataclass; values come from its defaults, then from the YAML file given as --config, then from
flags. `parse` checks names and types, the program checks meaning; `run` prints what is wrong and exits with status 2.
"""

import dataclasses
import difflib
import os
import re
import sys
import typing

import jsonargparse
import yaml
from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter

from errors import InputError

jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)


class _HelpFormatter(DefaultHelpFormatter):
    def _fill_text(
        self, text, width, indent
    ):  # keep the lines of a program's docstring: they are commands to copy
        return text


def parse(
    config_class: type,
    argv: list[str] | None,
    description: str,
    positional: tuple[str, str] | None = None,
):
    """`config_class`, a dataclass with a docstring under each field, filled from its defaults < --config FILE < flags.

    positional: (name, help) of one more field, a list[str] that takes the arguments which are no flags.
    Raises InputError for unknown names (all at once, with the nearest known one) and for values of the wrong type.
    """
    files, argv = _files(sys.argv[1:] if argv is None else argv)
    fields = {field.name: field.type for field in dataclasses.fields(config_class)}
    parser = ArgumentParser(
        description=description,
        exit_on_error=False,
        formatter_class=_HelpFormatter,
        print_config=None,
    )
    parser.add_argument(
        "--config", action="config", help="YAML file of settings; flags overrule it"
    )
    if positional:
        parser.add_argument(positional[0], nargs="*", type=str, help=positional[1])
    parser.add_class_arguments(config_class, None, skip={positional[0]} if positional else set())

    argv = [
        f"{word}=true"
        if fields.get(word[2:]) in (bool, bool | None)
        and next_word not in ("true", "false", "null")
        else word
        for word, next_word in zip(argv, [*argv[1:], ""])
    ]  # --resume means --resume true
    names = [word[2:].split("=")[0] for word in argv if word.startswith("--")]
    problems = [
        _unknown("flag --", name, fields) for name in names if name not in (*fields, "help")
    ]
    for path, name in ((path, name) for path in files for name in _keys(path)):
        if positional and name == positional[0]:
            problems.append(
                f"{path}: {name} stand on the command line, without a flag: move them there"
            )
        elif name not in fields:
            problems.append(_unknown(f"{path}: key ", name, fields))
    if problems:
        raise InputError(*problems)
    try:
        values = vars(
            parser.parse_args([*(f"--config={path}" for path in files), *argv])
        )  # flags overrule them, wherever they stand
    except ArgumentError as error:
        plain = re.sub(
            r"<class '(\w+)'>|typing\.(\w)", r"\1\2", str(error).replace("Parser key", "value of")
        )
        raise InputError(" ".join(plain.split())) from None
    values.pop("config")
    empty = [
        name
        for name, value in values.items()
        if value is None and type(None) not in typing.get_args(fields[name])
    ]
    if empty:
        raise InputError(*(f"{name} is null: give a value, or leave it out" for name in empty))
    return config_class(**values)


def check_minimums(config, **least) -> list[str]:
    """A line for each setting that is below its least value; those that are None, or a word, have none."""
    return [
        f"{name} is {value}: it must be at least {least[name]}"
        for name in least
        if isinstance(value := getattr(config, name), int | float) and value < least[name]
    ]


def parse_lengths(text: str, block_size: int) -> list[int]:
    """ "512,1x,16x" -> sorted token counts. Raises InputError for anything else."""
    try:
        found = {
            block_size * int(word[:-1]) if word.endswith("x") else int(word)
            for word in text.replace(" ", "").split(",")
        }
    except ValueError:
        found = {0}
    if min(found) < 1:
        raise InputError(
            f"lengths '{text}': give token counts or multiples of the training length, as in 512,1024 or 1x,16x"
        )
    return sorted(found)


def run(main) -> None:
    """Runs a program: input errors become one line each and status 2, Ctrl-C status 130, a reader that has enough, as in `| head`,
    status 1; a bug keeps its traceback."""
    try:
        try:
            main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # for what Python has left to write when it ends
        sys.exit(1)
    except InputError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _unknown(where: str, name: str, fields) -> str:
    near = difflib.get_close_matches(name, fields, 1)
    return f"{where}{name} is unknown: " + (
        f"did you mean {near[0]}?" if near else "--help lists all"
    )


def _files(argv: list[str]) -> tuple[list[str], list[str]]:
    """The paths of --config, and all other words."""
    files, rest, words = [], [], iter(argv)
    for word in words:
        flag, given, path = word.partition("=")
        if flag == "--config":
            files.append(path if given else next(words, ""))
        else:
            rest.append(word)
    return files, rest


def _keys(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            values = yaml.safe_load(file)
    except OSError as error:
        raise InputError(f"--config {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InputError(f"--config {path} must hold lines of the form 'name: value'")
    return [str(key) for key in values]
