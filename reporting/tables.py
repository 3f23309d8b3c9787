"""How do records become tables? Rows and columns from the JSON that the evaluation programs write, and their printed form.

A record of eval_extrapolation.py is one checkpoint's perplexity at several context lengths on one data set, one of
eval_receptive_field.py its receptive field there, one of eval_recall.py its recall over several distances, one of eval_hellaswag.py its
accuracy, one of retrieval.evaluate its nDCG@10 at several lengths; one of bench.py is the speed of several encodings at several context
lengths, under the name of each benchmark.
"""

import csv
import io
import json
import re
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from reporting.paper import Table

# The CABLE paper's order of columns; other encodings follow by name.
ORDER = (
    "cable",
    "cable-nw",
    "alibi",
    "fire",
    "t5",
    "t5-clip",
    "kerple",
    "rope",
    "learnable",
    "sinusoidal",
)
WIDE = 10  # columns
TOLD = ("pe", "size", "block_size", "cache_window")  # what a column is called by


@dataclass(frozen=True)
class Measure:
    """What the numbers of a record's lengths are: what files of them are called, one of them and several in words, their key in an entry,
    which is best, an axis and its scale, and what the lengths are."""

    kind: str
    name: str
    plural: str
    key: str
    best: Callable
    axis: str
    scale: str
    across: str = "context"


def none_is_best(values, default=None):
    """In place of min or max, for numbers that are neither good nor bad."""
    return default


PERPLEXITY = Measure(
    "perplexity", "Perplexity", "perplexities", "perplexity", min, "perplexity", "log"
)
RECEPTIVE_FIELD = Measure(
    "receptive_field",
    "Receptive field",
    "receptive fields",
    "receptive_field",
    none_is_best,
    "receptive field (tokens)",
    "log",
)
RECALL = Measure(
    "recall",
    "Recall",
    "recalls",
    "recall",
    max,
    "recall (percent of perplexity saved)",
    "linear",
    "distance",
)
NDCG = Measure("retrieval", "nDCG@10", "the numbers", "ndcg10", max, "nDCG@10 (percent)", "linear")
MEASURES = (PERPLEXITY, RECEPTIVE_FIELD, RECALL, NDCG)


def measure_of(record: dict) -> Measure | None:
    """What a record with `lengths` holds of them; None for a metric of another program."""
    return next(
        (measure for measure in MEASURES if measure.name == record.get("metric", PERPLEXITY.name)),
        None,
    )


def sort_key(pe: str) -> tuple[int, list]:
    """What encodings are sorted by: the papers' order, then their names, numbers in these by their size."""
    words = re.split(r"(-?\d+)", pe)  # every second one is a number
    return ORDER.index(pe) if pe in ORDER else len(ORDER), [
        int(word) if number % 2 else word for number, word in enumerate(words)
    ]


def place_of_setting(name: str) -> tuple:
    """The same of what took turns in a benchmark, as in "cable triton"."""
    return sort_key(name.partition(" ")[0]), name


def alike(records: list[dict]) -> list[list[dict]]:
    """Records that one table can hold, each in order: of the same text, asked in the same way."""
    groups = {}
    for record in in_order(records):
        groups.setdefault(
            json.dumps(
                [record["data"], record.get("protocol"), record.get("metric")], sort_keys=True
            ),
            [],
        ).append(record)
    return [*groups.values()]


def in_order(records: list[dict]) -> list[dict]:
    """Records by encoding, then by run."""
    return sorted(records, key=lambda record: (sort_key(record["pe"]), record["run"]))


