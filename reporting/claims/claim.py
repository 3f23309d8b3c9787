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
from reporting.claims.verdicts import (
    HOLDS,
    NOT_COMPARABLE,
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
NO_SEEDS = ("speed", "memory", "time per token")  # quantities of bench.py

Comparison = Interval | tuple[str, ...] | None  # a tuple: the settings that prevent it
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
    size: str | None = None
    except_sizes: list[str] = []
    prefix: str = ""
    """start of a verdict's text: what was measured, if several models were, or on a CPU"""
    # What is measured, the bound on it, and how it is printed.
    quantity: Literal[
        "perplexity",
        "recall",
        "receptive field",
        "speed",
        "memory",
        "time per token",
        "training loss",
        "final training loss",
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
    what: str = ""
    # What it is compared with.
    others: list[str] = []
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
        words = {"others": others, "at": at, "comparison": comparison}
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


def judge(sections: Iterable[str], measure: Callable[..., Measured], *evidence) -> list[Verdict]:
    """Return the verdicts on those claims of sections that were measured."""
    claims = [claim for section in sections for claim in load()[section]]
    verdicts = [decide(*found) for claim in claims for found in measure(claim, *evidence)]
    return [verdict for verdict in verdicts if verdict]


def decide(claim: Claim, comparisons: Comparisons) -> Verdict | None:
    """Return the verdict that all comparisons satisfy the relation of a claim; None: not measured.

    It shows the least favorable one, and how many agree, unless all do. It names the other
    encodings that were compared.
    """
    settings = {name for each in comparisons.values() if isinstance(each, tuple) for name in each}
    if settings:
        verdict = claim.unmeasured()
        verdict.measured = f"the runs differ in {', '.join(sorted(settings))}"
        verdict.outcome = NOT_COMPARABLE
        return verdict
    measured = {name: each for name, each in comparisons.items() if isinstance(each, Interval)}
    if not measured:
        return None
    compared = {other for other, _ in measured}
    if compared != {""}:
        claim = claim.but(others=[pe for pe in claim.others if pe in compared])
    verdict = claim.unmeasured()
    outcomes = [judge_bound(each, claim.relation, claim.bound) for each in measured.values()]
    verdict.outcome, counts = combine(outcomes)
    verdict.measured = _least_favorable(claim, measured)
    if len(outcomes) > 1 and verdict.outcome != HOLDS:
        verdict.measured += f"; {counts}"
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
    has_seeds = claim.quantity not in NO_SEEDS
    text = claim.what + printed_interval(measured[name], one_seed=has_seeds)
    return ", ".join(filter(None, (text, " ".join(filter(None, name)))))


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
) -> Comparison:
    """Return what `measure` finds for the entries of two columns.

    lengths: one of each column; ignored: settings that may differ.
    """
    first, second = columns
    if settings := first.differing(second, *ignored):
        return tuple(settings)
    if not (first.values(lengths[0]) and second.values(lengths[1])):
        return None
    return measure(entry_pairs(first, round(lengths[0]), second, round(lengths[1])))
