"""Claims on models that were trained at different lengths and are evaluated at the same one.

    columns = make_columns(records_of_perplexity, "perplexity")
    judge_training_lengths(columns, [bench_record["train"]])

Memory and time of a training step are those of bench.py with the same number of sequences; time is
per token, because both trainings have the same number of tokens.

The criteria were fixed before any of these models was trained.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.speed import entry_of, is_on_cpu, memory_ratio
from reporting.claims.verdicts import (
    CABLE_V1,
    FAILS,
    HOLDS,
    Verdict,
    judge_bound,
    printed_interval,
)
from reporting.columns import Column, entry_pairs
from reporting.formatting import MISSING, Table, format_number
from reporting.paper import PaperStatements

# An encoding that has a lower perplexity than a baseline that was trained at a longer length, both
# evaluated at that length. With the bounds on the ratios of memory and time of a training step, or
# None: size, encoding, trained at, baseline, trained at, (memory, time), paper, where.
SHORTER_TRAININGS = (
    ("medium", "cable-v1", 512, "sinusoidal", 1024, (0.52, 1.035), CABLE_V1, "abstract"),
    ("tiny", "k-cable-v1", 512, "cable-v1", 1024, None, CABLE_V1, "section 5.4"),
    ("tiny", "cable-v1", 1024, "sinusoidal", 8192, None, CABLE_V1, "section 5.4"),
)
SCALES = (1, 4, 32)  # scripts divide the paper's lengths by these, and use networks of other sizes


@dataclass
class Pair:
    """Two runs of a claim of SHORTER_TRAININGS, compared at the baseline's training length."""

    ours: Column
    baseline: Column
    printed_lengths: tuple[int, int]
    """the paper's training lengths"""
    bounds: tuple[float, float] | None
    source: tuple[str, str]
    """paper, where"""
    speed: dict | None
    """result of the benchmark train with both encodings at both lengths"""

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

    def entries(self) -> list[dict]:
        """Return the entries of the benchmark, each at its training length."""
        return [entry_of(self.speed, column.trained_at, column.pe) for column in self.columns()]

    def time_ratio(self) -> Interval:
        """Return the ratio of the seconds per token; the interval is over rounds, unpaired."""
        logs = [np.log(entry["seconds"]) - np.log(entry["tokens"]) for entry in self.entries()]
        return intervals.ratio_of_rounds(*logs)


def all_claims() -> list[Verdict]:
    """Return the claims of this module at the papers' lengths, not measured."""
    claims = []
    for _, pe, short, baseline, long, bounds, *source in SHORTER_TRAININGS:
        texts = _claim_texts(pe, short, baseline, long, bounds)
        claims += [Verdict(text, *source) for text in texts]
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
        text, *costs = _claim_texts(
            ours.pe, ours.trained_at, baseline.pe, baseline.trained_at, pair.bounds
        )
        ratio = pair.perplexity_ratio()
        outcome = judge_bound(ratio, "<", 1)
        verdicts.append(Verdict(text, *pair.source, printed_interval(ratio), outcome))
        if pair.bounds:
            verdicts += _judge_cost(pair, costs)
    return verdicts


def _judge_cost(pair: Pair, texts: list[str]) -> Iterator[Verdict]:
    memory, time = (Verdict(text, *pair.source) for text in texts)
    if pair.speed:
        if is_on_cpu(pair.speed):
            memory.claim = f"on a CPU: {memory.claim}"
            time.claim = f"on a CPU: {time.claim}"
        ratio = memory_ratio(*pair.entries())
        memory.measured = f"{ratio.estimate:.3f}"
        memory.outcome = HOLDS if ratio.estimate <= pair.bounds[0] else FAILS
        ratio = pair.time_ratio()
        time.measured = printed_interval(ratio)
        time.outcome = judge_bound(ratio, "<=", pair.bounds[1])
    yield memory
    yield time


def find_pairs(columns: list[Column], speeds: list[dict]) -> list[Pair]:
    """Return the pairs of SHORTER_TRAININGS in columns, at the paper's lengths or a scale of them.

    At the paper's lengths they have its size. Of several columns the first counts.
    """
    by_run = {}
    for column in reversed(columns):
        by_run[column.pe, column.trained_at, column.records[0].get("size")] = column
    sizes = dict.fromkeys(size for _, _, size in by_run)
    pairs = []
    for printed_size, pe, short, baseline_pe, long, bounds, *source in SHORTER_TRAININGS:
        for scale in SCALES:
            for size in [printed_size] if scale == 1 else sizes:
                ours = by_run.get((pe, short // scale, size))
                baseline = by_run.get((baseline_pe, long // scale, size))
                if not (ours and baseline):
                    continue
                if ours.values(baseline.trained_at) and baseline.values(baseline.trained_at):
                    pair = Pair(ours, baseline, (short, long), bounds, tuple(source), None)
                    pair.speed = _find_speed(pair, speeds)
                    pairs.append(pair)
    return pairs


def _find_speed(pair: Pair, speeds: list[dict]) -> dict | None:
    for result in speeds:
        if "objective" in result:
            continue
        if all(entry_of(result, column.trained_at, column.pe) for column in pair.columns()):
            return result
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
        if pair.speed:
            notes.append(_speed_note(pair.speed))
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
        names = [column.pe for column in pair.columns()]
        paper = printed and printed.difference(key, *names, pair.printed_lengths)
        runs = [cell for both in zip(labels, values, strict=True) for cell in both]
        return [quantity, *runs, difference, interval, paper or MISSING]

    means = [column.mean(pair.length) for column in pair.columns()]
    ratio = pair.perplexity_ratio()
    bounds = MISSING
    if ratio.low is not None:
        low, high = (means[1] * (bound - 1) for bound in (ratio.low, ratio.high))
        bounds = f"{low:+.2f} to {high:+.2f}"
    difference = f"{means[1] * (ratio.estimate - 1):+.2f}"
    yield row(f"perplexity at {pair.length:,}", map(format_number, means), difference, bounds)
    if not pair.speed:
        return
    entries = pair.entries()
    megabytes = [f"{entry['memory'] / 1e6:,.1f}" for entry in entries]
    change = memory_ratio(*entries).estimate - 1
    yield row("memory (MB)", megabytes, f"{change:+.1%}", MISSING)
    times = [
        f"{1e6 * np.exp(np.mean(np.log(entry['seconds']))) / entry['tokens']:,.1f}"
        for entry in entries
    ]
    ratio = pair.time_ratio()
    bounds = MISSING if ratio.low is None else f"{ratio.low - 1:+.1%} to {ratio.high - 1:+.1%}"
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
