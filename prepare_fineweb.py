"""Turns FineWeb-Edu, or a part of it, into shards of tokens (shards.py says what they look like).

    python prepare_fineweb.py                                       # 10B tokens, 20 GB -> data/fineweb-edu
    python prepare_fineweb.py --shards 3                            # the first 0.3B of them; later more: --shards 10
    python prepare_fineweb.py --dataset HuggingFaceFW/fineweb --out_dir data/fineweb
    python prepare_fineweb.py --source crawl/ --out_dir data/crawl # .parquet or .jsonl files of your own
    python prepare_fineweb.py --pretokenized --shards 3             # kjj0/finewebedu10B-gpt2, or --dataset
    python prepare_fineweb.py --verify                              # are the shards what was written?

Rows are streamed from the hub in their order, so that the disk holds the shards only. The first shard is the split `val`, all
others are `train`; the document at the border is cut there, and the rest of it opens `train`. Interrupted, the same command
goes on where it stopped and writes the same bytes; with more --shards, or without, it goes on beyond what is there.
--pretokenized fetches shards that others made in this layout, `*_val_000000.bin` and `*_train_000001.bin` on.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from errors import InputError
from runtime import cli
from runtime.files import atomic
from text_data import shards, tokenization


@dataclass
class Config:
    """Settings of a preparation."""

    dataset: str | None = None
    """data set on the hub, or a folder laid out like one; null: HuggingFaceFW/fineweb-edu, kjj0/finewebedu10B-gpt2 if --pretokenized"""
    name: str = "sample-10BT"
    """configuration of the data set: the part that is taken"""
    source: str | None = None
    """jsonl or parquet file, also compressed, or a folder of them, instead of the hub"""
    pretokenized: bool = False
    """the data set holds ready shards of GPT-2 tokens, to be fetched as they are"""
    shards: int | None = None
    """only the first so many shards, `val` included; null: all"""
    out_dir: str = "data/fineweb-edu"
    """folder of the shards"""
    tokenizer: Literal["bytes", "gpt2"] = "gpt2"
    """bytes: 256 tokens and <|endoftext|>; gpt2: GPT-2's 50,257"""
    text_column: str = "text"
    """column that holds the text"""
    shard_tokens: int = 100_000_000
    """tokens in a shard"""
    verify: bool = False
    """compare the shards in out_dir with their hashes, and do nothing else"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    if config.verify:
        return shards.verify(config.out_dir)
    if config.shards is not None and config.shards < 2:
        raise InputError(
            f"shards is {config.shards}: the first is for validation, so give at least 2"
        )
    if config.pretokenized:
        fetch(config)
    else:
        stream(config)


def stream(config: Config) -> None:
    """The rows of --source or of the hub's data set, one after the other, become shards."""
    dataset = config.dataset or "HuggingFaceFW/fineweb-edu"
    name, mend = (
        f"{dataset} ({config.name})",
        "choose another --dataset or --name, or give local files as --source",
    )
    load, source = (
        {"path": dataset, "name": config.name, "split": "train"},
        {"dataset": dataset, "name": config.name},
    )
    if config.source:
        files = tokenization.find([config.source])
        kinds = {tokenization.table_kind(path) for path in files}
        if len(kinds) > 1 or None in kinds:
            raise InputError(
                f"{config.source}: files of several kinds, or of none we know: give only .jsonl or only .parquet"
            )
        name, mend = config.source, "mend or remove the file"
        load, source = tokenization.local(files), {"files": tokenization.fingerprint(files)}
    encoding, meta = tokenization.begin(
        config.out_dir,
        config.tokenizer,
        config.shard_tokens,
        {**source, "text_column": config.text_column},
    )
    writer = shards.ShardWriter(meta, "val", config.shard_tokens, then="train", limit=config.shards)
    if not writer.full and writer.shards and writer.shards[-1]["tokens"] == config.shard_tokens:
        meta.value["complete"] = False  # it ended at a limit, not with the text
    if not config.source and not meta.value["complete"] and not Path(dataset).is_dir():
        load["revision"] = pinned(meta, dataset).sha
    rows = tokenization.rows(
        name,
        config.text_column,
        load,
        writer.marks[-1] if writer.marks else (0, None),
        writer.mark,
        mend,
    )
    documents = (
        (writer, number, tokenization.pieces(text))
        for number, text in rows
        if number >= writer.start[0]
    )
    tokenization.write(
        meta, [writer], documents, encoding, mend="give more text or a smaller --shard_tokens"
    )


