"""Metrics by context length: records, table, caption and plot.

    metric = metric_of(record)
    metric.table(make_columns(records, metric.key)).text()

An unlisted metric gets a plain table and a plot. For more, add a row.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from evaluation import measures, record_schema
from evaluation.record_schema import schema_of
from reporting import figures, paper
from reporting.columns import Column
from reporting.formatting import Table, escape_markdown, join_numbers, number_range
from reporting.paper import Printed
from reporting.tables import Marks, length_table, token_kind

# Fields of the protocols of perplexity, in words: same-targets, others.
TARGETS = {
    "targets": ", the last {:,} tokens",
    "spans": " of {:,} windows",
    "overlap": " that overlap by {:.0%}",
}
WINDOWS = {
    "documents": ", windows inside documents ({:,})",
    "stride": " with a stride of {:,} tokens",
    "mask_rate": ", predicting the {:.0%} of tokens that are masked",
}


@dataclass(frozen=True)
class Metric:
    """How a metric's records are recognized, tabulated and plotted."""

    name: str
    """record["metric"]; perplexity, accuracy and speed have no such key"""
    stem: str
    """stem of the report's files"""
    schema: Any
    """fields of its records"""
    key: str = ""
    """key of the value in an entry of a record by length; "": not by length"""
    template: str = ""
    """caption: data and protocol; names in braces are explained in `caption`"""
    error: str = ""
    """end of the caption: the largest standard error"""
    y_label: str = ""
    x_name: str = "context"
    best: Callable | None = None
    """min or max, of the values in bold"""
    y_scale: str = "linear"

    def table(self, columns: list[Column], marks: Marks | None = None) -> Table:
        """Return the table of columns; marks: see length_table."""
        table = length_table(columns, self.x_name, self.best, marks or {})
        table.caption = self.caption(columns)
        return table

    def caption(self, columns: list[Column]) -> str:
        """Return what the numbers are, as Markdown: data, protocol, error.

        template: filled with fields of data and protocol, {text}: the data set, {words}: the
        protocol, {tokens}: their number per length.
        """
        records = [record for each in columns for record in each.records]
        entries = entries_of(records)
        errors = [each.get("loss_se", each.get(f"{self.key}_se")) for each in entries]
        error = max(filter(None, errors), default=None)
        data = records[0]["data"]
        kind = f", {token_kind(records[0])}" if "tokenizer" in data else ""
        values = data | (records[0].get("protocol") or {})
        values |= {
            "metric": self.name,
            "text": f"{data['dataset']} ({data['split']}{kind})",
            "trained_at": join_numbers(record["block_size"] for record in records),
            "words": describe_protocol(records[0]),
            "tokens": number_range(entry.get("tokens", 0) for entry in entries),
        }
        text = self.template.format(**values)
        text += self.error.format(error) if error else ""
        is_mean = any(len(column.records) > 1 for column in columns)
        note = " Mean ± standard deviation over seeds." if is_mean else ""
        return escape_markdown(f"{text}.{note}")

    def plot(self, columns: list[Column], file) -> None:
        """Plot the values by length."""
        x_label, is_low = f"{self.x_name} (tokens)", self.best is min
        figures.by_length(columns, file, self.y_label, self.y_scale, x_label, is_low)


def metric_of(record: dict) -> Metric:
    """Return a record's metric; an unlisted one has "value" by length."""
    schema = schema_of(record)
    if schema is not record_schema.Other:
        return METRICS[schema]
    name = record["metric"]
    return Metric(
        name,
        stem="_".join(re.findall(r"\w+", name.lower())),
        schema=schema,
        key="value",
        template="{metric} on {dataset} ({split}); models trained with {trained_at} tokens",
        y_label=name,
    )


def matches_paper(printed: Printed, record: dict) -> bool:
    """Return whether a paper's table has a record's metric and model type."""
    metrics = {
        paper.TRAINING_LENGTHS: (PERPLEXITY,),
        paper.RECEPTIVE_FIELDS: (RECEPTIVE_FIELD,),
        paper.GENERALIZATION: (PERPLEXITY, ACCURACY),
        paper.NDCG: (NDCG,),
        paper.SPEED: (SPEED,),
    }
    found = metric_of(record) in metrics.get(printed.metric, (PERPLEXITY,))
    # Papers print perplexities of decoders.
    return found and (printed.metric == paper.NDCG or "objective" not in record)


