"""The papers' claims as data, from results/claims.yaml, which explains the fields, and their judge.

    judge(["growth", "lower"], measure, model)    # verdicts on the rows of these sections

`measure` yields, for a claim and the evidence, the claim as it was measured (other encodings than
in the row, other multiples) and {(other encoding, where): ratio or difference}; nothing if the
claim does not concern the evidence. None: not measured.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from errors import InputError
from evaluation.intervals import Interval
from reporting import paper
from reporting.claims.verdicts import (
    HOLDS,
    NOT_COMPARABLE,
    ONE_SEED,
    Incomparable,
    Verdict,
    combine,
    judge_bound,
    printed_interval,
)
from reporting.columns import Column, entry_pairs

PATH = Path(__file__).parents[2] / "results" / "claims.yaml"
# An encoding of another paper, and the name of the same encoding in the claims of version 1.
CLAIMED_AS = {"fox": "cable-v1"}
ALONE = ("", "")  # name of a single comparison

Comparison = Interval | Incomparable | str | None  # str: an outcome
Comparisons = dict[tuple[str, str], Comparison]


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of a section, with the section's defaults. Each section uses some of the fields."""

    key: str
    """section and number of the row; in verdicts.csv"""
    wording: str
    paper: str
    encoding: str = ""
    where: str = ""
    our_bound: bool = False
    data: str = ""
    datasets: list[str] = []
    dataset: str = ""
    size: str | None = None
    except_sizes: list[str] = []
    prefix: str = ""
    """start of a verdict's text: what was measured, if several models were, or on a CPU"""
    # What is measured, the bound on it, and how it is printed.
    quantity: Literal[
        "perplexity", "recall", "receptive field", "speed", "memory", "time per token"
    ] = "perplexity"
    relation: Literal["<", "<=", ">", ">=", "~"] = ">"
    bound: float = 1
    at: (
        list[float]
        | Literal[
            "every length",
            "every length from the training length on",
            "every length beyond the training length",
        ]
    ) = []
    benchmark: Literal["train", "generate"] = "train"
    contexts: list[int] = []
    training: Literal["pretraining", "fine-tuning"] = "pretraining"
    loss: Literal["training loss", "final training loss"] = "training loss"
    side: Literal["lower", "higher"] = "lower"
    best: str = ""
    """e.g. "lowest perplexity on fineweb" """
    field: Literal["shorter", "longer"] = "shorter"
    """receptive field of a window, relative to the training length"""
    mark: str = ""
    """of the encoding that is compared with, in a paper's table"""
    significant: Literal["better", "worse"] = "better"
    what: str = ""
    digits: int = 3
    counts: Literal["unless all agree", "always", "only"] = "unless all agree"
    """whether a verdict shows how many comparisons agree"""
    unit: str = ""
    """what the comparisons are, for the counts"""
    shown: str = ""
    """another encoding to show instead of the least favorable one; `what` names it"""
    # What it is compared with.
    others: list[str] = []
    not_compared: list[str] = []
    """encodings that are not among the others of a training loss"""
    trained_at: int = 0
    other_trained_at: int = 0

    def but(self, **fields) -> "Claim":
        """Return the claim with other fields."""
        return msgspec.structs.replace(self, **fields)

    def unmeasured(self) -> Verdict:
        """Return the verdict before the claim is measured."""
        others = ", ".join(self.others)
        if self.other_trained_at:
            others += f" trained with {self.other_trained_at:,}"
        at = self.at if isinstance(self.at, str) else ", ".join(f"{n:g}x" for n in self.at)
        comparison = f"/ that of {others} {self.relation} {self.bound:.3g}"
        if self.relation == "~":
            comparison = f"within {self.bound - 1:.0%} of that of {others}"
        if self.contexts:
            comparison += f" at {' and '.join(f'{n:,}' for n in self.contexts)} tokens"
        words = {"others": others or "others", "at": at, "comparison": comparison}
        words["scope"] = f" on {self.data}" if self.data else ""
        text = self.wording.format(**msgspec.structs.asdict(self) | words)
        where = ", ".join(filter(None, (self.where, "our bound" if self.our_bound else "")))
        return Verdict(self.prefix + text, self.paper, where, key=self.key, others=others)

    def against(
        self,
        encodings: Collection[str],
        places: dict[str, Any],
        compare: Callable[[str, Any], Comparison],
    ) -> "Measured":
        """Yield the comparisons with those of the others that were measured, at each place.

        encodings: that were measured; places: {name: argument of `compare`}; compare(other, place).
        """
        others = [pe for pe in self.others if pe in encodings]
        if self.encoding in encodings and others:
            pairs = [(pe, name) for pe in others for name in places]
            yield (
                self.but(others=others),
                {(pe, name): compare(pe, places[name]) for pe, name in pairs},
            )


Measured = Iterator[tuple[Claim, Comparisons]]


