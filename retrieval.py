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

import corpus
from errors import InputError

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
    name, mend = (source, "mend it, or name another --data") if source else (HUB, "give a folder as --data")
    with corpus.reading(name, mend):
        parts = _from_folder(Path(source), split) if source else _from_hub(split)
        try:
            documents = {str(row.get("_id", row.get("id"))): f"{row.get('title') or ''} {row['text']}".strip() for row in parts["corpus"]}
            questions = {str(row.get("_id", row.get("id"))): row["text"] for row in parts["queries"]}
            relevant = {}
            for row in parts["qrels"]:
                if int(row["score"]) > 0:
                    relevant.setdefault(str(row["query-id"]), {})[str(row["corpus-id"])] = int(row["score"])
        except (KeyError, TypeError) as error:
            raise InputError(f"{name} is no retrieval task ({error} is missing): {mend}") from None
    lost = [question for question in relevant if question not in questions]
    lost += [document for found in relevant.values() for document in found if document not in documents]
    if lost or not relevant:
        raise InputError(f"{name}: qrels of the split {split} name {lost[0] if lost else 'nothing'}, which is not there: {mend}")
    return Task(Path(source).name if source else "mldr-en", documents, {question: questions[question] for question in relevant}, relevant)


def _from_folder(folder: Path, split: str) -> dict[str, list[dict]]:
    def lines(path):
        return [line for line in (folder / path).read_text(encoding="utf-8").split("\n") if line]  # splitlines cuts inside of texts

    names, *rows = (line.split("\t") for line in lines(f"qrels/{split}.tsv"))
    return {"qrels": [dict(zip(names, row)) for row in rows],
            **{part: [json.loads(line) for line in lines(f"{part}.jsonl")] for part in ("corpus", "queries")}}


def _from_hub(split: str) -> dict:
    import datasets

    datasets.disable_progress_bars()
    return {part: datasets.load_dataset(HUB, f"en-{part}", split=split) for part in ("corpus", "queries", "qrels")}


def ndcg(ranking: list[str], relevant: dict[str, int], k: int = 10) -> float:
    """Of documents, the best first: the sum of their relevance over log2(1 + rank), as a share of what the best ranking reaches; the
    first k count (Järvelin and Kekäläinen 2002).
    """
    def gained(values):
        return sum(value / math.log2(1 + rank) for rank, value in enumerate(values[:k], 1))

    return gained([relevant.get(document, 0) for document in ranking]) / gained(sorted(relevant.values(), reverse=True))
