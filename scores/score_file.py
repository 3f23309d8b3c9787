"""Score files: JSON with all that the fixed budget measured on an encoding.

    score = collect(Path("runs/scores"), "rope+cable")    # from the runs
    scores = read_scores(["runs/mine/rope+cable.json", "results/scores/records.jsonl"])
    check_comparable(scores)                              # the same budget and text

scripts/score.sh makes the runs: those of seed 1 are in text/PE and recall/PE,
those of seed N in text/PE-seedN and recall/PE-seedN. The record of bench.py is
speed/PE.json.

Patterns of more layers than the recall task's network have no trained recall.
The training text of comparable scores may differ: two modules of the standard
library have the folder in which Python was built.
"""

import glob
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

from runtime.files import read_json_values
from runtime.schema import (
    Length,
    LengthKey,
    Loss,
    NotNegative,
    Number,
    Percent,
    Positive,
    SeedKey,
    Text,
    fields,
    not_empty,
    nullable,
)

import msgspec
import numpy as np
import torch

from benchmarking.cases import cache_bytes
from errors import InputError
from evaluation import record_schema
from evaluation.intervals import segment_losses
from evaluation.record_schema import read_record
from model import GPT, GPTConfig
from text_data.recall_task import FILLERS, TASKS

REMEDY = "write it with bash scripts/score.sh"
DIGITS = 6  # decimals of losses and percentages
TEXT_KINDS = ("perplexity", "recall")
RECALL_KINDS = sorted(f"{task.name} {filler}" for task in TASKS for filler in FILLERS)
# Kinds of records: the field of a score, or a kind of recall sequences.
KINDS = {
    record_schema.PERPLEXITY: "perplexity",
    record_schema.RECALL: "recall",
    record_schema.TRAINED_RECALL: "{task} {filler}",
}
SHAPE = ("size", "n_layer", "n_head", "n_embd", "block_size")  # settings of a network
# What is used of a budget; comparisons use all settings and protocols.
TRAINING = fields({"lr": Positive, "block_size steps": Length})
BUDGET = fields({"seeds": list[int], "training": TRAINING, "recall_training?": TRAINING})
TEXT = fields(record_schema.SPLIT | {"tokenizer sha256": Text})


def entry(types: dict[str, Any]) -> Any:
    """Return the type of a dictionary with these fields."""
    return TypedDict("Entry", types)  # pyright: ignore


def by_seed(types: dict[str, Any]) -> Any:
    """Return the type {seed: {length: entry}}; null: not supported."""
    return dict[SeedKey, not_empty(dict[LengthKey, nullable(entry(types))])]


# blocks: at most 32 segments, for paired intervals. by_trial: gains in nats.
PERPLEXITY = {"loss": Loss, "loss_se": nullable(NotNegative), "tokens": Length}
PERPLEXITY |= {"blocks": not_empty(list[Loss]), "block_tokens": list[Length]}
RECALL = {"recall": Number, "recall_se": NotNegative, "by_trial": not_empty(list[Number])}
ACCURACY = {"accuracy": Percent, "accuracy_se": NotNegative}
SPEED = {"seconds": list[Positive], "rope": list[Positive]}  # of training steps
FIELDS = {
    "pe": Text,
    "commits": not_empty(list[nullable(Text)]),
    "python torch processor": Text,
    "text": dict[str, Text],
    "training_text": Text,
    "budget": dict[str, Any],
    "parameters": Length,
    "attention_path dtype": Text,
    "cache_bytes_per_token": Positive,
    "perplexity": by_seed(PERPLEXITY),
    "recall": by_seed(RECALL),
    "trained_recall": dict[str, by_seed(ACCURACY)],
    "steps_to_95": dict[SeedKey, nullable(Length)],
    "speed": entry(SPEED),
    "plugin?": nullable(dict[Text, Text]),
}


class Score(fields(FIELDS)):
    """What the fixed budget measured on an encoding."""

    def __post_init__(self):
        msgspec.convert(self.budget, BUDGET)
        msgspec.convert(self.text, TEXT)
        seeds = {*map(str, self.budget["seeds"])}
        results = [self.perplexity, self.recall, *self.trained_recall.values()]
        if not seeds or any(by_seed.keys() != seeds for by_seed in results):
            raise ValueError("results have other seeds than the budget")

    def length(self, multiple: float, training: str = "training") -> str:
        """Return the key of results at a multiple of a training's length."""
        return str(round(multiple * self.budget[training]["block_size"]))


def read_scores(paths: Iterable[str | Path]) -> dict[str, Score]:
    """Return {encoding: score} of files; one in its own file replaces a line's."""
    paths = sorted(paths, key=lambda path: str(path).endswith(".json"))
    values = [each for path in paths for each in read_json_values(path, REMEDY, Score).values()]
    return {score.pe: score for score in msgspec.convert(values, list[Score])}


def check_comparable(scores: dict[str, Score]) -> None:
    """Raise InputError unless {encoding: score} have one budget and text."""
    first = {}
    for pe, score in scores.items():
        for name, value in {"text": score.text, **score.budget}.items():
            other, expected, python = first.setdefault(name, (pe, value, score.python))
            if value != expected:
                raise InputError(
                    f"{pe} has another budget than {other} ({name}): measure both by "
                    "scripts/score.sh of one commit with the same settings, and prepare the text "
                    f"with Python {python} (here {score.python})"
                )


