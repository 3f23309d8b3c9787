"""Score files: JSON with all that the fixed budget measured on an encoding.

    score = collect(Path("runs/scores"), "rope+cable")    # from the runs
    scores = read_scores(["runs/mine/rope+cable.json", "results/scores/records.jsonl"])
    check_comparable(scores)                              # the same budget and text

scripts/score.sh makes the runs: those of seed 1 are in text/PE and recall/PE,
those of seed N in text/PE-seedN and recall/PE-seedN; speed/PE.json is the record
of bench.py. The training text of comparable scores may differ: two modules of the
standard library have the folder in which Python was built.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from runtime import schema

import msgspec
import torch

from benchmarking.cases import cache_bytes
from errors import InputError
from evaluation import record_schema
from evaluation.intervals import segment_losses
from evaluation.record_schema import NOT_EMPTY, Loss, Number, Positive, read_records
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
# What is used of a budget; comparisons use all settings and protocols.
TRAINING = schema.fields({"lr": Positive, "block_size steps": schema.Length})
BUDGET = schema.fields({"seeds": list[int], "training recall_training?": TRAINING})
TEXT = schema.fields(record_schema.SPLIT | {"tokenizer sha256": schema.Text})


def by_seed(entry: dict[str, Any]) -> Any:
    """Return the type {seed: {length: entry}}; null: not supported."""
    by_length = dict[schema.LengthKey, TypedDict("Entry", entry) | None]  # pyright: ignore
    return dict[schema.SeedKey, Annotated[by_length, NOT_EMPTY]]


ERROR, SECONDS = record_schema.NotNegative, list[Positive]
# Of at most 32 segments, for paired intervals.
LOSSES = Annotated[list[Loss], NOT_EMPTY]
PERPLEXITY = {"loss": Loss, "loss_se": ERROR | None, "tokens": schema.Length}
PERPLEXITY |= {"blocks": LOSSES, "block_tokens": list[schema.Length]}
ACCURACY = {"accuracy": record_schema.Percent, "accuracy_se": ERROR}
GAINS = Annotated[list[Number], NOT_EMPTY]  # in nats
FIELDS = {
    "pe training_text attention_path dtype python torch processor": schema.Text,
    "commits": Annotated[list[schema.Text | None], NOT_EMPTY],
    "text": dict[str, schema.Text],
    "budget": dict[str, Any],
    "parameters": schema.Length,
    "cache_bytes_per_token": Positive,
    "perplexity": by_seed(PERPLEXITY),
    "recall": by_seed({"recall": Number, "recall_se": ERROR, "by_trial": GAINS}),
    "trained_recall": dict[str, by_seed(ACCURACY)],
    "steps_to_95": dict[schema.SeedKey, schema.Length | None],
    "speed": TypedDict("Speed", {"seconds": SECONDS, "rope": SECONDS}),  # pyright: ignore
    "plugin?": dict[schema.Text, schema.Text] | None,
}


class Score(schema.fields(FIELDS), omit_defaults=True):  # pyright: ignore
    """What the fixed budget measured on an encoding."""

    def __post_init__(self):
        msgspec.convert(self.budget, BUDGET)
        msgspec.convert(self.text, TEXT)
        seeds = {*map(str, self.budget["seeds"])}
        results = [self.perplexity, self.recall, *self.trained_recall.values()]
        if not seeds or any(by_seed.keys() != seeds for by_seed in results):
            raise ValueError("results have other seeds than the budget")


def read_scores(paths: Iterable[str | Path]) -> dict[str, Score]:
    """Return {encoding: score} of files; one in its own file replaces a line's."""
    paths = sorted(paths, key=lambda path: str(path).endswith(".json"))
    values = [*read_records(paths, REMEDY, Score).values()]
    return {score.pe: score for score in msgspec.convert(values, list[Score])}


def check_comparable(scores: dict[str, Score]) -> None:
    """Raise InputError unless {encoding: score} have one budget and text."""
    first = {}
    for pe, score in scores.items():
        for name, value in {"text": score.text, **score.budget}.items():
            other, expected, python = first.setdefault(name, (pe, value, score.python))
            if value != expected:
                problem = f"{pe} has another budget than {other} ({name})"
                remedy = f"prepare the text with Python {python} (here {score.python})"
                raise InputError(f"{problem}: use the same settings, and {remedy}")


