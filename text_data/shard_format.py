"""Format of token shards: header, tokens, checks, and shards that other programs wrote.

A shard has 256 int32 header words and then tokens, all little-endian. The header words are the
magic number 20240520, the version, the number of tokens, and zeros. The tokens are uint16 in
version 1 and uint32 in version 2, which is used for vocabularies above 65,536. llm.c and
modded-nanogpt read version 1 and refuse other versions.

Foreign shards are GPT-2 tokens without meta.json:

| files | written by |
| --- | --- |
| `fineweb_val_000000.bin`, `fineweb_train_000001.bin` | llm.c, modded-nanogpt |
| `tiny_shakespeare_val.bin`, `tiny_shakespeare_train.bin` | llm.c |
| `val.bin`, `train.bin` | nanoGPT |

nanoGPT's have no header: uint16 tokens only. Only files with exactly its names are read so. The
magic number read as two uint16 tokens is 55432 and 308; GPT-2 has no token 55432, so its tokens are
never taken for a header. nanoGPT's character-level data is recognized by its meta.pkl, which is
never opened.
"""

import functools
import hashlib
import os
import re
import resource
import struct
import weakref
from pathlib import Path

import numpy as np

from errors import InputError

MAGIC = 20240520
LLAMA_MAGIC = 20240801  # llm.c's shards of Llama tokens
TOKEN_TYPES = {1: np.dtype("<u2"), 2: np.dtype("<u4")}  # by version
HEADER_BYTES = 4 * 256
GPT2_VOCABULARY = 50257
SHARD_NAME = re.compile(r"(?:.+_)?(?P<split>train|val|test)(?:_(?P<index>\d+))?\.bin")
HEADERLESS_NAMES = ("train.bin", "val.bin")
HASH_BYTES = 1 << 20  # hashed of each foreign file, because there is no meta.json with hashes
BLOCK_TOKENS = 1 << 23  # checked at a time
OTHER_FILES = 256  # that a training may open besides shards
MIN_WIDE_TOKENS = 16  # shorter files are too short to look like int32 or int64
REMEDY = "prepare the text with prepare_text.py"


def version_for(vocab_size: int) -> int:
    """Return the version of shards that hold the tokens of a vocabulary of this size."""
    return 1 if vocab_size <= 1 << 16 else 2


def make_header(version: int, tokens: int) -> bytes:
    return struct.pack("<3i", MAGIC, version, tokens).ljust(HEADER_BYTES, b"\0")


def _starts_with_magic(content: bytes) -> bool:
    return int.from_bytes(content[:4], "little") in (MAGIC, LLAMA_MAGIC)


def allow_open_files(count: int) -> None:
    """Raise the process's limit of open files, of which shards need one each, by `count`.

    Raises InputError if the system's own limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/dev/fd")) + count + OTHER_FILES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except ValueError:
        raise InputError(
            f"{count} shards need {needed} open files, the system allows {hard}: raise its limit "
            "(ulimit -Hn), or prepare the data again with a higher --shard_tokens"
        ) from None


class TokenFile:
    """The tokens of a checked file. A slice is read when it is used: (n,) uint16 or uint32.

    A memory-mapped file would kill the process (SIGBUS) if another program truncates it.
    """

    def __init__(self, path: Path):
        self.path = path
        self.dtype, self.offset = TOKEN_TYPES[1], 0
        self.file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.file)
        head = os.pread(self.file, 8, 0)
        if _starts_with_magic(head):
            self.dtype = TOKEN_TYPES[int.from_bytes(head[4:], "little")]
            self.offset = HEADER_BYTES
        size = os.fstat(self.file).st_size - self.offset
        self.length = size // self.dtype.itemsize

    def __len__(self) -> int:
        return self.length

    def prefetch(self, start: int, count: int) -> None:
        """Ask the system to read tokens that are used soon; returns at once, where it can."""
        if hasattr(os, "posix_fadvise"):  # not on macOS
            first = self.offset + start * self.dtype.itemsize
            size = count * self.dtype.itemsize
            os.posix_fadvise(self.file, first, size, os.POSIX_FADV_WILLNEED)

    def __getitem__(self, part: slice) -> np.ndarray:
        """Return tokens, which threads may read at once. Raises InputError if they are gone."""
        start, stop, step = part.indices(self.length)
        first = self.offset + start * self.dtype.itemsize
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
    path: Path,
    tokens: int | None = None,
    sha256: str | None = None,
    version: int | None = None,
    headerless: bool = False,
) -> list[str]:
    """Return the problem of a shard in a list of one line, or an empty list.

    tokens, sha256, version: compared with the file's unless None. headerless: the file may have no
    header.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
            problem = _check_header(header, size, tokens, version, headerless)
            file.seek(0)
            if not problem and sha256 and hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                problem = (
                    "has been changed since it was written (its SHA-256 differs from meta.json)"
                )
    except FileNotFoundError:
        return [f"{path} does not exist: run the preparation again to write missing shards"]
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    if problem and ": " not in problem:
        problem += ": remove it and run the preparation again"
    return [f"{path} {problem}"] if problem else []


