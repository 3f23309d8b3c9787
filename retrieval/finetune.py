"""Fine-tune an exported encoder for retrieval: contrastive loss, hard negatives.

    python export_hf.py runs/bert/cable --out_dir exported/cable
    pip install -r requirements-retrieval.txt
    python -m retrieval.finetune exported/cable --out_dir runs/retrieval/cable
    python -m retrieval.finetune exported/cable --data triplets.jsonl --out_dir runs/retrieval/mine
    python -m retrieval.evaluate runs/retrieval/cable

The recipe is that of the CABLE paper (section 5.5), with ModernBERT's
settings where the paper prints none (docs/retrieval.md).
sentence-transformers trains it. The loss of a query is the
cross-entropy of its passage among all passages and hard negatives of
the batch, with 20 times the cosine similarity as logits. Pooling, the
mean over the last layer's tokens, is our choice.

The output folder is a sentence-transformers model with a record,
finetune.json, of settings and losses. --resume continues from the
newest complete checkpoint in checkpoints/, removed at the end.
"""

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime import cli, devices, job_report
from runtime.devices import provenance
from runtime.files import hash_file, read_json, write_json, writing
from runtime.validation import check

import msgspec
import torch

from errors import InputError
from evaluation.record_schema import FineTuning
from hf_interop.exported_code import set_default_permissions
from setting import setting, settings_of
from text_data import text_sources
from training import run_folder
from training.settings import plugin_setting

HUB = {
    "path": "sentence-transformers/msmarco-co-condenser-margin-mse-sym-mnrl-mean-v1",
    "name": "triplet-hard",
    "split": "train",
}
# ModernBERT's recipe holds these rows out, and shuffles the others with this seed.
HELD_OUT = 1000
SHUFFLE_SEED = 12
RECORD = "finetune.json"
CHECKPOINTS = "checkpoints"


class Triplet(msgspec.Struct):
    """A row of the training data."""

    query: str
    positive: str
    negative: str


COLUMNS = Triplet.__struct_fields__


@dataclass
class Config:
    """Settings of a fine-tuning."""

    encoder: list[str] = setting([], record="run", positional=True)
    """folder that export_hf.py wrote for an encoder"""
    plugin: dict[str, str] | None = plugin_setting(resume="free")
    """Python file with encodings of your own, if the encoder was trained with them"""
    data: str | None = setting(None, record="run")
    """.jsonl or .parquet file with the columns query, positive and negative; default: MS MARCO from
    the hub"""
    samples: int = setting(1_250_000, 1)
    """use at most this many rows, the first ones; rows of the hub are shuffled once before, in the
    same order for every seed"""
    max_tokens: int | None = setting(None, 1)
    """truncate texts to this many tokens; default: the encoder's training length"""
    batch: int = setting(128, 2)
    """queries per optimizer step"""
    mini_batch: int = setting(32, 1, resume="free")
    """texts per forward pass"""
    lr: float = setting(8e-5, 0)
    """highest learning rate, with linear decay"""
    warmup: float = setting(0.05, 0, 0.99)
    """fraction of the steps with linear warmup"""
    seed: int = setting(1, 0, 2**32 - 1, record="run")  # NumPy's limit
    """seed of the data order"""
    log_every: int = setting(10, 1, resume="free")
    """record the mean loss every n steps"""
    checkpoint_every: int = setting(500, 1, resume="free")
    """save a checkpoint every n steps"""
    out_dir: str = setting("runs/retrieval/encoder", resume="free")
    """folder of the fine-tuned model"""
    resume: bool = setting(False, resume="free")
    """resume the fine-tuning in out_dir, if there is one"""
    device: Literal["auto", "cpu", "cuda"] = setting("auto", resume="free")
    """cuda: the first GPU of CUDA_VISIBLE_DEVICES; auto: cuda if available"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting("auto", resume="free")
    """dtype of matrix products; auto: bfloat16 if the hardware supports it"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    if len(config.encoder) != 1:
        raise InputError("pass one encoder: python -m retrieval.finetune exported/NAME")
    import accelerate  # noqa: F401  (required by the trainer)

    from retrieval import sentence_encoder

    out = Path(config.out_dir)
    encoder = config.encoder[0]
    previous = find_record(out, config)
    if "losses" in previous:
        print(f"{out} is already fine-tuned")
        job_report.append(repeated=True)
        return
    device, dtype = devices.select_device(config.device, config.dtype)
    if device.type == "cuda" and torch.cuda.device_count() > 1:
        raise InputError("fine-tuning uses a single GPU: set CUDA_VISIBLE_DEVICES=0")
    model = sentence_encoder.load_export(encoder, config.max_tokens)
    rows, revision = read_triplets(config, previous.get("revision"))
    hashes = {
        "data": hash_file(config.data) if config.data else None,
        "encoder": hash_file(Path(encoder) / "model.safetensors"),
    }
    known = previous.get("sha256", hashes)
    if changed := [name for name, sha256 in hashes.items() if known.get(name) != sha256]:
        difference = f"trained with another content of {' and '.join(changed)}"
        raise InputError(run_folder.refusal(out, difference))
    record = {
        "settings": dataclasses.asdict(config),
        "sha256": hashes,
        "revision": revision,
        "provenance": provenance(device),
    }
    unlock = run_folder.lock_folder(out)
    print(
        f"{encoder}: texts up to {model.max_seq_length} tokens, {len(rows):,} samples, "
        f"{config.batch} per batch"
    )
    try:
        write_json(out / RECORD, record)
        losses = train(model, rows, config, device, dtype)
        with writing(out):
            sentence_encoder.save(model, out)
            set_default_permissions(out)
        write_json(out / RECORD, {**record, "losses": losses})
        shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    finally:
        unlock()
    ends = ", ".join(f"{loss:.3f} at step {step}" for step, loss in (losses[0], losses[-1]))
    print(f"{out}: loss {ends}")