def collect(folder: Path, pe: str) -> Score:
    """Return the score of an encoding, from the records of its runs.

    Raises InputError if a record is missing or there twice, or if the runs
    differ in settings, protocol or text.
    """
    trained = RECALL_KINDS if "@" not in pe or (folder / "recall" / pe).exists() else []
    kinds = (*TEXT_KINDS, *trained)
    found, seeds = read_runs(folder, pe)
    for kind in kinds:
        if not seeds or found.get(kind, {}).keys() != {*seeds}:
            raise InputError(f"{folder} needs {kind} of all seeds of {pe}: {REMEDY}")
    records = [found[kind][seed] for kind in kinds for seed in seeds]
    first = records[0]
    protocols = {kind: same("protocol", found[kind].values()) for kind in kinds}
    results = {kind: {seed: compact(found[kind][seed]) for seed in seeds} for kind in kinds}
    path = folder / "speed" / f"{pe}.json"
    (bench,) = read_records([path], REMEDY).values()
    train = bench["train"]
    ((context, cases),) = train["contexts"].items()
    if not cases.get(pe):
        raise InputError(f"{path} has no speed of {pe}: {REMEDY}")
    speed = {"context": int(context), "device": train["device"].partition(" ")[0]}
    budget = {
        "seeds": [*map(int, seeds)],
        "training": same("settings", found["perplexity"].values()),
        **{kind: protocols[kind] for kind in TEXT_KINDS},
        "speed": {**{name: train[name] for name in ("model", "micro_batch")}, **speed},
    }
    task = found[trained[0]] if trained else {}  # settings and steps are those of all kinds
    if trained:
        budget["recall_training"] = same("settings", task.values())
        budget["trained_recall"] = {kind: protocols[kind] for kind in trained}
    names = ("size", "n_layer", "n_head", "n_embd", "block_size")
    shape = {name: first["settings"][name] for name in names}
    model = GPT(GPTConfig(pe=pe, **shape)).eval()
    tokens = model.config.block_size
    held = cache_bytes(model, tokens, torch.device("cpu"), torch.float32)  # as on CPUs
    score = {
        **{name: first.get(name) for name in ("pe", "parameters", "dtype", "plugin")},
        **{name: first["provenance"][name] for name in ("python", "torch")},
        "commits": sorted({str(record["provenance"]["commit"]) for record in records}),
        "processor": bench["processor"],
        "text": same("data", records),
        "training_text": same("training_text", records),
        "budget": budget,
        "attention_path": first["attention"],
        "cache_bytes_per_token": held / tokens,
        **{kind: results[kind] for kind in TEXT_KINDS},
        "trained_recall": {kind: results[kind] for kind in trained},
        "steps_to_95": {seed: task[seed]["steps_to_95"] for seed in seeds if task},
        "speed": {"seconds": cases[pe]["seconds"], "rope": cases[pe]["others"]["rope"]},
    }
    return msgspec.convert(score, Score)


def read_runs(folder: Path, pe: str) -> tuple[dict[str, dict[str, dict]], list[str]]:
    """Return {kind: {seed: record}} of finished trainings, and the runs' seeds.

    Raises InputError for another encoding, or two records of a kind and seed.
    """
    name = rf"{re.escape(pe)}(-seed\d+)?"
    runs = [path for path in folder.glob("*/*/") if re.fullmatch(name, path.name)]
    seeds = {run.name.removeprefix(pe).removeprefix("-seed") or "1" for run in runs}
    paths = [path for run in runs for path in sorted(run.glob("eval_*.json"))]
    found = {}
    for path, record in read_records(paths, "rename it or remove it").items():
        kind = KINDS.get(record_schema.schema_of(record))
        if kind and record["step"] == record["settings"]["steps"]:
            kind, seed = kind.format(**record["protocol"]), str(record["seed"])
            record["protocol"]["lengths"] = [*map(int, record["lengths"])]
            if seed in found.setdefault(kind, {}) or record["pe"] != pe:
                what = f"{kind} of seed {seed}, or not of {pe}"
                raise InputError(f"{path} is a second record of {what}: move it away")
            found[kind][seed] = record
    return found, sorted(seeds, key=int)


def same(field: str, records: Iterable[dict]) -> Any:
    """Return the field that all records share; InputError if they differ."""
    first, *others = [record[field] for record in records]
    if any(value != first for value in others):
        raise InputError(f"the runs differ in {field}: remove those of others")
    return first


def compact(record: dict) -> dict[str, dict | None]:
    """Return a record's {length: entry}, rounded, with losses as blocks."""
    results = {**record["lengths"]}
    for length, entry in results.items():
        if entry and "tokens" in entry:
            losses, widths = segment_losses([entry]) or ([[entry["loss"]]], [1.0])
            tokens = [round(width * entry["tokens"]) for width in widths]
            results[length] = entry | {"blocks": [*losses[0]], "block_tokens": tokens}
    return json.loads(json.dumps(results), parse_float=lambda x: round(float(x), DIGITS))
