"""Prepare WikiText-103 or WikiText-2 as token shards, one document per article.

    python prepare_wikitext.py  # WikiText-103, raw -> data/wikitext103
    python prepare_wikitext.py --size 2 --variant tokenized  # -> data/wikitext2-tokenized
    python prepare_wikitext.py --source wikitext-103-raw/  # wiki.{train,valid,test}.raw
    python prepare_wikitext.py --verify  # compare the shards with their hashes

The text is exactly that of the original files, including the spaces of
every line, also if it is read from the hub. An article starts at its
title, a line ` = Title = ` between blank lines, and ends before the
next title. Only the blank line at the beginning of a file is left out.
An interrupted preparation is resumed by the same command.
"""

import functools
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime import cli
from runtime.files import working_folder_of

from errors import InputError
from text_data import hub, shards, text_sources, tokenization

HUB = "Salesforce/wikitext"
# Names in files and on the hub -> the name of the split.
SPLITS = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
TITLE = re.compile(r"= (?!= )\S.* =")  # does not match a section, "= = Section = ="


@dataclass
class Config(tokenization.Settings):
    """Settings of a preparation."""

    size: Literal["103", "2"] = "103"
    """103: 100M words for training; 2: 2M words"""
    variant: Literal["raw", "tokenized"] = "raw"
    """raw: the text itself; tokenized: separated by spaces, rare words are <unk>"""
    source: str | None = None
    """folder of local files (text, jsonl or parquet) named after train, valid and test, instead of
    the hub"""
    revision: str | None = None
    """commit, branch or tag on the hub; default: the newest, then the one in meta.json"""
    out_dir: str | None = None
    """folder of the shards; default: data/wikitext103 or data/wikitext2, with the suffix -tokenized
    for that variant"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    suffix = "-tokenized" if config.variant == "tokenized" else ""
    out_dir = config.out_dir or f"data/wikitext{config.size}{suffix}"
    if config.verify:
        return shards.verify(out_dir)
    data_set, name = None, config.source
    if config.source:
        files = find_splits(Path(config.source))
        source = {split: text_sources.fingerprint(paths) for split, paths in files.items()}
        remedy = "repair the file, or use another --size or --variant"
    else:
        remedy = "use another --size or --variant, or pass local files as --source"
        variant = "raw-" if config.variant == "raw" else ""
        data_set = hub.PinnedDataset(
            HUB, f"wikitext-{config.size}-{variant}v1", config.revision, remedy
        )
        source, name = data_set.source, data_set.name
        files = {
            SPLITS[split]: functools.partial(data_set.files, split)
            for split in ("train", "validation", "test")
        }

    def read_split(split):
        return read_articles(name, files.get(split, []), remedy)

    preparation = tokenization.Preparation(
        config,
        out_dir,
        {**source, "variant": config.variant},
        lambda: read_split("train"),
        files,
        data_set,
    )
    documents = ((split, *item) for split in files for item in enumerate(read_split(split)))
    preparation.write(documents, "add text to its file, or remove the file")


def find_splits(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split that has some, by their names.

    Raises InputError if there is none, or files of different kinds for a split.
    """
    found: dict[str, list[Path]] = {"train": [], "val": [], "test": []}
    for path in filter(Path.is_file, sorted(folder.glob("[!.]*"))):
        words = re.findall("[a-z]+", path.name.lower())
        splits = {SPLITS[word] for word in words if word in SPLITS}
        if len(splits) > 1:
            raise InputError(f"{path}: rename it with only one of train, valid, test")
        for split in splits:
            found[split].append(path)
    files = {split: paths for split, paths in found.items() if paths}
    if not files:
        where = working_folder_of(folder)
        raise InputError(f"{folder} has no files wiki.{{train,valid,test}}.*{where}: pass another")
    for split, paths in files.items():
        kinds = {text_sources.table_format(path) for path in paths}
        # Only tables of one kind can be several files.
        if len(paths) > 1 and kinds not in ({"json"}, {"parquet"}):
            names = " ".join(path.name for path in paths)
            raise InputError(f"{folder}: several files for {split} ({names}): keep one")
    return files


def read_articles(name: str, files, remedy: str):
    """Yield the text of each article of a split, as `text_sources.read_rows`.

    A row is a line. A blank line is "" on the hub, " " in the files and here.
    """
    rows = text_sources.read_rows(
        name, "text", files, remedy=remedy, choose="pass another --source"
    )
    lines = (row.rstrip("\n") if row.strip() else " " for _, row in rows)
    article = ""
    before = " "
    for line, after in itertools.pairwise(itertools.chain(lines, [" "])):
        if before == after == " " and TITLE.fullmatch(line.strip()):
            if article.strip():
                yield article
            article = ""
        article += f"{line}\n"
        before = line
    if article.strip():
        yield article


if __name__ == "__main__":
    cli.run(main)
