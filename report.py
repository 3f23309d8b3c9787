"""Turn records into tables, plots and verdicts on the papers' claims.

    python report.py runs/quickstart/*/eval_*.json --out_dir runs/quickstart
    python report.py runs/medium/*/eval_*.json --out_dir results/medium \\
        --paper cable_table1_fineweb-edu-10b_medium
    python report.py results/bench/figure3.json --out_dir results/bench/figure3

A file has one record or, with the suffix .jsonl, one in each line;
FILE.jsonl:RUN: those of a run. Each table is written as Markdown (.md, with a
caption) and CSV:

perplexity       records of eval_extrapolation.py; also perplexity.png. With
                 --within_documents also context_gain, what long context saves
recall           records of eval_recall.py; also recall.png
receptive_field  records of eval_receptive_field.py; also receptive_field.png
                 and cumulative_gradient.png. Verdicts need perplexities too
retrieval        records of retrieval.evaluate; also retrieval.png
losses           record of plot.py losses: final and mean training loss
hellaswag        records of eval_hellaswag.py
train, ...       records of bench.py: a table and a plot for each benchmark, as
                 figure 3 of the CABLE paper
compare          record of bench.py compare: speed relative to other code
training_lengths perplexity of runs of different training length, and records of
                 `bench.py train`

Runs that differ only in their seed become one column, mean ± standard
deviation. Runs that differ in more than encoding and seed are not compared,
except in the settings of --may_differ. Each data set and each protocol gets its
own table. --paper adds the numbers that a paper printed.

A verdict holds, fails or is not decided by the 95% interval of what was
measured (docs/evaluation.md). Runs of fewer than 50 steps get no verdicts. All
are printed, and written to verdicts.csv.

    python report.py --index results --out_dir results

writes an index page of the papers' claims, claims.md, from all verdicts.csv in
a folder, with links to the tables.

    python report.py --trend results/reproduction results/ladder/*/ \\
        --out_dir results/ladder

writes trend.md and trend.png: the size of the claims' effects by number of
parameters, from the records in folders (reporting/trend.py).

    python report.py --all --check

makes every committed table and plot (results/reports.yaml), and compares;
without --check it writes them.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial

from runtime import cli

from errors import InputError
from evaluation.record_schema import read_records
from evaluation.significance import explain_marks
from reporting import claims, figures, metrics, paper, reports, tables, trend
from reporting.claims import index, other_data, paper_tables, speed, training_lengths
from reporting.columns import (
    Column,
    describe_differences,
    differing_texts,
    group_by_protocol,
    in_order,
    make_columns,
    read_may_differ,
)
from reporting.formatting import Folder, Table, escape_markdown
from reporting.metrics import (
    ACCURACY,
    BENCHMARKS,
    COMPARISON,
    LOSSES,
    METRICS,
    NDCG,
    PERPLEXITY,
    SPEED,
    Metric,
)
from reporting.paper import PaperStatements, PaperTable, Printed
from reporting.plots import context_gain


@dataclass
class Config:
    """Settings of a report."""

    records: list[str] = field(default_factory=list)
    """files of eval_*.py, retrieval.evaluate or bench.py, or .jsonl files"""
    paper: str | None = None
    """table in results/paper/index.csv whose numbers are shown as well"""
    out_dir: str = "results/mine"
    """folder for the tables and plots"""
    index: bool = False
    """write the index page of claims; the arguments are folders of reports"""
    trend: bool = False
    """write the trend of the claims over model sizes; the arguments are records
    or their folders"""
    all: bool = False
    """make every committed table and plot (results/reports.yaml)"""
    check: bool = False
    """with --all: compare with the committed files, and write nothing"""
    may_differ: str = ""
    """settings that were tuned for each run, or are the subject of the
    comparison, as in lr,block_size"""
    verdicts: bool = True
    """judge the papers' claims; false for functional tests"""


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("records", "JSON files of evaluations or benchmarks")
    )
    if config.index + config.trend + config.all > 1:
        raise InputError("--index, --trend and --all are three reports: use one of them")
    if config.all:
        return reports.make_all(config.check)
    if not config.records:
        example = "--index results --out_dir results" if config.index else "runs/*/eval_*.json"
        raise InputError(f"no records or folders given: python report.py {example}")
    out = Report(config.out_dir, config.verdicts)
    if config.index:
        verdicts = index.read_verdicts(config.records)
        out.add("claims.md", index.claims_page(verdicts, config.out_dir))
        return out.write()
    if config.trend:
        report_trend(config.records, out)
        return out.write()
    report_records(config, out)
    out.write(unless_added=index.FILE)


