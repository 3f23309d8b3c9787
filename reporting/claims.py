"""The papers' claims, each with a fixed criterion, and verdicts on them from measured columns.

A verdict is decided by the 95% interval of the measured quantity (evaluation/intervals.py: paired
over the text, and over seeds where there are several):

- a bound holds if the whole interval is on its side, and fails if the whole interval is beyond it;
- "lower than others", "same order": holds if the intervals of all comparisons are on the right
  side, fails if at least one is on the wrong side. The intervals are not corrected for the number
  of comparisons;
- everything else is not decided, also if the records do not have what an interval needs.

When the criteria were fixed:

- before any run: the bounds of rope and sinusoidal at 16 times the training length, and "cable has
  the lowest perplexity". Also those of dapev2+kerple, sandwich and of receptive fields, before any
  run of these encodings;
- after some of the runs in results/quickstart, before all others: the bounds of alibi, kerple,
  fox, t5 and fire, and all other comparisons;
- after one seed of each: kerple compared with sandwich;
- after all runs in results/: the bound 1 of cable, cable-v1 and dapev2+cable, which is what the
  papers state. It was 1.02 before any run; all measured ratios are below 1. Intervals were added at
  the same time.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.columns import PAPER_ORDER, Column, all_lengths, entry_pairs
from reporting.paper import PAPER_NAMES, PaperTable
from reporting.tables import ACCURACIES, values_on_other_data

# Bounds on the perplexity at 16 times the training length (15 if 16 was not evaluated), relative
# to the perplexity at the training length: encoding, relation, bound, source.
GROWTH_BOUNDS = (
    ("cable", "<", 1, "CABLE, section 5.1"),
    ("cable-nw", "<=", 1.05, "CABLE"),
    ("k-cable", "<=", 1.05, "CABLE"),
    ("alibi", "<=", 1.1, "Press et al., CABLE"),
    ("kerple", "<=", 1.05, "Chi et al."),
    ("kerple-power", "<=", 1.05, "Chi et al."),
    ("fox", "<=", 1.05, "Lin et al."),
    ("rope", ">", 2, "CABLE"),
    ("sinusoidal", ">", 2, "CABLE"),
    ("t5", ">", 2, "CABLE"),
    ("t5-clip", ">", 2, "CABLE"),
    ("fire", ">", 2, "CABLE"),
    ("dapev2+cable", "<", 1, "CABLE, table 2"),
    ("dapev2+kerple", "<=", 1.05, "CABLE"),
    ("cable-v1", "<", 1, "CABLE, version 1, section 5.1"),
    ("k-cable-v1", "<=", 1.05, "CABLE, version 1"),
    ("sandwich", "<=", 1.1, "Chi et al."),
    ("sandwich-smoothed", "<=", 1.1, "Chi et al."),
)
FAR_MULTIPLES = (16, 15)
# Encodings with a lower perplexity than others, at these multiples of the training length; None:
# at all evaluated lengths beyond it. Encoding, rivals, multiples, source.
LOWER_THAN = (
    ("cable", tuple(pe for pe in PAPER_ORDER if pe != "cable"), None, "CABLE"),
    ("cable-nw", ("alibi",), (1, 4, 16), "CABLE"),
    ("k-cable", ("cable",), (1, 4, 16), "CABLE, shallow models"),
    ("cable-v1", ("alibi", "t5", "t5-clip", "rope", "sinusoidal"), None, "CABLE, version 1"),
    ("k-cable-v1", ("cable-v1",), (1, 4, 16), "CABLE, version 1, shallow models"),
    ("cable", ("cable-nw",), (1, 16), "CABLE: the weight g helps"),
    ("dapev2+cable", ("cable", "dapev2+kerple"), (1, 4, 16), "CABLE, table 2"),
    ("dapev2+kerple", ("kerple",), (1, 4, 16), "CABLE, table 2"),
    ("sandwich", ("alibi", "rope", "sinusoidal"), (2, 4), "Chi et al."),
    ("kerple", ("sandwich",), (1, 4, 16), "Chi et al."),
    ("rope+cable", ("rope", "cable"), (1, 16), "not in a paper"),
    ("rope+fox", ("rope", "fox"), (1, 16), "not in a paper"),
)
# nDCG@10 at the longest length relative to the training length (CABLE, table 3).
RETRIEVAL_BOUNDS = (
    ("cable", ">", 1),
    ("alibi", ">", 1),
    ("rope", "<", 0.25),
    ("sinusoidal", "<", 0.25),
)
RETRIEVAL_RIVALS = ("alibi", "rope", "learnable", "sinusoidal")
# Encodings whose receptive field decides how far they extrapolate (Chi et al. 2023).
WINDOWED = ("window", "alibi", "alibi-shift", "alibi-equal")
NO_GROWTH = 1.05  # perplexity ratios up to this count as no growth
MIN_RANK_CORRELATION = 0.7
MIN_STEPS = 50  # runs of fewer steps are tests of the programs and get no verdicts
TIE = 0.005  # printed perplexities that differ by less, relatively, have no order


HOLDS, FAILS, UNDECIDED, NOT_MEASURED = "holds", "fails", "not decided", "not measured"


@dataclass
class Verdict:
    """A claim with what was measured and whether it holds."""

    claim: str
    measured: str
    outcome: str
    """HOLDS, FAILS, UNDECIDED or NOT_MEASURED"""

    def __str__(self):
        parts = [self.claim, self.measured, f"**{self.outcome}**"]
        return ": ".join(part for part in parts if part)


def has_verdicts(record: dict) -> bool:
    """Return whether a record's run was trained for long enough to judge claims on it.

    Runs with 0 steps have the weights of another run, whose steps count, or published weights.
    Older records do not have these steps.
    """
    steps = record.get("step") or record.get("init_steps")
    return steps is None or steps >= MIN_STEPS


def judge_perplexity(columns: list[Column], printed: PaperTable | None = None) -> list[Verdict]:
    """Return verdicts on the encodings in columns and in the paper's table.

    Models that differ in size or training length are judged separately.
    """
    models = {}
    for column in columns:
        model = (column.records[0].get("size"), column.trained_at)
        models.setdefault(model, []).append(column)
    verdicts = []
    for (size, trained_at), group in models.items():
        for verdict in _judge_model(group, trained_at, printed):
            if len(models) > 1:
                verdict.claim = f"{size}, trained with {trained_at:,} tokens: {verdict.claim}"
            verdicts.append(verdict)
    return verdicts + [*_judge_all_training_lengths(columns)]


def _judge_model(
    columns: list[Column], trained_at: int, printed: PaperTable | None
) -> Iterator[Verdict]:
    results = _Results(columns, trained_at)
    claimed = {column.pe for column in columns}
    if printed:
        claimed |= {*printed.numbers} - {*PAPER_NAMES.values()}
    for pe, relation, bound, source in GROWTH_BOUNDS:
        if pe in claimed:
            yield _judge_growth(results, pe, relation, bound, source)
    for pe, rivals, multiples, source in LOWER_THAN:
        rivals = [rival for rival in rivals if rival in results.encodings]
        if pe in claimed and rivals:
            yield _judge_lower(results, pe, rivals, multiples, source)
    if printed:
        yield from _judge_order(results, printed)


class _Results:
    """Perplexities of one model size and training length, by encoding and multiple of the latter.

    Of several columns of an encoding the first counts.
    """

    def __init__(self, columns: list[Column], trained_at: int):
        self.encodings = {column.pe: None for column in columns}
        self.trained_at = trained_at
        self.columns = {}  # (encoding, multiple) -> column
        for column in reversed(columns):
            for length in column.lengths():
                if column.values(length):
                    self.columns[column.pe, length / trained_at] = column

    @property
    def far(self) -> int:
        """The multiple of FAR_MULTIPLES that was evaluated."""
        measured = {multiple for _, multiple in self.columns}
        for multiple in FAR_MULTIPLES:
            if multiple in measured:
                return multiple
        return FAR_MULTIPLES[0]

    def beyond(self) -> list[int]:
        """Return the whole multiples beyond the training length, ascending."""
        multiples = {multiple for _, multiple in self.columns}
        return sorted(int(m) for m in multiples if m > 1 and m == int(m))

    def has(self, *keys: tuple[str, float]) -> bool:
        return all(key in self.columns for key in keys)

    def ratio(self, over: tuple[str, float], under: tuple[str, float]) -> Interval:
        """Return the ratio of two perplexities; arguments: (encoding, multiple)."""
        lengths = [round(multiple * self.trained_at) for _, multiple in (over, under)]
        return _ratio(self.columns[over], lengths[0], self.columns[under], lengths[1])


def _ratio(over: Column, over_length: int, under: Column, under_length: int) -> Interval:
    return intervals.perplexity_ratio(entry_pairs(over, over_length, under, under_length))


def _printed(interval: Interval, digits: int = 3) -> str:
    """Return an estimate with its interval and the number of seeds, if there are several."""
    text = f"{interval.estimate:.{digits}f}"
    if interval.low is None:
        return f"{text} (no interval)"
    notes = [f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"]
    if interval.seeds > 1:
        notes.append(f"{interval.seeds} seeds")
    if not interval.paired:
        notes.append("unpaired")
    return f"{text} ({'; '.join(notes)})"


def _judge_bound(interval: Interval, relation: str, bound: float) -> str:
    """Return the outcome of "quantity relation bound"; relation: <, <=, > or >=."""
    below, above = interval.below(bound), interval.above(bound)
    if not below and not above:
        return UNDECIDED
    return HOLDS if below == relation.startswith("<") else FAILS


def _judge_all(comparisons: list[Interval], bound: float = 1) -> tuple[str, str]:
    """Return the outcome of "all are above the bound", and how many are."""
    agree = sum(interval.above(bound) for interval in comparisons)
    disagree = sum(interval.below(bound) for interval in comparisons)
    undecided = len(comparisons) - agree - disagree
    counts = f"{agree} of {len(comparisons)} agree"
    if disagree:
        counts += f", {disagree} disagree{'' if disagree > 1 else 's'}"
    if undecided:
        counts += f", {undecided} {'are' if undecided > 1 else 'is'} not decided"
    outcome = FAILS if disagree else UNDECIDED if undecided else HOLDS
    return outcome, counts


def _judge_growth(results: _Results, pe: str, relation: str, bound: float, source: str) -> Verdict:
    far = results.far
    claim = f"{pe}: perplexity at {far}x / perplexity at 1x {relation} {bound} ({source})"
    if not results.has((pe, far), (pe, 1)):
        return Verdict(claim, "", NOT_MEASURED)
    ratio = results.ratio((pe, far), (pe, 1))
    return Verdict(claim, _printed(ratio), _judge_bound(ratio, relation, bound))


def _judge_lower(
    results: _Results, pe: str, rivals: list[str], multiples: tuple[int, ...] | None, source: str
) -> Verdict:
    if multiples is None:
        compared = results.beyond()
        where = "every length beyond the training length"
    else:
        compared = sorted({results.far if multiple == 16 else multiple for multiple in multiples})
        where = ", ".join(f"{multiple}x" for multiple in compared)
    claim = f"{pe}: perplexity lower than {', '.join(rivals)} at {where} ({source})"
    ratios = {}
    for rival in rivals:
        for multiple in compared:
            if results.has((rival, multiple), (pe, multiple)):
                ratio = results.ratio((rival, multiple), (pe, multiple))
                ratios[f"{rival} at {multiple}x"] = ratio
    return _lowest_verdict(claim, "smallest ratio of another encoding to it", ratios)


def _lowest_verdict(claim: str, what: str, ratios: dict[str, Interval]) -> Verdict:
    """Return the verdict that all ratios are above 1; ratios: by what is compared."""
    if not ratios:
        return Verdict(claim, "", NOT_MEASURED)
    smallest = min(ratios, key=lambda name: ratios[name].estimate)
    outcome, counts = _judge_all([*ratios.values()])
    measured = f"{what}: {_printed(ratios[smallest])}, {smallest}"
    if outcome != HOLDS and len(ratios) > 1:
        measured += f"; {counts}"
    return Verdict(claim, measured, outcome)


def _judge_order(results: _Results, printed: PaperTable) -> Iterator[Verdict]:
    """Yield whether the encodings have the paper's order, at each multiple of its training length.

    Pairs that the paper prints as ties do not count.
    """
    for context in printed.contexts():
        multiple = context / printed.trained_at
        paper_values = {}
        for pe in results.encodings:
            if results.has((pe, multiple)) and (value := printed.value(pe, context)):
                paper_values[pe] = value
        ratios = []
        for a in paper_values:
            for b in paper_values:
                if paper_values[b] / paper_values[a] > 1 + TIE:
                    ratios.append(results.ratio((b, multiple), (a, multiple)))
        claim = f"at {multiple:g}x: same order of encodings as {printed.source}"
        if ratios:
            outcome, counts = _judge_all(ratios)
            counts = counts.replace(" agree", " pairs agree", 1)
            yield Verdict(claim, counts, outcome)
        else:
            yield Verdict(claim, "", NOT_MEASURED)


def _judge_all_training_lengths(columns: list[Column]) -> Iterator[Verdict]:
    """Yield the verdict on cable-v1 and sinusoidal, if both were trained at several lengths.

    Source: CABLE, version 1, figure 5.
    """
    cable_columns = [column for column in columns if column.pe == "cable-v1"]
    sinusoidal_columns = [column for column in columns if column.pe == "sinusoidal"]
    for group in (cable_columns, sinusoidal_columns):
        if len({column.trained_at for column in group}) < 2:
            return
    ratios = {}
    for length in all_lengths(columns):
        for cable in cable_columns:
            for sinusoidal in sinusoidal_columns:
                if cable.values(length) and sinusoidal.values(length):
                    name = f"{sinusoidal.label} and {cable.label} at {length:,} tokens"
                    ratios[name] = _ratio(sinusoidal, length, cable, length)
    claim = (
        "cable-v1: perplexity lower than sinusoidal at every context, for every pair of training "
        "lengths (CABLE, version 1)"
    )
    yield _lowest_verdict(claim, "smallest ratio of sinusoidal to it", ratios)


def judge_retrieval(columns: list[Column]) -> list[Verdict]:
    """Return verdicts on the nDCG@10 of encoders beyond the training length (CABLE, table 3).

    Of several columns of an encoding the first counts. The bootstrap draws queries.
    """
    first = {column.pe: column for column in reversed(columns)}
    trained_at = columns[0].trained_at
    beyond = [length for length in all_lengths(columns) if length > trained_at]
    if not beyond:
        return []
    verdicts = []
    for pe, relation, bound in RETRIEVAL_BOUNDS:
        if pe not in first:
            continue
        claim = (
            f"{pe}: nDCG@10 at {beyond[-1] / trained_at:g}x / nDCG@10 at 1x {relation} {bound} "
            "(CABLE, table 3)"
        )
        column = first[pe]
        if column.mean(trained_at) and column.mean(beyond[-1]) is not None:
            pairs = entry_pairs(column, beyond[-1], column, trained_at)
            ratio = _compare_scores(pairs, intervals.score_ratio)
            if ratio is None:
                ratio = Interval(column.mean(beyond[-1]) / column.mean(trained_at))
            verdicts.append(Verdict(claim, _printed(ratio), _judge_bound(ratio, relation, bound)))
        else:
            verdicts.append(Verdict(claim, "", NOT_MEASURED))
    rivals = [pe for pe in RETRIEVAL_RIVALS if pe in first]
    if "cable" in first and rivals:
        verdicts.append(_judge_best_retrieval(first, rivals, beyond))
    return verdicts


def _compare_scores(pairs: list[tuple[dict, dict]], compare) -> Interval | None:
    """Return the comparison of the scores of queries, or None if an entry has none."""
    if not all("by_question" in entry for pair in pairs for entry in pair):
        return None
    return compare([tuple(np.array(entry["by_question"]) for entry in pair) for pair in pairs])


def _judge_best_retrieval(
    first: dict[str, Column], rivals: list[str], lengths: list[int]
) -> Verdict:
    claim = (
        f"cable: nDCG@10 higher than {', '.join(rivals)} at every length beyond the training "
        "length (CABLE, table 3)"
    )
    margins = {}
    for length in lengths:
        cable = first["cable"].mean(length)
        for pe in rivals:
            rival = first[pe].mean(length)
            if cable is None or rival is None:
                continue
            pairs = entry_pairs(first["cable"], length, first[pe], length)
            margin = _compare_scores(pairs, intervals.score_difference)
            margins[f"{pe} at {length:,} tokens"] = margin or Interval(cable - rival)
    if not margins:
        return Verdict(claim, "", NOT_MEASURED)
    smallest = min(margins, key=lambda name: margins[name].estimate)
    outcome, counts = _judge_all([*margins.values()], bound=0)
    measured = f"smallest margin {_printed(margins[smallest], 2)}, {smallest}"
    if outcome != HOLDS and len(margins) > 1:
        measured += f"; {counts}"
    return Verdict(claim, measured, outcome)


def judge_receptive_fields(
    columns: list[Column], perplexities: list[list[Column]]
) -> list[Verdict]:
    """Return verdicts on the receptive fields of sliding windows and ALiBi slopes.

    A sliding window extrapolates if and only if the training length covers its receptive field,
    and ALiBi's slopes extrapolate worse, the longer their receptive field is. Source: Chi et al.
    2023, section 5.

    columns: of receptive fields; perplexities: columns of perplexity, one list per data set and
    protocol. The first column of the same model that was evaluated far enough counts.
    """
    verdicts = []
    measured = []  # (receptive field in training lengths, pairs of entries: perplexity growth)
    for column in columns:
        name = column.pe.partition(":")[0]
        lengths = sorted(map(int, column.records[0]["lengths"]))
        lengths = [length for length in lengths if column.values(length)]
        if name not in WINDOWED or "+" in column.pe or not lengths:
            continue
        field = _receptive_field(column, lengths[-1])
        far, pairs = _growth(column, perplexities)
        if pairs:
            measured.append((field, pairs))
        if name == "window":
            verdicts.append(_judge_window(column.label, field, far, pairs))
    if len(measured) > 3:
        verdicts.append(_judge_rank_correlation(measured))
    return verdicts


def _receptive_field(column: Column, length: int) -> Interval:
    """Return the receptive field at a context length, in training lengths."""
    entries = [record["lengths"][str(length)] for record in column.records]
    errors = [entry.get("receptive_field_se") for entry in entries]
    windows = column.records[0]["protocol"]["windows"]
    interval = intervals.mean_interval(column.values(length), errors, windows)
    return interval.scaled(1 / column.trained_at)


def _growth(
    column: Column, perplexities: list[list[Column]]
) -> tuple[int, list[tuple[dict, dict]]]:
    """Return (multiple, entries there and at 1x for each seed) of a column's model; [] if none.

    The multiple is the first of FAR_MULTIPLES that was evaluated.
    """
    for group in perplexities:
        for other in group:
            if _model(other) != _model(column) or not other.values(column.trained_at):
                continue
            for far in FAR_MULTIPLES:
                length = far * column.trained_at
                if other.values(length):
                    return far, entry_pairs(other, length, other, column.trained_at)
    return FAR_MULTIPLES[0], []


def _model(column: Column) -> tuple:
    names = ("pe", "size", "block_size", "recipe", "cache_window")
    return tuple(column.records[0].get(name) for name in names)


def _judge_window(label: str, field: Interval, far: int, pairs: list[tuple[dict, dict]]) -> Verdict:
    covered = field.estimate <= 1
    relation, length = ("<=", "shorter") if covered else (">", "longer")
    claim = (
        f"{label}: perplexity at {far}x / perplexity at 1x {relation} {NO_GROWTH}, because its "
        f"receptive field is {length} than the training length (Chi et al.)"
    )
    if not pairs:
        return Verdict(claim, "", NOT_MEASURED)
    growth = intervals.perplexity_ratio(pairs)
    outcome = _judge_bound(growth, relation, NO_GROWTH)
    if not field.below(1) and not field.above(1):
        outcome = UNDECIDED
    measured = f"{_printed(growth)}, receptive field {_printed(field, 2)} training lengths"
    return Verdict(claim, measured, outcome)


def _judge_rank_correlation(
    measured: list[tuple[Interval, list[tuple[dict, dict]]]],
) -> Verdict:
    """Return the verdict on fields and growths of several models.

    The interval covers the errors of the measured values, not the choice of models and seeds: the
    growths are drawn by the bootstrap, the fields from normal distributions.
    """
    fields = np.array([field.estimate for field, _ in measured])
    growths = [intervals.perplexity_ratio(pairs).estimate for _, pairs in measured]
    correlation = Interval(float(_rank_correlations(fields[None], np.array(growths)[None])[0]))
    draws = [intervals.log_ratio_draws(pairs) for _, pairs in measured]
    if all(field.low is not None for field, _ in measured) and None not in draws:
        errors = [field.high - field.low for field, _ in measured]
        errors = np.array(errors) / (2 * intervals.NORMAL_QUANTILE)
        noise = np.random.default_rng(0).standard_normal((intervals.DRAWS, len(fields)))
        log_growths = np.stack([drawn for drawn, _ in draws], 1)
        drawn = _rank_correlations(fields + noise * errors, log_growths)
        correlation = Interval(correlation.estimate, *np.percentile(drawn, [2.5, 97.5]))
    return Verdict(
        "perplexity grows more for sliding windows and ALiBi slopes with a longer receptive "
        f"field: rank correlation >= {MIN_RANK_CORRELATION} (Chi et al.)",
        f"{_printed(correlation, 2)} over {len(measured)} models",
        _judge_bound(correlation, ">=", MIN_RANK_CORRELATION),
    )


def _rank_correlations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the rank correlation of each row of two arrays (draws, models), (draws,).

    Ties have their mean rank. NaN for rows with NaN, or in which all values of an array are equal.
    """
    with np.errstate(invalid="ignore"):
        # How many values are lower minus how many are higher: 2 * (rank - mean of the ranks).
        ranks = [
            np.sign(values[:, :, None] - values[:, None, :]).sum(2) for values in (first, second)
        ]
        norms = np.sqrt((ranks[0] ** 2).sum(1) * (ranks[1] ** 2).sum(1))
        return (ranks[0] * ranks[1]).sum(1) / norms


