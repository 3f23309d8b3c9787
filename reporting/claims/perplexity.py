"""Claims on perplexity by context length."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.verdicts import (
    CABLE,
    CABLE_V1,
    CLAIMED_AS,
    FAR_MULTIPLES,
    NO_GROWTH,
    NO_PAPER,
    OTHER_ENCODING,
    OURS,
    Verdict,
    is_stated_for,
    judge_all,
    judge_bound,
    judge_lowest,
    printed_interval,
)
from reporting.columns import PAPER_ORDER, Column, dataset_of, entry_pairs
from reporting.paper import SANDWICH, PaperTable, has_same_targets

FAR = FAR_MULTIPLES[0]


class GrowthBound(NamedTuple):
    """A bound on the perplexity at a multiple of the training length, relative to that at 1x."""

    pe: str
    multiple: int
    """of the training length; FAR: 15 if 16 was not evaluated"""
    relation: str
    """<, <=, > or >="""
    bound: float
    paper: str
    where: str


class LowerThan(NamedTuple):
    """An encoding with a lower perplexity than others."""

    pe: str
    rivals: tuple[str, ...]
    """encodings, or ALIBI_SLOPES"""
    multiples: tuple[int, ...] | str
    """multiples of the training length, or BEYOND, FROM_TRAINING or EVERY"""
    paper: str
    where: str


ALIBI_SLOPES = "alibi-shift with scaled slopes"  # an encoding: see `_measured_encoding`
SANDWICH_LENGTH = 512  # training length of the Sandwich paper
# The papers print directions ("sharp decline") and tables, but few bounds. OURS: the bound between
# the two is not printed.
GROWTH_BOUNDS = (
    GrowthBound("cable", FAR, "<", 1, CABLE, "section 5.1"),
    GrowthBound("cable-nw", FAR, "<", 1, CABLE, "table 1"),
    GrowthBound("k-cable", FAR, "<=", 1.05, CABLE, "figure 5" + OURS),
    GrowthBound("alibi", FAR, "<=", 1.1, CABLE, "section 5.1" + OURS),
    GrowthBound("alibi", FAR, ">", 1, SANDWICH, "section 4.4"),
    GrowthBound(ALIBI_SLOPES, FAR, ">", 1, SANDWICH, "section 4.4"),
    GrowthBound("kerple", FAR, "<", 1, SANDWICH, "table 3"),
    GrowthBound("kerple-power", FAR, "<=", 1.05, "Chi et al. 2022", "our bound"),
    GrowthBound("fox", FAR, "<=", 1.05, "Lin et al. 2025", "our bound"),
    GrowthBound("rope", FAR, ">", 2, CABLE, "section 5.1" + OURS),
    GrowthBound("sinusoidal", FAR, ">", 2, CABLE, "section 5.1" + OURS),
    GrowthBound("t5", FAR, ">", 2, CABLE, "section 5.1" + OURS),
    GrowthBound("t5-clip", FAR, ">", 2, CABLE, "section 5.1" + OURS),
    GrowthBound("fire", FAR, ">", 2, CABLE, "table 1" + OURS),
    GrowthBound("dapev2+cable", FAR, "<", 1, CABLE, "table 2"),
    GrowthBound("dapev2+kerple", FAR, "<", 1, CABLE, "table 2"),
    GrowthBound("cable-v1", FAR, "<", 1, CABLE_V1, "section 5.1"),
    GrowthBound("k-cable-v1", FAR, "<=", 1.05, CABLE_V1, "figure 6" + OURS),
    GrowthBound("sandwich", 2, "<", 1, SANDWICH, "section 6.2"),
    GrowthBound("sandwich", FAR, "<=", 1.1, SANDWICH, "table 3" + OURS),
    GrowthBound("sandwich-smoothed", FAR, "<=", 1.1, SANDWICH, "table 3" + OURS),
)
# Bounds that the CABLE paper states for FineWeb-Edu, as in GROWTH_BOUNDS. They are not judged on
# other data, nor for tiny: its tables of WikiText-103, and of tiny (table 4), have no such growth.
FINEWEB_EDU_BOUNDS = (
    GrowthBound("kerple", FAR, ">", 1.5, CABLE, "section 5.3" + OURS),
    GrowthBound("alibi", 2, "<=", NO_GROWTH, CABLE, "section 5.1" + OURS),
    GrowthBound("alibi", FAR, ">", 1, CABLE, "section 5.1"),
    GrowthBound("alibi", 2, "<=", NO_GROWTH, CABLE_V1, "section 5.1" + OURS),
    GrowthBound("alibi", FAR, ">", 1, CABLE_V1, "section 5.1"),
)
# Multiples of the training length at which encodings are compared, in addition to tuples of them.
BEYOND = "every length beyond the training length"
FROM_TRAINING = "every length from the training length on"
EVERY = "every length"
# Sandwich's "smaller and larger" dimensions: the text names none, and we did not read the legend of
# figure 10. 128 is the default.
SANDWICH_DIMENSIONS = tuple(f"sandwich:dimension={dimension}" for dimension in (32, 64, 256, 512))
# The other encodings of the CABLE paper's tables: versions 2 and 3, and version 1.
CABLE_RIVALS = tuple(pe for pe in PAPER_ORDER if pe != "cable")
CABLE_V1_RIVALS = ("alibi", "t5", "t5-clip", "rope", "sinusoidal")
# ALiBi's slopes fit the training length in the Sandwich paper, so at others they are scaled, too.
SANDWICH_RIVALS = ("alibi", ALIBI_SLOPES)
LOWER_THAN = (
    LowerThan("cable", CABLE_RIVALS, BEYOND, CABLE, "section 5.1"),
    LowerThan("cable-nw", ("alibi",), (4, FAR), CABLE, "section 5.1"),
    LowerThan("k-cable", ("cable",), FROM_TRAINING, CABLE, "section 5.6"),
    LowerThan("cable-v1", CABLE_V1_RIVALS, BEYOND, CABLE_V1, "section 5.1"),
    LowerThan("k-cable-v1", ("cable-v1",), FROM_TRAINING, CABLE_V1, "section 5.4"),
    LowerThan("cable", ("cable-nw",), FROM_TRAINING, CABLE, "section 5.1"),
    LowerThan("kerple", ("kerple-power",), FROM_TRAINING, CABLE, "section 4.3"),
    LowerThan("cable", ("kerple",), FROM_TRAINING, CABLE, "section 5.3"),
    LowerThan("dapev2+cable", ("cable", "dapev2+kerple"), FROM_TRAINING, CABLE, "section 5.3"),
    LowerThan("dapev2+kerple", ("kerple",), FROM_TRAINING, CABLE, "section 5.3"),
    LowerThan("sandwich", ("rope", "sinusoidal"), BEYOND, SANDWICH, "section 6.2"),
    LowerThan("sandwich", SANDWICH_RIVALS, (2, 4), SANDWICH, "section 6.2"),
    LowerThan("kerple", ("sandwich",), FROM_TRAINING, SANDWICH, "section 6.2"),
    LowerThan("sandwich", SANDWICH_DIMENSIONS, FROM_TRAINING, SANDWICH, "section 6.1"),
    LowerThan("rope+cable", ("rope", "cable"), (1, FAR), NO_PAPER, ""),
    LowerThan("rope+fox", ("rope", "fox"), (1, FAR), NO_PAPER, ""),
)
# The same on FineWeb-Edu, as in tables 1 (medium) and 4 (small and tiny).
FINEWEB_EDU_LOWER_THAN = (
    LowerThan("cable", CABLE_RIVALS, EVERY, CABLE, "tables 1 and 4, section A.2"),
)
# The only printed table in which RoPE is lower is that of tiny on WikiText-103.
WIKITEXT_LOWER_THAN = (LowerThan("rope", ("cable",), (1,), CABLE, "limitations"),)
# End of the claims' text, bounds, comparisons.
Scope = tuple[str, tuple[GrowthBound, ...], tuple[LowerThan, ...]]
ON_ANY_DATA: Scope = ("", GROWTH_BOUNDS, LOWER_THAN)
ON_FINEWEB_EDU: Scope = (" on FineWeb-Edu", FINEWEB_EDU_BOUNDS, FINEWEB_EDU_LOWER_THAN)
ON_WIKITEXT: Scope = (" on WikiText-103", (), WIKITEXT_LOWER_THAN)
# On OpenWebText2, ALiBi is "marginally" lower from 4,096 tokens, 8x, on.
ON_ARXIV_AND_GITHUB: Scope = (
    " on ArXiv and GitHub",
    (),
    (LowerThan("sandwich", SANDWICH_RIVALS, BEYOND, SANDWICH, "section 6.2"),),
)
SCOPES = {
    "fineweb-edu": ON_FINEWEB_EDU,
    "wikitext103": ON_WIKITEXT,
    "arxiv": ON_ARXIV_AND_GITHUB,
    "github": ON_ARXIV_AND_GITHUB,
}
ALL_TRAINING_LENGTHS = Verdict(
    "cable-v1, trained with the context or less: perplexity lower than sinusoidal at every "
    "training length of sinusoidal",
    CABLE_V1,
    "figure 5",
)
# Table 2 of Sandwich: stable perplexity of encodings that fail at a shorter training length. For
# windows this always holds where all contexts exceed the theoretical field, (w - 1) layers + 1.
LONGER_TRAINING = {
    pe: Verdict(
        f"{pe}: perplexity at the longest context / at the shortest <= {NO_GROWTH}, trained with "
        "more tokens",
        SANDWICH,
        "section 5.2" + OURS,
    )
    for pe in ("alibi-shift", "window")
}
TIE = 0.005  # printed perplexities that differ by less, relatively, have no order: our bound


def all_claims() -> list[Verdict]:
    """Return the claims of this module, not measured."""
    nothing = _Results([], 1)
    claims = []
    for scope, bounds, comparisons in (ON_ANY_DATA, *dict.fromkeys(SCOPES.values())):
        claims += [_judge_growth(nothing, bound, scope) for bound in bounds]
        claims += [_judge_lower(nothing, comparison, scope) for comparison in comparisons]
    return [*claims, ALL_TRAINING_LENGTHS, *LONGER_TRAINING.values()]


def judge_perplexity(columns: list[Column], printed: PaperTable | None = None) -> list[Verdict]:
    """Return verdicts on the encodings in columns and in the paper's table.

    Models that differ in size or training length are judged separately. Claims of the Sandwich
    paper are judged by its protocol only.
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
    verdicts += _judge_longer_training(columns)
    verdicts += _judge_all_training_lengths(columns)
    if not has_same_targets(columns[0].records[0]):  # all columns have one protocol
        verdicts = [verdict for verdict in verdicts if verdict.paper != SANDWICH]
    return verdicts


