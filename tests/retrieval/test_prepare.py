"""Triplets and tasks made of prepared text: each sentence is found once more where it was taken from, and only there."""

import json

import numpy as np
import pytest

import prepare_text
from retrieval import prepare, tasks


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """(shards, {split: its documents}): 24 documents of sentences that occur once, of 40 characters, with letters of two bytes; the first
    ones, of 150 characters, are too short for anything."""
    root, texts = tmp_path_factory.mktemp("text"), {"train": [], "val": []}
    for split, count in (("train", 16), ("val", 8)):
        (root / split).mkdir()
        for number in range(count):
            document = "".join(
                f"{split} {number} ä very long sentence {n * n} öf it. " for n in range(80)
            )[: 150 if number == 0 else None]
            texts[split].append(document)
            (root / split / f"{number:02}.txt").write_text(document)
    prepare_text.main(
        [str(root / "train"), "--val", str(root / "val"), "--out_dir", str(root / "shards")]
    )
    return root / "shards", texts


FLAGS = [
    "--triplets",
    "50",
    "--passage",
    "400",
    "--documents",
    "15",
    "--questions",
    "10",
    "--length",
    "600",
]


@pytest.fixture
def made(text, tmp_path):
    prepare.main([str(text[0]), *FLAGS, "--out_dir", str(tmp_path / "task")])
    return tmp_path / "task"


def test_a_question_was_taken_from_its_document(made, text):
    task = tasks.load(str(made), "test")
    assert len(task.documents) == 15 and len(task.questions) == 10
    for question, sentence in task.questions.items():
        (document,) = task.relevant[question]
        assert (
            30 <= len(sentence) <= 200
            and sentence.endswith(".")
            and sentence not in task.documents[document]
        )
        (whole,) = [found for found in text[1]["val"] if sentence in found]
        before, after = whole.split(sentence)
        cut = task.documents[document]
        assert any(
            cut[:n] in before and cut[n:] in after for n in range(len(cut) + 1)
        )  # the text on both sides of it
    assert all(len(found) <= 600 for found in task.documents.values())
    assert not any(
        found in text[1]["val"][0] for found in task.documents.values()
    )  # shorter than half of a document
    asked = {next(iter(found)) for found in task.relevant.values()}
    assert len(asked) == 10 and len({document[:12] for document in task.documents.values()}) > 3


def test_triplets_are_of_one_document(made, text):
    triplets = lines(made / "triplets.jsonl")
    assert len(triplets) == 50 and all(
        set(triplet) == {"query", "positive", "negative"} for triplet in triplets
    )
    for triplet in triplets:
        (number,) = [n for n, found in enumerate(text[1]["train"]) if triplet["query"] in found]
        whole = text[1]["train"][number]
        assert (
            triplet["query"] not in triplet["positive"]
            and triplet["query"] not in triplet["negative"]
        )
        assert (
            triplet["negative"] in whole
            and triplet["positive"][:20] in whole
            and 200 <= len(triplet["negative"]) <= 400
        )
    assert len({triplet["query"] for triplet in triplets}) > 35


def test_the_same_again_and_another_with_another_seed(made, text, tmp_path):
    for seed, same in ((1, True), (2, False)):
        prepare.main(
            [str(text[0]), *FLAGS, "--seed", str(seed), "--out_dir", str(tmp_path / f"again{seed}")]
        )
        for name in ("triplets.jsonl", "corpus.jsonl", "queries.jsonl"):
            assert (
                (made / name).read_bytes() == (tmp_path / f"again{seed}" / name).read_bytes()
            ) == same


def test_interrupted_it_leaves_no_task(text, made, tmp_path, monkeypatch):
    """A folder that is there is a whole one; what is left of an interruption is no hindrance."""
    write, out = prepare.write, tmp_path / "out"

    def stop(path, lines):
        if path.name == "queries.jsonl":
            raise KeyboardInterrupt
        write(path, lines)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(prepare, "write", stop)
        prepare.main([str(text[0]), *FLAGS, "--out_dir", str(out)])
    assert not out.exists()
    prepare.main([str(text[0]), *FLAGS, "--out_dir", str(out)])
    assert (out / "corpus.jsonl").read_bytes() == (made / "corpus.jsonl").read_bytes() and not list(
        tmp_path.glob("*.partial")
    )


def test_documents_of_gpt2_tokens(text, tmp_path):
    """A token may hold several characters, or a part of one: a passage is cut in characters all the same."""
    from errors import InputError
    from text_data import tokenization

    try:
        tokenization.tiktoken_encoding("gpt2")
    except InputError as error:
        pytest.skip(str(error))
    root = text[0].parent
    prepare_text.main(
        [
            str(root / "train"),
            "--val",
            str(root / "val"),
            "--out_dir",
            str(tmp_path / "gpt2"),
            "--tokenizer",
            "gpt2",
        ]
    )
    prepare.main([str(tmp_path / "gpt2"), *FLAGS, "--out_dir", str(tmp_path / "task")])
    sizes = [len(triplet["negative"]) for triplet in lines(tmp_path / "task" / "triplets.jsonl")]
    assert max(sizes) == 400 and np.median(sizes) > 390


def test_refusals(refused, text, made, tmp_path):
    run, shards = prepare.main, text[0]
    assert "name one folder of shards" in refused(run)[0]
    assert "is there already" in refused(run, shards, "--out_dir", made)[0]
    out = ("--out_dir", tmp_path / "out")
    assert (
        "(val) gives"
        in refused(run, shards, *out, *FLAGS, "--documents", "20", "--questions", "21")[0]
    )
    assert (
        "(train) gives 0 triplets: lower --triplets or --passage"
        in refused(run, shards, *out, *FLAGS, "--passage", "4000")[0]
    )
    assert refused(run, shards, *out, "--passage", "399") == [
        "error: passage is 399: it must be at least 400"
    ]
    assert "does not exist" in refused(run, tmp_path / "nowhere", *out)[0]
    assert not (tmp_path / "out").exists()
