"""Tasks of retrieval: reading folders, nDCG, and queries and triplets made from prepared text."""

import copy
import json
import math
from pathlib import Path

import pytest

import prepare_text
from errors import InputError
from retrieval import prepare, tasks

pytest_plugins = ["retrieval_fixtures"]

HEADER = "query-id\tcorpus-id\tscore\n"
D0 = '{"_id": "d0", "text": "a"}'


def test_ndcg_by_hand():
    assert tasks.ndcg(["a", "b"], {"a": 1}) == 1 and tasks.ndcg(["b", "c"], {"a": 1}) == 0
    assert tasks.ndcg(["b", "a"], {"a": 1}) == pytest.approx(1 / math.log2(3))
    assert tasks.ndcg(["b", "a", "c"], {"c": 1, "a": 3}) == pytest.approx(
        (3 / math.log2(3) + 1 / 2) / (3 + 1 / math.log2(3))
    )
    assert tasks.ndcg([*map(str, range(11))], {"10": 1}) == 0  # at rank eleven
    assert tasks.ndcg(["0"], {str(n): 1 for n in range(20)}) == pytest.approx(
        1 / sum(1 / math.log2(1 + rank) for rank in range(1, 11))
    )


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
    # Blank lines are no rows, and Unicode's line separators, which JSON allows, do not end a row.
    other.documents["d"] = "one\u2028two\x85three"
    row = json.dumps({"_id": "d", "text": other.documents["d"]}, ensure_ascii=False)
    for name, end in (("corpus.jsonl", f"\n{row}\n"), ("qrels/test.tsv", "\n")):
        (task / name).write_text((task / name).read_text() + end, encoding="utf-8")
    longer = tasks.load_task(str(task), "test")
    assert longer.documents == other.documents and longer.qrels == loaded.qrels


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("queries.jsonl", None, "cannot be read .*queries.jsonl"),
        ("corpus.jsonl", '{"_id": "d0"}\n', "line 1 is not an object with _id and text"),
        ("corpus.jsonl", '{"_id": "d0", "text": ""}\n{', "cannot be read .line 2 is not JSON"),
        ("corpus.jsonl", "[1]", "line 1 is not an object with _id and text"),
        ("corpus.jsonl", '{"text": "one"}', "line 1 is not an object with _id and text"),
        ("queries.jsonl", '{"_id": "q", "text": null}', "line 1 is not an object with _id and"),
        ("corpus.jsonl", f'{D0}\n{D0[:-3]}b"}}', "line 2 has a second text for d0"),
        ("qrels/test.tsv", HEADER + "q0\td0\tgood\n", "line 2 has no query-id, corpus-id or int"),
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


# Made from prepared text

FLAGS = ["--triplets", "50", "--passage", "400", "--documents", "15", "--questions", "10"]
FLAGS += ["--length", "600"]


def run_prepare(shards, out, *flags):
    prepare.main([str(shards), *FLAGS, *flags, "--out_dir", str(out)])
    return out


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """(shards, {split: texts of its documents}).

    24 documents of unique sentences of 40 characters, with letters of two bytes. The first
    document of each split has 150 characters, too few for a query or a triplet.
    """
    root, texts = tmp_path_factory.mktemp("text"), {"train": [], "val": []}
    for split, count in (("train", 16), ("val", 8)):
        (root / split).mkdir()
        for number in range(count):
            start = f"{split} {number} ä very long sentence"
            sentences = [f"{start} {n * n} öf it. " for n in range(80)]
            document = "".join(sentences)[: 150 if number == 0 else None]
            texts[split].append(document)
            (root / split / f"{number:02}.txt").write_text(document)
    shards = root / "shards"
    prepare_text.main([str(root / "train"), "--val", str(root / "val"), "--out_dir", str(shards)])
    return shards, texts


@pytest.fixture
def prepared(text, tmp_path):
    return run_prepare(text[0], tmp_path / "task")


def test_a_query_is_a_sentence_removed_from_its_document(prepared, text):
    task = tasks.load_task(str(prepared), "test")
    assert len(task.documents) == 15 and len(task.queries) == 10
    for query, sentence in task.queries.items():
        (name,) = task.qrels[query]
        document = task.documents[name]
        assert 30 <= len(sentence) <= 200 and sentence.endswith(".")
        assert sentence not in document
        (whole,) = [original for original in text[1]["val"] if sentence in original]
        before, after = whole.split(sentence)
        # The document is the text before and after the sentence.
        cuts = range(len(document) + 1)
        assert any(document[:cut] in before and document[cut:] in after for cut in cuts)
    for document in task.documents.values():
        assert len(document) <= 600
        assert document not in text[1]["val"][0]  # it is less than half of --length
    assert len({next(iter(relevant)) for relevant in task.qrels.values()}) == 10
    assert len({document[:12] for document in task.documents.values()}) > 3


def test_a_triplet_is_from_one_document(prepared, text):
    triplets = read_rows(prepared / "triplets.jsonl")
    assert len(triplets) == 50
    for triplet in triplets:
        assert set(triplet) == {"query", "positive", "negative"}
        query, positive, negative = triplet["query"], triplet["positive"], triplet["negative"]
        (document,) = [original for original in text[1]["train"] if query in original]
        assert query not in positive and query not in negative
        assert negative in document and positive[:20] in document
        assert 200 <= len(negative) <= 400
    assert len({triplet["query"] for triplet in triplets}) > 35


@pytest.mark.parametrize("seed, same", [(1, True), (2, False)])
def test_output_depends_only_on_the_seed(prepared, text, tmp_path, seed, same):
    again = run_prepare(text[0], tmp_path / "again", "--seed", str(seed))
    for name in ("triplets.jsonl", "corpus.jsonl", "queries.jsonl"):
        assert ((prepared / name).read_bytes() == (again / name).read_bytes()) == same


def test_an_interruption_leaves_no_folder(text, tmp_path, monkeypatch):
    write_text = Path.write_text

    def interrupt(path, *content):
        if path.name == "queries.jsonl":
            raise KeyboardInterrupt
        return write_text(path, *content)

    monkeypatch.setattr(Path, "write_text", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_prepare(text[0], tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def test_too_little_text_is_refused(refused, text, tmp_path):
    out = tmp_path / "out"
    (line,) = refused(
        prepare.main, text[0], *FLAGS, "--triplets", "1", "--passage", "4000", "--out_dir", out
    )
    assert "(train) gives 0 triplets: use a lower --triplets or --passage" in line
    assert not out.exists()
