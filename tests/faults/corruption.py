"""Corrupt files: checkpoints, logs, shards, meta.json, texts, records and exported folders."""

import random
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

import compare
import eval_extrapolation
import export_hf
import import_pretrained
import prepare_text
import report
import train_gpt

from . import kills
from .harness import LENGTHS, TRAIN, Lost, Program, call, check, same_numbers, start


def flip_bit(content: bytearray, rng: random.Random) -> None:
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def zero_block(content: bytearray, rng: random.Random) -> None:
    start, size = rng.randrange(len(content)), rng.choice((16, 512, 4096))
    content[start : start + size] = bytes(len(content[start : start + size]))


def overwrite(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content))
    content[start : start + 64] = rng.randbytes(len(content[start : start + 64]))


def truncate(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content)) :]


CORRUPTIONS = (flip_bit, zero_block, overwrite, truncate)


def corrupt(path: Path, rng: random.Random, *ways) -> None:
    """Change a file in a random way; the file is different afterwards."""
    content = path.read_bytes()
    changed = bytearray(content)
    while changed == content:
        rng.choice(ways or CORRUPTIONS)(changed, rng)
    path.write_bytes(changed)


def resume(workspace, rng):
    """newest checkpoint corrupt: `--resume` continues from the one before it."""
    run = workspace.copy(workspace.half)
    corrupt(run / "checkpoint_0000004.pt", rng)
    workspace.check_trained(run)


def resume_all_corrupt(workspace, rng):
    """all checkpoints corrupt: `--resume` is refused, or the same training starts again."""
    run = workspace.copy(workspace.half)
    for path in run.glob("*.pt"):
        corrupt(path, rng)
    if check(workspace.resume(run)).status == 0:
        workspace.compare_trained(run)


def log(workspace, rng):
    """log.jsonl corrupt: `--resume`."""
    run = workspace.copy(workspace.half)
    corrupt(run / "log.jsonl", rng)
    check(workspace.resume(run), 0)
    if kills.trained(run) != workspace.expected["trained"]:
        raise Lost("the weights or the optimizer differ from those of an uninterrupted run")
    if kills.losses(run)[-2:] != workspace.expected["losses"][-2:]:
        raise Lost("the log lacks the steps after the resume")


def evaluate(workspace, rng):
    """checkpoint corrupt: evaluation."""
    run = workspace.copy(workspace.whole)
    (run / workspace.record.name).unlink()
    path = run / "checkpoint_0000008.pt"
    corrupt(path, rng)
    if check(workspace.evaluate(path if rng.random() < 0.5 else run)).status == 0:
        for record in run.glob("eval_*.json"):
            same_numbers(record, workspace.expected["numbers"])


def sample_text(workspace, rng):
    """checkpoint corrupt: sampling."""
    run = workspace.copy(workspace.whole)
    corrupt(run / "checkpoint_0000008.pt", rng)
    result = check(workspace.sample(run))
    if result.status == 0 and workspace.sampled_text(result) != workspace.expected["text"]:
        raise Lost("exit status 0 with another text than from the intact checkpoint")


def export(workspace, rng):
    """checkpoint corrupt: export."""
    run = workspace.copy(workspace.whole)
    out = workspace.folder / "exported"
    corrupt(run / "checkpoint_0000008.pt", rng)
    if check(call(export_hf, run, "--out_dir", out)).status == 0:
        name = "model.safetensors"
        if (out / name).read_bytes() != (workspace.exported / name).read_bytes():
            raise Lost("exit status 0 with other weights than the intact checkpoint has")


def initialize(workspace, rng):
    """checkpoint corrupt: `--init_from`."""
    run, out = workspace.copy(workspace.whole), workspace.folder / "out"
    corrupt(run / "checkpoint_0000008.pt", rng)
    flags = ["--steps", "0", "--init_from", run]
    if check(call(train_gpt, *workspace.train_flags(out, *flags))).status == 0:
        ours = torch.load(out / "checkpoint_0000000.pt", weights_only=True)["model"]
        path = workspace.whole / "checkpoint_0000008.pt"
        theirs = torch.load(path, weights_only=True)["model"]
        if any(not torch.equal(ours[name], theirs[name]) for name in theirs):
            raise Lost("exit status 0 with other weights than the intact checkpoint has")


