"""Claims on models that were trained at different lengths and are evaluated at the same one.

    columns = make_columns(records_of_perplexity, "perplexity")
    judge_training_lengths(columns, [bench_record["train"]])

Memory and time of a training step are those of bench.py with the same number of sequences; time is
per token, because both trainings have the same number of tokens.

The criteria were fixed before any of these models was trained.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.speed import entry_of, is_on_cpu, memory_ratio
from reporting.claims.verdicts import (
    CABLE_V1,
    FAILS,
    HOLDS,
    Verdict,
    is_stated_for,
    judge_bound,
    printed_interval,
)
from reporting.columns import Column, dataset_of, entry_pairs
from reporting.formatting import MISSING, Table, format_number
from reporting.paper import PaperStatements


class ShorterTraining(NamedTuple):
    """A claim that an encoding has a lower perplexity than a baseline of a longer training length.

    Both are evaluated at the baseline's training length.
    """

    dataset: str
    size: str
    pe: str
    trained_at: int
    """training length in tokens"""
    baseline: str
    baseline_trained_at: int
    bounds: tuple[float, float] | None
    """bounds on the ratios of memory and time of a training step, if the paper has them"""
    paper: str
    where: str


SHORTER_TRAININGS = (
    ShorterTraining(
        "fineweb-edu",
        "medium",
        "cable-v1",
        512,
        "sinusoidal",
        1024,
        (0.52, 1.035),
        CABLE_V1,
        "abstract",
    ),
    ShorterTraining(
        "wikitext103", "tiny", "k-cable-v1", 512, "cable-v1", 1024, None, CABLE_V1, "section 5.4"
    ),
    ShorterTraining(
        "wikitext103", "tiny", "cable-v1", 1024, "sinusoidal", 8192, None, CABLE_V1, "section 5.4"
    ),
)
SCALES = (1, 4, 32)  # scripts divide the paper's lengths by these, and use networks of other sizes


@dataclass(frozen=True)
class StepCosts:
    """Memory and time of a training step of two runs, each at its training length."""

    speed: dict
    """result of the benchmark train"""
    ours: dict
    """entry of the benchmark"""
    baseline: dict

    def entries(self) -> tuple[dict, dict]:
        return self.ours, self.baseline

    def memory_ratio(self) -> Interval:
        """Return the ratio of the bytes, ours over the baseline's."""
        return memory_ratio(self.ours, self.baseline)

    def time_ratio(self) -> Interval:
        """Return the ratio of the seconds per token; the interval is over rounds, unpaired."""
        logs = [np.log(entry["seconds"]) - np.log(entry["tokens"]) for entry in self.entries()]
        return intervals.ratio_of_rounds(*logs)


@dataclass
class Pair:
    """Two runs of a claim of SHORTER_TRAININGS, compared at the baseline's training length."""

    ours: Column
    baseline: Column
    claim: ShorterTraining
    costs: StepCosts | None
    """None: no benchmark has both encodings, each at its training length"""

    @property
    def length(self) -> int:
        """The length at which both are evaluated."""
        return self.baseline.trained_at

    def columns(self) -> tuple[Column, Column]:
        return self.ours, self.baseline

    def perplexity_ratio(self) -> Interval:
        """Return the ratio of the perplexities, ours over the baseline's."""
        pairs = entry_pairs(self.ours, self.length, self.baseline, self.length)
        return intervals.perplexity_ratio(pairs)


def all_claims() -> list[Verdict]:
    """Return the claims of this module at the papers' lengths, not measured."""
    claims = []
    for claim in SHORTER_TRAININGS:
        texts = _claim_texts(
            claim.pe, claim.trained_at, claim.baseline, claim.baseline_trained_at, claim.bounds
        )
        claims += [Verdict(text, claim.paper, claim.where) for text in texts]
    return claims


def _claim_texts(
    pe: str, short: int, baseline: str, long: int, bounds: tuple[float, float] | None
) -> list[str]:
    """Return the claims on perplexity and, if there are bounds, on memory and time."""
    runs = f"of {pe} trained with {short:,} tokens / that of {baseline} trained with {long:,}"
    texts = [f"perplexity at {long:,} tokens {runs} < 1"]
    if bounds:
        names = ("memory", "time per token")
        for name, bound in zip(names, bounds, strict=True):
            texts.append(f"{name} of a training step {runs} <= {bound}")
    return texts


def judge_training_lengths(columns: list[Column], speeds: list[dict]) -> list[Verdict]:
    """Return verdicts on the pairs of SHORTER_TRAININGS that were trained and evaluated.

    columns: of perplexity; speeds: results of the benchmark train of bench.py.
    """
    verdicts = []
    for pair in find_pairs(columns, speeds):
        ours, baseline = pair.columns()
        paper, where, bounds = pair.claim.paper, pair.claim.where, pair.claim.bounds
        text, *cost_texts = _claim_texts(
            ours.pe, ours.trained_at, baseline.pe, baseline.trained_at, bounds
        )
        ratio = pair.perplexity_ratio()
        outcome = judge_bound(ratio, "<", 1)
        verdicts.append(Verdict(text, paper, where, printed_interval(ratio), outcome))
        if bounds:
            memory, time = (Verdict(text, paper, where) for text in cost_texts)
            if pair.costs:
                _judge_costs(pair.costs, bounds, memory, time)
            verdicts += [memory, time]
    return verdicts