@dataclass
class Column:
    """Records that differ in their seed alone, and what they are called."""

    label: str
    pe: str
    records: list[dict]

    @property
    def measure(self) -> Measure:
        return measure_of(self.records[0])

    def values(self, length: float) -> list[float]:
        """At this context, one for each seed; none where a seed has none, for a mean over others than at other lengths would mislead, or
        where the context is no whole number."""
        entries = [
            record["lengths"].get(str(int(length)) if length == int(length) else "")
            for record in self.records
        ]
        return [entry[self.measure.key] for entry in entries] if all(entries) else []

    def by_seed(self, length: int) -> dict[int, float]:
        """The same by the seed of the run."""
        return {
            record.get("seed"): entry[self.measure.key]
            for record in self.records
            if (entry := record["lengths"].get(str(length)))
        }

    def mean(self, length: float) -> float | None:
        values = self.values(length)
        return statistics.mean(values) if values else None


def columns(records: list[dict]) -> list[Column]:
    """Records as the columns of a table, in order. A column is called by its encoding and by what tells it from the others of that:
    the size of the network, the training length, and a cache that has an end. Where that is not enough, by its run, and its folder."""
    groups = {}
    for record in in_order(records):
        groups.setdefault(
            tuple(
                record.get(name) for name in TOLD + ("parameters", "step", "objective", "recipe")
            ),
            [],
        ).append(record)
    several = {
        name: {pe for pe, *_ in groups if len({key[place] for key in groups if key[0] == pe}) > 1}
        for place, name in ((1, "size"), (2, "block_size"))
    }
    twice = [
        told for told, count in Counter(key[: len(TOLD)] for key in groups).items() if count > 1
    ]
    found = []
    for key, group in groups.items():
        pe, size, block_size, window = told = key[: len(TOLD)]
        label = ", ".join(
            [
                pe,
                *([str(size)] if pe in several["size"] else []),
                *([f"{block_size:,}"] if pe in several["block_size"] else []),
                *([] if window is None else [f"cache {window:,}"]),
            ]
        )
        if len({record.get("seed") for record in group}) == len(group) and told not in twice:
            found.append(Column(label, pe, group))
        else:
            found += [Column(label.replace(pe, record["run"], 1), pe, [record]) for record in group]
    shared = [
        label for label, count in Counter(column.label for column in found).items() if count > 1
    ]
    for column in found:
        if column.label in shared and column.records[0].get("folder"):
            column.label = f"{column.records[0]['folder']}/{column.label}"
    return found


def labels(records: list[dict]) -> list[str]:
    """What each record is called: as its column, or by its run where it shares that with other seeds."""
    found = {
        id(record): record["run"] if len(column.records) > 1 else column.label
        for column in columns(records)
        for record in column.records
    }
    return [found[id(record)] for record in records]


def protocol(record: dict) -> str:
    """The protocol of a record in words; of one with a metric that."""
    if "metric" in record:
        return record["metric"]
    found = record["protocol"]
    if found.get("mask_rate"):
        return f"segments, predicting the {found['mask_rate']:.0%} of tokens that are masked"
    if found.get("stride"):
        return f"segments with a stride of {found['stride']:,} tokens"
    if found.get("targets"):
        return (
            f"same-targets, the last {found['targets']:,} tokens of {found['spans']:,} windows "
            f"that overlap by {found['overlap']:.0%}"
        )
    return found["name"]


def by_context(columns: list[Column]) -> tuple[list[str], list[list]]:
    """(header, rows) of one of the MEASURES, a row for each length; a cell holds one for each seed, none where the encoding
    ends before."""
    lengths = sorted(
        {
            int(length)
            for column in columns
            for record in column.records
            for length in record["lengths"]
        }
    )
    return [columns[0].measure.across, *(column.label for column in columns)], [
        [length, *(column.values(length) for column in columns)] for length in lengths
    ]


