"""Schema of records: what the fields of each kind of record must be.

    problem = PERPLEXITY.find_problem(record)  # None, or "field lengths.256.loss is NaN, not ..."

Records are checked once, when they are read (reporting/metrics.py). Programs that use them rely on
the fields that are required here. Names of data sets and splits become parts of file names.

Numbers are finite, except for perplexities: the exponential of a loss of at least 700 is infinity
(evaluation/records.py).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from runtime.files import (
    BOOLEAN,
    COUNT,
    LENGTH,
    NAME,
    TEXT,
    Array,
    Each,
    Kind,
    Nullable,
    find_mismatch,
    number,
    whole_number,
)

NUMBER = number()
NOT_NEGATIVE = number(0, what="a finite number of at least 0")
POSITIVE = number(1e-18, what="a finite number above 0")
LOSS = number(-1e-6, what="a finite loss of at least 0")
FRACTION = number(0, 1 + 1e-6, "a number from 0 to 1")  # sums of fractions are rounded
SEED = whole_number()
LENGTH_KEY = Kind("a length in tokens", lambda key: _is_length(key))
EXP_OVERFLOW = 700.0  # losses from here on have infinite perplexity


def _is_length(key: str) -> bool:
    is_number = key.isascii() and key.isdecimal() and len(key) <= 15
    return is_number and key == str(int(key)) and int(key) > 0


def _is_point(value) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and COUNT.accepts(value[0]) and NUMBER.accepts(value[1])


POINT = Kind("a step and a finite loss", _is_point)
MODEL = {
    "run": TEXT,
    "folder?": TEXT,
    "pe": TEXT,
    "size": TEXT,
    "block_size": LENGTH,
    "objective?": TEXT,
    "step?": Nullable(COUNT),
    "init_steps?": Nullable(COUNT),
    "seed?": Nullable(SEED),
    "recipe?": Nullable(TEXT),
    "parameters?": Nullable(COUNT),
    "cache_window?": Nullable(LENGTH),
    "dtype?": TEXT,
}
DATA = {"dataset": NAME, "split": NAME, "tokenizer": TEXT}
HEADER = {**MODEL, "data": {"dataset": NAME, "split": NAME}}  # what every evaluation writes


@dataclass(frozen=True)
class Schema:
    """The fields of one kind of record."""

    fields: dict
    """schema of find_mismatch"""
    check: Callable[[dict], str | None] = lambda record: None
    """returns what is wrong between fields of a record that `fields` accepts, or None"""

    def find_problem(self, record) -> str | None:
        """Return the first problem of a record, or None."""
        return find_mismatch(record, self.fields) or self.check(record)


def _by_length(data: dict, entry: dict, protocol: dict | None = None) -> dict:
    """Return the fields of a record with results by length."""
    fields = {**MODEL, "data": data, "lengths": Each(LENGTH_KEY, Nullable(entry), minimum=1)}
    return fields if protocol is None else fields | {"protocol": protocol}


def _check_perplexity(record: dict) -> str | None:
    protocol = record["protocol"]
    if protocol.get("targets") and None in map(protocol.get, ("spans", "overlap")):
        return "protocol has targets, but no spans and overlap"
    for length, entry in record["lengths"].items():
        problem = entry and _check_perplexity_entry(entry, int(length))
        if problem:
            return f"field lengths.{length} has {problem}"
    return None


def _check_perplexity_entry(entry: dict, length: int) -> str | None:
    if math.isinf(entry["perplexity"]) and entry["loss"] < EXP_OVERFLOW:
        return f"an infinite perplexity, but a loss of {entry['loss']:.4g}"
    if "block_tokens" in entry and len(entry["block_tokens"]) != len(entry.get("blocks", ())):
        return "different numbers of blocks and block_tokens"
    curve = entry.get("by_position")
    if curve and curve["first"] + (len(curve["loss"]) - 1) * curve["width"] >= length:
        return "losses by_position beyond its length"
    return None


def _check_receptive_field(record: dict) -> str | None:
    for length, entry in record["lengths"].items():
        curve = entry and entry["cumulative"]
        if curve and len(curve["tokens"]) != len(curve["share"]):
            return f"field lengths.{length}.cumulative has different numbers of tokens and shares"
    return None


def _check_ndcg(record: dict) -> str | None:
    for length, entry in record["lengths"].items():
        count = len(entry["by_question"]) if entry and "by_question" in entry else None
        if count not in (None, record["data"]["questions"]):
            return f"field lengths.{length}.by_question has {count} values, not one per question"
    return None


def _check_losses(record: dict) -> str | None:
    for run in record["runs"]:
        steps = [step for step, _ in run["losses"]]
        if steps != sorted(set(steps)):
            return f"the losses of {run['run']} are not in the order of their steps"
    return None


def _check_speed(record: dict) -> str | None:
    for name in SPEED_RESULTS:
        if name not in record:
            continue
        contexts = record[name]["contexts"].values()
        entries = [entry for by_case in contexts for entry in by_case.values() if entry]
        if not entries:
            return f"field {name}.contexts has no numbers"
        for entry in entries:
            compared = [entry["ratios"], entry.get("others", entry["ratios"])]
            if name != "attention" and not all("rope" in each for each in compared):
                return f"field {name}.contexts has an entry that is not compared with rope"
            rounds = {len(seconds) for seconds in entry.get("others", {}).values()}
            if rounds and rounds != {len(entry["seconds"])}:
                return f"field {name}.contexts has different numbers of rounds"
    return None


PERPLEXITY = Schema(
    _by_length(
        DATA,
        {
            "loss": LOSS,
            "loss_se": Nullable(NOT_NEGATIVE),
            "perplexity": number(0.99, math.inf, "a number of at least 1"),
            "tokens": LENGTH,
            "blocks?": Array(LOSS),
            "block_tokens?": Array(LENGTH),
            "by_position?": {"first": COUNT, "width": LENGTH, "loss": Array(Nullable(LOSS))},
        },
        {
            "name": TEXT,
            "stride?": Nullable(LENGTH),
            "targets?": Nullable(LENGTH),
            "remainder?": TEXT,
            "span?": Nullable(LENGTH),
            "spans?": Nullable(LENGTH),
            "overlap?": FRACTION,
            "mask_rate?": Nullable(FRACTION),
        },
    ),
    _check_perplexity,
)
RECEPTIVE_FIELD = Schema(
    _by_length(
        DATA,
        {
            "receptive_field": POSITIVE,
            "receptive_field_se": NOT_NEGATIVE,
            "cumulative": {"tokens": Array(LENGTH), "share": Array(FRACTION)},
        },
        {"windows": LENGTH, "span": LENGTH, "held": FRACTION},
    ),
    _check_receptive_field,
)
RECALL = Schema(
    _by_length(
        DATA,
        {"recall": NUMBER, "recall_se": NOT_NEGATIVE},
        {"passage": LENGTH, "trials": LENGTH, "span": LENGTH},
    )
)
PERCENT = number(0, 100, "a number from 0 to 100")
TRAINED_RECALL = Schema(
    {
        **_by_length(
            DATA,
            {"accuracy": PERCENT, "accuracy_se": NOT_NEGATIVE},
            {"task": TEXT, "filler": TEXT, "trials": LENGTH, "span": LENGTH, "symbols": LENGTH},
        ),
        "steps_to_95": Nullable(COUNT),
    }
)
NDCG = Schema(
    _by_length(
        {"dataset": NAME, "split": NAME, "documents": COUNT, "questions": COUNT},
        {"ndcg10": NOT_NEGATIVE, "ndcg10_se": NOT_NEGATIVE, "by_question?": Array(NOT_NEGATIVE)},
    ),
    _check_ndcg,
)
ACCURACY = Schema(
    {
        **MODEL,
        "data": DATA,
        "protocol": {"name": TEXT},
        "acc": FRACTION,
        "acc_se": Nullable(FRACTION),
        "acc_norm": FRACTION,
        "acc_norm_se": Nullable(FRACTION),
        "examples": COUNT,
        "log_likelihoods?": Array(Array(number(-math.inf, what="a number, not NaN"))),
    }
)
SPEED_RESULT = {
    "model": TEXT,
    "micro_batch": LENGTH,
    "device": TEXT,
    "dtype": TEXT,
    "compile": BOOLEAN,
    "repeats": LENGTH,
    "run?": TEXT,
    "objective?": TEXT,
    "contexts": Each(
        LENGTH_KEY,
        Each(
            TEXT,
            Nullable(
                {
                    "seconds": Array(POSITIVE, minimum=1),
                    "others?": Each(TEXT, Array(POSITIVE, minimum=1)),
                    "tokens": LENGTH,
                    "tokens_per_second": POSITIVE,
                    "ratios": Each(TEXT, POSITIVE),
                    "mfu": Nullable(NOT_NEGATIVE),
                    "memory": POSITIVE,
                    "weights?": POSITIVE,
                    "error?": Nullable(NOT_NEGATIVE),
                    "left_out?": Nullable(FRACTION),
                }
            ),
        ),
    ),
}
SPEED_RESULTS = ("train", "attention", "generate", "eval")
SPEED = Schema(
    {"processor": TEXT, "torch": TEXT, **{f"{name}?": SPEED_RESULT for name in SPEED_RESULTS}},
    _check_speed,
)
LOSSES = Schema(
    {
        "training": Kind(
            '"pretraining" or "fine-tuning"',
            lambda value: value in ("pretraining", "fine-tuning"),
        ),
        "runs": Array(
            {
                "run": TEXT,
                "pe": TEXT,
                "size": Nullable(TEXT),
                "objective": Nullable(TEXT),
                "seed": Nullable(SEED),
                "step?": Nullable(COUNT),
                "losses": Array(POINT),
            },
            minimum=1,
        ),
    },
    _check_losses,
)
# finetune.json of retrieval.finetune. An unfinished fine-tuning has no losses.
FINETUNING = Schema(
    {"settings": {"seed": SEED}, "recipe?": Nullable(TEXT), "losses?": Array(POINT)}
)
