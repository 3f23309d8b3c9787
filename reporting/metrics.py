"""Metrics: records, table, caption, claims and plots of each one in one row.

    metric = metric_of(record)
    columns = make_columns(records, metric.key)
    metric.table(columns).markdown(), metric.caption(records), metric.judge(columns)

An unlisted metric by length gets a plain table and a plot. To give it more, add
a row at the end of this module.
"""

import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from evaluation import record_schema
from evaluation.record_schema import schema_of
from reporting import claims, figures
from reporting.claims import Verdict
from reporting.claims.losses import loss_caption, loss_table
from reporting.columns import group_by_protocol, make_columns
from reporting.figures import by_length
from reporting.formatting import Table, escape_markdown
from reporting.paper import TRAINING_LENGTHS, Printed
from reporting.tables import (
    accuracy_table,
    comparison_table,
    describe_setup,
    length_table,
    speed_table,
    time_table,
)

# What one row of each benchmark of bench.py measures.
BENCHMARKS = {
    "train": "{steps}, micro-batch {micro_batch}",
    "attention": "attention of {layers} alone, forward and backward, micro-batch {micro_batch}",
    "generate": "{tokens} tokens generated one by one, up to the context; memory of the KV cache",
    "eval": "forward pass without gradients, micro-batch {micro_batch}",
}


TIME_CAPTION = (
    "Fractions of a profiled round; waiting: of the device for the host. Spread: slowest minus "
    "fastest round, relative to the median."
)


@dataclass(frozen=True)
class Metric:
    """How a metric's records are recognized, tabulated, judged and plotted."""

    name: str
    """record["metric"]; records of perplexity, accuracy and speed have no such key"""
    stem: str
    """stem of the report's files"""
    schema: Any
    """fields of its records"""
    table: Callable[..., Table]
    """of columns; for ACCURACY of records; for SPEED of a benchmark's result; for
    LOSSES and COMPARISON of a record"""
    describe: Callable[..., str]
    """what the numbers are, on which data, by which protocol, with which error"""
    key: str = ""
    """key of the value in an entry of a record by length"""
    judge: Callable[..., list[Verdict]] | None = None
    """verdicts on columns: judge(columns, printed=paper's table, perplexities=lists
    of columns); for LOSSES on a record; None: no claims"""
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

    def describe(records: list[dict]) -> str:
        first = records[0]
        on = f"{first['data']['dataset']} ({first['data']['split']})"
        return f"{name} on {on}; models trained with {first['block_size']:,} tokens."

    stem = "_".join(re.findall(r"\w+", name.lower()))
    table = partial(length_table, x_name="length", best=None)
    draw = partial(by_length, y_label=name, y_scale="linear", x_label="length")
    plots = {stem: draw}
    return Metric(name, stem, record_schema.OTHER, table, describe, "value", plots=plots)


def matches_paper(printed: Printed, record: dict) -> bool:
    """Return whether a paper's table has a record's metric and model type."""
    metric = metric_of(record)
    if printed.metric == TRAINING_LENGTHS:
        return metric is PERPLEXITY and "objective" not in record
    is_same = metric is not None and metric.name == printed.metric
    return is_same and (metric is NDCG or "objective" not in record)  # perplexities: of decoders


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
    """Return a record's protocol in words, or its metric if not perplexity."""
    if "metric" in record:
        return record["metric"]
    protocol = record["protocol"]
    if protocol.get("targets"):
        overlap = ""
        if protocol["overlap"]:
            overlap = f" that overlap by {protocol['overlap']:.0%}"
        return (
            f"same-targets, the last {protocol['targets']:,} tokens of {protocol['spans']:,} "
            f"windows{overlap}"
        )
    words = protocol["name"]
    if protocol.get("documents"):
        words += f", windows inside {protocol['documents']:,} documents"
    if protocol.get("stride"):
        words += f" with a stride of {protocol['stride']:,} tokens"
    if protocol.get("mask_rate"):
        words += f", predicting the {protocol['mask_rate']:.0%} of tokens that are masked"
    if protocol.get("remainder") == "dropped":
        words += ", whole windows only"
    elif protocol["name"] == "segments" and not protocol.get("span"):
        words += ", the whole split"
    return words


def _perplexity_caption(records: list[dict]) -> str:
    entries = entries_of(records)
    errors = [entry["loss_se"] for entry in entries if entry["loss_se"]]
    error = f"at most {100 * max(errors):.1f}%" if errors else "unknown"
    if 0 < len(errors) < len(entries):
        error += ", unknown for a single window"
    trained_at = sorted({record["block_size"] for record in records})
    tokens = sorted({entry["tokens"] for entry in entries}) or [0]
    return (
        f"Perplexity on {_data(records[0])}; models trained with "
        f"{' and '.join(f'{length:,}' for length in trained_at)} tokens of context. "
        f"Protocol: {describe_protocol(records[0])}, "
        f"{' to '.join(f'{n:,}' for n in dict.fromkeys((tokens[0], tokens[-1])))} tokens per "
        f"length; standard error over windows {error}.{_seed_note(records)}"
    )


