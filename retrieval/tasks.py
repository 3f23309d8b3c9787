"""Retrieval tasks: documents, queries, relevance judgments; the metric nDCG.

    task = load_task(None, "test")  # English MLDR: 200,000 documents, 800 queries
    task = load_task("data/mine", "test")  # a folder in BEIR's layout

docs/retrieval.md describes the files of BEIR's layout (Thakur et al.
2021). Documents without a judgment are irrelevant.
"""

import functools
import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

from errors import InputError
from text_data import hub, text_sources

HUB = "mteb/MultiLongDocRetrieval"  # MLDR (Chen et al. 2024) in BEIR's layout


@dataclass
class Task:
    """A retrieval task.

    documents, queries: text by id. qrels: by query id, {document id:
    relevance > 0}. revision: commit on the hub.
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
        rows, revision = _read_folder(source, split, remedy) if source else _read_hub(split)
        documents = _texts_by_id(rows["corpus"], remedy, with_title=True)
        queries = _texts_by_id(rows["queries"], remedy)
        qrels = _relevant_documents(rows["qrels"], remedy)
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
        name = row.get("_id", row.get("id"))
        text = row.get("text")
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
        try:
            query = str(row["query-id"])
            document = str(row["corpus-id"])
            relevance = int(row["score"])
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f"{location} has no query-id, corpus-id or integer score: {remedy}"
            ) from None
        if relevance > 0:
            qrels.setdefault(query, {})[document] = relevance
    return qrels


def _read_folder(folder: str, split: str, remedy: str) -> tuple[dict, None]:
    """Return (file and line, row) pairs of each part, and None as commit."""

    def read(name, *columns):
        path = Path(folder) / name
        with hub.input_errors(str(path), remedy, is_local=True):
            for row, values in text_sources.read_file(path, columns):
                if values.get("line") != "":
                    yield f"{path}, line {row + 1}", values

    rows: dict = {part: read(f"{part}.jsonl") for part in ("corpus", "queries")}
    judgments = read(f"qrels/{split}.tsv", "line")
    lines = [(where, row["line"].split("\t")) for where, row in judgments]
    names = lines[0][1] if lines else []
    rows["qrels"] = [(at, dict(zip(names, row, strict=False))) for at, row in lines[1:]]
    return rows, None


def _read_hub(split: str) -> tuple[dict, str | None]:
    """Return (table and row number, row) pairs of MLDR's parts; its commit."""
    rows, revision = {}, None
    for part in ("corpus", "queries", "qrels"):
        options = {"path": HUB, "name": f"en-{part}", "split": split}
        table, revision = hub.load_table(options, revision)
        locations = (f"{HUB}, row {number} of en-{part}" for number in range(len(table)))
        rows[part] = zip(locations, table, strict=True)
    return rows, revision


def ndcg(ranking: list[str], relevant: dict[str, int], k: int = 10) -> float:
    """Return the normalized discounted cumulative gain, in [0, 1].

    ranking: document ids, the best first. relevant: relevance by
    document id. DCG = sum of relevance / log2(1 + rank) of the first k
    (Järvelin and Kekäläinen 2002).
    """

    def dcg(relevances):
        ranked = enumerate(relevances[:k], 1)
        return sum(value / math.log2(1 + rank) for rank, value in ranked)

    gained = dcg([relevant.get(document, 0) for document in ranking])
    return gained / dcg(sorted(relevant.values(), reverse=True))
