"""Foreign shards: GPT-2 tokens that llm.c, modded-nanogpt and nanoGPT write, without meta.json.

| files | written by |
| --- | --- |
| `fineweb_val_000000.bin`, `fineweb_train_000001.bin` | llm.c, modded-nanogpt |
| `tiny_shakespeare_val.bin`, `tiny_shakespeare_train.bin` | llm.c |
| `val.bin`, `train.bin` | nanoGPT |

The first two have the header of text_data/shard_format.py. A file is read without a header only if
it is named exactly train.bin or val.bin, does not start with the magic number, and has an even
number of bytes: uint16 tokens. Files that look like int32 or int64 are refused. Tokens are taken to
be GPT-2's; one that GPT-2 does not have is an error. nanoGPT's character-level data is recognized
by its meta.pkl, which is never opened.
"""

import functools
import hashlib
import re
from pathlib import Path

from errors import InputError
from text_data.shard_format import HEADER_BYTES, TokenFile, check_shard, has_header

SHARD_NAME = re.compile(r".+_(?P<split>[a-z]+)_(?P<index>\d+)\.bin")
WHOLE_SPLIT_NAME = re.compile(r"(?:.+_)?(?P<split>train|val|test)\.bin")
HEADERLESS_NAMES = ("train.bin", "val.bin")
GPT2_VOCABULARY = 50257
HASH_BYTES = 1 << 20  # hashed of each file, because there is no meta.json with hashes
BLOCK_TOKENS = 1 << 23  # checked at a time
MIN_WIDE_TOKENS = 16  # shorter files are too short to look like int32 or int64
REMEDY = "prepare the text with prepare_text.py"


def find_foreign(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split in a folder of foreign shards, sorted by name."""
    splits = {}
    for path in sorted(folder.glob("*.bin")):
        match = SHARD_NAME.fullmatch(path.name) or WHOLE_SPLIT_NAME.fullmatch(path.name)
        if match:
            splits.setdefault(match["split"], []).append(path)
    return splits


def is_headerless(path: Path) -> bool:
    """Return whether a file is nanoGPT's: tokens without a header."""
    return path.name in HEADERLESS_NAMES and not has_header(path)


@functools.cache  # so that the message is printed once per process and folder
def describe_foreign(folder: Path) -> dict:
    """Return the content of meta.json for a folder of foreign shards.

    Each file's "sha256" covers its name, size, header and first MB, which are quick to read.
    Raises InputError if there are none, or if the files cannot be GPT-2 tokens.
    """
    found = find_foreign(folder)
    if not found:
        raise InputError(f"{folder} has no shards: pass the folder of a data set")
    splits = {}
    headerless = False
    for split, paths in found.items():
        if len(paths) > 1 and any(map(WHOLE_SPLIT_NAME.fullmatch, (path.name for path in paths))):
            names = " ".join(path.name for path in paths)
            raise InputError(
                f"{folder} has shards of several data sets for {split} ({names}): "
                "move each data set to its own folder"
            )
        splits[split] = {"shards": [_describe_file(path) for path in paths]}
        headerless = headerless or any(map(is_headerless, paths))
    if headerless and (folder / "meta.pkl").exists():
        text = folder / "input.txt"
        remedy = f"use {text}" if text.exists() else "use its text"
        raise InputError(
            f"{folder} holds nanoGPT's character-level tokens (meta.pkl), not GPT-2's: "
            f"{REMEDY} ({remedy})"
        )
    print(
        f"{folder} has no meta.json: its shards are read as GPT-2 tokens (vocabulary "
        f"{GPT2_VOCABULARY}) without verification; the data's hash in records covers names, "
        "headers, sizes and the first MB of each file"
    )
    return {
        "dataset": folder.resolve().name,
        "tokenizer": "gpt2",
        "vocab_size": GPT2_VOCABULARY,
        "complete": True,
        "splits": splits,
    }


def _describe_file(path: Path) -> dict:
    """Return the entry of meta.json for a file. Raises InputError if it cannot be read."""
    try:
        size = path.stat().st_size
        name_and_size = f"{path.name} {size} ".encode()
        with open(path, "rb") as file:
            head = file.read(HEADER_BYTES + HASH_BYTES)
        headerless = is_headerless(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): remove it, or make it readable"
        ) from None
    return {
        "file": path.name,
        "tokens": size // 2 if headerless else int.from_bytes(head[8:12], "little"),
        "sha256": hashlib.sha256(name_and_size + head).hexdigest(),
    }


def check_foreign(paths: list[Path], all_tokens: bool = False) -> list[str]:
    """Return the problems of foreign shards, one line each.

    Checks headers and sizes, and that GPT-2 has the tokens: all of them, or those of the first MB.
    """
    problems = []
    for path in paths:
        found = check_shard(path, version=1, headerless=path.name in HEADERLESS_NAMES)
        problems += found or _check_tokens(path, all_tokens)
    return problems


def _check_tokens(path: Path, all_tokens: bool) -> list[str]:
    """Return a line about the first token that GPT-2 does not have, or an empty list.

    A headerless file of int32 or int64 is reported as such: every second uint16 in it is 0.
    """
    tokens = TokenFile(path)
    head = tokens[: HASH_BYTES // 2]
    if is_headerless(path) and len(head) >= MIN_WIDE_TOKENS and not head[1::2].any():
        return [
            f"{path} looks like int32 or int64, not uint16: write it with tokens.astype(np.uint16)"
        ]
    last = len(tokens) if all_tokens else HASH_BYTES // 2
    for start in range(0, last, BLOCK_TOKENS):
        block = tokens[start : min(start + BLOCK_TOKENS, last)]
        if block.max(initial=0) >= GPT2_VOCABULARY:
            bad = int((block >= GPT2_VOCABULARY).argmax())
            return [
                f"{path} is not GPT-2 tokens (token {block[bad]} at offset {start + bad} is "
                f"outside the vocabulary of {GPT2_VOCABULARY}): {REMEDY}"
            ]
    return []
