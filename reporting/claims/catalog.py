"""The papers' claims as data, read from results/claims.yaml, which explains the fields.

for claim in load().growth.rows:
    claim.encoding, claim.relation, claim.bound
    claim.unmeasured(at=15)    # the verdict, with the claim's text, before it is measured
"""

from functools import cache
from pathlib import Path
from typing import Generic, Literal, TypeVar, get_args

import msgspec

from errors import InputError
from reporting.claims.verdicts import Verdict

PATH = Path(__file__).parents[2] / "results" / "claims.yaml"
Relation = Literal["<", "<=", ">", ">=", "~"]
# Lengths at which encodings are compared, in addition to lists of multiples.
Lengths = Literal[
    "every length",
    "every length from the training length on",
    "every length beyond the training length",
]
EVERY, _, BEYOND = get_args(Lengths)


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of a section. Each section has the fields that its class adds."""

    encoding: str
    paper: str
    where: str = ""
    our_bound: bool = False
    data: str | None = None
    except_sizes: list[str] = []
    wording: str = ""
    """text of the section's claims, with fields in braces"""

    def unmeasured(self, **fields) -> Verdict:
        """Return the verdict before the claim is measured; fields: in place of those of the row."""
        named = self.named() | fields
        ours = "our bound" if self.our_bound else ""
        where = ", ".join(filter(None, (self.where, ours)))
        return Verdict(self.wording.format(**named), self.paper, where)

    def named(self) -> dict:
        """Return the fields for the wording."""
        scope = f" on {self.data}" if self.data else ""
        return msgspec.structs.asdict(self) | {"scope": scope, "device": ""}


class Bound(Claim, frozen=True, kw_only=True):
    """A bound on a quantity of one encoding."""

    relation: Relation
    bound: float
    at: int = 1
    """multiple of the training length"""


class Comparison(Claim, frozen=True, kw_only=True):
    """An encoding that is better than others."""

    others: list[str]
    at: list[int] | Lengths = []

    def named(self) -> dict:
        at = self.at if isinstance(self.at, str) else ", ".join(f"{m}x" for m in self.at)
        return super().named() | {"others": ", ".join(self.others), "at": at}


class OtherData(Comparison, frozen=True, kw_only=True):
    """A comparison on data that the models were not trained on."""

    best: str
    """e.g. "lowest perplexity on fineweb" """


class ShorterTraining(Bound, frozen=True, kw_only=True):
    """A bound on a quantity relative to that of another encoding with a longer training length."""

    quantity: Literal["perplexity", "memory", "time per token"]
    trained_at: int
    other: str
    other_trained_at: int
    dataset: str
    size: str

    def named(self) -> dict:
        what = {"perplexity": f"perplexity at {self.other_trained_at:,} tokens"}
        named = super().named()
        return named | {"what": what.get(self.quantity, f"{self.quantity} of a training step")}


class Window(Bound, frozen=True, kw_only=True):
    """A bound on the growth of perplexity of windows."""

    field: Literal["shorter", "longer"]
    """receptive field, relative to the training length"""


class SeedMark(Claim, frozen=True, kw_only=True):
    """A mark in a paper's table: an encoding is significantly better or worse than another."""

    dataset: str
    mark: str
    significant: Literal["better", "worse"]


class Loss(Claim, frozen=True, kw_only=True):
    """An encoder with a lower or higher training loss than all others but `not_compared`."""

    training: Literal["pretraining", "fine-tuning"]
    loss: Literal["training loss", "final training loss"]
    relation: Literal["lower", "higher"]
    not_compared: list[str] = []
    others: str = "others"


class Speed(Bound, frozen=True, kw_only=True):
    """A bound on the speed or memory of an encoding relative to each of the others."""

    benchmark: Literal["train", "generate"]
    others: list[str]
    quantity: Literal["speed", "memory"] = "speed"
    contexts: list[int] = []
    size: str | None = None

    def named(self) -> dict:
        others = ", ".join(self.others)
        comparison = f"/ that of {others} {self.relation} {self.bound:.3g}"
        if self.relation == "~":
            comparison = f"within {self.bound - 1:.0%} of that of {others}"
        contexts = " and ".join(f"{n:,}" for n in self.contexts)
        at = f" at {contexts} tokens" if contexts else ""
        return super().named() | {"comparison": comparison, "at": at}


Row = TypeVar("Row", bound=Claim)


class Section(msgspec.Struct, Generic[Row], kw_only=True, forbid_unknown_fields=True):
    """Claims that are judged alike."""

    claim: str
    """their wording"""
    rows: list[Row]

    def __post_init__(self):
        self.rows = [msgspec.structs.replace(row, wording=self.claim) for row in self.rows]


class Claims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sections of the file, in the order of the index page."""

    data: dict[str, list[str]]
    lists: dict[str, list[str]]
    growth: Section[Bound]
    lower: Section[Comparison]
    all_training_lengths: Section[Comparison]
    longer_training: Section[Bound]
    retrieval_growth: Section[Bound]
    retrieval_best: Section[Comparison]
    other_data: Section[OtherData]
    windows: Section[Window]
    rank_correlation: Section[Bound]
    seed_marks: Section[SeedMark]
    shorter_training: Section[ShorterTraining]
    speed: Section[Speed]
    losses: Section[Loss]

    def __post_init__(self):
        rows = [*self.growth.rows, *self.lower.rows]
        unknown = {row.data for row in rows} - {None, *self.data}
        if unknown:
            raise ValueError(f"data {', '.join(map(str, unknown))} has no data sets in `data`")

    def on_perplexity(self) -> list[Bound | Comparison]:
        """Return `growth` and `lower`: claims on any data first, then by data."""
        order = [None, *self.data]
        rows = [*self.growth.rows, *self.lower.rows]
        return sorted(rows, key=lambda row: order.index(row.data))

    def all_rows(self) -> list[Claim]:
        """Return the claims of all sections, those of `on_perplexity` first."""
        sections = msgspec.structs.asdict(self)
        others = [each for name, each in sections.items() if name not in ("growth", "lower")]
        rows = [row for each in others if isinstance(each, Section) for row in each.rows]
        return [*self.on_perplexity(), *rows]


@cache
def load(path: Path = PATH) -> Claims:
    """Return the claims. Raises InputError if the file is missing or has other fields."""
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=Claims)
    except (OSError, msgspec.DecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: {reason}: correct it, or restore the file") from None
