"""Files that are complete or absent: atomic writing, locks, and JSON with a schema."""

import contextlib
import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from errors import InputError

MAX_NESTING = 50  # levels of arrays and objects in a JSON file
MAX_PRINTED = 60  # characters of a wrong value in an error message
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP)  # of flock on a file system without locks
# The end of the name of a temporary file of `atomic`.
PARTIAL = r"\.[0-9a-f]{8}\.partial"


@contextmanager
def atomic(path: str | Path):
    """Open `path` for writing bytes, atomically.

    The block writes to a temporary file, which is synced to disk and renamed at the end. A crash at
    any moment leaves the old file or the new one. Several processes may write the same path: each
    has a temporary file of its own. Raises InputError if the system refuses (no permission, no
    space, a file in the way).
    """
    path = Path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_partial_files(path.parent, re.escape(path.name) + PARTIAL)
        partial, file = _open_partial_file(path)
        with file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(partial, path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)  # makes the rename itself durable
        os.close(folder)


def _open_partial_file(path: Path):
    """Create, lock and return a temporary file for `path`: (its path, the open file).

    The lock, which ends with the process, keeps `remove_partial_files` from deleting the file.
    """
    while True:
        partial = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.partial")
        file = open(partial, "wb")  # noqa: SIM115
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return partial, file
        file.close()  # deleted by another process before it was locked


def remove_partial_files(folder: Path, pattern: str) -> None:
    """Remove the temporary files that killed processes left in a folder.

    pattern: regular expression of the whole name. Files that a process is writing are locked and
    stay. A file system without locks keeps all of them.
    """
    for path in folder.iterdir():
        if re.fullmatch(pattern, path.name):
            with contextlib.suppress(OSError), open(path, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


@contextmanager
def atomic_folder(path: str | Path):
    """Yield a new, empty folder to fill; it is renamed to `path` if the block succeeds.

    Its name is new, NAME.XXXXXXXX.partial next to `path`, so that no folder of the user or of
    another process is replaced. It is removed if the block fails; a killed process leaves it.
    Raises InputError as `atomic` does.
    """
    path = Path(path).resolve()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(".partial", f"{path.name}.", path.parent))
        try:
            partial.chmod(0o777 & ~_umask())  # mkdtemp lets only the owner read it
            yield partial
            os.replace(partial, path)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(path: str | Path):
    """Wait until no other process is in such a block for `path`: read, change and write it inside.

    Readers need no lock, because `atomic` replaces whole files. The lock is on a hidden file next
    to `path` that the block removes at its end; one that a killed process leaves behind locks
    nothing. It is independent of the lock of a run's folder, which a training holds
    (run_folder.lock_folder). On a file system without locks the block runs without one. Raises
    InputError if the folder cannot be written.
    """
    import filelock  # takes 40 ms, and most programs lock nothing

    path = Path(path)
    lock = filelock.FileLock(path.with_name(f".{path.name}.lock"))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(lock.lock_file)  # filelock lets those who wait create a new one
        lock.release()


def set_default_permissions(folder: Path) -> None:
    """Give the files in a folder the permissions of new files, 0666 without the umask's bits.

    safetensors writes files that only their owner can read.
    """
    umask = _umask()
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o666 & ~umask)


def _umask() -> int:
    """Return the umask of this process, which can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


@contextmanager
def writing(path: str | Path):
    """Turn an OSError inside the block into an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"cannot write {path}: {reason}: use another folder, or free some space"
        ) from error


def write_json(path: str | Path, value) -> None:
    """Write `value` to `path` as JSON, with every array of numbers on one line."""
    with atomic(path) as file:
        file.write(compact_json(value).encode() + b"\n")


def compact_json(value) -> str:
    """Return JSON with an indent of one space and every array of numbers or nulls on one line."""
    text = json.dumps(value, indent=1)
    # Strings contain no raw newline, so "[" before a newline opens an array. An array without
    # brackets, braces and quotes inside holds only numbers, booleans and nulls.
    return re.sub(
        r"\[\n([^][{}\"]*)\n *\]",
        lambda match: f"[{' '.join(match[1].split())}]",
        text,
    )


def read_json(path: str | Path, remedy: str):
    """Return the JSON value in `path`.

    Raises InputError, which ends with `remedy`, if the file is missing or corrupt.
    """
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: {remedy}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from None
    if _is_nested_deeper(value, MAX_NESTING):
        reason = f"more than {MAX_NESTING} levels of arrays and objects"
        raise InputError(f"{path} cannot be read ({reason}): {remedy}")
    return value


def _is_nested_deeper(value, levels: int) -> bool:
    values = [value]
    for _ in range(levels):
        inner = [each for each in values if isinstance(each, dict | list)]
        values = [child for each in inner for child in _children(each)]
    return any(isinstance(each, dict | list) for each in values)


