"""Scores from runs: read the records that scripts/score.sh made of one encoding.

    score = collect("runs/scores", "rope+cable", seeds=[1, 2, 3])

The runs of the first seed are in text/PE and recall/PE, those of seed N in text/PE-seedN and
recall/PE-seedN, and the measurement of scores.speed is speed/PE.json.
"""

import hashlib
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runtime import plugins
from runtime.checkpoints import load_checkpoint, training_settings

import torch

import posenc
from benchmarking.cases import cache_bytes
from errors import InputError
from evaluation.intervals import segment_losses
from model import GPT, GPTConfig
from reporting.metrics import (
    PERPLEXITY,
    RECALL,
    RECEPTIVE_FIELD,
    TRAINED_RECALL,
    metric_of,
    read_record,
)
from scores.score_file import REMEDY
from scores.speed import SECONDS, read_speed

DIGITS = 6  # decimals of losses and percentages
METRICS = (PERPLEXITY, RECALL, RECEPTIVE_FIELD, TRAINED_RECALL)


@dataclass(frozen=True)
class RunRecords:
    """What was measured on one run."""

    folder: Path
    checkpoint: dict
    records: dict[str, dict]
    """by kind: name of the metric; of trained recall: task and filler, as in "passage random" """

    def get(self, kind: str) -> dict:
        """Return the record of a kind. Raises InputError if it is missing."""
        if kind not in self.records:
            raise InputError(f"{self.folder} has no record of {kind}: {REMEDY}")
        return self.records[kind]


def run_folder(folder: str | Path, task: str, pe: str, seed: int) -> Path:
    """Return the folder of a run; task: "text" or "recall"."""
    return Path(folder) / task / (pe if seed == 1 else f"{pe}-seed{seed}")


def collect(folder: str | Path, pe: str, seeds: list[int]) -> dict:
    """Return the score of an encoding, from its runs and their records in a folder.

    Raises InputError if a run, a step of it or a record is missing, if a record is there twice, or
    if the seeds differ in settings, protocol or text.
    """
    texts = {seed: read_run(run_folder(folder, "text", pe, seed), pe, seed) for seed in seeds}
    first = texts[seeds[0]]
    perplexity = {seed: run.get(PERPLEXITY.name) for seed, run in texts.items()}
    recall = {seed: run.get(RECALL.name) for seed, run in texts.items()}
    field = first.get(RECEPTIVE_FIELD.name)
    task_runs, trained, task_budget, learned = collect_trained_recall(folder, pe, seeds)
    runs = [*texts.values(), *task_runs]
    speed = read_speed(Path(folder) / "speed" / f"{pe}.json", pe, REMEDY)

    records = [*perplexity.values(), *recall.values(), field]
    records += [record for by_seed in trained.values() for record in by_seed.values()]
    budget = {
        "seeds": seeds,
        "training": same(
            [training_settings(run.checkpoint) for run in texts.values()], first.folder
        ),
        "perplexity": same(map(describe_protocol, perplexity.values()), first.folder),
        "recall": same(map(describe_protocol, recall.values()), first.folder),
        "receptive_field": describe_protocol(field),
        **task_budget,
        "speed": speed["budget"],
    }
    provenance = records[0]["provenance"]
    score = {
        "pe": pe,
        "code_sha256": code_hash(pe),
        "commits": sorted({str(each["provenance"]["commit"]) for each in records}),
        "python": provenance["python"],
        "torch": provenance["torch"],
        "processor": speed["processor"],
        "text": same([record["data"] for record in records], folder),
        "training_text": same([run.checkpoint["data"]["sha256"] for run in runs], folder),
        "budget": budget,
        "parameters": records[0]["parameters"],
        "attention_path": records[0]["attention"],
        "dtype": records[0]["dtype"],
        "cache_bytes_per_token": cache_bytes_per_token(first.checkpoint),
        "perplexity": by_seed(perplexity, perplexity_entry),
        "recall": by_seed(recall, partial(rounded, names=("recall", "recall_se", "by_trial"))),
        "trained_recall": {
            kind: by_seed(runs, partial(rounded, names=("accuracy", "accuracy_se")))
            for kind, runs in sorted(trained.items())
        },
        "steps_to_95": learned,
        "receptive_field": by_seed(
            {seeds[0]: field},
            partial(rounded, names=("receptive_field", "receptive_field_se")),
        ),
        "speed": {name: speed[name] for name in SECONDS},
    }
    if plugin := records[0].get("plugin"):
        score["plugin"] = plugin
    return score


