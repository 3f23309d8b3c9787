"""The papers' claims as data, read from results/claims.yaml, which explains the fields.

for claim in load().growth.rows:
    claim.encoding, claim.relation, claim.bound
    claim.unmeasured(at=15)    # the verdict, with the claim's text, before it is measured
"""

from functools import cache
from pathlib import Path
from typing import Literal, get_args

import msgspec

from errors import InputError
from reporting.claims.verdicts import Verdict

PATH = Path(__file__).parents[2] / "results" / "claims.yaml"
# Lengths at which encodings are compared, in addition to lists of multiples.
Lengths = Literal[
    "every length",
    "every length from the training length on",
    "every length beyond the training length",
]
EVERY, _, BEYOND = get_args(Lengths)


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of a section. `encoding` and `paper` are in all; the others are those of the judge."""

    encoding: str
    paper: str
    where: str = ""
    our_bound: bool = False
    data: str | None = None
    dataset: str = ""
    size: str | None = None
    except_sizes: list[str] = []
    wording: str = ""
    """text of the section's claims, with fields in braces"""
    # What is measured, and the bound on it.
    quantity: Literal["perplexity", "speed", "memory", "time per token"] = "speed"
    relation: Literal["<", "<=", ">", ">=", "~", "lower", "higher"] = ">"
    bound: float = 1
    at: int | list[int] | Lengths = 1
    """multiple or multiples of the training length"""
    benchmark: Literal["train", "generate"] = "train"
    contexts: list[int] = []
    training: Literal["pretraining", "fine-tuning"] = "pretraining"
    loss: Literal["training loss", "final training loss"] = "training loss"
    best: str = ""
    """e.g. "lowest perplexity on fineweb" """
    field: Literal["shorter", "longer"] = "shorter"
    """receptive field of a window, relative to the training length"""
    mark: str = ""
    """of the encoding that is compared with, in a paper's table"""
    significant: Literal["better", "worse"] = "better"
    # What it is compared with.
    others: list[str] = []
    not_compared: list[str] = []
    """encodings that are not among the others of a training loss"""
    other: str = ""
    trained_at: int = 0
    other_trained_at: int = 0

    def unmeasured(self, **fields) -> Verdict:
        """Return the verdict before the claim is measured; fields: in place of those of the row."""
        row = msgspec.structs.asdict(self) | fields
        ours = "our bound" if self.our_bound else ""
        where = ", ".join(filter(None, (self.where, ours)))
        return Verdict(self.wording.format(**_in_words(row)), self.paper, where)


def _in_words(row: dict) -> dict:
    """Return the fields of a row as its wording prints them."""
    others = row["others"]
    others = others if isinstance(others, str) else ", ".join(others)
    at = row["at"]
    if isinstance(at, list):
        at = ", ".join(f"{multiple}x" for multiple in at)
    what = f"{row['quantity']} of a training step"
    if row["quantity"] == "perplexity":
        what = f"perplexity at {row['other_trained_at']:,} tokens"
    comparison = f"/ that of {others} {row['relation']} {row['bound']:.3g}"
    if row["relation"] == "~":
        comparison = f"within {row['bound'] - 1:.0%} of that of {others}"
    if row["contexts"]:
        comparison += f" at {' and '.join(f'{n:,}' for n in row['contexts'])} tokens"
    words = {"others": others or "others", "at": at, "what": what, "comparison": comparison}
    scope = f" on {row['data']}" if row["data"] else ""
    return {"device": ""} | row | words | {"scope": scope}


class Section(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Claims that are judged alike."""

    claim: str
    """their wording"""
    rows: list[Claim]

    def __post_init__(self):
        self.rows = [msgspec.structs.replace(row, wording=self.claim) for row in self.rows]


class Claims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sections of the file, in the order of the index page."""

    data: dict[str, list[str]]
    lists: dict[str, list[str]]
    growth: Section
    lower: Section
    all_training_lengths: Section
    longer_training: Section
    retrieval_growth: Section
    retrieval_best: Section
    other_data: Section
    windows: Section
    rank_correlation: Section
    seed_marks: Section
    shorter_training: Section
    speed: Section
    losses: Section

    def __post_init__(self):
        rows = [*self.growth.rows, *self.lower.rows]
        unknown = {row.data for row in rows} - {None, *self.data}
        if unknown:
            raise ValueError(f"data {', '.join(map(str, unknown))} has no data sets in `data`")

    def on_perplexity(self) -> list[Claim]:
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
