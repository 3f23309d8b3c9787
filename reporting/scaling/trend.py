"""Trend of the claims over model size: a measured ratio per rung, a verdict, and a fitted line.

    rungs = make_rungs(read_records(["results/reproduction", "results/ladder"]))
    table([measure(claim, rungs) for claim in CLAIMS], rungs).markdown()

A rung is all records of one network, training length and text. Each claim is a ratio that is 1 if
there is no effect; its distance from 1 is |ln ratio|. Intervals are those of the verdicts on the
papers' claims (evaluation/intervals.py). Far is 16 times the training length, or 15 if 16 is not
recorded.

Verdict, from the rungs with the fewest and the most parameters that have an interval:

- grows: the two intervals are disjoint, and the first includes 1, or the ratio of the last rung is
  further from 1, in the direction of the first;
- shrinks: the two intervals are disjoint otherwise. "changes sign" is added if the intervals
  exclude 1 on different sides;
- constant: the intervals overlap, and both are narrow: high / low <= 1.02;
- not decided: everything else, also with fewer than two rungs.

The rule was fixed before any record of the rungs 2 to 4 existed, except for a first interval that
includes 1. The interval of a single seed covers the text only: the verdict has the note "one seed".

With three rungs or more, a line of ln ratio against ln parameters is fitted by least squares. It
predicts the ratio at GPT-2 small and medium, with a 95% prediction interval.
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
from reporting.claims.receptive_fields import receptive_field
from reporting.claims.verdicts import FAR_MULTIPLES, printed_interval
from reporting.columns import (
    Column,
    all_lengths,
    entry_pairs,
    group_by_protocol,
    make_columns,
)
from reporting.formatting import MISSING, Table
from reporting.metrics import PERPLEXITY, RECALL, RECEPTIVE_FIELD, Metric

FAR = FAR_MULTIPLES[0]
MAX_WIDTH = 1.02  # high / low of an interval that counts as narrow
GROWS, SHRINKS, CONSTANT, UNDECIDED = "grows", "shrinks", "constant", "not decided"
SIGN = "changes sign"
PREDICTED = {"GPT-2 small": 124e6, "GPT-2 medium": 354e6}  # parameters
CANDIDATE = "rope:heads_percent=75+alibi:heads_percent=75"  # results/extrapolate_and_remember


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

    def columns(self, metric: Metric) -> list[list[Column]]:
        """Return the columns of a metric, one list for each protocol, that with most lengths first.

        So all ratios of perplexity are of one text.
        """
        records = [record for record in self.records if metrics.metric_of(record) is metric]
        groups = [make_columns(group, metric.key) for group in group_by_protocol(records)]
        return sorted(groups, key=lambda columns: -len(all_lengths(columns)))


@dataclass(frozen=True)
class Claim:
    """A claim, and the ratio that measures it on one rung. Multiples: of the training length."""

    text: str
    pe: str
    at: int
    """multiple; 16: 15 if 16 is not recorded. Of RECALL: the distance"""
    other: str | None = None
    """encoding whose perplexity is the divisor; None for the other metrics, which need none"""
    other_at: int = 1
    metric: Metric = PERPLEXITY

    @property
    def ratio(self) -> str:
        """The ratio in words."""
        if self.metric is RECEPTIVE_FIELD:
            return f"receptive field of {self.pe} at {self.at}x over the training length"
        if self.metric is RECALL:
            copy = f"after a copy {self.at}x ago over after another passage"
            return f"perplexity of a passage with {self.pe}, {copy}"
        if self.pe == self.other:
            return f"perplexity of {self.pe} at {self.at}x over that at {self.other_at}x"
        return f"perplexity of {self.pe} over that of {self.other} at {self.at}x"

    def measure(self, rung: Rung) -> Interval | None:
        """Return the ratio on a rung; None if the rung does not have the records."""
        ratios = (self._measure(columns) for columns in rung.columns(self.metric))
        return next((ratio for ratio in ratios if ratio is not None), None)

    def _measure(self, columns: list[Column]) -> Interval | None:
        column, other = _find(columns, self.pe), _find(columns, self.other)
        if column is None:
            return None
        if self.metric is RECALL:
            return passage_ratio(column, self.at * column.trained_at)
        if self.metric is RECEPTIVE_FIELD:
            return receptive_field(column, self.at * column.trained_at)
        if other is None:
            return None
        for far in FAR_MULTIPLES:
            at, other_at = (far if n == FAR else n for n in (self.at, self.other_at))
            lengths = at * column.trained_at, other_at * other.trained_at
            if pairs := entry_pairs(column, lengths[0], other, lengths[1]):
                return intervals.perplexity_ratio(pairs)
        return None


@dataclass
class Trend:
    """A claim's ratios: (parameters, ratio) of each rung, in their order; None: not measured."""

    claim: Claim
    ratios: list[tuple[float, Interval | None]]

    def points(self) -> list[tuple[float, Interval]]:
        """Return (parameters, ratio) of the rungs that have one."""
        return [(parameters, ratio) for parameters, ratio in self.ratios if ratio is not None]

    def prediction(self, parameters: float) -> Interval | None:
        """Return the ratio that the line predicts; None for fewer than three sizes."""
        points = [point for point in self.points() if 0 < point[1].estimate < math.inf]
        if len({parameters for parameters, _ in points}) < 3:
            return None
        x = [math.log(parameters) for parameters, _ in points]
        y = [math.log(ratio.estimate) for _, ratio in points]
        return intervals.predicted(x, y, math.log(parameters)).exp()


