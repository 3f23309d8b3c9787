"""Metrics: records, table, caption, claims and plots of each one in one row.

    metric = metric_of(record)
    metric.table(make_columns(records, metric.key)), metric.caption(records)

An unlisted metric by length gets a plain table and a plot. For more, add a row.
"""

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from evaluation import record_schema
from evaluation.record_schema import schema_of
from reporting import figures
from reporting.claims import judges
from reporting.claims.claim import Verdict
from reporting.claims.quantities import FINAL
from reporting.columns import group_by_protocol, make_columns
from reporting.figures import by_length
from reporting.formatting import Table, escape_markdown, join_numbers, number_range
from reporting.paper import TRAINING_LENGTHS, Printed
from reporting.tables import (
    accuracy_table,
    comparison_table,
    describe_setup,
    length_table,
    loss_table,
    speed_table,
    time_table,
)

# What one row of each benchmark of bench.py measures.
BENCHMARKS = {
    "train": "{steps}, micro-batch {micro_batch}",
    "attention": "attention of one layer alone, forward and backward, micro-batch {micro_batch}",
    "generate": "{tokens} tokens generated one by one, up to the context; memory of the KV cache",
    "eval": "forward pass without gradients, micro-batch {micro_batch}",
}
TIME_CAPTION = (
    "Fractions of a profiled round; waiting: of the device for the host. Spread: slowest minus "
    "fastest round, relative to the median."
)
# Fields of the protocols of perplexity, in words: same-targets, others.
TARGETS = {
    "targets": ", the last {:,} tokens",
    "spans": " of {:,} windows",
    "overlap": " that overlap by {:.0%}",
}
WINDOWS = {
    "documents": ", windows inside {:,} documents",
    "stride": " with a stride of {:,} tokens",
    "mask_rate": ", predicting the {:.0%} of tokens that are masked",
}


@dataclass(frozen=True)
class Metric:
    """How a metric's records are recognized, tabulated, judged and plotted."""

    name: str
    """record["metric"]; perplexity, accuracy and speed have no such key"""
    stem: str
    """stem of the report's files"""
    schema: Any
    """fields of its records"""
    table: Callable[..., Table]
    """of columns; ACCURACY: of records; SPEED: of a benchmark's result; LOSSES and
    COMPARISON: of a record"""
    describe: Callable[..., str]
    """what the numbers are: data, protocol, error"""
    key: str = ""
    """key of the value in an entry of a record by length"""
    judge: Callable[..., list[Verdict]] | None = None
    """verdicts: judge(columns, printed=paper's table, perplexities=lists of
    columns); LOSSES: judge(record); None: no claims"""
    plots: dict[str, Callable] = field(default_factory=dict, hash=False)
    """{stem of the file: function}: draw(what `table` has, file)"""

    def caption(self, *arguments) -> str:
        """Return the description of records as Markdown."""
        return escape_markdown(self.describe(*arguments))


def metric_of(record) -> Metric | None:
    """Return a record's metric; None if not of eval_*.py or bench.py."""
    schema = schema_of(record)
    if schema is record_schema.OTHER:
        return _other(record["metric"])
    return METRICS[schema] if schema else None


@cache
def _other(name: str) -> Metric:
    """Return an unlisted metric: a table and a plot of "value" by length."""
    stem = "_".join(re.findall(r"\w+", name.lower()))
    table = partial(length_table, x_name="length", best=None)
    plots = {stem: partial(by_length, y_label=name, y_scale="linear", x_label="length")}
    template = "{metric} on {dataset} ({split}); models trained with {trained_at} tokens."
    describe = partial(_caption, template, "value_se")
    return Metric(name, stem, record_schema.OTHER, table, describe, "value", plots=plots)


def matches_paper(printed: Printed, record: dict) -> bool:
    """Return whether a paper's table has a record's metric and model type."""
    metric = metric_of(record)
    if printed.metric == TRAINING_LENGTHS:
        return metric is PERPLEXITY and "objective" not in record
    is_same = metric is not None and metric.name == printed.metric
    # perplexities: of decoders
    return is_same and (metric is NDCG or "objective" not in record)


def describe_record(record: dict) -> str:
    """Return table and caption of a record that `bench.py` made alone."""
    metric = METRICS[schema_of(record)]
    return f"{metric.table(record).markdown()}\n\n{metric.caption(record)}"


def summary(records: list[dict]) -> str:
    """Return Markdown tables with captions, one per data set and protocol."""
    parts = []
    for group in group_by_protocol(records):
        metric = METRICS[schema_of(group[0])]
        table = metric.table(make_columns(group, metric.key))
        parts.append(f"{table.markdown()}\n{metric.caption(group)}")
    return "\n\n".join(parts)


