"""Text sources: find files and read documents from text, tables and the Hugging Face hub.

    files = find_files(["crawl/"])  # .jsonl and .parquet files, also compressed
    for number, text in read_rows("crawl/", "text", load_arguments(files)):
        ...

Every order is fixed, so that an interrupted preparation resumes with the same documents.
"""

import glob
import hashlib
import logging
import lzma
import sysconfig
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from errors import InputError
from text_data import hub

# Characters of text tokenized at a time. This bounds memory, and keeps tiktoken's regular
# expression fast on text without line breaks.
PIECE_CHARACTERS = 1 << 20
ROWS_PER_READ = 256  # rows of a table read at a time; a stream can be resumed at every multiple
EMPTY = "empty"  # why a file without content is skipped
SKIPPED_LISTED = 10  # skipped files that are printed; the others are counted
FINGERPRINT_BYTES = 2**20  # read at the beginning and at the end of each file
# Suffix -> the builder of `datasets` that reads it.
TABLES = {".jsonl": "json", ".parquet": "parquet"}
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


def table_format(path: Path) -> str | None:
    """Return the builder of `datasets` for a table, compressed or not; None for other files."""
    for suffix in path.suffixes[-2:]:
        if suffix in TABLES:
            return TABLES[suffix]
    return None


def not_a_table(path: Path) -> str | None:
    """Return why a file is skipped where only tables are read; None for a table."""
    if table_format(path):
        return None
    return "not jsonl or parquet: prepare it with prepare_text.py, or convert it"


def find_files(
    sources: list[str],
    skip_reason=not_a_table,
    kinds: str = "jsonl or parquet",
    exclude: Path | None = None,
) -> list[Path]:
    """Return the files in `sources`, and those in its folders that are not skipped, sorted.

    Hidden files and files in the folder `exclude` are left out of folders; empty files in folders
    are skipped.
    skip_reason: returns "<why a file is skipped>: <what to do>", or None for a file to read.
    kinds: the kinds of files that are read, for messages. Prints the skipped files.
    Raises InputError if a source does not exist or nothing is left.
    """
    missing = [source for source in sources if not Path(source).exists()]
    if missing:
        raise InputError(
            *(
                f"source {source} does not exist: pass an existing file or folder"
                for source in missing
            )
        )
    files = set()
    skipped = {}
    for source in map(Path, sources):
        if source.is_file():
            files.add(source)
            continue
        for path in visible_files(source, exclude):
            if reason := EMPTY if is_empty(path) else skip_reason(path):
                skipped[path] = reason
            else:
                files.add(path)
    skipped = {path: reason for path, reason in skipped.items() if path not in files}
    if skipped:
        print_skipped(skipped, len(files))
    if not files:
        raise InputError(f"{' '.join(sources)}: no {kinds} files found: pass another source")
    return sorted(files)


def is_empty(path: Path) -> bool:
    """Return whether a file has 0 bytes, or is a parquet file without rows."""
    if not path.stat().st_size:
        return True
    if path.suffix != ".parquet":
        return False
    import pyarrow.parquet

    try:
        return not pyarrow.parquet.read_metadata(path).num_rows
    except (pyarrow.ArrowException, OSError):
        return False  # reported when it is read


def visible_files(folder: Path, exclude: Path | None = None):
    """Yield the files in a folder and its subfolders, without hidden ones and those in `exclude`.

    A file or folder whose name starts with a dot is hidden.
    """
    exclude = exclude and exclude.resolve()
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        if not path.is_file() or any(part.startswith(".") for part in parts):
            continue
        if exclude and path.resolve().is_relative_to(exclude):
            continue
        yield path


def print_skipped(skipped: dict[Path, str], read: int) -> None:
    """Print the first skipped files with their reasons, and how many there are.

    skipped: "<reason>: <what to do>" or EMPTY by file. read: number of files that are not skipped.
    """
    print(f"{len(skipped)} of {read + len(skipped)} files are skipped:")
    for path in sorted(skipped)[:SKIPPED_LISTED]:
        print(f"  {path}: {skipped[path]}")
    if len(skipped) > SKIPPED_LISTED:
        print(f"  and {len(skipped) - SKIPPED_LISTED} more")


def fingerprint(files: list[Path]) -> str:
    """Return a hash of the files' names, sizes, and first and last megabytes.

    It recognizes the same sources when a preparation is resumed.
    """
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            digest.update(file.read(FINGERPRINT_BYTES))
            file.seek(max(file.tell(), size - FINGERPRINT_BYTES))
            digest.update(file.read())
    return digest.hexdigest()


def standard_library_files() -> list[Path]:
    """Return the source files of this Python's standard library, sorted.

    Tests are left out because many distributions remove them.
    """
    root = Path(sysconfig.get_path("stdlib"))
    files = [
        path for path in root.rglob("*.py") if NOT_LIBRARY.isdisjoint(path.relative_to(root).parts)
    ]
    if not files:
        raise InputError(
            f"{root} has no source files of the standard library: pass your own text as a source"
        )
    return sorted(files)


