"""Turn records into tables and plots.

    python report.py runs/quickstart/*/eval_*.json --out_dir runs/quickstart
    python report.py runs/medium/*/eval_*.json --out_dir results/medium \\
        --paper cable_table1_fineweb-edu-10b_medium
    python report.py results/bench/figure3.json --out_dir results/bench/figure3

A file has one record or, with the suffix .jsonl, one in each line;
FILE.jsonl:RUN: those of a run. Each table is written as Markdown (.md,
with a caption) and CSV:

perplexity       eval_extrapolation.py, with a plot. With --within_documents also
                 context_gain, what long context saves
recall           eval_recall.py, with a plot
receptive_field  eval_receptive_field.py, with plots
retrieval        retrieval.evaluate, with a plot
hellaswag        eval_hellaswag.py
train, ...       bench.py: a table and a plot for each benchmark; train_time,
                 where the time goes
compare          bench.py compare: speed relative to other code
generalization   --paper: accuracy, and perplexity on other data

Runs that differ only in their seed become one column, mean ± standard
deviation. A line above the table names what else differs,
except the settings of --may_differ. Each data set and each
protocol gets its own table. --paper adds the numbers that a paper
printed, and a row on how far they agree.

    python report.py --all --check

makes every committed table and plot (results/reports.yaml) and
results/paper/README.md, the agreement with all printed tables, and
compares; without --check it writes them.
"""

import contextlib
import io
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from runtime import cli

import yaml

from errors import InputError
from evaluation import measures
from evaluation.record_schema import read_records
from reporting import figures, metrics, paper, paper_tables, tables
from reporting.columns import (
    describe_differences,
    group_by,
    group_by_protocol,
    in_order,
    make_columns,
    read_names,
)
from reporting.formatting import MISSING, Folder, Table
from reporting.metrics import PERPLEXITY, SPEED, Metric
from reporting.paper import Printed
from reporting.paper_tables import AGREEMENT_CAPTION, Agreement, Cell
from setting import setting

ROOT = Path(__file__).parent
AGREEMENT = Path("results/paper/README.md")


@dataclass
class Config:
    """Settings of a report."""

    records: list[str] = setting([], positional=True)
    """files of eval_*.py, retrieval.evaluate or bench.py, or .jsonl files"""
    paper: str | None = None
    """table in results/paper/index.csv whose numbers are shown as well"""
    out_dir: str = "results/mine"
    """folder for the tables and plots"""
    all: bool = False
    """make every committed table and plot (results/reports.yaml)"""
    check: bool = False
    """with --all: compare with the committed files, and write nothing"""
    may_differ: str = ""
    """settings that were tuned for each run, or are the subject of the comparison, as in
    lr,block_size"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    if config.all:
        make_all(config.check)
        return
    if not config.records:
        raise InputError("no records given: see python report.py --help")
    out = Folder(config.out_dir)
    report_records(config, out)
    out.write()


def report_records(config: Config, out: Folder) -> None:
    """Add tables and plots of all records."""
    printed = paper.load(config.paper) if config.paper else None
    remedy = "write it with eval_*.py, retrieval.evaluate or bench.py"
    records = [*read_records(config.records, remedy).values()]
    if printed and not any(metrics.matches_paper(printed, record) for record in records):
        what = f"{config.paper} holds {printed.metric} of decoders, or of encoders"
        raise InputError(f"{what}, but none of the records does: use another --paper")
    may_differ = read_names(config.may_differ)
    found = group_by(records, metrics.metric_of)
    found[metrics.GAIN] = measures.gain_records(found.get(PERPLEXITY, []))
    speeds = found.get(SPEED, [])
    for metric, group in found.items():
        if metric.key and group:
            report_lengths(metric, group, may_differ, speeds, printed, out)
    accuracies = in_order(found.get(metrics.ACCURACY, []))
    if accuracies:
        out.add_table(metrics.ACCURACY.stem, tables.accuracy_table(accuracies))
    if printed and printed.metric == paper.GENERALIZATION:
        cells = paper_tables.generalization_cells(accuracies + found.get(PERPLEXITY, []), printed)
        if parts := add_compared(out, printed, cells):
            print(out.add("generalization.md", *parts))
    for stem, record in numbered("compare", found.get(metrics.COMPARISON, [])):
        out.add_table(stem, tables.comparison_table(record))
    report_speeds(speeds, printed, out)


def add_compared(out: Folder, printed: Printed, cells: Iterable[Cell]) -> list[str]:
    """Return the table of a paper's numbers and ours, and a row on the agreement."""
    found = Agreement(printed, [*cells])
    if not found.measured():
        return []
    out.agreements.setdefault(printed.table, Agreement(printed, [])).cells += found.cells
    table = found.table()
    return [table.text() if table else "", Table.from_rows([found.row()]).markdown()]


def numbered(stem: str, items: list) -> list[tuple[str, Any]]:
    """Return a stem of files for each item, numbered if there are several."""
    suffix = "_{}" if len(items) > 1 else ""
    return [(stem + suffix.format(n), item) for n, item in enumerate(items, 1)]


