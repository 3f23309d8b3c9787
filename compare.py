"""Is one checkpoint better than another, or is it chance? A paired bootstrap over the text that both were evaluated on.

    python compare.py runs/quickstart/{cable,alibi}/eval_stdlib_val_32x4096.json

For every context that both records hold: the ratio of their perplexities, first over second, and the interval that 95 of 100 draws of
the text would give it. Blocks of neighbouring windows are drawn with replacement, 10,000 times, the same ones for both checkpoints,
so that texts which are hard for both do not count. Below 1 the first is better, and an interval that leaves out 1 tells them apart.
"""

from dataclasses import dataclass, field

import numpy as np

from errors import InputError
from reporting import tables
from runtime import cli
from runtime.files import read_json

DRAWS = 10_000


@dataclass
class Config:
    """Settings of a comparison."""

    records: list[str] = field(default_factory=list)
    """two JSON files written by eval_extrapolation.py"""


def main(argv=None):
    config = cli.parse(
        Config,
        argv,
        __doc__,
        positional=("records", "two JSON files written by eval_extrapolation.py"),
    )
    if len(config.records) != 2:
        raise InputError(
            "name two records: python compare.py runs/A/eval_DATA_val.json runs/B/eval_DATA_val.json"
        )
    first, second = (
        read_json(path, "make it with eval_extrapolation.py") for path in config.records
    )
    problems = [
        f"{path} is no record of eval_extrapolation.py: name another"
        for path, record in zip(config.records, (first, second))
        if not isinstance(record, dict) or not {"lengths", "data", "protocol"} <= record.keys()
    ]
    if not problems:
        problems = [
            f"the records have another {key}: evaluate both alike"
            for key in ("data", "protocol")
            if first[key] != second[key]
        ]
    if problems:
        raise InputError(*problems)
    shared = [
        length
        for length, entry in first["lengths"].items()
        if entry and second["lengths"].get(length)
    ]
    shared = [
        length
        for length in shared
        if all("blocks" in record["lengths"][length] for record in (first, second))
    ]
    if not shared:
        raise InputError(
            "the records share no context with the losses of its blocks: evaluate both at the same --lengths"
        )
    names = tables.labels([first, second])
    cells = [["context", *names, "ratio", "95% interval", "blocks"]]
    for length in shared:
        a, b = (record["lengths"][length] for record in (first, second))
        tokens = np.array(
            a.get("block_tokens", [1] * len(a["blocks"]))
        )  # older records have blocks of one size
        ratio, low, high = ratio_of(np.array(a["blocks"]), np.array(b["blocks"]), tokens)
        interval = (
            f"{low:.4f} – {high:.4f}" if len(a["blocks"]) > 1 else "unknown"
        )  # one block says nothing of others
        cells.append(
            [
                f"{int(length):,}",
                f"{a['perplexity']:.2f}",
                f"{b['perplexity']:.2f}",
                f"{ratio:.4f}",
                interval,
                f"{len(a['blocks']):,}",
            ]
        )
    print(tables.aligned(cells))
    print(
        f"Perplexity of {names[0]} over that of {names[1]}; {tables.protocol(first)}; paired bootstrap, {DRAWS:,} draws of blocks."
    )


def ratio_of(a: np.ndarray, b: np.ndarray, tokens: np.ndarray) -> tuple[float, float, float]:
    """Ratio of the perplexities whose mean losses by block, each of so many tokens, are a and b (n,), and the 2.5th and 97.5th percentile
    of its draws."""
    differences, random = a - b, np.random.default_rng(0)

    def mean(drawn):
        return np.average(differences[drawn], weights=tokens[drawn])

    draws = [mean(random.integers(len(tokens), size=len(tokens))) for _ in range(DRAWS)]
    return tuple(np.exp([mean(slice(None)), *np.percentile(draws, [2.5, 97.5])]).tolist())


if __name__ == "__main__":
    cli.run(main)
