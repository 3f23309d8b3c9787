"""Turns any text into shards of tokens (data.py says what they look like).

    python prepare_text.py                                          # the embedded corpus -> data/stdlib
    python prepare_text.py my_book.txt --out_dir data/book          # plain text: a document per file
    python prepare_text.py corpus/*.jsonl --out_dir data/corpus --tokenizer gpt2
    python prepare_text.py folder/ --val held_out/ --out_dir data/mine

Sources are files or folders of plain text (UTF-8), .jsonl or .parquet (one document a row, also compressed). The embedded
corpus is the Python standard library's own source code, without its tests: real text, long files, on every machine. Every
20th document is held out for validation, or the last 20th of each file where there are fewer, or what --val names.
Interrupted, the same command goes on where it stopped and writes the same bytes.
"""

import hashlib
import os
import sysconfig
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from tqdm import tqdm

import cli
import data
from errors import InputError

PIECE = 1 << 20  # bytes of text tokenised at a time: bounds memory, and keeps tiktoken's regex fast on endless lines
TABLES = {".jsonl": "json", ".parquet": "parquet"}  # suffix -> the builder of `datasets` that reads it


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


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("sources", "files and folders; none: the embedded corpus"))
    if config.val_every < 2:
        raise InputError(f"val_every is {config.val_every}: hold out every 2nd document at most")
    if config.shard_tokens < 1:
        raise InputError(f"shard_tokens is {config.shard_tokens}: it must be at least 1")
    train_files = find(config.sources) if config.sources else standard_library()
    val_files = find([config.val]) if config.val else []
    encoding = data.tokenizer(config.tokenizer)
    meta = data.Meta(config.out_dir, {
        "dataset": Path(config.out_dir).resolve().name, "tokenizer": encoding.name, "vocab_size": encoding.n_vocab,
        "source": {"files": fingerprint(train_files), "val_files": fingerprint(val_files), "text_column": config.text_column,
                   "val_every": config.val_every, "shard_tokens": config.shard_tokens}})
    if meta.value["complete"]:
        print(f"{config.out_dir} is prepared already: {summary(meta)}")
        return
    meta.write()
    writers = {split: data.ShardWriter(meta, split, config.shard_tokens) for split in ("train", "val")}
    documents = read(train_files, val_files, config, skip=min(writer.start[0] for writer in writers.values()))
    prepare(documents, encoding, writers, total=None if tables(train_files + val_files) else len(train_files + val_files))
    empty = [split for split, writer in writers.items() if not writer.shards]
    if empty:
        meta.remove()
        raise InputError(f"no text is left for the split '{empty[0]}': give more sources, or name some as --val")
    meta.value["complete"] = True
    meta.write()
    print(f"{config.out_dir}: {summary(meta)}")


def summary(meta: data.Meta) -> str:
    splits = meta.value["splits"].items()
    return ", ".join(f"{split} {s['tokens']:,} tokens of {s['documents']:,} documents" for split, s in splits)


def standard_library() -> list[Path]:
    """The modules of this Python's standard library, without tests (which many distributions strip) and packages."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    files = sorted(path for path in root.rglob("*.py") if not left_out & set(path.relative_to(root).parts))
    if not files:
        raise InputError(f"{root} holds no source files of the standard library: name a text of your own")
    return files


def find(sources: list[str]) -> list[Path]:
    """The files named, and those in the folders named that are tables or UTF-8 text, hidden ones aside; sorted."""
    problems = [f"source {source} does not exist" for source in sources if not Path(source).exists()]
    if problems:
        raise InputError(*problems)
    files, passed = [], 0
    for source in map(Path, sources):
        if source.is_file():
            files.append(source)
            continue
        visible = [path for path in source.rglob("*") if path.is_file()
                   and not any(part.startswith(".") for part in path.relative_to(source).parts)]
        readable = [path for path in visible if table_kind(path) or is_text(path)]
        passed += len(visible) - len(readable)
        files += readable
    if passed:
        print(f"{passed} files that are neither text (UTF-8) nor tables are passed over")
    if not files:
        raise InputError(f"{' '.join(sources)}: no text, jsonl or parquet files there")
    return sorted(set(files))


def table_kind(path: Path) -> str | None:
    """The builder of `datasets` for a file of rows, compressed or not; None for plain text."""
    return next((TABLES[suffix] for suffix in path.suffixes[-2:] if suffix in TABLES), None)


def tables(files: list[Path]) -> list[Path]:
    return [path for path in files if table_kind(path)]


def is_text(path: Path) -> bool:
    with open(path, "rb") as file:
        head = file.read(8192)
    try:
        head[: len(head) - 4].decode()  # a character may be cut in two at the end
    except UnicodeDecodeError:
        return False
    return b"\0" not in head


def fingerprint(files: list[Path]) -> str:
    """A hash of the files' names and sizes: enough to tell that a preparation is the same one."""
    return hashlib.sha256("".join(f"{path.name} {path.stat().st_size}\n" for path in files).encode()).hexdigest()


