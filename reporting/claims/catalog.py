"""The papers' claims as data, read from results/claims.yaml, which explains the fields.

for claim in load()["growth"]:
    claim.encoding, claim.relation, claim.bound
    claim.unmeasured()    # the verdict, with the claim's text, before it is measured
"""

from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from errors import InputError
from reporting import paper
from reporting.claims.verdicts import Verdict

PATH = Path(__file__).parents[2] / "results" / "claims.yaml"
# Lengths at which encodings are compared, in addition to lists of multiples.
Lengths = Literal[
    "every length",
    "every length from the training length on",
    "every length beyond the training length",
]
# The least multiple of the training length; those above 1 are whole.
SMALLEST = dict(zip(get_args(Lengths), (0, 1, 2), strict=True))


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
    quantity: Literal["perplexity", "speed", "memory", "time per token"] = "speed"
    relation: Literal["<", "<=", ">", ">=", "~"] = ">"
    bound: float = 1
    at: list[float] | Lengths = []
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
    counts: bool = False
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
        wording="same order of encodings as printed for {size} on {dataset}",
        paper=name,
        where=where,
        our_bound=True,
        size=size,
        dataset=dataset,
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
