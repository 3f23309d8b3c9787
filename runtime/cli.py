"""Command line: settings from defaults, a YAML file and flags; user errors as one-line messages.

The settings of a program are a dataclass. Values come from its defaults, then from the YAML files
given as --config, then from flags. `parse` checks names and types, the program checks meanings, and
`run` prints the problems and exits with status 2.
"""

import dataclasses
import difflib
import itertools
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
    """Keep the line breaks of a program's docstring, because it contains commands to copy."""

    def _fill_text(self, text, width, indent):
        return text


def parse(
    config_class: type,
    argv: list[str] | None,
    description: str,
    positional: tuple[str, str] | None = None,
):
    """Return an instance of `config_class`: its defaults < --config FILE < flags.

    config_class: a dataclass with a docstring under each field. argv: the command line; None:
    sys.argv. positional: (name, help) of a list[str] field for arguments without a flag. Raises
    InputError for unknown names (all of them, each with the nearest known name) and for values of
    the wrong type.
    """
    files, argv = _split_config_files(sys.argv[1:] if argv is None else argv)
    fields = {field.name: field.type for field in dataclasses.fields(config_class)}
    parser = ArgumentParser(
        description=description,
        exit_on_error=False,
        formatter_class=_HelpFormatter,
        print_config=None,
    )
    parser.add_argument(
        "--config", action="config", help="YAML file of settings; flags override it"
    )
    if positional:
        parser.add_argument(positional[0], nargs="*", type=str, help=positional[1])
    parser.add_class_arguments(config_class, None, skip={positional[0]} if positional else set())

    argv = _complete_booleans(argv, fields)
    problems = _unknown_names(argv, files, fields, positional)
    if problems:
        raise InputError(*problems)
    try:
        # Files first: flags override them wherever they are on the command line.
        values = vars(parser.parse_args([*(f"--config={path}" for path in files), *argv]))
    except ArgumentError as error:
        message = str(error).replace("Parser key", "value of")
        message = re.sub(r"<class '(\w+)'>|typing\.(\w)", r"\1\2", message)
        raise InputError(" ".join(message.split())) from None
    values.pop("config")
    problems = [
        f"{name} is null: pass a value, or leave it out"
        for name, value in values.items()
        if value is None and type(None) not in typing.get_args(fields[name])
    ]
    if problems:
        raise InputError(*problems)
    return config_class(**values)


def _split_config_files(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return the paths given as --config, and all other words."""
    files, others = [], []
    words = iter(argv)
    for word in words:
        flag, equals, path = word.partition("=")
        if flag == "--config":
            files.append(path if equals else next(words, ""))
        else:
            others.append(word)
    return files, others


def _complete_booleans(argv: list[str], fields: dict) -> list[str]:
    """Replace `--flag` of a Boolean field by `--flag=true`, unless a value follows."""
    completed = []
    for word, next_word in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        is_boolean = fields.get(word[2:]) in (bool, bool | None)
        if is_boolean and next_word not in ("true", "false", "null"):
            word = f"{word}=true"
        completed.append(word)
    return completed


def _unknown_names(argv, files, fields, positional) -> list[str]:
    """Return a message for each flag and each key of a file that is not a setting."""
    problems = []
    for word in argv:
        name = word[2:].split("=")[0]
        if word.startswith("--") and name not in (*fields, "help"):
            problems.append(_unknown(f"flag --{name}", name, fields))
    for path in files:
        for name in _read_keys(path):
            if positional and name == positional[0]:
                problems.append(
                    f"{path}: {name} cannot be set in a file: pass them on the command line, "
                    "without a flag"
                )
            elif name not in fields:
                problems.append(_unknown(f"{path}: key {name}", name, fields))
    return problems


def _unknown(what: str, name: str, fields) -> str:
    similar = difflib.get_close_matches(name, fields, 1)
    hint = f"did you mean {similar[0]}?" if similar else "use --help for a list"
    return f"{what} is unknown: {hint}"


def _read_keys(path: str) -> list[str]:
    """Return the keys of a YAML file. Raises InputError unless it is a mapping."""
    try:
        with open(path, encoding="utf-8") as file:
            values = yaml.safe_load(file)
    except OSError as error:
        raise InputError(
            f"--config {path} cannot be read ({error.strerror}): use another file"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"--config {path} is not YAML ({reason}): fix the file") from None
    if not isinstance(values, dict):
        raise InputError(f"--config {path} is not a mapping: use lines of the form 'name: value'")
    return [str(key) for key in values]


def check_minimums(config, **minimums) -> list[str]:
    """Return a message for each setting below its minimum; None and words have no minimum."""
    problems = []
    for name, minimum in minimums.items():
        value = getattr(config, name)
        if isinstance(value, int | float) and value < minimum:
            problems.append(f"{name} is {value}: it must be at least {minimum}")
    return problems


def parse_lengths(text: str, block_size: int) -> list[int]:
    """Return the sorted token counts of "512,1x,16x", where 1x is `block_size`.

    Raises InputError for anything else.
    """
    lengths = set()
    try:
        for word in text.replace(" ", "").split(","):
            length = int(word.removesuffix("x"))
            if word.endswith("x"):
                length *= block_size
            if length < 1:
                raise ValueError
            lengths.add(length)
    except ValueError:
        raise InputError(
            f"lengths '{text}' are invalid: use token counts or multiples of the training length, "
            "as in 512,1024 or 1x,16x"
        ) from None
    return sorted(lengths)


def run(main) -> None:
    """Run a program and turn exceptions into exit statuses.

    InputError: one line per problem, status 2. Ctrl-C: status 130. A closed pipe, as of `| head`:
    status 1. Other exceptions are bugs and keep their traceback.
    """
    try:
        try:
            main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except InputError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
