"""What is a retrieval task: documents, questions, and which document answers which; and how good is a ranking?

    task = retrieval.load(None, "test")                     # MLDR in English, from the hub: 200,000 long documents, 800 questions
    task = retrieval.load("data/mine", "test")              # a folder laid out as BEIR's are
    retrieval.ndcg(["d3", "d1"], {"d1": 1})                 # 0.63: what answers the question comes second

A folder holds corpus.jsonl, lines of {"_id", "text", and maybe "title"}; queries.jsonl, lines of {"_id", "text"}; and
qrels/SPLIT.tsv: a header, then lines of question, document and how relevant that is to it, a whole number, separated by tabs
(Thakur et al. 2021). What is in no line is irrelevant.
"""

import functools
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

from errors import InputError
from text_data import text_sources

HUB = "mteb/MultiLongDocRetrieval"  # MLDR (Chen et al. 2024) in BEIR's layout


@dataclass
class Task:
    """Texts by their names; relevant: by question, the documents that answer it, and how well."""

    name: str
    documents: dict[str, str]
    questions: dict[str, str]
    relevant: dict[str, dict[str, int]]

    @functools.cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for part in (self.documents, self.questions, self.relevant):
            for item in sorted(part.items()):
                digest.update(json.dumps(item).encode())
        return digest.hexdigest()


def load(source: str | None, split: str) -> Task:
    """The task in a folder, or MLDR's English one from the hub. Raises InputError for what is missing, or refers to what is not there.

    Questions that nothing answers are left out.
    """
    name, mend = (
        (source, "mend it, or name another --data") if source else (HUB, "give a folder as --data")
    )
    with text_sources.input_errors(name, mend):
        parts = _from_folder(Path(source), split, mend) if source else _from_hub(split)
        documents, questions, relevant = (
            _texts(parts["corpus"], mend, titled=True),
            _texts(parts["queries"], mend),
            {},
        )
        for place, row in parts["qrels"]:
            try:
                question, document, score = (
                    str(row["query-id"]),
                    str(row["corpus-id"]),
                    int(row["score"]),
                )
            except (KeyError, TypeError, ValueError):
                raise InputError(
                    f"{place} has no query-id, corpus-id or whole number as score: {mend}"
                ) from None
            if score > 0:
                relevant.setdefault(question, {})[document] = score
    lost = [question for question in relevant if question not in questions]
    lost += [
        document for found in relevant.values() for document in found if document not in documents
    ]
    if lost or not relevant:
        raise InputError(
            f"{name}: qrels of the split {split} name {lost[0] if lost else 'nothing'}, which is not there: {mend}"
        )
    return Task(
        Path(source).name if source else "mldr-en",
        documents,
        {question: questions[question] for question in relevant},
        relevant,
    )


def _texts(rows, mend: str, titled: bool = False) -> dict[str, str]:
    """Texts by their names, behind their titles if titled, of (place, row). Raises InputError, which names the place, for what is none."""
    texts = {}
    for place, row in rows:
        name, text = (
            (row.get("_id", row.get("id")), row.get("text"))
            if isinstance(row, dict)
            else (None, None)
        )
        if name is None or not isinstance(text, str):
            raise InputError(f"{place} is no object with _id and text: {mend}")
        text = f"{row.get('title') or ''} {text}".strip() if titled else text
        if texts.setdefault(str(name), text) != text:
            raise InputError(f"{place} gives {name} a second text: {mend}")
    return texts


def _from_folder(folder: Path, split: str, mend: str) -> dict:
    """Rows of each part, with file and line."""

    def lines(path):
        texts = (
            (folder / path).read_text(encoding="utf-8").split("\n")
        )  # splitlines cuts inside of texts
        return [
            (f"{folder / path}, line {number}", line)
            for number, line in enumerate(texts, 1)
            if line
        ]

    def parsed(place, line):
        try:
            return place, json.loads(line)
        except ValueError as error:
            raise InputError(f"{place} is no JSON ({error}): {mend}") from None

    (_, names), *rows = lines(f"qrels/{split}.tsv") or [(None, "")]
    return {
        "qrels": [(place, dict(zip(names.split("\t"), row.split("\t")))) for place, row in rows],
        **{
            part: (parsed(*line) for line in lines(f"{part}.jsonl"))
            for part in ("corpus", "queries")
        },
    }


def _from_hub(split: str) -> dict:
    """The same from the hub."""
    import datasets

    datasets.disable_progress_bars()
    tables = {
        part: datasets.load_dataset(HUB, f"en-{part}", split=split)
        for part in ("corpus", "queries", "qrels")
    }
    return {
        part: ((f"{HUB}, row {number} of en-{part}", row) for number, row in enumerate(table))
        for part, table in tables.items()
    }


def ndcg(ranking: list[str], relevant: dict[str, int], k: int = 10) -> float:
    """Of documents, the best first: the sum of their relevance over log2(1 + rank), as a share of what the best ranking reaches; the
    first k count (Järvelin and Kekäläinen 2002).
    """

    def gained(values):
        return sum(value / math.log2(1 + rank) for rank, value in enumerate(values[:k], 1))

    return gained([relevant.get(document, 0) for document in ranking]) / gained(
        sorted(relevant.values(), reverse=True)
    )
