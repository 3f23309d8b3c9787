"""Turns the JSON records of evaluations into tables (Markdown, CSV, LaTeX) and plots, and judges the papers' claims on them.

    python report.py runs/quickstart/*/eval_*.json --out_dir runs/quickstart
    python report.py runs/medium/*/eval_*.json --paper results/paper/cable_table1_fineweb-edu-10b_medium.csv --out_dir results/medium
    python report.py results/bench/*.json --out_dir results/bench

    python report.py runs/retrieval/*/eval_*.json --paper results/paper/cable_table3_mldr_ndcg10_bert.csv --out_dir results/retrieval

Writes perplexity.md, .csv, .tex and .png, and by_position.png, the perplexity of each place in the longest window; runs that
differ in their seed alone become one column, mean ± standard deviation. --paper sets the paper's numbers beside ours. Records of
several data sets or protocols make a table each, those of eval_recall.py (recall.md, ...), retrieval.evaluate (retrieval.md, ...) and
eval_hellaswag.py (hellaswag.md, ...) tables of their own, and those of bench.py one for each benchmark, the plot showing throughput and
memory against context, as the CABLE paper's figure 3. Those of eval_receptive_field.py become receptive_field.md, ..., and
cumulative_gradient.png; beside records of perplexity they are judged by these.
"""

from dataclasses import dataclass, field
from pathlib import Path

from errors import InputError
from reporting import claims, figures, paper, tables
from runtime import cli
from runtime.files import atomic, read_json


@dataclass
class Config:
    """Settings of a report."""

    records: list[str] = field(default_factory=list)
    """JSON files written by one of the programs eval_*.py, or bench.py"""
    paper: str | None = None
    """a file of results/paper, to set its numbers beside ours"""
    out_dir: str = "runs"
    """folder of the tables and the plots"""


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("records", "JSON files of evaluations or benchmarks")
    )
    if not config.records:
        raise InputError("no record named: python report.py runs/*/eval_*.json")
    combined = config.paper is not None and Path(config.paper).name == paper.GENERALIZATION
    printed = paper.load(config.paper) if config.paper and not combined else None
    records = {
        path: read_json(path, "make it with one of the programs eval_*.py, or bench.py")
        for path in config.records
    }
    kinds = {path: kind_of(record) for path, record in records.items()}
    problems = [
        f"{path} is no record of one of the programs eval_*.py, nor of encodings by bench.py: name others"
        for path, kind in kinds.items()
        if kind is None
    ]
    if problems:
        raise InputError(*problems)
    of_kind = {
        kind: {path: records[path] for path in records if kinds[path] == kind}
        for kind in (*(measure.kind for measure in tables.MEASURES), "hellaswag", "bench")
    }
    perplexity, accuracy, speeds = of_kind["perplexity"], of_kind["hellaswag"], of_kind["bench"]
    check_speeds(speeds)
    if printed and not any(matches(printed, record) for record in records.values()):
        raise InputError(
            f"{config.paper} holds {printed.measure} of {'en' if printed.measure == tables.NDCG.name else 'de'}coders, which "
            "none of the records does: choose another --paper"
        )
    out = Path(config.out_dir)
    if combined:
        found = tables.on_other_data([*perplexity.values(), *accuracy.values()])
        cells = tables.generalization(found, paper.generalization())
        verdicts = "\n".join(f"- {verdict}" for verdict in claims.judge_generalization(found))
        caption = (
            "HellaSwag accuracy in percent, perplexity on other data; paper: CABLE, version 1, table 1. "
            "For protocols and standard errors, see the tables below."
        )
        write(
            out,
            "generalization",
            f"{tables.aligned(cells)}\n\n{caption}\n\n{verdicts}".rstrip(),
            (cells[0], cells[1:]),
            cells,
        )
    for measure in tables.MEASURES:
        report_contexts(
            measure, [*of_kind[measure.kind].values()], printed, [*perplexity.values()], out
        )
    if accuracy:
        cells = tables.accuracy(tables.in_order([*accuracy.values()]))
        write(
            out,
            "hellaswag",
            f"{tables.aligned(cells)}\n\nHellaSwag accuracy in percent ± standard error, as "
            "lm-evaluation-harness computes it; chance is 25.",
            (cells[0], cells[1:]),
            cells,
        )
    report_speeds(speeds, out)


def kind_of(record) -> str | None:
    """The kind of one of the MEASURES, hellaswag or bench; None for anything else."""
    if not isinstance(record, dict):
        return None
    if {"lengths", "data"} <= record.keys():
        measure = tables.measure_of(record)
        return (
            measure.kind if measure and (measure == tables.NDCG or "protocol" in record) else None
        )
    return (
        "hellaswag"
        if {"acc", "acc_norm"} <= record.keys()
        else "bench"
        if tables.BENCHMARKS.keys() & record.keys()
        else None
    )


