"""Data sets by name: the commands that prepare them, and their sizes.

folder, split, words = prepare_command("fineweb-edu", scale="full")
"""

import contextlib

from data_loader import Shards, read_meta
from errors import InputError

TWO_SHARDS = {"train": 10**8, "val": 10**8}
# Data set: program and flags, split to evaluate on, GB of the download, tokens by split.
DATA_SETS = {
    "fineweb-edu": (
        "prepare_fineweb.py",
        "val",
        28,
        {"train": 9_853_989_344, "val": 10**8},
    ),
    "fineweb-edu-bytes": (
        "prepare_fineweb.py --tokenizer bytes --shards 2",
        "val",
        0.1,
        TWO_SHARDS,
    ),
    "fineweb": (
        "prepare_fineweb.py --dataset HuggingFaceFW/fineweb --shards 2",
        "val",
        0.6,
        TWO_SHARDS,
    ),
    "fineweb-bytes": (
        "prepare_fineweb.py --dataset HuggingFaceFW/fineweb --tokenizer bytes --shards 2",
        "val",
        0.1,
        TWO_SHARDS,
    ),
    "wikitext103": (
        "prepare_wikitext.py",
        "test",
        0.3,
        {"train": 118_000_000, "val": 250_000, "test": 290_000},
    ),
    "wikitext103-bytes": (
        "prepare_wikitext.py --tokenizer bytes",
        "test",
        0.3,
        {"train": 540_000_000, "val": 1_150_000, "test": 1_300_000},
    ),
    "wikitext2-tokenized": (
        "prepare_wikitext.py --size 2 --variant tokenized",
        "test",
        0.01,
        {"train": 2_400_000, "val": 250_000, "test": 290_000},
    ),
    "wikitext2-tokenized-bytes": (
        "prepare_wikitext.py --size 2 --variant tokenized --tokenizer bytes",
        "test",
        0.01,
        {"train": 10_900_000, "val": 1_150_000, "test": 1_300_000},
    ),
    "stdlib": ("prepare_text.py", "val", 0, {"train": 11_600_000, "val": 530_000}),
}


def prepare_command(name: str, scale: str, tokens: int = 0) -> tuple[str, str, list[str]]:
    """Return the folder, evaluation split and preparing command of a data set.

    name: a data set, or a folder of shards. scale: full; small: bytes; smoke: the standard library
    instead of others. tokens: of the longest training. The command is empty if the folder has so
    many tokens, or the whole text. Raises InputError for other names.
    """
    if name not in DATA_SETS:
        meta = read_meta(name, f"use {', '.join(DATA_SETS)}, or a folder of shards")
        return name, "test" if "test" in meta["splits"] else "val", []
    if scale == "small" and f"{name}-bytes" in DATA_SETS:
        name += "-bytes"
    name = "stdlib" if scale == "smoke" else name
    command, split, *_ = DATA_SETS[name]
    folder, words = f"data/{name}", command.split()
    with contextlib.suppress(InputError):
        train, test = (Shards(folder, each, "never") for each in ("train", split))
        # A full last shard: the preparation ended at --shards.
        if train.total >= tokens or len(train.tokens[-1]) != test.total:
            return folder, split, []
        if "pretokenized" in train.meta["source"]:
            words += ["--pretokenized"]
    return folder, split, [*words, "--out_dir", folder]
