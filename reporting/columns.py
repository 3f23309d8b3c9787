"""Columns of result tables: records grouped by encoding, merged over seeds.

A record is one checkpoint's result on one data set: record["lengths"] maps context lengths
(distances, for recall) to entries, or to None where the encoding does not support the length.
"""

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluation.intervals import Interval, perplexity_ratio
from reporting.formatting import (
    escape_markdown,
    join_numbers,
    number_range,
    standard_deviation,
)

# Order of columns in the CABLE paper. Other encodings follow by name.
PAPER_ORDER = (
    *("cable", "cable-nw", "alibi", "fire", "t5", "t5-clip", "kerple"),
    *("rope", "learnable", "sinusoidal"),
)
# How a label shows what differs between columns of an encoding.
LABELS = {
    "size": "{}",
    "block_size": "trained at {:,}",
    "cache_window": "last {:,} tokens",  # attention to these only
}
# What the seeds of one column share.
SETUP_KEYS = ("pe", *LABELS, "parameters", "step", "objective", "settings", "training_text")
# What runs must share to be compared, in addition to their settings.
TRAINING_KEYS = ("size", "block_size", "step", "training_text")
# Which tokens of a text are tested: follows from the context lengths.
SPAN_KEYS = ("span", "spans", "overlap", "remainder", "documents")
MAX_LISTED = 3  # columns of which a sentence lists all settings

Names = tuple[str, ...]  # of settings


@dataclass
class Column:
    """Records that differ only in their seed, under one label."""

    label: str
    pe: str
    records: list[dict]
    key: str
    """key of the value in an entry of record["lengths"], e.g. "perplexity" """
    may_differ: Names = ()
    """settings tuned for each run, or the subject of the comparison"""

    @property
    def trained_at(self) -> int:
        """Training length in tokens."""
        return self.records[0]["block_size"]

    def differing(self, other: "Column", *ignored: str) -> list[str]:
        """Return the settings in which two columns differ, except `ignored`."""
        if self is other:
            return []
        names = differing_settings([self.records[0], other.records[0]])
        return [name for name in names if name not in (*self.may_differ, *ignored)]

    def lengths(self) -> list[int]:
        """Return the lengths of all records, ascending."""
        return sorted({int(n) for record in self.records for n in record["lengths"]})

    def values(self, length: float) -> list[float]:
        """Return one value per seed; [] if any has none, so that means agree."""
        values = [*self.values_by_seed(length).values()]
        return values if len(values) == len(self.records) else []

    def values_by_seed(self, length: float) -> dict[int | None, float]:
        """Return {seed: value} of the seeds evaluated at this length."""
        entries = self.entries_by_seed(length)
        return {seed: entry[self.key] for seed, entry in entries.items()}

    def entries_by_seed(self, length: float) -> dict[int | None, dict]:
        """Return {seed: entry} of the seeds evaluated at this length."""
        key = f"{length:.12g}"  # that of a fractional length is in no record
        entries = {each.get("seed"): each["lengths"].get(key) for each in self.records}
        return {seed: entry for seed, entry in entries.items() if entry}

    def mean(self, length: float) -> float | None:
        """Return the mean over seeds, or None if any seed has no value."""
        values = self.values(length)
        return statistics.mean(values) if values else None

    def error(self, length: int) -> float:
        """Return the deviation over seeds; of one seed: the recorded error; NaN: unknown."""
        error = standard_deviation(self.values(length))
        if len(self.records) == 1:
            entry = self.records[0]["lengths"][str(length)]
            error = entry.get(f"{self.key}_se")
            if loss_error := entry.get("loss_se"):
                error = loss_error * entry[self.key]
        return math.nan if error is None else error


def compare(columns: Sequence[Column], length: int, *ignored: str) -> Interval | None:
    """Return the first column's perplexity at a length relative to the second's.

    Paired by seed or, without a shared one, in order. None if one was not measured, or settings
    differ, except those that are ignored.
    """
    first, second = columns
    is_measured = first.values(length) and second.values(length)
    if not is_measured or first.differing(second, *ignored):
        return None
    ours, theirs = first.entries_by_seed(length), second.entries_by_seed(length)
    shared = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    return perplexity_ratio(shared or [*zip(ours.values(), theirs.values(), strict=False)])