def printed_beside(columns: list[Column], paper: Table) -> tuple[list[list[str]], str]:
    """Cells of a table that sets the paper's numbers beside ours, of the encodings in both, and what it shows.

    Ours of the paper's own size, training length, text and tokens: its numbers and how far ours are from them. Of others: by how much
    they grow from the training length on, there and here, at the same multiples of it.
    """
    columns = [column for column in columns if paper.covers(column.pe)]
    trained_at, measure = columns[0].records[0]["block_size"], columns[0].measure
    alike = all(
        (
            record["size"],
            record["block_size"],
            record["data"]["dataset"],
            record["data"].get("tokenizer", "gpt2"),
        )
        == (paper.size, paper.trained_at, paper.dataset, "gpt2")
        for column in columns
        for record in column.records
    )
    cells = [
        ["context" if alike else "training lengths", "", *(column.label for column in columns)]
    ]
    for context in sorted({context for values in paper.numbers.values() for context in values}):
        theirs = [paper.value(column.pe, context) for column in columns]
        ours = [column.mean(context * trained_at / paper.trained_at) for column in columns]
        if alike:
            rows = {
                "ours": [_decimals(value) for value in ours],
                "paper": [_decimals(value) for value in theirs],
                "difference": [
                    f"{a / b - 1:+.1%}" if a and b else "—" for a, b in zip(ours, theirs)
                ],
            }
        else:
            own = [column.mean(trained_at) for column in columns]
            base = [paper.value(column.pe, paper.trained_at) for column in columns]
            rows = {
                "ours": [_decimals(a and b and a / b) for a, b in zip(ours, own)],
                "paper": [_decimals(a and b and a / b) for a, b in zip(theirs, base)],
            }
        for what, row in rows.items():
            cells.append(
                [
                    (f"{context:,}" if alike else f"{context / paper.trained_at:g}")
                    if what == "ours"
                    else "",
                    what,
                    *row,
                ]
            )
    text = (
        f"{measure.name} here and in {paper.what} ({paper.dataset}, {paper.size}), and the relative "
        "difference."
        if alike
        else f"{measure.name} relative to its value at the training length, here and in {paper.what} "
        f"({paper.dataset}, {paper.size}, trained with {paper.trained_at:,} tokens of context). "
        "Absolute values are not comparable, because model size, training length"
        f"{' or task' if measure == NDCG else ', text or vocabulary'} differ."
    )
    return cells, text


def _decimals(value: float | None) -> str:
    return "—" if value is None else f"{value:z,.2f}"  # z: no -0.00


def caption(records: list[dict]) -> str:
    """What a table's numbers mean: protocol, data, tokens, training length, error."""
    entries = [entry for record in records for entry in record["lengths"].values() if entry]
    captions = {
        NDCG: _retrieval_caption,
        RECALL: _recall_caption,
        RECEPTIVE_FIELD: _receptive_field_caption,
    }
    if "metric" in records[0]:
        return captions[measure_of(records[0])](records[0], entries) + _of_some_seeds(records)
    tokens = sorted({entry["tokens"] for entry in entries})
    errors = [entry["loss_se"] for entry in entries if entry["loss_se"]]  # none of a single window
    first = records[0]
    trained = " and ".join(
        f"{length:,}" for length in sorted({record["block_size"] for record in records})
    )
    return (
        f"Perplexity on {_text(first['data'])}; models trained with {trained} tokens of context. "
        f"Protocol: {protocol(first)}, {tokens[0] if tokens else 0:,}"
        + (f" to {tokens[-1]:,}" if len(tokens) > 1 else "")
        + " tokens per length; standard error over windows "
        + (f"at most {100 * max(errors):.1f}%" if errors else "unknown")
        + (", unknown for a single window." if 0 < len(errors) < len(entries) else ".")
        + _of_some_seeds(records)
    )


def _text(data: dict) -> str:
    """Return the text of a record in words: its data set, split and tokens."""
    tokenizer = "byte" if data["tokenizer"] == "bytes" else data["tokenizer"]
    return f"{data['dataset']} ({data['split']}, {tokenizer} tokens)"


def _of_some_seeds(records):
    """What to say of contexts at which some seeds of a column were not read."""
    missing = set()
    for column in columns(records):
        read = [record["lengths"].keys() for record in column.records]
        missing |= set().union(*read) - set.intersection(*map(set, read))
    return (
        f" Not all seeds were evaluated at {', '.join(sorted(missing, key=int))} (—)."
        if missing
        else ""
    )


