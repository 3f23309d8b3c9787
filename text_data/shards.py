"""Token shards: the format of a prepared data set, and its writer, reader and verification.

    train = Shards("data/stdlib", "train")  # checked and memory-mapped
    train.tokens[0][:10]  # uint16

A data set is a folder with one file `{dataset}_{split}_{index:06d}.bin` per shard and `meta.json`.

Shard: 256 int32 header words (magic number 20240520, version 1, number of tokens, zeros), then
uint16 tokens, all little-endian. Every document starts with <|endoftext|>. llm.c and
modded-nanogpt read the same format.

meta.json: dataset, tokenizer, vocab_size, source (what the data was prepared from), complete, and
splits. Each split has its number of documents and tokens, and per shard: file, documents, tokens,
sha256, next (the document and the token in it that follow the shard), and for streamed sources
mark (a position in the source from which the next shard can be read).
"""

import contextlib
import functools
import hashlib
import os
import re
from pathlib import Path

import numpy as np

from errors import InputError
from runtime.files import atomic, read_json, write_json

MAGIC = 20240520
VERSION = 1
HEADER_WORDS = 256
HEADER_BYTES = 4 * HEADER_WORDS
META = "meta.json"
SHARD_NAME = re.compile(r".+_(?P<split>[a-z]+)_(?P<index>\d+)\.bin")
GPT2_VOCABULARY = 50257
AUTO_VERIFY_BYTES = 10**9  # hashing this much takes a second or two
HASH_BYTES_WITHOUT_META = 1 << 20  # hashed of each shard when there is no meta.json
READ_BYTES = 1 << 24  # read at a time to hash or copy a shard


