"""Tests of the retrieval evaluation, compared with rankings computed by hand."""

import json
import math
import re
import shutil

from runtime.files import read_json

import numpy as np
import pytest
import torch
from retrieval_helpers import CPU, FINETUNE, encode, weights

from reporting.columns import setup_of
from retrieval import tasks
from training import checkpoints

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from retrieval import evaluate, finetune  # noqa: E402

pytest_plugins = ["retrieval_fixtures"]

RECORD = "eval_retrieval_toy_test.json"


def run_evaluate(task, lengths, *folders):
    flags = ["--data", str(task), "--lengths", lengths, *CPU]
    evaluate.main([*map(str, folders), *flags])


@pytest.mark.parametrize("pe", ["cable", "rope"])
def test_ranking_by_hand(pe, exported, finetuned, task, tmp_path):
    """Texts truncated to 16 and 64 bytes, one by one through our network with these weights."""
    folder = shutil.copytree(finetuned(pe), tmp_path / pe)
    run_evaluate(task, "1x,64", folder)
    record = read_json(folder / RECORD, "")
    loaded = tasks.load_task(str(task), "test")
    run = exported(pe).with_name(f"{pe}-run")
    model, _ = checkpoints.load_model(run, torch.device("cpu"), causal=False)
    state = {name.removeprefix("model."): value for name, value in weights(folder).items()}
    # The export has no rows for the padded vocabulary.
    state["wte.weight"] = torch.cat([state["wte.weight"], torch.zeros(62, 16)])
    model.load_state_dict(state)

    names = list(loaded.documents)
    for length in (16, 64):
        queries = encode(model, loaded.queries.values(), length)
        scores = queries @ encode(model, loaded.documents.values(), length).T
        rankings = [[names[n] for n in row.argsort(descending=True)] for row in scores]
        values = [
            100 * tasks.ndcg(ranking, loaded.qrels[query])
            for query, ranking in zip(loaded.queries, rankings, strict=True)
        ]
        entry = record["lengths"][str(length)]
        assert entry["by_question"] == pytest.approx(values)
        assert entry["ndcg10"] == pytest.approx(np.mean(values))
        assert entry["ndcg10_se"] == pytest.approx(np.std(values, ddof=1) / math.sqrt(12))
    identity = (record["pe"], record["size"], record["block_size"], record["seed"])
    assert identity == (pe, "custom", 16, 1)


def test_recipe_separates_seeds_from_other_changes(exported, triplets, task, tmp_path):
    """Other settings, triplets or encoder trainings change the recipe, which is a table's column.

    Another seed, mini-batch or location of the encoder does not.
    """

    def recipe(*flags, encoder=exported("cable")):  # noqa: B008
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        common = ["--data", str(data), *FINETUNE, "--samples", "16"]
        finetune.main([str(encoder), *common, *flags, "--out_dir", str(out)])
        run_evaluate(task, "16", out)
        return setup_of(read_json(out / RECORD, ""))

    data = shutil.copy(triplets, tmp_path / "triplets.jsonl")
    moved = shutil.copytree(exported("cable"), tmp_path / "moved")
    first = recipe()
    assert first == recipe("--seed", "2", "--mini_batch", "2", encoder=moved)
    longer = shutil.copytree(exported("cable"), tmp_path / "longer")
    config = read_json(longer / "config.json", "")
    config["training"]["step"] = 12
    (longer / "config.json").write_text(json.dumps(config))
    others = [recipe("--lr", "1e-3"), recipe(encoder=longer)]
    data.write_text("".join(triplets.read_text().splitlines(keepends=True)[1:]))
    assert len({first, *others, recipe()}) == 4


@pytest.mark.parametrize("size", [evaluate.BATCH_TOKENS, 1])
def test_empty_texts_do_not_change_other_rankings(finetuned, task, tmp_path, monkeypatch, size):
    """Their vector is 0, in a batch with other texts and alone."""
    folder = shutil.copytree(finetuned("cable"), tmp_path / "cable")
    run_evaluate(task, "16", folder)
    before = read_json(folder / RECORD, "")["lengths"]["16"]["by_question"]
    for name, line in (
        ("corpus.jsonl", '{"_id": "nothing", "text": ""}\n'),
        ("queries.jsonl", '{"_id": "q12", "text": ""}\n'),
        ("qrels/test.tsv", "q12\tnothing\t1\n"),
    ):
        with open(task / name, "a") as file:
            file.write(line)
    task.rename(tmp_path / "more")
    monkeypatch.setattr(evaluate, "BATCH_TOKENS", size)
    run_evaluate(tmp_path / "more", "16", folder)
    record = read_json(folder / "eval_retrieval_more_test.json", "")
    assert record["lengths"]["16"]["by_question"][:12] == pytest.approx(before)


def test_vectors_with_nan_are_refused(refused, finetuned, task, tmp_path):
    from safetensors.torch import save_file

    folder = shutil.copytree(finetuned("cable"), tmp_path / "cable")
    nan = {name: value * math.nan for name, value in weights(folder).items()}
    save_file(nan, folder / "model.safetensors", {"format": "pt"})
    config = read_json(folder / "config.json", "")
    (folder / "config.json").write_text(json.dumps({**config, "weights_sha256": None}))
    lines = refused(evaluate.main, folder, "--data", task, "--lengths", "16", *CPU)
    assert lines == [
        f"error: {folder}: vectors of texts with 16 tokens contain NaN or Inf: "
        "fine-tune again with a lower --lr"
    ]


def test_longer_texts_than_supported_are_not_measured(finetuned, task, tmp_path, capsys):
    folder = shutil.copytree(finetuned("learnable"), tmp_path / "learnable")
    run_evaluate(task, "16,32", folder)
    header, row = capsys.readouterr().out.splitlines()[-2:]
    assert header.split() == ["ndcg10", "16", "32"] and row.endswith(" —")
    lengths = read_json(folder / RECORD, "")["lengths"]
    assert lengths["16"] and lengths["32"] is None


@pytest.mark.parametrize("kind", ["export", "fine-tuned"])
def test_corrupt_folders_are_refused(kind, refused, exported, finetuned, triplets, task, tmp_path):
    if kind == "export":
        source, main = exported("cable"), finetune.main
        flags = ["--data", triplets, "--out_dir", tmp_path / "out"]
    else:
        source, main = finetuned("cable"), evaluate.main
        flags = ["--data", task, "--lengths", "16", "--device", "cpu"]

    def error(name, content):
        folder = shutil.copytree(source, tmp_path / "corrupt")
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
        (line,) = refused(main, folder, *flags)
        shutil.rmtree(folder)
        return line

    whole = (source / "model.safetensors").read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    config = json.loads((source / "config.json").read_text()) | {"n_layer": "2"}
    assert "expected int, got str at n_layer" in error("config.json", json.dumps(config).encode())
    assert "its SHA-256 is not that in config.json" in error("model.safetensors", flipped)
    for name, content in (
        ("model.safetensors", whole[: len(whole) // 2]),
        ("model.safetensors", None),
        ("tokenizer.json", b"{"),
    ):
        pattern = "error: .*corrupt cannot be read .*: write it again, or pass a folder that .*"
        assert re.fullmatch(pattern, error(name, content))
    assert "config.json cannot be read" in error("config.json", b"{")
    for content, problem in ((b"[1]", ": expected object, got array"), (None, " does not exist")):
        assert f"config.json{problem}: pass a folder that" in error("config.json", content)
