"""Text sources: find files, and read documents from text, tables and the hub.

    files = find_files(["crawl/"])  # .jsonl and .parquet files, also compressed
    for number, text in read_rows("crawl/", "text", files):
        ...

Every order is fixed: a resumed preparation reads the same documents.
"""

import hashlib
import io
import itertools
import json
import os
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runtime.files import working_folder_of

from errors import InputError
from text_data import hub

# Characters tokenized at a time. tiktoken's regular expression is slow on long text without line
# breaks.
PIECE_CHARACTERS = 1 << 20
ROWS_PER_READ = 256  # rows of a parquet file read at a time
FILES_LISTED = 5  # files that are printed; the others are counted
TABLES = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet"}
COMPRESSED = {".gz", ".bz2", ".xz", ".lzma", ".zip", ".zst", ".lz4", ".snappy"}
# Copies and companions of a file, which would repeat its text or are no text.
COMPANIONS = {".bak", ".old", ".orig", ".tmp", ".swp", ".idx", ".index"}
COMPANIONS |= {".md5", ".sha1", ".sha256", ".sha512", ".crc32"}
PACKAGES = {".zst": "backports.zstd", ".lz4": "lz4", ".snappy": "python-snappy"}
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
Mark = tuple[int, tuple[int, int]]
"""number of a row, and its file and its number there"""


def table_format(path: Path) -> str | None:
    """Return json or parquet for a table, also compressed, else None."""
    return TABLES.get(_suffix(path))


def not_a_table(path: Path, is_named: bool) -> str | None:
    """Return why a file is not read where only tables are, or None."""
    if not table_format(path):
        return "not jsonl or parquet: prepare it with prepare_text.py, or convert it"
    return unusual_table(path)


def unusual_table(path: Path) -> str | None:
    """Return why a .json file, also compressed, has no JSON lines, or None."""
    if _suffix(path) != ".json":
        return None
    remedy = "repair the file, or leave it out"
    with hub.input_errors(str(path), remedy, is_local=True), open_file(path) as file:
        line = next((line for line in file if not line.isspace()), b"")
    with suppress(ValueError, RecursionError):
        if isinstance(json.loads(line), dict):
            return None
    return "JSON, but not an object in each line: convert it, as with jq -c '.[]'"


def find_files(
    sources: list[str], skip_reason=not_a_table, exclude: Path | None = None
) -> list[Path]:
    """Return the files in `sources`, and those in its folders, sorted.

    In folders, hidden and empty files and the folder `exclude` are left out. skip_reason: of (path,
    whether it is in `sources`), "<why it is not read>: <what to do>" or None. Prints the first
    files that are read, and the first skipped ones. Raises InputError if a source does not exist or
    is not read, or nothing is left.
    """

    if missing := [source for source in sources if not Path(source).exists()]:
        remedy = "pass an existing file or folder"
        raise InputError(
            *(f"source {x} does not exist{working_folder_of(x)}: {remedy}" for x in missing)
        )
    named = {path for path in map(Path, sources) if path.is_file()}

    def reason_of(path: Path) -> str | None:
        if path.is_dir():
            return "a linked folder: pass it as a source of its own"
        if path.suffix.lower() in COMPANIONS or path.name.endswith("~"):
            return "a backup, an index or a checksum by its name: rename it to read it"
        if not path.stat().st_size:
            return "empty: leave it out"
        return skip_reason(path, path in named)

    found = {*named}
    for folder in map(Path, sources):
        for path in folder.rglob("*"):
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            excluded = exclude and path.resolve().is_relative_to(exclude.resolve())
            is_read = path.is_file() or (path.is_dir() and path.is_symlink())
            if is_read and not (hidden or excluded):
                found.add(path)
    reasons = {path: reason_of(path) for path in sorted(found)}
    skipped = {path: reason for path, reason in reasons.items() if reason}
    if problems := [f"{path} is {skipped[path]}" for path in skipped if path in named]:
        raise InputError(*problems)
    files = [path for path in reasons if path not in skipped]
    _print_some(f"{len(files)} of {len(found)} files are read", files)
    lines = [f"{path}: {reason}" for path, reason in skipped.items()]
    _print_some(f"{len(skipped)} of {len(found)} files are skipped", lines)
    if not files:
        raise InputError(f"{' '.join(sources)}: no files to read: pass another source")
    return files


