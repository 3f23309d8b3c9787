"""Command line: settings from defaults, a YAML file and flags; user errors as one-line messages.

The settings of a program are a dataclass. Values come from its defaults, then from the YAML files
given as --config, then from flags. A program may provide further values for settings that neither a
file nor a flag gives (`inherit`). `parse` checks names, types and the limits that hold for every
program, the program checks meanings, and `run` prints the problems and exits with status 2.

Programs whose dataclass has a field `plugin` accept --plugin FILE (runtime/plugins.py).
"""

import dataclasses
import difflib
import itertools
import json
import math
import os
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from runtime import describe_missing_package, plugins

import jsonargparse
import yaml
from jsonargparse import ArgumentError, ArgumentParser, DefaultHelpFormatter

from errors import InputError

jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)

LARGEST_INTEGER = 2**63 - 1  # int64 of PyTorch and NumPy
LARGEST_FLOAT = 1e30  # products of two settings stay within float64, and most within float32
CONVERSION_LIMIT = "integer string conversion"  # in Python's error about more than 4300 digits
TOO_MANY_DIGITS = "a number has hundreds of digits: use a smaller one"
LONGEST_LENGTH = 2**31 - 1  # tokens of a context

# Names that other programs give to settings.
SYNONYMS = {
    "batch_size": ("micro_batch", "tokens_per_step"),
    "checkpoint_interval": ("checkpoint_every",),
    "context_length": ("block_size", "lengths"),
    "dataset": ("data", "source"),
    "encoding": ("pe",),
    "epochs": ("steps",),
    "eval_interval": ("val_every",),
    "gradient_accumulation_steps": ("tokens_per_step", "micro_batch"),
    "hidden_size": ("n_embd",),
    "learning_rate": ("lr",),
    "log_interval": ("log_every",),
    "max_iters": ("steps",),
    "max_length": ("max_new_tokens", "block_size"),
    "max_steps": ("steps",),
    "model": ("size",),
    "num_heads": ("n_head",),
    "num_layers": ("n_layer",),
    "output": ("out_dir",),
    "output_dir": ("out_dir",),
    "positional_encoding": ("pe",),
    "precision": ("dtype",),
    "save_every": ("checkpoint_every",),
    "seq_len": ("block_size", "lengths"),
}
WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text", None: "null"}

PLUGIN_HELP = "Python file with encodings of your own; may be repeated"


class _HelpFormatter(DefaultHelpFormatter):
    """Keep the line breaks of a program's docstring, because it contains commands to copy."""

    def _fill_text(self, text, width, indent):
        return text

    def _get_help_string(self, action):
        return PLUGIN_HELP if action.dest == "plugin" else super()._get_help_string(action)


