"""Files that are complete or absent: atomic writing, and JSON."""

import json
import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

from errors import InputError


@contextmanager
def atomic(path: str | Path):
    """Open `path` for writing bytes, atomically.

    The block writes to a temporary file, which is synced to disk and renamed at the end. A crash at
    any moment leaves the old file or the new one. Raises InputError if the system refuses (no
    permission, no space, a file in the way).
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            folder = os.open(path.parent, os.O_RDONLY)
            os.fsync(folder)  # makes the rename itself durable
            os.close(folder)
        finally:
            if not path.parent.is_file():
                partial.unlink(missing_ok=True)


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
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: {remedy}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from None
