"""Score files: JSON with everything that the fixed budget measured on an encoding.

    score = collect("runs/scores", "rope+cable", seeds=[1, 2, 3])   # from the runs
    path = score_path("runs/mine", "rope+cable")         # runs/mine/rope+cable.json
    scores = read_scores([path, "results/scores/records.jsonl"])  # a file with one in each line
    check_comparable(scores)                             # the same budget and text

scripts/score.sh makes the runs: those of seed 1 are in text/PE and recall/PE, those of seed N in
text/PE-seedN and recall/PE-seedN, and the measurement of scores.speed is speed/PE.json.

Results are by seed, then by length or distance in tokens, as in the records of the runs:

    perplexity       loss, its standard error, and mean losses of at most 32 segments of the text
    recall           recall of text in percent, its standard error, and what each trial gained
    trained_recall   by kind of sequence ("passage random"): accuracies in percent
    receptive_field  of the first seed
    speed            seconds of a training step in interleaved rounds, next to those of rope

A length that the encoding does not support has null. Patterns of more layers than the network of
the recall task have no trained recall. `budget` is what must be equal for scores to be comparable:
settings of the trainings, protocols of the evaluations, seeds. It is derived from the records, so a
run with other settings makes another budget. `text` is what is evaluated, and must be equal, too.
`training_text` is the SHA-256 of the text that was trained on. It may differ: two modules of the
standard library have the folder in which Python was built.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.checkpoints import load_checkpoint, training_settings
from runtime.files import read_json, read_json_values
from runtime.schema import (
    Count,
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

import torch

from benchmarking.cases import cache_bytes
from errors import InputError
from evaluation.intervals import segment_losses
from evaluation.record_schema import SPLIT, read_record
from model import GPT, GPTConfig
from reporting.metrics import (
    PERPLEXITY,
    RECALL,
    RECEPTIVE_FIELD,
    TRAINED_RECALL,
    metric_of,
)
from scores import speed

REFERENCES = ("rope", "cable")
REMEDY = "write it with bash scripts/score.sh"
DIGITS = 6  # decimals of losses and percentages
METRICS = (PERPLEXITY, RECALL, RECEPTIVE_FIELD, TRAINED_RECALL)


def _by_seed(entry: dict) -> Any:
    return not_empty(dict[SeedKey, not_empty(dict[LengthKey, nullable(fields(entry))])])


TRAINING = fields({"lr": Positive, "steps": Length, "block_size": Length})
BUDGET = {
    "seeds": not_empty(list[Count]),
    "training": TRAINING,
    "recall_training?": TRAINING,
}
PERPLEXITY_ENTRY = {
    "loss": Loss,
    "loss_se": nullable(NotNegative),
    "tokens": Length,
    "blocks": not_empty(list[Loss]),
    "block_tokens": not_empty(list[Length]),
}
RECALL_ENTRY = {"recall": Number, "recall_se": NotNegative, "by_trial": not_empty(list[Number])}
TRAINED_RECALL_ENTRY = {"accuracy": Percent, "accuracy_se": NotNegative}
RECEPTIVE_FIELD_ENTRY = {"receptive_field": Positive, "receptive_field_se": NotNegative}
SCHEMA = fields(
    {
        "pe": Text,
        "plugin?": dict[Text, Text],
        "commits": not_empty(list[nullable(Text)]),
        "python": Text,
        "torch": Text,
        "processor": Text,
        "text": fields(SPLIT | {"tokenizer": Text, "sha256": Text}),
        "training_text": Text,
        "budget": fields(BUDGET),
        "parameters": Length,
        "attention_path": Text,
        "dtype": Text,
        "cache_bytes_per_token": Positive,
        "perplexity": _by_seed(PERPLEXITY_ENTRY),
        "recall": _by_seed(RECALL_ENTRY),
        "trained_recall": dict[Text, _by_seed(TRAINED_RECALL_ENTRY)],
        "steps_to_95": dict[SeedKey, nullable(Length)],
        "receptive_field": _by_seed(RECEPTIVE_FIELD_ENTRY),
        "speed": fields(speed.SECONDS),
    }
)


# Files


def score_path(folder: str | Path, pe: str) -> Path:
    """Return the path of an encoding's score file: names of encodings have no slashes."""
    return Path(folder) / f"{pe}.json"


