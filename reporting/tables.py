"""Result tables: by context length, HellaSwag accuracy, speed."""

import statistics
from collections.abc import Callable, Iterator

import numpy as np

from evaluation import intervals
from reporting.columns import Column, all_lengths, make_columns, sort_key
from reporting.formatting import (
    MISSING,
    Bold,
    Table,
    escape_markdown,
    format_number,
    mean_and_deviation,
    number_range,
    standard_deviation,
)

Marks = dict[tuple[str, float], str]  # (label of a column, length) -> mark after the number
MAX_COLUMNS = 8  # wider tables are transposed


def length_table(columns: list[Column], x_name: str, best: Callable | None, marks: Marks) -> Table:
    """Return a table with a row per length: mean ± deviation over seeds.

    A wide table is transposed. best: min or max, of the values in bold, with all that print alike;
    None: no bold. marks: printed after the values.
    """
    lengths, winners = all_lengths(columns), {}
    for length in lengths:
        means = [mean for column in columns if (mean := column.mean(length)) is not None]
        if best and len(means) > 1:
            winners[length] = format_number(best(means))
    cells = [[x_name, *map("{:,}".format, lengths)]]
    numbers: list[list] = [[x_name, *lengths]]
    for column in columns:
        row, means = [column.label], [*map(column.mean, lengths)]
        deviations = [standard_deviation(column.values(n)) for n in lengths]
        numbers.append([column.label, *means])
        if any(value is not None for value in deviations):
            numbers.append([f"{column.label} std", *deviations])
        for length, mean in zip(lengths, means, strict=True):
            text = mean_and_deviation(column.values(length))
            text += marks.get((column.label, length), "")
            is_best = format_number(mean) == winners.get(length)
            row.append(Bold(text) if is_best else text)
        cells.append(row)
    if len(columns) < MAX_COLUMNS:
        cells = _transposed(cells)
    return Table(cells, _transposed(numbers))


def _transposed(rows: list[list]) -> list[list]:
    return [list(column) for column in zip(*rows, strict=True)]


def accuracy_table(records: list[dict]) -> Table:
    """Return a table of eval_hellaswag.py: percent ± standard error."""
    rows = []
    for column in make_columns(records, key=""):
        for record in column.records:
            several = len(column.records) > 1
            row = {"": f"{column.label}, seed {record['seed']}" if several else column.label}
            for key in ("acc", "acc_norm"):
                error = record[f"{key}_se"]
                error = MISSING if error is None else f"{100 * error:.2f}"
                row[key] = f"{100 * record[key]:.2f} ± {error}"
            rows.append(row | {"examples": f"{record['examples']:,}"})
    splits = " and ".join(sorted({record["data"]["split"] for record in records}))
    tokens = " and ".join(sorted({token_kind(record) for record in records}))
    caption = (
        f"HellaSwag ({splits}): accuracy in percent ± standard error, computed as in "
        f"lm-evaluation-harness; {tokens}, no <|endoftext|> before the context; chance is 25."
    )
    table = Table.from_rows(rows)
    table.caption = escape_markdown(caption)
    return table


def token_kind(record: dict) -> str:
    """Return the kind of tokens in words: "byte tokens" or "gpt2 tokens"."""
    name = record["data"]["tokenizer"].partition("@")[0]  # without the hash
    return "byte tokens" if name == "bytes" else f"{name} tokens"


# What one row of each benchmark of bench.py measures.
BENCHMARKS = {
    "train": "{steps}, micro-batch {micro_batch}",
    "attention": "attention of one layer alone, forward and backward, micro-batch {micro_batch}",
    "generate": "{tokens} tokens generated one by one, up to the context; memory of the KV cache",
    "eval": "forward pass without gradients, micro-batch {micro_batch}",
}
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
    for context in sorted(result["contexts"], key=int):
        by_name = result["contexts"][context]
        for name in sorted(by_name, key=speed_sort_key):
            yield int(context), name, by_name[name]


