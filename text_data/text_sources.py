"""Text sources: find files and read documents from text, tables and the Hugging Face hub.

    files = find_files(["crawl/"])  # .jsonl and .parquet files, also compressed
    for number, text in read_rows("crawl/", "text", files):
        ...

Every order is fixed, so that an interrupted preparation resumes with the same documents.
"""

import glob
import hashlib
import io
import json
import lzma
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from errors import InputError
from text_data import hub

# Characters of text tokenized at a time. This bounds memory, and keeps tiktoken's regular
# expression fast on text without line breaks.
PIECE_CHARACTERS = 1 << 20
ROWS_PER_READ = 256  # rows of a parquet file read at a time; reading resumes at every multiple
SKIPPED_LISTED = 10  # skipped files that are printed; the others are counted
FINGERPRINT_BYTES = 2**20  # read at the beginning and at the end of each file
# Suffix -> the builder of `datasets` that reads it.
TABLES = {".jsonl": "json", ".parquet": "parquet"}
JSON_LINES = {".jsonl", ".json", ".ndjson"}
READ_ERRORS = (ValueError, OSError, EOFError, RecursionError, lzma.LZMAError, zlib.error)
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
    kinds: the kinds of files that are read, for messages. Prints the first skipped files.
    Raises InputError if a source does not exist or nothing is left.
    """
    missing = [source for source in sources if not Path(source).exists()]
    if missing:
        problem = "does not exist: pass an existing file or folder"
        raise InputError(*(f"source {source} {problem}" for source in missing))
    files = {path for path in map(Path, sources) if path.is_file()}
    skipped = {}
    for folder in map(Path, sources):
        for path in sorted({*folder.rglob("*")} - files):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            excluded = exclude and path.resolve().is_relative_to(exclude.resolve())
            if hidden or excluded or not path.is_file():
                continue
            if reason := "empty" if _is_empty(path) else skip_reason(path):
                skipped[path] = reason
            else:
                files.add(path)
    if skipped:
        print(f"{len(skipped)} of {len(files) + len(skipped)} files are skipped:")
        for path in sorted(skipped)[:SKIPPED_LISTED]:
            print(f"  {path}: {skipped[path]}")
        if len(skipped) > SKIPPED_LISTED:
            print(f"  and {len(skipped) - SKIPPED_LISTED} more")
    if not files:
        raise InputError(f"{' '.join(sources)}: no {kinds} files found: pass another source")
    return sorted(files)


def _is_empty(path: Path) -> bool:
    """Return whether a file has 0 bytes, or is a parquet file without rows."""
    if path.suffix != ".parquet" or not path.stat().st_size:
        return not path.stat().st_size
    import pyarrow.parquet

    try:
        return not pyarrow.parquet.read_metadata(path).num_rows
    except (pyarrow.ArrowException, OSError):
        return False  # reported when it is read


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


def load_table(
    path: str | None, hub_table: dict, flag: str, revision: str | None = None
) -> tuple[Any, str, str | None]:
    """Return a table (datasets.Dataset), its name for messages, and its commit on the hub or None.

    path: a .jsonl or .parquet file, the value of `flag`; None: load hub_table, the arguments of
    datasets.load_dataset, at this revision. Raises InputError if it cannot be read or has no rows.
    """
    import datasets

    datasets.disable_progress_bars()
    builder = table_format(Path(path)) if path else None
    if path is not None and not (builder and Path(path).is_file()):
        raise InputError(
            f"{flag} {path} is not a .jsonl or .parquet file: "
            f"use one, or remove {flag} to load {hub_table['path']} from the hub"
        )
    name = path or hub_table["path"]
    remedy = f"repair it, or use another {flag}" if path else f"pass a file as {flag}"
    with raise_input_errors(name, remedy, is_local=path is not None):
        if path is None or builder is None:
            rows, commit = hub.load_table(hub_table, revision)
        else:
            files = [glob.escape(path)]
            rows, commit = (
                datasets.load_dataset(path=builder, data_files=files, split="train"),
                None,
            )
    if not len(rows):
        raise InputError(f"{name} has no rows: use another {flag}")
    return rows, name, commit


def read_rows(
    name: str,
    column: str,
    files: Sequence[str | Path] | Callable[[], list[str]],
    resume_from: tuple[int, tuple[int, int]] = (0, (0, 0)),
    on_state=lambda number, state: None,
    remedy="repair the file, or leave it out",
    column_remedy=None,
) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each row of local files, or of files on the hub.

    name: of all files together, for messages. column: the column that holds the text; others are
    not decoded. files: a function returns those on the hub.
    on_state: called from time to time with (number of the next row, (its file, its row there)).
    resume_from: such a pair. Reading continues there: earlier files are not read again.
    column_remedy: what to do if there is no such column; None: choose another --text_column.

    Raises InputError if a file cannot be fetched or read, or for a row without text in `column`.
    """
    is_local = not callable(files)
    number, (first_file, first_row) = resume_from
    is_empty = number == 0
    with raise_input_errors(name, remedy, is_local):
        paths = files() if callable(files) else files
    for index, path in enumerate(paths[first_file:], first_file):
        with raise_input_errors(str(path) if is_local else name, remedy, is_local):
            rows = _read_file(path, column, first_row, column_remedy or "choose --text_column")
            for row, text in rows:
                if number % ROWS_PER_READ == 0:
                    on_state(number, (index, row))
                yield number, text
                number += 1
                is_empty = False
        first_row = 0
    if is_empty:
        raise InputError(f"{name} has no rows: {remedy}")


