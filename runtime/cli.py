"""Command line: settings from YAML files and flags, and one-line errors.

A program's settings are a dataclass: its defaults < YAML files
(--config) < flags. `parse` checks names, types and limits, the program
checks meanings, and `run` prints problems.
"""

import argparse
import ast
import dataclasses
import difflib
import errno
import functools
import inspect
import io
import itertools
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from runtime import describe_missing_package
from runtime.files import working_folder_of

import msgspec
import yaml
from msgspec import Meta

from errors import InputError, one_line
from setting import settings_of

# int64 of PyTorch and NumPy. Products of two settings stay within
# float64.
LARGEST = {int: 2**63 - 1, float: 1e30}
LONGEST_LENGTH = 2**31 - 1  # tokens of a context
USABLE = r"\A[^\x00\ud800-\udfff]*\Z"  # can be a file name and be printed

# Names that other programs give to settings.
SYNONYMS = {
    "batch_size": ["micro_batch", "tokens_per_step"],
    "context_length": ["block_size", "lengths"],
    "encoding": ["pe"],
    "epochs": ["steps"],
    "gradient_accumulation_steps": ["tokens_per_step", "micro_batch"],
    "learning_rate": ["lr"],
    "max_iters": ["steps"],
    "precision": ["dtype"],
    "seq_len": ["block_size", "lengths"],
}
WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
WORDS |= {types.NoneType: "null", dict[str, str]: "--plugin FILE"}


def parse(
    config_class: type,
    argv: list[str] | None,
    description: str | None,
    positional: tuple[str, str] | None = None,
    inherit: Callable[[dict, set[str]], dict] | None = None,
):
    """Return settings: defaults < `inherit` < --config FILE < flags.

    config_class: a dataclass with a docstring under each field. argv:
    None: sys.argv. positional: (name, help) of the field for words
    without a flag. inherit: function of all values and of given names;
    returns what replaces defaults. A setting with a preset has its
    default again if a later source gives the preset. Raises InputError
    for all unknown names, then all invalid values.
    """
    fields = settings_of(config_class)
    argv = sys.argv[1:] if argv is None else argv
    parser = _make_parser(config_class, description, positional)
    try:
        found, others = parser.parse_known_args(_complete_booleans(argv, fields))
    except argparse.ArgumentError as error:
        raise InputError(f"{error.argument_name} has no value: pass one") from None
    flags = vars(found)
    files = flags.pop("config", [])
    loaders = {
        name: x.metadata["load"] for name, x in fields.items() if x.metadata.get("load")
    }
    paths = {name: flags.pop(name, []) for name in loaders}
    contents = {path: _read_values(path) for path in files}
    problems = _unknown_words(others, fields)
    for path, content in contents.items():
        if "model" in content and "init_from" in fields:
            remedy = f"pass --init_from {Path(path).parent}"
            raise InputError(f"--config {path} is of an imported model: {remedy}")
        unknown_keys = [str(key) for key in content if key not in fields]
        problems += [unknown(f"{path}: key {key}", key, fields) for key in unknown_keys]
    if problems:
        raise InputError(*problems)
    loaded = {name: load(paths[name]) for name, load in loaders.items()}
    values = {name: _default(field) for name, field in fields.items()}

    def update(*sources: dict) -> None:
        for source in sources:
            for name in source:
                replaced = settings_of(config_class, preset=name)
                values.update({name: _default(x) for name, x in replaced.items()})
            for name, value in source.items():
                try:
                    values[name] = convert(value, fields[name])
                except InputError as error:
                    problems.extend(error.problems)
        if problems:
            try:
                config_class(**values)
            except InputError as error:  # of the valid values
                problems.extend(error.problems)
            raise InputError(*problems)

    update(*contents.values(), flags)  # flags override files
    values |= loaded
    if inherit:
        given = {name: values[name] for name in {*flags}.union(*contents.values())}
        update(inherit(values, {*given}))
        values |= given  # also of a shape whose size is inherited
    return config_class(**values)


def _make_parser(config_class: type, description, positional) -> argparse.ArgumentParser:
    """Return a parser of texts with a flag for each field."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s [--NAME X ...]",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        exit_on_error=False,
        allow_abbrev=False,
    )
    text = "YAML file of settings; flags override it"
    parser.add_argument("--config", action="append", metavar="FILE", help=text)
    texts = _docstrings(config_class)
    for field in settings_of(config_class).values():
        default = yaml.safe_dump(_default(field), default_flow_style=True).split("\n")[0]
        words = f"{_resolve(_type_of(field))[1]}; default: {default}"
        text = f"{texts.get(field.name, '')} ({words})"
        options: dict[str, Any] = {"metavar": "X", "help": text.replace("%", "%%")}
        name = f"--{field.name}"
        if field.metadata.get("load"):
            text = f"{texts.get(field.name, '')}; may be repeated"
            options = {"action": "append", "metavar": "FILE", "help": text}
        elif positional and field.name == positional[0]:
            name, options = field.name, {"nargs": "*", "help": positional[1]}
        elif typing.get_origin(field.type) is list:
            options["nargs"] = "+"
        parser.add_argument(name, **options)
    return parser


def _type_of(field: dataclasses.Field) -> Any:
    """Return a setting's type, with None if that is the default."""
    kind: Any = field.type
    return kind | None if field.default is None else kind