def dataset_of(record: dict) -> str:
    """Return the data set of a record without its tokens: "fineweb-edu"."""
    return record["data"]["dataset"].removesuffix("-bytes")


def make_columns(records: list[dict], key: str, may_differ: Names = ()) -> list[Column]:
    """Return the columns of a table, in order; key: of the value in an entry.

    A label is the encoding, plus the settings that differ between its columns. If runs still share
    it, it ends with the run's name, with its folder if several runs have this name.
    """
    groups = [*group_by(_join_lengths(in_order(records)), setup_of).values()]
    first = [group[0] for group in groups]
    labels = [_label(record, first) for record in first]
    runs = Counter(record.get("run") for record in records)
    columns = []
    for label, group in zip(labels, groups, strict=True):
        pe = group[0]["pe"]
        seeds = {each.get("seed") for each in group}
        if len(seeds) == len(group) and labels.count(label) == 1:
            columns.append(Column(label, pe, group, key, may_differ))
            continue
        for record in group:
            folder = f"{record.get('folder')}/" if runs[record["run"]] > 1 else ""
            name = f"{label}, run {folder}{record['run']}"
            columns.append(Column(name, pe, [record], key, may_differ))
    return columns


def _join_lengths(records: list[dict]) -> list[dict]:
    """Return one record for each run, with the lengths of all its evaluations.

    Of a length that was evaluated more than once, the entry of the shortest span counts.
    """
    names = ("seed", "run", "folder", "checkpoint_sha256")
    joined = []
    for same in group_by(records, lambda each: (setup_of(each), *map(each.get, names))).values():
        same.sort(key=lambda each: (each.get("protocol") or {}).get("span") or math.inf)
        lengths = {n: entry for each in same[::-1] for n, entry in each.get("lengths", {}).items()}
        joined.append(same[0] | {"lengths": lengths})
    return joined


def _label(record: dict, records: list[dict]) -> str:
    """Return the encoding, and what differs from its other columns; records: one per column."""
    same = [other for other in records if other["pe"] == record["pe"]]
    names = {"cache_window", *differing_settings(same)}
    values = record["settings"] | {name: record.get(name) for name in LABELS}
    label = record["pe"]
    for name in (*LABELS, *sorted(names - LABELS.keys())):
        if name in names and values.get(name) is not None:
            label += f", {LABELS.get(name, name + ' {}').format(values[name])}"
    return label


def setup_of(record: dict) -> str:
    """Return what the seeds of a column share, as JSON."""
    plugins = sorted((record.get("plugin") or {}).values())  # SHA-256 of the files
    return json.dumps([plugins, *map(record.get, SETUP_KEYS)], sort_keys=True)


def differing_settings(records: list[dict]) -> list[str]:
    """Return the training settings that differ, except encoding and seed.

    In runs of 0 steps, with weights of others, none has had an effect.
    Imported models have few settings: those that a record lacks are not compared.
    """
    trainings = [training_of(record) for record in records]
    has_import = any("model" in record["settings"] for record in records)
    combine = set.intersection if has_import else set.union
    names = sorted(combine(*map(set, trainings))) if trainings else []
    if all(record.get("step") == 0 for record in records):
        names = ["block_size", "size", "step", "text"]
    return [
        name for name in names if len({_words_of(name, each.get(name)) for each in trainings}) > 1
    ]


def training_of(record: dict) -> dict:
    """Return a run's training settings, without encoding and seed, and the tokens tested."""
    others = {name: record.get(name) for name in TRAINING_KEYS}
    if others["step"] is not None:  # with those of --init_from
        others["step"] += record.get("init_steps") or 0
    protocol = record.get("protocol") or {}
    span = [f"{name} {protocol[name]}" for name in SPAN_KEYS if protocol.get(name)]
    others["text"] = " ".join(span) or "all"
    return record["settings"] | others


def read_names(text: str) -> Names:
    """Return the settings of --may_differ, as in "lr,block_size"."""
    return tuple(text.replace(" ", "").split(","))