def summary(records: list[dict]) -> str:
    """Tables of records as Markdown, one for each text and question, each with its caption: what an evaluation prints at its end."""
    groups = [(columns(group), group) for group in alike(records)]
    return "\n\n".join(
        f"{markdown(*by_context(found), found[0].measure.best)}\n{caption(group)}"
        for found, group in groups
    )


def _retrieval_caption(first, entries):
    data, error = first["data"], max((entry["ndcg10_se"] for entry in entries), default=0)
    return (
        f"nDCG@10 in percent on {data['dataset']} ({data['split']}), {data['questions']:,} queries and "
        f"{data['documents']:,} documents truncated to the context; models trained with "
        f"{first['block_size']:,} tokens of context. Standard error over queries at most {error:.1f}."
    )


def _recall_caption(first, entries):
    data, protocol, error = (
        first["data"],
        first["protocol"],
        max((entry["recall_se"] for entry in entries), default=0),
    )
    return (
        "Recall: by how many percent an earlier copy at this distance lowers the perplexity of the "
        f"second half of a passage of {protocol['passage']} tokens. {protocol['trials']:,} passages of "
        f"{_text(data)}; models trained with {first['block_size']:,} tokens of context. "
        f"Standard error over passages at most {error:.1f}."
    )


def _receptive_field_caption(first, entries):
    data, protocol, error = (
        first["data"],
        first["protocol"],
        max((entry["receptive_field_se"] for entry in entries), default=0),
    )
    return (
        f"Receptive field: number of most recent tokens that hold {protocol['held']:.0%} of the "
        f"gradient of the next token's loss. {protocol['windows']:,} windows of {_text(data)}; models "
        f"trained with {first['block_size']:,} tokens of context. "
        f"Standard error over windows at most {error:.1f} tokens."
    )


def accuracy(records: list[dict]) -> list[list[str]]:
    """Rows of a table of eval_hellaswag.py's records, header first: percent right, with standard errors."""

    def percent(record, metric):
        error = record[f"{metric}_se"]
        return f"{100 * record[metric]:.2f} ± " + ("—" if error is None else f"{100 * error:.2f}")

    return [
        ["", "acc", "acc_norm", "examples"],
        *(
            [label, percent(record, "acc"), percent(record, "acc_norm"), f"{record['examples']:,}"]
            for label, record in zip(labels(records), records)
        ),
    ]


def on_other_data(records: list[dict]) -> dict[str, dict[tuple[str, str], float]]:
    """What models reach on data that they were not trained on, means over seeds: measure -> (size, encoding) -> number.

    records: of eval_hellaswag.py, whose measures are "HellaSwag acc" and "acc_norm" in percent, and of eval_extrapolation.py: the
    perplexity at their shortest context, under the name of the data.
    """
    found = {"HellaSwag acc": {}, "acc_norm": {}}
    for record in records:
        if "lengths" in record:
            entry = record["lengths"][
                min(record["lengths"], key=int)
            ]  # none beyond the end of a learned table
            values = (
                {record["data"]["dataset"].removesuffix("-bytes"): entry["perplexity"]}
                if entry
                else {}
            )
        else:
            values = {"HellaSwag acc": 100 * record["acc"], "acc_norm": 100 * record["acc_norm"]}
        for measure, value in values.items():
            found.setdefault(measure, {}).setdefault((record["size"], record["pe"]), []).append(
                value
            )
    return {
        measure: {key: statistics.mean(values) for key, values in of_models.items()}
        for measure, of_models in found.items()
    }