def _check_header(
    header: bytes, size: int, tokens: int | None, version: int | None, headerless: bool
) -> str | None:
    """Return what is wrong with a shard of `size` bytes, or None; arguments as `check_shard`."""
    if headerless and not _starts_with_magic(header):
        if size % 2:
            return f"has {size} bytes, an odd number, so it does not hold uint16 tokens: remove it"
        return None if size else "is empty: remove it"
    magic, found, count = struct.unpack_from("<3i", header.ljust(HEADER_BYTES, b"\0"))
    if magic == LLAMA_MAGIC:
        return (
            f"is llm.c's shard of Llama tokens (magic number {magic}, version {found}), "
            f"which is not supported: {REMEDY}"
        )
    if len(header) < HEADER_BYTES or magic != MAGIC:
        return f"is not a shard (its first {HEADER_BYTES} bytes are not a shard header)"
    versions = [*TOKEN_TYPES] if version is None else [version]
    if found not in versions:
        return f"is a shard of version {found}, not {' or '.join(map(str, versions))}"
    if not count:
        return "is empty"
    held, rest = divmod(size - HEADER_BYTES, TOKEN_TYPES[found].itemsize)
    if held != count or rest or tokens not in (None, count):
        in_meta = "" if tokens is None else f", meta.json {tokens}"
        return f"holds {held} tokens, its header says {count}{in_meta}"
    return None


def find_foreign(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split in a folder of foreign shards, sorted by name."""
    splits = {}
    for path in sorted(folder.glob("*.bin")):
        if match := SHARD_NAME.fullmatch(path.name):
            splits.setdefault(match["split"], []).append(path)
    return splits


@functools.cache  # so that the message is printed once per process and folder
def describe_foreign(folder: Path, all_tokens: bool = False) -> dict:
    """Return the content of meta.json for a folder of foreign shards, after checking them.

    Each file's "sha256" covers its name, size, header and first MB, which are quick to read.
    all_tokens: check that GPT-2 has all tokens, instead of those of the first MB.
    Raises InputError if the names are ambiguous, or if the files cannot be GPT-2 tokens.
    """
    found = find_foreign(folder)
    if not found:
        raise InputError(
            f"{folder} has no meta.json, and its .bin files have unknown names: rename them to "
            f"NAME_train_000001.bin or NAME_train.bin (with val likewise), or {REMEDY}"
        )
    for split, paths in found.items():
        names = [path.name for path in paths]
        if len(paths) > 1 and not all(path.stem[-1].isdigit() for path in paths):
            raise InputError(
                f"{folder} has shards of several data sets for {split} ({' '.join(names)}): "
                "move each data set to its own folder"
            )
    names = {path.name for paths in found.values() for path in paths}
    if (folder / "meta.pkl").exists() and not names.isdisjoint(HEADERLESS_NAMES):
        text = folder / "input.txt"
        remedy = f"use {text}" if text.exists() else "use its text"
        raise InputError(
            f"{folder} holds nanoGPT's character-level tokens (meta.pkl), not GPT-2's: "
            f"{REMEDY} ({remedy})"
        )
    problems = []
    for path in sum(found.values(), []):
        found_here = check_shard(path, version=1, headerless=path.name in HEADERLESS_NAMES)
        problems += found_here or _check_tokens(path, all_tokens)
    if problems:
        raise InputError(*problems)
    print(
        f"{folder} has no meta.json: its shards are read as GPT-2 tokens (vocabulary "
        f"{GPT2_VOCABULARY}) without verification; the data's hash in records covers names, "
        "headers, sizes and the first MB of each file"
    )
    return {
        "dataset": folder.resolve().name,
        "tokenizer": "gpt2",
        "vocab_size": GPT2_VOCABULARY,
        "complete": True,
        "splits": {name: {"shards": [*map(_describe_file, found[name])]} for name in found},
    }


def _describe_file(path: Path) -> dict:
    """Return the entry of meta.json for a file."""
    tokens = TokenFile(path)
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES + HASH_BYTES)
    digest = hashlib.sha256(f"{path.name} {path.stat().st_size} ".encode() + head)
    return {"file": path.name, "tokens": len(tokens), "sha256": digest.hexdigest()}


def _check_tokens(path: Path, all_tokens: bool) -> list[str]:
    """Return a line about the first token that GPT-2 does not have, or an empty list.

    A headerless file of int32 or int64 is reported as such: every second uint16 in it is 0.
    """
    tokens = TokenFile(path)
    head = tokens[: HASH_BYTES // 2]
    if not tokens.offset and len(head) >= MIN_WIDE_TOKENS and not head[1::2].any():
        return [
            f"{path} looks like int32 or int64, not uint16: write it with tokens.astype(np.uint16)"
        ]
    last = len(tokens) if all_tokens else len(head)
    for start in range(0, last, BLOCK_TOKENS):
        block = tokens[start : min(start + BLOCK_TOKENS, last)]
        if block.max(initial=0) >= GPT2_VOCABULARY:
            bad = int((block >= GPT2_VOCABULARY).argmax())
            return [
                f"{path} is not GPT-2 tokens (token {block[bad]} at offset {start + bad} is "
                f"outside the vocabulary of {GPT2_VOCABULARY}): {REMEDY}"
            ]
    return []
