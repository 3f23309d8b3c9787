"""Command line: settings from YAML files and flags, and one-line errors.

A program's settings are a dataclass: its defaults < YAML files (--config) < flags. `parse` checks
names, types and limits, the program checks meanings, and `run` prints problems.
"""

import ast
import difflib
import errno
import inspect
import io
import itertools
import json
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any, Literal

from runtime import describe_missing_package
from runtime.files import working_folder_of

import msgspec
import yaml

from errors import InputError, refusing
from setting import PLAIN, settings_of

BOOLEANS = ("true", "false", "null")
LONGEST_LENGTH = 2**31 - 1  # tokens of a context
# Names that other programs give to settings.
SYNONYMS = {
    "batch_size": ["micro_batch", "tokens_per_step"],
    "context_length": ["block_size", "lengths"],
    "encoding": ["pe"],
    "epochs": ["steps"],
    "gradient_accumulation_steps": ["tokens_per_step", "micro_batch"],
    "learning_rate": ["lr"],
    "max_iters": ["steps"],
    "model": ["init_from"],  # in config.yaml of an imported model
    "precision": ["dtype"],
    "seq_len": ["block_size", "lengths"],
}
WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
WORDS |= {types.NoneType: "null", dict[str, str]: "--plugin FILE"}


def parse(
    config_class: type,
    argv: list[str] | None,
    description: str | None,
    inherit: Callable[[dict], dict] = lambda given: {},
):
    """Return settings: defaults < `inherit` < --config FILE < flags.

    config_class: a dataclass with a docstring under each field. argv:
    None: sys.argv. inherit: function of the given values; returns what replaces defaults. A later
    source that gives a preset replaces its settings. Raises InputError for all unknown names, then
    all invalid values.
    """
    fields = settings_of(config_class)
    argv = sys.argv[1:] if argv is None else argv
    if not {"-h", "--help"}.isdisjoint(argv):
        print(_help(config_class, description))
        sys.exit()
    flags, problems = _read_flags(config_class, argv)
    contents = {path: _read_values(path) for path in flags.pop("config", [])}
    for path, content in contents.items():
        names = [str(key) for key in content if key not in fields]
        problems += [unknown(f"{path}: key {name}", name, fields) for name in names]
    if problems:
        raise InputError(*problems)
    loaders = {name: field.metadata.get("load") for name, field in fields.items()}
    loaded = {name: x(flags.pop(name, [])) for name, x in loaders.items() if x}
    given = {}
    for source in (*contents.values(), {name: x[-1] for name, x in flags.items()}):
        for name in source:
            for replaced in settings_of(config_class, preset=name):
                given.pop(replaced, None)
        for name, value in source.items():
            try:
                given[name] = convert(value, fields[name])
            except InputError as error:
                problems += error.problems
    given |= loaded
    if not problems:
        return config_class(**inherit(given) | given)
    try:
        config_class(**given)
    except InputError as error:  # of the valid values
        problems += error.problems
    raise InputError(*problems)


def _read_flags(config_class: type, argv: list[str]) -> tuple[dict[str, list], list[str]]:
    """Return the values of each flag, and a line for each unknown word.

    A list takes all words up to the next flag; `--flag` of a Boolean is true. Words without a flag,
    and those after --, are the positional setting.
    """
    fields = settings_of(config_class)
    kinds = {name: _type_of(field) for name, field in fields.items()} | {"config": str}
    flags: dict[str, list] = {}
    problems: list[str] = []
    first = [*itertools.takewhile(lambda word: not word.startswith("--"), argv)]
    end = argv.index("--") if "--" in argv else len(argv)
    others = first + argv[end + 1 :]
    for name, words in split_flags(argv[len(first) : end]):
        kind = kinds.get(name)
        if kind in (bool, bool | None) and "".join(words[:1]).lower() not in BOOLEANS:
            words = ["true", *words]
        if not kind:
            problems.append(unknown(f"flag --{name}", name, fields))
        elif not words:
            raise InputError(f"--{name} has no value: pass one")
        elif typing.get_origin(kind) is list:
            flags[name] = [words]
        else:
            flags.setdefault(name, []).append(words[0])
            others += words[1:]
    positional = settings_of(config_class, positional=True)
    if others and positional:
        return flags | dict.fromkeys(positional, [others]), problems
    what = "is neither a flag nor the value of one"
    remedy = "remove it, join several values by commas, or pass a file as --config"
    return flags, problems + [f"{word} {what}: {remedy}" for word in others]


def split_flags(words: list[str]) -> list[tuple[str, list[str]]]:
    """Return the flags of a command line, without dashes, with their values."""
    flags: list[tuple[str, list[str]]] = []
    for word in words:
        name, equals, value = word[2:].partition("=")
        if word.startswith("--") and " " not in name:  # else a value: "--steps 5000"
            flags.append((name, [value] if equals else []))
        elif flags:
            flags[-1][1].append(word)
        else:
            raise InputError(f"'{word}' is not a flag: use --help for a list")
    return flags