def _children(value: dict | list):
    return value.values() if isinstance(value, dict) else value


@dataclass(frozen=True)
class Kind:
    """A kind of values in a JSON file. A schema is a Kind, Nullable, Array, Each or dict.

    A dict maps the fields of an object to their schemas. Fields whose name ends with "?" may be
    missing; other fields are allowed.
    """

    what: str
    """in words, as in "a finite number" """
    accepts: Callable[[Any], bool]
    """of a value that json.loads returns"""


@dataclass(frozen=True)
class Nullable:
    """Schema of null or a value."""

    schema: object


@dataclass(frozen=True)
class Array:
    """Schema of an array."""

    schema: object
    """of every value"""
    minimum: int = 0
    """number of values"""


@dataclass(frozen=True)
class Each:
    """Schema of an object with any number of fields."""

    keys: Kind
    schema: object
    """of every value"""
    minimum: int = 0
    """number of fields"""


def find_mismatch(value, schema, path: str = "") -> str | None:
    """Return how a JSON value differs from its schema, or None: "field a.b is 3, not a name"."""
    if isinstance(schema, Nullable):
        return None if value is None else find_mismatch(value, schema.schema, path)
    if isinstance(schema, Kind):
        return None if schema.accepts(value) else _mismatch(path, value, schema.what)
    if isinstance(schema, Array):
        if not isinstance(value, list) or len(value) < schema.minimum:
            return _mismatch(path, value, "an array" + _of_at_least(schema.minimum))
        parts = [(f"{path}[{index}]", each, schema.schema) for index, each in enumerate(value)]
    elif isinstance(schema, Each):
        if not isinstance(value, dict) or len(value) < schema.minimum:
            return _mismatch(path, value, "an object" + _of_at_least(schema.minimum))
        for key in value:
            if not schema.keys.accepts(key):
                return f"{_field(path)} has a key {_printed(key)}, not {schema.keys.what}"
        parts = [(_join(path, key), each, schema.schema) for key, each in value.items()]
    else:
        if not isinstance(value, dict):
            return _mismatch(path, value, "an object")
        parts = []
        for key, each in schema.items():
            name = key.removesuffix("?")
            if name in value:
                parts.append((_join(path, name), value[name], each))
            elif name == key:
                return f"field {_join(path, name)} is missing"
    problems = (find_mismatch(each, inner, where) for where, each, inner in parts)
    return next(filter(None, problems), None)


def _mismatch(path: str, value, what: str) -> str:
    return f"{_field(path)} is {_printed(value)}, not {what}"


def _field(path: str) -> str:
    return f"field {path}" if path else "the content"


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _of_at_least(minimum: int) -> str:
    return f" of at least {minimum}" if minimum else ""


def _printed(value) -> str:
    """Return a wrong value for an error message, in ASCII and on one line."""
    if isinstance(value, dict | list) and value:
        return "an object" if isinstance(value, dict) else "an array"
    text = json.dumps(value)
    return text if len(text) <= MAX_PRINTED else f"{text[:MAX_PRINTED]}..."


def _is_number(value) -> bool:
    """Return whether a JSON value is a number: true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole_number(minimum: int | None = None, maximum: int = 2**64) -> Kind:
    """Return the kind of whole numbers in a range; minimum: None: -maximum."""
    lowest = -maximum if minimum is None else minimum

    def accepts(value) -> bool:
        return _is_number(value) and isinstance(value, int) and lowest <= value <= maximum

    what = "a whole number" if minimum is None else f"a whole number of at least {minimum}"
    return Kind(what, accepts)


def number(minimum: float = -1e18, maximum: float = 1e18, what: str = "a finite number") -> Kind:
    """Return the kind of numbers in a range. NaN is in none."""
    return Kind(what, lambda value: _is_number(value) and minimum <= value <= maximum)


def _is_text(value) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= 1000


def _is_name(value) -> bool:
    is_plain = _is_text(value) and value not in ("", ".", "..") and not {*value} & {*"/\\"}
    return is_plain and len(value.encode()) <= 200


TEXT = Kind("a text of one line", _is_text)
NAME = Kind('a name without "/" and "\\"', _is_name)
BOOLEAN = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = whole_number(0)
LENGTH = whole_number(1)


def read_json_lines(path: str | Path) -> list[tuple[bytes, Any]]:
    """Return the lines of a file, each with its JSON value, or None if it is corrupt.

    An incomplete last line is left out. Raises InputError if the file cannot be read.
    """
    try:
        *lines, last = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): remove it, or use another folder"
        ) from None
    found = [(line, _json_value(line)) for line in lines]
    value = _json_value(last)
    return found if value is None else [*found, (last, value)]


def _json_value(line: bytes):
    """Return the JSON value of a line, or None if it has none."""
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
