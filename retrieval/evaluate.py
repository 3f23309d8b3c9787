"""Evaluate how well fine-tuned encoders retrieve documents of many lengths.

    pip install -r requirements-retrieval.txt
    python -m retrieval.evaluate runs/retrieval/*  # English MLDR
    python -m retrieval.evaluate runs/retrieval/cable --data data/mine --lengths 1x,4x,16x

Queries and documents are truncated to each length, and documents are
ranked by cosine similarity. The metric is the mean nDCG@10 over the
queries, in percent (CABLE, table 3). retrieval/tasks.py describes
--data.
"""

import math
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runtime import cli, devices
from runtime.files import hash_file, read_json

import numpy as np

from errors import InputError
from evaluation.record_schema import FineTuning
from evaluation.runner import BATCH_TOKENS, RunsConfig, print_table, update_record
from retrieval import tasks
from retrieval.finetune import finetuning_settings


@dataclass
class Config(RunsConfig):
    """Settings of an evaluation."""

    data: str | None = None
    """folder of a task in BEIR's layout; default: English MLDR from the hub"""
    split: str = "test"
    """split of the relevance judgments"""
    lengths: str = "512,1024,2048,4096,8192,16384"
    """tokens to truncate texts to, separated by commas; 1x: the training length"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    import sentence_transformers  # noqa: F401  (named if missing, rather than what it needs)

    from retrieval import sentence_encoder

    device, dtype = devices.select_device(config.device, config.dtype)
    # An invalid model is found before anything is computed.
    models = [sentence_encoder.load_finetuned(run, dtype, device) for run in config.runs]
    plans = [plan(run, sentence_encoder.read_config(run), config) for run in config.runs]
    task = tasks.load_task(config.data, config.split)
    results = {}
    for run, model, planned in zip(config.runs, models, plans, strict=True):
        lengths, longest, identity = planned
        identity |= {
            "checkpoint_sha256": hash_file(Path(run) / "model.safetensors"),
            "dtype": str(dtype).removeprefix("torch."),
            "data": {
                "dataset": task.name,
                "split": config.split,
                "documents": len(task.documents),
                "questions": len(task.queries),
                "sha256": task.sha256,
            },
            "metric": "nDCG@10",
        }
        measure_at = partial(measure, run, model, task, longest)
        path = Path(run) / f"eval_retrieval_{task.name}_{config.split}.json"
        facts = {"data_revision": task.revision} if task.revision else {}
        record = update_record(run, path, identity, lengths, measure_at, device, None, **facts)
        results[run] = record["lengths"]
    print_table(results, "ndcg10")


def plan(run: str, settings: dict, config: Config) -> tuple[list[int], float, dict]:
    """Return the lengths, the longest that is supported, and its identity.

    settings: of its network. Raises InputError without a fine-tuning record.
    """
    remedy = "pass a folder that retrieval.finetune wrote"
    record = read_json(Path(run) / "finetune.json", remedy, FineTuning)
    lengths = cli.parse_lengths(config.lengths, settings["block_size"])
    identity = {name: settings[name] for name in ("pe", "size", "block_size")} | {
        "seed": record["settings"]["seed"],
        "settings": finetuning_settings(record) | {"encoder": settings.get("training")},
        "training_text": record["sha256"]["data"],
    }
    return lengths, settings.get("max_position_embeddings", math.inf), identity


def measure(run: str, model, task: tasks.Task, longest: float, length: int) -> dict | None:
    """Return nDCG@10 in percent at a length: mean, standard error, by query.

    None if it is not supported. Raises InputError for NaN or Inf.
    """
    if length > longest:
        return None
    from sentence_transformers.util import semantic_search

    model.max_seq_length = length

    def encode(texts):
        vectors = model.encode(
            list(texts),
            batch_size=max(1, BATCH_TOKENS // length),
            convert_to_tensor=True,
            normalize_embeddings=True,
            show_progress_bar=sys.stderr.isatty(),
        )
        if not vectors.isfinite().all():
            raise InputError(
                f"{run}: vectors of texts with {length} tokens contain NaN or Inf: "
                "fine-tune again with a lower --lr"
            )
        return vectors

    names = list(task.documents)
    queries = encode(task.queries.values())
    documents = encode(task.documents.values())
    found = semantic_search(queries, documents, top_k=10)
    values = []
    for query, hits in zip(task.queries, found, strict=True):
        ranking = [names[int(hit["corpus_id"])] for hit in hits]
        values.append(100 * tasks.ndcg(ranking, task.qrels[query]))
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    mean = float(np.mean(values))
    return {"ndcg10": mean, "ndcg10_se": float(error), "by_question": values}


if __name__ == "__main__":
    cli.run(main)
