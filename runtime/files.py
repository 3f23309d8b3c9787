"""Files that are complete or absent: atomic writing, locks, and JSON."""

import contextlib
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runtime.validation import check

from errors import InputError

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP)  # of flock on a file system without locks


@contextmanager
def atomic(path: str | Path):
    """Open `path` for writing bytes, atomically.

    The block writes to a temporary file, synced to disk and renamed at the end: a crash leaves the
    old file or the new one. Raises InputError (`writing`).
    """
    path = Path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_partial_files(path.parent)
        partial, file = _open_partial(path)
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


def _open_partial(path: Path):
    """Return the path of a new temporary file, and the file, locked."""
    while True:
        partial = _partial_path(path)
        file = open(partial, "wb")  # noqa: SIM115
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            return partial, file
        file.close()  # another process removed it before it was locked


def _partial_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.partial")


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder.

    Locked files are in use and stay; so do all on a file system without locks.
    """
    for path in folder.iterdir():
        if re.fullmatch(r".+\.[0-9a-f]{8}\.partial", path.name):
            with contextlib.suppress(OSError), open(path, "r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def check_new_folder(path: Path) -> None:
    """Raise InputError if a folder to write exists and is not empty."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InputError(f"{path} already holds files: remove it, or choose another --out_dir")


@contextmanager
def atomic_folder(path: str | Path):
    """Yield a new, empty folder to fill; it is renamed to `path` at the end.

    It is hidden, .NAME.XXXXXXXX.partial, and removed if the block fails, or at the next call if a
    process was killed. Raises InputError as `atomic` does.
    """
    path = Path(path).resolve()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_partial_files(path.parent)
        marker, file = _open_partial(path)  # locked until the folder is complete
        with file:
            for old in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
                if not old.with_name(old.name[1:]).exists():
                    shutil.rmtree(old, ignore_errors=True)
            partial = path.with_name(f".{marker.name}")
            try:
                partial.mkdir()
                yield partial
                os.replace(partial, path)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
                marker.unlink()


@contextmanager
def locked(path: str | Path):
    """Wait until no other process is in such a block for `path`; then run it.

    Read, change and write `path` in the block; readers need no lock (`atomic`). The lock is on a
    hidden file; one that a killed process leaves locks nothing. Without effect on a file system
    without locks. Raises InputError (`writing`).
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


@contextmanager
def writing(path: str | Path):
    """Turn an OSError inside the block into an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot write {path}: {reason}: use another folder") from error


def check_writable(folder: Path) -> None:
    """Raise InputError if no files can be written to a folder, existing or not."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    with writing(folder), tempfile.TemporaryFile(dir=existing):
        pass


def write_json(path: str | Path, value) -> None:
    """Write `value` as JSON, with arrays of numbers on one line."""
    # Strings have no raw newline, so "[" before a newline opens an array.
    text, array = json.dumps(value, indent=1), r"\[\n([^][{}\"]*)\n *\]"
    text = re.sub(array, lambda match: f"[{' '.join(match[1].split())}]", text)
    with atomic(path) as file:
        file.write(text.encode() + b"\n")


def read_json(path: str | Path, remedy: str, type_: Any = Any):
    """Return the JSON value in `path`.

    Raises InputError, ending with `remedy`, for a missing or corrupt file and a value of another
    type (validation.py).
    """
    try:
        if Path(path).exists() and not Path(path).is_file():  # may never end
            raise OSError("not a file")
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} does not exist{working_folder_of(path)}: {remedy}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from None
    check(value, type_, path, remedy)
    return value


def read_json_lines(path: str | Path) -> list[Any]:
    """Return the JSON values of a file's lines, None for corrupt lines.

    An incomplete last line is left out. Raises OSError if it cannot be read.
    """
    values: list[Any] = []
    for line in Path(path).read_bytes().split(b"\n"):
        try:
            values.append(json.loads(line.decode()))
        except (ValueError, RecursionError):
            values.append(None)
    return values[:-1] if values[-1] is None else values


def working_folder_of(path: str | bytes | Path) -> str:
    """Return where a missing relative path was looked for, in words; else ""."""
    return "" if os.path.isabs(path) else f" in {os.getcwd()}"


def run_folder_of(run: str | Path) -> Path:
    """Return the folder of a run, also for one of its checkpoints."""
    return Path(run) if os.path.isdir(run) else Path(run).parent


def hash_file(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
