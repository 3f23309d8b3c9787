"""Files that are complete or absent: atomic writing, and JSON."""

import fcntl
import json
import os
import re
import shutil
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

from errors import InputError

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
        with suppress(OSError):  # a file system without locks
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
            with suppress(OSError), open(path, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


@contextmanager
def atomic_folder(path: str | Path):
    """Yield a new, empty folder to fill; it is renamed to `path` if the block succeeds.

    Raises InputError as `atomic` does.
    """
    path = Path(path).resolve()
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        shutil.rmtree(partial, ignore_errors=True)  # left by an interrupted program
        partial.mkdir(parents=True)
        yield partial
        os.replace(partial, path)


def set_default_permissions(folder: Path) -> None:
    """Give the files in a folder the permissions of new files, 0666 without the umask's bits.

    safetensors writes files that only their owner can read.
    """
    umask = os.umask(0o077)
    os.umask(umask)
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(0o666 & ~umask)


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
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: {remedy}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from None


def read_json_lines(path: str | Path) -> list[tuple[bytes, object]]:
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
