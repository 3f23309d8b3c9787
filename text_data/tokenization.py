"""Tokenization: turn documents into token shards, on all cores and in order.

    source = {"files": text_sources.fingerprint(files)}
    tokenizer, meta = start_preparation("data/mine", "gpt2", 10**8, source)
    writer = shards.ShardWriter(meta, "train", 10**8)
    rows = text_sources.read_rows(...)
    documents = ((writer, number, text_sources.split_text(text)) for number, text in rows)
    write_shards(meta, [writer], documents, tokenizer, remedy="pass more text")

A document is (writer of its split, its number in that writer's source, pieces of its text).
"""

import os
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tqdm import tqdm

from errors import InputError
from text_data import shards, text_sources


def load_tokenizer(name: str):
    """Return the tokenizer `name`, "gpt2" or "bytes": a tiktoken.Encoding.

    The 256 tokens of "bytes" are the bytes of UTF-8; it needs no download.
    Raises InputError for other names, and if the vocabulary of gpt2 is neither cached nor
    reachable.
    """
    import tiktoken

    if name == "bytes":
        return tiktoken.Encoding(
            name,
            pat_str=r"(?s).",
            mergeable_ranks={bytes([i]): i for i in range(256)},
            special_tokens={"<|endoftext|>": 256},
        )
    if name != "gpt2":
        raise InputError(f"unknown tokenizer '{name}': choose bytes or gpt2")
    try:
        return tiktoken.get_encoding(name)
    except OSError as error:  # the errors of `requests` are OSErrors
        raise InputError(
            f"the gpt2 vocabulary could not be fetched ({type(error).__name__}): connect to the "
            "network once, set TIKTOKEN_CACHE_DIR to a folder that has it, or use "
            "--tokenizer bytes"
        ) from None


def start_preparation(out_dir: str, name: str, shard_tokens: int, source: dict) -> tuple:
    """Return the tokenizer and the `Meta` of a new or resumed preparation.

    name: of the tokenizer.
    source: what the tokens are prepared from, JSON. Nothing is written yet.
    Raises InputError if out_dir holds something else.
    """
    if shard_tokens < 1:
        raise InputError(f"shard_tokens is {shard_tokens}: it must be at least 1")
    tokenizer = load_tokenizer(name)
    description = {
        "dataset": Path(out_dir).resolve().name,
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.n_vocab,
        "source": {**source, "shard_tokens": shard_tokens},
    }
    return tokenizer, shards.Meta(out_dir, description)


def write_shards(
    meta: shards.Meta,
    writers: list[shards.ShardWriter],
    documents,
    tokenizer,
    remedy: str,
    total: int | None = None,
) -> None:
    """Write the missing shards and print a summary.

    total: number of documents for the progress bar, if known.
    Raises InputError, with `remedy`, if a split gets no text; everything written is removed then.
    """
    if meta.value["complete"]:
        print(f"{meta.folder} is already prepared: {summarize(meta)}")
        return
    with preparing(meta):
        tokenize_documents(documents, tokenizer, writers, total)
        for split, record in meta.value["splits"].items():
            if not record["shards"]:
                meta.remove()
                raise InputError(f"no text is left for the split '{split}': {remedy}")


@contextmanager
def preparing(meta: shards.Meta):
    """Mark the data set as incomplete during the block and as complete after it.

    If the block raises InputError before the first shard is written, meta.json is removed.
    """
    meta.value["complete"] = False
    meta.write()
    try:
        yield
    except InputError:
        if not any(record["shards"] for record in meta.value["splits"].values()):
            meta.remove()
        raise
    meta.value["complete"] = True
    meta.write()
    print(f"{meta.folder}: {summarize(meta)}")


def summarize(meta: shards.Meta) -> str:
    """Return the number of tokens and documents per split, in words."""
    return ", ".join(
        f"{split} {record['tokens']:,} tokens of {record['documents']:,} documents"
        for split, record in meta.value["splits"].items()
    )


def tokenize_documents(
    documents, tokenizer, writers: list[shards.ShardWriter], total: int | None = None
) -> None:
    """Tokenize documents in a thread pool and add them to their writers, in order.

    Every document starts with <|endoftext|>. At most 4 batches per core are waiting, so memory is
    bounded. Stops early when all writers are full.
    """
    workers = os.cpu_count() or 1
    start_time = time.perf_counter()
    current_document = None
    offset = tokens_done = 0

    def encode(batch):
        # tiktoken releases the GIL, so threads use all cores.
        return [
            (writer, number, tokenizer.encode_to_numpy(text, disallowed_special=()))
            for writer, number, text in batch
        ]

    def store(results):
        nonlocal offset, current_document, tokens_done
        for writer, number, tokens in results:
            if (writer, number) != current_document:
                current_document = (writer, number)
                offset = 0
                tokens = np.concatenate([[tokenizer.eot_token], tokens])
                bar.update()
            writer.add(number, offset, tokens)
            offset += len(tokens)
            tokens_done += len(tokens)
        speed = tokens_done / (time.perf_counter() - start_time)
        bar.set_postfix_str(f"{tokens_done:,} tokens, {speed:,.0f} tokens/s", refresh=False)

    with (
        ThreadPoolExecutor(workers) as pool,
        tqdm(total=total, unit=" documents", desc="prepare", disable=None) as bar,
    ):
        waiting, batch, characters = deque(), [], 0
        for writer, number, pieces in documents:
            for text in pieces:
                batch.append((writer, number, text))
                characters += len(text)
                if characters >= text_sources.PIECE // 4:
                    waiting.append(pool.submit(encode, batch))
                    batch, characters = [], 0
                if len(waiting) > 4 * workers:
                    store(waiting.popleft().result())
                if all(writer.full for writer in writers):
                    pool.shutdown(wait=False, cancel_futures=True)
                    return
        waiting.append(pool.submit(encode, batch))
        for future in waiting:
            store(future.result())
    for writer in writers:
        writer.close()
