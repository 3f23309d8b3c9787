"""Claims of the papers, from results/claims.yaml, and verdicts by 95% intervals.

    decide(claim, {("rope", "at 16x"): interval})  # keys: other encoding, place

- A bound holds if the whole interval is on its side, and fails if it is
  beyond.
- Several comparisons hold if all do, and fail if one does. Intervals
  are not corrected for the number of comparisons.
- Everything else is not decided, also if there is no interval.
"""

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from errors import InputError
from evaluation.intervals import Interval
from reporting.claims.quantities import Comparison
from reporting.formatting import escape_markdown

PATH = Path(__file__).parents[2] / "results" / "claims.yaml"
ALONE = ("", "")  # name of a single comparison
NO_INTERVAL, ONE_SEED = "(no interval)", "one seed"  # in Verdict.measured
HOLDS, FAILS, UNDECIDED, NOT_MEASURED = "holds", "fails", "not decided", "not measured"
NOT_COMPARABLE = "not comparable"  # the runs differ in more than encoding and seed

MIN_STEPS = 50  # runs of fewer steps are tests of the programs and get no verdicts
# "Far" is the first of these multiples of the training length that was
# evaluated.
FAR_MULTIPLES = (16, 15)

Benched = Literal["speed", "memory", "time per token"]  # quantities of bench.py
BENCHED = get_args(Benched)
Losses = Literal["training loss", "final training loss"]
Scores = Literal["growth of nDCG@10", "nDCG@10", "accuracy", "recall", "receptive field"]
Perplexities = Literal["perplexity", "perplexity over seeds"]
Lengths = Literal[
    "every length",
    "every length from the training length on",
    "every length beyond the training length",
]
Comparisons = dict[tuple[str, str], Comparison]


@dataclass
class Verdict:
    """A claim with what was measured and whether it holds."""

    claim: str
    paper: str
    where: str
    """section, table or figure, and "our bound" if the paper states none"""
    measured: str = ""
    outcome: str = NOT_MEASURED
    """HOLDS, FAILS, UNDECIDED, NOT_COMPARABLE or NOT_MEASURED"""
    key: str = ""
    """Claim.key"""
    others: str = ""
    """encodings that it was compared with"""

    def __str__(self):
        source = ", ".join(filter(None, (self.paper, self.where)))
        texts = map(escape_markdown, (f"{self.claim} ({source})", self.measured))
        return ": ".join(filter(None, (*texts, f"**{self.outcome}**")))


def has_verdicts(record: dict) -> bool:
    """Return whether a run was trained for long enough to judge claims on it.

    Runs of 0 steps have weights of another run, whose steps count, or
    published ones.
    """
    steps = record.get("step") or record.get("init_steps")
    return steps is None or steps >= MIN_STEPS


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of a section, with the section's defaults."""

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
    quantity: Perplexities | Scores | Benched | Losses = "perplexity"
    relation: Literal["<", "<=", ">", ">=", "~"] = ">"
    bound: float = 1
    at: list[float] | Lengths = []
    benchmark: Literal["train", "generate"] = "train"
    what: str = ""
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
        if self.at and not isinstance(self.at, str):
            comparison += f" at {' and '.join(f'{n:,g}' for n in self.at)} tokens"
        words = {"others": others, "at": at, "comparison": comparison}
        words["scope"] = f" on {self.data}" if self.data else ""
        text = self.wording.format(**msgspec.structs.asdict(self) | words)
        where = ", ".join(filter(None, (self.where, "our bound" if self.our_bound else "")))
        return Verdict(text, self.paper, where, key=self.key, others=others)


@cache
def load(path: Path = PATH) -> dict[str, list[Claim]]:
    """Return the rows of each section, in the order of the index page.

    Raises InputError if the file is missing or corrupt.
    """
    try:
        sections = msgspec.yaml.decode(path.read_bytes(), type=dict[str, dict[str, Any]])
        claims = {}
        for name, defaults in sections.items():
            rows = enumerate(defaults.pop("rows"), 1)
            claims[name] = [defaults | row | {"key": f"{name} {n}"} for n, row in rows]
        return msgspec.convert(claims, dict[str, list[Claim]])
    except (OSError, msgspec.DecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: {reason}: correct it, or restore the file") from None


def decide(claim: Claim, comparisons: Comparisons) -> Verdict | None:
    """Return the verdict that all comparisons satisfy the claim; None: not measured.

    It shows the least favorable one, and how many agree, unless all do.
    It names the other encodings that were compared.
    """
    comparisons = {name: each for name, each in comparisons.items() if each is not None}
    if not comparisons:
        return None
    compared = {other for other, _ in comparisons}
    if compared != {""}:
        claim = claim.but(others=[pe for pe in claim.others if pe in compared])
    verdict = claim.unmeasured()
    measured = {n: each for n, each in comparisons.items() if isinstance(each, Interval)}
    differing = [each for each in comparisons.values() if isinstance(each, tuple)]
    if settings := sorted(set().union(*differing)):
        verdict.measured = f"the runs differ in {', '.join(settings)}"
        verdict.outcome = NOT_COMPARABLE
        return verdict
    relation, bound = claim.relation, claim.bound
    outcomes = [judge_bound(each, relation, bound) for each in measured.values()]
    verdict.outcome, counts = combine(outcomes)
    least = max(measured, key=lambda name: _distance(measured[name].estimate, relation))
    text = printed_interval(measured[least], one_seed=claim.quantity not in BENCHED)
    place = " ".join(filter(None, least))
    verdict.measured = ", ".join(filter(None, (claim.what + text, place)))
    if len(outcomes) > 1 and verdict.outcome != HOLDS:
        verdict.measured += f"; {counts}"
    return verdict


def _distance(value: float, relation: str) -> float:
    """Return a number that is larger for values less favorable to a relation."""
    if relation == "~":
        return abs(math.log(value))
    return value if relation.startswith("<") else -value


def printed_interval(interval: Interval, digits: int = 3, one_seed: bool = False) -> str:
    """Return an estimate with its interval, and the number of seeds.

    one_seed: whether to print a single seed.
    """
    text = f"{interval.estimate:.{digits}f}"
    if interval.low is None:
        return f"{text} {NO_INTERVAL}"
    notes = [f"{interval.low:.{digits}f} to {interval.high:.{digits}f}"]
    if interval.seeds > 1:
        notes.append(f"{interval.seeds} seeds")
    elif one_seed:
        notes.append(ONE_SEED)
    if not interval.paired:
        notes.append("unpaired")
    return f"{text} ({'; '.join(notes)})"


def judge_bound(interval: Interval, relation: str, bound: float) -> str:
    """Return the outcome of "interval relation bound"; "~": within a factor."""
    below, above = interval.below(bound), interval.above(bound)
    if relation == "~":
        if below and interval.above(1 / bound):
            return HOLDS
        return FAILS if above or interval.below(1 / bound) else UNDECIDED
    if not below and not above:
        return UNDECIDED
    return HOLDS if below == relation.startswith("<") else FAILS


def combine(outcomes: list[str]) -> tuple[str, str]:
    """Return the outcome of several comparisons, and how many agree."""
    agree, disagree, undecided = map(outcomes.count, (HOLDS, FAILS, UNDECIDED))
    counts = [f"{agree} of {len(outcomes)} agree"]
    if disagree:
        counts.append(f"{disagree} disagree{'' if disagree > 1 else 's'}")
    if undecided:
        counts.append(f"{undecided} {'are' if undecided > 1 else 'is'} not decided")
    outcome = FAILS if disagree else UNDECIDED if undecided else HOLDS
    return outcome, ", ".join(counts)
