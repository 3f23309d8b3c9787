"""Data sets by name, and the commands that prepare them.

folder, split, words = prepare_command("fineweb-edu", scale="full")
"""

import contextlib
from pathlib import Path

from errors import InputError
from text_data.shards import Shards

PROGRAMS = {  # data set: (program and flags, split to evaluate on)
    "fineweb-edu": (["prepare_fineweb.py"], "val"),
    "fineweb": (["prepare_fineweb.py", "--dataset", "HuggingFaceFW/fineweb"], "val"),
    "wikitext103": (["prepare_wikitext.py"], "test"),
    "stdlib": (["prepare_text.py"], "val"),
}


def prepare_command(name: str, scale: str, flags: list[str]) -> tuple[str, str, list[str]]:
    """Return the folder, evaluation split and preparing command of a data set.

    name: a data set, or a folder of shards. scale: full; small: bytes;
    smoke: the standard library instead of others. flags: at full scale.
    The command is empty if shards exist. Raises InputError for other
    names.
    """
    if name not in PROGRAMS:
        if not [*Path(name).glob("*_val_*.bin")]:
            problem = "has no shards" if Path(name).is_dir() else "does not exist"
            known = ", ".join(PROGRAMS)
            raise InputError(f"--data {name} {problem}: use {known}, or a folder of shards")
        return name, "test" if [*Path(name).glob("*_test_*.bin")] else "val", []
    name = "stdlib" if scale == "smoke" else name
    words, split = PROGRAMS[name]
    folder = f"data/{name}"
    if scale == "small" and name != "stdlib":
        folder, flags = f"{folder}-bytes", ["--tokenizer", "bytes"]
    elif scale != "full":
        flags = []
    elif "--tokenizer" in flags:
        folder += f"-{flags[flags.index('--tokenizer') + 1].replace(':', '')}"
    if name == "fineweb" or (name == "fineweb-edu" and scale == "small"):
        flags = [*flags, "--shards", "2"]
    with contextlib.suppress(InputError):
        for each in ("train", split):
            Shards(folder, each, "never")
        return folder, split, []
    return folder, split, [*words, *flags, "--out_dir", folder]
