"""Score files: JSON with everything that the fixed budget measured on an encoding.

    path = score_path("runs/mine", "rope+cable")         # runs/mine/rope+cable.json
    scores = read_scores([path, "results/scores/records.jsonl"])  # a file with one in each line
    check_comparable(scores)                             # the same budget and text

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
from pathlib import Path
from typing import Any

from runtime.files import read_json_values
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

from errors import InputError
from evaluation.record_schema import SPLIT
from scores.speed import SECONDS

REFERENCES = ("rope", "cable")
REMEDY = "write it with bash scripts/score.sh"


def _by_seed(entry: dict) -> Any:
    return not_empty(dict[SeedKey, not_empty(dict[LengthKey, nullable(fields(entry))])])


TRAINING = fields({"lr": Positive, "steps": Length, "block_size": Length})
BUDGET = {
    "seeds": not_empty(list[Count]),
    "training": TRAINING,
    "recall_training?": TRAINING,
}
PERPLEXITY = {
    "loss": Loss,
    "loss_se": nullable(NotNegative),
    "tokens": Length,
    "blocks": not_empty(list[Loss]),
    "block_tokens": not_empty(list[Length]),
}
RECALL = {"recall": Number, "recall_se": NotNegative, "by_trial": not_empty(list[Number])}
TRAINED_RECALL = {"accuracy": Percent, "accuracy_se": NotNegative}
RECEPTIVE_FIELD = {"receptive_field": Positive, "receptive_field_se": NotNegative}
SCHEMA = fields(
    {
        "pe": Text,
        "plugin?": dict[Text, Text],
        "code_sha256": Text,
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
        "perplexity": _by_seed(PERPLEXITY),
        "recall": _by_seed(RECALL),
        "trained_recall": dict[Text, _by_seed(TRAINED_RECALL)],
        "steps_to_95": dict[SeedKey, nullable(Length)],
        "receptive_field": _by_seed(RECEPTIVE_FIELD),
        "speed": fields(SECONDS),
    }
)


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
