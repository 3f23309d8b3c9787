"""Schema of records: what the fields of each kind of record must be.

    record = read_record("runs/cable/eval_stdlib_val.json", remedy)
    problem = PERPLEXITY.find_problem(record)  # None, or "expected float >= 0 at lengths[...].loss"

Records are checked once, when they are read. Programs that use them rely on the fields that are
required here. Names of data sets and splits become parts of file names. A metric of another name
needs no schema: its entries hold any fields, with finite numbers.

Numbers are finite, except for perplexities: the exponential of a loss of at least 700 is infinity
(runtime/schema.py).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from runtime.files import read_json_values
from runtime.schema import (
    EXP_OVERFLOW,
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


class Schema:
    """The fields of one kind of record, and a check of what holds between them."""

    def __init__(self, types: dict, check: Callable[[dict], Iterable[str]] = lambda record: ()):
        """types: as of `fields`. check: yields what is wrong in a record of these types."""
        self.type = fields(types)
        self.check = check

    def find_problem(self, record) -> str | None:
        """Return the first problem of a record, or None."""
        return find_mismatch(record, self.type) or next(iter(self.check(record)), None)


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
    entry: dict,
    protocol: dict | None = None,
    check: Callable[[dict, dict, str], Iterable[str]] = lambda record, entry, length: (),
    data: Any = DATA,
    **others,
) -> Schema:
    """Return the schema of a record with results by length; null: not supported by the model.

    check: yields what is wrong in check(record, entry, length), for each length.
    """
    types = {**MODEL, "data": data, **others}
    types["lengths"] = not_empty(dict[LengthKey, nullable(fields(entry))])
    if protocol:
        types["protocol"] = fields(protocol)

    def check_all(record: dict) -> Iterator[str]:
        for length, entry in record["lengths"].items():
            for problem in check(record, entry, length) if entry else ():
                yield f"field lengths.{length} has {problem}"

    return Schema(types, check_all)


def _check_perplexity(record: dict, entry: dict, length: str) -> Iterator[str]:
    protocol = record["protocol"]
    if protocol.get("targets") and None in map(protocol.get, ("spans", "overlap")):
        yield "a protocol with targets, but no spans and overlap"
    if math.isinf(entry["perplexity"]) and entry["loss"] < EXP_OVERFLOW:
        yield f"an infinite perplexity, but a loss of {entry['loss']:.4g}"
    if "block_tokens" in entry and len(entry["block_tokens"]) != len(entry.get("blocks", ())):
        yield "different numbers of blocks and block_tokens"
    curve = entry.get("by_position")
    if curve and curve["first"] + (len(curve["loss"]) - 1) * curve["width"] >= int(length):
        yield "losses by_position beyond its length"


def _check_receptive_field(record: dict, entry: dict, length: str) -> Iterator[str]:
    if len(entry["cumulative"]["tokens"]) != len(entry["cumulative"]["share"]):
        yield "different numbers of tokens and shares"


def _check_ndcg(record: dict, entry: dict, length: str) -> Iterator[str]:
    count = len(entry["by_question"])
    if count != record["data"]["questions"]:
        yield f"{count} values by_question, not one per question"


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
    _check_perplexity,
)
RECEPTIVE_FIELD = _by_length(
    {
        "receptive_field": Positive,
        "receptive_field_se": NotNegative,
        "cumulative": fields({"tokens": list[Length], "share": list[Fraction]}),
    },
    {"windows": Length, "span": Length, "held": Fraction},
    _check_receptive_field,
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
    check=_check_ndcg,
)


def _check_other(record: dict, entry: dict, length: str) -> Iterator[str]:
    numbers = [value for value in entry.values() if isinstance(value, int | float)]
    if not numbers or not all(map(math.isfinite, numbers)):
        yield "no numbers, or NaN or Inf"


OTHER = _by_length({}, check=_check_other, metric=Text)
ACCURACY = Schema(
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
        "left_out?": nullable(Fraction),
        "time?": dict[Text, Fraction],
        "kernels?": list[fields({"name": Text, "calls": Count, "ms": Positive})],
    }
)
CONTEXTS = dict[LengthKey, dict[Text, nullable(SPEED_ENTRY)]]
SPEED_RESULT = fields(SETUP | {"run?": Text, "objective?": Text, "contexts": CONTEXTS})
SPEED_RESULTS = ("train", "attention", "generate", "eval")


def _check_speed(record: dict) -> Iterator[str]:
    for name in SPEED_RESULTS:
        contexts = record[name]["contexts"] if name in record else {}
        entries = [entry for cases in contexts.values() for entry in cases.values() if entry]
        if name in record and not entries:
            yield f"field {name}.contexts has no numbers"
        for entry in entries:
            others = entry.get("others")
            compared = [entry["ratios"], entry["ratios"] if others is None else others]
            if name != "attention" and not all("rope" in each for each in compared):
                yield f"field {name}.contexts has an entry that is not compared with rope"
            if any(len(rounds) != len(entry["seconds"]) for rounds in (others or {}).values()):
                yield f"field {name}.contexts has different numbers of rounds"


SPEED = Schema(HARDWARE | {f"{name}?": SPEED_RESULT for name in SPEED_RESULTS}, _check_speed)
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


def _check_comparison(record: dict) -> Iterator[str]:
    for row in record["compare"]["rows"]:
        has = f"the row {row['task']}, {row['against']} has"
        if len({len(rounds) for rounds in row["seconds"].values()}) > 1:
            yield f"{has} different numbers of rounds"
        if row.get("flops") and not (row.get("product_flops") and "product" in row["seconds"]):
            yield f"{has} flops, but no product"


COMPARISON = Schema(HARDWARE | {"compare": fields(SETUP | COMPARED)}, _check_comparison)
GROWTH_ENTRY = nullable(fields({"seconds": ROUNDS, "tokens": Length}))
GROWTH_LENGTHS = not_empty(dict[Text, dict[LengthKey, GROWTH_ENTRY]])
GROWTH_RESULT = fields(SETUP | {"encoding": Text, "lengths": GROWTH_LENGTHS})
GROWTH = Schema(HARDWARE | {"growth": GROWTH_RESULT})
POINTS = list[tuple[Count, Number]]  # steps and losses
# finetune.json of retrieval.finetune. An unfinished fine-tuning has no losses.
FINETUNING = fields(
    {
        "settings": fields({"seed": Integer}),
        "sha256": fields({"data": nullable(Text)}),
        "losses?": POINTS,
    }
)
BY_LENGTH = {  # record["metric"]
    "Perplexity": PERPLEXITY,
    "Receptive field": RECEPTIVE_FIELD,
    "Recall": RECALL,
    "Trained recall": TRAINED_RECALL,
    "nDCG@10": NDCG,
}


def schema_of(record) -> Schema | None:
    """Return the schema of a record's kind, or None if it is no record of a measurement."""
    if not isinstance(record, dict):
        return None
    if {"lengths", "data"} <= record.keys():
        name = record.get("metric", "Perplexity")
        schema = BY_LENGTH.get(name, OTHER) if isinstance(name, str) else None
        return schema if schema in (NDCG, OTHER) or "protocol" in record else None
    if {"acc", "acc_norm"} <= record.keys():
        return ACCURACY
    kinds = {"compare": COMPARISON, "growth": GROWTH, **dict.fromkeys(SPEED_RESULTS, SPEED)}
    return next((schema for field, schema in kinds.items() if field in record), None)


def read_records(paths: Sequence[str | Path], remedy: str) -> dict[str, dict]:
    """Return {source: record} of files: JSON, or JSON lines with a record in each.

    See read_json_values for the sources, and for the paths that select records. Raises InputError,
    for all files at once, if a record is missing, corrupt, or something else, with `remedy`, and if
    a field is missing or is not what later steps rely on.
    """
    records, problems = {}, []
    for path in paths:
        try:
            if Path(path).is_dir():
                raise InputError(f"{path} is a folder: pass its records, {path}/eval_*.json")
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
    """Raise InputError unless the content of a file is a record; arguments as in read_record."""
    schema = schema_of(record)
    if schema is None:
        raise InputError(f"{path} is not a record of eval_*.py or bench.py: {remedy}")
    if problem := schema.find_problem(record):
        raise InputError(f"{path}: {problem}: evaluate the run again, or remove the file")