def _scopes(dataset: str, size: str | None) -> list[Scope]:
    """Return the scopes of a model on a data set."""
    if dataset not in SCOPES:
        return [ON_ANY_DATA]
    text, bounds, comparisons = SCOPES[dataset]
    if dataset == "fineweb-edu" and size == "tiny":
        bounds = ()
    if dataset == "wikitext103" and size in ("small", "medium"):
        comparisons = ()  # table 5
    return [ON_ANY_DATA, (text, bounds, comparisons)]


def _measured_encoding(pe: str, trained_at: int) -> str:
    """Return the encoding that stands for `pe` of a criterion at a training length.

    ALIBI_SLOPES: the shift that scales ALiBi's slopes with the training length, as in
    scripts/sandwich_table1_2_4.sh. Others are returned unchanged.
    """
    if pe != ALIBI_SLOPES:
        return pe
    return f"alibi-shift:shift={min(0, round(math.log2(trained_at / SANDWICH_LENGTH)))}"


def _judge_model(
    columns: list[Column], trained_at: int, printed: PaperTable | None
) -> Iterator[Verdict]:
    results = _Results(columns, trained_at)
    claimed = {*results.encodings}
    if printed:
        claimed |= {*printed.numbers} - {*printed.other_names.values()}
    record = columns[0].records[0]
    for scope, bounds, comparisons in _scopes(dataset_of(record), record.get("size")):
        for bound in bounds:
            is_claimed = _measured_encoding(bound.pe, trained_at) in claimed
            is_claimed = is_claimed and is_stated_for(bound.pe, record.get("size"))
            if is_claimed:
                yield _judge_growth(results, bound, scope)
        for comparison in comparisons:
            rivals = tuple(
                rival
                for rival in comparison.rivals
                if _measured_encoding(rival, trained_at) in results.encodings
            )
            is_claimed = comparison.pe in claimed and rivals
            if not is_claimed or not is_stated_for(comparison.pe, record.get("size")):
                continue
            yield _judge_lower(results, comparison._replace(rivals=rivals), scope)
    if printed and len(printed.numbers) > 1:
        yield from _judge_order(results, printed)