def _print_some(title: str, lines: Sequence) -> None:
    """Print the first lines, and the number of others; without lines, nothing."""
    if lines:
        print(f"{title}:", *lines[:FILES_LISTED], sep="\n  ")
    if len(lines) > FILES_LISTED:
        print(f"  and {len(lines) - FILES_LISTED} more")


def fingerprint(files: list[Path]) -> str:
    """Return a hash of names, sizes and contents of files."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(os.fsencode(path.name) + f" {path.stat().st_size}\n".encode())
        with open(path, "rb") as file:
            hashlib.file_digest(file, lambda: digest)  # continues this one
    return digest.hexdigest()


def standard_library_files() -> list[Path]:
    """Return the standard library's sorted sources, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(root.rglob("*.py"))
    return [path for path in files if NOT_LIBRARY.isdisjoint(path.relative_to(root).parts)]


def split_text(text: str):
    """Yield pieces of at most PIECE_CHARACTERS; one empty piece for ""."""
    for start in range(0, len(text) or 1, PIECE_CHARACTERS):
        yield text[start : start + PIECE_CHARACTERS]


def load_table(
    path: str | None,
    hub_table: dict,
    flag: str,
    columns: Sequence[str],
    revision: str | None = None,
    limit: int | None = None,
) -> tuple[Any, str, str | None]:
    """Return rows, their name for messages, and the commit on the hub or None.

    path: a file, the value of `flag`; its first `limit` rows are a list of dictionaries with those
    of `columns` that a row has. None: load hub_table, the arguments of datasets.load_dataset, as a
    datasets.Dataset. Raises InputError if it cannot be read or has no rows.
    """
    if path is not None and not (table_format(Path(path)) and Path(path).is_file()):
        raise InputError(
            f"{flag} {path} is not a .jsonl or .parquet file{working_folder_of(path)}: "
            f"use one, or remove {flag} to load {hub_table['path']} from the hub"
        )
    name = path or hub_table["path"]
    remedy = f"repair it, or use another {flag}" if path else f"pass a file as {flag}"
    with hub.input_errors(name, remedy, is_local=path is not None):
        if path is None:
            rows, commit = hub.load_table(hub_table, revision)
        else:
            found = itertools.islice(read_file(Path(path), columns), limit)
            rows = [{key: row[key] for key in columns if key in row} for _, row in found]
            commit = None
    if not len(rows):
        raise InputError(f"{name} has no rows: use another {flag}")
    return rows, name, commit


def read_rows(
    name: str,
    column: str,
    files: Sequence[str | Path] | Callable[[], list[str]],
    resume_from: Mark = (0, (0, 0)),
    remedy="repair the file, or leave it out",
    choose="choose it by --text_column",
) -> Iterator[tuple[Mark, str]]:
    """Yield (mark, text) of each row of local files, or of files on the hub.

    column: of the text, or names with commas: a row's first one counts; choose: how to take
    another. files: a function returns those on the hub. resume_from: the mark of the first row to
    read. Raises InputError if a file cannot be read, or for a row without text.
    """
    is_local = not callable(files)
    columns = [*dict.fromkeys(name.strip() for name in column.split(","))]
    number, (first_file, first_row) = resume_from
    with hub.input_errors(name, remedy, is_local):
        paths = files() if callable(files) else files
    for index, path in enumerate(paths[first_file:], first_file):
        with hub.input_errors(str(path) if is_local else name, remedy, is_local):
            for row, values in read_file(path, columns, first_row):
                text = find_text(values, columns, f"{path}, row {row + 1}", choose)
                yield (number, (index, row)), text
                number += 1
        first_row = 0
    if number == 0:
        raise InputError(f"{name} has no rows: {remedy}")


