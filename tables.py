"""How do records become tables? Rows and columns from the JSON that the evaluation programs write, and their printed form.

A record of eval_extrapolation.py is one checkpoint's perplexity at several context lengths on one data set, one of
eval_hellaswag.py its accuracy.
"""

import csv
import io

# The CABLE paper's order of columns; other encodings follow by name.
ORDER = ("cable", "cable-nw", "alibi", "fire", "t5", "t5-clip", "kerple", "rope", "learnable", "sinusoidal")
WIDE = 10  # columns


def in_order(records: list[dict]) -> list[dict]:
    """Records in the papers' order of encodings, then by name and run."""
    def key(record):
        pe = record["pe"]
        return (ORDER.index(pe) if pe in ORDER else len(ORDER), pe, record["run"])
    return sorted(records, key=key)


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
    if len(header) > WIDE:
        cells = [list(column) for column in zip(*cells)]
    return aligned(cells)


def aligned(cells: list[list[str]]) -> str:
    """A Markdown table of these rows, the first of them its header."""
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def comma_separated(header: list[str], rows: list[list]) -> str:
    """CSV with six digits; empty for None."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([first, *("" if value is None else f"{value:.6g}" for value in values)] for first, *values in rows)
    return out.getvalue()