def matches(printed: paper.Table, record: dict) -> bool:
    """Whether a record holds what the paper's table does."""
    if printed.measure == tables.NDCG.name:
        return record.get("metric") == printed.measure
    return kind_of(record) == tables.PERPLEXITY.kind and "objective" not in record


def report_contexts(
    measure: tables.Measure,
    records: list[dict],
    printed: paper.Table | None,
    perplexities: list[dict],
    out: Path,
) -> None:
    """A table, verdicts and plots for each data set and protocol among records of this measure, at several lengths.

    perplexities: records of it that belong to the same report.
    """
    groups, kind = tables.alike(records), measure.kind
    for number, group in enumerate(groups, 1):
        data = group[0]["data"]
        name = kind if len(groups) == 1 else f"{kind}_{number}_{data['dataset']}_{data['split']}"
        columns, beside = (
            tables.columns(group),
            printed if printed and matches(printed, group[0]) else None,
        )
        table, best = tables.by_context(columns), measure.best
        parts = [tables.markdown(*table, best), tables.caption(group)]
        if beside and any(beside.covers(column.pe) for column in columns):
            cells, meaning = tables.printed_beside(columns, beside)
            if any(cell != "—" for row in cells[1:] for cell in row[2:]):
                parts += [tables.aligned(cells), meaning]
        verdicts = []
        if measure == tables.NDCG:
            verdicts = claims.judge_retrieval(columns)
        elif measure == tables.RECEPTIVE_FIELD:
            verdicts = claims.judge_receptive_fields(
                columns, [tables.columns(some) for some in tables.alike(perplexities)]
            )
        elif (
            measure == tables.PERPLEXITY and "objective" not in group[0]
        ):  # the claims on perplexity are on decoders
            verdicts = claims.judge(columns, beside)
        parts.append("\n".join(f"- {verdict}" for verdict in verdicts))
        drawn = any(
            entry for record in group for entry in record["lengths"].values()
        )  # nothing beyond the end of a learned table
        write(
            out,
            name,
            "\n\n".join(filter(None, parts)),
            tables.with_deviations(*table),
            tables.cells_of(*table, best),
            (lambda file: figures.by_context(columns, file)) if drawn else None,
        )
        if drawn and all(
            "by_position" in entry
            for record in group
            for entry in record["lengths"].values()
            if entry
        ):
            save(
                out / name.replace(kind, "by_position", 1),
                ".png",
                lambda file: figures.positions(columns, file),
            )
        if drawn and measure == tables.RECEPTIVE_FIELD:
            save(
                out / name.replace(kind, "cumulative_gradient", 1),
                ".png",
                lambda file: figures.cumulative_gradients(columns, file),
            )


def check_speeds(records: dict[str, dict]) -> None:
    holders = {
        name: [path for path, record in records.items() if name in record]
        for name in tables.BENCHMARKS
    }
    problems = [
        f"{' and '.join(paths)} all hold {name}: report them apart"
        for name, paths in holders.items()
        if len(paths) > 1
    ]
    if problems:
        raise InputError(*problems)


def report_speeds(records: dict[str, dict], out: Path) -> None:
    """Table and plot of each benchmark in records of bench.py, by their paths."""
    for name in tables.BENCHMARKS:
        for record in records.values():
            if name in record:
                text = f"{tables.speeds_text(name, record[name])} {record['processor']}, PyTorch {record['torch']}."
                write(
                    out,
                    name,
                    text,
                    tables.speeds(record[name]),
                    tables.speeds_cells(record[name]),
                    lambda file: figures.speeds(record[name], file),
                )


def write(
    out: Path,
    name: str,
    text: str,
    table: tuple[list[str], list[list]],
    cells: list[list[str]],
    plot=None,
) -> None:
    """Prints the text, and writes it, the table as CSV, its printed cells as LaTeX, and the plot, a function of the file."""
    print(f"{text}\n")
    save(out / name, ".md", lambda file: file.write(text.encode() + b"\n"))
    save(out / name, ".csv", lambda file: file.write(tables.comma_separated(*table).encode()))
    save(out / name, ".tex", lambda file: file.write(tables.latex(cells).encode() + b"\n"))
    if plot:
        save(out / name, ".png", plot)


def save(stem: Path, suffix: str, fill) -> None:
    path = stem.with_name(stem.name + suffix)
    with atomic(path) as file:
        fill(file)
    print(f"written: {path}")


if __name__ == "__main__":
    cli.run(main)
