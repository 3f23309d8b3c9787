"""Retrieval: tasks, their metric, fine-tuning by sentence-transformers, and the evaluation, against rankings worked out by hand."""

import copy
import json
import math
import random
import re
import shutil
import sys

import numpy as np
import pytest
import torch
from conftest import TINY

import report
from errors import InputError
from retrieval import tasks
from runtime import loading
from runtime.files import read_json

st = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

import export_hf  # noqa: E402
from retrieval import (
    evaluate,  # noqa: E402
    finetune,  # noqa: E402
)

WORDS = "apple bear cloud drum eagle fish grass house ink jelly kite lamp moon nest oak pear quill river".split()


def task_in(folder, documents, questions, relevant, split="test"):
    """A task in BEIR's layout."""
    (folder / "qrels").mkdir(parents=True)
    for name, texts in (("corpus", documents), ("queries", questions)):
        (folder / f"{name}.jsonl").write_text(
            "".join(json.dumps({"_id": key, **text}) + "\n" for key, text in texts.items())
        )
    lines = "".join(f"{question}\t{document}\t{score}\n" for question, document, score in relevant)
    (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return folder


@pytest.fixture
def task(tmp_path):
    """40 documents of 60 to 120 bytes, 12 questions; each has one answer, the first of them a second, better one."""
    random.seed(0)
    documents = {
        f"d{n}": {
            "title": random.choice(WORDS),
            "text": " ".join(random.choices(WORDS, k=random.randint(10, 18))),
        }
        for n in range(40)
    }
    questions = {
        f"q{n}": {"text": " ".join(documents[f"d{n}"]["text"].split()[3:6])} for n in range(12)
    }
    relevant = [*((f"q{n}", f"d{n}", 1) for n in range(12)), ("q0", "d30", 2), ("q1", "d31", 0)]
    return task_in(tmp_path / "toy", documents, questions, relevant)


def test_ndcg_by_hand():
    assert tasks.ndcg(["a", "b"], {"a": 1}) == 1 and tasks.ndcg(["b", "c"], {"a": 1}) == 0
    assert tasks.ndcg(["b", "a"], {"a": 1}) == pytest.approx(1 / math.log2(3))
    assert tasks.ndcg(["b", "a", "c"], {"a": 3, "c": 1}) == pytest.approx(
        (3 / math.log2(3) + 1 / 2) / (3 + 1 / math.log2(3))
    )
    assert tasks.ndcg([*map(str, range(11))], {"10": 1}) == 0  # in place eleven
    assert tasks.ndcg(["0"], {str(n): 1 for n in range(20)}) == pytest.approx(
        1 / sum(1 / math.log2(1 + r) for r in range(1, 11))
    )


def test_ndcg_is_scikit_learns():
    from sklearn.metrics import ndcg_score

    generator = np.random.default_rng(0)
    for _ in range(50):
        relevance, scores = generator.integers(0, 3, 30), generator.random(30)
        ranking = [str(n) for n in np.argsort(-scores)]
        ours = tasks.ndcg(
            ranking, {str(n): int(value) for n, value in enumerate(relevance) if value}
        )
        assert ours == pytest.approx(ndcg_score([relevance], [scores], k=10))


def test_a_task_on_disk(task):
    found = tasks.load(str(task), "test")
    assert found.name == "toy" and len(found.documents) == 40 and len(found.questions) == 12
    first = json.loads((task / "corpus.jsonl").read_text().splitlines()[0])
    assert found.documents["d0"] == f"{first['title']} {first['text']}"
    assert found.relevant["q0"] == {"d0": 1, "d30": 2} and found.relevant["q1"] == {
        "d1": 1
    }  # 0 is irrelevant
    other = copy.deepcopy(found)
    other.relevant["q0"]["d30"] = 1
    assert other.sha256 != found.sha256  # records are of these judgements


def test_lines_end_where_json_says(tmp_path):
    """Not where Unicode knows other ends of lines, which JSON may hold as they are."""
    text = "one\u2028two\x85three"
    folder = task_in(tmp_path / "task", {}, {"q": {"text": text}}, [("q", "d", 1)])
    (folder / "corpus.jsonl").write_text(
        json.dumps({"_id": "d", "text": text}, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    assert tasks.load(str(folder), "test").documents == {"d": text}


def test_mldr_is_read_from_the_hub(task, monkeypatch):
    import datasets

    here, asked = (
        {
            part: [row for _, row in rows]
            for part, rows in tasks._from_folder(task, "test", "").items()
        },
        [],
    )

    def load_dataset(path, name, split):
        asked.append((path, name, split))
        rows = here[name.removeprefix("en-")]
        return [
            {"id" if key == "_id" else key: value for key, value in row.items()} for row in rows
        ]  # as newer tables of MTEB have it

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found, local = tasks.load(None, "dev"), tasks.load(str(task), "test")
    assert found.name == "mldr-en" and found.sha256 == local.sha256
    assert asked == [
        ("mteb/MultiLongDocRetrieval", f"en-{part}", "dev")
        for part in ("corpus", "queries", "qrels")
    ]


@pytest.mark.parametrize(
    "damage, said",
    [
        (lambda folder: (folder / "queries.jsonl").unlink(), "cannot be read .*queries.jsonl"),
        (
            lambda folder: (folder / "corpus.jsonl").write_text('{"_id": "d0"}\n'),
            r"corpus.jsonl, line 1 is no object with _id and text",
        ),
        (
            lambda folder: (folder / "corpus.jsonl").write_text('{"_id": "d0", "text": ""}\n{'),
            "corpus.jsonl, line 2 is no JSON",
        ),
        (
            lambda folder: (folder / "corpus.jsonl").write_text("[1]"),
            "corpus.jsonl, line 1 is no object with _id and text",
        ),
        (
            lambda folder: (folder / "corpus.jsonl").write_text('{"text": "one"}'),
            "corpus.jsonl, line 1 is no object with _id and text",
        ),
        (
            lambda folder: (folder / "queries.jsonl").write_text('{"_id": "q0", "text": null}'),
            "queries.jsonl, line 1 is no object with _id and text",
        ),
        (
            lambda folder: (folder / "corpus.jsonl").write_text(
                '{"_id": "d0", "text": "a"}\n{"_id": "d0", "text": "b"}'
            ),
            "corpus.jsonl, line 2 gives d0 a second text",
        ),
        (
            lambda folder: (folder / "qrels" / "test.tsv").write_text(
                "query-id\tcorpus-id\tscore\nq0\td0\tgood\n"
            ),
            "test.tsv, line 2 has no query-id, corpus-id or whole number as score",
        ),
        (
            lambda folder: (folder / "qrels" / "test.tsv").write_text(
                "query-id\tcorpus-id\tscore\nq0\td0\n"
            ),
            "test.tsv, line 2 has no query-id",
        ),
        (
            lambda folder: (folder / "qrels" / "test.tsv").write_text(""),
            "name nothing, which is not there",
        ),
        (
            lambda folder: (folder / "qrels" / "test.tsv").write_text(
                "query-id\tcorpus-id\tscore\nq0\td99\t1\n"
            ),
            "name d99, which is not there",
        ),
        (
            lambda folder: (folder / "qrels" / "test.tsv").write_text(
                "query-id\tcorpus-id\tscore\nq99\td1\t1\n"
            ),
            "name q99, which is not there",
        ),
        (
            lambda folder: (folder / "qrels" / "test.tsv").write_text(
                "query-id\tcorpus-id\tscore\n"
            ),
            "name nothing, which is not there",
        ),
    ],
)
def test_damaged_tasks_are_told(task, damage, said):
    damage(task)
    with pytest.raises(InputError, match=f"toy.*{said}.*: mend it, or name another --data"):
        tasks.load(str(task), "test")


@pytest.fixture(scope="module")
def exported(data_dir, tmp_path_factory):
    """exported("alibi"): the folder of an exported encoder, trained at 16 tokens."""
    import train_gpt

    root, done = tmp_path_factory.mktemp("exported"), {}

    def export(pe, *flags):
        if pe not in done:
            train_gpt.main(
                [
                    *TINY,
                    "--objective",
                    "mlm",
                    "--data",
                    str(data_dir),
                    "--pe",
                    pe,
                    "--out_dir",
                    str(root / f"{pe}-run"),
                    *flags,
                ]
            )
            export_hf.main([str(root / f"{pe}-run"), "--out_dir", str(root / pe)])
            done[pe] = root / pe
        return done[pe]

    return export


@pytest.fixture(scope="module")
def triplets(tmp_path_factory):
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


FLAGS = [
    "--batch",
    "8",
    "--mini_batch",
    "4",
    "--lr",
    "1e-2",
    "--log_every",
    "1",
    "--device",
    "cpu",
    "--dtype",
    "float32",
]


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def tuned(exported, triplets, tmp_path_factory):
    """tuned("alibi"): the folder of a fine-tuned encoder."""
    root, done = tmp_path_factory.mktemp("tuned"), {}

    def tune(pe):
        if pe not in done:
            finetune.main(
                [str(exported(pe)), "--data", str(triplets), *FLAGS, "--out_dir", str(root / pe)]
            )
            done[pe] = root / pe
        return done[pe]

    return tune


@pytest.mark.parametrize("pe", ["cable", "kerple", "learnable"])
def test_fine_tuning_learns_and_leaves_a_record(pe, tuned, triplets):
    record = read_json(tuned(pe) / "finetune.json", "")
    steps, losses = zip(*record["losses"])
    assert steps == tuple(range(1, 9)) and np.mean(losses[-2:]) < 0.9 * np.mean(losses[:2])
    assert losses[0] < 1.5 * math.log(16)  # of 8 passages and 8 negatives
    assert (
        record["settings"]["data"] == str(triplets)
        and record["settings"]["seed"] == 1
        and "commit" in record["provenance"]
    )
    assert not (tuned(pe) / "checkpoints").exists()


def test_the_loss_is_that_of_the_paper(exported, triplets, tmp_path):
    """Of the first step: each question's passage among all passages and negatives of the batch, cosines times 20, means over tokens."""
    flags = [
        str(exported("alibi")),
        "--data",
        str(triplets),
        *FLAGS,
        "--samples",
        "8",
        "--max_tokens",
        "9",
        "--lr",
        "0",
    ]
    finetune.main([*flags, "--out_dir", str(tmp_path / "run")])
    ((_, loss),) = read_json(tmp_path / "run" / "finetune.json", "")["losses"]
    model, _ = loading.load_model(
        exported("alibi").with_name("alibi-run"), torch.device("cpu"), causal=False
    )

    def vector(text):
        hidden = model.hidden(torch.tensor([[*text.encode()][:9]]))[0].mean(0).detach().double()
        return hidden / hidden.norm()

    rows = [json.loads(line) for line in triplets.read_text().splitlines()[:8]]
    questions, passages, negatives = (
        torch.stack([vector(row[name]) for row in rows])
        for name in ("query", "positive", "negative")
    )
    scores = 20 * questions @ torch.cat([passages, negatives]).T
    assert loss == pytest.approx(
        torch.nn.functional.cross_entropy(scores, torch.arange(8)).item(), abs=2e-4
    )


def test_triplets_of_the_hub_are_those_of_modernbert(triplets, monkeypatch):
    """Without the 1,000 rows that its recipe sets aside, in its order; those of a file are as they lie there."""
    import datasets

    rows = datasets.Dataset.from_list(
        [{"query": str(n), "positive": "a", "negative": "b"} for n in range(1300)]
    )
    load_dataset = datasets.load_dataset
    monkeypatch.setattr(
        datasets,
        "load_dataset",
        lambda **load: rows if load == finetune.HUB else load_dataset(**load),
    )
    theirs = rows.train_test_split(test_size=1_000, seed=12)["train"]
    for samples in (200, 10**6):
        found = finetune.triplets(finetune.Config(samples=samples))
        assert found["query"][:] == theirs["query"][:samples] and len(found) == min(samples, 300)
    found = finetune.triplets(finetune.Config(samples=5, data=str(triplets)))
    assert found["query"][:] == [
        json.loads(line)["query"] for line in triplets.read_text().splitlines()[:5]
    ]


def test_the_last_loss_is_kept(exported, triplets, tmp_path):
    """However few steps there are: of three, logged two by two."""
    flags = [
        str(exported("cable")),
        "--data",
        str(triplets),
        *FLAGS,
        "--samples",
        "24",
        "--log_every",
        "2",
    ]
    finetune.main([*flags, "--out_dir", str(tmp_path / "run")])
    assert [step for step, _ in read_json(tmp_path / "run" / "finetune.json", "")["losses"]] == [
        2,
        3,
    ]


def test_bounds_of_encodings_are_kept(exported, triplets, tmp_path):
    """Steps as long as 2: the exponents, at most 2, would go beyond."""
    flags = [str(exported("kerple-power")), "--data", str(triplets), *FLAGS, "--lr", "2"]
    finetune.main([*flags, "--out_dir", str(tmp_path / "run")])
    exponents = torch.cat(
        [value for name, value in weights(tmp_path / "run").items() if name.endswith(".r2")]
    )
    assert len(exponents) == 4 and exponents.max() == 2 and exponents.min() >= 0.01


def test_only_what_cannot_be_written_is_told_so(exported, triplets, tmp_path, monkeypatch):
    from transformers import Trainer

    def refuse(*arguments):
        raise OSError("no disk")

    flags = [str(exported("cable")), "--data", str(triplets), *FLAGS, "--samples", "8"]
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no disk"):
        patch.setattr(Trainer, "training_step", refuse)  # not of ours
        finetune.main([*flags, "--out_dir", str(tmp_path / "one")])
    monkeypatch.setattr(Trainer, "_save_checkpoint", refuse)
    with pytest.raises(InputError, match="cannot write .*checkpoints: no disk"):
        finetune.main([*flags, "--out_dir", str(tmp_path / "two")])


def test_a_diverged_training_is_told(exported, triplets, tmp_path):
    flags = [
        str(exported("cable")),
        "--data",
        str(triplets),
        *FLAGS,
        "--lr",
        "1e30",
        "--out_dir",
        str(tmp_path / "run"),
    ]
    with pytest.raises(
        InputError, match="the loss is nan at step [1-8]: lower --lr, and choose another --out_dir"
    ):
        finetune.main(flags)
    assert not (tmp_path / "run" / "model.safetensors").exists() and "losses" not in read_json(
        tmp_path / "run" / "finetune.json", ""
    )


def test_vectors_that_are_not_finite_are_no_ranking(refused, tuned, task, tmp_path):
    from safetensors.torch import save_file

    folder = shutil.copytree(tuned("cable"), tmp_path / "cable")
    save_file(
        {name: value * math.nan for name, value in weights(folder).items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    assert refused(
        evaluate.main,
        folder,
        "--data",
        task,
        "--lengths",
        "16",
        "--device",
        "cpu",
        "--dtype",
        "float32",
    ) == [
        f"error: {folder}: cut at 16 tokens, texts have vectors that are not finite: fine-tune again with a lower --lr"
    ]


def test_it_goes_on_with_the_same_content_alone(exported, triplets, tmp_path, monkeypatch):
    """Not with other triplets, or another encoder, of the same name."""
    from transformers import Trainer

    def killed(*_, **__):
        raise KeyboardInterrupt

    data, encoder = (
        shutil.copy(triplets, tmp_path / "triplets.jsonl"),
        shutil.copytree(exported("cable"), tmp_path / "cable"),
    )
    flags = [str(encoder), "--data", str(data), *FLAGS, "--out_dir", str(tmp_path / "run")]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "train", killed)
        finetune.main(flags)
    data.write_text("".join(triplets.read_text().splitlines(keepends=True)[::-1]))
    with pytest.raises(InputError, match="run began with other content of data: give the same"):
        finetune.main([*flags, "--resume"])
    shutil.copy(exported("alibi") / "model.safetensors", encoder)
    shutil.copy(exported("alibi") / "config.json", encoder)
    with pytest.raises(
        InputError, match="run began with other content of data and encoder: give the same"
    ):
        finetune.main([*flags, "--resume"])
    shutil.copy(triplets, data)
    shutil.copytree(exported("cable"), encoder, dirs_exist_ok=True)
    finetune.main([*flags, "--resume"])
    assert "losses" in read_json(tmp_path / "run" / "finetune.json", "")


@pytest.mark.parametrize("whole", [True, False])
def test_interrupted_it_goes_on_where_it_was(
    whole, exported, tuned, triplets, refused, tmp_path, monkeypatch, capsys
):
    """From the newest whole checkpoint, from the start without one: the next was cut off in writing, or the only one."""
    from transformers.trainer_callback import CallbackHandler

    flags = [
        str(exported("cable")),
        "--data",
        str(triplets),
        *FLAGS,
        "--checkpoint_every",
        "2",
        "--out_dir",
        str(tmp_path / "run"),
    ]
    steps, on_step_end = [], CallbackHandler.on_step_end

    def stop_at_five(*arguments):
        steps.append(1)
        if len(steps) == 5:
            raise KeyboardInterrupt
        return on_step_end(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(CallbackHandler, "on_step_end", stop_at_five)
        finetune.main(flags)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["checkpoint-4"]
    assert refused(finetune.main, *flags) == [
        f"error: {tmp_path / 'run'} already holds a training: go on with it by --resume, or choose another --out_dir"
    ]
    assert refused(finetune.main, *flags, "--resume", "--lr", "1e-3", "--mini_batch", "2") == [
        f"error: --resume: {tmp_path / 'run'} began with lr 0.01, not 0.001: give the same, or choose another --out_dir"
    ]
    last = tmp_path / "run" / "checkpoints" / "checkpoint-4"
    cut = shutil.copytree(last, last.with_name("checkpoint-12")) if whole else last
    (cut / "trainer_state.json").write_text((cut / "trainer_state.json").read_text()[:-20])
    shutil.copytree(cut, cut.with_name("checkpoint-8"))
    (cut.with_name("checkpoint-8") / "trainer_state.json").unlink()
    assert finetune.newest(last.parent) == (str(last) if whole else None)
    finetune.main([*flags, "--resume"])
    assert (
        read_json(tmp_path / "run" / "finetune.json", "")["losses"]
        == read_json(tuned("cable") / "finetune.json", "")["losses"]
    )
    finetune.main([*flags, "--resume"])
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path / 'run'} is fine-tuned already"
    for (name, ours), theirs in zip(
        weights(tmp_path / "run").items(), weights(tuned("cable")).values()
    ):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("pe", ["cable", "rope"])
def test_ranking_by_hand(pe, exported, tuned, task, tmp_path):
    """Texts cut at 16 and 64 bytes, through the fine-tuned weights in our own network, one by one."""
    folder = shutil.copytree(tuned(pe), tmp_path / pe)
    evaluate.main(
        [
            str(folder),
            "--data",
            str(task),
            "--lengths",
            "1x,64",
            "--device",
            "cpu",
            "--dtype",
            "float32",
        ]
    )
    record, found = (
        read_json(folder / "eval_retrieval_toy_test.json", ""),
        tasks.load(str(task), "test"),
    )
    model, _ = loading.load_model(
        exported(pe).with_name(f"{pe}-run"), torch.device("cpu"), causal=False
    )
    model.load_state_dict(
        {name.removeprefix("model."): value for name, value in weights(folder).items()}
        | {"wte.weight": torch.cat([weights(folder)["model.wte.weight"], torch.zeros(62, 16)])}
    )
    for length in (16, 64):

        def vectors(texts):
            rows = [
                model.hidden(torch.tensor([[*text.encode()][:length]]))[0].mean(0).detach()
                for text in texts
            ]
            return torch.nn.functional.normalize(torch.stack(rows), dim=-1)

        scores = vectors(found.questions.values()) @ vectors(found.documents.values()).T
        names, values = [*found.documents], []
        for question, row in zip(found.questions, scores):
            ranked = [names[n] for n in row.argsort(descending=True)[:10]]
            gained = sum(
                found.relevant[question].get(name, 0) / math.log2(2 + rank)
                for rank, name in enumerate(ranked)
            )
            values.append(100 * gained / (2 + 1 / math.log2(3) if question == "q0" else 1))
        entry = record["lengths"][str(length)]
        assert entry["by_question"] == pytest.approx(values) and entry["ndcg10"] == pytest.approx(
            np.mean(values)
        )
        assert entry["ndcg10_se"] == pytest.approx(np.std(values, ddof=1) / math.sqrt(12))
    assert (record["pe"], record["size"], record["block_size"], record["seed"]) == (
        pe,
        "custom",
        16,
        1,
    )


def test_lengths_that_are_there_are_not_computed_again(tuned, task, tmp_path, monkeypatch):
    folder = shutil.copytree(tuned("cable"), tmp_path / "cable")
    flags = [str(folder), "--data", str(task), "--device", "cpu", "--dtype", "float32"]
    evaluate.main([*flags, "--lengths", "16,32"])
    measured, measure = [], evaluate.measure
    monkeypatch.setattr(
        evaluate, "measure", lambda *asked: measured.append(asked[-1]) or measure(*asked)
    )
    evaluate.main([*flags, "--lengths", "16,32,64"])
    assert measured == [64] and list(
        read_json(folder / "eval_retrieval_toy_test.json", "")["lengths"]
    ) == ["16", "32", "64"]


def test_seeds_are_told_from_other_recipes(exported, triplets, task, tmp_path):
    """Other settings, other triplets under the same name, or an encoder of another training: a column each. Another batch that goes
    through the network at a time, or the encoder in another place: none."""

    def recipe(*flags, encoder=exported("cable")):
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        finetune.main(
            [
                str(encoder),
                "--data",
                str(data),
                *FLAGS,
                "--samples",
                "16",
                *flags,
                "--out_dir",
                str(out),
            ]
        )
        evaluate.main(
            [
                str(out),
                "--data",
                str(task),
                "--lengths",
                "16",
                "--device",
                "cpu",
                "--dtype",
                "float32",
            ]
        )
        return read_json(out / "eval_retrieval_toy_test.json", "")["recipe"]

    data = shutil.copy(triplets, tmp_path / "triplets.jsonl")
    first = recipe()
    assert first == recipe(
        "--seed",
        "2",
        "--mini_batch",
        "2",
        encoder=shutil.copytree(exported("cable"), tmp_path / "moved"),
    )
    other = shutil.copytree(exported("cable"), tmp_path / "longer")
    (other / "config.json").write_text(
        json.dumps({**read_json(other / "config.json", ""), "step": 12})
    )
    before = shutil.copytree(
        exported("cable"), tmp_path / "before"
    )  # as exports were before they told of it
    told = {
        name: value
        for name, value in read_json(before / "config.json", "").items()
        if name not in ("recipe", "step")
    }
    (before / "config.json").write_text(json.dumps(told))
    others = [recipe("--lr", "1e-3"), recipe(encoder=other), recipe(encoder=before)]
    data.write_text("".join(triplets.read_text().splitlines(keepends=True)[1:]))
    assert len({first, *others, recipe()}) == 5


def test_empty_texts_end_nothing(exported, tuned, task, triplets, tmp_path):
    """Their vector is 0, whether they go through the network alone or beside others; the ranking of other texts stays."""
    folder, flags = (
        shutil.copytree(tuned("cable"), tmp_path / "cable"),
        ["--lengths", "16", "--device", "cpu", "--dtype", "float32"],
    )
    evaluate.main([str(folder), "--data", str(task), *flags])
    before = read_json(folder / "eval_retrieval_toy_test.json", "")["lengths"]["16"]["by_question"]
    with (
        open(task / "corpus.jsonl", "a") as documents,
        open(task / "queries.jsonl", "a") as questions,
    ):
        documents.write('{"_id": "nothing", "text": ""}\n')
        questions.write('{"_id": "q12", "text": ""}\n')
    with open(task / "qrels" / "test.tsv", "a") as relevant:
        relevant.write("q12\tnothing\t1\n")
    task.rename(tmp_path / "more")
    for most in (evaluate.BATCH_TOKENS, 1):  # all together; one by one
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(evaluate, "BATCH_TOKENS", most)
            evaluate.main([str(folder), "--data", str(tmp_path / "more"), *flags])
        path = folder / "eval_retrieval_more_test.json"
        assert read_json(path, "")["lengths"]["16"]["by_question"][:12] == pytest.approx(before)
        path.unlink()
    (tmp_path / "triplets.jsonl").write_text(
        triplets.read_text() + '{"query": "a", "positive": "", "negative": ""}\n' * 8
    )
    finetune.main(
        [
            str(exported("cable")),
            "--data",
            str(tmp_path / "triplets.jsonl"),
            *FLAGS,
            "--mini_batch",
            "1",
            "--out_dir",
            str(tmp_path / "run"),
        ]
    )
    assert all(value.isfinite().all() for value in weights(tmp_path / "run").values())


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_drawn_on_terminals(terminal, tuned, task, tmp_path, monkeypatch, capsys):
    folder = shutil.copytree(tuned("cable"), tmp_path / "cable")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    evaluate.main(
        [
            str(folder),
            "--data",
            str(task),
            "--lengths",
            "16",
            "--device",
            "cpu",
            "--dtype",
            "float32",
        ]
    )
    assert ("Batches: 100%" in capsys.readouterr().err) == terminal


def test_the_report_sets_the_papers_numbers_beside(tuned, task, tmp_path, capsys):
    folders = [shutil.copytree(tuned(pe), tmp_path / pe) for pe in ("cable", "learnable")]
    evaluate.main(
        [
            *map(str, folders),
            "--data",
            str(task),
            "--lengths",
            "16,32",
            "--device",
            "cpu",
            "--dtype",
            "float32",
        ]
    )
    printed = capsys.readouterr().out
    assert (
        "nDCG@10 in percent on toy (test), 12 queries and 40 documents truncated to the context; "
        "models trained with 16 tokens of context." in printed
    )
    report.main(
        [
            *(str(folder / "eval_retrieval_toy_test.json") for folder in folders),
            "--paper",
            "results/paper/cable_table3_mldr_ndcg10_bert.csv",
            "--out_dir",
            str(tmp_path / "report"),
        ]
    )
    text = (tmp_path / "report" / "retrieval.md").read_text()
    assert "|      32 |" in text and "— |" in text  # learnable ends at 16
    lengths = read_json(folders[1] / "eval_retrieval_toy_test.json", "")["lengths"]
    assert lengths["16"] and lengths["32"] is None
    assert (
        "nDCG@10 relative to its value at the training length, here and in CABLE, table 3" in text
        and "1.01" in text
    )  # 15.15 / 14.96
    assert "cable: nDCG@10 at 2x / nDCG@10 at 1x > 1 (CABLE, table 3)" in text
    assert (tmp_path / "report" / "retrieval.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("main, flags", [(finetune.main, ["encoder"]), (evaluate.main, ["run"])])
def test_an_older_library_is_told_as_one(main, flags, refused, monkeypatch):
    """One that lacks what we import."""
    monkeypatch.delitem(sys.modules, "retrieval.sentence_encoder", raising=False)
    monkeypatch.setitem(sys.modules, "sentence_transformers.base.modules", None)
    (line,) = refused(main, *flags)
    assert line.endswith("sentence-transformers 6: pip install -r requirements-retrieval.txt")


@pytest.mark.parametrize("of", ["encoder", "run"])
def test_damaged_folders_are_told(of, refused, exported, tuned, triplets, task, tmp_path):
    source, main, flags = {
        "encoder": (
            exported("cable"),
            finetune.main,
            ("--data", triplets, "--out_dir", tmp_path / "out"),
        ),
        "run": (
            tuned("cable"),
            evaluate.main,
            ("--data", task, "--lengths", "16", "--device", "cpu"),
        ),
    }[of]

    def told(name, content):
        folder = shutil.copytree(source, tmp_path / "damaged")
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
        (line,) = refused(main, folder, *flags)
        shutil.rmtree(folder)
        return line

    whole = (source / "model.safetensors").read_bytes()
    for name, content in (
        ("model.safetensors", whole[: len(whole) // 2]),
        ("model.safetensors", None),
        ("modeling.py", None),
    ):
        assert re.fullmatch(
            "error: .*damaged cannot be read .*: make it again, or name a folder that .*",
            told(name, content),
        )
    assert "config.json cannot be read" in told("config.json", b"{")
    for content in (b"[1]", None):
        assert "damaged holds no encoder: name a folder that" in told("config.json", content)


def test_refusals(refused, exported, trained, tuned, triplets, task, tmp_path):
    tune, out = finetune.main, ("--out_dir", tmp_path / "out")
    assert "name one encoder" in refused(tune, *out)[0]
    assert (
        "holds no encoder: name a folder that export_hf.py made"
        in refused(tune, trained("cable"), "--data", triplets, *out)[0]
    )
    assert (
        "is no .jsonl or .parquet file"
        in refused(tune, exported("cable"), "--data", tmp_path / "none.jsonl", *out)[0]
    )
    (tmp_path / "pairs.jsonl").write_text('{"query": "a", "positive": "b"}\n')
    assert (
        "has no column negative: give query, positive, negative"
        in refused(tune, exported("cable"), "--data", tmp_path / "pairs.jsonl", *out)[0]
    )
    (tmp_path / "gaps.jsonl").write_text(
        '{"query": "a", "positive": "b", "negative": "c"}\n{"query": "a", "positive": null, "negative": "c"}\n'
    )
    assert (
        "has rows without positive: leave them out"
        in refused(tune, exported("cable"), "--data", tmp_path / "gaps.jsonl", *out)[0]
    )
    for value in ("7", '["c"]'):
        (tmp_path / "types.jsonl").write_text(
            f'{{"query": "a", "positive": "b", "negative": {value}}}\n'
        )
        assert (
            "types.jsonl has no text in negative: give each row one"
            in refused(tune, exported("cable"), "--data", tmp_path / "types.jsonl", *out)[0]
        )
    assert (
        "learnable knows positions up to 16 only: lower --max_tokens"
        in refused(tune, exported("learnable"), "--data", triplets, "--max_tokens", "17", *out)[0]
    )
    assert refused(tune, exported("cable"), "--batch", "1", "--warmup", "1", *out) == [
        "error: batch is 1: it must be at least 2",
        "error: warmup is 1.0: it must be below 1",
    ]
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert "holds other files" in refused(tune, exported("cable"), "--data", triplets, *out)[0]
    assert "no run named" in refused(evaluate.main)[0]
    assert (
        "holds no encoder: name a folder that retrieval.finetune made"
        in refused(evaluate.main, trained("cable"), "--data", task)[0]
    )
    assert (
        "finetune.json does not exist: name a folder that retrieval.finetune made"
        in refused(
            evaluate.main,
            tuned("cable"),
            exported("cable"),
            "--data",
            task,
            "--lengths",
            "16",
            "--device",
            "cpu",
        )[0]
    )
    assert not (tuned("cable") / "eval_retrieval_toy_test.json").exists()
    assert "nowhere" in refused(evaluate.main, tuned("cable"), "--data", tmp_path / "nowhere")[0]
    assert (
        "lengths '0': give token counts"
        in refused(evaluate.main, tuned("cable"), "--data", task, "--lengths", "0")[0]
    )