def import_weights(workspace, rng):
    """weights of GPT-2 corrupt or cut off: import."""
    folder = workspace.copy(workspace.base / "gpt2")
    name = rng.choice(("config.json", "model.safetensors"))
    # safetensors has no checksum for the weights themselves, so only the file's structure is hit.
    corrupt(folder / name, rng, *((truncate,) if name.startswith("model") else CORRUPTIONS))
    check(call(import_pretrained, folder, "--out_dir", workspace.folder / "run"))


def exported_decoder(workspace, rng):
    """exported weights corrupt: loading with transformers."""
    folder = workspace.copy(workspace.exported)
    corrupt(folder / "model.safetensors", rng)
    tokens = torch.arange(8)[None]

    def logits(path):
        model = AutoModelForCausalLM.from_pretrained(str(path), trust_remote_code=True)
        return model(tokens).logits

    def load():
        try:
            ours = logits(folder)
        except Exception as error:
            print(f"refused: {type(error).__name__}: {error}")
            return
        print("equal" if torch.equal(ours, logits(workspace.exported)) else "different")

    if (result := check(Program(load).wait(), 0)).output.strip().endswith("different"):
        raise Lost(f"loads other weights than those that were exported: {result.describe()}")


def exported_encoder(workspace, rng):
    """exported encoder corrupt: fine-tuning."""
    folder = workspace.copy(workspace.encoder)
    corrupt(folder / "model.safetensors", rng)
    result = check(workspace.finetune(folder))
    content = (folder / "model.safetensors").read_bytes()
    if result.status == 0 and content != (workspace.encoder / "model.safetensors").read_bytes():
        raise Lost("exit status 0 with other weights than those that were exported")


def shards(workspace, rng):
    """shards corrupt: training and evaluation."""
    data = workspace.copy(workspace.data)
    corrupt(rng.choice(sorted(data.glob("*.bin"))), rng)
    out = workspace.folder / "out"
    result = check(call(train_gpt, *TRAIN, "--data", data, "--out_dir", out))
    if result.status == 0:
        raise Lost("trains on corrupt shards")
    run = workspace.copy(workspace.whole)
    (run / workspace.record.name).unlink()
    if check(call(eval_extrapolation, run, "--data", data, *LENGTHS)).status == 0:
        same_numbers(run / workspace.record.name, workspace.expected["numbers"])


def meta_json(workspace, rng):
    """meta.json corrupt: training and evaluation."""
    data = workspace.copy(workspace.data)
    corrupt(data / "meta.json", rng)
    run = workspace.copy(workspace.whole)
    (run / workspace.record.name).unlink()
    if check(call(eval_extrapolation, run, "--data", data, *LENGTHS)).status == 0:
        for record in run.glob("eval_*.json"):
            same_numbers(record, workspace.expected["numbers"])
    out = workspace.folder / "out"
    result = check(call(train_gpt, *TRAIN, "--data", data, "--out_dir", out))
    if result.status == 0 and kills.trained(out) != workspace.expected["trained"]:
        raise Lost("exit status 0 with other weights than on the intact data")


def shard_during_training(workspace, rng):
    """a shard cut off while a training reads it."""
    data, run = workspace.copy(workspace.data), workspace.folder / "run"
    path = data / "toy_train_000000.bin"
    flags = ["--steps", "100000", "--data", data, "--out_dir", run]
    program = start(train_gpt, *TRAIN, *flags)
    kills.wait_for(run, "log.jsonl")
    time.sleep(rng.uniform(0, 0.3))
    with open(path, "r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size // 2))
    check(program.wait(30), 2)


def texts(workspace, rng):
    """texts corrupt: preparation."""
    folder = workspace.copy(workspace.text)
    corrupt(rng.choice(sorted(folder.iterdir())), rng)
    flags = [folder, "--val_every", "5", "--out_dir"]
    check(call(prepare_text, *flags, workspace.folder / "toy"))
    # Prepared data of other text is not resumed.
    if check(call(prepare_text, *flags, workspace.copy(workspace.data, "old/toy"))).status == 0:
        raise Lost("prepared data passes for that of another text")


def records(workspace, rng):
    """a record corrupt: tables, comparison and further evaluation."""
    run = workspace.copy(workspace.whole)
    record = run / workspace.record.name
    corrupt(record, rng)
    out = workspace.folder / "tables"
    check(call(report, record, "--out_dir", out))
    check(call(compare, record, workspace.record))
    check(workspace.evaluate(run))


CASES = [
    resume,
    evaluate,
    sample_text,
    export,
    initialize,
    resume,
    shards,
    meta_json,
    log,
    exported_decoder,
    exported_encoder,
    records,
    resume_all_corrupt,
    import_weights,
    texts,
    shard_during_training,
]
