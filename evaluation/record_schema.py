"""Schema of records: what the fields of each kind of record must be.

    read_records(["runs/cable/eval_stdlib_val.json"], remedy)  # {source: record}
    find_mismatch(record, PERPLEXITY)  # None, or "expected float >= 0 at ..."

Records are checked once, when they are read; programs rely on the fields that
are required here. Names of data sets and splits become parts of file names.
Numbers are finite, except for perplexities: the exponential of a loss of at
least 700 is infinity (model.py).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from runtime.files import read_json, read_json_lines
from runtime.schema import Count, Length, LengthKey, Name, Text, fields, find_mismatch

import msgspec
from msgspec import Meta

from errors import InputError

Number: Any = Annotated[float, Meta(ge=-1e18, le=1e18)]
NotNegative: Any = Annotated[float, Meta(ge=0, le=1e18)]
Positive: Any = Annotated[float, Meta(ge=1e-18, le=1e18)]
Loss: Any = Annotated[float, Meta(ge=-1e-6, le=1e18)]
Fraction: Any = Annotated[float, Meta(ge=0, le=1 + 1e-6)]
"""sums of fractions are rounded"""
Percent: Any = Annotated[float, Meta(ge=0, le=100)]
NOT_EMPTY = Meta(min_length=1)

MODEL = {
    "run folder? pe size objective? dtype?": Text,
    "block_size": Length,
    "step? init_steps? parameters? seed?": Count | None,
    "settings": dict[Text, Any],
    "training_text": Text | None,
    "cache_window?": Length | None,
}
SPLIT = {"dataset split": Name}
DATA = fields(SPLIT | {"tokenizer": Text})
HEADER = fields(MODEL | {"data": fields(SPLIT)})  # what every evaluation writes


def _equal_lengths(value) -> None:
    """Raise ValueError for lists of different lengths in an object."""
    values = msgspec.structs.asdict(value).items()
    lengths = {name: len(each) for name, each in values if isinstance(each, list)}
    if len({*lengths.values()}) > 1:
        raise ValueError(f"{' and '.join(lengths)} have different numbers of values")


def _ordered(run) -> None:
    """Raise ValueError for losses that are not in the order of their steps."""
    steps = [step for step, _ in run.losses]
    if steps != sorted(set(steps)):
        raise ValueError(f"the losses of {run.run} are not in the order of their steps")


def _by_length(entry: dict, protocol: dict | None = None, data=DATA, **others) -> Any:
    """Return the schema of results by length; null: it is not supported."""
    types = {**MODEL, "data": data, **others}
    entry_type = fields(entry, namespace=EQUAL_LENGTHS)
    types["lengths"] = Annotated[dict[LengthKey, entry_type | None], NOT_EMPTY]
    if protocol:
        types["protocol"] = fields(protocol)
    return fields(types)


EQUAL_LENGTHS, ORDERED = {"__post_init__": _equal_lengths}, {"__post_init__": _ordered}
LOSS_CURVE = fields({"first": Count, "width": Length, "loss": list[Loss | None]})
PERPLEXITY = _by_length(
    {
        "loss": Loss,
        "loss_se": NotNegative | None,
        "perplexity": Annotated[float, Meta(ge=0.99)],
        "tokens": Length,
        "blocks?": list[Loss],
        "block_tokens?": list[Length],
        "by_position? by_offset?": LOSS_CURVE,
    },
    {
        "name remainder?": Text,
        "stride? targets? span? spans?": Length | None,
        "documents?": Length,
        "overlap?": Fraction,
        "mask_rate?": Fraction | None,
    },
)
SHARES = fields({"tokens": list[Length], "share": list[Fraction]}, namespace=EQUAL_LENGTHS)
RECEPTIVE_FIELD = _by_length(
    {"receptive_field": Positive, "receptive_field_se": NotNegative, "cumulative": SHARES},
    {"windows": Length, "span": Length, "held": Fraction},
)
RECALL = _by_length(
    {"recall": Number, "recall_se": NotNegative},
    {"passage": Length, "trials": Length, "span": Length},
)
TRAINED_RECALL = _by_length(
    {"accuracy": Percent, "accuracy_se": Percent},
    {"task": Text, "filler": Text, "trials": Length, "span": Length, "symbols": Length},
    steps_to_95=Count | None,
)
NDCG = _by_length(
    {"ndcg10": NotNegative, "ndcg10_se": NotNegative, "by_question": list[NotNegative]},
    data=fields(SPLIT | {"documents": Count, "questions": Count}),
)
OTHER = _by_length({"value": Number}, metric=Text)  # of a metric that is not listed here
ACCURACY = fields(
    {
        **MODEL,
        "data": DATA,
        "protocol": fields({"name": Text}),
        "acc acc_norm": Fraction,
        "acc_se acc_norm_se": Fraction | None,
        "examples": Count,
        "log_likelihoods?": list[list[Annotated[float, Meta(le=1e18)]]],
    }
)

HARDWARE = {"processor torch": Text}
SETUP = {"model device dtype": Text, "micro_batch repeats": Length, "compile": bool}
ROUNDS = Annotated[list[Positive], NOT_EMPTY]  # seconds
SPEED_ENTRY = fields(
    {
        "seconds": ROUNDS,
        "others?": dict[Text, ROUNDS],
        "tokens": Length,
        "tokens_per_second memory weights?": Positive,
        "ratios": dict[Text, Positive],
        "mfu error?": NotNegative | None,
        "time?": dict[Text, Fraction],
    }
)
CONTEXTS = dict[LengthKey, dict[Text, SPEED_ENTRY | None]]
SPEED_RESULT = fields(SETUP | {"contexts": CONTEXTS})
SPEED_RESULTS = ("train", "attention", "generate", "eval")
SPEED = fields(HARDWARE | {f"{name}?": SPEED_RESULT for name in SPEED_RESULTS})
SECONDS = fields({"ours theirs": ROUNDS, "product?": ROUNDS}, namespace=EQUAL_LENGTHS)
COMPARISON_ROW = fields(
    {
        "task encoding? against": Text,
        "tokens": Length,
        "flops?": Positive | None,
        "product_flops?": Positive,
        "seconds": SECONDS,
    }
)
COMPARED = {"context": Length, "rows": list[COMPARISON_ROW], "skipped": dict[Text, Text]}
COMPARISON = fields(HARDWARE | {"compare": fields(SETUP | COMPARED)})
POINTS = list[tuple[Count, Number]]  # steps and losses
LOSSES_OF_RUN = {"run pe": Text, "size objective": Text | None, "losses": POINTS}
LOSSES_OF_RUN |= {"seed step?": Count | None}
RUNS = Annotated[list[fields(LOSSES_OF_RUN, namespace=ORDERED)], NOT_EMPTY]
LOSSES = fields({"training": Literal["pretraining", "fine-tuning"], "runs": RUNS})
# finetune.json of retrieval.finetune. An unfinished fine-tuning has no losses.
FINETUNED = {"settings": fields({"seed": Count}), "sha256": fields({"data": Text | None})}
FINETUNING = fields(FINETUNED | {"losses?": POINTS})
BY_LENGTH = {  # record["metric"]
    "Perplexity": PERPLEXITY,
    "Receptive field": RECEPTIVE_FIELD,
    "Recall": RECALL,
    "Trained recall": TRAINED_RECALL,
    "nDCG@10": NDCG,
}


def schema_of(record) -> Any:
    """Return the schema of a record's kind, or None if it is no record."""
    if not isinstance(record, dict):
        return None
    if {"lengths", "data"} <= record.keys():
        name = record.get("metric", "Perplexity")
        return BY_LENGTH.get(name, OTHER) if isinstance(name, str) else None
    if {"acc", "acc_norm"} <= record.keys():
        return ACCURACY
    if record.get("metric") == "Training loss" and "runs" in record:
        return LOSSES
    kinds = {"compare": COMPARISON, **dict.fromkeys(SPEED_RESULTS, SPEED)}
    return next((schema for field, schema in kinds.items() if field in record), None)


