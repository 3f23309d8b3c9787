"""Teaches an encoder to find texts: contrastive fine-tuning on questions, passages that answer them, and passages that only seem to.

    pip install -r requirements-retrieval.txt
    python export_hf.py runs/bert/cable --out_dir exported/cable
    python -m retrieval.finetune exported/cable --out_dir runs/retrieval/cable
    python -m retrieval.finetune exported/cable --data triplets.jsonl --out_dir runs/retrieval/mine     # or a .parquet file
    python -m retrieval.evaluate runs/retrieval/cable

As the CABLE paper does it (section 5.5): one epoch over 1.25M samples of MS MARCO with mined hard negatives, 128 a batch, 5% of
warm-up, by sentence-transformers. A text is the mean of its tokens' last layer; each question is to find its passage, by the cosine
times 20, among all passages and hard negatives of the batch. Mini-batches change its memory, not its result. The learning rate is
that of ModernBERT (Warner et al. 2024), whose recipe it is; the paper prints none.

The folder that is written is a model for sentence-transformers, with a record, finetune.json, of settings and losses. --resume goes
on from the last whole checkpoint, which lies in the folder's checkpoints/ until the training ends.
"""

import dataclasses
import math
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from errors import InputError
from runtime import cli, devices
from runtime.provenance import provenance, sha256_of, short_hash
from runtime.files import read_json, write_json, writing
from text_data import text_sources

HUB = {
    "path": "sentence-transformers/msmarco-co-condenser-margin-mse-sym-mnrl-mean-v1",
    "name": "triplet-hard",
    "split": "train",
}
HELD_OUT, SHUFFLED_BY = (
    1000,
    12,
)  # rows that ModernBERT's recipe sets aside, and the seed of the order in which it takes the others
COLUMNS = ("query", "positive", "negative")
RECORD, CHECKPOINTS = "finetune.json", "checkpoints"
MAY_CHANGE_ON_RESUME = {
    "out_dir",
    "resume",
    "device",
    "dtype",
    "mini_batch",
    "log_every",
    "checkpoint_every",
}  # where a training goes on


