"""Tokenization: turn documents into token shards, on all cores and in order.

    preparation = Preparation(settings, "data/mine", source, texts, ["train"])
    rows = text_sources.read_rows(...)
    preparation.write((("train", number, text) for number, text in rows), "pass more text")

A document is (its split, its number in the source, text or pieces).
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runtime import job_report
from runtime.files import check_writable

import numpy as np
from tqdm import tqdm

from errors import InputError
from setting import setting
from text_data import hub, shards, text_sources
from text_data.tokenizer import TOKENIZER_FILE, is_choice, load_tokenizer, make_tokenizer

# Characters of text that one thread tokenizes at a time, if not one piece.
BATCH_CHARACTERS = 1 << 16
BATCHES_PER_CORE = 16  # that wait at most, which bounds memory


@dataclass
class Settings:
    """Settings of all programs that prepare a data set."""

    tokenizer: str = "gpt2"
    """bytes (256 byte values and <|endoftext|>), gpt2 or another encoding of tiktoken, bpe:N
    (byte-level BPE of N tokens, trained on the text), hf:NAME_OR_FOLDER (Hugging Face), or the
    folder of a data set or run with such a tokenizer"""
    shard_tokens: int = setting(100_000_000, low=1, high=2**31 - 1)
    """tokens per shard"""
    min_tokens: int = setting(1, low=1)
    """leave out documents of fewer tokens, <|endoftext|> included"""
    verify: bool = False
    """only compare the shards in out_dir with their hashes"""


class Preparation:
    """A new or resumed preparation: its tokenizer, `Meta` and writers.

    source: what the tokens are prepared from, JSON. texts: a function that returns the text to
    train a tokenizer on. splits: those with a writer. A resumed preparation uses the tokenizer and
    the commit of data_set stored in out_dir. Writes nothing yet. Raises InputError if out_dir holds
    something else or cannot be written.
    """

    def __init__(
        self,
        settings: Settings,
        out_dir: str | Path,
        source: dict,
        texts: Callable[[], Iterable[str]],
        splits: Iterable[str] = (),
        data_set: hub.PinnedDataset | None = None,
    ):
        choice = settings.tokenizer
        self.settings = settings
        self.data_set = data_set
        source = {**source, "shard_tokens": settings.shard_tokens}
        if settings.min_tokens > 1:
            source["min_tokens"] = settings.min_tokens
        description = {"dataset": Path(out_dir).resolve().name, "source": source}
        # Checks come before a tokenizer is trained.
        existing = shards.Meta(out_dir, description)
        stored = existing.content.get("tokenizer", "")
        if data_set and "revision" in existing.content:
            data_set.commit = existing.content["revision"]
        if is_choice(choice, stored) and (existing.folder / TOKENIZER_FILE).exists():
            self.tokenizer = load_tokenizer(stored, out_dir)
        else:
            check_writable(existing.folder)
            self.tokenizer = make_tokenizer(choice, texts)
        description |= {
            "tokenizer": self.tokenizer.name,
            "vocab_size": self.tokenizer.vocab_size,
        }
        self.meta = shards.Meta(out_dir, description, self.tokenizer.files)
        size = settings.shard_tokens
        self.writers = {split: shards.ShardWriter(self.meta, split, size) for split in splits}

    def write(self, documents, remedy: str) -> None:
        """Write the missing shards and print a summary.

        If a split gets no text, removes everything written and raises InputError with `remedy`.
        """
        meta = self.meta
        if meta.content["complete"]:
            print(f"{meta.folder} is already prepared: {summarize(meta)}")
            job_report.append(repeated=True)
            return
        if self.data_set and (commit := self.data_set.commit):
            meta.content["revision"] = commit
        with preparing(meta):
            self._tokenize(documents)
            for split, record in meta.content["splits"].items():
                if not record["shards"]:
                    meta.remove()
                    raise InputError(f"no text is left for the split '{split}': {remedy}")

    def _tokenize(self, documents) -> None:
        """Tokenize documents in threads; add them to their writers, in order."""
        writers = self.writers.values()
        workers = os.cpu_count() or 1
        waiting = deque()  # (batch, future of its tokens)
        offset = 0  # of the next piece's first token in its document
        held = []  # tokens of a document that has fewer than min_tokens so far

        def store_next():
            nonlocal offset, held
            batch, future = waiting.popleft()
            encoded = zip(batch, future.result(), strict=True)
            for (split, number, is_start, _), tokens in encoded:
                if is_start:
                    offset, held = 0, [np.array([self.tokenizer.eot])]
                held.append(tokens)
                if offset == 0 and sum(map(len, held)) < self.settings.min_tokens:
                    continue
                joined = np.concatenate(held)
                self.writers[split].add(number, offset, joined)
                offset += len(joined)
                bar.update(len(joined))
                held = []

        with (
            ThreadPoolExecutor(workers) as pool,
            tqdm(unit=" tokens", unit_scale=True, desc="prepare", disable=None) as bar,
        ):
            for batch in self._batches(documents):
                texts = [text for *_, text in batch]
                waiting.append((batch, pool.submit(self.tokenizer.encode_batch, texts)))
                if len(waiting) > BATCHES_PER_CORE * workers:
                    store_next()
                if all(writer.full for writer in writers):
                    pool.shutdown(wait=False, cancel_futures=True)
                    return
            while waiting:
                store_next()
        for writer in writers:
            writer.close()

    def _batches(self, documents):
        """Yield lists of (split, document, whether it starts here, text)."""
        batch, characters = [], 0
        for split, number, text in documents:
            if number < self.writers[split].start[0]:
                continue  # in a finished shard
            pieces = text_sources.split_text(text) if isinstance(text, str) else text
            for index, piece in enumerate(pieces):
                batch.append((split, number, index == 0, piece))
                characters += len(piece)
                if characters >= BATCH_CHARACTERS:
                    yield batch
                    batch, characters = [], 0
        yield batch


@contextmanager
def preparing(meta: shards.Meta):
    """Mark the data set as incomplete in the block; remove it if it is empty."""
    meta.content["complete"] = False
    meta.write()
    try:
        yield
    except InputError:
        if not any(record["shards"] for record in meta.content["splits"].values()):
            meta.remove()
        raise
    meta.content["complete"] = True
    meta.write()
    print(f"{meta.folder}: {summarize(meta)}")


def summarize(meta: shards.Meta) -> str:
    """Return the number of tokens and documents per split, in words."""
    return ", ".join(
        f"{split} {record['tokens']:,} tokens of {record['documents']:,} documents"
        for split, record in meta.content["splits"].items()
    )