def fetch(config: Config) -> None:
    """Ready shards from the hub: read once to be checked, hashed and counted."""
    import huggingface_hub

    repository, folder, mend = (
        config.dataset or "kjj0/finewebedu10B-gpt2",
        Path(config.out_dir),
        "name another --dataset",
    )
    if config.source or config.tokenizer != "gpt2":
        raise InputError(
            "--pretokenized fetches GPT-2 tokens: give it neither --source nor another --tokenizer"
        )
    meta = shards.Meta(
        folder,
        {
            "dataset": folder.resolve().name,
            "tokenizer": "gpt2",
            "vocab_size": shards.GPT2_VOCABULARY,
            "source": {"pretokenized": repository},
        },
    )
    known = [shard for record in meta.value["splits"].values() for shard in record["shards"]]
    there = {shard["file"]: shard for shard in known if (folder / shard["file"]).exists()}
    available = meta.value.get("available")
    if meta.value["complete"] and len(there) == len(known) >= min(
        config.shards or available, available
    ):
        print(f"{folder} is prepared already: {tokenization.summary(meta)}")
        return
    info = pinned(meta, repository)
    names = {Path(file.rfilename).name: file.rfilename for file in info.siblings}
    named = [
        match
        for match in map(shards.SHARD_NAME.fullmatch, names)
        if match and match["split"] in ("val", "train")
    ]
    named.sort(key=lambda match: (match["split"] != "val", int(match["index"])))
    if {match["split"] for match in named[: config.shards]} != {"val", "train"}:
        raise InputError(
            f"{repository} holds no shards *_val_000000.bin, *_train_000001.bin, …: {mend}"
        )
    wanted = {
        match[0]: match["split"] for match in named[: max(config.shards or len(named), len(known))]
    }
    meta.value |= {"available": len(named), "splits": {}}
    for file in wanted:
        if file in there:
            meta.add(wanted[file], there[file])
    with tokenization.completing(meta):
        for file in [file for file in wanted if file not in there]:
            try:
                with tokenization.reading(f"{repository}: {file}", mend):
                    fetched = Path(
                        huggingface_hub.hf_hub_download(
                            repository,
                            names[file],
                            repo_type="dataset",
                            revision=info.sha,
                            local_dir=folder / ".fetched",
                        )
                    )
                if problems := shards.shard_problems(fetched):
                    raise InputError(f"{repository}: {problems[0].rpartition(': ')[0]}: {mend}")
                meta.add(wanted[file], take(fetched, folder / file))
                meta.write()
            finally:
                shutil.rmtree(folder / ".fetched", ignore_errors=True)


def take(fetched: Path, path: Path) -> dict:
    """Copies a shard to its place, whole or not at all; returns what meta.json tells of it."""
    tokens, digest = shards.tokens_of(fetched), hashlib.sha256()
    with open(fetched, "rb") as content, atomic(path) as file:
        while block := content.read(1 << 24):
            digest.update(block)
            file.write(block)
    return {
        "file": path.name,
        "documents": int(np.count_nonzero(tokens == shards.GPT2_VOCABULARY - 1)),
        "tokens": len(tokens),
        "sha256": digest.hexdigest(),
    }


def pinned(meta: shards.Meta, repository: str):
    """The hub's description of a data set, at the revision that the preparation began with."""
    import huggingface_hub

    with tokenization.reading(repository, "name another data set"):
        info = huggingface_hub.dataset_info(repository, revision=meta.value.get("revision"))
    meta.value["revision"] = info.sha
    return info


if __name__ == "__main__":
    cli.run(main)