class ShardWriter:
    """Write the shards of a split, each atomically, and resume an interrupted preparation.

    meta: the `Meta` of the data set.
    split: the split of the first shard.
    shard_tokens: tokens per shard; the last one may have fewer.
    later_split: the split of all later shards; None: `split`.
    max_shards: stop after this many shards; None: no limit.

    Documents must come in the same order on every run. `start` is (document, offset of a token in
    it) of the first token that is not in a finished shard. `add` skips all tokens before it, so a
    resumed run writes the same bytes as an uninterrupted one. If a shard that meta.json lists is
    missing on disk, that shard and all later ones are written again.
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
        # [document, state] pairs: the source can be read from `document` on, given `state`.
        self.source_states = [shard["mark"] for shard in self.shards[-1:] if "mark" in shard]
        self.buffer = np.empty(shard_tokens, dtype="<u2")
        self.buffered = 0  # tokens in the buffer
        self.documents_started = 0  # documents that start in the buffer
        self.document = 0  # the latest document

    def _finished_shards(self) -> list[dict]:
        """Return the entries before the first missing file; remove the others from meta."""
        records = [self.meta.split_record(name) for name in dict.fromkeys(self.splits)]
        entries = [entry for record in records for entry in record["shards"]]
        kept = []
        for entry in entries:
            if not (self.meta.folder / entry["file"]).exists():
                break
            kept.append(entry)
        if len(kept) < len(entries):
            self.meta.content["complete"] = False
            for record in records:
                record["shards"] = [entry for entry in record["shards"] if entry in kept]
                for total in ("documents", "tokens"):
                    record[total] = sum(entry[total] for entry in record["shards"])
        return kept

    @property
    def full(self) -> bool:
        return self.max_shards is not None and len(self.shards) >= self.max_shards

    def save_source_state(self, document: int, state) -> None:
        """Remember `state` (JSON), from which the source can be read starting at `document`.

        The next shard stores the latest pair it can use, and a resumed writer has it in
        `source_states`.
        """
        self.source_states.append([document, state])

    def add(self, document: int, offset: int, tokens: np.ndarray) -> None:
        """Append the tokens of a document, given its number, from its token `offset` on."""
        if (document, offset + len(tokens)) <= self.start:
            return
        if document == self.start[0] and offset < self.start[1]:
            tokens = tokens[self.start[1] - offset :]
            offset = self.start[1]
        self.document = document
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
        """Write the buffer as a shard; next_token: (document, offset) of the first token after."""
        split = self.splits[1] if self.shards else self.splits[0]
        file_name = f"{self.meta.content['dataset']}_{split}_{len(self.shards):06d}.bin"
        path = self.meta.folder / file_name
        header = np.zeros(HEADER_WORDS, dtype="<i4")
        header[:3] = MAGIC, VERSION, self.buffered
        digest = hashlib.sha256()
        with atomic(path) as file:
            for part in (header, self.buffer[: self.buffered]):
                digest.update(part)
                file.write(part)
        entry = {
            "file": file_name,
            "documents": self.documents_started,
            "tokens": self.buffered,
            "sha256": digest.hexdigest(),
            "next": next_token,
        }
        usable = sum(document <= next_token[0] for document, _ in self.source_states)
        if usable:
            # Keep the latest usable state: it may also be the latest one for the next shard.
            self.source_states = self.source_states[usable - 1 :]
            entry["mark"] = self.source_states[0]
        self.shards.append(entry)
        self.meta.add_shard(split, entry)
        self.meta.write()
        self.buffered = 0
        self.documents_started = 0


class Meta:
    """The meta.json of a data set during its preparation; `content` is what it holds.

    description: dataset, tokenizer, vocab_size and source.
    Raises InputError if the folder holds other shards, or a data set with another description.
    """

    def __init__(self, folder: str | Path, description: dict):
        self.folder = Path(folder)
        self.content = {**description, "complete": False, "splits": {}}
        if (self.folder / META).exists():
            existing = read_json(self.folder / META, f"remove {folder} and prepare it again")
            differing = [key for key in description if existing.get(key) != description[key]]
            if differing:
                raise InputError(
                    f"{folder} already holds a data set with another {', '.join(differing)}: "
                    "pass another --out_dir, or remove it"
                )
            self.content = existing
        elif self.folder.is_dir() and any(self.folder.glob("*.bin")):
            raise InputError(f"{folder} holds shards but no {META}: pass another --out_dir")

    def write(self) -> None:
        write_json(self.folder / META, self.content)

    def add_shard(self, split: str, entry: dict) -> None:
        """List a shard that is on disk: {"file", "documents", "tokens", "sha256", ...}."""
        record = self.split_record(split)
        record["shards"] = sorted([*record["shards"], entry], key=lambda shard: shard["file"])
        for total in ("documents", "tokens"):
            record[total] += entry[total]

    def split_record(self, name: str) -> dict:
        return self.content["splits"].setdefault(name, {"documents": 0, "tokens": 0, "shards": []})

    def remove(self) -> None:
        """Delete the shards, meta.json, and the folder if it is empty then.

        meta.json is deleted after the shards, so that no shard is left without a description.
        """
        for record in self.content["splits"].values():
            for entry in record["shards"]:
                (self.folder / entry["file"]).unlink(missing_ok=True)
        (self.folder / META).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class Shards:
    """The shards of one split, memory-mapped after their headers and sizes are checked.

    verify: "always" compares the shards with their SHA-256 in meta.json, "never" does not, and
    "auto" does if all shards together have at most AUTO_VERIFY_BYTES.

    A folder of shards without meta.json is read as tokens of GPT-2's vocabulary, which is what
    llm.c and modded-nanogpt write.

    Attributes: tokens (one uint16 array per shard), paths, total (number of tokens), vocab_size,
    tokenizer, meta (the content of meta.json), sha256 (hash over the shards' hashes; it
    identifies the data in records).

    Raises InputError for a missing, empty, truncated or foreign shard, and for a hash mismatch.
    """

    def __init__(self, folder: str | Path, split: str, verify: str = "auto"):
        self.folder = Path(folder)
        self.split = split
        self.meta, without_meta = _read_meta(folder, verify)
        try:
            complete = self.meta["complete"]
            splits = self.meta["splits"]
            self.vocab_size = int(self.meta["vocab_size"])
            self.tokenizer = str(self.meta["tokenizer"])
            entries = splits[split]["shards"] if split in splits else []
            hashes = [entry["sha256"] for entry in entries]
            self.sha256 = hashlib.sha256("".join(hashes).encode()).hexdigest()
            self.paths = [self.folder / entry["file"] for entry in entries]
            counts = [int(entry["tokens"]) for entry in entries]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.folder / META} is corrupt ({error!r}): prepare {folder} again"
            ) from None
        if not complete:
            raise InputError(
                f"the preparation of {folder} was interrupted: run the same command to resume it"
            )
        if not entries:
            raise InputError(f"{folder} has no split '{split}': choose one of {' '.join(splits)}")
        if without_meta:
            _check_shards(self.paths)
        else:
            small = 2 * sum(counts) <= AUTO_VERIFY_BYTES
            compare_hashes = verify == "always" or (verify == "auto" and small)
            _check_shards(self.paths, counts, hashes if compare_hashes else None)
        self.tokens = [map_tokens(path) for path in self.paths]
        self.total = sum(map(len, self.tokens))

    @property
    def identity(self) -> dict[str, str]:
        """What identifies this text in a record."""
        return {
            "dataset": self.meta["dataset"],
            "split": self.split,
            "tokenizer": self.tokenizer,
            "sha256": self.sha256,
        }

    @property
    def padded_vocab_size(self) -> int:
        """The vocabulary size rounded up to a multiple of 64, for tensor cores: 257 -> 320."""
        return -(-self.vocab_size // 64) * 64


def _read_meta(folder: str | Path, verify: str) -> tuple[dict, bool]:
    """Return the content of a data set's meta.json, and whether that file is missing.

    Without the file, the content describes the shards in the folder as GPT-2 tokens.
    Raises InputError if the folder does not exist, or if there is no meta.json to verify with.
    """
    folder_path = Path(folder)
    if not folder_path.is_dir():
        raise InputError(
            f"data folder {folder} does not exist: create it with prepare_text.py, "
            "prepare_fineweb.py or prepare_wikitext.py"
        )
    has_meta = (folder_path / META).exists()
    without_meta = not has_meta and any(map(SHARD_NAME.fullmatch, os.listdir(folder)))
    if not without_meta:
        return read_json(folder_path / META, f"prepare {folder} again"), False
    if verify == "always":
        raise InputError(
            f"{folder} has no {META} with hashes to compare its shards with: use the shards "
            "without verification, or fetch them with prepare_fineweb.py --pretokenized"
        )
    return _describe_without_meta(folder_path), True


@functools.cache  # so that the message is printed once per process and folder
def _describe_without_meta(folder: Path) -> dict:
    """Return the content of meta.json for a folder of GPT-2 shards without one.

    Each shard's "sha256" covers its name, size, header and first MB, which are quick to read.
    """
    splits = {}
    for path in sorted(folder.glob("*.bin")):
        match = SHARD_NAME.fullmatch(path.name)
        if not match:
            continue
        try:
            name_and_size = f"{path.name} {path.stat().st_size} ".encode()
            with open(path, "rb") as file:
                head = file.read(HEADER_BYTES + HASH_BYTES_WITHOUT_META)
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror}): remove it, or make it readable"
            ) from None
        entry = {
            "file": path.name,
            "tokens": int.from_bytes(head[8:12], "little"),
            "sha256": hashlib.sha256(name_and_size + head).hexdigest(),
        }
        splits.setdefault(match["split"], {"shards": []})["shards"].append(entry)
    print(
        f"{folder} has no {META}: its shards are read as GPT-2 tokens (vocabulary "
        f"{GPT2_VOCABULARY}) without verification; the data's hash in records covers names, "
        "headers, sizes and the first MB of each file"
    )
    return {
        "dataset": folder.resolve().name,
        "tokenizer": "gpt2",
        "vocab_size": GPT2_VOCABULARY,
        "complete": True,
        "splits": splits,
    }


def map_tokens(path: Path) -> np.ndarray:
    """Return a shard's tokens, memory-mapped: (n,) uint16."""
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES)


