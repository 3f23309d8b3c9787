"""Write the table and the picture of all score files.

    python -m scores.table results/scores/*.json*
    python -m scores.table results/scores/records.jsonl:{cable,rope,alibi} --out_dir runs/table
    python -m scores.table --settings runs/settings/*/*.json --out_dir runs/settings

All scores must have the same budget and the same text. Writes scores.md, with all encodings,
summary.md, a short table of the best and the references, and scores.png, with one point per
encoding: perplexity at 16 times the training length against recall of text at the same distance.

--settings writes settings.md, the table of encodings in other settings: learning rates, training
lengths, texts. Each folder of score files is one setting, measured by scripts/score.sh with FLAGS
or DATA, and has the score of cable. It has no speed: scores.speed always measures steps of 256
tokens.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from runtime import cli

from errors import InputError
from evaluation.intervals import Interval
from reporting import figures
from reporting.claims.verdicts import FAILS, HOLDS, UNDECIDED
from reporting.formatting import MISSING, Folder, Table, with_interval
from scores import criterion, score_file
from scores.card import steps
from scores.criterion import FAR, REFERENCE
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
    settings: bool = False
    """a table of settings: one folder of score files for each"""

    def __post_init__(self):
        if not self.scores:
            raise InputError("no score files given: python -m scores.table results/scores/*.json*")


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("scores", "score files"))
    out = Folder(config.out_dir)
    if config.settings:
        settings = read_settings(config.scores)
        rows = setting_rows(settings)
        print(out.add_text("settings.md", Table.from_rows(rows).markdown(), about(settings)))
    else:
        scores = read_scores(config.scores)
        rows = score_rows(scores)
        print(out.add_text("scores.md", Table.from_rows(rows).markdown(), caption(scores)))
        out.add_text("summary.md", summary_table(rows).markdown(), summary_caption(scores))
        out.add_plot("scores", partial(draw, scores))
    out.write()


def read_scores(paths: list[str]) -> dict[str, dict]:
    """Return {encoding: score}. Raises InputError if scores are not comparable or lack cable."""
    by_source = score_file.read_scores(paths)
    check_comparable(by_source)
    scores = {score["pe"]: score for score in by_source.values()}
    if len(scores) < len(by_source):
        names = [score["pe"] for score in by_source.values()]
        twice = next(pe for pe in names if names.count(pe) > 1)
        raise InputError(f"there are two scores of {twice}: remove one of them")
    if REFERENCE not in scores:
        raise InputError(f"the score file of {REFERENCE} is missing: pass it, too")
    return scores


def outcomes(score: dict, reference: dict) -> dict[str, str]:
    """Return {part of the criterion: yes, no, ? or a dash}."""
    verdicts = criterion.judge(score, reference)
    return {verdict.where: SHORT.get(verdict.outcome, MISSING) for verdict in verdicts}


def score_rows(scores: dict[str, dict]) -> list[dict[str, str]]:
    """Return the rows of the table, best encoding first (criterion.rank)."""
    reference, rows = scores[REFERENCE], []
    for pe, place in criterion.rank(scores).items():
        score = scores[pe]
        ratio = criterion.perplexity_ratio(score, reference, FAR)
        row = {
            "": str(place or MISSING),
            "encoding": pe,
            **outcomes(score, reference),
            "perplexity at 1x": estimate(criterion.perplexity(score, 1)),
            f"at {FAR}x": estimate(criterion.perplexity(score, FAR)),
            f"at {FAR}x / {REFERENCE}": MISSING if pe == REFERENCE else with_interval(ratio, 3),
        }
        for n in criterion.RECALL_MULTIPLES:
            recall = criterion.recall(score, criterion.length_at(score, n))
            row[f"recall at {n}x (%)"] = with_interval(recall)
        for n in criterion.ACCURACIES:
            row[f"trained recall at {n}x (%)"] = with_interval(criterion.accuracy(score, n), 1)
        row |= {
            "steps to 95%": steps(score),
            "speed / rope": estimate(criterion.speed(score)),
            "KV cache (bytes)": f"{score['cache_bytes_per_token']:,.0f}",
        }
        rows.append(row)
    return rows


def summary_table(rows: list[dict[str, str]]) -> Table:
    """Return the best encodings and the references of a table of scores, without intervals."""
    best = {str(place) for place in range(1, SUMMARIZED + 1)}
    shown = [row for row in rows if row[""] in best or row["encoding"] in REFERENCES]
    return Table.from_rows(
        [{name: row[name].partition(" (")[0] for name in SUMMARY_COLUMNS} for row in shown]
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
    return with_interval(interval).partition(" (")[0]


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


# Other settings


def read_settings(paths: list[str]) -> dict[str, dict[str, dict]]:
    """Return {name of the folder: {encoding: score}}. Raises InputError as read_scores does."""
    by_folder = defaultdict(list)
    for path in paths:
        by_folder[Path(path).resolve().parent].append(path)
    settings = {folder.name: read_scores(group) for folder, group in by_folder.items()}
    if len(settings) < len(by_folder):
        raise InputError("two folders have the same name: rename one, because names are settings")
    return settings


def setting_rows(settings: dict[str, dict[str, dict]]) -> list[dict[str, str]]:
    """Return the rows of the table of settings. Raises InputError if all are of the reference."""
    rows = [
        setting_row(name, score, scores[REFERENCE])
        for name, scores in settings.items()
        for pe, score in scores.items()
        if pe != REFERENCE
    ]
    if not rows:
        raise InputError(f"the settings have no encoding but {REFERENCE}: pass more score files")
    return rows


def setting_row(name: str, score: dict, reference: dict) -> dict[str, str]:
    """Return the row of an encoding in a setting."""
    shown = outcomes(score, reference)
    del shown["speed"]
    ratio = criterion.perplexity_ratio(score, reference, FAR)
    cells = {
        "setting": name,
        "encoding": score["pe"],
        "survives": "yes" if criterion.survives(score, reference) else "no",
        **shown,
        f"perplexity at {FAR}x / {REFERENCE}": with_interval(ratio, 3),
    }
    for what, recall, _, _ in criterion.part_bounds(score, reference)["b"]:
        cells[f"{what} (%)"] = with_interval(recall)
    for n in criterion.ACCURACIES:
        cells[f"trained recall at {n}x (%)"] = with_interval(criterion.accuracy(score, n), 1)
    return cells


def about(settings: dict[str, dict[str, dict]]) -> str:
    """Return what the table of settings shows."""
    counts = {len(scores[REFERENCE]["budget"]["seeds"]) for scores in settings.values()}
    return (
        f"{' or '.join(map(str, sorted(counts)))} seeds, in brackets 95% intervals over text and "
        f"seeds; those with {REFERENCE} are paired. Survives: all estimates of a, b and c are on "
        "the right side of their bounds, so none of them fails. Multiples are of the training "
        "length of the setting."
    )


if __name__ == "__main__":
    cli.run(main)
