"""Checkpoint compatibility: a run of commit 28db1e77 loads and resumes with equal numbers."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import prepare_text
import train_gpt
from training.checkpoints import load_checkpoint, load_model, write_checkpoint

# Three steps of `cable` by commit 28db1e77 on this text; it also printed the expected numbers.
RUN = Path(__file__).parent / "earlier_run"
TEXT = "a line of text, and one more\n" * 600
FLAGS = (
    "--n_layer 1 --n_head 2 --n_embd 8 --block_size 16 --tokens_per_step 64 --warmup_steps 1 "
    "--device cpu --dtype float32 --val_tokens 256 --lr 1e-2 --log_every 1 --schedule wsd"
)


@pytest.fixture(params=[(), ("norm_eps", "n_kv_head"), ("optimizer", "tied")], ids=str)
def run(tmp_path, request):
    """A copy without some settings, as if they had been added since."""
    shutil.copytree(RUN, tmp_path / "run")
    checkpoint = load_checkpoint(RUN)
    for name in request.param:
        checkpoint["gpt"].pop(name, None)
        checkpoint["config"].pop(name, None)
    del checkpoint["sha256"]
    with open(tmp_path / "run" / "checkpoint_0000003.pt", "wb") as file:
        write_checkpoint(file, checkpoint)
    return tmp_path / "run"


def test_earlier_weights_have_the_same_logits(run):
    model, _ = load_model(run, "cpu")
    tokens = torch.arange(12)[None] * 7 % 256
    expected = [-0.213592365, -0.0409115106, -0.146374613, -0.0848984197, -0.129249826]
    with torch.no_grad():
        assert model(tokens)[0, -1, :5].tolist() == pytest.approx(expected, abs=1e-6)
        assert model(tokens, (tokens + 1) % 256).item() == pytest.approx(5.76555872, abs=1e-6)


def test_earlier_run_continues_with_the_same_losses(run, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    data = str(tmp_path / "t")
    flags = ["--tokenizer", "bytes", "--out_dir", data, "--val_every", "2"]
    prepare_text.main([str(tmp_path / "text.txt"), *flags])
    words = [*FLAGS.split(), "--data", data, "--out_dir", str(run), "--resume", "--steps", "6"]
    train_gpt.main(words)
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses == pytest.approx([5.4061, 5.2790, 5.143255, 4.830144], abs=5e-5)


def test_earlier_run_provides_initial_weights(run, tmp_path, data_dir):
    """--init_from compares its network with that of the new run."""
    flags = ["--data", str(data_dir), "--init_from", str(run), "--steps", "1", "--device", "cpu"]
    words = [*flags, "--tokens_per_step", "64", "--out_dir", str(tmp_path / "new")]
    train_gpt.main(words)
    assert load_checkpoint(tmp_path / "new")["gpt"]["n_kv_head"] == 2