def read_json_values(path: str | Path, remedy: str) -> dict[str, Any]:
    """Return {source: JSON value} of a file, or of the lines of a .jsonl file.

    PATH.jsonl:NAME selects the run NAME; in scores, the encoding. A corrupt line
    is None. Raises InputError as read_json does, and if there is no such line.
    """
    file, separator, name = str(path).partition(".jsonl:")
    file += ".jsonl" if separator else ""
    if not file.endswith(".jsonl"):
        return {file: read_json(file, remedy)}
    if not Path(file).is_file():
        raise InputError(f"{file} does not exist: {remedy}")
    found = {f"{file}, line {n}": x for n, x in enumerate(read_json_lines(file), 1)}
    if separator:
        named = [(source, x) for source, x in found.items() if isinstance(x, dict)]
        found = {source: x for source, x in named if x.get("run", x.get("pe")) == name}
    if not found:
        whose = f" of {name}" if separator else ""
        raise InputError(f"{path} has no records{whose}: {remedy}")
    return found


def read_records(paths: Sequence[str | Path], remedy: str, schema=None) -> dict[str, dict]:
    """Return {source: record} of JSON files, or JSON lines with a record each.

    Sources are the path or, of a line, "PATH, line N"; paths: see
    read_json_values. schema: None: that of a record's kind. Raises InputError,
    for all files at once, if one is missing, corrupt, or has a wrong field.
    """
    again = remedy if schema else "evaluate the run again, or remove the file"
    records, problems = {}, []
    for path in paths:
        try:
            if Path(path).is_dir():
                what = "a folder: pass its records"
                raise InputError(f"{path} is {what}, {path}/eval_*.json")
            found = read_json_values(path, remedy)
        except InputError as error:
            problems += error.problems
            continue
        for source, record in found.items():
            kind = schema or schema_of(record)
            if kind is None:
                what = "not a record of eval_*.py or bench.py"
                problems.append(f"{source} is {what}: {remedy}")
            elif problem := find_mismatch(record, kind):
                problems.append(f"{source}: {problem}: {again}")
        records |= found
    if problems:
        raise InputError(*problems)
    return records
