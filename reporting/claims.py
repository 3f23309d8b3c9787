"""The papers' claims, each with a fixed criterion, and verdicts on them from measured columns.

When the criteria were fixed:

- before any run: the bounds of cable, rope and sinusoidal at 16 times the training length, and
  "cable has the lowest perplexity". The bound of cable is stricter than the 1.05 that the papers'
  tables support. Also those of dapev2, sandwich, cable-v1 and of receptive fields, before any run
  of these encodings;
- after some of the runs in results/quickstart, before all others: the bounds of alibi, kerple,
  fox, t5 and fire, and all other comparisons;
- after one seed of each: kerple compared with sandwich.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from reporting.columns import PAPER_ORDER, Column, all_lengths
from reporting.paper import PAPER_NAMES, PaperTable

# Bounds on the perplexity at 16 times the training length (15 if 16 was not evaluated), relative
# to the perplexity at the training length: encoding, relation, bound, source.
GROWTH_BOUNDS = (
    ("cable", "<=", 1.02, "CABLE"),
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
    ("dapev2+cable", "<=", 1.02, "CABLE"),
    ("dapev2+kerple", "<=", 1.05, "CABLE"),
    ("cable-v1", "<=", 1.02, "CABLE, version 1"),
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
TIE = 0.005  # printed perplexities that differ by less, relatively, have no order


@dataclass
class Verdict:
    """A claim with what was measured and whether it holds."""

    claim: str
    measured: str
    holds: bool | None
    """None: not measured"""

    def __str__(self):
        word = {None: "not measured", True: "holds", False: "fails"}[self.holds]
        parts = [self.claim, self.measured, f"**{word}**"]
        return ": ".join(part for part in parts if part)


def judge_perplexity(columns: list[Column], printed: PaperTable | None = None) -> list[Verdict]:
    """Return verdicts on the encodings in columns and in the paper's table.

    Seeds count by their mean perplexity. Models that differ in size or training length are judged
    separately.
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
        yield from _judge_order(columns, trained_at, printed)


