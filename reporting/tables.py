"""Result tables: by context length, HellaSwag accuracy, losses, speed."""

import math
import operator
import re
import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise

from evaluation import intervals
from reporting.claims.quantities import FINAL, last_losses, loss_columns
from reporting.columns import Column, all_lengths, record_labels, sort_key
from reporting.formatting import (
    MISSING,
    Table,
    format_number,
    mean_and_deviation,
    standard_deviation,
)

Marks = dict[tuple[str, float], str]  # (label of a column, length) -> mark after the number
MAX_COLUMNS = 8  # wider tables are transposed


def length_table(
    columns: list[Column],
    x_name: str,
    best: Callable | None,
    marks: Marks | None = None,
) -> Table:
    """Return a table with a row per length: mean ± deviation over seeds.

    A wide table is transposed, shows the largest deviation, and omits lengths
    near others. best: min or max, of the values in bold, with all that print
    alike; None: no bold. marks: printed after the values.
    """
    lengths, marks = all_lengths(columns), marks or {}
    cells = [[x_name, *(column.label for column in columns)]]
    is_wide = len(cells[0]) > MAX_COLUMNS
    shown = _spread(lengths, MAX_COLUMNS - 2) if is_wide else lengths
    for length in shown:
        texts = [marks.get((column.label, length), "") for column in columns]
        row = printed_row([column.values(length) for column in columns], best)
        cells.append([f"{length:,}", *map(marked, row, texts)])
    if is_wide:
        cells = _transposed(cells)
        if not marks:
            _merge_deviations(cells, columns, shown)
    numbers = [[x_name, *lengths]]
    for column in columns:
        numbers.append([column.label, *map(column.mean, lengths)])
        deviations = _deviations(column, lengths)
        if any(value is not None for value in deviations):
            numbers.append([f"{column.label} std", *deviations])
    return Table(cells, _transposed(numbers))


def _deviations(column: Column, lengths: list[int]) -> list[float | None]:
    return [standard_deviation(column.values(length)) for length in lengths]


def _transposed(rows: list[list]) -> list[list]:
    return [list(column) for column in zip(*rows, strict=True)]


def _spread(lengths: list[int], most: int) -> list[int]:
    """Return at most `most` lengths, without those near the next one."""
    kept = [*lengths]
    while len(kept) > most:
        kept.remove(min(pairwise(kept), key=lambda pair: (pair[1] / pair[0], -pair[0]))[0])
    return kept


def _merge_deviations(
    cells: list[list[str]], columns: list[Column], lengths: list[int]
) -> None:
    """Move deviations into one column: the largest of each encoding."""
    known = [[n for n in _deviations(column, lengths) if n is not None] for column in columns]
    largest = [f"{max(values):.2f}" if values else MISSING for values in known]
    for row, last in zip(cells, ["± at most", *largest], strict=True) if any(known) else ():
        row[1:] = [re.sub(r" ± [\d.]+", "", cell) for cell in row[1:]] + [last]


def marked(cell: str, mark: str) -> str:
    """Return a printed cell with a mark, inside of bold face if any."""
    return f"{cell[:-2]}{mark}**" if cell.endswith("**") else cell + mark


def printed_row(row: list[list[float]], best: Callable | None) -> list[str]:
    """Return the printed cells of a row; row: values of seeds per column."""
    means = [statistics.mean(values) for values in row if values]
    winner = f"{best(means):z,.2f}" if best and len(means) > 1 else None
    cells = []
    for text in map(mean_and_deviation, row):
        wins = text.partition(" ")[0] == winner
        cells.append(f"**{text}**" if wins else text)
    return cells


def accuracy_table(records: list[dict]) -> Table:
    """Return a table of eval_hellaswag.py: percent ± standard error."""
    cells = [["", "acc", "acc_norm", "examples"]]
    for label, record in zip(record_labels(records), records, strict=True):
        numbers = [record[key] for key in ("acc", "acc_se", "acc_norm", "acc_norm_se")]
        acc, error, *norm = (format_number(n if n is None else 100 * n) for n in numbers)
        row = [label, f"{acc} ± {error}", " ± ".join(norm), f"{record['examples']:,}"]
        cells.append(row)
    return Table(cells)


def loss_table(record: dict) -> Table:
    """Return a table of `plot.py losses`: mean ± standard deviation over seeds."""
    cells = [["encoding", "final loss", "mean loss", "seeds"]]
    for column in loss_columns(record["runs"]):
        losses = [entry["losses"] for entry in column.entries_by_seed(1).values()]
        means = [
            [float(last_losses(each, part).mean()) for each in losses] for part in (FINAL, 1)
        ]
        cells.append(
            [column.label, *(mean_and_deviation(m, 3) for m in means), f"{len(losses)}"]
        )
    return Table(cells)


# Columns of a benchmark's table, and their formats.
SPEED_FORMATS = {
    "ms": "{:,.1f}",
    "tokens/s": "{:,.0f}",
    **{f"vs {name}": "{:.3f}" for name in ("rope", "nope", "sdpa", "flash", "cudnn")},
    **{f"vs {name}": "{:.2f}" for name in ("dense", "flex")},
    "MFU": "{:.1%}",
    "error": "{:.1e}",
    "memory (MB)": "{:,.1f}",
    "weights (MB)": "{:,.1f}",
}


