"""What is a data set on disk? A folder of shards `{dataset}_{split}_{index:06d}.bin`: 256 int32 header words (magic 20240520,
version 1, token count, zeros), then uint16 tokens, every document opened by <|endoftext|>. llm.c and modded-nanogpt read the
same layout. Beside them `meta.json`: tokenizer, vocabulary, source, and for every split its documents, tokens and, shard by
shard, file, documents, tokens and SHA-256.

    train = Shards("data/stdlib", "train")      # checked, memory-mapped
    train.tokens[0][:10]
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

MAGIC, VERSION, HEADER_WORDS = 20240520, 1, 256
HEADER_BYTES = 4 * HEADER_WORDS
META = "meta.json"
SHARD_NAME = re.compile(r".+_(?P<split>[a-z]+)_(?P<index>\d+)\.bin")
GPT2_VOCABULARY = 50257
AUTO_VERIFY = 10**9  # bytes: a second or two


class ShardWriter:
    """Writes the shards of one split, each whole or not at all, and takes up an interrupted preparation where it stopped.

    documents must come in the same order every time. `start` is (document, token within it) of the first token that is
    not in a finished shard yet; what `add` is given before that is passed over, so the bytes are those of one go. A shard
    that meta.json knows and the disk has lost is made again, and all that follow it.
    then: the split of all shards after the first; none: the same. limit: the number of shards that are wanted; none: all.
    """

    def __init__(
        self,
        meta: "Meta",
        split: str,
        shard_tokens: int,
        then: str | None = None,
        limit: int | None = None,
    ):
        self.meta, self.splits, self.shard_tokens, self.limit = (
            meta,
            (split, then or split),
            shard_tokens,
            limit,
        )
        records = [meta.split(name) for name in dict.fromkeys(self.splits)]
        self.shards = [shard for record in records for shard in record["shards"]]
        lost = [not (meta.folder / shard["file"]).exists() for shard in self.shards]
        if any(lost):
            del self.shards[lost.index(True) :]
            meta.value["complete"] = False
            for record in records:
                record["shards"] = [shard for shard in record["shards"] if shard in self.shards]
                for total in ("documents", "tokens"):
                    record[total] = sum(shard[total] for shard in record["shards"])
        self.start = tuple(self.shards[-1]["next"]) if self.shards else (0, 0)
        self.marks = [shard["mark"] for shard in self.shards[-1:] if "mark" in shard]
        self.buffer = np.empty(shard_tokens, dtype="<u2")
        self.filled = self.opened = self.document = (
            0  # tokens in the buffer, documents that begin there, the latest one
        )

    @property
    def full(self) -> bool:
        return self.limit is not None and len(self.shards) >= self.limit

    def mark(self, document: int, state) -> None:
        """`state` (JSON) is all that the source needs to begin at `document`; the next start finds the latest in `marks`."""
        self.marks.append([document, state])

    def add(self, document: int, offset: int, tokens: np.ndarray) -> None:
        """The tokens of `document` (its number in the source) from its `offset`-th on."""
        if (document, offset + len(tokens)) <= self.start:
            return
        if document == self.start[0] and offset < self.start[1]:
            tokens, offset = tokens[self.start[1] - offset :], self.start[1]
        self.document = document
        self.opened += offset == 0
        while len(tokens) and not self.full:
            taken = tokens[: self.shard_tokens - self.filled]
            self.buffer[self.filled : self.filled + len(taken)] = taken
            self.filled += len(taken)
            tokens, offset = tokens[len(taken) :], offset + len(taken)
            if self.filled == self.shard_tokens:
                self._flush((document, offset))

    def close(self) -> None:
        """Writes what is left as the last shard."""
        if self.filled:
            self._flush((self.document + 1, 0))

    def _flush(self, following: tuple[int, int]) -> None:
        split = self.splits[bool(self.shards)]
        path = self.meta.folder / f"{self.meta.value['dataset']}_{split}_{len(self.shards):06d}.bin"
        header = np.zeros(HEADER_WORDS, dtype="<i4")
        header[:3] = MAGIC, VERSION, self.filled
        digest = hashlib.sha256()
        with atomic(path) as file:
            for content in (header, self.buffer[: self.filled]):
                digest.update(content)
                file.write(content)
        shard = {
            "file": path.name,
            "documents": self.opened,
            "tokens": self.filled,
            "sha256": digest.hexdigest(),
            "next": following,
        }
        behind = sum(document <= following[0] for document, _ in self.marks)
        if behind:
            self.marks = self.marks[
                behind - 1 :
            ]  # the latest of these may be that of the next shard too
            shard["mark"] = self.marks[0]
        self.shards.append(shard)
        self.meta.add(split, shard)
        self.meta.write()
        self.filled = self.opened = 0


class Meta:
    """meta.json of the data set in `folder`, while it is being prepared: what is done so far.

    Raises InputError where the folder holds other shards, or a data set prepared otherwise than `description` says.
    """

    def __init__(self, folder: str | Path, description: dict):
        self.folder = Path(folder)
        self.value = {**description, "complete": False, "splits": {}}
        if (self.folder / META).exists():
            found = read_json(self.folder / META, f"remove {folder} and prepare it again")
            differing = [key for key in description if found.get(key) != description[key]]
            if differing:
                raise InputError(
                    f"{folder} already holds a data set with another {', '.join(differing)}: "
                    "choose another --out_dir, or remove it"
                )
            self.value = found
        elif self.folder.is_dir() and any(self.folder.glob("*.bin")):
            raise InputError(f"{folder} holds shards but no {META}: choose another --out_dir")

    def write(self) -> None:
        write_json(self.folder / META, self.value)

    def add(self, split: str, shard: dict) -> None:
        """Enters a shard that is on the disk: {"file", "documents", "tokens", "sha256", ...}."""
        record = self.split(split)
        record["shards"] = sorted([*record["shards"], shard], key=lambda shard: shard["file"])
        for total in ("documents", "tokens"):
            record[total] += shard[total]

    def split(self, name: str) -> dict:
        return self.value["splits"].setdefault(name, {"documents": 0, "tokens": 0, "shards": []})

    def remove(self) -> None:
        """Takes back what was written, the folder too if it is empty then; the shards first, so that none is ever undescribed."""
        for split in self.value["splits"].values():
            for shard in split["shards"]:
                (self.folder / shard["file"]).unlink(missing_ok=True)
        (self.folder / META).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


class Shards:
    """The shards of one split, memory-mapped; headers and lengths are checked here, before anything is computed.

    A folder of shards without meta.json is one that others tokenised with GPT-2's vocabulary, as llm.c and modded-nanogpt do.
    meta: meta.json's content; total: tokens; sha256: one hash over those of all shards, the data's name in records.
    verify: "always", "never" or "auto", whether the bytes are hashed; auto: where they are at most AUTO_VERIFY together.
    Raises InputError for a missing, empty, truncated or mislabelled shard, and for a hashed one that was changed.
    """

    def __init__(self, folder: str | Path, split: str, verify: str = "auto"):
        self.folder, self.split = Path(folder), split
        if not self.folder.is_dir():
            raise InputError(
                f"data folder {folder} does not exist: make it by prepare_text.py, prepare_fineweb.py or prepare_wikitext.py"
            )
        bare = not (self.folder / META).exists() and any(
            map(SHARD_NAME.fullmatch, os.listdir(folder))
        )
        if bare and verify == "always":
            raise InputError(
                f"{folder} has no {META}, so nothing tells what its shards must hold: read them unverified, or have "
                "prepare_fineweb.py --pretokenized fetch them"
            )
        self.meta = (
            _bare_meta(self.folder)
            if bare
            else read_json(self.folder / META, f"prepare {folder} again")
        )
        try:
            complete, splits = self.meta["complete"], self.meta["splits"]
            self.vocab_size, self.tokenizer = (
                int(self.meta["vocab_size"]),
                str(self.meta["tokenizer"]),
            )
            shards = splits[split]["shards"] if split in splits else []
            self.sha256 = hashlib.sha256(
                "".join(shard["sha256"] for shard in shards).encode()
            ).hexdigest()
            sizes = [
                (self.folder / shard["file"], int(shard["tokens"]), shard["sha256"])
                for shard in shards
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.folder / META} is damaged ({error!r}): prepare {folder} again"
            ) from None
        if not complete:
            raise InputError(
                f"the preparation of {folder} was interrupted: run it again, it goes on where it stopped"
            )
        if not sizes:
            raise InputError(f"{folder} has no split '{split}': choose one of {' '.join(splits)}")
        hashed = (
            verify == "always"
            or verify == "auto"
            and 2 * sum(tokens for _, tokens, _ in sizes) <= AUTO_VERIFY
        )
        problems = [
            problem
            for path, tokens, sha256 in sizes
            for problem in (
                shard_problems(path)
                if bare
                else shard_problems(path, tokens, sha256 if hashed else None)
            )
        ]
        if problems:
            raise InputError(*problems)
        self.paths = [path for path, _, _ in sizes]
        self.tokens = [tokens_of(path) for path in self.paths]
        self.total = sum(map(len, self.tokens))

    @property
    def identity(self) -> dict[str, str]:
        """What tells this text from another in a record."""
        return {
            "dataset": self.meta["dataset"],
            "split": self.split,
            "tokenizer": self.tokenizer,
            "sha256": self.sha256,
        }

    @property
    def padded_vocab_size(self) -> int:
        """The vocabulary padded to a multiple of 64, as matrix units like it: 50257 -> 50304, 257 -> 320."""
        return -(-self.vocab_size // 64) * 64


@functools.cache  # once per process and folder: it says so
def _bare_meta(folder: Path) -> dict:
    """What meta.json would say of the shards in a folder that has none; "sha256" covers only what is quick to read."""
    splits = {}
    for path in sorted(folder.glob("*.bin")):
        if named := SHARD_NAME.fullmatch(path.name):
            try:
                with open(path, "rb") as file:
                    head = file.read(HEADER_BYTES + (1 << 20))
                name = hashlib.sha256(
                    f"{path.name} {path.stat().st_size} ".encode() + head
                ).hexdigest()
            except OSError as error:
                raise InputError(
                    f"{path} cannot be read ({error.strerror}): remove it, or make it readable"
                ) from None
            tokens = int.from_bytes(head[8:12], "little")
            splits.setdefault(named["split"], {"shards": []})["shards"].append(
                {"file": path.name, "tokens": tokens, "sha256": name}
            )
    print(
        f"{folder} has no {META}: its shards are taken for GPT-2 tokens (vocabulary {GPT2_VOCABULARY}), unverified; the data's "
        "hash in records covers names, headers, sizes and the first MB of each file"
    )
    return {
        "dataset": folder.resolve().name,
        "tokenizer": "gpt2",
        "vocab_size": GPT2_VOCABULARY,
        "complete": True,
        "splits": splits,
    }


def tokens_of(path: Path) -> np.ndarray:
    """A shard's tokens, memory-mapped: (n,) uint16."""
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES)


