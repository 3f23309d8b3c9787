"""Schema of records: what the fields of each kind of record must be.

    read_records(["runs/cable/eval_stdlib_val.json"], remedy)  # {source: record}
    find_mismatch(record, Perplexity)  # None, or "expected float >= 0 at ..."

Records are checked once, when they are read, and stay dictionaries; programs rely on the fields
without a default. An optional field that is UNSET may be missing, but not null. Names of data sets
and splits become parts of file names.
Numbers are finite, except for perplexities: the exponential of a loss of at least 700 is infinity
(model.py).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from runtime.files import read_json, read_json_lines, working_folder_of
from runtime.validation import Count, Length, LengthKey, Name, Text, find_mismatch

from msgspec import UNSET, Meta, Struct, UnsetType

from errors import InputError

Number = Annotated[float, Meta(ge=-1e18, le=1e18)]
NotNegative = Annotated[float, Meta(ge=0, le=1e18)]
Positive = Annotated[float, Meta(ge=1e-18, le=1e18)]
Fraction = Annotated[float, Meta(ge=0, le=1 + 1e-6)]
"""sums of fractions are rounded"""
NOT_EMPTY = Meta(min_length=1)
Seconds = Annotated[list[Positive], NOT_EMPTY]
Points = list[tuple[Count, Number]]
"""steps and losses"""
Entry = TypeVar("Entry")
ByLength = Annotated[dict[LengthKey, Entry | None], NOT_EMPTY]
"""results by length; null: it is not supported"""


class Split(Struct):
    dataset: Name
    split: Name


class Data(Split):
    tokenizer: Text


class Model(Struct, kw_only=True):
    """What every evaluation writes about the model."""

    run: Text
    pe: Text
    size: Text
    block_size: Length
    settings: dict[Text, Any]
    training_text: Text | None
    folder: Text = ""
    objective: Text = ""
    dtype: Text = ""
    step: Count | None = None
    init_steps: Count | None = None
    parameters: Count | None = None
    seed: Count | None = None
    cache_window: Length | None = None


class Header(Model):
    data: Split


class LossCurve(Struct):
    first: Count
    width: Length
    loss: list[Number | None]


class PerplexityEntry(Struct):
    loss: Number
    loss_se: NotNegative | None
    perplexity: Annotated[float, Meta(ge=0.99)]
    tokens: Length
    blocks: list[Number] | UnsetType = UNSET
    block_tokens: list[Length] | UnsetType = UNSET
    by_position: LossCurve | UnsetType = UNSET
    by_offset: LossCurve | UnsetType = UNSET


class PerplexityProtocol(Struct):
    name: Text
    remainder: Text = ""
    stride: Length | None = None
    targets: Length | None = None
    span: Length | None = None
    spans: Length | None = None
    documents: Length = 1
    overlap: Fraction = 0
    mask_rate: Fraction | None = None


class Perplexity(Model):
    data: Data
    protocol: PerplexityProtocol
    lengths: ByLength[PerplexityEntry]


class Shares(Struct):
    tokens: list[Length]
    share: list[Fraction]


class ReceptiveFieldEntry(Struct):
    receptive_field: Positive
    receptive_field_se: NotNegative
    cumulative: Shares


class ReceptiveFieldProtocol(Struct):
    windows: Length
    span: Length
    held: Fraction


class ReceptiveField(Model):
    data: Data
    protocol: ReceptiveFieldProtocol
    lengths: ByLength[ReceptiveFieldEntry]


class RecallEntry(Struct):
    recall: Number
    recall_se: NotNegative


class RecallProtocol(Struct):
    passage: Length
    trials: Length
    span: Length


class Recall(Model):
    data: Data
    protocol: RecallProtocol
    lengths: ByLength[RecallEntry]


class TrainedRecallEntry(Struct):
    accuracy: NotNegative
    accuracy_se: NotNegative


class TrainedRecallProtocol(Struct):
    task: Text
    filler: Text
    trials: Length
    span: Length
    symbols: Length


class TrainedRecall(Model):
    data: Data
    protocol: TrainedRecallProtocol
    lengths: ByLength[TrainedRecallEntry]
    steps_to_95: Count | None


class NdcgEntry(Struct):
    ndcg10: NotNegative
    ndcg10_se: NotNegative
    by_question: list[NotNegative]


class NdcgData(Split):
    documents: Count
    questions: Count


class Ndcg(Model):
    data: NdcgData
    lengths: ByLength[NdcgEntry]


class OtherEntry(Struct):
    value: Number


class Other(Model):
    """A record of a metric that is not listed in BY_LENGTH."""

    data: Data
    metric: Text
    lengths: ByLength[OtherEntry]


class AccuracyProtocol(Struct):
    name: Text


class Accuracy(Model):
    data: Data
    protocol: AccuracyProtocol
    acc: Fraction
    acc_norm: Fraction
    acc_se: Fraction | None
    acc_norm_se: Fraction | None
    examples: Count
    log_likelihoods: list[list[Annotated[float, Meta(le=1e18)]]] | UnsetType = UNSET


class Hardware(Struct):
    processor: Text
    torch: Text


class Setup(Struct):
    model: Text
    device: Text
    dtype: Text
    micro_batch: Length
    repeats: Length
    compile: bool


class SpeedEntry(Struct):
    seconds: Seconds
    tokens: Length
    tokens_per_second: Positive
    memory: Positive
    ratios: dict[Text, Positive]
    mfu: NotNegative | None
    weights: Positive = 1
    error: NotNegative | None = None
    others: dict[Text, Seconds] = {}
    time: dict[Text, Fraction] = {}


class SpeedResult(Setup):
    contexts: dict[LengthKey, dict[Text, SpeedEntry | None]]


class Speed(Hardware):
    train: SpeedResult | UnsetType = UNSET
    attention: SpeedResult | UnsetType = UNSET
    generate: SpeedResult | UnsetType = UNSET
    eval: SpeedResult | UnsetType = UNSET


class ComparedSeconds(Struct):
    ours: Seconds
    theirs: Seconds
    product: Seconds | UnsetType = UNSET


class ComparisonRow(Struct):
    task: Text
    against: Text
    tokens: Length
    seconds: ComparedSeconds
    encoding: Text = ""
    flops: Positive | None = None
    product_flops: Positive = 1


class ComparisonResult(Setup):
    context: Length
    rows: list[ComparisonRow]
    skipped: dict[Text, Text]


class Comparison(Hardware):
    compare: ComparisonResult


class FineTuningSettings(Struct):
    seed: Count


class FineTuningHashes(Struct):
    data: Text | None


class FineTuning(Struct):
    """finetune.json of retrieval.finetune; an unfinished one has no losses."""

    settings: FineTuningSettings
    sha256: FineTuningHashes
    losses: Points | UnsetType = UNSET


BY_LENGTH = {  # record["metric"]
    "Perplexity": Perplexity,
    "Receptive field": ReceptiveField,
    "Recall": Recall,
    "Trained recall": TrainedRecall,
    "nDCG@10": Ndcg,
}


def schema_of(record) -> Any:
    """Return the schema of a record's kind, or None if it is no record."""
    if not isinstance(record, dict):
        return None
    if {"lengths", "data"} <= record.keys():
        name = record.get("metric", "Perplexity")
        return BY_LENGTH.get(name, Other) if isinstance(name, str) else None
    if {"acc", "acc_norm"} <= record.keys():
        return Accuracy
    if "compare" in record:
        return Comparison
    is_speed = not record.keys().isdisjoint(("train", "attention", "generate", "eval"))
    return Speed if is_speed else None