def report_lengths(
    metric: Metric,
    records: list[dict],
    may_differ: tuple[str, ...],
    speeds: list[dict],
    printed: Printed | None,
    out: Folder,
) -> None:
    """Add tables and plots for each data set and protocol of a metric.

    speeds: records of bench.py.
    """
    groups = group_by_protocol(records)
    for number, group in enumerate(groups, 1):
        data = group[0]["data"]
        suffix = f"_{number}_{data['dataset']}_{data['split']}" if len(groups) > 1 else ""
        matching = printed if printed and metrics.matches_paper(printed, group[0]) else None
        columns = make_columns(group, metric.key, may_differ)
        marks, caption = paper_tables.seed_marks(columns, matching)
        allowed = *may_differ, "text"
        warning, differences = describe_differences(columns, allowed, by_model=True)
        table, stem = metric.table(columns, marks), f"{metric.stem}{suffix}"
        table.caption += caption + differences
        if metric is metrics.RECEPTIVE_FIELD:
            matching = paper.load(paper.RECEPTIVE_FIELD_TABLE)
        parts = []
        if matching:
            if metric is metrics.RECEPTIVE_FIELD:
                cells = paper_tables.receptive_field_cells(columns, matching)
            elif matching.metric == paper.TRAINING_LENGTHS:
                trains = [record["train"] for record in speeds if "train" in record]
                cells = paper_tables.training_length_cells(columns, trains, matching)
            else:
                cells = paper_tables.length_cells(columns, matching, marks)
            parts = add_compared(out, matching, cells)
        out.add_table(stem, table, *parts, warning=warning)
        if not metrics.entries_of(group):
            continue
        out.add_plot(stem, partial(metric.plot, columns))
        if metric is metrics.RECEPTIVE_FIELD:
            draw = partial(figures.cumulative_gradient, columns)
            out.add_plot(f"cumulative_gradient{suffix}", draw)


def report_speeds(records: list[dict], printed: Printed | None, out: Folder) -> None:
    """Add the table and the plot of each benchmark."""
    for benchmark in tables.BENCHMARKS:
        holders = [record for record in records if benchmark in record]
        for stem, record in numbered(benchmark, holders):
            result = record[benchmark]
            table = tables.speed_table(benchmark, result)
            table.caption += f" {tables.describe_machine(record)}"
            parts = []
            if printed and printed.metric == paper.SPEED:
                cells = paper_tables.speed_cells(benchmark, result, printed)
                parts = add_compared(out, printed, cells)
            out.add_table(stem, table, *parts)
            if times := tables.time_table(result):
                out.add_table(f"{stem}_time", times)
            out.add_plot(stem, partial(figures.speeds, result))


# Committed tables and plots (results/reports.yaml)


def read_rows() -> list[dict]:
    """Return the rows: "command", "files"; "needs", if not reproducible."""
    path = ROOT / "results" / "reports.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def make_again(row: dict) -> tuple[dict[Path, bytes], list[Agreement]]:
    """Return a row's files, by path in the repository, and the agreement with papers."""
    program, *words = shlex.split(row["command"])[1:]
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()):
        if program == "report.py":
            config = cli.parse(Config, words, __doc__)
            out = Folder(config.out_dir)
            report_records(config, out)
            files = {out.path / name: out.files[name] for name in row["files"]}
            return files, [*out.agreements.values()]
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "plot.png"
            command = [sys.executable, program, *words[:-1], str(made)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            return {Path(words[-1]): made.read_bytes()}, []


def agreement_page(found: list[tuple[str, Agreement]]) -> str:
    """Return the page on all printed tables; found: with our records."""
    rows = []
    for name in paper.index():
        measured = [each for each in found if each[1].paper.table == name]
        unmeasured = Agreement(paper.load(name), [])
        for records, each in measured or [(MISSING, unmeasured)]:
            rows.append(each.row() | {"our records": records})
    table = Table.from_rows(rows)
    table.caption = f"Written by `python report.py --all`. {AGREEMENT_CAPTION}"
    return f"# Agreement with the tables of the papers\n\n{table.text()}\n"


def make_all(check: bool) -> None:
    """Make all files; check: compare only. Raises InputError if some differ."""
    made, agreements = {}, []
    for row in read_rows():
        if "needs" not in row:
            files, found = make_again(row)
            records = shlex.split(row["command"])[2]
            agreements += [(records, each) for each in found]
            made |= files
            print(f"made {', '.join(map(str, files))}")
    made[AGREEMENT] = agreement_page(agreements).encode()
    differing = []
    for path, content in made.items():
        file = ROOT / path
        is_plot = path.suffix == ".png"  # depends on Matplotlib's version
        if not file.is_file() or (not is_plot and file.read_bytes() != content):
            differing.append(str(path))
            if not check:
                file.write_bytes(content)
                print(f"wrote {path}")
    if check and differing:
        names = ", ".join(differing)
        raise InputError(f"not what the records give: {names}: python report.py --all true")


if __name__ == "__main__":
    cli.run(main)