def _help(config_class: type, description: str | None) -> str:
    """Return the text of --help, from the docstrings under fields."""
    texts = {}
    for cls in config_class.__mro__[:-1]:
        definition: Any = ast.parse(inspect.getsource(cls)).body[0]
        for field, text in itertools.pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                words = ast.literal_eval(text.value).split()
                texts.setdefault(ast.unparse(field.target), " ".join(words))
    lines = [description or "", "--config X  YAML file of settings; flags override it"]
    for name, field in settings_of(config_class).items():
        words, label = _words(_type_of(field)), f"--{name} X"
        if field.metadata.get("positional"):
            label = f"{name.upper()} ..."
        elif field.default is not MISSING:
            words += f"; default: {json.dumps(field.default)}"
        text = f"{label}  {texts.get(name, '')} ({words})"
        lines.append(textwrap.fill(text, subsequent_indent=" " * 8))
    return "\n".join(lines)


def _type_of(field: Field) -> Any:
    """Return a setting's type, with None if that is the default."""
    kind: Any = field.type
    return kind | None if field.default is None else kind


def _words(kind) -> str:
    """Return a type in words."""
    members, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin is Literal:
        return ", ".join(map(str, members))
    if origin is list:
        return f"values separated by spaces: {_words(members[0])}"
    return WORDS.get(kind) or " or ".join(map(_words, reversed(members)))


def convert(value, field: Field) -> Any:
    """Return a flag's text, or a value of a file, as the type of a setting.

    Raises InputError for other types, NaN, Inf, numbers outside of the limits, text that cannot be
    a file name or be printed, and empty text unless that is the default.
    """
    kind, rules = _type_of(field), PLAIN | field.metadata
    low, high, parts = rules["low"], rules["high"], {kind, *typing.get_args(kind)}
    if value == "null" and types.NoneType in parts:
        return None

    def is_usable(x) -> bool:
        if isinstance(x, str):
            return b"\0" not in x.encode() and bool(x or field.default == "")
        return not isinstance(x, int | float) or low <= x <= high

    try:
        converted = msgspec.convert(value, kind, strict=False)
        if all(map(is_usable, converted if isinstance(converted, list) else [converted])):
            return converted
    except (msgspec.ValidationError, UnicodeEncodeError):
        pass
    words = _words(kind)
    if parts & {int, float}:
        words += f" from {low:,} to {high:,}"
    if str in parts:
        words += " that is not empty, in UTF-8, in YAML in quotes"
    text = "null" if value is None else str(value)[:200] or "empty"
    raise InputError(f"{field.name} is {text}: use {words}")


def unknown(what: str, name: str, fields) -> str:
    """Return a message for an unknown name, with the nearest known one."""
    name = name.lower().replace("-", "_")
    similar = [known for known in SYNONYMS.get(name, ()) if known in fields]
    similar = similar or difflib.get_close_matches(name, fields, 1)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "use --help for a list"
    return f"{what} is unknown: {hint}"


class _Loader(yaml.SafeLoader):
    """Refuses a key that appears twice."""

    def construct_mapping(self, node, deep=False):
        names = [key.value for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.YAMLError(f"{name} appears twice")
        return super().construct_mapping(node, deep)


def _read_values(path: str) -> dict:
    """Return the mapping in a YAML file."""
    known = Path("configs") / f"{Path(path).stem}.yaml"
    remedy = f"did you mean {known}?" if known.is_file() else "use another file"
    with refusing(f"--config {path}{working_folder_of(path)} cannot be read", remedy, OSError):
        content = Path(path).read_bytes()
    with refusing(f"--config {path} is not YAML", "fix the file"):
        values = yaml.load(content, _Loader)
    if not isinstance(values, dict):
        raise InputError(f"--config {path} is not a mapping: use lines as in 'steps: 100'")
    return values


def parse_lengths(text: str, block_size: int) -> list[int]:
    """Return the sorted token counts of "512,1x,16x"; 1x is `block_size`."""
    remedy = "use token counts or multiples of the training length, as in 512,1024 or 1x,16x"
    lengths = set()
    with refusing(f"lengths '{text}' are invalid", remedy, ValueError):
        for word in text.split(","):
            unit = block_size if word.endswith("x") else 1
            lengths.add(int(word.removesuffix("x")) * unit)
        if min(lengths) < 1 or max(lengths) > LONGEST_LENGTH:
            raise ValueError(f"they are not from 1 to {LONGEST_LENGTH:,}")
    return sorted(lengths)


def run(main) -> None:
    """Run a program and turn exceptions into exit statuses.

    InputError, an exception in a plugin, an unusable file, too little
    memory, a missing package: one line per problem, status 2. Ctrl-C:
    130. A closed pipe, as of `| head`: 1. Other exceptions are bugs: a
    traceback.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # texts on a console without UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        problems = [line for each in DESCRIBE if (line := each(error))][:1]
        if isinstance(error, InputError):
            problems = error.problems  # none if another rank prints them
        elif not problems:
            raise
        for problem in problems:
            shown = "".join(x if x.isprintable() else ascii(x)[1:-1] for x in problem)
            print(f"error: {shown}", file=sys.stderr)
        sys.exit(2)


def _system_problem(error: Exception) -> str | None:
    """Return a line if the system refused a file or memory, else None."""
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
        name, reason = ascii(error.filename), str(error.strerror)
        reason += working_folder_of(error.filename) if error.errno == errno.ENOENT else ""
        return f"{name} cannot be used ({reason}): use another file, folder or name"
    # PyTorch raises RuntimeError for memory of the CPU.
    found = re.search(r"can't allocate memory|[Oo]ut of memory|not enough memory", str(error))
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and found):
        return "out of memory: use a smaller model, batch or context, or fewer tokens"
    return None


# Functions that return one line for an exception, or None; the first line is printed.
DESCRIBE = [_system_problem, describe_missing_package]
