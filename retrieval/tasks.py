"""Retrieval tasks: documents, queries, relevance judgments; the metric nDCG.

    task = load_task(None, "test")  # English MLDR: 200,000 documents, 800 queries
    task = load_task("data/mine", "test")  # a folder in BEIR's layout

docs/retrieval.md describes the files of BEIR's layout (Thakur et al. 2021). Documents without a
judgment are irrelevant.
"""

import csv
import functools
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

from errors import InputError, refusing
from text_data import hub, text_sources

HUB = "mteb/MultiLongDocRetrieval"  # MLDR (Chen et al. 2024) in BEIR's layout


@dataclass
class Task:
    """A retrieval task.

    documents, queries: text by id. qrels: by query id, {document id: relevance > 0}. revision:
    commit on the hub.
    """

    name: str
    documents: dict[str, str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    revision: str | None = None

    @functools.cached_property
    def sha256(self) -> str:
        digest = hashlib.sha256()
        for part in (self.documents, self.queries, self.qrels):
            for item in sorted(part.items()):
                digest.update(json.dumps(item).encode())
        return digest.hexdigest()


def load_task(source: str | None, split: str) -> Task:
    """Return the task in a folder; None: English MLDR from the hub.

    Raises InputError for a missing or malformed part, or an unknown id.
    """
    name = source or HUB
    remedy = "repair it, or use another --data" if source else "pass a folder as --data"
    with hub.input_errors(name, remedy, is_local=bool(source)):
        parts, revision = _read_folder(source, split) if source else _read_hub(split)
        documents = _texts_by_id(parts["corpus"], remedy, with_title=True)
        queries = _texts_by_id(parts["queries"], remedy)
        qrels = _relevant_documents(parts["qrels"], remedy)
    where = f"{name}: qrels of the split {split}"
    if not qrels:
        raise InputError(f"{where} have no relevant document: {remedy}")
    judged = {document for relevant in qrels.values() for document in relevant}
    for unknown in sorted(qrels.keys() - queries.keys() | judged - documents.keys()):
        raise InputError(f"{where} name an unknown {unknown}: {remedy}")
    return Task(
        name=Path(source).name if source else "mldr-en",
        documents=documents,
        queries={query: queries[query] for query in qrels},
        qrels=qrels,
        revision=revision,
    )


def _texts_by_id(rows, remedy: str, with_title: bool = False) -> dict[str, str]:
    """Return text by id; rows: pairs of a location, for errors, and a row."""
    texts = {}
    for location, row in rows:
        # Newer tables of MTEB call the column "id".
        name, text = row.get("_id", row.get("id")), row.get("text")
        if name is None or not isinstance(text, str):
            raise InputError(f"{location} is not an object with _id and text: {remedy}")
        if with_title:
            text = f"{row.get('title') or ''} {text}".strip()
        if texts.setdefault(str(name), text) != text:
            raise InputError(f"{location} has a second text for {name}: {remedy}")
    return texts


def _relevant_documents(rows, remedy: str) -> dict[str, dict[str, int]]:
    """Return {document: relevance} by query, without irrelevant documents."""
    qrels = {}
    for location, row in rows:
        what = f"{location} has no query-id, corpus-id or integer score"
        with refusing(what, remedy, (KeyError, TypeError, ValueError)):
            query, document, relevance = (
                row["query-id"],
                row["corpus-id"],
                int(row["score"]),
            )
        if relevance > 0:
            qrels.setdefault(str(query), {})[str(document)] = relevance
    return qrels


def _read_folder(folder: str, split: str) -> tuple[dict, None]:
    """Return (file and line, row) pairs of each part, and None as commit."""
    parts = {}
    for part in ("corpus", "queries"):
        path = Path(folder, f"{part}.jsonl")
        rows = text_sources.read_file(path, ())
        parts[part] = [(f"{path}, line {number + 1}", row) for number, row in rows]
    path = Path(folder, "qrels", f"{split}.tsv")
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        parts["qrels"] = [(f"{path}, line {rows.line_num}", row) for row in rows]
    return parts, None


def _read_hub(split: str) -> tuple[dict, str | None]:
    """Return (table and row number, row) pairs of MLDR's parts; its commit."""
    parts, revision = {}, None
    for part in ("corpus", "queries", "qrels"):
        options = {"path": HUB, "name": f"en-{part}", "split": split}
        table, revision = hub.load_table(options, revision)
        parts[part] = ((f"{HUB}, row {n} of en-{part}", row) for n, row in enumerate(table))
    return parts, revision


def ndcg(ranking: list[str], relevant: dict[str, int], k: int = 10) -> float:
    """Return the normalized discounted cumulative gain, in [0, 1].

    ranking: document ids, the best first. relevant: relevance by document id. DCG = sum of
    relevance / log2(1 + rank) of the first k (Järvelin and Kekäläinen 2002).
    """

    def dcg(relevances):
        ranked = enumerate(relevances[:k], 1)
        return sum(value / math.log2(1 + rank) for rank, value in ranked)

    gained = dcg([relevant.get(document, 0) for document in ranking])
    return gained / dcg(sorted(relevant.values(), reverse=True))