def judge_generalization(records: list[dict]) -> list[Verdict]:
    """Return whether cable is the best on other data, for every size and measure.

    records: of eval_hellaswag.py and eval_extrapolation.py, see tables.values_on_other_data.
    Accuracies have standard errors only, so that their comparisons are not paired. Source: CABLE,
    version 1, section 5.3.
    """
    by_measure = {}  # {measure: {size: {encoding: records}}}
    for record in records:
        for measure in values_on_other_data(record):
            by_encoding = by_measure.setdefault(measure, {}).setdefault(record["size"], {})
            by_encoding.setdefault(record["pe"], []).append(record)
    verdicts = []
    for measure in sorted(by_measure, key=lambda name: name not in ACCURACIES):
        for size, by_encoding in sorted(by_measure[measure].items()):
            verdicts += _judge_best_elsewhere(measure, size, by_encoding)
    return verdicts


def _judge_best_elsewhere(
    measure: str, size: str, by_encoding: dict[str, list[dict]]
) -> Iterator[Verdict]:
    judged = [pe for pe in ("cable", "cable-v1") if pe in by_encoding]
    rivals = [pe for pe in by_encoding if pe not in judged]
    if not rivals:
        return
    best = f"highest {measure}" if measure in ACCURACIES else f"lowest perplexity on {measure}"
    means = {}
    for pe, records in by_encoding.items():
        values = [values_on_other_data(record)[measure] for record in records]
        means[pe] = statistics.mean(values)
    rival = (max if measure in ACCURACIES else min)(rivals, key=means.get)
    for pe in judged:
        compared = {
            other: _compare_elsewhere(measure, by_encoding[pe], by_encoding[other])
            for other in rivals
        }
        # Accuracies: differences, ours minus the rival's. Perplexities: ratios, rival's to ours.
        bound, what = (0, "difference") if measure in ACCURACIES else (1, "ratio")
        outcome, counts = _judge_all([*compared.values()], bound)
        measured = f"{means[pe]:.2f}, next {rival} {means[rival]:.2f}, {what} "
        measured += _printed(compared[rival], 2 if measure in ACCURACIES else 3)
        if outcome != HOLDS and len(compared) > 1:
            measured += f"; {counts}"
        yield Verdict(f"{size}: {pe} has the {best} (CABLE, version 1)", measured, outcome)


