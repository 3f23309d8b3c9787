"""Compare the perplexities of two runs with a paired bootstrap.

    python compare.py runs/quickstart/{cable,alibi}/eval_stdlib_val_32x4096.json

For each context length that both records hold, the ratio of the perplexities is printed, first over
second, with a 95% confidence interval. The text is cut into at most 32 segments. The bootstrap
draws segments with replacement, 10,000 times, and the same segments for both runs, so that text
which is hard for both does not widen the interval. A ratio below 1 means that the first run is
better. The difference is significant if the interval does not contain 1. Details:
evaluation/intervals.py.
"""

from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli
from runtime.files import read_json

from errors import InputError
from evaluation.intervals import DRAWS, MAX_SEGMENTS, perplexity_ratio
from reporting.columns import protocol_of, record_labels
from reporting.formatting import Table
from reporting.metrics import describe_protocol


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
    cells = [["context", *names, "ratio", "95% interval", "segments"]]
    cells += [
        comparison_row(length, first["lengths"][length], second["lengths"][length])
        for length in lengths
    ]
    print(Table(cells).markdown())
    print(
        f"Perplexity of {names[0]} over that of {names[1]}; {describe_protocol(first)}; "
        f"paired bootstrap, {DRAWS:,} draws of segments."
    )


def load_records(paths: list[str]) -> list[dict]:
    """Return two records. Raises InputError if they are not of the same text and protocol."""
    if len(paths) != 2:
        raise InputError(
            "two records are needed: python compare.py runs/A/eval_DATA_val.json "
            "runs/B/eval_DATA_val.json"
        )
    for path in map(Path, paths):
        if path.is_dir():
            raise InputError(f"{path} is a folder: pass its record, one of {path}/eval_*.json")
    records = [read_json(path, "make it with eval_extrapolation.py") for path in paths]
    problems = []
    for path, record in zip(paths, records, strict=True):
        if not isinstance(record, dict) or not {"lengths", "data", "protocol"} <= record.keys():
            problems.append(f"{path} is not a record of eval_extrapolation.py: use another file")
    if problems:
        raise InputError(*problems)
    first, second = records
    for key, differs in (
        ("data", first["data"] != second["data"]),
        ("protocol", protocol_of(first) != protocol_of(second)),
    ):
        if differs:
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
    ratio = perplexity_ratio([(first, second)])
    segments = min(MAX_SEGMENTS, len(first["blocks"]))
    is_known = segments > 1 and ratio.low is not None
    return [
        f"{int(length):,}",
        f"{first['perplexity']:.2f}",
        f"{second['perplexity']:.2f}",
        f"{ratio.estimate:.4f}",
        f"{ratio.low:.4f} – {ratio.high:.4f}" if is_known else "unknown",
        f"{segments:,}",
    ]


if __name__ == "__main__":
    cli.run(main)