def collect_trained_recall(
    folder: str | Path, pe: str, seeds: list[int]
) -> tuple[list[RunRecords], dict[str, dict[int, dict]], dict, dict]:
    """Return runs, their records {kind: {seed: record}}, what must be equal, and the steps to 95%.

    All are empty for a pattern of layers without runs: the network of the recall task has fewer
    layers than that of text.
    """
    folders = {seed: run_folder(folder, "recall", pe, seed) for seed in seeds}
    if "@" in pe and not any(path.exists() for path in folders.values()):
        return [], {}, {}, {}
    runs = {seed: read_run(path, pe, seed) for seed, path in folders.items()}
    first = runs[seeds[0]]
    if not first.records:
        raise InputError(f"{first.folder} has no record of {TRAINED_RECALL.name}: {REMEDY}")
    trained = {kind: {seed: run.get(kind) for seed, run in runs.items()} for kind in first.records}
    budget = {
        "recall_training": same(
            [training_settings(run.checkpoint) for run in runs.values()], first.folder
        ),
        "trained_recall": {
            kind: same(map(describe_protocol, by_seed.values()), first.folder)
            for kind, by_seed in trained.items()
        },
    }
    any_kind = next(iter(trained.values()))  # the steps are the same in all
    learned = {str(seed): any_kind[seed]["steps_to_95"] for seed in seeds}
    return [*runs.values()], trained, budget, learned


def read_run(folder: Path, pe: str, seed: int) -> RunRecords:
    """Return the records of a run. Raises InputError if they are not of this encoding and seed."""
    checkpoint = load_checkpoint(folder, causal=True, weights=False)
    config = checkpoint["config"]
    found = checkpoint["gpt"]["pe"], config["seed"]
    if found != (pe, seed):
        raise InputError(
            f"{folder} is a run of {found[0]} with seed {found[1]}, not of {pe} with seed {seed}: "
            f"use another RUNS folder"
        )
    if checkpoint["step"] < config["steps"]:
        raise InputError(
            f"{folder} is trained for {checkpoint['step']} of {config['steps']} steps: {REMEDY}"
        )
    records = {}
    for path in sorted(folder.glob("eval_*.json")):
        record = read_record(path, "rename it or remove it")
        metric = metric_of(record)
        if metric not in METRICS or record["step"] != checkpoint["step"]:
            continue
        kind = metric.name
        if metric is TRAINED_RECALL:
            kind = f"{record['protocol']['task']} {record['protocol']['filler']}"
        if kind in records:
            raise InputError(f"{folder} has two records of {kind}, {path} is one: move one away")
        records[kind] = record
    return RunRecords(folder, checkpoint, records)


def describe_protocol(record: dict) -> dict:
    """Return the protocol of a record with its lengths, so that a partial record is another one."""
    lengths = [int(length) for length in record["lengths"]]
    return {**record["protocol"], "lengths": lengths}


def same(values: Iterable, where: str | Path):
    """Return the value that all are equal to. Raises InputError if they differ."""
    first, *others = values
    if any(other != first for other in others):
        raise InputError(
            f"the runs next to {where} differ in text, settings or protocol: remove those that "
            "scripts/score.sh did not make"
        )
    return first


def by_seed(records: dict[int, dict], make_entry: Callable[[dict], dict]) -> dict:
    """Return {seed: {length: entry}}; entries are null where a length is not supported."""
    return {
        str(seed): {
            length: entry and make_entry(entry) for length, entry in record["lengths"].items()
        }
        for seed, record in records.items()
    }


def perplexity_entry(entry: dict) -> dict:
    """Return an entry with the mean losses of the segments that intervals are computed from."""
    losses, widths = [entry["loss"]], [1.0]
    segments = segment_losses([entry])
    if segments:
        losses, widths = segments[0][0].tolist(), segments[1]
    return {
        **rounded(entry, ("loss", "loss_se")),
        "tokens": entry["tokens"],
        "blocks": [round(loss, DIGITS) for loss in losses],
        "block_tokens": [round(width * entry["tokens"]) for width in widths],
    }


def rounded(entry: dict, names: Sequence[str]) -> dict:
    """Return these values of an entry, rounded: numbers, arrays of numbers, or None."""
    values = {name: entry[name] for name in names}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = [round(each, DIGITS) for each in value]
        elif value is not None:
            values[name] = round(value, DIGITS)
    return values


def code_hash(pe: str) -> str:
    """Return a hash of the source code of an encoding's classes, of its plugins and its options.

    It does not cover the base class of all encodings and functions outside of the classes.
    """
    parsed = posenc.parse(pe)
    parts = [plugin.sha256 for plugin in plugins.plugins_of(parsed)]
    for cls, options in parsed:
        parts.append(repr(sorted(options.items())))
        for base in cls.__mro__:
            is_encoding = issubclass(base, posenc.Encoding) and base is not posenc.Encoding
            if is_encoding and base.__module__ not in plugins.LOADED:
                parts.append(inspect.getsource(base))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def cache_bytes_per_token(checkpoint: dict) -> float:
    """Return the bytes per token of the KV cache in float32, the precision of caches on a CPU."""
    model = GPT(GPTConfig(**checkpoint["gpt"])).eval()
    tokens = model.config.block_size
    return cache_bytes(model, tokens, torch.device("cpu"), torch.float32) / tokens
