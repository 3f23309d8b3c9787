"""Measures how fast the programs of this repository are.

    python bench.py prepare                                         # the embedded corpus, in a parquet file
    python bench.py prepare --source corpus.jsonl.xz --out prepare.json

prepare: a jsonl or parquet file becomes shards on the disk, by the code that prepares data, against tiktoken's own
`encode_ordinary_batch` on all cores, which gets the same texts in memory. The two take turns, after one round that is not
counted; told are medians. Timed are opening the file, reading, decompressing, tokenising, hashing, writing and syncing.
"""

import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch

import cli
import corpus
import shards
import runs
from errors import InputError
from files import write_json


@dataclass
class Config:
    """Settings of a measurement."""

    what: list[str] = field(default_factory=list)
    """what to measure: prepare"""
    source: str | None = None
    """prepare: jsonl or parquet file of texts; none: the embedded corpus"""
    text_column: str = "text"
    """prepare: column that holds the text"""
    tokenizer: Literal["bytes", "gpt2"] = "gpt2"
    """prepare: bytes or gpt2"""
    repeats: int = 5
    """rounds that are counted"""
    out: str | None = None
    """JSON file of the numbers, with hardware and versions"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("what", "what to measure: " + ", ".join(BENCHMARKS)))
    problems = [f"'{name}' is not measured here: choose from {', '.join(BENCHMARKS)}" for name in config.what if name not in BENCHMARKS]
    if problems or not config.what:
        raise InputError(*problems or [f"name what to measure: {', '.join(BENCHMARKS)}"])
    if config.repeats < 1:
        raise InputError(f"repeats is {config.repeats}: it must be at least 1")
    results = {name: BENCHMARKS[name](config) for name in config.what}
    if config.out:
        write_json(config.out, {**results, **runs.provenance(torch.device("cpu")), "cores": os.cpu_count(),
                                "tiktoken": version("tiktoken"), "datasets": version("datasets")})


def prepare(config: Config) -> dict:
    """Tokens per second of the preparation and of tiktoken alone, and their ratio."""
    encoding = corpus.tiktoken_encoding(config.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(config.source) if config.source else _embedded_corpus(Path(folder) / "stdlib.parquet")
        if not corpus.table_kind(source) or not source.is_file():
            raise InputError(f"{source} is no jsonl or parquet file that is there: name another --source")
        load = corpus.local([source])
        texts = [text for _, text in corpus.rows(str(source), config.text_column, load)]

        if not texts:
            raise InputError(f"{source} holds no rows: name another --source")
        seconds = {"pipeline": [], "tiktoken": []}
        for round_ in range(config.repeats + 1):  # the first one warms up
            begun = time.perf_counter()
            writer = shards.ShardWriter(shards.Meta(Path(folder) / str(round_), {"dataset": "bench"}), "train", 10**8)
            rows = corpus.rows(str(source), config.text_column, load, on_mark=writer.mark)
            corpus.tokenise(((writer, number, corpus.pieces(text)) for number, text in rows), encoding, [writer])
            seconds["pipeline"].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            encoding.encode_ordinary_batch(texts, num_threads=os.cpu_count())
            seconds["tiktoken"].append(time.perf_counter() - begun)
        tokens = writer.meta.value["splits"]["train"]["tokens"]
    rates = {name: tokens / statistics.median(counted[1:]) for name, counted in seconds.items()}
    ratio = rates["pipeline"] / rates["tiktoken"]
    print(f"prepare, {source.name}, {config.tokenizer}, {os.cpu_count()} cores, median of {config.repeats}: "
          f"{rates['pipeline']:,.0f} tokens/s to shards, {rates['tiktoken']:,.0f} tokens/s by tiktoken alone, ratio {ratio:.3f}")
    return {"source": source.name, "tokenizer": config.tokenizer, "documents": len(texts), "tokens": tokens,
            "tokens_per_second": rates, "ratio": ratio, "seconds": {name: counted[1:] for name, counted in seconds.items()}}


def _embedded_corpus(path: Path) -> Path:
    """The embedded corpus as a parquet file, a row per source file."""
    import pyarrow
    import pyarrow.parquet

    texts = [file.read_text(encoding="utf-8", errors="replace") for file in corpus.standard_library()]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    return path


BENCHMARKS = {"prepare": prepare}  # name on the command line -> its measurement


if __name__ == "__main__":
    cli.run(main)