def _check_shards(
    paths: list[Path], counts: list[int] | None = None, hashes: list[str] | None = None
) -> None:
    """Raise InputError with one line per problem of the shards.

    counts, hashes: tokens and SHA-256 per shard; None: not compared.
    """
    counts = counts or [None] * len(paths)
    hashes = hashes or [None] * len(paths)
    problems = []
    for path, tokens, sha256 in zip(paths, counts, hashes, strict=True):
        problems += check_shard(path, tokens, sha256)
    if problems:
        raise InputError(*problems)


def check_shard(path: Path, tokens: int | None = None, sha256: str | None = None) -> list[str]:
    """Return the problem of a shard in a list of one line, or an empty list.

    tokens, sha256: the values of meta.json, compared with the file's unless None.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            header = file.read(HEADER_BYTES)
            problem = _check_header(header, size, tokens)
            if not problem and sha256:
                problem = _check_hash(header, file, sha256)
    except FileNotFoundError:
        return [f"{path} does not exist: run the preparation again to write missing shards"]
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    return [f"{path} {problem}: remove it and run the preparation again"] if problem else []


def _check_header(header_bytes: bytes, size: int, tokens: int | None) -> str | None:
    """Return what is wrong with the header of a shard of `size` bytes, or None.

    tokens: the number of tokens in meta.json; None: unknown.
    """
    words = header_bytes[: len(header_bytes) // 4 * 4]
    header = np.frombuffer(words, dtype="<i4")
    if len(header) < HEADER_WORDS or header[0] != MAGIC:
        return f"is not a shard (its first {HEADER_BYTES} bytes are not a shard header)"
    if header[1] != VERSION:
        return f"is a shard of version {header[1]}, not {VERSION}"
    if not header[2]:
        return "is empty"
    if size != HEADER_BYTES + 2 * int(header[2]) or tokens not in (None, header[2]):
        in_meta = "" if tokens is None else f", {META} {tokens}"
        held = max(0, size - HEADER_BYTES) // 2
        return f"holds {held} tokens, its header says {header[2]}{in_meta}"
    return None


def _check_hash(header: bytes, file, sha256: str) -> str | None:
    """Return what is wrong if the header and the rest of a shard's file differ from their hash."""
    digest = hashlib.sha256(header)
    while block := file.read(READ_BYTES):
        digest.update(block)
    if digest.hexdigest() == sha256:
        return None
    return f"has been changed since it was written (its SHA-256 differs from {META})"


def verify(folder: str | Path) -> None:
    """Compare every shard in `folder` with its hash and print that all match.

    Raises InputError with one line per problem.
    """
    meta = read_json(Path(folder) / META, f"--verify needs its hashes: prepare {folder} first")
    if not isinstance(meta, dict) or not isinstance(meta.get("splits"), dict):
        raise InputError(f"{Path(folder) / META} is corrupt: prepare {folder} again")
    problems = []
    shards = 0
    tokens = 0
    for split in meta["splits"] or ["train"]:
        try:
            checked = Shards(folder, split, "always")
            shards += len(checked.paths)
            tokens += checked.total
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*dict.fromkeys(problems))
    print(f"{folder}: {shards} shards, {tokens:,} tokens, all match their hashes")