def shard_problems(path: Path, tokens: int | None = None, sha256: str | None = None) -> list[str]:
    """What is wrong with a shard, a line each; its number of tokens and its bytes are compared where meta.json says them."""
    mend = "remove it and run the preparation again"
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            header = np.frombuffer(file.read(HEADER_BYTES), dtype="u1")
            digest = hashlib.sha256(header)
            header = header[: len(header) // 4 * 4].view("<i4")
            if len(header) < HEADER_WORDS or header[0] != MAGIC:
                return [
                    f"{path} is no shard (its first {HEADER_BYTES} bytes are no header of ours): {mend}"
                ]
            if header[1] != VERSION:
                return [f"{path} is a shard of version {header[1]}, not {VERSION}: {mend}"]
            if not header[2]:
                return [f"{path} is empty: {mend}"]
            if size != HEADER_BYTES + 2 * int(header[2]) or tokens not in (None, header[2]):
                told = "" if tokens is None else f", {META} {tokens}"
                return [
                    f"{path} holds {max(0, size - HEADER_BYTES) // 2} tokens, its header says {header[2]}{told}: {mend}"
                ]
            if sha256:
                while block := file.read(1 << 24):
                    digest.update(block)
                if digest.hexdigest() != sha256:
                    return [
                        f"{path} has been changed since it was written (its SHA-256 is not that in {META}): {mend}"
                    ]
    except FileNotFoundError:
        return [f"{path} does not exist: run the preparation again, it makes what is missing"]
    except OSError as error:
        return [f"{path} cannot be read ({error.strerror}): {mend}"]
    return []


def verify(folder: str | Path) -> None:
    """Compares every shard in `folder` with its hash; says that all is well, or raises InputError with a line for each that is not."""
    meta = read_json(Path(folder) / META, f"--verify needs its hashes: prepare {folder} first")
    if not isinstance(meta, dict) or not isinstance(meta.get("splits"), dict):
        raise InputError(f"{Path(folder) / META} is damaged: prepare {folder} again")
    problems, shards, tokens = [], 0, 0
    for split in meta["splits"] or ["train"]:
        try:
            checked = Shards(folder, split, "always")
            shards, tokens = shards + len(checked.paths), tokens + checked.total
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*dict.fromkeys(problems))
    print(f"{folder}: {shards} shards, {tokens:,} tokens, all as they were written")
