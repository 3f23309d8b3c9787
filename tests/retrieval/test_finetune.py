"""Tests of contrastive fine-tuning: loss, resuming, and input errors."""

import json
import math
import os
import shutil

from runtime.files import read_json

import numpy as np
import pytest
import torch
from retrieval_helpers import FINETUNE, encode, losses_of, run_finetune, weights

from errors import InputError
from training import checkpoints

pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

from retrieval import finetune  # noqa: E402

pytest_plugins = ["retrieval_fixtures"]


def max_seq_length(folder):
    """Return the length that sentence-transformers truncates texts to after loading a folder."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    assert model.tokenize(["x" * 99])["input_ids"].shape == (1, model.max_seq_length)
    return model.max_seq_length


@pytest.mark.parametrize("pe", ["cable", "kerple", "learnable"])
def test_fine_tuning_learns_and_writes_a_record(pe, finetuned, triplets):
    record = read_json(finetuned(pe) / "finetune.json", "")
    steps, losses = zip(*record["losses"], strict=True)
    assert steps == tuple(range(1, 9)) and np.mean(losses[-2:]) < 0.9 * np.mean(losses[:2])
    assert losses[0] < 1.5 * math.log(16)  # of 8 passages and 8 negatives
    assert record["settings"]["data"] == str(triplets) and record["settings"]["seed"] == 1
    assert "commit" in record["provenance"]
    assert not (finetuned(pe) / "checkpoints").exists()
    assert max_seq_length(finetuned(pe)) == 16  # the training length
    umask = os.umask(0o022)
    os.umask(umask)
    files = [path for path in finetuned(pe).rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~umask}


def test_loss_is_that_of_the_paper(exported, triplets, tmp_path):
    """The first step's loss: 20 times the cosines, over all passages and negatives of the batch."""
    flags = ["--samples", "8", "--max_tokens", "9", "--lr", "0"]
    out = run_finetune(exported("alibi"), triplets, tmp_path / "run", *flags)
    ((_, loss),) = losses_of(out)
    assert max_seq_length(out) == 9
    run = exported("alibi").with_name("alibi-run")
    model, _ = checkpoints.load_model(run, torch.device("cpu"), causal=False)

    rows = [json.loads(line) for line in triplets.read_text().splitlines()[:8]]
    queries, passages, negatives = (
        encode(model, [row[name] for row in rows], 9) for name in ("query", "positive", "negative")
    )
    logits = 20 * queries @ torch.cat([passages, negatives]).T
    expected = torch.nn.functional.cross_entropy(logits, torch.arange(8)).item()
    assert loss == pytest.approx(expected, abs=2e-4)


def test_hub_rows_equal_modernbert_recipe(triplets, monkeypatch):
    """In the order of its recipe, without the 1,000 rows held out; a file keeps its order."""
    import datasets

    rows = [{"query": str(n), "positive": "a", "negative": "b"} for n in range(1300)]
    rows = datasets.Dataset.from_list(rows)

    def load(revision, **arguments):
        assert arguments == finetune.HUB and revision is None
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load)
    expected = rows.train_test_split(test_size=1_000, seed=12)["train"]
    for samples in (200, 10**6):
        read, _ = finetune.read_triplets(finetune.Config(samples=samples))
        assert read["query"][:] == expected["query"][:samples]
        assert len(read) == min(samples, 300)
    read, _ = finetune.read_triplets(finetune.Config(samples=5, data=str(triplets)))
    lines = triplets.read_text().splitlines()[:5]
    assert read["query"][:] == [json.loads(line)["query"] for line in lines]


def test_last_loss_is_recorded(exported, triplets, tmp_path):
    """Three steps, logged every two."""
    flags = ["--samples", "24", "--log_every", "2"]
    out = run_finetune(exported("cable"), triplets, tmp_path / "run", *flags)
    assert [step for step, _ in losses_of(out)] == [2, 3]


def test_parameters_are_clamped_after_each_step(exported, triplets, tmp_path):
    """With a learning rate of 2, the exponents would exceed their bound, 2."""
    out = run_finetune(exported("kerple-power"), triplets, tmp_path / "run", "--lr", "2")
    tensors = weights(out)
    exponents = torch.cat([value for name, value in tensors.items() if name.endswith(".r2")])
    assert len(exponents) == 4 and exponents.max() == 2 and exponents.min() >= 0.01


def test_empty_texts_keep_the_weights_finite(exported, triplets, tmp_path):
    data = tmp_path / "triplets.jsonl"
    empty = '{"query": "a", "positive": "", "negative": ""}\n'
    data.write_text(triplets.read_text() + empty * 8)
    out = run_finetune(exported("cable"), data, tmp_path / "run", "--mini_batch", "1")
    assert all(value.isfinite().all() for value in weights(out).values())


def test_only_errors_of_writing_are_input_errors(exported, triplets, tmp_path, monkeypatch):
    from transformers import Trainer

    def fail(*arguments):
        raise OSError("no disk")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="no disk"):
        patch.setattr(Trainer, "training_step", fail)
        run_finetune(exported("cable"), triplets, tmp_path / "one", "--samples", "8")
    monkeypatch.setattr(Trainer, "_save_checkpoint", fail)
    with pytest.raises(InputError, match="cannot write .*checkpoints: no disk"):
        run_finetune(exported("cable"), triplets, tmp_path / "two", "--samples", "8")


