"""Compare the perplexity of an encoding with that of others, over text and seeds.

    python compare.py runs/quickstart/{cable,alibi}/eval_stdlib_val_32x4096.json
    python compare.py runs/small/{sandwich,alibi}*/eval_english_val.json
    python compare.py results/quickstart/records.jsonl:{cable,alibi}

The first record's encoding is compared with each other one. Runs that
differ only in their seed are averaged and paired by seed. For each
context length that both have, a row has the ratio of the perplexities,
first encoding over the other one, with a 95% interval over text and
seeds. A ratio below 1 means that the first one is better; the
difference is significant if the interval does not contain 1 (details:
evaluation/intervals.py).

With two or more seeds in common, a row has the p of a paired two-sided
t-test, too, as table 3 of the Sandwich paper: a dagger marks encodings
that are significantly worse than the first one (p < 0.05), an asterisk
those that are significantly better (evaluation/significance.py).

Runs that differ in more than encoding and seed are not compared, except
in the settings of --may_differ: a line above the table names what
differs.
"""

from dataclasses import dataclass

from runtime import cli

from errors import InputError
from evaluation.record_schema import read_records
from evaluation.significance import explain_marks, paired_test
from reporting.columns import (
    Column,
    compare,
    describe_differences,
    make_columns,
    read_names,
)
from reporting.formatting import MISSING, Table, mean_and_deviation, with_interval
from reporting.metrics import PERPLEXITY, describe_protocol, metric_of
from setting import setting


@dataclass
class Config:
    """Settings of a comparison."""

    records: list[str] = setting([], positional=True)
    """JSON records of eval_extrapolation.py"""
    may_differ: str = ""
    """settings that were tuned for each run, or are the subject of the comparison, as in
    lr,block_size"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    records = load_records(config.records)
    may_differ = read_names(config.may_differ)
    columns = make_columns(records, PERPLEXITY.key, may_differ)
    columns.sort(key=lambda column: records[0] not in column.records)
    first = columns[0]
    if len(columns) == 1:
        what = f"all records are of {first.label}"
        raise InputError(f"{what}: pass records of another encoding, too")
    rows = [row for length in first.lengths() for row in compare_at(length, *columns)]
    if not rows:
        what = f"no other run has a length of {first.label}"
        raise InputError(f"{what}: evaluate all at the same --lengths")
    warning, differences = describe_differences(columns, may_differ)
    if warning:
        print(f"{warning}\n")
    print(Table.from_rows(rows).markdown())
    caption = f"Ratio: perplexity of {first.label} over that of the other encoding"
    if any(row["p"] != MISSING for row in rows):
        marks = explain_marks(first.label, "shared seeds")
        differences = f" {marks}{differences}"
    print(f"{caption}; protocol: {describe_protocol(records[0])}.{differences}")


def compare_at(length: int, first: Column, *others: Column) -> list[dict[str, str]]:
    """Return a row of the table for each other column that was evaluated at a length."""
    rows = []
    for other in others:
        by_seed = first.values_by_seed(length), other.values_by_seed(length)
        if not all(by_seed):
            continue
        shared = by_seed[0].keys() & by_seed[1].keys()
        if not shared and max(map(len, by_seed)) > 1:
            what = f"{first.label} and {other.label} have no seed in common"
            raise InputError(f"{what}: evaluate runs of the same seeds")
        text, p = "not comparable", MISSING
        if ratio := compare((first, other), length):
            seeds = f"{ratio.seeds} seeds" if ratio.seeds > 1 else "one seed"
            kind = "" if ratio.paired else ", unpaired"
            text = f"{with_interval(ratio, 4)}, {seeds}{kind}"
            if test := paired_test(*by_seed):
                p = f"{test.p:.2g}{test.mark}"
        ours, theirs = (
            mean_and_deviation([values[seed] for seed in shared or values]) for values in by_seed
        )
        row = {"context": f"{length:,}", first.label: ours, "other": other.label}
        rows.append(row | {"perplexity": theirs, "ratio (95% interval)": text, "p": p})
    return rows


def load_records(paths: list[str]) -> list[dict]:
    """Return the records. Raises InputError if they differ in text or protocol."""
    problems, records = [], []
    for source, record in read_records(paths, "make it with eval_extrapolation.py").items():
        if metric_of(record) is PERPLEXITY:
            records.append(record)
        elif source in paths:  # a line of a .jsonl file may be of another metric
            what = f"{source} is not a record of eval_extrapolation.py"
            problems.append(f"{what}: use another file")
    for key in ("data", "protocol"):
        if any(record[key] != records[0][key] for record in records):
            what = f"the records differ in {key}"
            problems.append(f"{what}: evaluate all runs in the same way")
    if problems:
        raise InputError(*problems)
    if not records:
        raise InputError("no records given: python compare.py runs/*/eval_DATA_val.json")
    return records


if __name__ == "__main__":
    cli.run(main)
