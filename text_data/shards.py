"""Token shards: the format of a data set, its writer, reader, verification.

    train = Shards("data/stdlib", "train")  # checked and opened
    train.tokens[0][:10]  # uint16, or uint32 for large vocabularies

A data set is a folder with one file `{dataset}_{split}_{index:06d}.bin`
per shard and `meta.json`; docs/data.md describes their format. A shard
has 256 int32 header words and then tokens, all little-endian. Every
document starts with <|endoftext|>.

`next` of a shard in meta.json is the document and its token that follow
it, `mark` of a streamed source the document, file and row from which
the next shard can be read.
"""

import contextlib
import hashlib
import itertools
import os
import resource
import struct
import weakref
from collections import deque
from pathlib import Path
from typing import Annotated

from runtime.files import atomic, hash_file, read_json, working_folder_of, write_json
from runtime.validation import Count, Name, Text, check

import msgspec
import numpy as np

from errors import InputError

META = "meta.json"
MAGIC = 20240520
TOKEN_TYPES = {1: np.dtype("<u2"), 2: np.dtype("<u4")}  # by version
HEADER_BYTES = 4 * 256
OTHER_FILES = 256  # that a training may open besides shards
AUTO_VERIFY_BYTES = 10**9  # hashing this much takes a second or two
VOCABULARY_MULTIPLE = 64  # embeddings are padded to a multiple of this, for tensor cores


class ShardEntry(msgspec.Struct):
    """A shard's entry in meta.json; next and mark: see prepare_*.py."""

    file: Name
    documents: Count
    tokens: Count
    sha256: Text
    next: tuple[Count, Count] | msgspec.UnsetType = msgspec.UNSET
    mark: tuple[Count, tuple[Count, Count]] | msgspec.UnsetType = msgspec.UNSET


class SplitEntry(msgspec.Struct):
    documents: Count
    tokens: Count
    shards: list[ShardEntry]


class MetaFile(msgspec.Struct):
    """Content of meta.json; names become parts of file names."""

    dataset: Name
    tokenizer: Text
    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 32)]
    complete: bool
    splits: dict[Name, SplitEntry]
    available: Count = 0
    revision: Text = ""


def version_for(vocab_size: int) -> int:
    """Return the version of shards for a vocabulary of this size."""
    return 1 if vocab_size <= 1 << 16 else 2


def allow_open_files(count: int) -> None:
    """Raise the limit of open files by `count`, or raise InputError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/dev/fd")) + count + OTHER_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError):
        raise InputError(
            f"{count} shards need {needed} open files, the system allows {hard}: raise its limit "
            "(ulimit -Hn), or prepare the data again with a higher --shard_tokens"
        ) from None


class TokenFile:
    """The tokens of a checked file, read when used: (n,) uint16 or uint32.

    A memory map would end the process (SIGBUS) if the file is
    truncated.
    """

    def __init__(self, path: Path):
        self.path = path
        self.file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.file)
        _, version, self.length = struct.unpack("<3i", os.pread(self.file, 12, 0))
        self.dtype = TOKEN_TYPES[version]

    def __len__(self) -> int:
        return self.length

    def prefetch(self, start: int, count: int) -> None:
        """Ask the system to read tokens ahead, where it can; return at once."""
        if hasattr(os, "posix_fadvise"):  # not on macOS
            first = HEADER_BYTES + start * self.dtype.itemsize
            size = count * self.dtype.itemsize
            os.posix_fadvise(self.file, first, size, os.POSIX_FADV_WILLNEED)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return tokens; safe in threads. Raises InputError if they are gone."""
        start, stop, step = part.indices(self.length)
        first = HEADER_BYTES + start * self.dtype.itemsize
        size = max(0, stop - start) * self.dtype.itemsize
        content, problem = b"", "it is shorter than before"
        while len(content) < size:  # one call reads at most 2 GB
            try:
                more = os.pread(self.file, size - len(content), first + len(content))
            except OSError as error:
                more, problem = b"", error.strerror
            if not more:
                raise InputError(
                    f"{self.path} cannot be read any more ({problem}): prepare the data again; "
                    "a training continues with --resume"
                )
            content += more
        return np.frombuffer(content, self.dtype)[::step]


