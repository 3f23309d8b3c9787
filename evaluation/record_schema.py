"""Schema of records: what the fields of each kind of record must be.

    problem = PERPLEXITY.find_problem(record)  # None, or "expected float >= 0 at lengths[...].loss"

Records are checked once, when they are read (reporting/metrics.py). Programs that use them rely on
the fields that are required here. Names of data sets and splits become parts of file names.

Numbers are finite, except for perplexities: the exponential of a loss of at least 700 is infinity
(evaluation/records.py).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal

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

EXP_OVERFLOW = 700.0  # losses from here on have infinite perplexity


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
    count = len(entry.get("by_question", ()))
    if "by_question" in entry and count != record["data"]["questions"]:
        yield f"{count} values by_question, not one per question"


PERPLEXITY = _by_length(
    {
        "loss": Loss,
        "loss_se": nullable(NotNegative),
        "perplexity": Annotated[float, Meta(ge=0.99)],
        "tokens": Length,
        "blocks?": list[Loss],
        "block_tokens?": list[Length],
        "by_position?": fields({"first": Count, "width": Length, "loss": list[nullable(Loss)]}),
    },
    {
        "name remainder?": Text,
        "stride? targets? span? spans?": nullable(Length),
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
    {"ndcg10": NotNegative, "ndcg10_se": NotNegative, "by_question?": list[NotNegative]},
    data=fields(SPLIT | {"documents": Count, "questions": Count}),
    check=_check_ndcg,
)
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
LOSSES_OF_RUN = fields(
    {
        "run pe": Text,
        "size objective": nullable(Text),
        "seed": nullable(Integer),
        "step?": nullable(Count),
        "losses": POINTS,
    }
)


def _check_losses(record: dict) -> Iterator[str]:
    for run in record["runs"]:
        steps = [step for step, _ in run["losses"]]
        if steps != sorted(set(steps)):
            yield f"the losses of {run['run']} are not in the order of their steps"


TRAININGS = Literal["pretraining", "fine-tuning"]
LOSSES = Schema({"training": TRAININGS, "runs": not_empty(list[LOSSES_OF_RUN])}, _check_losses)
# finetune.json of retrieval.finetune. An unfinished fine-tuning has no losses.
FINETUNING = fields(
    {
        "settings": fields({"seed": Integer}),
        "sha256": fields({"data": nullable(Text)}),
        "losses?": POINTS,
    }
)