def collect(folder: Path, pe: str) -> Score:
    """Return the score of an encoding, from the records of its runs.

    Raises InputError if a record is missing or there twice, or if the runs
    differ in settings, protocol or text.
    """
    names = [path.name for path in folder.glob("text/*")]
    matches = [re.fullmatch(rf"{re.escape(pe)}(?:-seed(\d+))?", name) for name in names]
    seeds = sorted(int(match[1] or 1) for match in matches if match)
    if not seeds:
        raise InputError(f"{folder}/text has no runs of {pe}: {REMEDY}")
    trained = RECALL_KINDS if "@" not in pe or (folder / "recall" / pe).exists() else []
    by_kind: dict[str, dict] = {kind: {} for kind in (*TEXT_KINDS, *trained)}  # records by seed
    for seed in seeds:
        records = read_run(folder, pe, seed)
        for kind, by_seed in by_kind.items():
            if kind not in records:
                raise InputError(f"seed {seed} of {pe} has no record of {kind}: {REMEDY}")
            by_seed[str(seed)] = records[kind]
    records = [record for by_seed in by_kind.values() for record in by_seed.values()]
    first = records[0]
    path = folder / "speed" / f"{pe}.json"
    bench = read_record(path, REMEDY)
    train = bench["train"]
    ((context, cases),) = train["contexts"].items()
    if not cases.get(pe):
        raise InputError(f"{path} has no speed of {pe}: {REMEDY}")
    protocols = {kind: same("protocol", each.values()) for kind, each in by_kind.items()}
    results = {kind: compact(by_seed) for kind, by_seed in by_kind.items()}
    speed = {"context": int(context), "device": train["device"].partition(" ")[0]}
    budget = {
        "seeds": seeds,
        "training": same("settings", by_kind["perplexity"].values()),
        **{name: protocols[name] for name in TEXT_KINDS},
        "speed": {**{name: train[name] for name in ("model", "micro_batch")}, **speed},
    }
    task = by_kind[trained[0]] if trained else {}  # settings and steps are those of all kinds
    if trained:
        budget["recall_training"] = same("settings", task.values())
        budget["trained_recall"] = {kind: protocols[kind] for kind in trained}
    shape = {name: first["settings"][name] for name in SHAPE}
    model = GPT(GPTConfig(pe=pe, **shape)).eval()
    tokens = model.config.block_size
    held = cache_bytes(model, tokens, torch.device("cpu"), torch.float32)  # as on CPUs
    score = {
        "pe": pe,
        "commits": sorted({str(record["provenance"]["commit"]) for record in records}),
        **{name: first["provenance"][name] for name in ("python", "torch")},
        "processor": bench["processor"],
        "text": same("data", records),
        "training_text": same("training_text", records),
        "budget": budget,
        "parameters": first["parameters"],
        "attention_path": first["attention"],
        "dtype": first["dtype"],
        "cache_bytes_per_token": held / tokens,
        **{name: results[name] for name in TEXT_KINDS},
        "trained_recall": {kind: results[kind] for kind in trained},
        "steps_to_95": {seed: record["steps_to_95"] for seed, record in task.items()},
        "speed": {"seconds": cases[pe]["seconds"], "rope": cases[pe]["others"]["rope"]},
        "plugin": first.get("plugin"),
    }
    return msgspec.convert(score, Score)


def read_run(folder: Path, pe: str, seed: int) -> dict[str, dict]:
    """Return the records of a seed's finished trainings by kind.

    Raises InputError for another encoding or seed, or two of a kind.
    """
    records = {}
    name = glob.escape(pe if seed == 1 else f"{pe}-seed{seed}")
    for path in sorted(folder.glob(f"*/{name}/eval_*.json")):
        record = read_record(path, "rename it or remove it")
        kind = KINDS.get(record_schema.schema_of(record))
        if kind is None or record["step"] != record["settings"]["steps"]:
            continue
        if (record["pe"], record["seed"]) != (pe, seed):
            raise InputError(
                f"{path} is not of {pe} with seed {seed}: use another folder of runs"
            )
        kind = kind.format(**record["protocol"])
        record["protocol"]["lengths"] = [*map(int, record["lengths"])]
        if kind in records:
            raise InputError(f"there are two records of {kind}, {path} is one: move one away")
        records[kind] = record
    return records


def same(field: str, records: Iterable[dict]) -> Any:
    """Return the field that all records share; InputError if they differ."""
    first, *others = [record[field] for record in records]
    if any(value != first for value in others):
        raise InputError(
            f"the runs differ in {field}: remove those that scripts/score.sh did not make"
        )
    return first


def compact(by_seed: dict[str, dict]) -> dict[str, dict]:
    """Return {seed: {length: entry}}, rounded, with losses as blocks."""
    results = {seed: {**record["lengths"]} for seed, record in by_seed.items()}
    for by_length in results.values():
        for length, entry in by_length.items():
            if entry and "tokens" in entry:
                losses, widths = segment_losses([entry]) or (np.array([[entry["loss"]]]), [1.0])
                tokens = [round(width * entry["tokens"]) for width in widths]
                by_length[length] = entry | {
                    "blocks": losses[0].tolist(),
                    "block_tokens": tokens,
                }
    return json.loads(json.dumps(results), parse_float=lambda text: round(float(text), DIGITS))
