"""Write the table and the picture of all score files.

    python -m scores.table results/scores/*.json*
    python -m scores.table results/scores/records.jsonl:{cable,rope,alibi} --out_dir runs/table

All scores must have the same budget and the same text. Writes scores.md, with all encodings,
summary.md, a short table of the best and the references, and scores.png, with one point per
encoding: perplexity at 16 times the training length against recall of text at the same distance.
"""

import io
from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli
from runtime.files import atomic

from errors import InputError
from evaluation.intervals import Interval
from reporting import figures
from reporting.claims.verdicts import FAILS, HOLDS, UNDECIDED
from reporting.formatting import MISSING, Table, format_number
from scores import criterion, score_file
from scores.card import steps
from scores.criterion import FAR, REFERENCE, printed
from scores.score_file import REFERENCES, check_comparable

SUMMARIZED = 3  # encodings in the summary, in addition to the references
SUMMARY_COLUMNS = (
    "",
    "encoding",
    "a",
    "b",
    "c",
    "speed",
    "perplexity at 1x",
    f"at {FAR}x",
    f"recall at {FAR}x (%)",
    f"trained recall at {FAR}x (%)",
    "speed / rope",
)
SHORT = {HOLDS: "yes", FAILS: "no", UNDECIDED: "?", criterion.IS_REFERENCE: MISSING}


@dataclass
class Config:
    """Settings of the table of scores."""

    scores: list[str] = field(default_factory=list)
    """score files of scripts/score.sh"""
    out_dir: str = "results/scores"
    """folder for the table and the picture"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("scores", "score files"))
    scores = read_scores(config.scores)
    table = score_table(scores)
    text = f"{table.markdown()}\n\n{caption(scores)}\n"
    picture = io.BytesIO()
    draw(scores, picture)
    print(text)
    short = f"{summary_table(table).markdown()}\n\n{summary_caption(scores)}\n"
    for name, content in (
        ("scores.md", text.encode()),
        ("summary.md", short.encode()),
        ("scores.png", picture.getvalue()),
    ):
        path = Path(config.out_dir) / name
        with atomic(path) as file:
            file.write(content)
        print(f"wrote {path}")


def read_scores(paths: list[str]) -> dict[str, dict]:
    """Return {encoding: score}. Raises InputError if scores are not comparable or lack cable."""
    if not paths:
        raise InputError("no score files given: python -m scores.table results/scores/*.json*")
    by_source = score_file.read_scores(paths)
    check_comparable(by_source)
    scores = {score["pe"]: score for score in by_source.values()}
    if len(scores) < len(by_source):
        raise InputError("an encoding has two score files: pass one of them")
    if REFERENCE not in scores:
        raise InputError(f"the score file of {REFERENCE} is missing: pass it, too")
    return scores


def score_table(scores: dict[str, dict]) -> Table:
    """Return the table, best encoding first (criterion.rank)."""
    cells = [
        [
            "",
            "encoding",
            "a",
            "b",
            "c",
            "speed",
            "perplexity at 1x",
            f"at {FAR}x",
            f"at {FAR}x / {REFERENCE}",
            *(f"recall at {multiple}x (%)" for multiple in criterion.RECALL_MULTIPLES),
            *(f"trained recall at {multiple}x (%)" for multiple in criterion.ACCURACIES),
            "steps to 95%",
            "speed / rope",
            "KV cache (bytes)",
        ]
    ]
    places = criterion.places(scores)
    for pe in criterion.rank(scores):
        score = scores[pe]
        verdicts = criterion.judge(score, scores[REFERENCE])
        ratio = criterion.perplexity_ratio(score, scores[REFERENCE], FAR)
        recalls = [
            criterion.recall(score, criterion.length_at(score, multiple))
            for multiple in criterion.RECALL_MULTIPLES
        ]
        accuracies = [criterion.accuracy(score, multiple) for multiple in criterion.ACCURACIES]
        cells.append(
            [
                str(places.get(pe, MISSING)),
                pe,
                *(SHORT.get(verdict.outcome, MISSING) for verdict in verdicts),
                *(estimate(criterion.perplexity(score, multiple)) for multiple in (1, FAR)),
                MISSING if pe == REFERENCE else printed(ratio, 3),
                *map(printed, recalls),
                *(printed(accuracy, 1) for accuracy in accuracies),
                steps(score),
                estimate(criterion.speed(score)),
                f"{score['cache_bytes_per_token']:,.0f}",
            ]
        )
    return Table(cells)


def summary_table(table: Table) -> Table:
    """Return the best encodings and the references of a table of scores, without intervals."""
    header, *rows = table.cells
    columns = [header.index(name) for name in SUMMARY_COLUMNS]
    best = {str(place) for place in range(1, SUMMARIZED + 1)}
    shown = [row for row in rows if row[0] in best or row[1] in REFERENCES]
    return Table(
        [[*SUMMARY_COLUMNS], *([row[i].partition(" (")[0] for i in columns] for row in shown)]
    )


def summary_caption(scores: dict[str, dict]) -> str:
    """Return what the short table shows."""
    budget = scores[REFERENCE]["budget"]
    parts = "; ".join(f"{condition} ({name})" for name, condition in criterion.conditions().items())
    return (
        f"Places among {len(scores) - 1} encodings; {REFERENCE} is the reference. Mean of "
        f"{len(budget['seeds'])} seeds. Criterion: {parts}. "
        f"?: not decided. Trained at {budget['training']['block_size']:,} tokens, "
        f"{budget['recall_training']['block_size']:,} for trained recall."
    )


def estimate(interval: Interval | None) -> str:
    """Return an estimate without its interval, or a dash."""
    return format_number(interval and interval.estimate)


def caption(scores: dict[str, dict]) -> str:
    """Return what the table shows."""
    score = scores[REFERENCE]
    budget, text = score["budget"], score["text"]
    training, task = budget["training"], budget["recall_training"]
    seeds = len(budget["seeds"])
    return (
        f"{len(scores)} encodings, {seeds} seed{'s' if seeds > 1 else ''} each, in brackets 95% "
        f"intervals over text and seeds; those relative to {REFERENCE} are paired. Sorted by the "
        "number of parts of the criterion that hold (a, b, c, speed; ?: not decided), then by "
        f"perplexity at {FAR} times the training length. Perplexity and recall of text: "
        f"{text['dataset']} ({text['split']}), trained for {training['steps']:,} steps at "
        f"{training['block_size']:,} tokens; trained recall: {task['steps']:,} steps at "
        f"{task['block_size']:,} tokens; steps to an accuracy of 95%, by seed. Multiples are of "
        f"these training lengths. KV cache: bytes per token in float32. {MISSING}: the encoding "
        "does not support the length, or its pattern has more layers than the recall task."
    )


def draw(scores: dict[str, dict], file) -> None:
    """Write the picture: perplexity against recall at FAR times the training length.

    The bars of a perplexity are the interval of its ratio to that of the reference, because the
    text, which is the same for all, makes most of the error of a single perplexity.
    """
    reference = scores[REFERENCE]
    base = criterion.perplexity(reference, FAR)
    points = []
    for pe in criterion.rank(scores):
        ratio = criterion.perplexity_ratio(scores[pe], reference, FAR)
        recall = criterion.recall(scores[pe], criterion.length_at(scores[pe], FAR))
        if base and ratio and recall:
            points.append((pe, ratio.scaled(base.estimate), recall))
    figures.scatter(
        points,
        file,
        f"perplexity at {FAR} times the training length",
        f"recall of text at {FAR} times the training length (%)",
        highlighted=REFERENCES,
    )


if __name__ == "__main__":
    cli.run(main)