def describe_differences(
    columns: list[Column], may_differ: Names, by_model: bool = False
) -> tuple[str, str]:
    """Return a warning on settings that prevent comparisons; a note on others.

    by_model: do not compare runs of different sizes and training lengths.
    """
    first = [column.records[0] for column in columns]
    models = group_by(first, lambda each: by_model and (each.get("size"), each["block_size"]))
    names = sorted(set().union(*map(differing_settings, models.values())))
    wrong = [_describe_setting(name, columns) for name in names if name not in may_differ]
    shown = [_describe_setting(name, columns) for name in names if name in may_differ]
    what = "**Not comparable**, because the runs differ in more than encoding and seed: "
    warning = f"{what}{'; '.join(wrong)}." if wrong else ""
    return warning, f" Settings that differ: {'; '.join(shown)}." if shown else ""


def _describe_setting(name: str, columns: list[Column]) -> str:
    """Return a setting as Markdown: "lr: 0.004 (cable), 0.008 (rope)".

    Of many columns, those with the most frequent value are not listed.
    """
    by_value = group_by(
        columns, lambda each: _words_of(name, training_of(each.records[0]).get(name, "default"))
    )
    texts = []
    for value, found in sorted(by_value.items(), key=lambda item: -len(item[1])):
        labels = f" ({'; '.join(column.label for column in found)})"
        is_listed = texts or len(columns) <= MAX_LISTED
        # Hashes are long.
        texts.append(f"{value:.60}{labels if is_listed else ''}")
    return escape_markdown(f"{name}: {', '.join(texts)}")


def _words_of(name: str, value) -> str:
    """Return a setting's value in words; of `changes`: "steps 30 to 40 at step 30"."""
    if name == "changes" and isinstance(value, list):
        return " and ".join(
            f"{changed} {old} to {new} at step {change['step']}"
            for change in value
            for changed, (old, new) in change["settings"].items()
        )
    # Records of other versions have the keys of a dictionary in another order.
    return json.dumps(value, sort_keys=True) if isinstance(value, dict) else str(value)


def describe_models(columns: list[Column]) -> str:
    """Return a figure's title: data, model, training length and seeds."""
    records = [record for column in columns for record in column.records]
    data = records[0]["data"]
    lengths = join_numbers(column.trained_at for column in columns)
    seeds = [len(column.records) for column in columns]
    return (
        f"{data['dataset']} ({data['split']}), {name_model(*records)}, trained at {lengths} "
        f"tokens, {number_range(seeds)} seed{'s' if max(seeds) > 1 else ''}"
    )


def name_model(*records: dict) -> str:
    """Return what a reader calls the model of records: its name and number of parameters.

    "tiny model (19.2M parameters)"; an imported one has the name of its source: "gpt2 (124.4M
    parameters)".
    """
    names = set()
    for record in records:
        source, size = record["settings"].get("model"), record.get("size")
        if source:
            names.add("/".join(Path(source[0]).parts[-2:]))  # OWNER/NAME on the hub
        elif size and size != "custom":
            names.add(f"{size} model")
    numbers = [each["parameters"] for each in records if each.get("parameters")]
    name = " and ".join(sorted(names)) or "model"
    number = statistics.median(numbers) / 1e6 if numbers else 0
    return f"{name} ({number:,.1f}M parameters)" if number else name


def all_lengths(columns: list[Column]) -> list[int]:
    """Return the lengths of all columns, ascending."""
    return sorted({length for column in columns for length in column.lengths()})


def in_order(records: list[dict]) -> list[dict]:
    """Return the records sorted by encoding, then by run."""
    return sorted(records, key=lambda record: (sort_key(record["pe"]), record["run"]))


def sort_key(pe: str) -> tuple[int, list]:
    """Return the sort key of an encoding: the paper's order, then by name."""
    words = re.split(r"(-?\d+)", pe)  # every second one is a number
    parts = [int(word) if index % 2 else word for index, word in enumerate(words)]
    rank = PAPER_ORDER.index(pe) if pe in PAPER_ORDER else len(PAPER_ORDER)
    return rank, parts


def group_by_protocol(records: list[dict]) -> list[list[dict]]:
    """Return groups of equal data, protocol and metric, in order.

    Records of other context lengths, whose tokens differ, are in one group.
    """

    def question(record):
        protocol = record.get("protocol") or {}
        kept = {k: v for k, v in protocol.items() if k not in SPAN_KEYS and v is not None}
        kept["within"] = "documents" in protocol
        return json.dumps([record["data"], kept, record.get("metric")], sort_keys=True)

    return [*group_by(in_order(records), question).values()]


def group_by(records: list, key: Callable) -> dict[Any, list]:
    """Return {key: its records}, in order."""
    groups = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return groups
