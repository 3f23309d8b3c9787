"""Prepare a retrieval task and fine-tuning triplets from token shards.

    python -m retrieval.prepare data/stdlib  # -> data/stdlib-retrieval
    python -m retrieval.prepare data/fineweb-edu --out_dir data/mine --length 16384
    python -m retrieval.finetune exported/cable --data data/mine/triplets.jsonl \
        --out_dir runs/retrieval/cable
    python -m retrieval.evaluate runs/retrieval/cable --data data/mine

This is the inverse cloze task (Lee et al. 2019, section 4): a query is
a sentence, and the relevant document is the text that it was removed
from.

The task (layout: retrieval/tasks.py) is made from the split `val`:
documents of --length characters, and queries from any position in some
of them. Triplets are made from `train`: passages of --passage
characters, with another passage of the same document as the negative.
MS MARCO and MLDR do not need this program.
"""

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path

from runtime import cli
from runtime.files import atomic_folder, check_writable

import numpy as np

from data_loader import Shards
from errors import InputError
from setting import setting
from text_data.tokenizer import load_tokenizer

SENTENCE_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")
MIN_QUERY, MAX_QUERY = 30, 200  # characters of a query
ATTEMPTS = 100  # passages to try for each triplet


@dataclass
class Config:
    """Settings of a preparation."""

    data: list[str] = setting([], positional=True)
    """folder of the shards"""
    out_dir: str | None = None
    """folder of the task; default: the shards' folder with the suffix -retrieval"""
    triplets: int = setting(20_000, 1, 10**7)
    """number of triplets"""
    passage: int = setting(1000, 2 * MAX_QUERY)
    """characters per passage of a triplet"""
    documents: int = setting(2000, 2)
    """highest number of documents in the task"""
    questions: int = setting(400, 1)
    """number of queries, each from another document"""
    length: int = setting(16_384, 2 * MAX_QUERY)
    """characters per document"""
    seed: int = setting(1, 0)
    """seed of all random choices"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    if len(config.data) != 1:
        raise InputError("pass one folder of shards: python -m retrieval.prepare data/NAME")
    out = Path(config.out_dir or f"{config.data[0].rstrip('/')}-retrieval")
    if out.exists():
        raise InputError(f"{out} already exists: use another --out_dir, or remove it")
    check_writable(out)
    train_generator, val_generator = np.random.default_rng(config.seed).spawn(2)
    train = SplitText(Shards(config.data[0], "train"), train_generator)
    val = SplitText(Shards(config.data[0], "val"), val_generator)
    documents, queries = make_task(val, config)
    triplets = make_triplets(train, config)

    qrels = [f"q{number}\td{number}\t1" for number in queries]
    corpus = [{"_id": f"d{number}", "text": text} for number, text in enumerate(documents)]
    query_rows = [{"_id": f"q{number}", "text": text} for number, text in queries.items()]
    tables = {"triplets": triplets, "corpus": corpus, "queries": query_rows}
    files = {f"{name}.jsonl": [*map(json.dumps, rows)] for name, rows in tables.items()}
    files["qrels/test.tsv"] = ["query-id\tcorpus-id\tscore", *qrels]
    with atomic_folder(out) as folder:
        (folder / "qrels").mkdir()
        for name, lines in files.items():
            (folder / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    print(
        f"{out}: {len(triplets):,} triplets; {len(documents):,} documents of at most "
        f"{config.length:,} characters, {len(queries):,} queries"
    )


class SplitText:
    """The documents of a split as text, and a random generator."""

    def __init__(self, shards: Shards, generator: np.random.Generator):
        self.shards, self.generator = shards, generator
        self.tokenizer = load_tokenizer(shards.tokenizer, shards.folder)
        self.documents = []  # tokens of its shard, its first one and the one after its last
        for tokens in shards.tokens:
            starts = np.flatnonzero(tokens[:] == self.tokenizer.eot)
            for start, end in itertools.pairwise([*starts, len(tokens)]):
                self.documents.append((tokens, int(start) + 1, int(end)))
        # float64, to draw documents by their size
        self.sizes = np.array([float(end - start) for _, start, end in self.documents])

    def decode(self, number: int, start: int, end: int) -> str:
        """Return tokens start:end of a document as text of whole characters."""
        tokens, first, last = self.documents[number]
        part = tokens[first + start : min(first + end, last)]
        return self.tokenizer.decode(part.tolist(), errors="ignore")

    def remove_sentence(self, text: str) -> tuple[str, str] | None:
        """Return a random sentence of a text, and the rest, or None."""
        sentences = [
            (before.end(), after.start())
            for before, after in itertools.pairwise(SENTENCE_BREAK.finditer(text))
            if MIN_QUERY <= after.start() - before.end() <= MAX_QUERY
        ]
        if not sentences:
            return None
        start, end = sentences[self.generator.integers(len(sentences))]
        return text[start:end], text[:start] + text[end:].lstrip()


def make_task(val: SplitText, config: Config) -> tuple[list[str], dict[int, str]]:
    """Return shuffled documents, and the queries removed, by document number."""
    parts = []  # of --length characters, without last parts of less than half
    for number, size in enumerate(val.sizes):
        text = val.decode(number, 0, int(size))
        cut = [text[at : at + config.length] for at in range(0, len(text), config.length)]
        parts += [part for part in cut if len(part) >= config.length / 2]
    chosen = val.generator.permutation(len(parts))[: config.documents]
    documents = [parts[number] for number in chosen]
    queries = {}
    for number, text in enumerate(documents):
        if len(queries) == config.questions:
            break
        if sentence_and_rest := val.remove_sentence(text):
            queries[number], documents[number] = sentence_and_rest
    if len(queries) < config.questions:
        raise InputError(
            f"{val.shards.folder} (val) gives {len(queries)} queries from {len(documents)} "
            "documents: use a lower --questions or --length, or prepare more text"
        )
    return documents, queries


def make_triplets(train: SplitText, config: Config) -> list[dict[str, str]]:
    """Return rows of query, positive and negative; draw documents by size."""
    triplets = []
    probabilities = train.sizes / train.sizes.sum()
    draws = ATTEMPTS * config.triplets
    for number in train.generator.choice(len(probabilities), draws, p=probabilities):
        if len(triplets) == config.triplets:
            return triplets
        last_start = max(1, int(train.sizes[number]) - config.passage)
        starts = train.generator.integers(last_start, size=2)
        positive, negative = (
            train.decode(number, int(start), int(start) + config.passage)[: config.passage]
            for start in starts
        )
        found = train.remove_sentence(positive)
        overlap = abs(starts[0] - starts[1]) < config.passage
        if found and not overlap and len(negative) >= MAX_QUERY:
            query, rest = found
            triplets.append({"query": query, "positive": rest, "negative": negative})
    raise InputError(
        f"{train.shards.folder} (train) gives {len(triplets)} triplets: "
        "use a lower --triplets or --passage, or prepare more text"
    )


if __name__ == "__main__":
    cli.run(main)