class _Results:
    """Perplexities of one model size and training length, by encoding and multiple of the latter.

    Of several columns of an encoding the first counts.
    """

    def __init__(self, columns: list[Column], trained_at: int):
        self.encodings = {column.pe for column in columns}
        self.mean = {}  # (encoding, multiple) -> mean over seeds
        self.by_seed = {}  # (encoding, multiple) -> {seed: perplexity}
        for column in reversed(columns):
            for length in column.lengths():
                values = column.values(length)
                if values and length % trained_at == 0:
                    key = (column.pe, length // trained_at)
                    self.mean[key] = sum(values) / len(values)
                    self.by_seed[key] = column.values_by_seed(length)

    @property
    def far(self) -> int:
        """The multiple of FAR_MULTIPLES that was evaluated."""
        measured = {multiple for _, multiple in self.mean}
        for multiple in FAR_MULTIPLES:
            if multiple in measured:
                return multiple
        return FAR_MULTIPLES[0]

    def beyond(self) -> list[int]:
        """Return the multiples beyond the training length, ascending."""
        return sorted({multiple for _, multiple in self.mean if multiple > 1})

    def has(self, *keys: tuple[str, int]) -> bool:
        return all(key in self.mean for key in keys)

    def ratio(self, over: tuple[str, int], under: tuple[str, int]) -> tuple[float, str]:
        """Return the ratio of two perplexities, and its printed form with the range over seeds."""
        ratio = self.mean[over] / self.mean[under]
        seeds = self.by_seed[over].keys() & self.by_seed[under].keys()
        ratios = [self.by_seed[over][seed] / self.by_seed[under][seed] for seed in seeds]
        text = f"{ratio:.3f}"
        if len(ratios) > 1:
            text += f" ({min(ratios):.3f} to {max(ratios):.3f} by seed)"
        return ratio, text


def _judge_growth(results: _Results, pe: str, relation: str, bound: float, source: str) -> Verdict:
    far = results.far
    claim = f"{pe}: perplexity at {far}x / perplexity at 1x {relation} {bound} ({source})"
    if not results.has((pe, far), (pe, 1)):
        return Verdict(claim, "", None)
    ratio, measured = results.ratio((pe, far), (pe, 1))
    holds = ratio <= bound if relation == "<=" else ratio > bound
    return Verdict(claim, measured, holds)


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
    ratios = []
    for rival in rivals:
        for multiple in compared:
            if results.has((rival, multiple), (pe, multiple)):
                ratios.append(results.ratio((rival, multiple), (pe, multiple)))
    if not ratios:
        return Verdict(claim, "", None)
    smallest, text = min(ratios)
    return Verdict(claim, f"smallest ratio of another encoding to it: {text}", smallest > 1)


def _judge_order(columns: list[Column], trained_at: int, printed: PaperTable) -> Iterator[Verdict]:
    """Yield whether the encodings have the paper's order, at each multiple of its training length.

    Pairs that the paper prints as ties do not count.
    """
    covered = [column for column in columns if printed.covers(column.pe)]
    for context in printed.contexts():
        measured_means = {}
        for column in covered:
            values = column.values(context * trained_at / printed.trained_at)
            if values:
                measured_means[column.pe] = sum(values) / len(values)
        paper_values = {pe: value for pe in measured_means if (value := printed.value(pe, context))}
        pairs = []  # (lower, higher) in the paper
        for a in paper_values:
            pairs += [(a, b) for b in paper_values if paper_values[b] / paper_values[a] > 1 + TIE]
        agreeing = sum(measured_means[a] < measured_means[b] for a, b in pairs)
        claim = f"at {context / printed.trained_at:g}x: same order of encodings as {printed.source}"
        if pairs:
            measured = f"{agreeing} of {len(pairs)} pairs agree"
            yield Verdict(claim, measured, agreeing == len(pairs))
        else:
            yield Verdict(claim, "", None)


def _judge_all_training_lengths(columns: list[Column]) -> Iterator[Verdict]:
    """Yield the verdict on cable-v1 and sinusoidal, if both were trained at several lengths.

    Source: CABLE, version 1, figure 5.
    """
    cable_columns = [column for column in columns if column.pe == "cable-v1"]
    sinusoidal_columns = [column for column in columns if column.pe == "sinusoidal"]
    for group in (cable_columns, sinusoidal_columns):
        if len({column.trained_at for column in group}) < 2:
            return
    ratios = []
    for length in all_lengths(columns):
        cable_means = [mean for column in cable_columns if (mean := column.mean(length))]
        sinusoidal_means = [mean for column in sinusoidal_columns if (mean := column.mean(length))]
        if cable_means and sinusoidal_means:
            ratios.append(min(sinusoidal_means) / max(cable_means))
    claim = (
        "cable-v1: perplexity lower than sinusoidal at every context, for every pair of training "
        "lengths (CABLE, version 1)"
    )
    if ratios:
        measured = f"smallest ratio of sinusoidal to it: {min(ratios):.3f}"
        yield Verdict(claim, measured, min(ratios) > 1)
    else:
        yield Verdict(claim, "", None)


def judge_retrieval(columns: list[Column]) -> list[Verdict]:
    """Return verdicts on the nDCG@10 of encoders beyond the training length (CABLE, table 3).

    Of several columns of an encoding the first counts.
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
        near = first[pe].mean(trained_at)
        far = first[pe].mean(beyond[-1])
        if near and far is not None:
            ratio = far / near
            holds = ratio > bound if relation == ">" else ratio < bound
            verdicts.append(Verdict(claim, f"{ratio:.3f}", holds))
        else:
            verdicts.append(Verdict(claim, "", None))
    rivals = [pe for pe in RETRIEVAL_RIVALS if pe in first]
    if "cable" in first and rivals:
        verdicts.append(_judge_best_retrieval(first, rivals, beyond))
    return verdicts


def _judge_best_retrieval(
    first: dict[str, Column], rivals: list[str], lengths: list[int]
) -> Verdict:
    claim = (
        f"cable: nDCG@10 higher than {', '.join(rivals)} at every length beyond the training "
        "length (CABLE, table 3)"
    )
    margins = []
    for length in lengths:
        cable = first["cable"].mean(length)
        for pe in rivals:
            rival = first[pe].mean(length)
            if cable is not None and rival is not None:
                margins.append(cable - rival)
    if not margins:
        return Verdict(claim, "", None)
    return Verdict(claim, f"smallest margin {min(margins):.2f}", min(margins) > 0)


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
    measured = []  # (receptive field in training lengths, growth of perplexity)
    for column in columns:
        name = column.pe.partition(":")[0]
        means = [column.mean(length) for length in _record_lengths(column)]
        fields = [mean for mean in means if mean is not None]
        if name not in WINDOWED or "+" in column.pe or not fields:
            continue
        field = fields[-1] / column.trained_at
        far, growth = _growth(column, perplexities)
        if growth is not None:
            measured.append((field, growth))
        if name == "window":
            verdicts.append(_judge_window(column.label, field, far, growth))
    if len(measured) > 3:
        verdicts.append(_judge_rank_correlation(measured))
    return verdicts


def _record_lengths(column: Column) -> list[int]:
    """Return the lengths of the column's first record, ascending."""
    return sorted(map(int, column.records[0]["lengths"]))


def _growth(column: Column, perplexities: list[list[Column]]) -> tuple[int, float | None]:
    """Return (multiple, perplexity there / perplexity at 1x) of a column's model, or None for it.

    The multiple is the first of FAR_MULTIPLES that was evaluated.
    """
    for group in perplexities:
        for other in group:
            base = other.mean(column.trained_at)
            if _model(other) != _model(column) or not base:
                continue
            for far in FAR_MULTIPLES:
                value = other.mean(far * column.trained_at)
                if value:
                    return far, value / base
    return FAR_MULTIPLES[0], None


def _model(column: Column) -> tuple:
    names = ("pe", "size", "block_size", "recipe", "cache_window")
    return tuple(column.records[0].get(name) for name in names)


def _judge_window(label: str, field: float, far: int, growth: float | None) -> Verdict:
    covered = field <= 1
    relation, length = ("<=", "shorter") if covered else (">", "longer")
    claim = (
        f"{label}: perplexity at {far}x / perplexity at 1x {relation} {NO_GROWTH}, because its "
        f"receptive field is {length} than the training length (Chi et al.)"
    )
    if growth is None:
        return Verdict(claim, "", None)
    measured = f"{growth:.3f}, receptive field {field:.2f} training lengths"
    return Verdict(claim, measured, (growth <= NO_GROWTH) == covered)


def _judge_rank_correlation(measured: list[tuple[float, float]]) -> Verdict:
    ranks = np.argsort(np.argsort(measured, axis=0), axis=0)
    correlation = float(np.corrcoef(ranks.T)[0, 1])
    return Verdict(
        "perplexity grows more for sliding windows and ALiBi slopes with a longer receptive "
        f"field: rank correlation >= {MIN_RANK_CORRELATION} (Chi et al.)",
        f"{correlation:.2f} over {len(measured)} models",
        correlation >= MIN_RANK_CORRELATION,
    )


def judge_generalization(results: dict[str, dict]) -> list[Verdict]:
    """Return whether cable is the best on other data, for every size and measure.

    results: from tables.results_on_other_data. Source: CABLE, version 1, section 5.3.
    """
    verdicts = []
    for measure, by_model in results.items():
        for size in sorted({size for size, _ in by_model}):
            by_encoding = {pe: value for (other, pe), value in by_model.items() if other == size}
            verdicts += _judge_best_elsewhere(measure, size, by_encoding)
    return verdicts


def _judge_best_elsewhere(
    measure: str, size: str, by_encoding: dict[str, float]
) -> Iterator[Verdict]:
    judged = [pe for pe in ("cable", "cable-v1") if pe in by_encoding]
    rivals = [pe for pe in by_encoding if pe not in judged]
    if not rivals:
        return
    is_accuracy = measure in ("HellaSwag acc", "acc_norm")
    best = f"highest {measure}" if is_accuracy else f"lowest perplexity on {measure}"
    rival = (max if is_accuracy else min)(rivals, key=by_encoding.get)
    for pe in judged:
        value = by_encoding[pe]
        other = by_encoding[rival]
        yield Verdict(
            f"{size}: {pe} has the {best} (CABLE, version 1)",
            f"{value:.2f}, next {rival} {other:.2f}",
            value > other if is_accuracy else value < other,
        )