class Report(Folder):
    """The files of a report, with its verdicts."""

    def __init__(self, path: str, judges: bool):
        super().__init__(path)
        self.judges = judges
        """whether the report has verdicts"""
        self.may_differ: tuple[str, ...] = ()
        """settings in which runs that are compared may differ"""
        self.verdicts: list[dict] = []
        """rows of verdicts.csv"""

    def add_verdicts(self, stem: str, records: list[dict], verdicts: list[claims.Verdict]) -> str:
        """Add verdicts on a table's records; return the number of each outcome."""
        if not (self.judges and verdicts):
            return ""
        sizes = {record["size"] for record in records if record.get("size")}
        source = {"table": f"{stem}.md", "sizes": " ".join(sorted(sizes))}
        self.verdicts += [asdict(verdict) | source for verdict in verdicts]
        print(f"Verdicts of {stem}, with 95% intervals (docs/evaluation.md):")
        print("\n".join(f"- {verdict}" for verdict in verdicts), end="\n\n")
        counts = Counter(verdict.outcome for verdict in verdicts)
        texts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        return f"[Verdicts]({index.FILE}): {texts}."


def report_records(config: Config, out: Report) -> None:
    """Add tables, plots and verdicts of all records."""
    printed = paper.load(config.paper) if config.paper else None
    is_generalization = config.paper == paper.GENERALIZATION
    remedy = "write it with eval_*.py, retrieval.evaluate or bench.py"
    records = read_records(config.records, remedy)
    if printed and not is_generalization:
        check_paper(config.paper, printed, records)
    found: dict[Metric | None, list[dict]] = {metric: [] for metric in METRICS.values()}
    for record in records.values():
        found.setdefault(metrics.metric_of(record), []).append(record)
    check_benchmarks(records)
    out.may_differ = read_may_differ(config.may_differ, records.values())
    table = printed if isinstance(printed, PaperTable) else None
    statements = printed if isinstance(printed, PaperStatements) else None
    if is_generalization:
        report_generalization(found[PERPLEXITY] + in_order(found[ACCURACY]), out)
    for metric, group in found.items():
        if metric and group and "lengths" in group[0]:
            report_lengths(metric, group, table, found[PERPLEXITY], out)
    report_training_lengths(found[PERPLEXITY], found[SPEED], statements, out)
    if accuracies := in_order(found[ACCURACY]):
        out.add_table(ACCURACY.stem, ACCURACY.table(accuracies), ACCURACY.caption(accuracies))
    for metric in (LOSSES, COMPARISON):
        report_each(metric, found[metric], out)
    report_speeds(found[SPEED], statements, out)
    if out.verdicts:
        out.add(index.FILE, Table.from_rows(out.verdicts).csv())


def check_paper(path: str | None, printed: Printed, records: dict[str, dict]) -> None:
    """Raise InputError if no record is compared with the paper's numbers."""
    if any(metrics.matches_paper(printed, record) for record in records.values()):
        return
    kind = printed.metric
    if isinstance(printed, PaperTable):
        kind += " of encoders" if printed.metric == NDCG.name else " of decoders"
    raise InputError(f"{path} holds {kind}, but none of the records does: use another --paper")


def check_benchmarks(records: dict[str, dict]) -> None:
    """Raise InputError if several records hold the same benchmark."""
    # Records of other metrics have a key "attention" too.
    speeds = [path for path, record in records.items() if metrics.metric_of(record) is SPEED]
    for benchmark in BENCHMARKS:
        holders = [path for path in speeds if benchmark in records[path]]
        if len(holders) > 1:
            both = " and ".join(holders)
            raise InputError(f"{both} all hold the benchmark {benchmark}: report them separately")


def report_trend(paths: list[str], out: Report) -> None:
    """Add the table and the plot of the claims over model sizes."""
    rungs = trend.make_rungs(trend.read_records(paths))
    trends = trend.measure(rungs)
    out.add_table("trend", trend.table(trends, rungs), escape_markdown(trend.caption(rungs)))
    if any(any(ratios) for _, ratios in trends):
        out.add_plot("trend", partial(trend.plot, trends, rungs))


def report_generalization(records: list[dict], out: Report) -> None:
    """Add the table of results on other data than that of the training."""
    caption = (
        "HellaSwag accuracy in percent, perplexity on other data; paper: CABLE, version 1, table 1."
        " The paper does not name its HellaSwag metric."
        " For protocols and standard errors, see the tables below."
    )
    if differing := differing_texts([record for record in records if "lengths" in record]):
        names = escape_markdown(", ".join(differing))
        caption += f" Models are tested on different text or contexts: {names}."
    table = other_data.generalization_table(records, paper.generalization())
    trained = [*filter(claims.has_verdicts, records)]
    verdicts = claims.judge_generalization(trained, out.may_differ)
    stem = "generalization"
    out.add_table(stem, table, caption, out.add_verdicts(stem, records, verdicts))