@cache
def load(path: Path = PATH) -> dict[str, list[Claim]]:
    """Return the rows of each section. Raises InputError if the file is missing or corrupt.

    The sections are in the order of the index page.
    """
    try:
        sections = msgspec.yaml.decode(path.read_bytes(), type=dict[str, dict[str, Any]])
        rows = {
            name: [
                defaults | row | {"key": f"{name} {number}"}
                for number, row in enumerate(defaults.pop("rows"), 1)
            ]
            for name, defaults in sections.items()
        }
        return msgspec.convert(rows, dict[str, list[Claim]])
    except (OSError, msgspec.DecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: {reason}: correct it, or restore the file") from None


def printed_order(name: str, where: str, size: str, dataset: str) -> Claim:
    """Return the claim that encodings have the order of a paper's table; the bound is ours."""
    return Claim(
        key=f"order {name}, {where}, {size}, {dataset}",
        wording=f"same order of encodings as printed for {size} on {dataset}",
        paper=name,
        where=where,
        our_bound=True,
        counts="only",
        unit="pairs",
    )


def printed_orders() -> list[Claim]:
    """Return the claims on the order in printed tables of perplexity."""
    claims = []
    for row in paper.index().values():
        name, _, where = row["what"].rpartition(", ")
        # Encodings with different training lengths are not compared.
        is_table = row["measure"] == "Perplexity" and where.startswith("table")
        if is_table and row["trained_at"].isdecimal():
            claims.append(printed_order(name, where, row["size"], row["dataset"]))
    return claims


def judge(sections: Iterable[str], measure: Callable[..., Measured], *evidence) -> list[Verdict]:
    """Return the verdicts on the claims of sections."""
    claims = [claim for section in sections for claim in load()[section]]
    return [decide(*found) for claim in claims for found in measure(claim, *evidence)]


def decide(claim: Claim, comparisons: Comparisons) -> Verdict:
    """Return the verdict that all comparisons satisfy the relation of a claim.

    It shows the least favorable one, and how many agree. It names the other encodings that were
    compared, or all if none was.
    """
    found = [each.settings for each in comparisons.values() if isinstance(each, Incomparable)]
    if found:
        verdict = claim.unmeasured()
        verdict.measured = f"the runs differ in {', '.join(sorted({*sum(found, ())}))}"
        verdict.outcome = NOT_COMPARABLE
        return verdict
    outcomes, shown = [], {}
    for name, each in comparisons.items():
        if isinstance(each, Interval):
            shown[name] = each
            outcomes.append(judge_bound(each, claim.relation, claim.bound))
        elif isinstance(each, str):
            outcomes.append(each)
    compared = {other for other, _ in shown}
    if claim.others and compared - {""}:
        claim = claim.but(others=[pe for pe in claim.others if pe in compared])
    verdict = claim.unmeasured()
    if not outcomes:
        return verdict
    verdict.outcome, counts = combine(outcomes, claim.unit)
    is_unanimous = verdict.outcome == HOLDS and claim.counts == "unless all agree"
    if claim.counts == "only":
        texts = [claim.what + counts]
        if any(each.seeds == 1 for each in shown.values()):
            texts.append(ONE_SEED)
    else:
        texts = [_least_favorable(claim, shown)]
        if len(outcomes) > 1 and not is_unanimous:
            texts.append(counts)
    verdict.measured = "; ".join(texts)
    return verdict


def name_runs(claim: Claim, first: dict[str, Column], columns: list[Column]) -> Claim:
    """Return a claim that names the runs that are judged, where an encoding has several.

    first: the columns that count, by the names of encodings in claims; columns: all.
    """
    counts = Counter(map(_cached_encoding, columns))
    found = [first[pe] for pe in (claim.encoding, *claim.others) if pe in first]
    labels = [column.label for column in found if counts[_cached_encoding(column)] > 1]
    runs = f"run{'s' if len(labels) > 1 else ''} {', '.join(labels)}"
    return claim.but(what=f"{runs}: {claim.what}") if labels else claim


def _cached_encoding(column: Column) -> tuple[str, int | None]:
    """Return what two columns of one run differ in: the window of the cache."""
    return column.pe, column.records[0].get("cache_window")


def _least_favorable(claim: Claim, measured: dict[tuple[str, str], Interval]) -> str:
    """Return the text of the comparison that a verdict shows."""
    name = max(measured, key=lambda name: _distance(measured[name].estimate, claim.relation))
    if claim.shown:
        name = (claim.shown, "")
    # The numbers of bytes are exact; those of rounds have no seeds.
    text = f"{measured[name].estimate:.3f}"
    if claim.quantity != "memory":
        has_seeds = claim.quantity not in ("speed", "time per token")
        text = printed_interval(measured[name], claim.digits, one_seed=has_seeds)
    is_named = claim.shown or (claim.counts == "always" and len(measured) == 1)
    where = "" if is_named else " ".join(filter(None, name))
    return ", ".join(filter(None, (claim.what + text, where)))


def _distance(value: float, relation: str) -> float:
    """Return a number that is larger for values less favorable to a relation."""
    if relation == "~":
        return abs(math.log(value))
    return value if relation.startswith("<") else -value


def compare(
    columns: tuple[Column, Column],
    lengths: tuple[float, float],
    measure: Callable[[list[tuple[dict, dict]]], Interval],
    *ignored: str,
) -> Interval | Incomparable | None:
    """Return what `measure` finds for the entries of two columns; None: not evaluated.

    lengths: one of each column; ignored: settings that may differ.
    """
    first, second = columns
    if settings := first.differing(second, *ignored):
        return Incomparable(tuple(settings))
    pairs = entry_pairs(first, round(lengths[0]), second, round(lengths[1]))
    return measure(pairs) if pairs else None