def check_shard(
    path: Path, tokens: int | None = None, sha256: str | None = None, version: int = 1
) -> list[str]:
    """Return the problem of a shard as a list of at most one line."""
    try:
        with open(path, "rb") as file:
            header = file.read(HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
        problem = _check_header(header, size, tokens, version)
        if sha256 and not problem and hash_file(path) != sha256:
            problem = "has been changed since it was written (its SHA-256 differs)"
    except FileNotFoundError:
        return [
            f"{path} does not exist{working_folder_of(path)}: run the preparation again to write "
            "missing shards"
        ]
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    return [f"{path} {problem}: remove it and run the preparation again"] if problem else []


def _check_header(header: bytes, size: int, tokens: int | None, version: int) -> str | None:
    """Return what is wrong with a shard of `size` bytes, or None."""
    magic, found, count = struct.unpack_from("<3i", header.ljust(HEADER_BYTES, b"\0"))
    if len(header) < HEADER_BYTES or magic != MAGIC:
        return f"is not a shard (its first {HEADER_BYTES} bytes are not a shard header)"
    if found != version:
        return f"is a shard of version {found}, not {version}"
    if not count:
        return "is empty"
    held, rest = divmod(size - HEADER_BYTES, TOKEN_TYPES[found].itemsize)
    if held != count or rest or tokens not in (None, count):
        in_meta = "" if tokens is None else f", meta.json {tokens}"
        return f"holds {held} tokens, its header says {count}{in_meta}"
    return None


class ShardWriter:
    """Write the shards of a split, each atomically; resume a preparation.

    split: of the first shard. later_split: of the others; None:
    `split`.

    Documents must come in the same order on every run. `start` is
    (document, offset in it) of the first token that is not in a
    finished shard; `add` skips earlier ones. Shards from a missing one
    on are written again.
    """

    def __init__(
        self,
        meta: "Meta",
        split: str,
        shard_tokens: int,
        later_split: str | None = None,
        max_shards: int | None = None,
    ):
        self.meta = meta
        self.shard_tokens = shard_tokens
        self.max_shards = max_shards
        self.splits = (split, later_split or split)
        self.shards = self._finished_shards()
        self.start = tuple(self.shards[-1]["next"]) if self.shards else (0, 0)
        self.marks = deque()  # of the source's rows from the latest document on
        self.version = version_for(meta.content["vocab_size"])
        self.buffer = np.empty(shard_tokens, dtype=TOKEN_TYPES[self.version])
        self.buffered = 0  # tokens in the buffer
        self.documents_started = 0  # documents that start in the buffer
        self.document = 0  # the latest document

    def _finished_shards(self) -> list[dict]:
        """Return the entries before the first missing file; remove the others."""

        def is_finished(entry):
            return "next" in entry and (self.meta.folder / entry["file"]).exists()

        names = dict.fromkeys(self.splits)
        entries = [entry for name in names for entry in self.meta.shards_of(name)]
        kept = list(itertools.takewhile(is_finished, entries))
        if len(kept) < len(entries):
            self.meta.content["complete"] = False
        for name in names:
            self.meta.list_shards(name, [x for x in self.meta.shards_of(name) if x in kept])
        return kept

    @property
    def full(self) -> bool:
        return self.max_shards is not None and len(self.shards) >= self.max_shards

    def add(self, document: int, offset: int, tokens: np.ndarray) -> None:
        """Append the tokens of a document, from its token `offset` on."""
        if (document, offset + len(tokens)) <= self.start:
            return
        if document == self.start[0] and offset < self.start[1]:
            tokens = tokens[self.start[1] - offset :]
            offset = self.start[1]
        self.document = document
        while self.marks and self.marks[0][0] < document:
            self.marks.popleft()
        if offset == 0:
            self.documents_started += 1
        while len(tokens) and not self.full:
            taken = tokens[: self.shard_tokens - self.buffered]
            self.buffer[self.buffered : self.buffered + len(taken)] = taken
            self.buffered += len(taken)
            tokens = tokens[len(taken) :]
            offset += len(taken)
            if self.buffered == self.shard_tokens:
                self._flush((document, offset))

    def close(self) -> None:
        """Write the remaining tokens as the last shard."""
        if self.buffered:
            self._flush((self.document + 1, 0))

    def _flush(self, next_token: tuple[int, int]) -> None:
        """Write the buffer as a shard; next_token: the one after, as `start`."""
        split = self.splits[1] if self.shards else self.splits[0]
        file_name = f"{self.meta.content['dataset']}_{split}_{len(self.shards):06d}.bin"
        path = self.meta.folder / file_name
        header = struct.pack(f"<3i{HEADER_BYTES - 12}x", MAGIC, self.version, self.buffered)
        digest = hashlib.sha256()
        with atomic(path) as file:
            for part in (header, self.buffer[: self.buffered].data):
                digest.update(part)
                file.write(part)
        entry = {
            "file": file_name,
            "documents": self.documents_started,
            "tokens": self.buffered,
            "sha256": digest.hexdigest(),
            "next": next_token,
        }
        if self.marks:
            entry["mark"] = self.marks[0]
        self.shards.append(entry)
        self.meta.add_shard(split, entry)
        self.meta.write()
        self.buffered = 0
        self.documents_started = 0


class Meta:
    """The meta.json of a data set in preparation; `content` is what it holds.

    description: dataset, tokenizer, vocab_size and source. files: the
    tokenizer's, content by name. Raises InputError if the folder holds
    other shards, or a data set with another description.
    """

    def __init__(
        self, folder: str | Path, description: dict, files: dict[str, bytes] | None = None
    ):
        self.folder = Path(folder)
        self.files = files or {}
        self.content = {**description, "complete": False, "splits": {}}
        check(
            description["dataset"], Name, f"the name of {folder}", "pass another --out_dir"
        )
        if (self.folder / META).exists():
            existing = read_meta(self.folder, f"remove {folder} and prepare it again")
            other = [key for key in description if existing.get(key) != description[key]]
            if other:
                raise InputError(
                    f"{folder} already holds a data set with another {', '.join(other)}: "
                    "pass another --out_dir, or remove it"
                )
            self.content = existing
        elif [*self.folder.glob("*.bin"), *self.folder.glob("checkpoint_*.pt")]:
            raise InputError(f"{folder} contains shards or a run: pass another --out_dir")

    def write(self) -> None:
        for name, content in self.files.items():
            if not (self.folder / name).exists():
                with atomic(self.folder / name) as file:
                    file.write(content)
        write_json(self.folder / META, self.content)

    def add_shard(self, split: str, entry: dict) -> None:
        """List a shard that is on disk; entry: "file", "documents", ..."""
        entries = [*self.shards_of(split), entry]
        self.list_shards(split, sorted(entries, key=lambda shard: shard["file"]))

    def shards_of(self, split: str) -> list[dict]:
        return self.content["splits"].get(split, {"shards": []})["shards"]

    def list_shards(self, split: str, entries: list[dict]) -> None:
        """Replace the entries of a split; count its documents and tokens."""
        totals = {}
        for key in ("documents", "tokens"):
            totals[key] = sum(entry[key] for entry in entries)
        self.content["splits"][split] = {**totals, "shards": entries}

    def remove(self) -> None:
        """Delete the shards, then meta.json, tokenizer, and an empty folder."""
        for record in self.content["splits"].values():
            for entry in record["shards"]:
                (self.folder / entry["file"]).unlink(missing_ok=True)
        for name in (META, *self.files):
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def same_tokenizer(first: str, second: str) -> bool:
    """Return whether two names are of one tokenizer: their hashes, if they have any."""
    return first.rpartition("@")[2] == second.rpartition("@")[2]


class Shards:
    """The shards of one split, opened after headers and sizes are checked.

    verify: compare them with their SHA-256 in meta.json: "always",
    "never", or "auto", which does up to AUTO_VERIFY_BYTES in all.

    Attributes: tokens (one TokenFile per shard), paths, total (of
    tokens), vocab_size, tokenizer, meta (of meta.json), sha256 (over
    the shards' hashes). Raises InputError for a missing, empty or
    changed shard.
    """

    def __init__(self, folder: str | Path, split: str, verify: str = "auto"):
        self.folder = Path(folder)
        self.split = split
        self.meta = read_meta(self.folder, f"prepare {folder}, as with prepare_text.py")
        splits = self.meta["splits"]
        self.vocab_size = self.meta["vocab_size"]
        self.tokenizer = self.meta["tokenizer"]
        entries = splits[split]["shards"] if split in splits else []
        hashes = "".join(entry["sha256"] for entry in entries)
        self.sha256 = hashlib.sha256(hashes.encode()).hexdigest()
        self.paths = [self.folder / entry["file"] for entry in entries]
        if not self.meta["complete"]:
            raise InputError(f"preparation of {folder} was interrupted: repeat its command")
        if not entries:
            names = " ".join(splits)
            raise InputError(f"{folder} has no split '{split}': choose one of {names}")
        version = version_for(self.vocab_size)
        size = TOKEN_TYPES[version].itemsize * sum(entry["tokens"] for entry in entries)
        is_hashed = verify == "always" or (verify == "auto" and size <= AUTO_VERIFY_BYTES)
        problems = []
        for path, entry in zip(self.paths, entries, strict=True):
            sha256 = entry["sha256"] if is_hashed else None
            problems += check_shard(path, entry["tokens"], sha256, version)
        if problems:
            raise InputError(*problems)
        allow_open_files(len(self.paths))
        self.tokens = [TokenFile(path) for path in self.paths]
        self.total = sum(map(len, self.tokens))

    @property
    def identity(self) -> dict[str, str]:
        """What identifies the text in a record."""
        return {
            "dataset": self.meta["dataset"],
            "split": self.split,
            "tokenizer": self.tokenizer,
            "sha256": self.sha256,
        }

    @property
    def tokenizer_files(self) -> dict[str, bytes]:
        """The tokenizer's files, content by name."""
        if "@" not in self.tokenizer:
            return {}
        from text_data.tokenizer import load_tokenizer

        return load_tokenizer(self.tokenizer, self.folder).files

    @property
    def padded_vocab_size(self) -> int:
        """The size rounded up to VOCABULARY_MULTIPLE: 257 -> 320."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE


def read_meta(folder: str | Path, remedy: str) -> dict:
    """Return a folder's meta.json, or raise InputError, ending with `remedy`."""
    return read_json(Path(folder) / META, remedy, MetaFile)


def verify(folder: str | Path) -> None:
    """Check all hashes in a folder; raise InputError with a line per problem."""
    meta = read_meta(folder, f"--verify needs its hashes: prepare {folder} first")
    problems = []
    for split in meta["splits"] or ["train"]:
        try:
            Shards(folder, split, "always")
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*dict.fromkeys(problems))
    entries = [entry for split in meta["splits"].values() for entry in split["shards"]]
    tokens = sum(entry["tokens"] for entry in entries)
    print(f"{folder}: {len(entries)} shards, {tokens:,} tokens, all match their hashes")
