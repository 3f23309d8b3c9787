"""Claims on perplexity by context length, also by t-tests over seeds."""

import math
import re

from evaluation.intervals import Interval
from reporting.claims import catalog
from reporting.claims.catalog import Claim
from reporting.claims.engine import ALONE, CLAIMED_AS, Measured, judge, perplexity_ratio
from reporting.claims.verdicts import (
    FAILS,
    FAR_MULTIPLES,
    HOLDS,
    NOT_COMPARABLE,
    UNDECIDED,
    Incomparable,
    Verdict,
    combine,
    incomparable_settings,
    judge_bound,
)
from reporting.columns import Column, dataset_of
from reporting.paper import MARKS_REFERENCE, SANDWICH, PaperTable, has_same_targets
from reporting.tables import seed_marks

FAR = FAR_MULTIPLES[0]
ALIBI_SLOPES = "alibi-shift with scaled slopes"  # an encoding: see `_claimed_names`
SANDWICH_LENGTH = 512  # training length of the Sandwich paper
TIE = 0.005  # printed perplexities that differ by less, relatively, have no order: our bound
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
        verdicts += _judge_order(model, printed)
    verdicts += judge(["longer_training"], _longer_training, columns)
    verdicts += judge(["all_training_lengths"], _all_training_lengths, columns)
    if not has_same_targets(first):
        verdicts = [verdict for verdict in verdicts if verdict.paper != SANDWICH]
    if printed and printed.marks and printed.has_protocol_of(first):
        verdicts += _judge_seed_marks(columns, printed)
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
        self.encodings: set[str] = set()
        self.columns: dict[tuple[str, float], Column] = {}  # (encoding, multiple) -> column
        for column in columns:
            names = _claimed_names(column.pe, trained_at)
            self.encodings.update(names)
            for length in filter(column.values, column.lengths()):
                for pe in names:
                    self.columns.setdefault((pe, length / trained_at), column)
        self.claimed = {*self.encodings}
        if printed:
            for pe in printed.encodings():
                self.claimed.update(_claimed_names(pe, trained_at))

    def is_of(self, claim: Claim) -> bool:
        """Return whether a claim is on the encodings, the data and the size of this model."""
        is_of_data = not claim.datasets or dataset_of(self.record) in claim.datasets
        has_size = self.record.get("size") not in claim.except_sizes
        return claim.encoding in self.claimed and is_of_data and has_size

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
        return [multiple for multiple in comparable if multiple >= catalog.SMALLEST[at]]

    def incomparable(self, claim: Claim) -> Incomparable | None:
        """Return what prevents a comparison with encodings of other sizes or training lengths."""
        ours = [column for (pe, _), column in self.columns.items() if pe == claim.encoding]
        others = [column for column in self.elsewhere if column.pe in claim.others]
        settings = [name for other in others for own in ours[:1] for name in own.differing(other)]
        return Incomparable(tuple(settings)) if settings else None

    def ratio(
        self, over: tuple[str, float], under: tuple[str, float]
    ) -> Interval | Incomparable | None:
        """Return the ratio of two perplexities, each of an encoding at a multiple."""
        if over not in self.columns or under not in self.columns:
            return None
        lengths = [multiple * self.trained_at for _, multiple in (over, under)]
        return perplexity_ratio(self.columns[over], lengths[0], self.columns[under], lengths[1])


def _at_multiples(claim: Claim, model: _Model) -> Measured:
    """Compare an encoding with those of the others that were evaluated, or with itself at 1x."""
    others = [pe for pe in claim.others if pe in model.encodings]
    if not model.is_of(claim):
        return
    if claim.others and not others:
        if reason := model.incomparable(claim):
            yield claim.but(prefix=model.prefix), {ALONE: reason}
        return
    pe, multiples = claim.encoding, model.multiples(claim.at)
    at = claim.at if isinstance(claim.at, str) else multiples
    ratios = {
        (other, f"at {multiple:g}x"): model.ratio((other, multiple), (pe, multiple))
        for other in others
        for multiple in multiples
    }
    if not others:
        ratios[ALONE] = model.ratio((pe, multiples[0]), (pe, 1))
    yield claim.but(prefix=model.prefix, others=others, at=at), ratios