def speed_summary(benchmark: str, result: dict) -> str:
    """Return one benchmark of bench.py as a Markdown table with caption."""
    parts = [SPEED.table(result).markdown(), SPEED.caption(benchmark, result)]
    if table := time_table(result):
        parts += [table.markdown(), TIME_CAPTION]
    return "\n\n".join(parts)


def describe_protocol(record: dict) -> str:
    """Return the protocol of a record of perplexity in words."""
    protocol = record["protocol"]
    details = TARGETS if protocol.get("targets") else WINDOWS
    words = [text.format(protocol[key]) for key, text in details.items() if protocol.get(key)]
    if details is WINDOWS and protocol.get("remainder") == "dropped":
        words.append(", whole windows only")
    elif protocol["name"] == "segments" and not protocol.get("span"):
        words.append(", the whole split")
    return protocol["name"] + "".join(words)


def _perplexity_caption(records: list[dict]) -> str:
    entries = entries_of(records)
    errors = [entry["loss_se"] for entry in entries if entry["loss_se"]]
    error = f"at most {100 * max(errors):.1f}%" if errors else "unknown"
    if 0 < len(errors) < len(entries):
        error += ", unknown for a single window"
    return _caption(
        "Perplexity on {text}; models trained with {trained_at} tokens of context. Protocol: "
        "{words}, {tokens} tokens per length; standard error over windows {error}.",
        "loss_se",
        records,
        words=describe_protocol(records[0]),
        tokens=number_range(entry["tokens"] for entry in entries),
        error=error,
    )


def _trained_recall_caption(records: list[dict]) -> str:
    protocol, data = records[0]["protocol"], records[0]["data"]
    filler = "random symbols"
    if protocol["filler"] == "text":
        filler = f"the text of {data['dataset']} ({data['split']}) as symbols"
    return _caption(
        "Trained recall, task {task}: accuracy in percent on symbols that return at this distance, "
        "with {filler} in between; chance is {chance:.1f}. {trials:,} sequences; models trained on "
        "such tasks with {trained_at} tokens. Standard error over sequences at most {error:.1f}.",
        "accuracy_se",
        records,
        filler=filler,
        chance=100 / protocol["symbols"],
    )


def _caption(template: str, error_key: str, records: list[dict], **others) -> str:
    """Return a description of records with a note on seeds.

    template: names in braces are `others`, fields of protocol and data; {text}:
    data set in words; {error}: largest value of the field `error_key`.
    """
    first = records[0]
    values = {"metric": first.get("metric")} | first["data"] | (first.get("protocol") or {})
    values["text"] = _data(first) if "tokenizer" in first["data"] else ""
    values["trained_at"] = join_numbers(record["block_size"] for record in records)
    values["error"] = max(
        (entry.get(error_key) or 0 for entry in entries_of(records)), default=0
    )
    note = ""
    if any(len(column.records) > 1 for column in make_columns(records, key="")):
        note = " Mean ± standard deviation over seeds."
    return template.format(**values | others) + note


def _accuracy_caption(records: list[dict]) -> str:
    splits = sorted({record["data"]["split"] for record in records})
    tokens = sorted({_token_kind(record) for record in records})
    return (
        f"HellaSwag ({' and '.join(splits)}): accuracy in percent ± standard error, computed as "
        f"in lm-evaluation-harness; {' and '.join(tokens)}, no <|endoftext|> before the context; "
        "chance is 25."
    )


def _loss_caption(record: dict) -> str:
    return (
        f"Training loss in nats, {record['training']}: mean over the last {FINAL:.0%} of the "
        "training, and over all of it, at the steps that all runs logged."
    )


def _data(record: dict) -> str:
    data = record["data"]
    return f"{data['dataset']} ({data['split']}, {_token_kind(record)})"


def _token_kind(record: dict) -> str:
    """Return the kind of tokens in words: "byte tokens" or "gpt2 tokens"."""
    name = record["data"]["tokenizer"].partition("@")[0]  # without the hash
    return "byte tokens" if name == "bytes" else f"{name} tokens"


def entries_of(records: list[dict]) -> list[dict]:
    """Return records' entries at all lengths that the encoding supports."""
    return [entry for record in records for entry in record["lengths"].values() if entry]


def _speed_caption(benchmark: str, result: dict) -> str:
    cases = [entry for by_name in result["contexts"].values() for entry in by_name.values()]
    steps, micro_batches = result.get("steps", 1), result.get("micro_batches", 1)
    is_single = steps == micro_batches == 1
    measured = BENCHMARKS[benchmark].format(
        steps="one optimizer step" if is_single else f"{steps} x {micro_batches} passes",
        micro_batch=result["micro_batch"],
        tokens=number_range(entry["tokens"] for entry in cases if entry),
    )
    return (
        f"{benchmark}: {measured}. {describe_setup(result)}. "
        f"Medians of {result['repeats']} interleaved rounds; ratios above 1 are faster."
    )


