"""Fixtures of the retrieval tests: a task, exported encoders, triplets and fine-tuned encoders."""

import json
import random

import pytest
from conftest import TINY
from retrieval_helpers import WORDS, run_finetune, write_task


@pytest.fixture
def task(tmp_path):
    """The folder of a task with 40 documents of 60 to 120 bytes and 12 queries.

    Each query has one relevant document; q0 has a second, more relevant one.
    """
    random.seed(0)
    documents = {}
    for n in range(40):
        title = random.choice(WORDS)
        text = " ".join(random.choices(WORDS, k=random.randint(10, 18)))
        documents[f"d{n}"] = {"title": title, "text": text}
    words = [documents[f"d{n}"]["text"].split()[3:6] for n in range(12)]
    queries = {f"q{n}": {"text": " ".join(part)} for n, part in enumerate(words)}
    qrels = [(f"q{n}", f"d{n}", 1) for n in range(12)]
    qrels += [("q0", "d30", 2), ("q1", "d31", 0)]
    return write_task(tmp_path / "toy", documents, queries, qrels)


@pytest.fixture(scope="session")
def exported(data_dir, tmp_path_factory):
    """exported("alibi"): the folder of an exported encoder, trained at 16 tokens.

    Its run is in the folder next to it, "alibi-run".
    """
    import export_hf
    import train_gpt

    root, done = tmp_path_factory.mktemp("exported"), {}

    def export(pe):
        if pe not in done:
            run = str(root / f"{pe}-run")
            flags = ["--objective", "mlm", "--data", str(data_dir), "--pe", pe]
            train_gpt.main([*TINY, *flags, "--out_dir", run])
            export_hf.main([run, "--out_dir", str(root / pe)])
            done[pe] = root / pe
        return done[pe]

    return export


@pytest.fixture(scope="session")
def triplets(tmp_path_factory):
    """The path of a file with 64 triplets."""
    random.seed(1)
    path = tmp_path_factory.mktemp("triplets") / "triplets.jsonl"
    with open(path, "w") as file:
        for number in range(64):
            a, b, c = random.sample(WORDS, 3)
            row = {
                "score": 1,
                "query": f"{a} {b} {number}",
                "positive": f"{number} {b} and {a}",
                "negative": f"{number} {c} and {a}",
            }
            file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="session")
def finetuned(exported, triplets, tmp_path_factory):
    """finetuned("alibi"): the folder of a fine-tuned encoder."""
    root, done = tmp_path_factory.mktemp("finetuned"), {}

    def run(pe):
        if pe not in done:
            done[pe] = run_finetune(exported(pe), triplets, root / pe)
        return done[pe]

    return run