def find_text(values: dict, columns: Sequence[str], where: str, choose: str) -> str:
    """Return the first non-null value of `columns`; InputError if not text."""
    found = [name for name in columns if name in values]
    if not found:
        raise InputError(
            f"{where}: no text in column '{','.join(columns)}', only columns {' '.join(values)}: "
            f"rename one, or {choose}"
        )
    column = next((name for name in found if values[name] is not None), found[0])
    if not isinstance(values[column], str):
        value = json.dumps(values[column], default=str)[:50]
        raise InputError(
            f"{where}: column '{column}' holds {value}, not text: write a string, or remove the row"
        )
    return values[column]


def read_file(
    path: str | Path, columns: Sequence[str], first: int = 0
) -> Iterator[tuple[int, dict]]:
    """Yield (row, value by column) of a file, from row `first` on.

    Values are at least those of `columns` that the row has. A line of text is the value of all
    `columns`; of a row that is no object, {}.
    """
    kind = TABLES.get(_suffix(path))
    with open_file(path) as file:
        if kind == "parquet":
            yield from _read_parquet(file, columns, first)
        elif kind == "json":
            yield from _read_json_lines(file, columns, first)
        else:
            for row, line in enumerate(io.TextIOWrapper(file, encoding="utf-8-sig")):
                if row >= first:
                    yield row, dict.fromkeys(columns, line.rstrip("\n"))


def _read_json_lines(file, columns: Sequence[str], first: int):
    """Yield as `read_file`; blank lines are left out."""
    for row, line in enumerate(file):
        if row < first or line.isspace():
            continue
        try:
            values = json.loads(line)
            values = values if isinstance(values, dict) else {}
            read = [values.get(name) for name in columns]
            json.dumps(read, ensure_ascii=False).encode()  # refuses half characters
        except (ValueError, RecursionError):
            raise ValueError(f"line {row + 1} is not JSON in UTF-8") from None
        yield row, values


def _read_parquet(file, columns: Sequence[str], first: int):
    """Yield as `read_file`."""
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(file)
    names = table.schema_arrow.names
    chosen = [name for name in names if name in columns] or names
    start = 0
    for group in range(table.num_row_groups):
        end = start + table.metadata.row_group(group).num_rows
        if end > first:
            batches = table.iter_batches(ROWS_PER_READ, [group], chosen)
            rows = itertools.chain.from_iterable(batch.to_pylist() for batch in batches)
            yield from itertools.islice(enumerate(rows, start), max(0, first - start), None)
        start = end


def _suffix(path: str | Path) -> str:
    """Return the last suffix of a file name that is no compression, in lower case."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    return next((suffix for suffix in reversed(suffixes) if suffix not in COMPRESSED), "")


@contextmanager
def open_file(path: str | Path) -> Iterator[Any]:
    """Open a local file, or one on the hub, for reading bytes; decompress it."""
    import fsspec.compression
    import fsspec.utils

    openers: dict[Any, Any] = fsspec.compression.compr
    compression = fsspec.utils.infer_compression(str(path))
    opener: Any = open
    if isinstance(path, str):  # its reads survive temporary errors
        from datasets.utils.file_utils import xopen as opener
    with opener(path, "rb") as file:
        if compression:
            file = openers[compression](file, mode="rb")
        # fsspec also takes zstandard, which accepts truncated files.
        is_unpacked = compression and isinstance(file, io.IOBase)
        package = PACKAGES.get(Path(path).suffix.lower())
        if package and not is_unpacked:
            raise InputError(f"{path}: install {package} to read it, or decompress it")
        yield file