@dataclass
class Config:
    """Settings of a fine-tuning."""

    encoder: list[str] = field(default_factory=list)
    """folder that export_hf.py made of an encoder"""
    data: str | None = None
    """.jsonl or .parquet file with the columns query, positive and negative; null: MS MARCO's, from the hub"""
    samples: int = 1_250_000
    """how many of its rows, the first ones, at most; the hub's are shuffled before, in one order for all seeds"""
    max_tokens: int | None = None
    """texts are cut here; null: at the encoder's training length"""
    batch: int = 128
    """questions of one optimizer step"""
    mini_batch: int = 32
    """questions, passages or negatives that go through the network at a time"""
    lr: float = 8e-5
    """highest learning rate; falls in a straight line"""
    warmup: float = 0.05
    """the share of steps over which it rises before"""
    seed: int = 1
    """of the order of the data"""
    log_every: int = 10
    """steps between the losses that are kept"""
    checkpoint_every: int = 500
    """steps between checkpoints"""
    out_dir: str = "runs/retrieval/encoder"
    """folder of the model"""
    resume: bool = False
    """go on with the training in out_dir, if it holds one"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """cuda is the first GPU that CUDA_VISIBLE_DEVICES names"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it"""

    def __post_init__(self):
        problems = cli.check_minimums(
            self,
            samples=1,
            max_tokens=1,
            batch=2,
            mini_batch=1,
            lr=0,
            warmup=0,
            seed=0,
            log_every=1,
            checkpoint_every=1,
        )
        problems += [f"warmup is {self.warmup}: it must be below 1"] * (self.warmup >= 1)
        if problems:
            raise InputError(*problems)


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("encoder", "folder that export_hf.py made of an encoder")
    )
    if len(config.encoder) != 1:
        raise InputError(
            "name one encoder: python -m retrieval.finetune exported/NAME --out_dir runs/retrieval/NAME"
        )
    try:
        import accelerate  # noqa: F401  the trainer asks for it

        from retrieval import sentence_encoder
    except ImportError:
        raise InputError(
            "fine-tuning needs accelerate and sentence-transformers 6: pip install -r requirements-retrieval.txt"
        ) from None
    out, encoder = Path(config.out_dir), config.encoder[0]
    before = begun(out, config)
    if "losses" in before:
        return print(f"{out} is fine-tuned already")
    device, dtype = devices.select_device(config.device, config.dtype)
    if device.type == "cuda" and torch.cuda.device_count() > 1:
        raise InputError(
            "fine-tuning takes one GPU, of which each batch is one: set CUDA_VISIBLE_DEVICES=0"
        )
    model = sentence_encoder.from_export(encoder, config.max_tokens)
    rows = triplets(config)
    print(
        f"{encoder}: texts up to {model.max_seq_length} tokens, {len(rows):,} samples, {config.batch} a batch"
    )
    content = {
        "data": config.data and sha256_of(config.data),
        "encoder": sha256_of(Path(encoder) / "model.safetensors"),
    }
    if changed := [
        name for name, sha256 in before.get("sha256", content).items() if sha256 != content[name]
    ]:
        raise InputError(
            f"--resume: {out} began with other content of {' and '.join(changed)}: give the same, or choose another --out_dir"
        )
    record = {
        "settings": dataclasses.asdict(config),
        "sha256": content,
        "recipe": recipe_of(config, content["data"], sentence_encoder.config_of(encoder)),
        "provenance": provenance(device),
    }
    write_json(out / RECORD, record)
    losses = train(model, rows, config, device, dtype)
    with writing(out):
        model.save_pretrained(str(out), create_model_card=False)
    write_json(out / RECORD, {**record, "losses": losses})
    shutil.rmtree(out / CHECKPOINTS, ignore_errors=True)
    print(
        f"{out}: loss {losses[0][1]:.3f} at step {losses[0][0]}, {losses[-1][1]:.3f} at step {losses[-1][0]}"
    )


def begun(out: Path, config: Config) -> dict:
    """The record of the training in a folder, with losses where it has ended; empty where there is none. Raises InputError where the
    folder holds another one, or other files."""
    if not (out / RECORD).exists():
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise InputError(f"{out} holds other files: choose another --out_dir")
        return {}
    record = read_json(out / RECORD, "remove the folder")
    if not config.resume:
        raise InputError(
            f"{out} already holds a training: go on with it by --resume, or choose another --out_dir"
        )
    problems = [
        f"--resume: {out} began with {name} {before}, not {getattr(config, name)}: give the same, or choose another --out_dir"
        for name, before in record["settings"].items()
        if name not in MAY_CHANGE_ON_RESUME and before != getattr(config, name)
    ]
    if problems:
        raise InputError(*problems)
    return record


def recipe_of(config: Config, data_sha256: str | None, encoder: dict) -> str:
    """A hash of all that a fine-tuning learns from, but for its seed: those of the same recipe are seeds of one. data_sha256: of the
    triplets, None for the hub's; encoder: the settings in its folder."""
    told = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name not in MAY_CHANGE_ON_RESUME | {"seed", "data", "encoder"}
    }
    return short_hash([told, data_sha256, encoder.get("recipe"), encoder.get("step")])