def split_text(text: str):
    """Yield a text in pieces of at most PIECE_CHARACTERS; an empty text is one empty piece."""
    for start in range(0, len(text) or 1, PIECE_CHARACTERS):
        yield text[start : start + PIECE_CHARACTERS]


def load_arguments(files: list[Path]) -> dict:
    """Return the arguments of datasets.load_dataset for local files of one kind.

    The files are tables, or plain text with one row per line.
    """
    builder = table_format(files[0]) or "text"
    arguments = {
        "path": builder,
        "data_files": [glob.escape(str(path)) for path in files],
        "split": "train",
    }
    if builder == "json":
        # `datasets` reads the first chunk twice, the first time before it returns any row.
        arguments["chunksize"] = PIECE_CHARACTERS
    return arguments


def load_table(path: str | None, hub_table: dict, flag: str, revision: str | None = None):
    """Return a table (datasets.Dataset), its name for messages, and its commit on the hub or None.

    path: a .jsonl or .parquet file, the value of `flag`; None: load hub_table, the arguments of
    datasets.load_dataset, at this revision. Raises InputError if it cannot be read or has no rows.
    """
    import datasets

    datasets.disable_progress_bars()
    if path is not None and not (Path(path).is_file() and table_format(Path(path))):
        raise InputError(
            f"{flag} {path} is not a .jsonl or .parquet file: "
            f"use one, or remove {flag} to load {hub_table['path']} from the hub"
        )
    name = path or hub_table["path"]
    remedy = f"repair it, or use another {flag}" if path else f"pass a file as {flag}"
    with raise_input_errors(name, remedy, is_local=path is not None):
        if path is None:
            rows, commit = hub.load_table(hub_table, revision)
        else:
            rows, commit = datasets.load_dataset(**load_arguments([Path(path)])), None
    if not len(rows):
        raise InputError(f"{name} has no rows: use another {flag}")
    return rows, name, commit


def read_rows(
    name: str,
    column: str,
    load_options: dict,
    resume_from=(0, None),
    on_state=lambda number, state: None,
    remedy="repair the file, or leave it out",
    column_remedy=None,
) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each row of a local or streamed table.

    name: of the table, for messages.
    column: the column that holds the text.
    load_options: the arguments of datasets.load_dataset.
    on_state: called from time to time with (number of the next row, a state in JSON).
    resume_from: such a pair. Reading continues there: files before the one that contains the row
    are not read again. A state saved by another version of `datasets` is not used, and reading
    starts at the first row.
    remedy: what to do about an error. column_remedy: what to do if there is no such column; None:
    choose another --text_column.

    Raises InputError if the table cannot be fetched or read, or has no text in `column`.
    """
    import datasets

    datasets.disable_progress_bars()
    for handler in logging.getLogger("datasets").handlers:
        handler.addFilter(_below_error)  # errors are raised as InputError, in one line
    number, state = resume_from
    if not state or state["datasets"] != datasets.__version__:
        number = 0
        state = None
    with raise_input_errors(name, remedy, is_local="data_files" in load_options):
        table = hub.with_retries(
            lambda: datasets.load_dataset(**load_options, streaming=True), name
        ).with_format("arrow")
        if state:
            table.load_state_dict(state["stream"])
        for chunk in table.iter(ROWS_PER_READ):
            has_column = column in chunk.column_names
            texts: list = chunk[column].to_pylist() if has_column else [None]
            if not all(isinstance(text, str) for text in texts):
                names = " ".join(chunk.column_names)
                choose = column_remedy or f"choose --text_column from {names}"
                raise InputError(f"{name}: no text in column '{column}': {choose}")
            yield from enumerate(texts, number)
            number += len(texts)
            on_state(number, {"datasets": datasets.__version__, "stream": table.state_dict()})


def _below_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


@contextmanager
def raise_input_errors(name: str, remedy: str, is_local: bool):
    """Raise an InputError of one line for data that is missing, corrupt or unreachable.

    Like hub.input_errors, it replaces what `datasets` and huggingface_hub raise inside the block,
    and also the errors of local files. is_local: whether the hub is not accessed.
    """
    from datasets.exceptions import DatasetsError
    from huggingface_hub.errors import EntryNotFoundError

    try:
        with nullcontext() if is_local else hub.input_errors(name, remedy):
            yield
    except InputError:
        raise
    except StopIteration:  # raised for a file without rows
        raise InputError(f"{name} has no rows: {remedy}") from None
    except (
        DatasetsError,
        hub.http_library().HTTPError,
        EntryNotFoundError,
        ValueError,
        OSError,
        EOFError,
        lzma.LZMAError,
        zlib.error,
    ) as error:
        cause = _one_line(error.__cause__ or error)
        raise InputError(f"{name} cannot be read ({cause}): {remedy}") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
