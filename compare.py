"""Compare the perplexities of runs: paired bootstrap over the text, or t-test over seeds.

    python compare.py runs/quickstart/{cable,alibi}/eval_stdlib_val_32x4096.json
    python compare.py --over seeds runs/small/{sandwich,alibi}*/eval_arxiv_val_1000x8192.json
    python compare.py results/quickstart/records.jsonl:{cable,alibi}        # runs in a .jsonl file

--over text compares two records. For each context length that both hold, the ratio of the
perplexities is printed, first over second, with a 95% confidence interval. The text is cut into at
most 32 segments. The bootstrap draws segments with replacement, 10,000 times, and the same segments
for both runs, so that text which is hard for both does not widen the interval. A ratio below 1
means that the first run is better. The difference is significant if the interval does not contain
1. Details: evaluation/intervals.py.

--over seeds compares the first record's encoding with each other one. Every encoding needs records
of at least two seeds, and runs are paired by seed. For each length it prints mean ± standard
deviation, the mean difference, and a paired two-sided t-test, as table 3 of the Sandwich paper:
a dagger marks encodings that are significantly worse than the first one (p < 0.05), an asterisk
those that are significantly better. Details: evaluation/significance.py.

Runs that differ in more than encoding and seed are not compared, except in the settings of
--may_differ: a line above the table names what differs.
"""

from dataclasses import dataclass, field
from typing import Literal

from runtime import cli

from errors import InputError
from evaluation.intervals import DRAWS, perplexity_ratio, segment_losses
from evaluation.record_schema import read_records
from evaluation.significance import compare_seeds, explain_marks
from reporting.claims.verdicts import NOT_COMPARABLE
from reporting.columns import (
    Column,
    describe_differences,
    make_columns,
    read_may_differ,
    record_labels,
)
from reporting.formatting import MISSING, Table, mean_and_deviation
from reporting.metrics import PERPLEXITY, describe_protocol, metric_of


@dataclass
class Config:
    """Settings of a comparison."""

    records: list[str] = field(default_factory=list)
    """JSON records of eval_extrapolation.py"""
    over: Literal["text", "seeds"] = "text"
    """what the uncertainty is over: text: two records; seeds: two or more encodings, each with
    records of two or more seeds"""
    may_differ: str = ""
    """settings that were tuned for each run, or are the subject of the comparison, as in
    lr,block_size"""


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("records", "JSON records of eval_extrapolation.py")
    )
    records = load_records(config.records, config.over)
    may_differ = read_may_differ(config.may_differ, records)
    if config.over == "seeds":
        compare_over_seeds(records, may_differ)
    else:
        compare_over_text(records, may_differ)


def compare_over_text(records: list[dict], may_differ: tuple[str, ...] = ()) -> None:
    """Print the ratio of two records at each length, with its interval."""
    names = record_labels(records)
    columns = [
        Column(name, record["pe"], [record], "perplexity", may_differ)
        for name, record in zip(names, records, strict=True)
    ]
    differences = print_warning(columns, may_differ)
    cells = [["context", *names, "ratio", "95% interval", "segments"]]
    for length in shared_lengths(*records):
        row = comparison_row(length, *(record["lengths"][length] for record in records))
        if columns[0].differing(columns[1]):
            row[3:5] = [NOT_COMPARABLE, MISSING]
        cells.append(row)
    print(Table(cells).markdown())
    print(
        f"Perplexity of {names[0]} over that of {names[1]}; {describe_protocol(records[0])}; "
        f"paired bootstrap, {DRAWS:,} draws of segments.{differences}"
    )


def print_warning(columns: list[Column], may_differ: tuple[str, ...]) -> str:
    """Print what prevents a comparison, and return a sentence on the settings that may differ."""
    warning, differences = describe_differences(columns, may_differ)
    if warning:
        print(f"{warning}\n")
    return differences