def test_diverged_training_stops(exported, triplets, tmp_path):
    out = tmp_path / "run"
    message = "the loss is nan at step [1-8]: use a lower --lr and another --out_dir"
    with pytest.raises(InputError, match=message):
        run_finetune(exported("cable"), triplets, out, "--lr", "1e18")
    assert not (out / "model.safetensors").exists()
    assert "losses" not in read_json(out / "finetune.json", "")


def test_resuming_needs_the_same_content(exported, triplets, tmp_path, monkeypatch):
    """It refuses other triplets and another encoder under the same name, both at once here."""
    from transformers import Trainer

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    data = shutil.copy(triplets, tmp_path / "triplets.jsonl")
    encoder = shutil.copytree(exported("cable"), tmp_path / "cable")
    run = encoder, data, tmp_path / "run"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Trainer, "train", interrupt)
        run_finetune(*run)
    data.write_text("".join(triplets.read_text().splitlines(keepends=True)[::-1]))
    for name in ("model.safetensors", "config.json"):
        shutil.copy(exported("alibi") / name, encoder)
    with pytest.raises(InputError, match="with another content of data and encoder: use the same"):
        run_finetune(*run, "--resume")
    shutil.copy(triplets, data)
    shutil.copytree(exported("cable"), encoder, dirs_exist_ok=True)
    assert losses_of(run_finetune(*run, "--resume"))


@pytest.mark.parametrize("complete", [True, False])
def test_resuming_gives_the_same_weights(
    complete, exported, finetuned, triplets, refused, tmp_path, monkeypatch, capsys
):
    """It resumes from the newest complete checkpoint, or from the start if there is none.

    Newer checkpoints were interrupted while they were written.
    """
    from transformers.trainer_callback import CallbackHandler

    out = tmp_path / "run"
    flags = ["--data", str(triplets), *FINETUNE, "--checkpoint_every", "2", "--out_dir", str(out)]
    flags = [str(exported("cable")), *flags]
    steps, on_step_end = [], CallbackHandler.on_step_end

    def interrupt_at_five(*arguments):
        steps.append(1)
        if len(steps) == 5:
            raise KeyboardInterrupt
        return on_step_end(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(CallbackHandler, "on_step_end", interrupt_at_five)
        finetune.main(flags)
    checkpoints = out / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["checkpoint-4"]
    assert refused(finetune.main, *flags) == [
        f"error: {out} already contains a run: use another --out_dir, or --resume to continue it"
    ]
    assert refused(finetune.main, *flags, "--resume", "--lr", "1e-3", "--mini_batch", "2") == [
        f"error: --resume: {out} was trained with lr 0.01, not 0.001: "
        "use the same, or another --out_dir"
    ]
    last = checkpoints / "checkpoint-4"
    truncated = shutil.copytree(last, checkpoints / "checkpoint-12") if complete else last
    state = truncated / "trainer_state.json"
    state.write_text(state.read_text()[:-20])
    shutil.copytree(truncated, checkpoints / "checkpoint-8")
    (checkpoints / "checkpoint-8" / "trainer_state.json").unlink()
    assert finetune.newest_checkpoint(checkpoints) == (str(last) if complete else None)
    if complete:
        weights_of_last = last / "model.safetensors"
        whole = weights_of_last.read_bytes()
        weights_of_last.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(InputError, match="safetensors is corrupt: .*: remove it$") as error:
            finetune.main([*flags, "--resume"])
        assert len(error.value.problems) == 1
        weights_of_last.write_bytes(whole)
    finetune.main([*flags, "--resume"])
    assert losses_of(out) == losses_of(finetuned("cable"))
    assert max_seq_length(out) == 16
    finetune.main([*flags, "--resume"])
    assert capsys.readouterr().out.splitlines()[-1] == f"{out} is already fine-tuned"
    expected = weights(finetuned("cable"))
    for name, value in weights(out).items():
        assert torch.equal(value, expected[name]), name


def test_wrong_encoders_and_data_are_refused(refused, exported, triplets, tmp_path):
    def error(pe, data, *flags):
        (line,) = refused(finetune.main, exported(pe), "--data", data, "--out_dir", out, *flags)
        return line

    out = tmp_path / "out"
    assert "is not a .jsonl or .parquet file" in error("cable", tmp_path / "none.jsonl")
    message = "learnable supports at most 16 positions: use a lower --max_tokens"
    assert message in error("learnable", triplets, "--max_tokens", "17")
    row, data = {"query": "a", "positive": "b", "negative": '"c"'}, tmp_path / "rows.jsonl"
    for wrong, problem in (
        ({"query": "a", "positive": "b", "neg": "c"}, "missing required field negative"),
        ({**row, "positive": None}, "expected str, got null at positive"),
        ({**row, "negative": ["c"]}, "expected str, got array at negative"),
        ({**row, "query": 1984}, "expected str, got int at query"),
    ):
        data.write_text("".join(json.dumps(each) + "\n" for each in (*[row] * 39, wrong)))
        line = f"rows.jsonl, row 40: {problem}: write objects with query, positive, negative"
        assert line in error("cable", data)
    assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert "contains other files" in error("cable", triplets)