def cases(result: dict) -> Iterator[tuple[int, str, dict | None]]:
    """Yield (context, encoding, entry) of a benchmark of bench.py, in order.

    An entry of None: the encoding does not support the context.
    """
    for context, by_name in sorted(result["contexts"].items(), key=lambda item: int(item[0])):
        for name in sorted(by_name, key=speed_sort_key):
            yield int(context), name, by_name[name]


def speed_table(result: dict, by_context: bool = False) -> Table:
    """Return a benchmark's table: one row per context and encoding.

    Unsupported contexts have no numbers; columns without any are omitted.
    by_context: print one row per encoding; the CSV file stays complete.
    """
    rows = []
    for context, name, entry in cases(result):
        row = {"context": context, "encoding": name}
        if entry:
            row |= {
                "ms": 1000 * statistics.median(entry["seconds"]),
                "tokens/s": entry["tokens_per_second"],
                **{f"vs {other}": ratio for other, ratio in entry["ratios"].items()},
                "MFU": entry["mfu"],
                "error": entry.get("error"),
                "memory (MB)": entry["memory"] / 1e6,
                "weights (MB)": entry["weights"] / 1e6 if "weights" in entry else None,
            }
        rows.append(row)
    measured = {name for row in rows for name, value in row.items() if value is not None}
    formats = {name: text for name, text in SPEED_FORMATS.items() if name in measured}
    table = Table.from_values({"context": "{:,}", "encoding": "{}", **formats}, rows)
    if by_context and 1 < len(result["contexts"]) < MAX_COLUMNS:
        table.cells = _cells_by_context(table.cells)
    elif by_context and len(table.cells[0]) > MAX_COLUMNS:
        kept = [n for n, name in enumerate(table.cells[0]) if name not in ("ms", "vs nope")]
        table.cells = [[row[n] for n in kept] for row in table.cells]
    return table


def time_table(result: dict) -> Table | None:
    """Return where a benchmark's time goes, and its spread; None: not profiled.

    spread: slowest minus fastest round, relative to the median.
    """
    rows = []
    for context, name, entry in cases(result):
        if entry and "time" in entry:
            seconds = entry["seconds"]
            spread = (max(seconds) - min(seconds)) / statistics.median(seconds)
            rows.append({"case": f"{name}, {context:,}", "spread": spread} | entry["time"])
    return Table.from_values(dict.fromkeys(rows[0], "{:.1%}"), rows) if rows else None


def _cells_by_context(cells: list[list[str]]) -> list[list[str]]:
    """Return one row per encoding: ratio, memory and speed, as fit."""
    names, *rows = cells
    by_case = {(row[0], row[1]): row for row in rows}
    contexts, encodings = (dict.fromkeys(row[n] for row in rows) for n in (0, 1))
    ratios = [name for name in names if name.startswith("vs ")][:1]
    fitting = max(1, (MAX_COLUMNS - 1) // len(contexts))
    columns = [["encoding", *encodings]]
    for name in [*ratios, "memory (MB)", "tokens/s"][:fitting]:
        for context in contexts:
            found = [by_case.get((context, encoding)) for encoding in encodings]
            numbers = [row[names.index(name)] if row else MISSING for row in found]
            columns.append([f"{name}, {context}", *numbers])
    return _transposed(columns)


def describe_setup(result: dict) -> str:
    """Return the model and the device of a benchmark in words."""
    compiled = "compiled" if result["compile"] else "not compiled"
    return f"{result['model']} model, {result['dtype']}, {result['device']}, {compiled}"


def speed_sort_key(name: str) -> tuple:
    """Return the sort key of a case, e.g. "cable triton": encoding, path."""
    return sort_key(name.partition(" ")[0]), name


def comparison_table(record: dict) -> Table:
    """Return the table of `bench.py compare`: a row per task and other code.

    Speeds are medians. The ratio is the geometric mean over rounds, with its
    interval. Of peak: median of our FLOP/s relative to a matrix product in the
    same round; a task without FLOPs has none.
    """
    rows = []
    for row in record["compare"]["rows"]:
        ours, theirs = row["seconds"]["ours"], row["seconds"]["theirs"]
        logs = [math.log(b) - math.log(a) for a, b in zip(ours, theirs, strict=True)]
        of_peak = None
        product = row["seconds"].get("product")
        if row.get("flops") and row.get("product_flops") and product:
            relative = map(operator.truediv, product, ours)
            of_peak = row["flops"] / row["product_flops"] * statistics.median(relative)
        rows.append(
            {
                "task": ", ".join(filter(None, (row["task"], row.get("encoding")))),
                "against": row["against"],
                "ours (tokens/s)": row["tokens"] / statistics.median(ours),
                "theirs (tokens/s)": row["tokens"] / statistics.median(theirs),
                "ratio": intervals.ratio_of_rounds(logs),
                "of peak": of_peak,
            }
        )
    formats = ("{}", "{}", "{:,.0f}", "{:,.0f}", "", "{:.1%}")
    return Table.from_values(dict(zip(rows[0], formats, strict=True)), rows)
