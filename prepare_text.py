"""Turns any text into shards of tokens (shards.py says what they look like).

    python prepare_text.py                                          # the embedded corpus -> data/stdlib
    python prepare_text.py my_book.txt --out_dir data/book          # plain text: a document per file
    python prepare_text.py corpus/*.jsonl --out_dir data/corpus --tokenizer gpt2
    python prepare_text.py folder/ --val held_out/ --out_dir data/mine
    python prepare_text.py --verify --out_dir data/mine             # are the shards what was written?

Sources are files or folders of plain text (UTF-8), .jsonl or .parquet (one document a row, also compressed). The embedded
corpus is the Python standard library's own source code, without its tests: real text, long files, on every machine. Every
20th document is held out for validation, or the last 20th of each file where there are fewer, or what --val names.
Interrupted, the same command goes on where it stopped and writes the same bytes.
"""

import codecs
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from errors import InputError
from runtime import cli
from text_data import shards, tokenization


@dataclass
class Config:
    """Settings of a preparation."""

    sources: list[str] = field(default_factory=list)
    """files and folders of text, jsonl or parquet; none: the embedded corpus"""
    val: str | None = None
    """file or folder to hold out for validation, instead of a part of the sources"""
    out_dir: str = "data/stdlib"
    """folder of the shards"""
    tokenizer: Literal["bytes", "gpt2"] = "bytes"
    """bytes: 256 tokens and <|endoftext|>; gpt2: GPT-2's 50,257"""
    text_column: str = "text"
    """column of jsonl and parquet files that holds the text"""
    val_every: int = 20
    """hold out every n-th document"""
    shard_tokens: int = 100_000_000
    """tokens in a shard"""
    verify: bool = False
    """compare the shards in out_dir with their hashes, and do nothing else"""


def main(argv=None):
    config = cli.parse(
        Config,
        argv,
        __doc__,
        positional=("sources", "files and folders; none: the embedded corpus"),
    )
    if config.verify:
        return shards.verify(config.out_dir)
    if config.val_every < 2:
        raise InputError(f"val_every is {config.val_every}: hold out every 2nd document at most")
    train_files = (
        find(config.sources, config.out_dir) if config.sources else tokenization.standard_library()
    )
    val_files = find([config.val], config.out_dir) if config.val else []
    held_out = {path.resolve() for path in val_files}
    train_files = [path for path in train_files if path.resolve() not in held_out]
    encoding, meta = tokenization.begin(
        config.out_dir,
        config.tokenizer,
        config.shard_tokens,
        {
            "files": tokenization.fingerprint(train_files),
            "val_files": tokenization.fingerprint(val_files),
            "text_column": config.text_column,
            "val_every": config.val_every,
        },
    )
    writers = {
        split: shards.ShardWriter(meta, split, config.shard_tokens) for split in ("train", "val")
    }
    documents = read(train_files, val_files, config, writers)
    tokenization.write(
        meta,
        [*writers.values()],
        documents,
        encoding,
        mend="give more sources, name some as --val, or lower --val_every",
        total=None if tables(train_files + val_files) else len(train_files + val_files),
    )


def find(sources: list[str], out_dir: str) -> list[Path]:
    def readable(path):
        return tokenization.table_kind(path) or is_text(path)

    found = tokenization.find(sources, readable, "text, jsonl or parquet", besides=Path(out_dir))
    problems = [
        f"{path} is no UTF-8 text: unpack or convert it, or leave it out"
        for path in found
        if not readable(path)
    ]
    if problems:
        raise InputError(*problems)
    return found


def tables(files: list[Path]) -> list[Path]:
    return [path for path in files if tokenization.table_kind(path)]


def is_text(path: Path) -> bool:
    with open(path, "rb") as file:
        head = file.read(8192)
    try:
        codecs.getincrementaldecoder("utf-8")().decode(
            head, final=len(head) < 8192
        )  # otherwise it may end within a character
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


def read(train_files, val_files, config, writers):
    """(writer, number, pieces of text) of every document that is not in a finished shard, in an order that never changes."""
    skip, number = min(writer.start[0] for writer in writers.values()), 0
    for files, split in ((train_files, "train"), (val_files, "val")):
        hold_out = split == "train" and not val_files
        tails = (
            hold_out and len(files) < config.val_every and not tables(files)
        )  # too few documents: hold out their ends
        for path in files:
            if tokenization.table_kind(path):
                documents = (
                    tokenization.pieces(text)
                    for _, text in tokenization.rows(
                        str(path), config.text_column, tokenization.local([path])
                    )
                )
            elif tails:
                cut, end = line_start(path, 1 - 1 / config.val_every), path.stat().st_size
                documents = text_document(path, 0, cut), text_document(path, cut, end)
            else:
                documents = [text_document(path, 0, path.stat().st_size)]
            for part, pieces in enumerate(documents):
                if number >= skip:
                    held_out = (
                        part == 1
                        if tails
                        else hold_out and number % config.val_every == config.val_every - 1
                    )
                    yield writers["val" if held_out else split], number, pieces
                number += 1


def line_start(path: Path, share: float) -> int:
    """Where the first line begins, in bytes, after this share of a file."""
    with open(path, "rb") as file:
        file.seek(int(share * path.stat().st_size))
        file.readline()
        return file.tell()


def text_document(path: Path, start: int, stop: int):
    """The text between two bytes of a file in pieces that end where a line does (or, in endless lines, a character)."""
    with open(path, "rb") as file:
        file.seek(start)
        rest = b""
        while block := file.read(min(tokenization.PIECE, stop - file.tell())):
            block = rest + block
            cut = len(block) if file.tell() == stop else block.rfind(b"\n") + 1 or len(block) - 1
            while (
                cut < len(block) and block[cut] & 0xC0 == 0x80
            ):  # not in the middle of a character
                cut -= 1
            rest = block[cut:]
            try:
                yield block[:cut].decode()
            except UnicodeDecodeError as error:
                place = file.tell() - len(block) + error.start
                raise InputError(
                    f"{path} is no UTF-8 text at byte {place}: convert it, or leave it out"
                ) from None


if __name__ == "__main__":
    cli.run(main)
