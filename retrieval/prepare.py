"""Makes a retrieval task and triplets to fine-tune on out of any prepared text: which stretch was this sentence taken from?

    python -m retrieval.prepare data/stdlib                                         # -> data/stdlib-retrieval
    python -m retrieval.prepare data/fineweb-edu --out_dir data/mine --length 16384
    python -m retrieval.finetune exported/cable --data data/mine/triplets.jsonl --out_dir runs/retrieval/cable
    python -m retrieval.evaluate runs/retrieval/cable --data data/mine

The inverse cloze task (Lee et al. 2019, section 4): a question is a sentence, its answer the stretch of text that it was cut out of.
The split `val` gives the task, in the layout that retrieval.py tells: stretches of --length characters, some of them with a question
from anywhere in them. `train` gives the triplets: passages of --passage characters, and as the negative another one of the same
document. For what the CABLE paper measures, MS MARCO and MLDR, none of this is needed.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from errors import InputError
from runtime import cli
from runtime.files import atomic, atomic_folder
from text_data import tokenization
from text_data.shards import Shards

SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")  # what lies between two
SIZES = 30, 200  # characters of a question
TRIES = 100  # stretches looked at for each that is wanted


@dataclass
class Config:
    """Settings of a preparation."""

    data: list[str] = field(default_factory=list)
    """folder of the shards"""
    out_dir: str | None = None
    """folder of the task; null: the shards' with -retrieval behind it"""
    triplets: int = 20_000
    """how many to fine-tune on"""
    passage: int = 1000
    """characters of their passages"""
    documents: int = 2000
    """how many the task has, at most"""
    questions: int = 400
    """how many of them are asked for"""
    length: int = 16_384
    """characters of a document"""
    seed: int = 1
    """of what is chosen"""

    def __post_init__(self):
        problems = cli.check_minimums(
            self,
            triplets=1,
            documents=2,
            questions=1,
            passage=2 * SIZES[1],
            length=2 * SIZES[1],
            seed=0,
        )
        if problems:
            raise InputError(*problems)


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("data", "folder of the shards"))
    if len(config.data) != 1:
        raise InputError("name one folder of shards: python -m retrieval.prepare data/NAME")
    out = Path(config.out_dir or f"{config.data[0].rstrip('/')}-retrieval")
    if out.exists():
        raise InputError(f"{out} is there already: choose another --out_dir, or remove it")
    train, val = (
        Text(Shards(config.data[0], split), generator)
        for split, generator in zip(("train", "val"), np.random.default_rng(config.seed).spawn(2))
    )
    documents, questions = task_of(val, config)
    triplets = triplets_of(train, config)
    qrels = [
        ("query-id", "corpus-id", "score"),
        *((f"q{number}", f"d{number}", 1) for number in questions),
    ]
    with atomic_folder(out) as folder:
        write(folder / "triplets.jsonl", map(json.dumps, triplets))
        write(
            folder / "corpus.jsonl",
            (
                json.dumps({"_id": f"d{number}", "text": text})
                for number, text in enumerate(documents)
            ),
        )
        write(
            folder / "queries.jsonl",
            (json.dumps({"_id": f"q{number}", "text": text}) for number, text in questions.items()),
        )
        write(folder / "qrels" / "test.tsv", ("\t".join(map(str, line)) for line in qrels))
    print(
        f"{out}: {len(triplets):,} triplets; {len(documents):,} documents of at most {config.length:,} characters, "
        f"{len(questions):,} questions"
    )


class Text:
    """The documents of a split, and numbers at random."""

    def __init__(self, shards: Shards, generator: np.random.Generator):
        self.shards, self.generator = shards, generator
        self.encoding = tokenization.tiktoken_encoding(shards.tokenizer)
        self.spans = []  # (shard, first token, end) of every document
        for number, tokens in enumerate(shards.tokens):
            starts = np.flatnonzero(tokens == self.encoding.eot_token)
            self.spans += [
                (number, int(start) + 1, int(end))
                for start, end in zip(starts, [*starts[1:], len(tokens)])
            ]
        self.sizes = np.array([end - start for _, start, end in self.spans], dtype=np.float64)

    def decoded(self, number: int, start: int, end: int) -> str:
        """The tokens `start` to `end` of a document; what was cut within a character is left out."""
        shard, first, last = self.spans[number]
        tokens = self.shards.tokens[shard][first + start : min(first + end, last)]
        return self.encoding.decode_bytes(tokens.tolist()).decode(errors="ignore")

    def without_a_sentence(self, text: str) -> tuple[str, str] | None:
        """One of its sentences, a whole one, and the text without it; None where it has none of a fitting size."""
        gaps = [*SENTENCE.finditer(text)]
        places = ((before.end(), after.start()) for before, after in zip(gaps, gaps[1:]))
        found = [(start, end) for start, end in places if SIZES[0] <= end - start <= SIZES[1]]
        if not found:
            return None
        start, end = found[self.generator.integers(len(found))]
        return text[start:end], text[:start] + text[end:].lstrip()


def task_of(val: Text, config: Config) -> tuple[list[str], dict[int, str]]:
    """Documents, in an order at random, and of some by their number the sentence that was cut out of them."""
    stretches = [
        part
        for number, size in enumerate(val.sizes)
        for part in cut(val.decoded(number, 0, int(size)), config.length)
    ]
    documents = [
        stretches[n] for n in val.generator.permutation(len(stretches))[: config.documents]
    ]
    questions = {}
    for number, text in enumerate(documents):
        if len(questions) < config.questions and (found := val.without_a_sentence(text)):
            questions[number], documents[number] = found
    if len(questions) < config.questions:
        raise InputError(
            f"{val.shards.folder} (val) gives {len(questions)} questions of {len(documents)} documents: lower --questions or "
            "--length, or prepare more text"
        )
    return documents, questions


def cut(text: str, length: int) -> list[str]:
    """Stretches of so many characters; a shorter one at the end, unless it is less than half of that."""
    parts = [text[start : start + length] for start in range(0, len(text), length)]
    return [part for part in parts if len(part) >= length / 2]


def triplets_of(train: Text, config: Config) -> list[dict[str, str]]:
    """Question, passage and negative; documents count by their size."""
    found, share = [], train.sizes / train.sizes.sum()
    for number in train.generator.choice(len(share), TRIES * config.triplets, p=share):
        if len(found) == config.triplets:
            return found
        size = int(train.sizes[number])
        places = train.generator.integers(max(1, size - config.passage), size=2)
        passage, negative = (
            train.decoded(number, int(place), int(place) + config.passage)[: config.passage]
            for place in places
        )
        pair = train.without_a_sentence(passage)
        if pair and abs(places[0] - places[1]) >= config.passage and len(negative) >= SIZES[1]:
            found.append({"query": pair[0], "positive": pair[1], "negative": negative})
    raise InputError(
        f"{train.shards.folder} (train) gives {len(found)} triplets: lower --triplets or --passage, or prepare more text"
    )


def write(path: Path, lines) -> None:
    with atomic(path) as file:
        for line in lines:
            file.write(line.encode() + b"\n")


if __name__ == "__main__":
    cli.run(main)