def parse(
    config_class: type,
    argv: list[str] | None,
    description: str | None,
    positional: tuple[str, str] | None = None,
    inherit: Callable[[dict, set[str]], dict] | None = None,
):
    """Return an instance of `config_class`: its defaults < `inherit` < --config FILE < flags.

    config_class: a dataclass with a docstring under each field. argv: the command line; None:
    sys.argv. positional: (name, help) of a list[str] field for arguments without a flag. inherit:
    function of all values and of the names that a file or a flag gives; returns values for other
    settings, which replace their defaults. Raises InputError for unknown names (all of them, each
    with the nearest known name), for values of the wrong type and for those of `check_values`.
    """
    files, argv = _split_flag("--config", sys.argv[1:] if argv is None else argv)
    plugin_files, argv = _split_flag("--plugin", argv)
    fields = {field.name: field.type for field in dataclasses.fields(config_class)}
    parser = _make_parser(config_class, fields, description, positional)
    lists = {name for name, kind in fields.items() if typing.get_origin(kind) is list}
    if lists - set(positional or ()):
        argv = _join_lists(argv, lists)
    argv = _complete_booleans(argv, fields)
    problems = _unknown_names(argv, files, fields, positional)
    if plugin_files and "plugin" not in fields:
        problems.append(unknown("flag --plugin", "plugin", fields))
    if problems:
        raise InputError(*problems)
    loaded = [plugins.load_plugin(path) for path in plugin_files]
    try:
        # Files first: flags override them wherever they are on the command line.
        given = [f"--config={path}" for path in files]
        given += [word for word in argv if word != "--help"]
        values = vars(parser.parse_args(given))
    except ArgumentError as error:
        if "--help" in argv:
            parser.parse_args(["--help"])
        raise InputError(*_parse_problems(" ".join(str(error).split()), fields)) from None
    except OverflowError:
        raise InputError(TOO_MANY_DIGITS) from None
    values.pop("config")
    if "--help" in argv:  # with what files and other flags give as the defaults
        parser.set_defaults(values)
        parser.parse_args(["--help"])
    if "plugin" in fields:
        if not loaded and "pe" not in _flag_names(argv):
            _check_plugin_of_files(files)
        values["plugin"] = {plugin.path.name: plugin.sha256 for plugin in loaded} or None
    problems = [
        f"{name} is null: pass a value, or leave it out"
        for name, value in values.items()
        if value is None and type(None) not in typing.get_args(fields[name])
    ]
    problems += check_values(values, config_class)
    if problems:
        raise InputError(*problems)
    if inherit:
        given = _flag_names(argv).union(*map(_read_values, files))
        inherited = inherit(values, given)
        if problems := check_values(inherited, config_class):
            raise InputError(*problems)
        values |= inherited
    problems = _check_minimums(values, config_class)
    try:
        config = config_class(**values)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(*problems)
    return config


def _make_parser(config_class: type, fields: dict, description, positional) -> ArgumentParser:
    """Return a parser with a flag for each field; arguments as in `parse`."""
    parser = ArgumentParser(
        description=description,
        exit_on_error=False,
        formatter_class=_HelpFormatter,
        print_config=None,
    )
    help = "YAML file of settings; flags override it"
    parser.add_argument("--config", action="config", help=help)
    if positional:
        parser.add_argument(positional[0], nargs="*", type=str, default=[], help=positional[1])
    skipped: set[str | int] = {positional[0]} if positional else set()
    if "plugin" in fields:
        parser.add_argument("--plugin", metavar="FILE", type=dict, help=PLUGIN_HELP)
        skipped.add("plugin")
    parser.add_class_arguments(config_class, None, skip=skipped)
    return parser


def _parse_problems(message: str, fields: dict) -> list[str]:
    """Return one line for each problem in a message of the parser."""
    if CONVERSION_LIMIT in message:
        return [TOO_MANY_DIGITS]
    if match := re.search(r'Parser key "(\w+)".*[Vv]alue: (.*)', message):
        name, value = match.groups()
        return [f"{name} is {value}: use {_describe_type(fields[name])}"]
    if match := re.match(r"argument (--\w+): expected one argument", message):
        return [f"{match[1]} has no value: pass one"]
    if "unrecognized arguments: " in message:
        words = message.partition("unrecognized arguments: ")[2].split()
        return [_describe_unrecognized(word) for word in words]
    return [message]


def _describe_type(kind) -> str:
    """Return what a setting of a type takes: "an integer or null"."""
    if typing.get_origin(kind) is Literal:
        words = [*typing.get_args(kind)]
        return f"one of {', '.join(words)}" if len(words) > 1 else words[0]
    if members := typing.get_args(kind):
        return " or ".join(map(_describe_type, members))
    return WORDS.get(None if kind is type(None) else kind, str(kind))


def _describe_unrecognized(word: str) -> str:
    if word.endswith((".yaml", ".yml")):
        return f"{word} is not a flag: pass --config {word}"
    return f"{word} is neither a flag nor the value of one: remove it, or use --help for a list"