def read(train_files, val_files, config, skip):
    """(number, split, pieces of text) of every document from number `skip` on, in an order that never changes."""
    number = 0
    for files, split in ((train_files, "train"), (val_files, "val")):
        hold_out = split == "train" and not val_files
        tails = hold_out and len(files) < config.val_every and not tables(files)  # too few documents: hold out their ends
        for path in files:
            if table_kind(path):
                documents = table_documents(path, config.text_column)
            elif tails:
                cut, end = line_start(path, 1 - 1 / config.val_every), path.stat().st_size
                documents = text_document(path, 0, cut), text_document(path, cut, end)
            else:
                documents = [text_document(path, 0, path.stat().st_size)]
            for part, pieces in enumerate(documents):
                if number >= skip:
                    held_out = part == 1 if tails else hold_out and number % config.val_every == config.val_every - 1
                    yield number, "val" if held_out else split, pieces
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
        while block := file.read(min(PIECE, stop - file.tell())):
            block = rest + block
            cut = len(block) if file.tell() == stop else block.rfind(b"\n") + 1 or len(block) - 1
            while cut < len(block) and block[cut] & 0xC0 == 0x80:  # not in the middle of a character
                cut -= 1
            rest = block[cut:]
            yield block[:cut].decode(errors="replace")


def table_documents(path: Path, column: str):
    """Each row's text, in pieces, from a jsonl or parquet file."""
    import datasets

    datasets.disable_progress_bars()
    try:
        rows = datasets.load_dataset(table_kind(path), data_files=str(path), split="train", streaming=True)
        for row in rows:
            if not isinstance(row.get(column), str):
                raise InputError(f"{path}: no text in column '{column}': choose --text_column from {' '.join(row)}")
            yield (row[column][i : i + PIECE] for i in range(0, len(row[column]) or 1, PIECE))
    except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read as {table_kind(path)}: {' '.join(str(error.__cause__ or error).split())}") from None


def prepare(documents, encoding, writers, total) -> None:
    """Tokenises on all cores, in order, a bounded number of pieces ahead; every document opens with <|endoftext|>."""
    workers = os.cpu_count() or 1
    waiting, batch, size = deque(), [], 0
    offset = tokens_done = 0
    current, begun = -1, time.perf_counter()

    def encode(batch):
        return [(number, split, encoding.encode_to_numpy(text, disallowed_special=())) for number, split, text in batch]

    def store(results):
        nonlocal offset, current, tokens_done
        for number, split, tokens in results:
            if number != current:
                current, offset = number, 0
                tokens = np.concatenate([[encoding.eot_token], tokens])
                bar.update()
            writers[split].add(number, offset, tokens)
            offset, tokens_done = offset + len(tokens), tokens_done + len(tokens)
        bar.set_postfix_str(f"{tokens_done:,} tokens, {tokens_done / (time.perf_counter() - begun):,.0f} tokens/s",
                            refresh=False)

    with ThreadPoolExecutor(workers) as pool, tqdm(total=total, unit=" documents", desc="prepare", disable=None) as bar:
        for number, split, pieces in documents:
            for text in pieces:
                batch.append((number, split, text))
                size += len(text)
                if size >= PIECE // 4:
                    waiting.append(pool.submit(encode, batch))
                    batch, size = [], 0
                if len(waiting) > 4 * workers:
                    store(waiting.popleft().result())
        waiting.append(pool.submit(encode, batch))
        for future in waiting:
            store(future.result())
    for writer in writers.values():
        writer.close()


if __name__ == "__main__":
    cli.run(main)
