"""Turns WikiText-103 or WikiText-2 into shards of tokens (shards.py says what they look like), a document per article.

    python prepare_wikitext.py                                      # WikiText-103, raw text -> data/wikitext103
    python prepare_wikitext.py --size 2 --variant tokenized         # -> data/wikitext2-tokenized
    python prepare_wikitext.py --source wikitext-103-raw/           # files wiki.train.raw, wiki.valid.raw, wiki.test.raw
    python prepare_wikitext.py --verify                             # are the shards what was written?

The text is that of the original files, every line with its spaces, whether it comes from them or from the hub's rows. An
article begins at its title, a line ` = Title = ` between blank lines, and ends before the next one's; only the blank line at the
beginning of a file is left out. Interrupted, the same command goes on where it stopped and writes the same bytes.
"""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from errors import InputError
from runtime import cli
from text_data import shards, tokenization

HUB = "Salesforce/wikitext"
SPLITS = {
    "train": "train",
    "valid": "val",
    "validation": "val",
    "val": "val",
    "test": "test",
}  # as files and the hub call them
TITLE = re.compile(r"= (?!= )\S.* =")  # and not "= = Section = ="


@dataclass
class Config:
    """Settings of a preparation."""

    size: Literal["103", "2"] = "103"
    """103: a hundred million words for training; 2: two million"""
    variant: Literal["raw", "tokenized"] = "raw"
    """raw: the text itself; tokenized: words apart, rare ones as <unk>"""
    source: str | None = None
    """folder of local files (text, jsonl or parquet) with train, valid or test in their names, instead of the hub"""
    out_dir: str | None = None
    """folder of the shards; null: data/wikitext103 or data/wikitext2, with -tokenized for that variant"""
    tokenizer: Literal["bytes", "gpt2"] = "gpt2"
    """bytes: 256 tokens and <|endoftext|>; gpt2: GPT-2's 50,257"""
    shard_tokens: int = 100_000_000
    """tokens in a shard"""
    verify: bool = False
    """compare the shards in out_dir with their hashes, and do nothing else"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    out_dir = config.out_dir or f"data/wikitext{config.size}" + (
        "-tokenized" if config.variant == "tokenized" else ""
    )
    if config.verify:
        return shards.verify(out_dir)
    if config.source:
        files = find(Path(config.source))
        tables = {split: tokenization.local(paths) for split, paths in files.items()}
        source = {split: tokenization.fingerprint(paths) for split, paths in files.items()}
    else:
        name = f"wikitext-{config.size}-{'raw-' if config.variant == 'raw' else ''}v1"
        tables = {
            SPLITS[split]: {"path": HUB, "name": name, "split": split}
            for split in ("train", "validation", "test")
        }
        source = {"dataset": HUB, "name": name}
    encoding, meta = tokenization.begin(
        out_dir, config.tokenizer, config.shard_tokens, {**source, "variant": config.variant}
    )
    writers = {split: shards.ShardWriter(meta, split, config.shard_tokens) for split in tables}
    tokenization.write(
        meta,
        [*writers.values()],
        read(tables, writers),
        encoding,
        mend="give its file some text, or remove it",
    )


def find(folder: Path) -> dict[str, list[Path]]:
    """The files of each split in `folder`, told by their names; says which splits are missing."""
    if not folder.is_dir():
        raise InputError(
            f"source {folder} is no folder: name the one that holds the files wiki.train.*, wiki.valid.*, wiki.test.*"
        )
    files = {}
    for path in sorted(
        path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")
    ):
        named = {SPLITS[word] for word in re.split(r"[^a-z]+", path.name.lower()) if word in SPLITS}
        if len(named) > 1:
            raise InputError(
                f"{path}: the name tells of {' and '.join(sorted(named))}: leave one of train, valid, test in it"
            )
        for split in named:
            files.setdefault(split, []).append(path)
    files = {split: files[split] for split in ("train", "val", "test") if split in files}
    if not files:
        raise InputError(
            f"{folder} has no file with train, valid or test in its name: rename the files"
        )
    for split, paths in files.items():
        if (
            len({tokenization.table_kind(path) for path in paths}) > 1
            or len(paths) > 1
            and not tokenization.table_kind(paths[0])
        ):
            raise InputError(
                f"{folder}: several files for {split} ({' '.join(path.name for path in paths)}): leave one of them"
            )
    if missing := [split for split in ("train", "val", "test") if split not in files]:
        print(f"{folder} has no file for {' and '.join(missing)}: that split will be missing")
    return files


def read(tables: dict[str, dict], writers: dict[str, shards.ShardWriter]):
    """(writer, number, pieces of text) of every article that is not in a finished shard, split by split."""
    for split, table in tables.items():
        writer = writers[split]
        name = (
            " ".join(table["data_files"]) if "data_files" in table else f"{HUB} ({table['name']})"
        )
        mend = "mend the file, or choose another --size or --variant"
        for number, text in enumerate(
            articles(row for _, row in tokenization.rows(name, "text", table, mend=mend))
        ):
            if number >= writer.start[0]:
                yield writer, number, tokenization.pieces(text)


def articles(rows):
    """The text of each article, from rows that are lines: blank ones are "" on the hub, " " in the files, and here " \\n" again."""
    lines = (row.rstrip("\n") if row.strip() else " " for row in rows)
    article, before = [], " "
    for line, after in itertools.pairwise(itertools.chain(lines, [" "])):
        if before == after == " " and TITLE.fullmatch(line.strip()):
            yield from _joined(article)
            article = []
        article.append(line)
        before = line
    yield from _joined(article)


def _joined(article: list[str]) -> list[str]:
    """The text of these lines, unless all are blank."""
    return ["".join(f"{line}\n" for line in article)] if any(map(str.strip, article)) else []


if __name__ == "__main__":
    cli.run(main)