def triplets(config: Config):
    """The rows of the data, a datasets.Dataset of COLUMNS. Raises InputError where they are not there."""
    import datasets
    import pyarrow as pa

    datasets.disable_progress_bars()
    if config.data is not None and not (
        Path(config.data).is_file() and text_sources.table_format(Path(config.data))
    ):
        raise InputError(
            f"--data {config.data} is no .jsonl or .parquet file: name one, or leave it out for MS MARCO's"
        )
    name, load, mend = HUB["path"], HUB, "give a file as --data"
    if config.data:
        name, load, mend = (
            config.data,
            text_sources.load_arguments([Path(config.data)]),
            "mend it, or name another --data",
        )
    with text_sources.input_errors(name, mend):
        rows = datasets.load_dataset(**load)
    if missing := [column for column in COLUMNS if column not in rows.column_names]:
        raise InputError(f"{name} has no column {' and '.join(missing)}: give {', '.join(COLUMNS)}")
    rows = rows.select_columns(list(COLUMNS))
    texts = dict(
        zip(COLUMNS, rows.with_format("arrow")[:].columns)
    )  # as they lie, where looking at all takes no time
    if other := [
        column
        for column in COLUMNS
        if texts[column].type not in (pa.string(), pa.large_string(), pa.null())
    ]:
        raise InputError(f"{name} has no text in {' and '.join(other)}: give each row one")
    if empty := [column for column in COLUMNS if texts[column].null_count]:
        raise InputError(
            f"{name} has rows without {' and '.join(empty)}: leave them out, or give each a text"
        )
    if not config.data:
        rows = rows.train_test_split(test_size=HELD_OUT, seed=SHUFFLED_BY)["train"]
    return rows.select(range(min(config.samples, len(rows))))


def train(
    model, rows, config: Config, device: torch.device, dtype: torch.dtype
) -> list[tuple[int, float]]:
    """One epoch; (step, mean loss since the one before) at each log step. Raises InputError where that is not finite."""
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss
    from transformers import TrainerCallback

    class AfterEachStep(TrainerCallback):
        def on_step_end(self, arguments, state, control, **_):
            model[
                0
            ].auto_model.model.clamp_parameters_()  # the encodings' parameters back into their bounds
            control.should_log |= state.global_step == state.max_steps

        def on_log(self, arguments, state, control, logs, **_):
            if not math.isfinite(logs.get("loss", 0)):
                raise InputError(
                    f"the loss is {logs['loss']} at step {state.global_step}: lower --lr, and choose another --out_dir"
                )

    class Trainer(SentenceTransformerTrainer):
        def _save_checkpoint(self, *arguments):
            with writing(checkpoints):
                super()._save_checkpoint(*arguments)

    checkpoints = Path(config.out_dir) / CHECKPOINTS
    trainer = Trainer(
        model=model,
        train_dataset=rows,
        loss=CachedMultipleNegativesRankingLoss(model, mini_batch_size=config.mini_batch),
        callbacks=[AfterEachStep()],
        args=SentenceTransformerTrainingArguments(
            output_dir=str(checkpoints),
            num_train_epochs=1,
            per_device_train_batch_size=config.batch,
            batch_sampler="no_duplicates",
            learning_rate=config.lr,
            lr_scheduler_type="linear",
            warmup_steps=config.warmup,
            seed=config.seed,
            data_seed=config.seed,
            logging_steps=config.log_every,
            logging_nan_inf_filter=False,  # which tells of a loss that is not finite as 0
            save_steps=config.checkpoint_every,
            save_total_limit=1,
            report_to="none",
            use_cpu=device.type == "cpu",
            bf16=dtype == torch.bfloat16,
            fp16=dtype == torch.float16,
        ),
    )
    trainer.train(resume_from_checkpoint=newest(checkpoints))
    return [
        (entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry
    ]


def newest(checkpoints: Path) -> str | None:
    """The folder of the newest checkpoint that was written whole; None where there is none. The trainer writes its state last."""
    states = [
        path
        for path in checkpoints.glob("checkpoint-*/trainer_state.json")
        if path.read_text(encoding="utf-8").endswith("\n}\n")
    ]
    return max(
        (str(path.parent) for path in states),
        key=lambda folder: int(folder.rpartition("-")[2]),
        default=None,
    )


if __name__ == "__main__":
    cli.run(main)
