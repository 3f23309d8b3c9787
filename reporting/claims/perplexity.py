"""Claims on perplexity by context length, also by t-tests over seeds."""

import math
from collections.abc import Iterator

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims import catalog
from reporting.claims.catalog import BEYOND, EVERY, Claim
from reporting.claims.verdicts import (
    CLAIMED_AS,
    FAILS,
    FAR_MULTIPLES,
    HOLDS,
    OTHER_ENCODING,
    UNDECIDED,
    Verdict,
    combine,
    decide,
    judge_bound,
)
from reporting.columns import Column, dataset_of, entry_pairs
from reporting.paper import MARKS_REFERENCE, SANDWICH, PaperTable, has_same_targets
from reporting.tables import seed_marks

FAR = FAR_MULTIPLES[0]
ALIBI_SLOPES = "alibi-shift with scaled slopes"  # an encoding: see `_measured_encoding`
SANDWICH_LENGTH = 512  # training length of the Sandwich paper
TIE = 0.005  # printed perplexities that differ by less, relatively, have no order: our bound


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
    if not has_same_targets(first):
        verdicts = [verdict for verdict in verdicts if verdict.paper != SANDWICH]
    if printed and printed.marks and printed.has_protocol_of(first):
        verdicts += _judge_seed_marks(columns, printed)
    return verdicts


def _judge_model(
    columns: list[Column], trained_at: int, printed: PaperTable | None
) -> Iterator[Verdict]:
    results = _Results(columns, trained_at)
    claimed = {*results.encodings}
    if printed:
        for pe in {*printed.numbers} - {*printed.other_names.values()}:
            claimed |= {*_claimed_names(pe, trained_at)}
    record, claims = columns[0].records[0], catalog.load()
    for claim in claims.on_perplexity():
        is_of_data = claim.data is None or dataset_of(record) in claims.data[claim.data]
        if not is_of_data or record.get("size") in claim.except_sizes:
            continue
        if claim.encoding not in claimed:
            continue
        if not claim.others:
            yield _judge_growth(results, claim)
        elif results.encodings.intersection(claim.others):
            yield _judge_lower(results, claim)
    if printed and len(printed.numbers) > 1:
        yield from _judge_order(results, printed)


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


class _Results:
    """Perplexities of one model size and training length, by encoding and multiple of the latter.

    Encodings have the names of the claims. Of several columns of an encoding the first counts.
    """

    def __init__(self, columns: list[Column], trained_at: int):
        self.trained_at = trained_at
        self.encodings: set[str] = set()
        self.columns: dict[tuple[str, float], Column] = {}  # (encoding, multiple) -> column
        for column in columns:
            names = _claimed_names(column.pe, trained_at)
            self.encodings |= {*names}
            for length in filter(column.values, column.lengths()):
                for pe in names:
                    self.columns.setdefault((pe, length / trained_at), column)

    def evaluated(self, multiple: int) -> int:
        """Return the multiple; for FAR, that of FAR_MULTIPLES which was evaluated."""
        measured = {multiple for _, multiple in self.columns}
        if multiple == FAR and FAR not in measured:
            return next((other for other in FAR_MULTIPLES if other in measured), FAR)
        return multiple

    def multiples(self, at: int | list[int] | str) -> list[float]:
        """Return the multiples of a comparison, ascending: those given, or all that it is about.

        These are whole ones up to FAR, and those below 1.
        """
        if isinstance(at, int):
            return [self.evaluated(at)]
        if isinstance(at, list):
            return sorted(map(self.evaluated, at))
        evaluated = sorted({multiple for _, multiple in self.columns})
        # No claim of the papers is on a longer multiple; figure1.sh evaluates up to 128.
        comparable = [m for m in evaluated if m < 1 or (m == int(m) and m <= FAR)]
        if at == BEYOND:
            return [m for m in comparable if m > 1]
        return [m for m in comparable if m >= 1 or at == EVERY]

    def ratio(self, over: tuple[str, float], under: tuple[str, float]) -> Interval | None:
        """Return the ratio of two perplexities, None if one is missing.

        over, under: encoding of a claim, multiple.
        """
        if over not in self.columns or under not in self.columns:
            return None
        lengths = [round(multiple * self.trained_at) for _, multiple in (over, under)]
        return _ratio(self.columns[over], lengths[0], self.columns[under], lengths[1])


def _ratio(over: Column, over_length: int, under: Column, under_length: int) -> Interval:
    return intervals.perplexity_ratio(entry_pairs(over, over_length, under, under_length))


def _judge_growth(results: _Results, claim: Claim) -> Verdict:
    (at,) = results.multiples(claim.at)
    ratio = results.ratio((claim.encoding, at), (claim.encoding, 1))
    comparisons = {} if ratio is None else {"": ratio}
    return decide(claim.unmeasured(at=at), comparisons, claim.relation, claim.bound)