def describe_machine(record: dict) -> str:
    """Return the processor and the version of PyTorch as a sentence."""
    return f"{record['processor']}, PyTorch {record['torch']}."


def _comparison_caption(record: dict) -> str:
    result = record["compare"]
    products = [
        row["product_flops"] / statistics.median(row["seconds"]["product"])
        for row in result["rows"]
        if row.get("product_flops") and "product" in row["seconds"]
    ]
    peak = f" (median {statistics.median(products) / 1e9:,.0f} GFLOP/s)" if products else ""
    rounds = result["repeats"]
    skipped = [f" Not measured: {label} ({why})." for label, why in result["skipped"].items()]
    return (
        f"Speed compared with other implementations, at {result['context']:,} tokens; training "
        f"with micro-batch {result['micro_batch']}. {describe_setup(result)}. Medians of {rounds} "
        "interleaved rounds; ratios above 1 are faster, with 95% intervals. Of peak: our FLOP/s "
        f"relative to a matrix product{peak}. {describe_machine(record)}{''.join(skipped)}"
    )


BY_DISTANCE = {"y_scale": "linear", "x_label": "distance (tokens)"}
PERPLEXITY = Metric(
    name="Perplexity",
    stem="perplexity",
    key="perplexity",
    schema=record_schema.PERPLEXITY,
    table=partial(length_table, x_name="context", best=min),
    describe=_perplexity_caption,
    judge=judges.judge_perplexity,
    plots={"perplexity": partial(by_length, y_label="perplexity", close_up=True)},
)
RECEPTIVE_FIELD = Metric(
    name="Receptive field",
    stem="receptive_field",
    key="receptive_field",
    schema=record_schema.RECEPTIVE_FIELD,
    table=partial(length_table, x_name="context", best=None),
    describe=partial(
        _caption,
        "Receptive field: number of most recent tokens that hold {held:.0%} of the gradient of the "
        "next token's loss. {windows:,} windows of {text}; models trained with {trained_at} "
        "tokens of context. Standard error over windows at most {error:.1f} tokens.",
        "receptive_field_se",
    ),
    judge=judges.judge_receptive_fields,
    plots={
        "receptive_field": partial(by_length, y_label="receptive field (tokens)"),
        "cumulative_gradient": figures.cumulative_gradient,
    },
)
RECALL = Metric(
    name="Recall",
    stem="recall",
    key="recall",
    schema=record_schema.RECALL,
    table=partial(length_table, x_name="distance", best=max),
    describe=partial(
        _caption,
        "Recall: by how many percent an earlier copy at this distance lowers the perplexity of the "
        "second half of a passage of {passage} tokens. {trials:,} passages of {text}; models "
        "trained with {trained_at} tokens of context. Standard error over passages at most "
        "{error:.1f}.",
        "recall_se",
    ),
    plots={
        "recall": partial(
            by_length, y_label="recall (percent of perplexity saved)", **BY_DISTANCE
        )
    },
)
TRAINED_RECALL = Metric(
    name="Trained recall",
    stem="trained_recall",
    key="accuracy",
    schema=record_schema.TRAINED_RECALL,
    table=partial(length_table, x_name="distance", best=max),
    describe=_trained_recall_caption,
    plots={"trained_recall": partial(by_length, y_label="accuracy (percent)", **BY_DISTANCE)},
)
NDCG = Metric(
    name="nDCG@10",
    stem="retrieval",
    key="ndcg10",
    schema=record_schema.NDCG,
    table=partial(length_table, x_name="context", best=max),
    describe=partial(
        _caption,
        "nDCG@10 in percent on {dataset} ({split}), {questions:,} queries and {documents:,} "
        "documents truncated to the context; models trained with {trained_at} tokens of context. "
        "Standard error over queries at most {error:.1f}.",
        "ndcg10_se",
    ),
    judge=judges.judge_retrieval,
    plots={"retrieval": partial(by_length, y_label="nDCG@10 (percent)", y_scale="linear")},
)
ACCURACY = Metric(
    "HellaSwag accuracy", "hellaswag", record_schema.ACCURACY, accuracy_table, _accuracy_caption
)
SPEED = Metric("Speed", "bench", record_schema.SPEED, speed_table, _speed_caption)
LOSSES = Metric(
    *("Training loss", "losses", record_schema.LOSSES, loss_table, _loss_caption),
    judge=judges.judge_losses,
)
COMPARISON = Metric(
    "Comparison", "compare", record_schema.COMPARISON, comparison_table, _comparison_caption
)
# record["lengths"]
LENGTH_METRICS = (PERPLEXITY, RECEPTIVE_FIELD, RECALL, TRAINED_RECALL, NDCG)
METRICS = {
    metric.schema: metric for metric in (*LENGTH_METRICS, ACCURACY, SPEED, LOSSES, COMPARISON)
}