def _read_file(path, column: str, first: int, remedy: str) -> Iterator[tuple[int, str]]:
    """Yield (row, text) of a parquet file, or of the lines of another file, from a row on."""
    suffixes = Path(path).suffixes[-2:]
    with _open(path) as file:
        if ".parquet" in suffixes:
            rows = _read_parquet(file, column, first)
        elif JSON_LINES.isdisjoint(suffixes):
            lines = enumerate(io.TextIOWrapper(file, encoding="utf-8"))
            rows = ((row, line.rstrip("\n"), [column]) for row, line in lines if row >= first)
        else:
            rows = _read_json_lines(file, column, first)
        for row, text, columns in rows:
            if column not in columns:
                choose = f"{remedy} from {' '.join(columns)}" if columns else "write objects"
                raise InputError(f"{path}, row {row + 1}: no text in column '{column}': {choose}")
            if not isinstance(text, str):
                raise InputError(
                    f"{path}, row {row + 1}: column '{column}' holds {json.dumps(text)[:50]}, not "
                    "text: write a string, or remove the row"
                )
            yield row, text


def _read_json_lines(file, column: str, first: int):
    """Yield (row, value, columns) of the lines from `first` on; blank lines are left out."""
    row_type: Any = msgspec.defstruct("Row", [("text", str)], rename={"text": column})
    decoder = msgspec.json.Decoder(row_type)  # checks the syntax of other columns only
    for row, line in enumerate(file):
        if row < first or line.isspace():
            continue
        try:
            yield row, decoder.decode(line).text, [column]
        except msgspec.DecodeError:
            try:
                value = json.loads(line)  # also reads NaN
                str(value.get(column) if isinstance(value, dict) else "").encode()
            except ValueError:
                raise ValueError(f"line {row + 1} is not JSON in UTF-8") from None
            columns = value if isinstance(value, dict) else {}
            yield row, columns.get(column), [*columns]


def _read_parquet(file, column: str, first: int):
    """Yield (row, value, columns) of the rows from `first` on."""
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(file)
    columns = table.schema_arrow.names
    if column not in columns:
        yield 0, None, columns
    row = 0
    for group in range(table.num_row_groups):
        group_rows = table.metadata.row_group(group).num_rows
        if row + group_rows <= first:
            row += group_rows
            continue
        for batch in table.iter_batches(ROWS_PER_READ, [group], [column]):
            for value in batch.column(0).to_pylist():
                if row >= first:
                    yield row, value, columns
                row += 1


@contextmanager
def _open(path: str | Path) -> Iterator[Any]:
    """Open a local file, or one on the hub, for reading bytes; decompress it."""
    import fsspec.compression
    import fsspec.utils

    openers: dict[Any, Any] = fsspec.compression.compr
    compression = fsspec.utils.infer_compression(str(path))
    with open(path, "rb") if isinstance(path, Path) else hub.open_file(path) as file:
        if compression:
            file = openers[compression](file, mode="rb")
        yield file


@contextmanager
def raise_input_errors(name: str, remedy: str, is_local: bool):
    """Raise an InputError of one line for data that is missing, corrupt or unreachable.

    Like hub.input_errors, it replaces what `datasets` and huggingface_hub raise inside the block,
    and also the errors of local files. is_local: whether the hub is not accessed.
    """
    try:
        with nullcontext() if is_local else hub.input_errors(name, remedy):
            yield
    except InputError:
        raise
    except Exception as error:
        if not isinstance(error, (*READ_ERRORS, *hub.client_errors())):
            raise
        cause = " ".join(str(error.__cause__ or error).split())[:300] or type(error).__name__
        raise InputError(f"{name} cannot be read ({cause}): {remedy}") from None