def judge(ratios: Sequence[Interval]) -> str:
    """Return the verdict on ratios, from the smallest to the largest rung."""
    ratios = [ratio for ratio in ratios if ratio.low is not None]
    if len(ratios) < 2:
        return UNDECIDED
    first, last = ratios[0], ratios[-1]
    ends = [(ratio.low or 0, ratio.high or math.inf) for ratio in (first, last)]
    if first.below(ends[1][0]) or first.above(ends[1][1]):
        includes_1 = not first.above(1) and not first.below(1)
        is_above = first.estimate > 1
        is_further = last.estimate > first.estimate if is_above else last.estimate < first.estimate
        verdict = GROWS if includes_1 or is_further else SHRINKS
        if (first.above(1) and last.below(1)) or (first.below(1) and last.above(1)):
            verdict += f", {SIGN}"
    elif all(low > 0 and high <= MAX_WIDTH * low for low, high in ends):
        verdict = CONSTANT
    else:
        return UNDECIDED
    return verdict if min(first.seeds, last.seeds) > 1 else f"{verdict} (one seed)"


def passage_ratio(column: Column, distance: int) -> Interval | None:
    """Return the perplexity of a passage after a copy of it over that after another passage."""
    entries = column.entries_by_seed(distance).values()
    if not entries:
        return None
    ratios = [1 - entry["recall"] / 100 for entry in entries]
    errors = [
        entry["recall_se"] / 100 / ratio for entry, ratio in zip(entries, ratios, strict=True)
    ]
    trials = column.records[0]["protocol"]["trials"]
    return intervals.mean_interval([*map(math.log, ratios)], errors, trials).exp()


def _find(columns: list[Column], pe: str | None) -> Column | None:
    """Return the column of an encoding; of several (recipes), the one with the most seeds."""
    found = [column for column in columns if column.pe == pe]
    return max(found, key=lambda column: len(column.records), default=None)


CLAIMS = (
    Claim("cable gains from longer context", "cable", FAR, "cable"),
    Claim("cable is below alibi", "cable", FAR, "alibi", FAR),
    Claim("cable is below rope", "cable", 1, "rope"),
    Claim("g helps", "cable", 1, "cable-nw"),
    Claim("k-cable compared with cable", "k-cable", 1, "cable"),
    Claim("fox has a short window", "fox", 4, metric=RECEPTIVE_FIELD),
    Claim("flat perplexity is forgetting (1: no recall)", "cable", 4, metric=RECALL),
    Claim("rope+cable compared with cable", "rope+cable", FAR, "cable", FAR),
    Claim("candidate compared with cable", CANDIDATE, FAR, "cable", FAR),
)