def speed_table(benchmark: str, result: dict) -> Table:
    """Return a benchmark's table: one row per context and encoding.

    Unsupported contexts have no numbers; columns without any are omitted.
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
    table = Table.from_rows(rows, {"context": "{:,}", "encoding": "{}", **formats})
    entries = [entry for *_, entry in cases(result) if entry]
    passes = (result.get("steps", 1), result.get("micro_batches", 1))
    steps = "one optimizer step" if passes == (1, 1) else "{} x {} passes".format(*passes)
    measured = BENCHMARKS[benchmark].format(
        steps=steps,
        micro_batch=result["micro_batch"],
        tokens=number_range(entry["tokens"] for entry in entries),
    )
    table.caption = escape_markdown(
        f"{benchmark}: {measured}. {describe_setup(result)}. "
        f"Medians of {result['repeats']} interleaved rounds; ratios above 1 are faster."
    )
    return table


def time_table(result: dict) -> Table | None:
    """Return where a benchmark's time goes, and its spread; None: not profiled."""
    rows = []
    for context, name, entry in cases(result):
        if entry and "time" in entry:
            median = statistics.median(entry["seconds"])
            spread = (max(entry["seconds"]) - min(entry["seconds"])) / median
            busy = 1000 * median * (1 - entry["time"]["waiting"])
            case = f"{name}, {context:,}"
            rows.append({"case": case, "busy (ms)": busy, "spread": spread} | entry["time"])
    if not rows:
        return None
    table = Table.from_rows(rows, dict.fromkeys(rows[0], "{:.1%}") | {"busy (ms)": "{:,.1f}"})
    table.caption = (
        "Fractions of a profiled round; waiting: of the device for the host; busy: the rest. "
        "Spread: slowest minus fastest round, relative to the median."
    )
    return table


def describe_setup(result: dict) -> str:
    """Return the model and the device of a benchmark in words."""
    compiled = "compiled" if result["compile"] else "not compiled"
    return f"{result['model']} model, {result['dtype']}, {result['device']}, {compiled}"


def describe_machine(record: dict) -> str:
    """Return the processor and the version of PyTorch as a sentence."""
    return escape_markdown(f"{record['processor']}, PyTorch {record['torch']}.")


def speed_sort_key(name: str) -> tuple:
    """Return the sort key of a case, e.g. "cable triton": encoding, path."""
    return sort_key(name.partition(" ")[0]), name


def comparison_table(record: dict) -> Table:
    """Return the table of `bench.py compare`: a row per task and other code.

    Speeds are medians. The ratio is the geometric mean over rounds, with its interval. Of peak:
    median of our FLOP/s relative to a matrix product in the same round; a task without FLOPs has
    none.
    """
    result, rows = record["compare"], []
    for row in result["rows"]:
        ours, theirs = row["seconds"]["ours"], row["seconds"]["theirs"]
        of_peak, product = None, row["seconds"].get("product")
        if row.get("flops") and row.get("product_flops") and product:
            relative = np.median(np.divide(product, ours))
            of_peak = float(row["flops"] / row["product_flops"] * relative)
        rows.append(
            {
                "task": ", ".join(filter(None, (row["task"], row.get("encoding")))),
                "against": row["against"],
                "ours (tokens/s)": row["tokens"] / statistics.median(ours),
                "theirs (tokens/s)": row["tokens"] / statistics.median(theirs),
                "ratio": intervals.ratio_of_rounds(np.log(np.divide(theirs, ours))),
                "of peak": of_peak,
            }
        )
    formats = ("{}", "{}", "{:,.0f}", "{:,.0f}", "", "{:.1%}")
    table = Table.from_rows(rows, dict(zip(rows[0], formats, strict=True)))
    skipped = result["skipped"].items()
    notes = [f" Not measured: {name} ({why})." for name, why in skipped]
    caption = (
        f"Speed compared with other implementations, at {result['context']:,} tokens; training "
        f"with micro-batch {result['micro_batch']}. {describe_setup(result)}. Medians of "
        f"{result['repeats']} interleaved rounds; ratios above 1 are faster, with 95% intervals. "
        f"Of peak: our FLOP/s relative to a matrix product.{''.join(notes)}"
    )
    table.caption = f"{escape_markdown(caption)} {describe_machine(record)}"
    return table
