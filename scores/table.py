"""Write the table and picture of score files, or score files and their cards.

    python -m scores.table results/scores/*.json*
    python -m scores.table results/scores/records.jsonl:{cable,rope,alibi} --out_dir runs/table
    python -m scores.table --runs runs/scores rope cable fox          # after scripts/score.sh

All scores must have the same budget and text. Writes scores.md, a short table
of the best and the references, scores.csv, with all encodings and intervals,
and scores.png, perplexity at 16 times the training length against recall of
text at the same distance. --runs writes the score file of each encoding and
prints its card: its row of the table next to the references in --out_dir, and
the verdicts on the criterion (scores/criterion.py).
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from runtime import cli
from runtime.files import write_json

import msgspec

from errors import InputError
from reporting import figures
from reporting.claims.claim import FAILS, HOLDS, UNDECIDED
from reporting.formatting import MISSING, Folder, Table, escape_markdown, with_interval
from scores import criterion, score_file
from scores.criterion import CLAIMS, FAR, REFERENCE
from scores.score_file import Score

REFERENCES = ("rope", REFERENCE)
MAX_ROWS = 12  # of the short table
MAX_POINTS = 12  # of the picture
MEASURED = (  # columns of the short table, without intervals
    "perplexity at 16x / cable",
    "recall at 16x (%)",
    "trained recall at 16x (%)",
    "speed / rope",
)
SHORT = {HOLDS: "yes", FAILS: "no", UNDECIDED: "?"}


@dataclass
class Config:
    """Settings of the table of scores."""

    scores: list[str] = field(default_factory=list)
    """score files; with --runs: encodings"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    out_dir: str = "results/scores"
    """folder for the table and the picture; with --runs: for the score files"""
    runs: str | None = None
    """folder of runs: write score files of encodings and print their cards"""

    def __post_init__(self):
        if not self.scores:
            raise InputError(
                "no score files given: python -m scores.table results/scores/*.json*"
            )


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("scores", "score files or encodings"))
    if config.runs is not None:
        write_scores(config.scores, Path(config.runs), Path(config.out_dir))
        return
    out = Folder(config.out_dir)
    scores = score_file.read_scores(config.scores)
    score_file.check_comparable(scores)
    if REFERENCE not in scores:
        raise InputError(f"the score file of {REFERENCE} is missing: pass it, too")
    rows = score_rows(scores)
    print(out.add("scores.md", shorten(rows).markdown(), caption(scores)))
    out.add("scores.csv", Table.from_rows(rows).csv())
    out.add_plot("scores", partial(draw, scores))
    out.write()


def write_scores(names: list[str], runs: Path, folder: Path) -> None:
    """Write encodings' score files and print their cards."""
    found = {pe: score_file.collect(runs, pe) for pe in dict.fromkeys(names)}
    paths = [*folder.glob("*.jsonl"), *folder.glob("*.json")]
    scores = score_file.read_scores(paths) | found
    score_file.check_comparable(scores)
    for pe, score in found.items():
        path = folder / f"{pe}.json"
        values = msgspec.to_builtins(score)
        write_json(path, {name: each for name, each in values.items() if each is not None})
        print(f"wrote {path}")
    for pe in found:
        print(f"\n{card(pe, scores)}")


def card(pe: str, scores: dict[str, Score]) -> str:
    """Return the card of an encoding as Markdown."""
    if REFERENCE not in scores:
        return f"The card of {pe} needs the score of {REFERENCE}: measure it, too."
    rows = {row["encoding"]: row for row in score_rows(scores)}
    shown = [rows[name] for name in dict.fromkeys((pe, *REFERENCES)) if name in rows]
    cells = [list(row) for row in zip(*Table.from_rows(shown).cells, strict=True)]
    verdicts = criterion.judge(scores[pe], scores[REFERENCE])
    texts = "\n".join(f"- {verdict}" for verdict in verdicts)
    title = f"# {escape_markdown(pe)}"
    return "\n\n".join([title, Table(cells).markdown(), texts, caption(scores)])