def describe_protocol(record: dict) -> str:
    """Return the protocol of a record of perplexity in words."""
    protocol = record.get("protocol") or {}
    details = TARGETS if protocol.get("targets") else WINDOWS
    words = [text.format(protocol[n]) for n, text in details.items() if protocol.get(n)]
    name = protocol.get("name", "")
    if details is WINDOWS and protocol.get("remainder") == "dropped":
        words.append(", whole windows only")
    elif name == "segments" and not protocol.get("span"):
        words.append(", the whole split")
    return name + "".join(words)


def entries_of(records: list[dict]) -> list[dict]:
    """Return records' entries at all lengths that the encoding supports."""
    return [entry for record in records for entry in record["lengths"].values() if entry]


PERPLEXITY = Metric(
    "Perplexity",
    stem="perplexity",
    schema=record_schema.Perplexity,
    key="perplexity",
    template="Perplexity on {text}; models trained with {trained_at} tokens of context. "
    "Protocol: {words}, {tokens} tokens per length",
    error="; standard error over windows at most {:.1%}",
    y_label="perplexity",
    best=min,
    y_scale="log",
)
RECEPTIVE_FIELD = Metric(
    "Receptive field",
    stem="receptive_field",
    schema=record_schema.ReceptiveField,
    key="receptive_field",
    template="Receptive field: number of most recent tokens that hold {held:.0%} of the gradient "
    "of the next token's loss. {windows:,} windows of {text}; models trained with {trained_at} "
    "tokens of context",
    error=". Standard error over windows at most {:.1f} tokens",
    y_label="receptive field (tokens)",
    y_scale="log",
)
RECALL = Metric(
    "Recall",
    stem="recall",
    schema=record_schema.Recall,
    key="recall",
    template="Recall: by how many percent an earlier copy at this distance lowers the perplexity "
    "of the second half of a passage of {passage} tokens. {trials:,} passages of {text}; models "
    "trained with {trained_at} tokens of context",
    error=". Standard error over passages at most {:.1f}",
    y_label="recall (percent of perplexity saved)",
    x_name="distance",
    best=max,
)
TRAINED_RECALL = Metric(
    "Trained recall",
    stem="trained_recall",
    schema=record_schema.TrainedRecall,
    key="accuracy",
    template="Trained recall, task {task}: accuracy in percent on symbols that return at this "
    "distance, with {filler} symbols in between; chance is 1 of {symbols}. {trials:,} sequences; "
    "models trained on such tasks with {trained_at} tokens",
    error=". Standard error over sequences at most {:.1f}",
    y_label="accuracy (percent)",
    x_name="distance",
    best=max,
)
NDCG = Metric(
    "nDCG@10",
    stem="retrieval",
    schema=record_schema.Ndcg,
    key="ndcg10",
    template="nDCG@10 in percent on {text}, {questions:,} queries and {documents:,} documents "
    "truncated to the context; models trained with {trained_at} tokens of context",
    error=". Standard error over queries at most {:.1f}",
    y_label="nDCG@10 (percent)",
    best=max,
)
GAIN = Metric(  # of evaluation.measures.gain_records
    measures.GAIN,
    stem="context_gain",
    schema=record_schema.Other,
    key="value",
    template="Gain of context in hundredths of a nat per token: loss with the shortest context "
    "minus loss with the longest, of the same tokens of {text}, by their position in windows "
    "inside documents, from half of it on; models trained with {trained_at} tokens of context",
    y_label="gain of context (0.01 nats per token)",
    x_name="position",
)
ACCURACY = Metric("HellaSwag accuracy", "hellaswag", record_schema.Accuracy)
SPEED = Metric("Speed", "bench", record_schema.Speed)
COMPARISON = Metric("Comparison", "compare", record_schema.Comparison)
BY_LENGTH = (PERPLEXITY, RECEPTIVE_FIELD, RECALL, TRAINED_RECALL, NDCG)
METRICS = {each.schema: each for each in (*BY_LENGTH, ACCURACY, SPEED, COMPARISON)}