def read_scores(paths: Iterable[str | Path]) -> dict[str, dict]:
    """Return {source: score} of files; see read_json_values for the sources.

    Raises InputError if one is missing or something else.
    """
    scores = {}
    for path in paths:
        for source, score in read_json_values(path, REMEDY, SCHEMA).items():
            problem, name = _find_inconsistency(score), Path(source).name
            if problem is None and name.endswith(".json") and name != f"{score['pe']}.json":
                problem = f"field pe is {score['pe']}"
            if problem:
                raise InputError(f"{source} is not a score file ({problem}): {REMEDY}")
            scores[source] = score
    return scores


def read_folder(folder: str | Path) -> dict[str, dict]:
    """Return {encoding: score} of the score files in a folder, those of one score last."""
    folder = Path(folder)
    scores = read_scores([*sorted(folder.glob("*.jsonl")), *sorted(folder.glob("*.json"))])
    return {score["pe"]: score for score in scores.values()}


def _find_inconsistency(score: dict) -> str | None:
    """Return how the fields of a score contradict each other, or None."""
    seeds = {*map(str, score["budget"]["seeds"])}
    results = {name: score[name] for name in ("perplexity", "recall")} | score["trained_recall"]
    for name, by_seed in results.items():
        if by_seed.keys() != seeds:
            return f"{name} has other seeds than the budget"
    if score["trained_recall"] and "recall_training" not in score["budget"]:
        return "field budget.recall_training is missing"
    if len(score["speed"]["seconds"]) != len(score["speed"]["rope"]):
        return "field speed has different numbers of rounds"
    for by_length in score["perplexity"].values():
        for entry in filter(None, by_length.values()):
            if len(entry["blocks"]) != len(entry["block_tokens"]):
                return "perplexity has different numbers of blocks and block_tokens"
    return None


def check_comparable(scores: dict[str, dict]) -> None:
    """Raise InputError unless all scores, {source: score}, have the same budget and text."""
    problems = []
    first_path, first = next(iter(scores.items()))
    holders = {}  # part of the budget -> first score that has it
    for path, score in scores.items():
        if score["text"] != first["text"]:
            problems.append(
                f"{path} is measured on another text than {first_path}: prepare the text with "
                f"Python {first['python']} (here {score['python']})"
            )
        for name, value in score["budget"].items():
            holder = holders.setdefault(name, path)
            if value != scores[holder]["budget"][name]:
                problems.append(
                    f"{path} has another budget than {holder} ({name}): measure both with "
                    "scripts/score.sh of the same commit and the same settings"
                )
    if problems:
        raise InputError(*problems)


# From runs


@dataclass(frozen=True)
class RunRecords:
    """What was measured on one run."""

    folder: Path
    checkpoint: dict
    records: dict[str, dict]
    """by kind: name of the metric; of trained recall: task and filler, as in "passage random" """


def collect(folder: str | Path, pe: str, seeds: list[int]) -> dict:
    """Return the score of an encoding, from its runs and their records in a folder.

    Raises InputError if a run, a step of it or a record is missing, if a record is there twice, or
    if the seeds differ in settings, protocol or text.
    """
    texts, tasks = (read_runs(Path(folder) / task, pe, seeds) for task in ("text", "recall"))
    first = texts[seeds[0]]
    measured = {
        "perplexity": records_of(texts, PERPLEXITY.name),
        "recall": records_of(texts, RECALL.name),
        "receptive_field": records_of({seeds[0]: first}, RECEPTIVE_FIELD.name),
    }
    kinds = sorted(tasks[seeds[0]].records) or [TRAINED_RECALL.name] if tasks else []
    trained = {kind: records_of(tasks, kind) for kind in kinds}
    records = [
        each for by_seed in (*measured.values(), *trained.values()) for each in by_seed.values()
    ]
    rounds = read_json(Path(folder) / "speed" / f"{pe}.json", REMEDY, speed.SCHEMA)
    if rounds["pe"] != pe:
        raise InputError(f"{folder}/speed/{pe}.json is the speed of {rounds['pe']}: {REMEDY}")

    budget: dict[str, Any] = {"seeds": seeds, "training": same_settings(texts)}
    budget |= {name: same_protocol(by_seed, folder) for name, by_seed in measured.items()}
    steps_to_95 = {}
    if trained:
        budget["recall_training"] = same_settings(tasks)
        budget["trained_recall"] = {
            kind: same_protocol(by_seed, folder) for kind, by_seed in trained.items()
        }
        # They are the same in the records of all kinds.
        steps_to_95 = {str(seed): each["steps_to_95"] for seed, each in trained[kinds[0]].items()}
    runs = [*texts.values(), *tasks.values()]
    score = {
        "pe": pe,
        "commits": sorted({str(each["provenance"]["commit"]) for each in records}),
        "python": records[0]["provenance"]["python"],
        "torch": records[0]["provenance"]["torch"],
        "processor": rounds["processor"],
        "text": same([record["data"] for record in records], folder),
        "training_text": same([run.checkpoint["data"]["sha256"] for run in runs], folder),
        "budget": budget | {"speed": rounds["budget"]},
        "parameters": records[0]["parameters"],
        "attention_path": records[0]["attention"],
        "dtype": records[0]["dtype"],
        "cache_bytes_per_token": cache_bytes_per_token(first.checkpoint),
        "perplexity": entries(measured["perplexity"], PERPLEXITY_ENTRY),
        "recall": entries(measured["recall"], RECALL_ENTRY),
        "trained_recall": {
            kind: entries(by_seed, TRAINED_RECALL_ENTRY) for kind, by_seed in trained.items()
        },
        "steps_to_95": steps_to_95,
        "receptive_field": entries(measured["receptive_field"], RECEPTIVE_FIELD_ENTRY),
        "speed": {name: rounds[name] for name in speed.SECONDS},
    }
    if plugin := records[0].get("plugin"):
        score["plugin"] = plugin
    return score


