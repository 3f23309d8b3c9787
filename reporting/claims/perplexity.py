"""Claims on perplexity by context length, also by t-tests over seeds."""

import itertools
import math
import re

from evaluation import intervals
from reporting.claims.claim import (
    ALONE,
    CLAIMED_AS,
    Claim,
    Comparison,
    Measured,
    compare,
    decide,
    judge,
    load,
    name_runs,
    printed_order,
)
from reporting.claims.verdicts import (
    FAILS,
    FAR_MULTIPLES,
    HOLDS,
    UNDECIDED,
    Incomparable,
    Verdict,
)
from reporting.columns import Column, dataset_of
from reporting.paper import MARKS_REFERENCE, SANDWICH, PaperTable, has_same_targets
from reporting.tables import seed_marks

FAR = FAR_MULTIPLES[0]
ALIBI_SLOPES = "alibi-shift with scaled slopes"  # an encoding: see `_claimed_names`
SANDWICH_LENGTH = 512  # training length of the Sandwich paper
TIE = 0.005  # printed perplexities that differ by less, relatively, have no order: our bound
# The least multiple of the training length in a list of lengths; those above 1 are whole.
SMALLEST = {
    "every length": 0,
    "every length from the training length on": 1,
    "every length beyond the training length": 2,
}
# Options and patterns that make another encoding, about which no paper has claims.
OTHER_ENCODING = re.compile("[:,]heads|@")


def judge_perplexity(
    columns: list[Column], printed: PaperTable | None = None, **evidence
) -> list[Verdict]:
    """Return verdicts on the encodings in columns and in the paper's table; [] for encoders.

    Models that differ in size or training length are judged separately. Claims of the Sandwich
    paper are judged by its protocol only.
    """
    first = columns[0].records[0]  # all columns have one protocol
    if "objective" in first:
        return []
    groups = {}
    for column in columns:
        setup = (column.records[0].get("size"), column.trained_at)
        groups.setdefault(setup, []).append(column)
    verdicts = []
    for (size, trained_at), group in groups.items():
        model = _Model(group, trained_at, printed)
        if len(groups) > 1:
            model.prefix = f"{size}, trained with {trained_at:,} tokens: "
            model.elsewhere = [column for column in columns if column not in group]
        sections = ("growth", "lower", "growth_on_data", "lower_on_data")
        verdicts += judge(sections, _at_multiples, model)
        verdicts += [decide(*found) for found in _in_order(model, printed)]
    verdicts += judge(["longer_training"], _longer_training, columns)
    verdicts += judge(["all_training_lengths"], _all_training_lengths, columns)
    if not has_same_targets(first):
        verdicts = [verdict for verdict in verdicts if verdict.paper != SANDWICH]
    if printed and printed.marks and printed.has_protocol_of(first):
        verdicts += judge(["seed_marks"], _seed_marks, columns, printed)
    return verdicts


def _claimed_names(pe: str, trained_at: int) -> list[str]:
    """Return the names of an encoding in claims.

    ALIBI_SLOPES: the shift that scales ALiBi's slopes with the training length, as in
    scripts/sandwich_table1_2_4.sh.
    """
    names = [pe]
    if pe in CLAIMED_AS:
        names.append(CLAIMED_AS[pe])
    if pe == f"alibi-shift:shift={min(0, round(math.log2(trained_at / SANDWICH_LENGTH)))}":
        names.append(ALIBI_SLOPES)
    return names


class _Model:
    """Perplexities of one model size and training length, by encoding and multiple of the latter.

    Encodings have the names of the claims. Of several columns of an encoding the first counts.
    """

    def __init__(self, columns: list[Column], trained_at: int, printed: PaperTable | None):
        self.prefix = ""
        self.elsewhere: list[Column] = []  # of other sizes or training lengths
        self.record = columns[0].records[0]
        self.trained_at = trained_at
        self.all_columns = columns
        self.encodings: dict[str, Column] = {}
        for column in columns:
            for pe in _claimed_names(column.pe, trained_at):
                self.encodings.setdefault(pe, column)
        self.columns = {  # (encoding, multiple) -> column
            (pe, length / trained_at): column
            for pe, column in self.encodings.items()
            for length in filter(column.values, column.lengths())
        }
        self.claimed = {*self.encodings}
        for pe in printed.encodings() if printed else ():
            self.claimed.update(_claimed_names(pe, trained_at))

    def multiples(self, at: list[float] | str) -> list[float]:
        """Return the multiples of a comparison, ascending; of lengths: all that were evaluated.

        For FAR, that of FAR_MULTIPLES which was evaluated.
        """
        measured = sorted({multiple for _, multiple in self.columns})
        if isinstance(at, list):
            far = next((far for far in FAR_MULTIPLES if far in measured), FAR)
            return sorted(far if multiple == FAR else multiple for multiple in at)
        # No claim of the papers is on a longer multiple; figure1.sh evaluates up to 128.
        comparable = [m for m in measured if m < 1 or (m == int(m) and m <= FAR)]
        return [multiple for multiple in comparable if multiple >= SMALLEST[at]]

    def ratio(self, over: tuple[str, float], under: tuple[str, float]) -> Comparison:
        """Return the ratio of two perplexities, each of an encoding at a multiple."""
        if over not in self.columns or under not in self.columns:
            return None
        columns = self.columns[over], self.columns[under]
        lengths = over[1] * self.trained_at, under[1] * self.trained_at
        return compare(columns, lengths, intervals.perplexity_ratio)

    def incomparable(self, claim: Claim) -> Incomparable | None:
        """Return what prevents a comparison with encodings of other sizes or training lengths."""
        ours = self.encodings.get(claim.encoding)
        others = [column for column in self.elsewhere if column.pe in claim.others]
        settings = [name for other in others if ours for name in ours.differing(other)]
        return Incomparable(tuple(settings)) if settings else None


