"""Compare the perplexities of two runs with a paired bootstrap.

    python compare.py runs/quickstart/{cable,alibi}/eval_stdlib_val_32x4096.json

For each context length that both records hold, the ratio of the perplexities is printed, first over
second, with a 95% confidence interval. The bootstrap draws blocks of neighboring windows with
replacement, 10,000 times, and the same blocks for both runs, so that text which is hard for both
does not widen the interval. A ratio below 1 means that the first run is better. The difference is
significant if the interval does not contain 1.
"""

from dataclasses import dataclass, field

import numpy as np

from errors import InputError
from reporting.columns import record_labels
from reporting.formatting import Table
from reporting.metrics import describe_protocol
from runtime import cli
from runtime.files import read_json

DRAWS = 10_000


@dataclass
class Config:
    """Settings of a comparison."""

    records: list[str] = field(default_factory=list)
    """two JSON records of eval_extrapolation.py"""


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("records", "two JSON records of eval_extrapolation.py")
    )
    first, second = load_records(config.records)
    lengths = shared_lengths(first, second)
    names = record_labels([first, second])
    cells = [["context", *names, "ratio", "95% interval", "blocks"]]
    cells += [
        comparison_row(length, first["lengths"][length], second["lengths"][length])
        for length in lengths
    ]
    print(Table(cells).markdown())
    print(
        f"Perplexity of {names[0]} over that of {names[1]}; {describe_protocol(first)}; "
        f"paired bootstrap, {DRAWS:,} draws of blocks."
    )


def load_records(paths: list[str]) -> list[dict]:
    """Return two records. Raises InputError if they are not of the same text and protocol."""
    if len(paths) != 2:
        raise InputError(
            "two records are needed: python compare.py runs/A/eval_DATA_val.json "
            "runs/B/eval_DATA_val.json"
        )
    records = [read_json(path, "make it with eval_extrapolation.py") for path in paths]
    problems = []
    for path, record in zip(paths, records, strict=True):
        if not isinstance(record, dict) or not {"lengths", "data", "protocol"} <= record.keys():
            problems.append(f"{path} is not a record of eval_extrapolation.py: use another file")
    if problems:
        raise InputError(*problems)
    for key in ("data", "protocol"):
        if records[0][key] != records[1][key]:
            problems.append(f"the records differ in {key}: evaluate both runs in the same way")
    if problems:
        raise InputError(*problems)
    return records


def shared_lengths(first: dict, second: dict) -> list[str]:
    """Return the lengths whose block losses both records hold. Raises InputError if none."""
    lengths = []
    for length, entry in first["lengths"].items():
        entries = [entry, second["lengths"].get(length)]
        if all(entry and "blocks" in entry for entry in entries):
            lengths.append(length)
    if not lengths:
        raise InputError(
            "the records share no context length with losses of blocks: "
            "evaluate both runs at the same --lengths"
        )
    return lengths


def comparison_row(length: str, first: dict, second: dict) -> list[str]:
    """Return the table's row of one context length, from the entries of both records."""
    blocks = len(first["blocks"])
    block_tokens = first.get("block_tokens", [1] * blocks)  # older records: blocks of equal size
    ratio, low, high = bootstrap_ratio(
        np.array(first["blocks"]), np.array(second["blocks"]), np.array(block_tokens)
    )
    return [
        f"{int(length):,}",
        f"{first['perplexity']:.2f}",
        f"{second['perplexity']:.2f}",
        f"{ratio:.4f}",
        f"{low:.4f} – {high:.4f}" if blocks > 1 else "unknown",
        f"{blocks:,}",
    ]


def bootstrap_ratio(
    first: np.ndarray, second: np.ndarray, block_tokens: np.ndarray
) -> tuple[float, float, float]:
    """Return the ratio of two perplexities and the bounds of its 95% bootstrap interval.

    first, second: (n,) mean losses of the blocks in nats; block_tokens: (n,) tokens of each block.
    """
    differences = first - second
    random = np.random.default_rng(0)

    def mean_difference(draw) -> float:
        return np.average(differences[draw], weights=block_tokens[draw])

    blocks = len(block_tokens)
    draws = [mean_difference(random.integers(blocks, size=blocks)) for _ in range(DRAWS)]
    low, high = np.percentile(draws, [2.5, 97.5])
    return tuple(np.exp([mean_difference(slice(None)), low, high]).tolist())


if __name__ == "__main__":
    cli.run(main)