def _default(field: dataclasses.Field) -> Any:
    """Return the default of a setting."""
    make: Any = field.default_factory
    return field.default if make is dataclasses.MISSING else make()


@functools.cache
def _docstrings(config_class: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass and its bases."""
    found = {}
    for cls in config_class.__mro__[:-1]:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(definition, ast.ClassDef)
        for field, text in itertools.pairwise(definition.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found.setdefault(ast.unparse(field.target), ast.literal_eval(text.value))
    return found


def convert(value, field: dataclasses.Field) -> Any:
    """Return a flag's text, or a value of a file, as the type of a setting.

    Raises InputError for other types, NaN, Inf, numbers outside of the
    limits (`setting`, `LARGEST`), text that cannot be a file name or be
    printed, and empty text unless that is the default.
    """
    kind = _type_of(field)
    if value == "null" and types.NoneType in typing.get_args(kind):
        return None
    checked, words = _resolve(kind, field)
    try:
        return msgspec.convert(value, checked, strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError):
        text = "null" if value is None else str(value)[:200]
        text = text if text and text.isprintable() else ascii(text)
        words = words.replace("text", "non-empty text in UTF-8, in YAML in quotes", 1)
        raise InputError(f"{field.name} is {text}: use {words}") from None


def _resolve(kind, field: dataclasses.Field | None = None) -> tuple[Any, str]:
    """Return a type for msgspec and words for it; with the limits of a field."""
    members, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin is Literal:
        return kind, ("one of " if len(members) > 1 else "") + ", ".join(map(str, members))
    if members and kind not in WORDS:
        kinds, words = zip(*(_resolve(member, field) for member in members), strict=True)
        whole: Any = Union if origin is types.UnionType else origin
        prefix = "values separated by spaces: " if origin is list else ""
        return whole[kinds], prefix + " or ".join(words)
    if kind is str and field:
        kind = Annotated[str, Meta(pattern=USABLE, min_length=int(field.default != ""))]
        return kind, WORDS[str]
    if kind in LARGEST and field:
        minimum, maximum = (field.metadata.get(name) for name in ("low", "high"))
        maximum = LARGEST[kind] if maximum is None else maximum
        minimum = -maximum if minimum is None else minimum
        limits = [f"{x:,}" if kind is int else f"{x:g}" for x in (minimum, maximum)]
        words = f"{WORDS[kind]} from {limits[0]} to {limits[1]}"
        return Annotated[kind, Meta(ge=minimum, le=maximum)], words
    return kind, WORDS[kind]


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


def _complete_booleans(argv: list[str], fields: dict) -> list[str]:
    """Complete `--flag` of a Boolean to `--flag=true`."""
    booleans = {
        f"--{name}" for name, x in fields.items() if _type_of(x) in (bool, bool | None)
    }
    have_values = [word.lower() in ("true", "false", "null") for word in [*argv[1:], ""]]
    return [
        f"{word}=true" if word in booleans and not has_value else word
        for word, has_value in zip(argv, have_values, strict=False)
    ]


def _unknown_words(words: list[str], fields) -> list[str]:
    """Return a message for each unknown flag, or for stray words."""
    names = [word[2:].partition("=")[0] for word in words if word.startswith("--")]
    what = "is neither a flag nor the value of one"
    remedy = "remove it, join several values as in --help, or pass a file as --config"
    stray = [f"{word} {what}: {remedy}" for word in words]
    return [unknown(f"flag --{name}", name, fields) for name in names] or stray


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
        names = []
        for key, _ in node.value:
            name = self.construct_object(key, deep=True)
            if name in names:
                raise yaml.YAMLError(
                    f"{name} appears again in line {key.start_mark.line + 1}"
                )
            names.append(name)
        return super().construct_mapping(node, deep)


def _read_values(path: str) -> dict:
    """Return the mapping in a YAML file."""
    try:
        values = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        known = Path("configs") / f"{Path(path).stem}.yaml"
        remedy = f"did you mean {known}?" if known.is_file() else "use another file"
        reason = f"{error.strerror}{working_folder_of(path)}"
        problem = f"--config {path} cannot be read ({reason}): {remedy}"
        raise InputError(problem) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = f"--config {path} is not YAML ({one_line(error)}): fix the file"
        raise InputError(problem) from None
    if not isinstance(values, dict):
        raise InputError(f"--config {path} is not a mapping: use lines as in 'steps: 100'")
    return values


def parse_lengths(text: str, block_size: int) -> list[int]:
    """Return the sorted token counts of "512,1x,16x"; 1x is `block_size`."""
    words = text.replace(" ", "").split(",")
    if all(re.fullmatch("[1-9][0-9]{0,9}x?", word) for word in words):
        units = {"x": block_size}
        lengths = {int(word.rstrip("x")) * units.get(word[-1], 1) for word in words}
        if max(lengths) <= LONGEST_LENGTH:
            return sorted(lengths)
    remedy = "use token counts or multiples of the training length"
    raise InputError(f"lengths '{text}' are invalid: {remedy}, as in 512,1024 or 1x,16x")


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
    found = re.search(
        r"can't allocate memory|[Oo]ut of memory|not enough memory", str(error)
    )
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and found):
        return "out of memory: use a smaller model, batch or context, or fewer tokens"
    return None


# Functions that return one line for an exception, or None; the first line is printed.
DESCRIBE = [_system_problem, describe_missing_package]