def _judge_lower(results: _Results, claim: Claim) -> Verdict:
    """Return the verdict of a comparison with those of the others that were evaluated."""
    multiples = results.multiples(claim.at)
    others = [pe for pe in claim.others if pe in results.encodings]
    ratios, measured = {}, {}  # the latter without `learnable` beyond the training length
    for other in others:
        for multiple in multiples:
            ratio = results.ratio((other, multiple), (claim.encoding, multiple))
            if ratio is not None:
                ratios[f"{other} at {multiple:g}x"] = ratio
                measured[other] = None
    at = claim.at if isinstance(claim.at, str) else multiples
    verdict = claim.unmeasured(others=[*(measured or others)], at=at)
    return decide(verdict, ratios, what="smallest ratio of another encoding to it: ")


def printed_order(size: str, dataset: str, paper: str, where: str) -> Verdict:
    """Return the claim that encodings have the order of a paper's table; its bound TIE is ours."""
    text = f"same order of encodings as printed for {size} on {dataset}"
    return Verdict(text, paper, f"{where}, our bound")


def _judge_order(results: _Results, printed: PaperTable) -> Iterator[Verdict]:
    """Yield whether the encodings have the paper's order, at each multiple of its training length.

    Pairs whose printed perplexities differ by at most TIE do not count. Nothing for a table of
    several training lengths.
    """
    if printed.trained_at is None:
        return
    for context in printed.contexts():
        multiple = context / printed.trained_at
        values = {}
        for pe in results.encodings:
            if (pe, multiple) in results.columns and (value := printed.value(pe, context)):
                values[pe] = value
        ratios = [
            results.ratio((b, multiple), (a, multiple))
            for a in values
            for b in values
            if values[b] / values[a] > 1 + TIE
        ]
        outcomes = [judge_bound(ratio, ">", 1) for ratio in ratios if ratio]
        verdict = printed_order(printed.size, printed.dataset, printed.paper, printed.where)
        verdict.claim = f"at {multiple:g}x: {verdict.claim}"
        if outcomes:
            verdict.outcome, counts = combine(outcomes)
            verdict.measured = counts.replace(" agree", " pairs agree", 1)
        yield verdict


def _judge_longer_training(columns: list[Column]) -> Iterator[Verdict]:
    """Yield the verdicts on encodings of table 2 of Sandwich, if it has two training lengths."""
    claims = {claim.encoding: claim for claim in catalog.load().longer_training.rows}
    columns = [column for column in columns if not OTHER_ENCODING.search(column.pe)]
    columns = [column for column in columns if column.pe.partition(":")[0] in claims]
    if len({column.trained_at for column in columns}) < 2:
        return
    for column in columns:
        claim = claims[column.pe.partition(":")[0]]
        lengths = [*filter(column.values, column.lengths())]
        growth = _ratio(column, lengths[-1], column, lengths[0])
        what = f"{column.label}, {lengths[0]:,} to {lengths[-1]:,} tokens: "
        yield decide(claim.unmeasured(), {"": growth}, claim.relation, claim.bound, what)


def _judge_all_training_lengths(columns: list[Column]) -> Iterator[Verdict]:
    """Yield the verdict on two encodings, if both were trained at several lengths.

    The other counts at its training lengths only, the first from its training length on.
    """
    for claim in catalog.load().all_training_lengths.rows:
        ours = [
            column for column in columns if claim.encoding in (column.pe, CLAIMED_AS.get(column.pe))
        ]
        theirs = [column for column in columns if column.pe in claim.others]
        if any(len({column.trained_at for column in group}) < 2 for group in (ours, theirs)):
            continue
        ratios = {}
        for other in theirs:
            length = other.trained_at
            for column in ours:
                if column.trained_at <= length and column.values(length) and other.values(length):
                    name = f"{other.label} and {column.label} at {length:,} tokens"
                    ratios[name] = _ratio(other, length, column, length)
        what = f"smallest ratio of {', '.join(claim.others)} to it: "
        yield decide(claim.unmeasured(), ratios, what=what)


def _judge_seed_marks(columns: list[Column], printed: PaperTable) -> list[Verdict]:
    """Return whether the encodings have the marks of the paper's table, one verdict for each mark.

    A mark is compared at the same multiple of the training length. It agrees if ours is the same,
    and disagrees if ours is the opposite. Cells without a mark are no claim.
    """
    columns = [column for column in columns if printed.covers(column.pe)]
    marks = seed_marks(columns, MARKS_REFERENCE)
    verdicts = []
    for claim in catalog.load().seed_marks.rows:
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