class _Results:
    """Perplexities of one model size and training length, by encoding and multiple of the latter.

    Of several columns of an encoding the first counts. `fox` is also `cable-v1`.
    """

    def __init__(self, columns: list[Column], trained_at: int):
        self.encodings = {}
        self.trained_at = trained_at
        self.columns = {}  # (encoding, multiple) -> column
        for column in columns:
            for pe in _claimed_names(column.pe):
                self.encodings[pe] = None
                for length in column.lengths():
                    if column.values(length):
                        self.columns.setdefault((pe, length / trained_at), column)

    def evaluated(self, multiple: int) -> int:
        """Return the multiple; for FAR, that of FAR_MULTIPLES which was evaluated."""
        measured = {multiple for _, multiple in self.columns}
        if multiple == FAR and FAR not in measured:
            return next((other for other in FAR_MULTIPLES if other in measured), FAR)
        return multiple

    def multiples(self, which: str) -> list[float]:
        """Return the evaluated multiples, ascending: whole ones up to FAR, and those below 1.

        which: BEYOND, FROM_TRAINING or EVERY.
        """
        evaluated = sorted({multiple for _, multiple in self.columns})
        # No claim of the papers is on a longer multiple; figure1.sh evaluates up to 128.
        comparable = [m for m in evaluated if m < 1 or (m == int(m) and m <= FAR)]
        if which == BEYOND:
            return [m for m in comparable if m > 1]
        return [m for m in comparable if m >= 1 or which == EVERY]

    def has(self, *keys: tuple[str, float]) -> bool:
        return all(key in self.columns for key in keys)

    def ratio(self, over: tuple[str, float], under: tuple[str, float]) -> Interval:
        """Return the ratio of two perplexities; arguments: (encoding, multiple)."""
        lengths = [round(multiple * self.trained_at) for _, multiple in (over, under)]
        return _ratio(self.columns[over], lengths[0], self.columns[under], lengths[1])


