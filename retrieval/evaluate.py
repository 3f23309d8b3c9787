"""How well does an encoder find long documents, far beyond its training length?

    pip install -r requirements-retrieval.txt
    python -m retrieval.evaluate runs/retrieval/cable runs/retrieval/rope               # MLDR in English, from the hub
    python -m retrieval.evaluate runs/retrieval/cable --data data/mine --lengths 1x,4x,16x

Questions and documents are cut at the length asked for and turned into vectors, and the documents are ranked by the cosine: nDCG@10
in percent, the mean over questions (CABLE, table 3). Runs are folders that retrieval.finetune made; retrieval.py tells what --data
is. Every run gets a JSON record beside it, renewed after each length; lengths that it holds already are not computed again.
"""

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from errors import InputError
from evaluation.records import update_record
from reporting import tables
from retrieval import tasks
from runtime import cli, devices
from runtime.provenance import sha256_of
from runtime.files import read_json
from text_data.data_loader import BATCH_TOKENS


@dataclass
class Config:
    """Settings of an evaluation."""

    runs: list[str] = field(default_factory=list)
    """folders made by retrieval.finetune"""
    data: str | None = None
    """folder of a task, laid out as BEIR's; null: MLDR in English, from the hub"""
    split: str = "test"
    """which of its qrels"""
    lengths: str = "512,1024,2048,4096,8192,16384"
    """where texts are cut, in tokens, separated by commas; 1x,2x,... are multiples of the training length"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it"""


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("runs", "folders made by retrieval.finetune")
    )
    if not config.runs:
        raise InputError("no run named: python -m retrieval.evaluate runs/retrieval/NAME ...")
    try:
        from retrieval import sentence_encoder
    except ImportError:
        raise InputError(
            "retrieval needs sentence-transformers 6: pip install -r requirements-retrieval.txt"
        ) from None
    device, dtype = devices.select_device(config.device, config.dtype)
    models = [
        sentence_encoder.load(run, dtype, device) for run in config.runs
    ]  # all can be evaluated, or nothing is computed
    plans = [plan(run, sentence_encoder.config_of(run), config) for run in config.runs]
    task = tasks.load(config.data, config.split)
    records = [
        evaluate(run, model, *asked, task, config, device, dtype)
        for run, model, asked in zip(config.runs, models, plans)
    ]
    print(f"\n{tables.summary(records)}")


def plan(run: str, settings: dict, config: Config) -> tuple[list[int], float, dict]:
    """What an encoder, whose network has these settings, is asked: the lengths, the longest that it can take, and what tells it from
    others. Raises InputError where it was never fine-tuned."""
    tuning = read_json(Path(run) / "finetune.json", "name a folder that retrieval.finetune made")
    longest = settings.get("max_position_embeddings", math.inf)  # of a learned table
    return (
        cli.parse_lengths(config.lengths, settings["block_size"]),
        longest,
        {
            **{name: settings[name] for name in ("pe", "size", "block_size")},
            "seed": tuning["settings"]["seed"],
            "recipe": tuning.get("recipe"),
        },
    )


def evaluate(
    run: str,
    model,
    lengths: list[int],
    longest: float,
    encoder: dict,
    task: tasks.Task,
    config: Config,
    device: torch.device,
    dtype: torch.dtype,
) -> dict:
    """The record of one encoder, with every length asked for."""
    path = Path(run) / f"eval_retrieval_{task.name}_{config.split}.json"
    identity = {
        **encoder,
        "checkpoint_sha256": sha256_of(Path(run) / "model.safetensors"),
        "dtype": str(dtype).removeprefix("torch."),
        "data": {
            "dataset": task.name,
            "split": config.split,
            "documents": len(task.documents),
            "questions": len(task.questions),
            "sha256": task.sha256,
        },
        "metric": tables.NDCG.name,
    }
    return update_record(
        run,
        path,
        identity,
        lengths,
        lambda length: None if length > longest else measure(run, model, task, length),
        device,
    )


def measure(run: str, model, task: tasks.Task, length: int) -> dict:
    """nDCG@10 in percent over all questions, its standard error, and that of each question. Raises InputError where the encoder's
    vectors are not finite."""
    from sentence_transformers.util import semantic_search

    model.max_seq_length = length

    def vectors(texts):
        found = model.encode(
            [*texts],
            batch_size=max(1, BATCH_TOKENS // length),
            convert_to_tensor=True,
            normalize_embeddings=True,
            show_progress_bar=sys.stderr.isatty(),
        )
        if not found.isfinite().all():
            raise InputError(
                f"{run}: cut at {length} tokens, texts have vectors that are not finite: fine-tune again with a lower --lr"
            )
        return found

    names = [*task.documents]
    hits = semantic_search(
        vectors(task.questions.values()), vectors(task.documents.values()), top_k=10
    )
    values = [
        100 * tasks.ndcg([names[hit["corpus_id"]] for hit in of_question], task.relevant[question])
        for question, of_question in zip(task.questions, hits)
    ]
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return {"ndcg10": float(np.mean(values)), "ndcg10_se": float(error), "by_question": values}


if __name__ == "__main__":
    cli.run(main)
