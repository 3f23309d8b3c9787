"""How do records become tables? Rows and columns from the JSON that the evaluation programs write, and their printed form.

A record of eval_extrapolation.py is one checkpoint's perplexity at several context lengths on one data set, one of
eval_hellaswag.py its accuracy; one of bench.py is the speed of several encodings at several context lengths, under the name of
each benchmark.
"""

import csv
import io
import statistics

# The CABLE paper's order of columns; other encodings follow by name.
ORDER = ("cable", "cable-nw", "alibi", "fire", "t5", "t5-clip", "kerple", "rope", "learnable", "sinusoidal")
WIDE = 10  # columns


def place(pe: str) -> tuple[int, str]:
    """What encodings are sorted by: the papers' order, then their names."""
    return ORDER.index(pe) if pe in ORDER else len(ORDER), pe


def in_order(records: list[dict]) -> list[dict]:
    """Records by encoding, then by run."""
    return sorted(records, key=lambda record: (place(record["pe"]), record["run"]))


def labels(records: list[dict]) -> list[str]:
    """A column's name: its encoding, or its run where several runs share that, and the size of its cache if it has an end."""
    caches = ["" if record.get("cache_window") is None else f", cache {record['cache_window']:,}" for record in records]
    encodings = [record["pe"] + cache for record, cache in zip(records, caches)]
    return [encoding if encodings.count(encoding) == 1 else record["run"] + cache
            for record, encoding, cache in zip(records, encodings, caches)]


def protocol(record: dict) -> str:
    """The protocol of a record in words."""
    found = record["protocol"]
    if found.get("stride"):
        return f"segments, {found['stride']:,} tokens apart"
    if found.get("targets"):
        return f"same-targets, the last {found['targets']:,} of {found['spans']:,} windows that overlap by {found['overlap']:.0%}"
    return found["name"]


def perplexity(records: list[dict]) -> tuple[list[str], list[list]]:
    """(header, rows) of perplexities, a row for each context length; None where an encoding cannot go that far."""
    lengths = sorted({int(length) for record in records for length in record["lengths"]})
    rows = []
    for length in lengths:
        entries = [record["lengths"].get(str(length)) for record in records]
        rows.append([length, *(entry and entry["perplexity"] for entry in entries)])
    return ["context", *labels(records)], rows


def caption(records: list[dict]) -> str:
    """What a table's numbers mean: protocol, data, tokens, training length, error."""
    entries = [entry for record in records for entry in record["lengths"].values() if entry]
    tokens = sorted({entry["tokens"] for entry in entries})
    error = max(entry["loss_se"] for entry in entries)
    first = records[0]
    trained = " and ".join(str(length) for length in sorted({record["block_size"] for record in records}))
    return (f"Perplexity of {first['data']['dataset']} ({first['data']['split']}, {first['data']['tokenizer']} tokens), trained at "
            f"{trained} tokens. Protocol: {protocol(first)}, {tokens[0]:,}"
            + (f" to {tokens[-1]:,}" if len(tokens) > 1 else "")
            + f" tokens a length; standard error over windows at most {100 * error:.1f}%.")


def accuracy(records: list[dict]) -> list[list[str]]:
    """Rows of a table of eval_hellaswag.py's records, header first: percent right, with standard errors."""
    def percent(record, metric):
        error = record[f"{metric}_se"]
        return f"{100 * record[metric]:.2f} ± " + ("—" if error is None else f"{100 * error:.2f}")
    return [["", "acc", "acc_norm", "examples"], *([label, percent(record, "acc"), percent(record, "acc_norm"), f"{record['examples']:,}"]
                                                   for label, record in zip(labels(records), records))]


def markdown(header: list[str], rows: list[list]) -> str:
    """An aligned Markdown table; the best (lowest) of each row in bold, "—" for None. Wide ones are turned round."""
    cells = [[str(name) for name in header]]
    for first, *values in rows:
        numbers = [value for value in values if value is not None]
        best = min(numbers) if len(numbers) > 1 else None
        printed = ["—" if value is None else f"**{value:.2f}**" if value == best else f"{value:.2f}" for value in values]
        cells.append([f"{first:,}", *printed])
    return aligned([list(column) for column in zip(*cells)] if len(header) > WIDE else cells)


def aligned(cells: list[list[str]]) -> str:
    """The Markdown of a table's cells, the header first."""
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def comma_separated(header: list[str], rows: list[list]) -> str:
    """CSV with six digits; empty for None."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([first, *("" if value is None else value if isinstance(value, str) else f"{value:.6g}" for value in values)]
                     for first, *values in rows)
    return out.getvalue()


# Columns of a benchmark's table: from an entry of bench.py's record its value, and how that is printed.
SPEED_COLUMNS = {
    "ms": (lambda entry: 1000 * statistics.median(entry["seconds"]), "{:,.1f}"),
    "tokens/s": (lambda entry: entry["tokens_per_second"], "{:,.0f}"),
    "to rope": (lambda entry: entry["ratios"].get("rope"), "{:.3f}"),
    "to nope": (lambda entry: entry["ratios"].get("nope"), "{:.3f}"),
    "to sdpa": (lambda entry: entry["ratios"].get("sdpa"), "{:.3f}"),
    "to dense": (lambda entry: entry["ratios"].get("dense"), "{:.2f}"),
    "MFU": (lambda entry: entry["mfu"], "{:.1%}"),
    "memory (MB)": (lambda entry: entry["memory"] / 1e6, "{:,.1f}"),
}
BENCHMARKS = {  # what a row of each is
    "train": "an optimizer step, micro-batch {micro_batch}",
    "attention": "one layer's attention alone, forward and backward, micro-batch {micro_batch}",
    "generate": "{tokens} tokens drawn one by one, up to the context; memory of the cache",
    "eval": "a pass without gradients, micro-batch {micro_batch}",
}


def speeds(result: dict) -> tuple[list[str], list[list]]:
    """(header, rows) of one benchmark, a row for each context and encoding; None where an encoding cannot go that far.

    Columns that no row has a number for are left out.
    """
    rows = []
    for context, entries in sorted(result["contexts"].items(), key=lambda item: int(item[0])):
        for name in sorted(entries, key=lambda name: (place(name.removesuffix(" dense")), name)):
            rows.append([int(context), name, *(entries[name] and value(entries[name]) for value, _ in SPEED_COLUMNS.values())])
    kept = [0, 1, *(n for n in range(2, 2 + len(SPEED_COLUMNS)) if any(row[n] is not None for row in rows))]
    header = ["context", "encoding", *SPEED_COLUMNS]
    return [header[n] for n in kept], [[row[n] for n in kept] for row in rows]


def speeds_text(name: str, result: dict) -> str:
    """Markdown of one benchmark: the table, and under it what its numbers mean."""
    header, rows = speeds(result)
    cells = [[f"{first:,}", pe, *("—" if value is None else SPEED_COLUMNS[column][1].format(value)
                                  for column, value in zip(header[2:], values))] for first, pe, *values in rows]
    tokens = sorted({entry["tokens"] for entries in result["contexts"].values() for entry in entries.values() if entry})
    row = BENCHMARKS[name].format(micro_batch=result["micro_batch"], tokens=" to ".join(dict.fromkeys((str(tokens[0]), str(tokens[-1])))))
    return (f"{aligned([header, *cells])}\n\n{name}: {row}. {result['model']} model, {result['dtype']}, {result['device']}, "
            f"{'' if result['compile'] else 'not '}compiled. Medians of {result['repeats']} rounds, in which all took turns; ratios are of "
            "speed, above 1 is faster.")