def _claimed_names(pe: str) -> list[str]:
    """Return the names of an encoding in claims."""
    return [pe, CLAIMED_AS[pe]] if pe in CLAIMED_AS else [pe]


def _ratio(over: Column, over_length: int, under: Column, under_length: int) -> Interval:
    return intervals.perplexity_ratio(entry_pairs(over, over_length, under, under_length))


def _judge_growth(results: _Results, row: GrowthBound, scope: str) -> Verdict:
    multiple = results.evaluated(row.multiple)
    growth = f"perplexity at {multiple}x / perplexity at 1x"
    claim = Verdict(f"{row.pe}: {growth} {row.relation} {row.bound}{scope}", row.paper, row.where)
    pe = _measured_encoding(row.pe, results.trained_at)
    if not results.has((pe, multiple), (pe, 1)):
        return claim
    ratio = results.ratio((pe, multiple), (pe, 1))
    outcome = judge_bound(ratio, row.relation, row.bound)
    return replace(claim, measured=printed_interval(ratio), outcome=outcome)


def _judge_lower(results: _Results, row: LowerThan, scope: str) -> Verdict:
    pe, rivals, multiples, paper, where = row
    if isinstance(multiples, str):
        compared = results.multiples(multiples)
        lengths = multiples
    else:
        compared = sorted(map(results.evaluated, multiples))
        lengths = ", ".join(f"{multiple}x" for multiple in compared)
    ratios = {}
    measured = dict.fromkeys(rivals, False)  # not: `learnable` beyond the training length
    for rival in rivals:
        other = _measured_encoding(rival, results.trained_at)
        for multiple in compared:
            if results.has((other, multiple), (pe, multiple)):
                ratio = results.ratio((other, multiple), (pe, multiple))
                ratios[f"{rival} at {multiple:g}x"] = ratio
                measured[rival] = True
    named = [rival for rival in rivals if measured[rival]] or rivals
    claim = f"{pe}: perplexity lower than {', '.join(named)} at {lengths}{scope}"
    unmeasured = Verdict(claim, paper, where)
    return judge_lowest(unmeasured, "smallest ratio of another encoding to it", ratios)


