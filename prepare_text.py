"""Prepare any text as token shards (docs/data.md describes the format).

    python prepare_text.py  # the standard library -> data/stdlib
    python prepare_text.py my_book.txt --out_dir data/book  # a document per file
    python prepare_text.py corpus/*.jsonl --out_dir data/corpus --tokenizer gpt2
    python prepare_text.py folder/ --val held_out/ --out_dir data/mine
    python prepare_text.py folder/ --out_dir data/mine --tokenizer bpe:4096  # trained
    python prepare_text.py --verify --out_dir data/mine  # compare with the hashes

Sources are files or folders of plain text (UTF-8), .jsonl, .json with JSON
lines, or .parquet (one document per row), also compressed. In folders, other files are
skipped.

Every 20th document is held out for validation, or the last 20th of each
file if there are fewer than 20 text files. --val names other validation
text. An interrupted preparation is resumed by the same command.
"""

import functools
import io
from dataclasses import dataclass
from pathlib import Path

from runtime import cli

from errors import InputError
from setting import setting
from text_data import hub, shards, text_sources, tokenization

# Files that are skipped in folders, even if they are UTF-8.
MARKUP = {".htm", ".html", ".mhtml", ".pdf", ".ps", ".rtf", ".svg", ".xhtml", ".xml"}
CONVERT = "convert it to UTF-8 (iconv -f latin1 -t utf-8), or leave it out"


@dataclass
class Config(tokenization.Settings):
    """Settings of a preparation."""

    sources: list[str] = setting([], positional=True)
    """files and folders of text, jsonl or parquet; default: the standard library"""
    val: str | None = None
    """file or folder for validation; default: a part of the sources is held out"""
    out_dir: str = "data/stdlib"
    """folder of the shards"""
    tokenizer: str = "bytes"
    text_column: str = "text"
    """column of jsonl and parquet files that holds the text; of several, as in text,body, the first
    that a row has"""
    val_every: int = setting(20, low=2)
    """hold out every n-th document for validation"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    if config.verify:
        if config.sources:
            raise InputError("--verify takes no sources: pass the folder as --out_dir")
        return shards.verify(config.out_dir)
    out = Path(config.out_dir)
    if config.sources:
        train_files = text_sources.find_files(config.sources, skip_reason, out)
    else:
        train_files = text_sources.standard_library_files()
    val_files = text_sources.find_files([config.val], skip_reason, out) if config.val else []
    held_out = {path.resolve() for path in val_files}
    train_files = [path for path in train_files if path.resolve() not in held_out]

    source = {
        "files": text_sources.fingerprint(train_files),
        "val_files": text_sources.fingerprint(val_files),
        "text_column": config.text_column,
        "val_every": config.val_every,
    }
    documents = functools.partial(split_documents, train_files, val_files, config)

    def training_texts():
        return (text for split, pieces in documents() if split == "train" for text in pieces)

    splits = ("train", "val")
    preparation = tokenization.Preparation(config, out, source, training_texts, splits)
    numbered = ((split, number, text) for number, (split, text) in enumerate(documents()))
    remedy = "pass more sources, pass some as --val, or use a lower --val_every"
    preparation.write(numbered, remedy)


def skip_reason(path: Path, is_named: bool) -> str | None:
    """Return why a file is neither a table nor UTF-8 text without NUL, or None."""
    if text_sources.table_format(path):
        return text_sources.unusual_table(path)
    if path.suffix.lower() in MARKUP and not is_named:
        return "markup: convert it to text, or pass the file by name to keep tags"
    try:
        for _ in read_text(path):
            pass
    except InputError as error:
        if is_named:
            raise
        return str(error).removeprefix(f"{path} ").removeprefix("is ")


def split_documents(train_files: list[Path], val_files: list[Path], config: Config):
    """Yield (split, pieces of text) of every document."""
    every = config.val_every
    has_tables = any(map(text_sources.table_format, train_files))
    if not val_files and len(train_files) < every and not has_tables:
        for path in train_files:
            cut = end_of_training(path, every)
            yield "train", read_part(path, 0, cut)
            yield "val", read_part(path, cut, None)
        return
    for split, files in (("train", train_files), ("val", val_files)):
        documents = (x for path in files for x in documents_of(path, config.text_column))
        for number, pieces in enumerate(documents, 1):
            is_held_out = not val_files and number % every == 0
            yield "val" if is_held_out else split, pieces


def documents_of(path: Path, text_column: str):
    """Yield the pieces of each document: a row of a table, or the whole text."""
    if text_sources.table_format(path):
        for _, text in text_sources.read_rows(str(path), text_column, [path]):
            yield text_sources.split_text(text)
    else:
        yield read_text(path)


def end_of_training(path: Path, every: int) -> int:
    """Return how many characters of a text precede its last `every`-th.

    That begins with a line; without a line break there, with a word or a character.
    """
    size = sum(map(len, read_text(path)))
    start = size - -(-size // every)
    rest = "".join(read_part(path, start, start + text_sources.PIECE_CHARACTERS)).rstrip("\n")
    return start + (rest.find("\n") + 1 or rest.find(" ") + 1)


def read_part(path: Path, start: int, stop: int | None):
    """Yield the characters of a text from `start` to `stop`, in pieces."""
    position = 0
    for piece in read_text(path):
        if part := piece[max(0, start - position) : stop and max(0, stop - position)]:
            yield part
        position += len(piece)


def read_text(path: Path):
    """Yield a text in pieces that end at a line break, where there is one.

    A byte-order mark is left out. Raises InputError for text that is not UTF-8 or has NUL.
    """
    remedy = "repair the file, or leave it out"
    with (
        hub.input_errors(str(path), remedy, is_local=True),
        text_sources.open_file(path) as file,
    ):
        text, size = (
            io.TextIOWrapper(file, "utf-8-sig", newline=""),
            text_sources.PIECE_CHARACTERS,
        )
        try:
            while piece := text.read(size) + text.readline(size):
                if "\0" in piece:
                    raise InputError(f"{path} is not text (it has NUL bytes): leave it out")
                yield piece
        except UnicodeDecodeError as error:
            at = file.tell() - len(error.object) + error.start
            problem = f"{path} is not UTF-8 text at byte {at}"
            raise InputError(f"{problem}: {CONVERT}") from None


if __name__ == "__main__":
    cli.run(main)