def _compare_elsewhere(measure: str, ours: list[dict], theirs: list[dict]) -> Interval:
    """Return ours minus theirs for an accuracy in percent, theirs over ours for a perplexity."""
    by_seed = {record.get("seed"): record for record in theirs}
    pairs = [(a, by_seed[seed]) for a in ours if (seed := a.get("seed")) in by_seed]
    pairs = pairs or [*zip(ours, theirs, strict=False)]
    if measure in ACCURACIES:
        values = [tuple(_percent_and_error(record, measure) for record in pair) for pair in pairs]
        return intervals.unpaired_difference(values)
    texts = [[_text_of(record) for record in pair] for pair in pairs]
    entries = [(_shortest_entry(b), _shortest_entry(a)) for a, b in pairs]
    return intervals.perplexity_ratio(entries, paired=all(a == b for a, b in texts))


def _percent_and_error(record: dict, measure: str) -> tuple[float, float | None]:
    key = ACCURACIES[measure]
    error = record.get(f"{key}_se")
    return 100 * record[key], None if error is None else 100 * error


def _text_of(record: dict) -> tuple:
    """Return what two records of perplexity must share to be compared block by block."""
    return record["data"], record.get("protocol"), min(record["lengths"], key=int)


def _shortest_entry(record: dict) -> dict:
    return record["lengths"][min(record["lengths"], key=int)]