def _at_multiples(claim: Claim, model: _Model) -> Measured:
    """Compare an encoding with those of the others that were evaluated, or with itself at 1x."""
    is_of_data = not claim.datasets or dataset_of(model.record) in claim.datasets
    has_size = model.record.get("size") not in claim.except_sizes
    pe, multiples = claim.encoding, model.multiples(claim.at)
    if pe not in model.claimed or not is_of_data or not has_size:
        return
    claim = claim.but(prefix=model.prefix, at=claim.at if isinstance(claim.at, str) else multiples)
    claim = name_runs(claim, model.encodings, model.all_columns)
    if not claim.others:
        yield claim, {ALONE: model.ratio((pe, multiples[0]), (pe, 1))}
    elif not model.encodings.keys() & {*claim.others}:
        if reason := model.incomparable(claim):
            yield claim, {ALONE: reason}
    else:

        def ratio(other: str, multiple: float) -> Comparison:
            return model.ratio((other, multiple), (pe, multiple))

        places = {f"at {multiple:g}x": multiple for multiple in multiples}
        yield from claim.against({pe, *model.encodings}, places, ratio)


def _in_order(model: _Model, printed: PaperTable | None) -> Measured:
    """Compare encodings that a paper's table orders, at each multiple of its training length.

    Pairs whose printed perplexities differ by at most TIE do not count. Nothing for a table of
    several training lengths, or of one encoding.
    """
    if printed is None or printed.trained_at is None or len(printed.numbers) < 2:
        return
    order = printed_order(printed.paper, printed.where, printed.size, printed.dataset)
    counted = {pe: column for pe, column in model.encodings.items() if printed.covers(pe)}
    order = name_runs(order.but(others=[*counted]), counted, model.all_columns).but(others=[])
    for context in printed.contexts():
        multiple = context / printed.trained_at
        values = {}
        for pe in model.encodings:
            if (pe, multiple) in model.columns and (value := printed.value(pe, context)):
                values[pe] = value
        ratios = {
            ("", f"{b} over {a}"): model.ratio((b, multiple), (a, multiple))
            for a, b in itertools.permutations(values, 2)
            if values[b] / values[a] > 1 + TIE
        }
        yield order.but(prefix=f"{model.prefix}at {multiple:g}x: "), ratios


def _longer_training(claim: Claim, columns: list[Column]) -> Measured:
    """Compare the longest with the shortest context, if the encodings have two training lengths."""
    claimed = {row.encoding for row in load()["longer_training"]}
    columns = [column for column in columns if not OTHER_ENCODING.search(column.pe)]
    columns = [column for column in columns if column.pe.partition(":")[0] in claimed]
    for column in columns if len({column.trained_at for column in columns}) > 1 else ():
        lengths = [*filter(column.values, column.lengths())]
        if column.pe.partition(":")[0] == claim.encoding and lengths:
            ends = lengths[-1], lengths[0]
            growth = compare((column, column), ends, intervals.perplexity_ratio)
            what = f"{column.label}, {ends[1]:,} to {ends[0]:,} tokens: "
            yield claim.but(what=what), {ALONE: growth}


def _all_training_lengths(claim: Claim, columns: list[Column]) -> Measured:
    """Compare two encodings, if both were trained at several lengths.

    The other counts at its training lengths only, the first from its training length on.
    """
    ours = [each for each in columns if claim.encoding in (each.pe, CLAIMED_AS.get(each.pe))]
    theirs = [each for each in columns if each.pe in claim.others]
    if any(len({column.trained_at for column in group}) < 2 for group in (ours, theirs)):
        return
    ratios = {}
    for other, column in itertools.product(theirs, ours):
        length = other.trained_at
        if column.trained_at <= length and column.values(length) and other.values(length):
            ratios["", f"{other.label} and {column.label} at {length:,} tokens"] = compare(
                (other, column), (length, length), intervals.perplexity_ratio, "block_size"
            )
    yield claim, ratios


def _seed_marks(claim: Claim, columns: list[Column], printed: PaperTable) -> Measured:
    """Compare marks of the paper's table with ours at the same multiple of the training length.

    A mark agrees if ours is the same, and disagrees if ours is the opposite. Cells without a mark
    are no claim.
    """
    if claim.dataset != printed.dataset:
        return
    columns = [column for column in columns if printed.covers(column.pe)]
    marks = seed_marks(columns, MARKS_REFERENCE)
    outcomes = {}
    for column, context in itertools.product(columns, printed.contexts()):
        if printed.mark(column.pe, context) == claim.mark:
            length = context * column.trained_at / printed.training_length(column.pe)
            ours = marks.get((column.label, length))
            agreement = {None: None, claim.mark: HOLDS, "": UNDECIDED}
            outcomes["", f"{column.label} at {length:,g} tokens"] = agreement.get(ours, FAILS)
    yield claim, outcomes
