"""Token shards: their writer, which resumes, and their verification.

    meta = Meta("data/mine", {"dataset": "mine", "tokenizer": "bytes", "vocab_size": 257})
    writer = ShardWriter(meta, "train", shard_tokens=10**8)
    writer.add(0, 0, tokens)  # those of document 0, from its first one on
    writer.close()

A data set is a folder with one file `{dataset}_{split}_{index:06d}.bin` per shard and `meta.json`;
docs/data.md describes their format. data_loader.py reads them. Every document starts with
<|endoftext|>.
"""

import contextlib
import hashlib
import itertools
from collections import deque
from pathlib import Path

from runtime.files import atomic, write_json
from runtime.validation import Name, check

import numpy as np

from data_loader import HEADER_WORDS, MAGIC, META, TOKEN_TYPES, Shards, read_meta
from errors import InputError


class ShardWriter:
    """Write the shards of a split, each atomically; resume a preparation.

    split: of the first shard. later_split: of the others; None: `split`.

    Documents must come in the same order on every run. `start` is (document, offset in it) of the
    first token that is not in a finished shard; `add` skips earlier ones. Shards from a missing one
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
        self.version = 1 if meta.content["vocab_size"] <= 1 << 16 else 2
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
        header = np.zeros(HEADER_WORDS, "<i4")
        header[:3] = MAGIC, self.version, self.buffered
        digest = hashlib.sha256()
        with atomic(path) as file:
            for part in (header.data, self.buffer[: self.buffered].data):
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

    description: dataset, tokenizer, vocab_size and source. files: the tokenizer's, content by name.
    Raises InputError if the folder holds other shards, or a data set with another description.
    """

    def __init__(
        self, folder: str | Path, description: dict, files: dict[str, bytes] | None = None
    ):
        self.folder = Path(folder)
        self.files = files or {}
        self.content = {**description, "complete": False, "splits": {}}
        check(description["dataset"], Name, f"the name of {folder}", "pass another --out_dir")
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
        """List a shard that is on disk, once; entry: "file", "documents", ..."""
        entries = {shard["file"]: shard for shard in [*self.shards_of(split), entry]}
        self.list_shards(split, [entries[name] for name in sorted(entries)])

    def listed_files(self) -> list[str]:
        """Return the names of the shards of all splits."""
        splits = self.content["splits"]
        return [entry["file"] for split in splits for entry in self.shards_of(split)]

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
        for name in [*self.listed_files(), META, *self.files]:
            (self.folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def verify(folder: str | Path) -> None:
    """Check all hashes in a folder; raise InputError with a line per problem."""
    meta = read_meta(folder, f"--verify needs its hashes: prepare {folder} first")
    checked, problems = [], []
    for split in meta["splits"] or ["train"]:
        try:
            checked.append(Shards(folder, split, "always"))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*dict.fromkeys(problems))
    count = sum(len(split.tokens) for split in checked)
    tokens = sum(split.total for split in checked)
    print(f"{folder}: {count} shards, {tokens:,} tokens, all match their hashes")