def read_json_values(path: str | Path, remedy: str) -> dict[str, Any]:
    """Return {source: JSON value} of a file, or of the lines of a .jsonl file.

    PATH.jsonl:NAME selects the run NAME. A corrupt line is None. Raises InputError as read_json
    does, and if there is no such line.
    """
    file, separator, name = str(path).partition(".jsonl:")
    file += ".jsonl" if separator else ""
    if not file.endswith(".jsonl"):
        return {file: read_json(file, remedy)}
    if not Path(file).is_file():
        raise InputError(f"{file} does not exist{working_folder_of(file)}: {remedy}")
    found = {f"{file}, line {n}": x for n, x in enumerate(read_json_lines(file), 1)}
    if separator:
        named = [(source, x) for source, x in found.items() if isinstance(x, dict)]
        found = {source: x for source, x in named if x.get("run") == name}
    if not found:
        whose = f" of {name}" if separator else ""
        raise InputError(f"{path} has no records{whose}: {remedy}")
    return found


def read_records(paths: Sequence[str | Path], remedy: str) -> dict[str, dict]:
    """Return {source: record} of JSON files, or JSON lines with a record each.

    Sources are the path or, of a line, "PATH, line N"; paths: see read_json_values. Raises
    InputError, for all files at once, if one is missing, corrupt, or has a wrong field.
    """
    records, problems = {}, []
    for path in paths:
        try:
            found = read_json_values(path, remedy)
        except InputError as error:
            problems += error.problems
            continue
        for source, record in found.items():
            kind = schema_of(record)
            if kind is None:
                what = "not a record of eval_*.py or bench.py"
                problems.append(f"{source} is {what}: {remedy}")
            elif problem := find_mismatch(record, kind):
                again = "evaluate the run again, or remove the file"
                problems.append(f"{source}: {problem}: {again}")
        records |= found
    if problems:
        raise InputError(*problems)
    return records
