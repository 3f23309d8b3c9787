"""Trend of effects over model size: a measured ratio for each model size.

    rungs = make_rungs(read_records(["results/reproduction", "results/ladder"]))
    table(measure(rungs), rungs).markdown()

Each row of the section `trend` in results/claims.yaml is a ratio that is 1 if
there is no effect. Intervals are those of evaluation/intervals.py. Far is 16
times the training length, or 15 if 16 is not recorded.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from errors import InputError
from evaluation import intervals, record_schema
from evaluation.intervals import Interval
from reporting import figures, metrics
from reporting.claims.claim import Claim, load
from reporting.claims.receptive_fields import receptive_field
from reporting.claims.verdicts import FAR_MULTIPLES, printed_interval
from reporting.columns import Column, all_lengths, entry_pairs, group_by_protocol, make_columns
from reporting.formatting import MISSING, Table
from reporting.metrics import PERPLEXITY, RECALL, RECEPTIVE_FIELD

FAR = FAR_MULTIPLES[0]
METRICS = {"perplexity": PERPLEXITY, "recall": RECALL, "receptive field": RECEPTIVE_FIELD}

Points = list[tuple[float, Interval | None]]  # parameters and ratio of each rung


@dataclass
class Rung:
    """The records of one network, training length and text."""

    records: list[dict]
    parameters: float
    """median over its records: encodings differ in theirs"""

    @property
    def label(self) -> str:
        first, millions = self.records[0], self.parameters / 1e6
        size = f"{millions:.{1 if millions < 10 else 0}f}M"
        return f"{size}, {first['data']['dataset']}, {first['block_size']:,}"

    def ratio(self, claim: Claim) -> Interval | None:
        """Return the ratio of a claim; None if the records do not have it.

        The protocol with most lengths counts, so that all ratios are of one
        text.
        """
        metric = METRICS[claim.quantity]
        records = [record for record in self.records if metrics.metric_of(record) is metric]
        groups = [make_columns(group, metric.key) for group in group_by_protocol(records)]
        groups.sort(key=lambda columns: len(all_lengths(columns)), reverse=True)
        return next(filter(None, (_ratio(claim, columns) for columns in groups)), None)


def _ratio(claim: Claim, columns: list[Column]) -> Interval | None:
    """Return a ratio; of several recipes the one with the most seeds counts."""
    by_encoding = {each.pe: each for each in sorted(columns[::-1], key=lambda c: len(c.records))}
    ours = by_encoding.get(claim.encoding)
    other = by_encoding.get(claim.others[0]) if claim.others else ours
    if ours is None or other is None:
        return None
    trained_at = ours.trained_at
    for multiple in FAR_MULTIPLES if claim.at[0] == FAR else claim.at:
        length = round(float(multiple) * trained_at)
        if claim.quantity == "perplexity":
            pairs = entry_pairs(ours, length, other, length if claim.others else trained_at)
            if pairs:
                return intervals.perplexity_ratio(pairs)
        elif ours.entries_by_seed(length):
            measure = passage_ratio if claim.quantity == "recall" else receptive_field
            return measure(ours, length)
    return None


def passage_ratio(column: Column, distance: int) -> Interval:
    """Return a passage's perplexity after a copy over that after another."""
    entries = column.entries_by_seed(distance).values()
    ratios = [1 - entry["recall"] / 100 for entry in entries]
    errors = [
        entry["recall_se"] / 100 / ratio for entry, ratio in zip(entries, ratios, strict=True)
    ]
    trials = column.records[0]["protocol"]["trials"]
    return intervals.mean_interval([*map(math.log, ratios)], errors, trials).exp()


def read_records(paths: Sequence[str]) -> list[dict]:
    """Return the records of perplexity, recall and receptive fields.

    A folder stands for its files of records or, if it has none, for those of
    its subfolders.
    """
    files = [file for path in map(Path, paths) for file in _files(path)]
    records = record_schema.read_records(files, "pass records, or folders of records").values()
    known = METRICS.values()
    records = [record for record in records if metrics.metric_of(record) in known]
    if not records:
        raise InputError(
            "no records of perplexity, recall or receptive fields found: "
            "python report.py --trend results/reproduction results/ladder"
        )
    return records


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    names = ("records.jsonl", "*eval_*.json")
    return sorted(file for name in names for file in path.glob(name)) or sorted(
        file for name in names for file in path.glob(f"*/{name}")
    )


def make_rungs(records: list[dict]) -> list[Rung]:
    """Return the rungs of records, fewest parameters first."""
    groups = {}
    for record in records:
        # Lengths of other text are compared unpaired
        # (intervals.perplexity_ratio).
        record = record | {"protocol": record["protocol"] | {"remainder": None}}
        data = tuple(record["data"].get(key) for key in ("dataset", "split", "tokenizer", "sha256"))
        groups.setdefault((record.get("size"), record["block_size"], data), []).append(record)
    rungs = []
    for group in groups.values():
        parameters = [record["parameters"] for record in group if record.get("parameters")]
        if parameters:
            rungs.append(Rung(group, statistics.median(parameters)))
    return sorted(rungs, key=lambda rung: rung.parameters)


def measure(rungs: Sequence[Rung]) -> list[tuple[Claim, Points]]:
    """Return each claim's ratios on the rungs; None where not measured."""
    claims = load()["trend"]
    return [(claim, [(rung.parameters, rung.ratio(claim)) for rung in rungs]) for claim in claims]


def table(trends: list[tuple[Claim, Points]], rungs: Sequence[Rung]) -> Table:
    """Return the table: a row per claim, a column per rung."""
    rows = [["claim", "ratio", *(rung.label for rung in rungs)]]
    for claim, points in trends:
        words = {"others": ", ".join(claim.others), "at": f"{claim.at[0]:g}x"}
        what = claim.what.format(encoding=claim.encoding, **words)
        ratios = [printed_interval(ratio) if ratio else MISSING for _, ratio in points]
        rows.append([claim.wording, what, *ratios])
    return Table(rows)


def caption(rungs: Sequence[Rung]) -> str:
    """Return what the table shows."""
    return (
        f"Ratios with 95% intervals on {len(rungs)} rungs: parameters, text, training length. "
        f"Multiples are of the training length; 15x where {FAR}x is not recorded."
    )


def plot(trends: list[tuple[Claim, Points]], file) -> None:
    """Plot the claims measured on at least two rungs, or all if none is.

    A claim on cable has the color of what cable is compared with.
    """
    lines = []
    for claim, points in trends:
        pe = claim.others[0] if claim.encoding == "cable" and claim.others else claim.encoding
        lines.append(line := figures.Line(claim.wording, pe))
        for size, ratio in points:
            if ratio:
                line.add(size, ratio.estimate, *figures.error_bar(ratio, ratio.estimate))
    most = max(len(line.points) for line in lines)
    shown = [line for line in lines if len(line.points) >= min(most, 2)]
    title = "ratios with 95% intervals; text and training length differ between sizes (trend.md)"
    panels = [("ratio (1: no effect)", shown)]
    figures.draw_lines(file, title, panels, "parameters", level=1, x_base=10)