def read_runs(folder: Path, pe: str, seeds: list[int]) -> dict[int, RunRecords]:
    """Return {seed: records} of the runs of an encoding for one task.

    Empty for a pattern of layers without runs. Raises InputError as read_run does.
    """
    paths = {seed: folder / (pe if seed == 1 else f"{pe}-seed{seed}") for seed in seeds}
    if folder.name == "recall" and "@" in pe and not any(path.exists() for path in paths.values()):
        return {}
    return {seed: read_run(path, pe, seed) for seed, path in paths.items()}


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


def records_of(runs: dict[int, RunRecords], kind: str) -> dict[int, dict]:
    """Return {seed: record} of a kind. Raises InputError if one is missing."""
    for run in runs.values():
        if kind not in run.records:
            raise InputError(f"{run.folder} has no record of {kind}: {REMEDY}")
    return {seed: run.records[kind] for seed, run in runs.items()}


def same_settings(runs: dict[int, RunRecords]) -> dict:
    """Return the settings of the trainings. Raises InputError if they differ."""
    settings = [training_settings(run.checkpoint) for run in runs.values()]
    return same(settings, next(iter(runs.values())).folder)


def same_protocol(by_seed: dict[int, dict], where: str | Path) -> dict:
    """Return the protocol of records with their lengths. Raises InputError if they differ.

    The lengths make a partial record another protocol.
    """
    protocols = [
        {**record["protocol"], "lengths": [*map(int, record["lengths"])]}
        for record in by_seed.values()
    ]
    return same(protocols, where)


def same(values: list, where: str | Path):
    """Return the value that all are equal to. Raises InputError if they differ."""
    if any(other != values[0] for other in values):
        raise InputError(
            f"the runs in {where} differ in text, settings or protocol: remove those that "
            "scripts/score.sh did not make"
        )
    return values[0]


def entries(by_seed: dict[int, dict], names: Iterable[str]) -> dict:
    """Return {seed: {length: rounded values}}; null where a length is not supported."""
    return {
        str(seed): {
            length: entry and rounded(entry, names) for length, entry in record["lengths"].items()
        }
        for seed, record in by_seed.items()
    }


def rounded(entry: dict, names: Iterable[str]) -> dict:
    """Return these values of an entry, rounded; "blocks": losses of segments, for intervals."""
    if "blocks" in names:
        losses, widths = [entry["loss"]], [1.0]
        if segments := segment_losses([entry]):
            losses, widths = segments[0][0].tolist(), segments[1]
        block_tokens = [round(width * entry["tokens"]) for width in widths]
        entry = entry | {"blocks": losses, "block_tokens": block_tokens}
    return {name: _round(entry[name]) for name in names}


def _round(value):
    if isinstance(value, list):
        return [*map(_round, value)]
    return round(value, DIGITS) if isinstance(value, float) else value


def cache_bytes_per_token(checkpoint: dict) -> float:
    """Return the bytes per token of the KV cache in float32, the precision of caches on a CPU."""
    model = GPT(GPTConfig(**checkpoint["gpt"])).eval()
    tokens = model.config.block_size
    return cache_bytes(model, tokens, torch.device("cpu"), torch.float32) / tokens