# Records, and the page


def read_records(paths: Sequence[str]) -> list[dict]:
    """Return the records of perplexity, recall and receptive fields in files and folders.

    A folder stands for its files of records or, if it has none, for those of its subfolders.
    """
    files = [file for path in map(Path, paths) for file in _files(path)]
    records = record_schema.read_records(files, "pass records, or folders of records").values()
    known = (PERPLEXITY, RECALL, RECEPTIVE_FIELD)
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
    for record in map(_without_dropped_text, records):
        data = tuple(record["data"].get(key) for key in ("dataset", "split", "tokenizer", "sha256"))
        groups.setdefault((record.get("size"), record["block_size"], data), []).append(record)
    rungs = []
    for group in groups.values():
        parameters = [record["parameters"] for record in group if record.get("parameters")]
        if parameters:
            rungs.append(Rung(group, statistics.median(parameters)))
    return sorted(rungs, key=lambda rung: rung.parameters)


def _without_dropped_text(record: dict) -> dict:
    """Return a record without the lengths whose windows left out the ends of the text."""
    protocol = record["protocol"]
    if protocol.get("remainder") != "dropped":
        return record
    lengths = {length: entry for length, entry in record["lengths"].items() if entry}
    most = max(entry["tokens"] for entry in lengths.values())
    whole = {length: entry for length, entry in lengths.items() if entry["tokens"] == most}
    return record | {"lengths": whole, "protocol": protocol | {"remainder": "counted"}}


def measure(claim: Claim, rungs: Sequence[Rung]) -> Trend:
    """Return the trend of a claim."""
    return Trend(claim, [(rung.parameters, claim.measure(rung)) for rung in rungs])


def table(trends: Sequence[Trend], rungs: Sequence[Rung]) -> Table:
    """Return the table: a row for each claim, a column for each rung, verdict, predictions."""
    rows = [["claim", "ratio", *(rung.label for rung in rungs), "verdict", *PREDICTED]]
    for trend in trends:
        measured = [_cell(ratio) for _, ratio in trend.ratios]
        predicted = [_cell(trend.prediction(parameters)) for parameters in PREDICTED.values()]
        verdict = judge([ratio for _, ratio in trend.points()])
        rows.append([trend.claim.text, trend.claim.ratio, *measured, verdict, *predicted])
    return Table(rows)


def caption(rungs: Sequence[Rung]) -> str:
    """Return what the table shows."""
    return (
        "Ratios with 95% intervals, paired over the text and over seeds; columns: parameters, text "
        f"and training length of a rung ({len(rungs)}). Multiples are of the training length; 15x "
        f"where {FAR}x is not recorded. Verdicts compare the first and the last rung of a row "
        "(reporting/scaling/trend.py has the rule). Predictions: straight line through three or "
        "more rungs in logarithms, with its 95% prediction interval; it ignores that rungs differ "
        "in text, training length and tokens per parameter."
    )


def plot(trends: Sequence[Trend], file) -> None:
    """Plot the ratios of the claims with at least two rungs, or of all if none has two.

    A claim on cable has the color of what cable is compared with.
    """
    lines = []
    for trend in trends:
        claim = trend.claim
        pe = claim.other if claim.pe == "cable" and claim.other else claim.pe
        if points := trend.points():
            lines.append((claim.text, pe, points))
    longer = [line for line in lines if len(line[2]) > 1]
    title = "ratios with 95% intervals; text and training length differ between sizes (trend.md)"
    figures.by_parameters(longer or lines, file, title)


def _cell(ratio: Interval | None) -> str:
    return MISSING if ratio is None else printed_interval(ratio)