def generalization(
    found: dict[str, dict], printed: dict[tuple[str, str], dict[str, float]]
) -> list[list[str]]:
    """Cells of a table of `on_other_data`, the header first: a row for each size and encoding, the paper's numbers beside ours.

    printed: paper.generalization(). Both metrics of HellaSwag stand beside the paper's, which is not named; WikiText-2 and -103 have the
    same test text, and two numbers there.
    """
    beside = {
        "acc_norm": {"paper": "hellaswag_acc"},
        "fineweb": {"paper (fineweb)": "fineweb10b_ppl"},
        "wikitext103": {
            "paper (wikitext103)": "wikitext103_ppl",
            "paper (WikiText-2)": "wikitext2_ppl",
        },
    }
    names, values = ["size", "encoding"], []
    for measure, of_models in found.items():
        names += [measure, *beside.get(measure, ())]
        values += [
            of_models,
            *(
                {model: numbers[key] for model, numbers in printed.items()}
                for key in beside.get(measure, {}).values()
            ),
        ]
    models = sorted(
        {model for of_models in found.values() for model in of_models},
        key=lambda model: (model[0], sort_key(model[1])),
    )
    return [
        names,
        *([*model, *(_decimals(of_models.get(model)) for of_models in values)] for model in models),
    ]


def cells_of(header: list[str], rows: list[list], best: Callable = min) -> list[list[str]]:
    """The printed cells of such a table, the header first: mean ± standard deviation over seeds; the best of each row in bold, with all
    that print alike, "—" where there is none. Wide tables are turned round."""
    cells = [[str(name) for name in header]]
    for first, *found in rows:
        means = [statistics.mean(values) if values else None for values in found]
        winner = (
            best([mean for mean in means if mean is not None], default=None)
            if sum(map(bool, found)) > 1
            else None
        )
        printed = [
            _decimals(mean) + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")
            for mean, values in zip(means, found)
        ]
        bold = [winner is not None and _decimals(mean) == _decimals(winner) for mean in means]
        cells.append(
            [f"{first:,}", *(f"**{text}**" if wins else text for text, wins in zip(printed, bold))]
        )
    return [list(column) for column in zip(*cells)] if len(header) > WIDE else cells


def markdown(header: list[str], rows: list[list], best: Callable = min) -> str:
    """An aligned Markdown table of them."""
    return aligned(cells_of(header, rows, best))


def latex(cells: list[list[str]]) -> str:
    """A tabular of booktabs from printed cells, the header first."""

    def cell(text):
        bold = text.startswith("**")
        for mark, written in (
            ("**", ""),
            ("—", "---"),
            (" ± ", " $\\pm$ "),
            ("%", "\\%"),
            ("_", "\\_"),
        ):
            text = text.replace(mark, written)
        return f"\\textbf{{{text}}}" if bold else text

    lines = [" & ".join(map(cell, row)) + " \\\\" for row in cells]
    return "\n".join(
        [
            f"\\begin{{tabular}}{{l{'r' * (len(cells[0]) - 1)}}}",
            "\\toprule",
            lines[0],
            "\\midrule",
            *lines[1:],
            "\\bottomrule",
            "\\end{tabular}",
        ]
    )


def aligned(cells: list[list[str]]) -> str:
    """The Markdown of a table's cells, the header first."""
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths)) + " |"
        for row in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(lines)


def with_deviations(header: list[str], rows: list[list]) -> tuple[list[str], list[list]]:
    """A table of perplexities in plain numbers: the mean over seeds, and a further column of standard deviations where there are any."""
    several = [any(len(row[n]) > 1 for row in rows) for n in range(1, len(header))]
    names = [
        header[0],
        *(
            name
            for label, more in zip(header[1:], several)
            for name in (label, f"{label} std")[: 1 + more]
        ),
    ]
    plain = []
    for first, *found in rows:
        plain.append([first])
        for values, more in zip(found, several):
            plain[-1] += [
                statistics.mean(values) if values else None,
                statistics.stdev(values) if len(values) > 1 else None,
            ][: 1 + more]
    return names, plain