def compare_over_seeds(records: list[dict], may_differ: tuple[str, ...] = ()) -> None:
    """Print the t-test over seeds of the first record's encoding against each other one.

    Raises InputError if a column of records shares fewer than two seeds with the first one.
    """
    columns = make_columns(records, "perplexity", may_differ)
    reference = next(column for column in columns if records[0] in column.records)
    others = [column for column in columns if column is not reference]
    if not others:
        raise InputError(
            f"all records are of {reference.label}: pass records of another encoding, too"
        )
    first_seeds = {record.get("seed") for record in reference.records}
    for column in others:
        shared = first_seeds & {record.get("seed") for record in column.records}
        if len(shared) < 2:
            raise InputError(
                f"{reference.label} and {column.label} have fewer than two seeds in common: "
                "evaluate both with the same two or more seeds, trained by the same recipe"
            )
    differences = print_warning(columns, may_differ)
    cells = [["context", "encoding", "perplexity", "difference", "t", "p", ""]]
    for length in reference.lengths():
        rows = [row for other in others if (row := seeds_row(reference, other, length))]
        if rows:
            values = seed_values(reference, length)
            cells += [[f"{length:,}", reference.label, values, "", "", "", ""], *rows]
    print(Table(cells).markdown())
    marks = explain_marks(reference.label, len(first_seeds))
    print(
        f"Perplexity, mean ± standard deviation over seeds; difference from {reference.label}; "
        f"{describe_protocol(records[0])}. {marks}{differences}"
    )


def seeds_row(reference: Column, other: Column, length: int) -> list[str] | None:
    """Return the table's row of another encoding at a length; None: not evaluated there."""
    test = compare_seeds(reference.values_by_seed(length), other.values_by_seed(length))
    if test is None:
        return None
    numbers = [f"{test.difference:+.3f}", f"{test.t:.2f}", f"{test.p:.2g}", test.mark]
    if reference.differing(other):
        numbers = [NOT_COMPARABLE, MISSING, MISSING, ""]
    return ["", other.label, seed_values(other, length), *numbers]


def seed_values(column: Column, length: int) -> str:
    """Return mean ± standard deviation over the seeds of a column at a length."""
    values = [*column.values_by_seed(length).values()]
    return mean_and_deviation(values) if len(values) > 1 else MISSING


def load_records(paths: list[str], over: str) -> list[dict]:
    """Return the records. Raises InputError if they are not of the same text and protocol.

    over: see Config.
    """
    problems, records = [], []
    for source, record in read_records(paths, "make it with eval_extrapolation.py").items():
        if metric_of(record) is PERPLEXITY:
            records.append(record)
        elif source in paths:  # a line of a .jsonl file may be of another metric
            problems.append(f"{source} is not a record of eval_extrapolation.py: use another file")
    if problems:
        raise InputError(*problems)
    if over == "text" and len(records) != 2:
        raise InputError(
            f"two records are needed, not {len(records)}: python compare.py "
            "runs/A/eval_DATA_val.json runs/B/eval_DATA_val.json"
        )
    if len(records) < 4 and over == "seeds":
        raise InputError(
            "four records are needed, of two encodings with two seeds each: python compare.py "
            "--over seeds runs/A*/eval_DATA_val.json runs/B*/eval_DATA_val.json"
        )
    for key in ("data", "protocol"):
        if any(record[key] != records[0][key] for record in records):
            problems.append(f"the records differ in {key}: evaluate all runs in the same way")
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
    segments = segment_losses([first, second])
    return [
        f"{int(length):,}",
        f"{first['perplexity']:.2f}",
        f"{second['perplexity']:.2f}",
        f"{ratio.estimate:.4f}",
        f"{ratio.low:.4f} – {ratio.high:.4f}" if segments and ratio.low is not None else "unknown",
        f"{len(segments[1]) if segments else 1:,}",
    ]


if __name__ == "__main__":
    cli.run(main)
