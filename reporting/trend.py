"""Trend of effects over model size: a measured ratio for each model size.

    rungs = make_rungs(read_records(["results/reproduction", "results/ladder/ladder_2"]))
    table(measure(rungs), rungs).markdown()

Ratios are the rows of `trend` in results/claims.yaml: 1 is no effect.
Far is 16 times the training length, or 15 if 16 is not recorded.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from errors import InputError
from evaluation import intervals, record_schema
from evaluation.intervals import Interval
from reporting import figures
from reporting.claims.claim import FAR_MULTIPLES, Claim, load, printed_interval
from reporting.claims.quantities import receptive_field
from reporting.columns import (
    Column,
    all_lengths,
    entry_pairs,
    group_by_protocol,
    make_columns,
)
from reporting.formatting import MISSING, Table
from reporting.metrics import PERPLEXITY, RECALL, RECEPTIVE_FIELD, metric_of

FAR = FAR_MULTIPLES[0]
METRICS = {"perplexity": PERPLEXITY, "recall": RECALL, "receptive field": RECEPTIVE_FIELD}

Trend = tuple[Claim, list[Interval | None]]  # ratios of a claim on the rungs


@dataclass
class Rung:
    """The records of one network, training length and text."""

    label: str
    parameters: float
    """median over its records: encodings differ in theirs"""
    records: list[dict]


def _ratio(claim: Claim, records: list[dict]) -> Interval | None:
    """Return a claim's ratio, if any; of several recipes, with the most seeds.

    It is of the protocol with most lengths: all ratios are then of one
    text.
    """
    metric = METRICS[claim.quantity]
    records = [record for record in records if metric_of(record) is metric]
    groups = [make_columns(group, metric.key) for group in group_by_protocol(records)]
    groups.sort(key=lambda group: len(all_lengths(group)), reverse=True)
    for columns in groups:
        columns = sorted(columns[::-1], key=lambda column: len(column.records))
        by_encoding = {column.pe: column for column in columns}
        ours = by_encoding.get(claim.encoding)
        other = by_encoding.get(claim.others[0]) if claim.others else ours
        if not (ours and other):
            continue
        for multiple in FAR_MULTIPLES if claim.at[0] == FAR else claim.at:
            length = round(float(multiple) * ours.trained_at)
            end = length if claim.others else ours.trained_at
            pairs = entry_pairs(ours, length, other, end)
            if pairs and claim.quantity == "perplexity":
                return intervals.perplexity_ratio(pairs)
            if ours.entries_by_seed(length) and claim.quantity != "perplexity":
                measure = passage_ratio if claim.quantity == "recall" else receptive_field
                return measure(ours, length)
    return None


def passage_ratio(column: Column, distance: int) -> Interval:
    """Return a passage's perplexity after a copy over that after another."""
    entries = column.entries_by_seed(distance).values()
    ratios = [1 - entry["recall"] / 100 for entry in entries]
    pairs = zip(entries, ratios, strict=True)
    errors = [entry["recall_se"] / 100 / ratio for entry, ratio in pairs]
    trials = column.records[0]["protocol"]["trials"]
    return intervals.mean_interval([*map(math.log, ratios)], errors, trials).exp()


def read_records(paths: Sequence[str]) -> list[dict]:
    """Return the records of METRICS in files, and in folders of such files."""
    files = []
    for path in map(Path, paths):
        found = [*path.glob("records.jsonl"), *path.glob("eval_*.json")]
        files += sorted(found) if path.is_dir() else [path]
    found = record_schema.read_records(files, "pass records, or folders of records")
    records = [each for each in found.values() if metric_of(each) in METRICS.values()]
    if not records:
        what = "no records of perplexity, recall or receptive fields found"
        raise InputError(f"{what}: pass other files, or folders of them")
    return records


def make_rungs(records: list[dict]) -> list[Rung]:
    """Return the rungs of records, fewest parameters first."""
    groups = {}
    for record in records:
        # intervals.perplexity_ratio compares lengths of other text
        # unpaired.
        record = record | {"protocol": record["protocol"] | {"remainder": None}}
        keys = ("dataset", "split", "tokenizer", "sha256")
        data = tuple(record["data"].get(key) for key in keys)
        network = record.get("size"), record["block_size"], data
        groups.setdefault(network, []).append(record)
    rungs = []
    for (_, block_size, (dataset, *_)), group in groups.items():
        known = [record["parameters"] for record in group if record.get("parameters")]
        if known:
            parameters = statistics.median(known)
            size = f"{parameters / 1e6:.{1 if parameters < 1e7 else 0}f}M"
            rungs.append(Rung(f"{size}, {dataset}, {block_size:,}", parameters, group))
    return sorted(rungs, key=lambda rung: rung.parameters)


def measure(rungs: Sequence[Rung]) -> list[Trend]:
    """Return each claim's ratios on the rungs; None where not measured."""
    claims = load()["trend"]
    return [(claim, [_ratio(claim, rung.records) for rung in rungs]) for claim in claims]


def table(trends: list[Trend], rungs: Sequence[Rung]) -> Table:
    """Return the table: a row per claim, a column per rung."""
    rows = [["claim", "ratio", *(rung.label for rung in rungs)]]
    for claim, ratios in trends:
        words = {"encoding": claim.encoding, "others": ", ".join(claim.others)}
        what = claim.what.format(at=f"{claim.at[0]:g}x", **words)
        cells = [printed_interval(ratio) if ratio else MISSING for ratio in ratios]
        rows.append([claim.wording, what, *cells])
    caption = (
        f"Ratios with 95% intervals on {len(rungs)} rungs: parameters, text, training length. "
        f"Multiples are of the training length; 15x where {FAR}x is not recorded."
    )
    return Table(rows, caption=caption)


def plot(trends: list[Trend], rungs: Sequence[Rung], file) -> None:
    """Plot the claims measured on at least two rungs, or all if none is."""
    lines = []
    for claim, ratios in trends:
        lines.append(line := figures.Line(claim.wording))
        for rung, ratio in zip(rungs, ratios, strict=True):
            if ratio:
                low, high = ratio.low, ratio.high
                errors = low and ratio.estimate - low, high and high - ratio.estimate
                line.add(rung.parameters, ratio.estimate, *errors)
    most = max(len(line.points) for line in lines)
    shown = [line for line in lines if len(line.points) >= min(most, 2)]
    title = "ratios with 95% intervals; sizes differ in text and training length (trend.md)"
    panels = [("ratio (1: no effect)", shown)]
    figures.draw_lines(file, title, panels, "parameters", level=1)