def find_record(out: Path, config: Config) -> dict:
    """Return the record of the fine-tuning in a folder, or {}.

    It has "losses" if that is finished. Raises InputError for another one, other files, or without
    --resume.
    """
    if not (out / RECORD).exists():
        if out.is_dir() and any(out.iterdir()):
            raise InputError(f"{out} contains other files: use another --out_dir")
        return {}
    if not config.resume:
        raise InputError(run_folder.ALREADY.format(out))
    record = read_json(out / RECORD, "remove the folder", FineTuning)
    old = record["settings"]
    changes = [
        run_folder.difference(name, old.get(name), value)
        for name, value in dataclasses.asdict(config).items()
        if name in settings_of(Config, resume="fixed") and old.get(name) != value
    ]
    if changes:
        raise InputError(*(run_folder.refusal(out, change) for change in changes))
    return record


def finetuning_settings(record: dict) -> dict:
    """Return the settings of a record that define what is learned."""
    excluded, settings = settings_of(Config, record="run"), record["settings"].items()
    return {name: value for name, value in settings if name not in excluded}


def read_triplets(config: Config, revision: str | None = None):
    """Return the training rows with COLUMNS, and their commit on the hub.

    Raises InputError if they cannot be read, or if a text is missing.
    """
    rows, name, commit = text_sources.load_table(
        config.data, HUB, "--data", COLUMNS, revision, config.samples
    )
    if isinstance(rows, list):  # of a local file
        import datasets

        for number, row in enumerate(rows, 1):
            remedy = f"write objects with {', '.join(COLUMNS)}"
            check(row, Triplet, f"{name}, row {number}", remedy)
        return datasets.Dataset.from_list(rows), None
    for column in COLUMNS:
        texts = rows.data.column(column)  # has missing values without decoding the rows
        if texts.null_count or str(texts.type) not in ("string", "large_string"):
            raise InputError(f"{name} has rows without text in {column}: use --data FILE")
    rows = rows.select_columns(list(COLUMNS))
    rows = rows.train_test_split(test_size=HELD_OUT, seed=SHUFFLE_SEED)["train"]
    return rows.select(range(min(config.samples, len(rows)))), commit


def train(
    model, rows, config: Config, device: torch.device, dtype: torch.dtype
) -> list[tuple[int, float]]:
    """Train for an epoch, or its rest; return (step, mean loss since the last).

    Raises InputError if the loss is NaN or Inf.
    """
    from sentence_transformers import SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer import losses

    from retrieval.sentence_encoder import EncoderTrainer, StepCallback

    checkpoints = Path(config.out_dir) / CHECKPOINTS
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=1,
        per_device_train_batch_size=config.batch,
        batch_sampler="no_duplicates",
        learning_rate=config.lr,
        lr_scheduler_type="linear",
        warmup_steps=config.warmup,  # below 1: a fraction of the steps (transformers 5)
        seed=config.seed,
        data_seed=config.seed,
        logging_steps=config.log_every,
        logging_nan_inf_filter=False,  # it would log 0 for a loss that is NaN or Inf
        save_steps=config.checkpoint_every,
        save_total_limit=1,
        report_to="none",
        use_cpu=device.type == "cpu",
        bf16=dtype == torch.bfloat16,
        fp16=dtype == torch.float16,
    )
    size = config.mini_batch
    loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=size)
    trainer = EncoderTrainer(
        model=model,
        train_dataset=rows,
        loss=loss,
        callbacks=[StepCallback(model)],
        args=arguments,
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(checkpoints))
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [(int(entry["step"]), entry["loss"]) for entry in logged]


def newest_checkpoint(checkpoints: Path) -> str | None:
    """Return the newest checkpoint that is complete, or None."""
    steps = [
        int(path.parent.name.removeprefix("checkpoint-"))
        for path in checkpoints.glob("checkpoint-*/trainer_state.json")
        if path.read_text(encoding="utf-8").endswith("\n}\n")
    ]
    return str(checkpoints / f"checkpoint-{max(steps)}") if steps else None


if __name__ == "__main__":
    cli.run(main)
