"""Compare the perplexities of runs by a bootstrap over text or a t-test over seeds.

    python compare.py runs/quickstart/{cable,alibi}/eval_stdlib_val_32x4096.json
    python compare.py --over seeds \\
        runs/small/{sandwich,alibi}*/eval_arxiv_val_1000x8192.json
    python compare.py results/quickstart/records.jsonl:{cable,alibi}

--over text compares two records. For each context length that both hold, it
prints the ratio of the perplexities, first over second, with a 95% interval:
the bootstrap draws at most 32 segments of the text with replacement, the same
for both runs. A ratio below 1 means that the first run is better. The
difference is significant if the interval does not contain 1 (details:
evaluation/intervals.py).

--over seeds compares the first record's encoding with each other one. Every
encoding needs records of at least two seeds, and runs are paired by seed. For
each length it prints mean ± standard deviation, the mean difference, and a
paired two-sided t-test, as table 3 of the Sandwich paper: a dagger marks
encodings that are significantly worse than the first one (p < 0.05), an
asterisk those that are significantly better (evaluation/significance.py).

Runs that differ in more than encoding and seed are not compared, except in the
settings of --may_differ: a line above the table names what differs.
"""

from dataclasses import dataclass, field
from typing import Literal

from runtime import cli

from errors import InputError
from evaluation.intervals import DRAWS, perplexity_ratio, segment_losses
from evaluation.record_schema import read_records
from evaluation.significance import compare_seeds, explain_marks
from reporting.claims.claim import NOT_COMPARABLE
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
    """what the uncertainty is over: text: two records; seeds: two or more
    encodings with two or more seeds each"""
    may_differ: str = ""
    """settings that were tuned for each run, or are the subject of the
    comparison, as in lr,block_size"""


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("records", "JSON records of eval_extrapolation.py")
    )
    records = load_records(config.records)
    may_differ = read_may_differ(config.may_differ, records)
    if config.over == "text":
        if len(records) != 2:
            raise InputError(
                f"two records are needed, not {len(records)}: python compare.py "
                "runs/A/eval_DATA_val.json runs/B/eval_DATA_val.json"
            )
        columns = [
            Column(label, record["pe"], [record], PERPLEXITY.key, may_differ)
            for label, record in zip(record_labels(records), records, strict=True)
        ]
        cells, what, how = compare_over_text(*columns)
    else:
        columns = make_columns(records, PERPLEXITY.key, may_differ)
        columns.sort(key=lambda column: records[0] not in column.records)
        cells, what, how = compare_over_seeds(*columns)
    warning, differences = describe_differences(columns, may_differ)
    if warning:
        print(f"{warning}\n")
    print(Table(cells).markdown())
    print(f"{what}; {describe_protocol(records[0])}{how}{differences}")


def compare_over_text(first: Column, second: Column) -> tuple[list[list[str]], str, str]:
    """Return the table's cells, and the caption before and after the protocol.

    Raises InputError if the records share no length.
    """
    cells = [["context", first.label, second.label, "ratio", "95% interval", "segments"]]
    for length in first.lengths():
        ours, theirs = (each.records[0]["lengths"].get(str(length)) for each in (first, second))
        if not (ours and theirs and "blocks" in ours and "blocks" in theirs):
            continue
        ratio, segments = perplexity_ratio([(ours, theirs)]), segment_losses([ours, theirs])
        numbers = [f"{ratio.estimate:.4f}", "unknown"]
        if segments and ratio.low is not None:
            numbers[1] = f"{ratio.low:.4f} – {ratio.high:.4f}"
        if first.differing(second):
            numbers = [NOT_COMPARABLE, MISSING]
        values = [f"{each['perplexity']:.2f}" for each in (ours, theirs)]
        count = f"{len(segments[1]) if segments else 1:,}"
        cells.append([f"{length:,}", *values, *numbers, count])
    if len(cells) == 1:
        raise InputError(
            "the records share no context length with losses of blocks: "
            "evaluate both runs at the same --lengths"
        )
    what = f"Perplexity of {first.label} over that of {second.label}"
    return cells, what, f"; paired bootstrap, {DRAWS:,} draws of segments."


def compare_over_seeds(reference: Column, *others: Column) -> tuple[list[list[str]], str, str]:
    """Return the cells of the t-tests, and the caption, as compare_over_text.

    Raises InputError if a column shares fewer than two seeds with the reference.
    """
    if not others:
        raise InputError(
            f"all records are of {reference.label}: pass records of another encoding, too"
        )
    first_seeds = {record.get("seed") for record in reference.records}
    for column in others:
        if len(first_seeds & {record.get("seed") for record in column.records}) < 2:
            raise InputError(
                f"{reference.label} and {column.label} have fewer than two seeds in common: "
                "evaluate both with the same two or more seeds, trained by the same recipe"
            )
    cells = [["context", "encoding", "perplexity", "difference", "t", "p", ""]]
    for length in reference.lengths():
        values, rows = reference.values_by_seed(length), []
        for other in others:
            theirs = other.values_by_seed(length)
            if test := compare_seeds(values, theirs):
                numbers = [
                    f"{test.difference:+.3f}",
                    f"{test.t:.2f}",
                    f"{test.p:.2g}",
                    test.mark,
                ]
                if reference.differing(other):
                    numbers = [NOT_COMPARABLE, MISSING, MISSING, ""]
                rows.append(["", other.label, mean_and_deviation([*theirs.values()]), *numbers])
        if rows:
            printed = mean_and_deviation([*values.values()])
            cells += [[f"{length:,}", reference.label, printed, "", "", "", ""], *rows]
    what = (
        f"Perplexity, mean ± standard deviation over seeds; difference from {reference.label}"
    )
    return cells, what, f". {explain_marks(reference.label, len(first_seeds))}"


def load_records(paths: list[str]) -> list[dict]:
    """Return the records. Raises InputError if they differ in text or protocol."""
    problems, records = [], []
    for source, record in read_records(paths, "make it with eval_extrapolation.py").items():
        if metric_of(record) is PERPLEXITY:
            records.append(record)
        elif source in paths:  # a line of a .jsonl file may be of another metric
            problems.append(
                f"{source} is not a record of eval_extrapolation.py: use another file"
            )
    for key in ("data", "protocol"):
        if any(record[key] != records[0][key] for record in records):
            problems.append(f"the records differ in {key}: evaluate all runs in the same way")
    if problems:
        raise InputError(*problems)
    if not records:
        raise InputError("no records given: python compare.py runs/*/eval_DATA_val.json")
    return records


if __name__ == "__main__":
    cli.run(main)