def _trained_recall_caption(records: list[dict]) -> str:
    protocol, data = records[0]["protocol"], records[0]["data"]
    filler = "random symbols"
    if protocol["filler"] == "text":
        filler = f"the text of {data['dataset']} ({data['split']}) as symbols"
    return _caption(
        "Trained recall, task {task}: accuracy in percent on symbols that return at this distance, "
        f"with {filler} in between; chance is {100 / protocol['symbols']:.1f}. {{trials:,}} "
        "sequences; models trained on such tasks with {trained_at:,} tokens. Standard error over "
        "sequences at most {error:.1f}.",
        "accuracy_se",
        records,
    )


def _caption(template: str, error: str, records: list[dict]) -> str:
    """Return a description of records with a note on seeds.

    template: names in braces are fields of protocol and data; {text}: data set
    in words; {trained_at}: training length; {error}: largest value of the field
    `error`.
    """
    first = records[0]
    values = {
        "text": _data(first) if "tokenizer" in first["data"] else "",
        "trained_at": first["block_size"],
        "error": max((entry[error] for entry in entries_of(records)), default=0),
    }
    values |= first["data"] | (first.get("protocol") or {})
    return template.format(**values) + _seed_note(records)


def _accuracy_caption(records: list[dict]) -> str:
    splits = sorted({record["data"]["split"] for record in records})
    tokens = sorted({_token_kind(record) for record in records})
    return (
        f"HellaSwag ({' and '.join(splits)}): accuracy in percent ± standard error, computed as "
        f"in lm-evaluation-harness; {' and '.join(tokens)}, no <|endoftext|> before the context; "
        "chance is 25."
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


def _seed_note(records: list[dict]) -> str:
    """Return a sentence on ±, if a column has several seeds."""
    has_seeds = any(len(column.records) > 1 for column in make_columns(records, key=""))
    return " Mean ± standard deviation over seeds." if has_seeds else ""


def _speed_caption(benchmark: str, result: dict) -> str:
    cases = [entry for by_name in result["contexts"].values() for entry in by_name.values()]
    tokens = sorted({entry["tokens"] for entry in cases if entry})
    steps, micro_batches = result.get("steps", 1), result.get("micro_batches", 1)
    is_single = steps == micro_batches == 1
    measured = BENCHMARKS[benchmark].format(
        steps="one optimizer step" if is_single else f"{steps} x {micro_batches} passes",
        micro_batch=result["micro_batch"],
        layers=f"every layer of the run {result['run']}" if "run" in result else "one layer",
        tokens=f"{tokens[0]}" if len(tokens) == 1 else f"{tokens[0]} to {tokens[-1]}",
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
    judge=claims.judge_perplexity,
    plots={
        "perplexity": partial(by_length, y_label="perplexity", close_up=True),
    },
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
        "next token's loss. {windows:,} windows of {text}; models trained with {trained_at:,} "
        "tokens of context. Standard error over windows at most {error:.1f} tokens.",
        "receptive_field_se",
    ),
    judge=claims.judge_receptive_fields,
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
        "trained with {trained_at:,} tokens of context. Standard error over passages at most "
        "{error:.1f}.",
        "recall_se",
    ),
    plots={
        "recall": partial(by_length, y_label="recall (percent of perplexity saved)", **BY_DISTANCE)
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
        "documents truncated to the context; models trained with {trained_at:,} tokens of context. "
        "Standard error over queries at most {error:.1f}.",
        "ndcg10_se",
    ),
    judge=claims.judge_retrieval,
    plots={"retrieval": partial(by_length, y_label="nDCG@10 (percent)", y_scale="linear")},
)
ACCURACY = Metric(
    "HellaSwag accuracy", "hellaswag", record_schema.ACCURACY, accuracy_table, _accuracy_caption
)
SPEED = Metric("Speed", "bench", record_schema.SPEED, speed_table, _speed_caption)
LOSSES = Metric(
    "Training loss",
    "losses",
    record_schema.LOSSES,
    loss_table,
    loss_caption,
    judge=claims.judge_losses,
)
COMPARISON = Metric(
    "Comparison", "compare", record_schema.COMPARISON, comparison_table, _comparison_caption
)
LENGTH_METRICS = (PERPLEXITY, RECEPTIVE_FIELD, RECALL, TRAINED_RECALL, NDCG)  # record["lengths"]
METRICS = {
    metric.schema: metric for metric in (*LENGTH_METRICS, ACCURACY, SPEED, LOSSES, COMPARISON)
}