def same_order(size: str, dataset: str) -> str:
    """Return the claim that encodings have the order of a paper's table; its bound TIE is ours."""
    return f"same order of encodings as printed for {size} on {dataset}"


def _judge_order(results: _Results, printed: PaperTable) -> Iterator[Verdict]:
    """Yield whether the encodings have the paper's order, at each multiple of its training length.

    Pairs whose printed perplexities differ by at most TIE do not count. Nothing for a table of
    several training lengths.
    """
    if printed.trained_at is None:
        return
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
        claim = f"at {multiple:g}x: {same_order(printed.size, printed.dataset)}"
        verdict = Verdict(claim, printed.paper, printed.where + OURS)
        if ratios:
            verdict.outcome, counts = judge_all(ratios)
            verdict.measured = counts.replace(" agree", " pairs agree", 1)
        yield verdict


def _judge_longer_training(columns: list[Column]) -> Iterator[Verdict]:
    """Yield the verdicts on encodings of table 2 of Sandwich, if it has two training lengths."""
    columns = [column for column in columns if not OTHER_ENCODING.search(column.pe)]
    columns = [column for column in columns if column.pe.partition(":")[0] in LONGER_TRAINING]
    if len({column.trained_at for column in columns}) < 2:
        return
    for column in columns:
        claim = LONGER_TRAINING[column.pe.partition(":")[0]]
        lengths = [length for length in column.lengths() if column.values(length)]
        growth = _ratio(column, lengths[-1], column, lengths[0])
        text = f"{column.label}, {lengths[0]:,} to {lengths[-1]:,} tokens: "
        measured = text + printed_interval(growth)
        yield replace(claim, measured=measured, outcome=judge_bound(growth, "<=", NO_GROWTH))


def _judge_all_training_lengths(columns: list[Column]) -> Iterator[Verdict]:
    """Yield the verdict on cable-v1 and sinusoidal, if both were trained at several lengths.

    Source: CABLE, version 1, figure 5. Sinusoidal counts at its training lengths only ("not
    evaluated on longer sequences"), cable-v1 from its training length on.
    """
    cable_columns = [column for column in columns if "cable-v1" in _claimed_names(column.pe)]
    sinusoidal_columns = [column for column in columns if column.pe == "sinusoidal"]
    for group in (cable_columns, sinusoidal_columns):
        if len({column.trained_at for column in group}) < 2:
            return
    ratios = {}
    for sinusoidal in sinusoidal_columns:
        length = sinusoidal.trained_at
        for cable in cable_columns:
            is_compared = cable.trained_at <= length
            if is_compared and cable.values(length) and sinusoidal.values(length):
                name = f"{sinusoidal.label} and {cable.label} at {length:,} tokens"
                ratios[name] = _ratio(sinusoidal, length, cable, length)
    yield judge_lowest(ALL_TRAINING_LENGTHS, "smallest ratio of sinusoidal to it", ratios)
