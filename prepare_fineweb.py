"""Prepare FineWeb-Edu, or a part of it, as token shards.

    python prepare_fineweb.py  # 10B tokens, 20 GB -> data/fineweb-edu
    python prepare_fineweb.py --shards 3  # the first 0.3B; later: --shards 10
    python prepare_fineweb.py --dataset HuggingFaceFW/fineweb --out_dir data/fineweb
    python prepare_fineweb.py --source crawl/ --out_dir data/crawl  # .parquet, .jsonl
    python prepare_fineweb.py --pretokenized --shards 3  # kjj0/finewebedu10B-gpt2
    python prepare_fineweb.py --verify  # compare the shards with their hashes

Rows are streamed from the hub in their order. The first shard is the
split `val`, all others are `train`. The document at the border is cut
there. An interrupted preparation is resumed by the same command. With a
higher --shards, or without it, shards are added.

--pretokenized downloads existing shards of the same format:
`*_val_000000.bin`, `*_train_000001.bin`, and so on; from --dataset, if
given.
"""

import functools
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime import cli
from runtime.files import hash_file

import numpy as np

from data_loader import TokenFile
from errors import InputError
from setting import setting
from text_data import hub, shards, text_sources, tokenization
from text_data.tokenizer import GPT2_VOCABULARY, first_characters

DATASET = "HuggingFaceFW/fineweb-edu"
PRETOKENIZED = "kjj0/finewebedu10B-gpt2"
SHARD_PATH = re.compile(r"(.*/)?(?P<file>[^/]+_(?P<split>train|val)_\d{6}\.bin)")
# For bpe:N. English books, encyclopedias and technical documents have 4.1 to 5.2 per word,
# punctuation or number, which tokens do not cross.
CHARACTERS_PER_TOKEN = 6


@dataclass
class Config(tokenization.Settings):
    """Settings of a preparation."""

    dataset: str | None = None
    """data set on the hub, or a folder with the same layout;
    default: HuggingFaceFW/fineweb-edu, or kjj0/finewebedu10B-gpt2 with --pretokenized"""
    name: str = "sample-10BT"
    """configuration of the data set"""
    revision: str | None = None
    """commit, branch or tag on the hub; default: the newest, then the one in meta.json"""
    source: str | None = None
    """local jsonl or parquet file, also compressed, or a folder of them, instead of the hub"""
    pretokenized: bool = False
    """download existing shards of GPT-2 tokens"""
    shards: int | None = setting(None, low=2)
    """only the first n shards, including `val`; default: all"""
    out_dir: str = ""
    """folder of the shards; default: data/fineweb-edu, or data/ and the name of --source or
    --dataset"""
    text_column: str = "text"
    """column that holds the text; of several, as in text,body, the first that a row has"""

    def __post_init__(self):
        name = Path(self.source or self.dataset or "fineweb-edu").resolve().name
        self.out_dir = self.out_dir or f"data/{name.split('.')[0]}"


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    if config.verify:
        return shards.verify(config.out_dir)
    if config.pretokenized:
        download_shards(config)
    else:
        tokenize_rows(config)


def tokenize_rows(config: Config) -> None:
    """Write the rows of --source, or of the data set on the hub, as shards."""
    data_set = None
    if config.source:
        files = text_sources.find_files([config.source])
        source = {"files": text_sources.fingerprint(files)}
        name = config.source
        remedy = "repair or remove the file"
    else:
        remedy = "use another --dataset or --name, or pass local files as --source"
        data_set = hub.PinnedDataset(
            config.dataset or DATASET, config.name, config.revision, remedy
        )
        files = functools.partial(data_set.files, "train")
        source = data_set.source
        name = data_set.name

    read_rows = functools.partial(
        text_sources.read_rows, name, config.text_column, files, remedy=remedy
    )
    preparation = tokenization.Preparation(
        config,
        config.out_dir,
        {**source, "text_column": config.text_column},
        lambda: texts_after_val((text for _, text in read_rows()), config.shard_tokens),
        data_set=data_set,
    )
    writer = shards.ShardWriter(
        preparation.meta, "val", config.shard_tokens, "train", config.shards
    )
    preparation.writers["val"] = writer
    last = writer.shards[-1] if writer.shards else None
    if not writer.full and last and last["tokens"] == config.shard_tokens:
        # A full last shard: it ended at --shards, not at the end of the text.
        preparation.meta.content["complete"] = False

    def documents():
        start = (last or {}).get("mark", (0, (0, 0)))
        for mark, text in read_rows(resume_from=start):
            writer.marks.append(mark)
            yield "val", mark[0], text

    preparation.write(documents(), "pass more text or a smaller --shard_tokens")


def texts_after_val(texts: Iterator[str], shard_tokens: int) -> Iterator[str]:
    """Return the texts after the split `val`, to train a tokenizer on.

    Where `val` ends depends on the tokenizer, so CHARACTERS_PER_TOKEN estimates it.
    """
    for _ in first_characters(texts, CHARACTERS_PER_TOKEN * shard_tokens):
        pass
    return texts


def download_shards(config: Config) -> None:
    """Download existing shards from the hub; check, hash and count each one."""
    import huggingface_hub

    if config.source or config.tokenizer != "gpt2":
        problem = "--pretokenized downloads GPT-2 tokens"
        raise InputError(f"{problem}: remove --source and --tokenizer")
    repository = config.dataset or PRETOKENIZED
    folder = Path(config.out_dir)
    remedy = "pass another --dataset"
    revision = {"revision": config.revision} if config.revision else {}
    description = {
        "dataset": folder.resolve().name,
        "tokenizer": "gpt2",
        "vocab_size": GPT2_VOCABULARY,
        "source": {"pretokenized": repository, **revision},
    }
    meta = shards.Meta(folder, description)
    commit = meta.content.get("revision") or config.revision
    info = hub.find_dataset(repository, commit, remedy)
    paths = [file.rfilename for file in info.siblings or []]
    wanted = [match for match in map(SHARD_PATH.fullmatch, paths) if match]
    wanted.sort(key=lambda match: (match["split"] != "val", match["file"]))
    wanted = wanted[: config.shards]
    if {match["split"] for match in wanted} != {"val", "train"}:
        raise InputError(f"{repository} has no shards *_val_000000.bin, ...: {remedy}")
    meta.content["revision"] = info.sha
    listed = meta.listed_files()
    with tokenization.preparing(meta):
        for match in wanted:
            name = match["file"]
            if name in listed and (folder / name).exists():
                continue
            with (
                hub.input_errors(f"{repository}: {name}", remedy),
                tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as temporary,
            ):
                path = huggingface_hub.hf_hub_download(
                    repository,
                    match[0],
                    repo_type="dataset",
                    revision=info.sha,
                    local_dir=temporary,
                )
                tokens = TokenFile(Path(path), remedy=remedy)[:]
                entry = {
                    "file": name,
                    "documents": int(np.count_nonzero(tokens == GPT2_VOCABULARY - 1)),
                    "tokens": len(tokens),
                    "sha256": hash_file(path),
                }
                os.replace(path, folder / name)
            meta.add_shard(match["split"], entry)
            meta.write()


if __name__ == "__main__":
    cli.run(main)
