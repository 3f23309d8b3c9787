"""Format of a shard file: its header, its tokens, and checks of both.

A shard has 256 int32 header words and then tokens, all little-endian. The header words are the
magic number 20240520, the version, the number of tokens, and zeros. The tokens are uint16 in
version 1 and uint32 in version 2, which is used for vocabularies above 65,536. llm.c and
modded-nanogpt read version 1 and refuse other versions.

Files without a header are nanoGPT's: uint16 tokens only. The magic number read as two uint16
tokens is 55432 and 308; GPT-2 has no token 55432, so its tokens are never taken for a header.
"""

import hashlib
import os
import weakref
from pathlib import Path

import numpy as np

from errors import InputError

MAGIC = 20240520
LLAMA_MAGIC = 20240801  # llm.c's shards of Llama tokens
TOKEN_TYPES = {1: np.dtype("<u2"), 2: np.dtype("<u4")}  # by version
HEADER_WORDS = 256
HEADER_BYTES = 4 * HEADER_WORDS
READ_BYTES = 1 << 24  # read at a time to hash or copy a shard


def version_for(vocab_size: int) -> int:
    """Return the version of shards that hold the tokens of a vocabulary of this size."""
    return 1 if vocab_size <= 1 << 16 else 2


def make_header(version: int, tokens: int) -> np.ndarray:
    """Return the header words of a shard, (256,) int32."""
    header = np.zeros(HEADER_WORDS, dtype="<i4")
    header[:3] = MAGIC, version, tokens
    return header


def has_header(path: Path) -> bool:
    """Return whether a file starts with a magic number of llm.c, including that of Llama tokens."""
    with open(path, "rb") as file:
        return _starts_with_magic(file.read(4))


def _starts_with_magic(content: bytes) -> bool:
    return int.from_bytes(content[:4], "little") in (MAGIC, LLAMA_MAGIC)


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
        size = path.stat().st_size
        with open(path, "rb") as file:
            header = file.read(HEADER_BYTES)
            if headerless and not _starts_with_magic(header):
                problem = _check_headerless(size)
            else:
                problem = _check_header(header, size, tokens, version)
            if not problem and sha256:
                problem = _check_hash(header, file, sha256)
    except FileNotFoundError:
        return [f"{path} does not exist: run the preparation again to write missing shards"]
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    if problem and ": " not in problem:
        problem += ": remove it and run the preparation again"
    return [f"{path} {problem}"] if problem else []


def _check_headerless(size: int) -> str | None:
    """Return what is wrong with a file of `size` bytes of uint16 tokens, or None."""
    if not size:
        return "is empty: remove it"
    if size % 2:
        return f"has {size} bytes, an odd number, so it does not hold uint16 tokens: remove it"
    return None


def _check_header(
    header_bytes: bytes, size: int, tokens: int | None, version: int | None
) -> str | None:
    """Return what is wrong with the header of a shard of `size` bytes, or None.

    tokens, version: those of meta.json; None: unknown.
    """
    words = header_bytes[: len(header_bytes) // 4 * 4]
    header = np.frombuffer(words, dtype="<i4")
    if len(header) >= 2 and header[0] == LLAMA_MAGIC:
        return (
            f"is llm.c's shard of Llama tokens (magic number {LLAMA_MAGIC}, version {header[1]}), "
            "which is not supported: prepare the text with prepare_text.py"
        )
    if len(header) < HEADER_WORDS or header[0] != MAGIC:
        return f"is not a shard (its first {HEADER_BYTES} bytes are not a shard header)"
    expected = [*TOKEN_TYPES] if version is None else [version]
    if header[1] not in expected:
        return f"is a shard of version {header[1]}, not {' or '.join(map(str, expected))}"
    if not header[2]:
        return "is empty"
    item = TOKEN_TYPES[int(header[1])].itemsize
    if size != HEADER_BYTES + item * int(header[2]) or tokens not in (None, header[2]):
        in_meta = "" if tokens is None else f", meta.json {tokens}"
        held = max(0, size - HEADER_BYTES) // item
        return f"holds {held} tokens, its header says {header[2]}{in_meta}"
    return None


def _check_hash(header: bytes, file, sha256: str) -> str | None:
    """Return what is wrong if the header and the rest of a shard's file differ from their hash."""
    digest = hashlib.sha256(header)
    while block := file.read(READ_BYTES):
        digest.update(block)
    if digest.hexdigest() == sha256:
        return None
    return "has been changed since it was written (its SHA-256 differs from meta.json)"
