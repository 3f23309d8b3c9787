"""Tests of retrieval tasks: reading folders, malformed files, and nDCG."""

import copy
import json
import math

import numpy as np
import pytest
from retrieval_helpers import write_task

from errors import InputError
from retrieval import tasks

pytest_plugins = ["retrieval_fixtures"]

HEADER = "query-id\tcorpus-id\tscore\n"


def test_ndcg_by_hand():
    assert tasks.ndcg(["a", "b"], {"a": 1}) == 1 and tasks.ndcg(["b", "c"], {"a": 1}) == 0
    assert tasks.ndcg(["b", "a"], {"a": 1}) == pytest.approx(1 / math.log2(3))
    assert tasks.ndcg(["b", "a", "c"], {"a": 3, "c": 1}) == pytest.approx(
        (3 / math.log2(3) + 1 / 2) / (3 + 1 / math.log2(3))
    )
    assert tasks.ndcg([*map(str, range(11))], {"10": 1}) == 0  # at rank eleven
    assert tasks.ndcg(["0"], {str(n): 1 for n in range(20)}) == pytest.approx(
        1 / sum(1 / math.log2(1 + rank) for rank in range(1, 11))
    )


def test_ndcg_agrees_with_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    generator = np.random.default_rng(0)
    for _ in range(50):
        relevance, scores = generator.integers(0, 3, 30), generator.random(30)
        ranking = [str(n) for n in np.argsort(-scores)]
        relevant = {str(n): int(value) for n, value in enumerate(relevance) if value}
        expected = metrics.ndcg_score([relevance], [scores], k=10)
        assert tasks.ndcg(ranking, relevant) == pytest.approx(expected)


def test_load_a_folder(task):
    loaded = tasks.load_task(str(task), "test")
    assert loaded.name == "toy" and len(loaded.documents) == 40 and len(loaded.queries) == 12
    first = json.loads((task / "corpus.jsonl").read_text().splitlines()[0])
    assert loaded.documents["d0"] == f"{first['title']} {first['text']}"
    assert loaded.qrels["q0"] == {"d0": 1, "d30": 2}
    assert loaded.qrels["q1"] == {"d1": 1}  # relevance 0 is left out
    other = copy.deepcopy(loaded)
    other.qrels["q0"]["d30"] = 1
    assert other.sha256 != loaded.sha256


def test_unicode_line_separators_do_not_end_a_row(tmp_path):
    """JSON allows them unescaped in strings."""
    text = "one\u2028two\x85three"
    folder = write_task(tmp_path / "task", {}, {"q": {"text": text}}, [("q", "d", 1)])
    row = json.dumps({"_id": "d", "text": text}, ensure_ascii=False)
    (folder / "corpus.jsonl").write_text(row + "\n", encoding="utf-8")
    assert tasks.load_task(str(folder), "test").documents == {"d": text}


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("queries.jsonl", None, "cannot be read .*queries.jsonl"),
        ("corpus.jsonl", '{"_id": "d0"}\n', "line 1 is not an object with _id and text"),
        ("corpus.jsonl", '{"_id": "d0", "text": ""}\n{', "line 2 is not JSON"),
        ("corpus.jsonl", "[1]", "line 1 is not an object with _id and text"),
        ("corpus.jsonl", '{"text": "one"}', "line 1 is not an object with _id and text"),
        (
            "queries.jsonl",
            '{"_id": "q0", "text": null}',
            "line 1 is not an object with _id and text",
        ),
        (
            "corpus.jsonl",
            '{"_id": "d0", "text": "a"}\n{"_id": "d0", "text": "b"}',
            "line 2 has a second text for d0",
        ),
        (
            "qrels/test.tsv",
            HEADER + "q0\td0\tgood\n",
            "line 2 has no query-id, corpus-id or integer score",
        ),
        ("qrels/test.tsv", HEADER + "q0\td0\n", "line 2 has no query-id"),
        ("qrels/test.tsv", "", "split test have no relevant document"),
        ("qrels/test.tsv", HEADER, "split test have no relevant document"),
        ("qrels/test.tsv", HEADER + "q0\td99\t1\n", "split test name an unknown d99"),
        ("qrels/test.tsv", HEADER + "q99\td1\t1\n", "split test name an unknown q99"),
    ],
)
def test_malformed_tasks_are_refused_with_their_location(task, name, content, message):
    if content is None:
        (task / name).unlink()
    else:
        (task / name).write_text(content)
    location = f"{name}, " if message.startswith("line") else ""
    pattern = f"toy.*{location}{message}.*: repair it, or use another --data"
    with pytest.raises(InputError, match=pattern):
        tasks.load_task(str(task), "test")