def split_flags(words: list[str]) -> list[tuple[str, list[str]]]:
    """Return the flags of a command line, without dashes, each with the words that follow it."""
    flags: list[tuple[str, list[str]]] = []
    for word in words:
        name, equals, value = word[2:].partition("=")
        if word.startswith("--") and " " not in name:  # otherwise a value, as in "--steps 5000"
            flags.append((name, [value] if equals else []))
        elif flags:
            flags[-1][1].append(word)
        else:
            raise InputError(f"'{word}' is not a flag: use --help for a list")
    return flags


def _join_lists(argv: list[str], lists: set[str]) -> list[str]:
    """Return a command line on which flags that take several values have them in one word."""
    joined = []
    for name, values in split_flags(argv):
        if name in lists:
            items = [int(value) if value.isdigit() else value for value in values]
            joined.append(f"--{name}={json.dumps(items)}")
        elif len(values) == 1:
            joined.append(f"--{name}={values[0]}")
        else:
            joined += [f"--{name}", *values]
    return joined


def _split_flag(flag: str, argv: list[str]) -> tuple[list[str], list[str]]:
    """Return the values of a flag that may be repeated, and all other words."""
    values, others = [], []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name == flag:
            value = value if equals else next(words, "")
            if not value or value.startswith("--"):
                raise InputError(f"{flag} has no value: pass a file")
            values.append(value)
        else:
            others.append(word)
    return values, others


def _flag_names(argv: list[str]) -> set[str]:
    """Return the names of the flags on a command line, without dashes."""
    return {word[2:].partition("=")[0] for word in argv if word.startswith("--")}


def _check_plugin_of_files(files: list[str]) -> None:
    """Raise InputError if the config file of a run names a plugin: only a flag executes code."""
    for path in files:
        plugin = _read_values(path).get("plugin")
        if plugin:
            plugins.check_loaded({"plugin": plugin}, Path(path).parent, "has a config for")


def _complete_booleans(argv: list[str], fields: dict) -> list[str]:
    """Replace `--flag` of a Boolean field by `--flag=true`, unless a value follows."""
    completed = []
    for word, next_word in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        is_boolean = fields.get(word[2:]) in (bool, bool | None)
        if is_boolean and next_word.lower() not in ("true", "false", "null"):
            word = f"{word}=true"
        follows_boolean = completed and fields.get(completed[-1][2:]) in (bool, bool | None)
        completed.append(word.lower() if follows_boolean else word)
    return completed


def _unknown_names(argv, files, fields, positional) -> list[str]:
    """Return a message for each flag and each key of a file that is not a setting."""
    problems = []
    for word in argv:
        name = word[2:].split("=")[0]
        if word.startswith("--") and name not in (*fields, "help"):
            problems.append(unknown(f"flag --{name}", name, fields))
    for path in files:
        values = _read_values(path)
        if not isinstance(values.get("plugin"), dict | None):
            problems.append(f"{path}: plugin cannot be set in a file: pass --plugin FILE")
        else:
            plugins.recorded_versions(values, path)
        for name in map(str, values):
            if positional and name == positional[0]:
                problems.append(
                    f"{path}: {name} cannot be set in a file: pass them on the command line, "
                    "without a flag"
                )
            elif name not in fields:
                problems.append(unknown(f"{path}: key {name}", name, fields))
            elif name == "trust_remote_code":
                problems.append(f"{path}: {name} cannot be set in a file: pass --{name}")
    return problems


def unknown(what: str, name: str, fields) -> str:
    """Return a message for an unknown name, with the nearest known one."""
    name = name.lower().replace("-", "_")
    similar = [known for known in SYNONYMS.get(name, ()) if known in fields]
    similar = similar or difflib.get_close_matches(name, fields, 1)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "use --help for a list"
    return f"{what} is unknown: {hint}"