def _judge_costs(
    costs: StepCosts, bounds: tuple[float, float], memory: Verdict, time: Verdict
) -> None:
    """Fill in the verdicts on memory and time."""
    if is_on_cpu(costs.speed):
        memory.claim = f"on a CPU: {memory.claim}"
        time.claim = f"on a CPU: {time.claim}"
    ratio = costs.memory_ratio()
    memory.measured = f"{ratio.estimate:.3f}"
    memory.outcome = HOLDS if ratio.estimate <= bounds[0] else FAILS
    ratio = costs.time_ratio()
    time.measured = printed_interval(ratio)
    time.outcome = judge_bound(ratio, "<=", bounds[1])


def find_pairs(columns: list[Column], speeds: list[dict]) -> list[Pair]:
    """Return the pairs of SHORTER_TRAININGS in columns, at the paper's lengths or a scale of them.

    At the paper's lengths they have its size and data set; at a scale, as in the scripts at
    SCALE=small, any that `is_stated_for` accepts. Of several columns the first counts.
    """
    by_run = {}
    for column in reversed(columns):
        by_run[column.pe, column.trained_at, column.records[0].get("size")] = column
    sizes = dict.fromkeys(size for _, _, size in by_run)
    pairs = []
    for claim in SHORTER_TRAININGS:
        for scale in SCALES:
            for size in [claim.size] if scale == 1 else sizes:
                if not is_stated_for(claim.pe, size):
                    continue
                ours = by_run.get((claim.pe, claim.trained_at // scale, size))
                baseline_length = claim.baseline_trained_at // scale
                baseline = by_run.get((claim.baseline, baseline_length, size))
                if not (ours and baseline):
                    continue
                if scale == 1 and dataset_of(ours.records[0]) != claim.dataset:
                    continue
                if ours.values(baseline.trained_at) and baseline.values(baseline.trained_at):
                    costs = _find_costs(ours, baseline, speeds)
                    pairs.append(Pair(ours, baseline, claim, costs))
    return pairs


def _find_costs(ours: Column, baseline: Column, speeds: list[dict]) -> StepCosts | None:
    for result in speeds:
        if "objective" in result:
            continue
        entry = entry_of(result, ours.trained_at, ours.pe)
        baseline_entry = entry_of(result, baseline.trained_at, baseline.pe)
        if entry and baseline_entry:
            return StepCosts(result, entry, baseline_entry)
    return None


def training_length_table(
    columns: list[Column], speeds: list[dict], printed: PaperStatements | None
) -> tuple[Table, str] | None:
    """Return a table that compares runs of different training length, with its caption.

    None if columns hold no pair of SHORTER_TRAININGS. printed: the paper's differences.
    """
    pairs = find_pairs(columns, speeds)
    if not pairs:
        return None
    cells = [["quantity", "run", "", "baseline", "", "difference", "95% interval", "paper"]]
    notes = []
    for pair in pairs:
        cells += _rows(pair, printed)
        if pair.costs:
            notes.append(_speed_note(pair.costs.speed))
    scope = "Each run is named with its training length; the perplexities of a row are those of "
    caption = (
        f"{scope}the same text and context. The interval of a difference in perplexity is that of "
        "the ratio times the baseline's perplexity."
    )
    return Table(cells), " ".join([caption, *dict.fromkeys(notes)])


def _rows(pair: Pair, printed: PaperStatements | None) -> Iterator[list[str]]:
    labels = [f"{column.pe}, {column.trained_at:,}" for column in pair.columns()]

    def row(quantity, values, difference, interval):
        key = quantity.partition(" ")[0]
        lengths = (pair.claim.trained_at, pair.claim.baseline_trained_at)
        paper = printed and printed.difference(key, pair.ours.pe, pair.baseline.pe, lengths)
        runs = [cell for both in zip(labels, values, strict=True) for cell in both]
        return [quantity, *runs, difference, interval, paper or MISSING]

    means = [statistics.mean(column.values(pair.length)) for column in pair.columns()]
    ratio = pair.perplexity_ratio()
    bounds = MISSING
    if ratio.low is not None and ratio.high is not None:
        low, high = (means[1] * (bound - 1) for bound in (ratio.low, ratio.high))
        bounds = f"{low:+.2f} to {high:+.2f}"
    difference = f"{means[1] * (ratio.estimate - 1):+.2f}"
    yield row(f"perplexity at {pair.length:,}", map(format_number, means), difference, bounds)
    if not pair.costs:
        return
    entries = pair.costs.entries()
    megabytes = [f"{entry['memory'] / 1e6:,.1f}" for entry in entries]
    change = pair.costs.memory_ratio().estimate - 1
    yield row("memory (MB)", megabytes, f"{change:+.1%}", MISSING)
    times = [
        f"{1e6 * np.exp(np.mean(np.log(entry['seconds']))) / entry['tokens']:,.1f}"
        for entry in entries
    ]
    ratio = pair.costs.time_ratio()
    bounds = MISSING
    if ratio.low is not None and ratio.high is not None:
        bounds = f"{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}"
    yield row("time per token (µs)", times, f"{ratio.estimate - 1:+.1%}", bounds)


def _speed_note(result: dict) -> str:
    note = (
        f"Memory and time: one training step of {result['micro_batch']} sequences (bench.py train, "
        f"{result['model']} model, {result['dtype']}, {result['device']}); geometric means of "
        f"{result['repeats']} rounds, with an interval over rounds."
    )
    if is_on_cpu(result):
        note += " On a CPU; the paper measured GPUs."
    return note
