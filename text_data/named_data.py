"""Data sets by name: the commands that prepare them, and their sizes.

folder, split, words = prepare_command("fineweb-edu", scale="full")
"""

import contextlib
from pathlib import Path

from runtime.files import working_folder_of

from errors import InputError
from text_data.shards import Shards

PROGRAMS = {  # data set: (program and flags, split to evaluate on)
    "fineweb-edu": (["prepare_fineweb.py"], "val"),
    "fineweb": (["prepare_fineweb.py", "--dataset", "HuggingFaceFW/fineweb"], "val"),
    "wikitext103": (["prepare_wikitext.py"], "test"),
    "wikitext2-tokenized": (
        ["prepare_wikitext.py", "--size", "2", "--variant", "tokenized"],
        "test",
    ),
    "stdlib": (["prepare_text.py"], "val"),
}
TWO_SHARDS = {"train": 10**8, "val": 10**8}
SIZES = {  # data set, or the same as bytes: (GB of the download, tokens by split)
    "fineweb-edu": (28, {"train": 9_853_989_344, "val": 10**8}),
    "fineweb": (0.6, TWO_SHARDS),
    "wikitext103": (0.3, {"train": 118_000_000, "val": 250_000, "test": 290_000}),
    "wikitext2-tokenized": (0.01, {"train": 2_400_000, "val": 250_000, "test": 290_000}),
    "stdlib": (0, {"train": 11_600_000, "val": 530_000}),
    "fineweb-edu-bytes": (0.1, TWO_SHARDS),
    "fineweb-bytes": (0.1, TWO_SHARDS),
    "wikitext2-tokenized-bytes": (
        0.01,
        {"train": 10_900_000, "val": 1_150_000, "test": 1_300_000},
    ),
    "wikitext103-bytes": (0.3, {"train": 540_000_000, "val": 1_150_000, "test": 1_300_000}),
}


def prepare_command(name: str, scale: str, tokens: int = 0) -> tuple[str, str, list[str]]:
    """Return the folder, evaluation split and preparing command of a data set.

    name: a data set, or a folder of shards. scale: full; small: bytes;
    smoke: the standard library instead of others. tokens: of the longest
    training. The command is empty if the folder has so many tokens, or
    the whole text. Raises InputError for other names.
    """
    if name not in PROGRAMS:
        if not [*Path(name).glob("*_val_*.bin")]:
            problem = f"--data {name} is no data set{working_folder_of(name)}"
            known = ", ".join(PROGRAMS)
            raise InputError(f"{problem}: use {known}, or a folder of shards")
        return name, "test" if [*Path(name).glob("*_test_*.bin")] else "val", []
    name = "stdlib" if scale == "smoke" else name
    words, split = PROGRAMS[name]
    folder, flags = f"data/{name}", []
    if scale == "small" and name != "stdlib":
        folder, flags = f"{folder}-bytes", ["--tokenizer", "bytes"]
    if name == "fineweb" or (name == "fineweb-edu" and scale == "small"):
        flags += ["--shards", "2"]
    with contextlib.suppress(InputError):
        train, test = (Shards(folder, each, "never") for each in ("train", split))
        # A full last shard: the preparation ended at --shards.
        is_part = len(train.tokens[-1]) == test.total
        if not is_part or train.total >= tokens:
            return folder, split, []
        if "pretokenized" in train.meta["source"]:
            flags += ["--pretokenized"]
    return folder, split, [*words, *flags, "--out_dir", folder]
