"""Schema of records: what the fields of each kind of record must be.

    record = read_record("runs/cable/eval_stdlib_val.json", remedy)
    find_mismatch(record, PERPLEXITY)  # None, or "expected float >= 0 at ..."

Records are checked once, when they are read; programs rely on the fields that
are required here. Names of data sets and splits become parts of file names.
Numbers are finite, except for perplexities: the exponential of a loss of at
least 700 is infinity (runtime/schema.py).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from runtime.files import read_json, read_json_lines
from runtime.schema import (
    Count,
    Fraction,
    Integer,
    Length,
    LengthKey,
    Loss,
    Name,
    NotNegative,
    Number,
    Percent,
    Positive,
    Text,
    fields,
    find_mismatch,
    not_empty,
    nullable,
)

from msgspec import Meta

from errors import InputError

MODEL = {
    "run folder? pe size objective? dtype?": Text,
    "block_size": Length,
    "step? init_steps? parameters?": nullable(Count),
    "seed?": nullable(Integer),
    "settings": dict[Text, Any],
    "training_text": nullable(Text),
    "cache_window?": nullable(Length),
}
SPLIT = {"dataset split": Name}
DATA = fields(SPLIT | {"tokenizer": Text})
HEADER = fields(MODEL | {"data": fields(SPLIT)})  # what every evaluation writes


def _by_length(
    entry: dict, protocol: dict | None = None, data: Any = DATA, **others
) -> Any:
    """Return the schema of results by length; null: it is not supported."""
    types = {**MODEL, "data": data, **others}
    types["lengths"] = not_empty(dict[LengthKey, nullable(fields(entry))])
    if protocol:
        types["protocol"] = fields(protocol)
    return fields(types)


LOSS_CURVE = fields({"first": Count, "width": Length, "loss": list[nullable(Loss)]})
PERPLEXITY = _by_length(
    {
        "loss": Loss,
        "loss_se": nullable(NotNegative),
        "perplexity": Annotated[float, Meta(ge=0.99)],
        "tokens": Length,
        "blocks?": list[Loss],
        "block_tokens?": list[Length],
        "by_position? by_offset?": LOSS_CURVE,
    },
    {
        "name remainder?": Text,
        "stride? targets? span? spans?": nullable(Length),
        "documents?": Length,
        "overlap?": Fraction,
        "mask_rate?": nullable(Fraction),
    },
)
RECEPTIVE_FIELD = _by_length(
    {
        "receptive_field": Positive,
        "receptive_field_se": NotNegative,
        "cumulative": fields({"tokens": list[Length], "share": list[Fraction]}),
    },
    {"windows": Length, "span": Length, "held": Fraction},
)
RECALL = _by_length(
    {"recall": Number, "recall_se": NotNegative},
    {"passage": Length, "trials": Length, "span": Length},
)
TRAINED_RECALL = _by_length(
    {"accuracy": Percent, "accuracy_se": Percent},
    {"task": Text, "filler": Text, "trials": Length, "span": Length, "symbols": Length},
    steps_to_95=nullable(Count),
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
        "acc_se acc_norm_se": nullable(Fraction),
        "examples": Count,
        "log_likelihoods?": list[list[Annotated[float, Meta(le=1e18)]]],
    }
)

HARDWARE = {"processor torch": Text}
SETUP = {"model device dtype": Text, "micro_batch repeats": Length, "compile": bool}
ROUNDS = not_empty(list[Positive])  # seconds
SPEED_ENTRY = fields(
    {
        "seconds": ROUNDS,
        "others?": dict[Text, ROUNDS],
        "tokens": Length,
        "tokens_per_second memory weights?": Positive,
        "ratios": dict[Text, Positive],
        "mfu error?": nullable(NotNegative),
        "time?": dict[Text, Fraction],
        "kernels?": list[fields({"name": Text, "calls": Count, "ms": Positive})],
    }
)
CONTEXTS = dict[LengthKey, dict[Text, nullable(SPEED_ENTRY)]]
SPEED_RESULT = fields(SETUP | {"contexts": CONTEXTS})
SPEED_RESULTS = ("train", "attention", "generate", "eval")
SPEED = fields(HARDWARE | {f"{name}?": SPEED_RESULT for name in SPEED_RESULTS})
COMPARISON_ROW = fields(
    {
        "task encoding? against": Text,
        "tokens": Length,
        "flops?": nullable(Positive),
        "product_flops?": Positive,
        "seconds": fields({"ours": ROUNDS, "theirs": ROUNDS, "product?": ROUNDS}),
    }
)
COMPARED = {"context": Length, "rows": list[COMPARISON_ROW], "skipped": dict[Text, Text]}
COMPARISON = fields(HARDWARE | {"compare": fields(SETUP | COMPARED)})
POINTS = list[tuple[Count, Number]]  # steps and losses
LOSSES_OF_RUN = {"run pe": Text, "size objective": nullable(Text), "losses": POINTS}
LOSSES_OF_RUN |= {"seed": nullable(Integer), "step?": nullable(Count)}
TRAININGS = Literal["pretraining", "fine-tuning"]
LOSSES = fields({"training": TRAININGS, "runs": not_empty(list[fields(LOSSES_OF_RUN)])})
# finetune.json of retrieval.finetune. An unfinished fine-tuning has no losses.
FINETUNING = fields(
    {
        "settings": fields({"seed": Integer}),
        "sha256": fields({"data": nullable(Text)}),
        "losses?": POINTS,
    }
)
PARALLEL = (("blocks", "block_tokens"), ("tokens", "share"), ("ours", "theirs", "product"))
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


def read_json_values(path: str | Path, remedy: str, schema=None) -> dict[str, Any]:
    """Return the JSON value in a file, or those in the lines of a .jsonl file.

    Keys: the path or, of a line, "PATH, line N". PATH.jsonl:NAME selects the
    run NAME; in scores, the encoding. A corrupt line is None. schema: of each
    value. Raises InputError as read_json does, and if there is no such line.
    """
    file, separator, name = str(path).partition(".jsonl:")
    file += ".jsonl" if separator else ""
    if not file.endswith(".jsonl"):
        return {file: read_json(file, remedy, schema)}
    found = {f"{file}, line {n}": value for n, value in enumerate(read_json_lines(file), 1)}
    if separator:
        named = {source: x for source, x in found.items() if isinstance(x, dict)}
        found = {
            source: x for source, x in named.items() if x.get("run", x.get("pe")) == name
        }
    if not found:
        raise InputError(
            f"{path} has no records{f' of {name}' if separator else ''}: {remedy}"
        )
    for source, value in found.items():
        if schema and (problem := find_mismatch(value, schema)):
            raise InputError(f"{source}: {problem}: {remedy}")
    return found


def read_records(paths: Sequence[str | Path], remedy: str) -> dict[str, dict]:
    """Return {source: record} of JSON files, or JSON lines with a record each.

    See read_json_values for sources and paths. Raises InputError, for all files
    at once, if a record is missing, corrupt, or has a wrong field.
    """
    records, problems = {}, []
    for path in paths:
        try:
            if Path(path).is_dir():
                raise InputError(
                    f"{path} is a folder: pass its records, {path}/eval_*.json"
                )
            for source, record in read_json_values(path, remedy).items():
                check_record(source, record, remedy)
                records[source] = record
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return records


def read_record(path: str | Path, remedy: str) -> dict:
    """Return the record in a file. Raises InputError as read_records does."""
    (record,) = read_records([path], remedy).values()
    return record


def check_record(path: str | Path, record, remedy: str) -> None:
    """Raise InputError unless a file's content is a record."""
    schema = schema_of(record)
    if schema is None:
        raise InputError(f"{path} is not a record of eval_*.py or bench.py: {remedy}")
    problem = find_mismatch(record, schema) or find_uneven(record)
    for run in record["runs"] if schema is LOSSES and not problem else ():
        steps = [step for step, _ in run["losses"]]
        if steps != sorted(set(steps)):
            problem = f"the losses of {run['run']} are not in the order of their steps"
    if problem:
        raise InputError(f"{path}: {problem}: evaluate the run again, or remove the file")


def find_uneven(value) -> str | None:
    """Return a message about PARALLEL lists of different lengths, or None."""
    inner = value.values() if isinstance(value, dict) else value
    for names in PARALLEL if isinstance(value, dict) else ():
        lists = [value[name] for name in names if isinstance(value.get(name), list)]
        if len({len(values) for values in lists}) > 1:
            return f"{' and '.join(names)} have different numbers of values"
    problems = (find_uneven(each) for each in inner if isinstance(each, dict | list))
    return next(filter(None, problems), None)