def score_rows(scores: dict[str, Score]) -> list[dict[str, str]]:
    """Return the rows of the table, best encoding first (criterion.rank)."""
    reference, rows = scores[REFERENCE], []
    for pe, place in criterion.rank(scores).items():
        score = scores[pe]
        ratio = criterion.perplexity_ratio(score, FAR, reference)
        verdicts = criterion.judge(score, reference)
        near, far = (criterion.accuracy(score, multiple) for multiple in (1, FAR))
        row = {
            "place": str(place or MISSING),
            "encoding": pe,
            **{each.where: SHORT.get(each.outcome, MISSING) for each in verdicts},
            "perplexity at 1x": without_interval(with_interval(criterion.perplexity(score, 1))),
            "perplexity at 16x": without_interval(
                with_interval(criterion.perplexity(score, FAR))
            ),
            "perplexity at 16x / cable": MISSING
            if pe == REFERENCE
            else with_interval(ratio, 3),
            "recall at 4x (%)": with_interval(criterion.recall(score, 4)),
            "recall at 16x (%)": with_interval(criterion.recall(score, FAR)),
            "trained recall at 1x (%)": with_interval(near and near.scaled(100), 1),
            "trained recall at 16x (%)": with_interval(far and far.scaled(100), 1),
            "steps to 95%": ", ".join(map(count, score.steps_to_95.values())) or MISSING,
            "speed / rope": without_interval(with_interval(criterion.speed(score))),
            "KV cache (bytes)": count(score.cache_bytes_per_token),
        }
        rows.append(row)
    return rows


def without_interval(cell: str) -> str:
    """Return a printed estimate without its interval."""
    return cell.partition(" (")[0]


def count(value: float | None) -> str:
    """Return a number without decimals, or a dash for None."""
    return MISSING if value is None else f"{value:,.0f}"


def shorten(rows: list[dict[str, str]]) -> Table:
    """Return the best encodings' and references' rows, without intervals."""
    others = [row["encoding"] for row in rows if row["encoding"] not in REFERENCES]
    shown = {*others[: MAX_ROWS - len(REFERENCES)], *REFERENCES}
    table = []
    for row in rows:
        if row["encoding"] in shown:
            parts = {"a, b, c, speed": " ".join(row[part] for part in CLAIMS)}
            measured = {name: without_interval(row[name]) for name in MEASURED}
            table.append({name: row[name] for name in ("place", "encoding")} | parts | measured)
    return Table.from_rows(table)


def caption(scores: dict[str, Score]) -> str:
    """Return what the table shows."""
    score = scores[REFERENCE]
    training, task = score.budget["training"], score.budget["recall_training"]
    seeds = len(score.budget["seeds"])
    return (
        f"{len(scores)} encodings, {seeds} seed{'s' if seeds > 1 else ''}, "
        f"{score.text['dataset']} ({score.text['split']}), {training['steps']:,} steps at "
        f"{training['block_size']:,} tokens; trained recall: {task['steps']:,} steps at "
        f"{task['block_size']:,}. a, b, c, speed: docs/scores.md; ?: not decided. Place: parts "
        "that hold; ties sorted by perplexity. Intervals: scores.csv."
    )


def draw(scores: dict[str, Score], file) -> None:
    """Write the picture: perplexity against recall at FAR times the length.

    The bars of a perplexity are the interval of its ratio to the reference's,
    because the text, the same for all, makes most of the error of one.
    """
    reference = scores[REFERENCE]
    base = criterion.perplexity(reference, FAR)
    points = {}
    for pe in criterion.rank(scores):
        ratio = criterion.perplexity_ratio(scores[pe], FAR, reference)
        recall = criterion.recall(scores[pe], FAR)
        if base and ratio and recall:
            points[pe] = (pe, ratio.scaled(base.estimate), recall)
    shown = [*dict.fromkeys([*filter(points.get, REFERENCES), *points])][:MAX_POINTS]
    far = f"at {FAR} times the training length"
    labels = f"perplexity {far}", f"recall of text {far} (%)"
    text, seeds = reference.text, len(reference.budget["seeds"])
    title = (
        f"{text['dataset']} ({text['split']}), {reference.parameters / 1e6:.1f}M parameters, "
        f"trained at {reference.budget['training']['block_size']:,} tokens, "
        f"{seeds} seed{'s' if seeds > 1 else ''}\n95% intervals; triangles: outside of the plot"
    )
    figures.scatter([points[pe] for pe in shown], file, *labels, title)


if __name__ == "__main__":
    cli.run(main)