def _judge_order(model: _Model, printed: PaperTable | None) -> list[Verdict]:
    """Return whether the encodings have the paper's order, at each multiple of its training length.

    Pairs whose printed perplexities differ by at most TIE do not count. Nothing for a table of
    several training lengths, or of one encoding.
    """
    if printed is None or printed.trained_at is None or len(printed.numbers) < 2:
        return []
    order = catalog.printed_order(printed.paper, printed.where, printed.size, printed.dataset)
    verdicts = []
    for context in printed.contexts():
        multiple = context / printed.trained_at
        values = {}
        for pe in model.encodings:
            if (pe, multiple) in model.columns and (value := printed.value(pe, context)):
                values[pe] = value
        ratios = [
            model.ratio((b, multiple), (a, multiple))
            for a in values
            for b in values
            if values[b] / values[a] > 1 + TIE
        ]
        outcomes = [judge_bound(each, ">", 1) for each in ratios if isinstance(each, Interval)]
        verdict = order.but(prefix=f"{model.prefix}at {multiple:g}x: ").unmeasured()
        if settings := incomparable_settings(ratios):
            verdict.outcome = NOT_COMPARABLE
            verdict.measured = f"the runs differ in {', '.join(settings)}"
        elif outcomes:
            verdict.outcome, counts = combine(outcomes)
            verdict.measured = counts.replace(" agree", " pairs agree", 1)
        verdicts.append(verdict)
    return verdicts


def _longer_training(claim: Claim, columns: list[Column]) -> Measured:
    """Compare the longest with the shortest context, if the encodings have two training lengths."""
    claimed = {row.encoding for row in catalog.load()["longer_training"]}
    columns = [column for column in columns if not OTHER_ENCODING.search(column.pe)]
    columns = [column for column in columns if column.pe.partition(":")[0] in claimed]
    for column in columns if len({column.trained_at for column in columns}) > 1 else ():
        if column.pe.partition(":")[0] == claim.encoding:
            lengths = [*filter(column.values, column.lengths())]
            what = f"{column.label}, {lengths[0]:,} to {lengths[-1]:,} tokens: "
            growth = perplexity_ratio(column, lengths[-1], column, lengths[0])
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
    for other in theirs:
        length = other.trained_at
        for column in ours:
            if column.trained_at <= length and column.values(length) and other.values(length):
                name = f"{other.label} and {column.label} at {length:,} tokens"
                ratios["", name] = perplexity_ratio(other, length, column, length, "block_size")
    yield claim, ratios


def _judge_seed_marks(columns: list[Column], printed: PaperTable) -> list[Verdict]:
    """Return whether the encodings have the marks of the paper's table, one verdict for each mark.

    A mark is compared at the same multiple of the training length. It agrees if ours is the same,
    and disagrees if ours is the opposite. Cells without a mark are no claim.
    """
    columns = [column for column in columns if printed.covers(column.pe)]
    marks = seed_marks(columns, MARKS_REFERENCE)
    verdicts = []
    for claim in catalog.load()["seed_marks"]:
        if claim.dataset != printed.dataset:
            continue
        verdict, outcomes = claim.unmeasured(), []
        for column in columns:
            for context in printed.contexts():
                length = context * column.trained_at / printed.training_length(column.pe)
                ours = marks.get((column.label, length))
                if ours is not None and printed.mark(column.pe, context) == claim.mark:
                    outcomes.append({claim.mark: HOLDS, "": UNDECIDED}.get(ours, FAILS))
        if outcomes:
            verdict.outcome, _ = combine(outcomes)
            agree, disagree, undecided = map(outcomes.count, (HOLDS, FAILS, UNDECIDED))
            verdict.measured = (
                f"{agree} of {len(outcomes)} agree, {disagree} disagree, "
                f"{undecided} are not significant"
            )
        verdicts.append(verdict)
    return verdicts