def report_lengths(
    metric: Metric,
    records: list[dict],
    printed: PaperTable | None,
    perplexities: list[dict],
    out: Report,
) -> None:
    """Add a table, verdicts and plots for each data set and protocol.

    perplexities: records of perplexity in the same report.
    """
    groups = group_by_protocol(records)
    others = [make_columns(group, PERPLEXITY.key) for group in group_by_protocol(perplexities)]
    for number, group in enumerate(groups, 1):
        data = group[0]["data"]
        suffix = f"_{number}_{data['dataset']}_{data['split']}" if len(groups) > 1 else ""
        stem = f"{metric.stem}{suffix}"
        matching = printed if printed and metrics.matches_paper(printed, group[0]) else None
        columns = make_columns(group, metric.key, out.may_differ)
        marks, caption = seed_marks(columns, matching)
        trained = [column for column in columns if claims.has_verdicts(column.records[0])]
        warning, differences = describe_differences(trained, out.may_differ, by_model=True)
        parts = [f"{metric.caption(group)}{caption}{differences}"]
        comparison = paper_tables.paper_comparison(columns, matching, marks) if matching else None
        if comparison:
            parts += [comparison[0].markdown(), comparison[1]]
        if metric.judge and trained:
            verdicts = metric.judge(trained, printed=matching, perplexities=others)
            parts.append(out.add_verdicts(stem, group, verdicts))
        out.add_table(stem, metric.table(columns, marks=marks), *parts, warning=warning)
        for name, draw in metric.plots.items() if metrics.entries_of(group) else ():
            out.add_plot(f"{name}{suffix}", partial(draw, columns))
        if metric is PERPLEXITY and context_gain.has_gain(columns):
            gain = f"context_gain{suffix}"
            out.add_table(gain, context_gain.table(columns), context_gain.CAPTION)
            out.add_plot(gain, partial(context_gain.plot, columns))


def seed_marks(columns: list[Column], printed: PaperTable | None) -> tuple[tables.Marks, str]:
    """Return marks of paired t-tests over seeds and a sentence; ({}, ""): none.

    As in table 3 of the Sandwich paper, for its encodings, if all have two seeds.
    """
    covered = [each for each in columns if printed and printed.marks and printed.covers(each.pe)]
    if not (marks := tables.seed_marks(covered, paper.MARKS_REFERENCE)):
        return {}, ""
    seeds = min(len(column.records) for column in covered)
    caption = f" {explain_marks(paper.MARKS_REFERENCE, seeds)}"
    if len(covered) < len(columns):
        caption += " Encodings that the paper's table does not have are not marked."
    return marks, caption


def report_training_lengths(
    perplexities: list[dict], speeds: list[dict], printed: PaperStatements | None, out: Report
) -> None:
    """Add the comparison of runs of different training length, if there is one."""
    results = [record["train"] for record in speeds if "train" in record]
    stated = printed if printed and printed.metric == paper.TRAINING_LENGTHS else None
    for number, group in enumerate(group_by_protocol(perplexities), 1):
        columns = make_columns(group, PERPLEXITY.key, out.may_differ)
        compared = training_lengths.training_length_table(columns, results, stated)
        if compared is None or "objective" in group[0]:
            continue
        table, caption = compared
        stem = "training_lengths" if number == 1 else f"training_lengths_{number}"
        trained = [column for column in columns if claims.has_verdicts(column.records[0])]
        verdicts = claims.judge_training_lengths(trained, results)
        caption = f"{PERPLEXITY.caption(group)} {escape_markdown(caption)}"
        out.add_table(stem, table, caption, out.add_verdicts(stem, group, verdicts))


def report_each(metric: Metric, records: list[dict], out: Report) -> None:
    """Add a table for each record of a metric."""
    for number, record in enumerate(records, 1):
        stem = metric.stem if len(records) == 1 else f"{metric.stem}_{number}"
        verdicts = metric.judge(record) if metric.judge else []
        listed = out.add_verdicts(stem, record.get("runs", []), verdicts)
        out.add_table(stem, metric.table(record), metric.caption(record), listed)


def report_speeds(records: list[dict], printed: PaperStatements | None, out: Report) -> None:
    """Add the table, the verdicts and the plot of each benchmark."""
    found = [(name, record) for name in BENCHMARKS for record in records if name in record]
    for benchmark, record in found:
        result = record[benchmark]
        machine = escape_markdown(metrics.describe_machine(record))
        parts = [f"{SPEED.caption(benchmark, result)} {machine}"]
        compared = None
        if printed and printed.metric == paper.SPEED:
            compared = speed.paper_speeds(benchmark, result, printed)
        if compared:
            parts += [compared[0].markdown(), escape_markdown(compared[1])]
        verdicts = claims.judge_speed(benchmark, result)
        parts.append(out.add_verdicts(benchmark, [{"size": result["model"]}], verdicts))
        out.add_table(benchmark, SPEED.table(result, by_context=True), *parts)
        out.add_plot(benchmark, partial(figures.speeds, result))


if __name__ == "__main__":
    cli.run(main)