def _read_values(path: str) -> dict:
    """Return the content of a YAML file. Raises InputError unless it is a mapping."""
    try:
        with open(path, encoding="utf-8") as file:
            values = yaml.safe_load(file)
    except OSError as error:
        problem = f"--config {path} cannot be read ({error.strerror}): use another file"
        raise InputError(problem) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        if CONVERSION_LIMIT in str(error):
            raise InputError(TOO_MANY_DIGITS) from None
        reason = " ".join(str(error).split())
        raise InputError(f"--config {path} is not YAML ({reason}): fix the file") from None
    if not isinstance(values, dict):
        raise InputError(f"--config {path} is not a mapping: use lines of the form 'name: value'")
    return values


def limited(default, minimum: float | None = None, maximum: float | None = None) -> Any:
    """Return a field of a settings dataclass for numbers from `minimum` to `maximum`.

    A maximum is far above what makes sense, and small enough that the program fails in seconds if
    a machine cannot compute it.
    """
    metadata = {"minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


def check_values(values: dict, config_class: type) -> list[str]:
    """Return a message for each value that no program can use, whatever the setting means.

    Refused are NaN and Inf, numbers above the setting's maximum (`limited`), text that cannot be a
    file name or be printed, and empty text unless that is the default.
    """
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    return [
        f"{name} {problem}"
        for name, value in values.items()
        for item in (value if isinstance(value, list) else [value])
        if (problem := _value_problem(item, fields[name]))
    ]


def _value_problem(value, field: dataclasses.Field) -> str | None:
    """Return why no program can use a value, None if one can."""
    if isinstance(value, str):
        if not value and field.default != "":
            return "is empty: pass a value, or leave it out"
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            return f"is {ascii(value)}: remove NUL and all that is not UTF-8"
    if not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}: use a finite number"
    maximum = field.metadata.get("maximum")
    if maximum is not None:
        limit = f"at most {maximum:,}"
    elif isinstance(value, float):
        maximum, limit = LARGEST_FLOAT, f"at most {LARGEST_FLOAT:g}"
    else:
        maximum, limit = LARGEST_INTEGER, "below 2^63"
    if abs(value) <= maximum:
        return None
    is_long = isinstance(value, int) and abs(value) > 10**100  # Python may refuse to print it
    shown = "above 10^100" if is_long else value
    return f"is {shown}: it must be {limit}"


def _check_minimums(values: dict, config_class: type) -> list[str]:
    """Return a message for each value below its minimum; None and words have no minimum."""
    problems = []
    for field in dataclasses.fields(config_class):
        minimum, value = field.metadata.get("minimum"), values[field.name]
        if minimum is not None and isinstance(value, int | float) and value < minimum:
            problems.append(f"{field.name} is {value}: it must be at least {minimum}")
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
            if not 1 <= length <= LONGEST_LENGTH:
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

    InputError, an exception in a plugin, a file that cannot be used, too little memory, or a
    missing package: one line per problem, status 2. Ctrl-C: status 130. A closed pipe, as of
    `| head`: status 1. Other exceptions are bugs and keep their traceback.
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
    except Exception as error:
        problem = plugins.describe_error(error) or _system_problem(error)
        problem = problem or describe_missing_package(error)
        if problem is None:
            raise
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)


def _system_problem(error: Exception) -> str | None:
    """Return a line if the system refused a file or memory, None for other exceptions."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
        name = ascii(error.filename)
        return f"{name} cannot be used ({error.strerror}): use another file, folder or name"
    # PyTorch raises RuntimeError for memory of the CPU.
    out_of_memory = re.search(r"can't allocate memory|[Oo]ut of memory|not enough memory", text)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and out_of_memory):
        detail = re.search(r"(tried|[Uu]nable) to allocate [\d.]+ ?\w+", text)
        amount = f" ({detail[0]})" if detail else ""
        return f"out of memory{amount}: use a smaller model, batch or context, or fewer tokens"
    return None