def comma_separated(header: list[str], rows: list[list]) -> str:
    """CSV with six digits; empty for None."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(
        [
            first,
            *(
                "" if value is None else value if isinstance(value, str) else f"{value:.6g}"
                for value in values
            ),
        ]
        for first, *values in rows
    )
    return out.getvalue()


# Columns of a benchmark's table: from an entry of bench.py's record its value, and how that is printed.
SPEED_COLUMNS = {
    "ms": (lambda entry: 1000 * statistics.median(entry["seconds"]), "{:,.1f}"),
    "tokens/s": (lambda entry: entry["tokens_per_second"], "{:,.0f}"),
    "vs rope": (lambda entry: entry["ratios"].get("rope"), "{:.3f}"),
    "vs nope": (lambda entry: entry["ratios"].get("nope"), "{:.3f}"),
    "vs sdpa": (lambda entry: entry["ratios"].get("sdpa"), "{:.3f}"),
    "vs flash": (lambda entry: entry["ratios"].get("flash"), "{:.3f}"),
    "vs cudnn": (lambda entry: entry["ratios"].get("cudnn"), "{:.3f}"),
    "vs dense": (lambda entry: entry["ratios"].get("dense"), "{:.2f}"),
    "vs flex": (lambda entry: entry["ratios"].get("flex"), "{:.2f}"),
    "vs theirs": (lambda entry: entry["ratios"].get("theirs"), "{:.2f}"),
    "MFU": (lambda entry: entry["mfu"], "{:.1%}"),
    "error": (lambda entry: entry.get("error"), "{:.1e}"),
    "skipped": (lambda entry: entry.get("left_out"), "{:.1%}"),
    "memory (MB)": (lambda entry: entry["memory"] / 1e6, "{:,.1f}"),
}
BENCHMARKS = {  # what a row of each is
    "train": "one optimizer step, micro-batch {micro_batch}",
    "attention": "attention of {whose} alone, forward and backward, micro-batch {micro_batch}",
    "generate": "{tokens} tokens generated one by one, up to the context; memory of the KV cache",
    "eval": "forward pass without gradients, micro-batch {micro_batch}",
}


def speeds(result: dict) -> tuple[list[str], list[list]]:
    """(header, rows) of one benchmark, a row for each context and encoding; None where an encoding cannot go that far.

    Columns that no row has a number for are left out.
    """
    rows = []
    for context, entries in sorted(result["contexts"].items(), key=lambda item: int(item[0])):
        for name in sorted(entries, key=place_of_setting):
            rows.append(
                [
                    int(context),
                    name,
                    *(
                        entries[name] and value(entries[name])
                        for value, _ in SPEED_COLUMNS.values()
                    ),
                ]
            )
    kept = [
        0,
        1,
        *(n for n in range(2, 2 + len(SPEED_COLUMNS)) if any(row[n] is not None for row in rows)),
    ]
    header = ["context", "encoding", *SPEED_COLUMNS]
    return [header[n] for n in kept], [[row[n] for n in kept] for row in rows]


def speeds_cells(result: dict) -> list[list[str]]:
    """The printed cells of one benchmark's table, the header first."""
    header, rows = speeds(result)
    return [
        header,
        *(
            [
                f"{first:,}",
                pe,
                *(
                    "—" if value is None else SPEED_COLUMNS[column][1].format(value)
                    for column, value in zip(header[2:], values)
                ),
            ]
            for first, pe, *values in rows
        ),
    ]


def speeds_text(name: str, result: dict) -> str:
    """Markdown of one benchmark: the table, and under it what its numbers mean."""
    tokens = sorted(
        {
            entry["tokens"]
            for entries in result["contexts"].values()
            for entry in entries.values()
            if entry
        }
    )
    whose = f"every layer of the run {result['run']}" if "run" in result else "one layer"
    row = BENCHMARKS[name].format(
        micro_batch=result["micro_batch"],
        whose=whose,
        tokens=" to ".join(dict.fromkeys((str(tokens[0]), str(tokens[-1])))),
    )
    return (
        f"{aligned(speeds_cells(result))}\n\n{name}: {row}. {result['model']} {'encoder' if 'objective' in result else 'model'}, "
        f"{result['dtype']}, {result['device']}, "
        f"{'' if result['compile'] else 'not '}compiled. Medians of {result['repeats']} interleaved "
        "rounds; ratios compare speed, above 1 is faster."
    )
