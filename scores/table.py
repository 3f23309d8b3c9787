"""Write the table and picture of score files, or score files and their cards.

    python -m scores.table results/scores/*.json*
    python -m scores.table --runs runs/scores rope cable fox          # after scripts/score.sh

All scores must have the same budget and text. Writes scores.md, a short table
of the best and the references, scores.csv, with all encodings and intervals,
and scores.png, perplexity against recall of text at 16 times the training
length. --runs writes the score file of each encoding to --out_dir and prints its
card: its row of the table and the verdicts on the criterion (scores/criterion.py).
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from runtime import cli
from runtime.files import write_json

import msgspec

from errors import InputError
from evaluation.intervals import Interval
from reporting import figures
from reporting.claims.claim import FAILS, HOLDS, UNDECIDED
from reporting.formatting import MISSING, Folder, Table, format_number, with_interval
from scores.criterion import CLAIMS, REFERENCE, Card, rank
from scores.score_file import Score, check_comparable, collect, read_scores

REFERENCES = ("rope", REFERENCE)
MAX_SHOWN = 12  # encodings in the short table and the picture
RATIO, RECALL = "perplexity at 16x / cable", "recall at 16x (%)"
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


def main(argv=None):
    positional = ("scores", "score files or encodings")
    config = cli.parse(Config, argv, __doc__, positional)
    out, paths, found = Folder(config.out_dir), config.scores, {}
    if config.runs is not None:
        found = {pe: collect(Path(config.runs), pe) for pe in config.scores}
        paths = [*out.path.glob("*.jsonl"), *out.path.glob("*.json")]
    scores = read_scores(paths) | found
    check_comparable(scores)
    for pe, score in found.items():
        write_json(out.path / f"{pe}.json", msgspec.to_builtins(score))
        print(f"wrote {out.path / pe}.json")
    if REFERENCE not in scores:
        if not found:
            raise InputError(f"the score file of {REFERENCE} is missing: pass it, too")
        return print(f"The cards need the score of {REFERENCE}: measure it, too.")
    cards = rank(scores)
    best = [pe for pe in cards if pe not in REFERENCES][: MAX_SHOWN - len(REFERENCES)]
    names = {*(found or best), *REFERENCES}
    shown = [card for pe, card in cards.items() if pe in names]
    table = short_table(shown).markdown()
    if found:
        print(f"\n{table}")
        for pe in found:
            print(f"\n{pe}:", *cards[pe].verdicts, sep="\n- ")
        return
    print(out.add("scores.md", table, caption(scores)))
    out.add("scores.csv", Table.from_rows([*map(row_of, cards.values())]).csv())
    out.add_plot("scores", partial(draw, shown))
    out.write()


def row_of(card: Card) -> dict[str, str]:
    """Return the row of an encoding in the table."""
    score, measured = card.score, card.measured
    estimates = {name: format_number(x and x.estimate) for name, x in measured.items()}
    row = {"place": str(card.place or MISSING), "encoding": score.pe}
    row |= {each.where: SHORT.get(each.outcome, MISSING) for each in card.verdicts}
    row |= {name: estimates[name] for name in ("perplexity at 1x", "perplexity at 16x")}
    row |= {RATIO: with_interval(measured[RATIO], 3)}
    row |= {name: with_interval(measured[name]) for name in ("recall at 4x (%)", RECALL)}
    for name in ("trained recall at 1x (%)", "trained recall at 16x (%)"):
        row[name] = with_interval(measured[name], 1)
    steps = (format_number(number, 0) for number in score.steps_to_95.values())
    row["steps to 95%"] = ", ".join(steps) or MISSING
    row["speed / rope"] = estimates["speed / rope"]
    return row | {"KV cache (bytes)": format_number(score.cache_bytes_per_token, 0)}


def short_table(cards: list[Card]) -> Table:
    """Return a table with fewer columns, without intervals."""
    names = (RATIO, RECALL, "trained recall at 16x (%)", "speed / rope")
    rows = []
    for row in map(row_of, cards):
        parts = {"a, b, c, speed": " ".join(row[part] for part in CLAIMS)}
        measured = {name: row[name].partition(" (")[0] for name in names}
        rows.append({name: row[name] for name in ("place", "encoding")} | parts | measured)
    return Table.from_rows(rows)


def caption(scores: dict[str, Score]) -> str:
    """Return what the table shows."""
    score = scores[REFERENCE]
    seeds = len(score.budget["seeds"])
    training, task = score.budget["training"], score.budget["recall_training"]
    return (
        f"{len(scores)} encodings, {seeds} seed{'s' if seeds > 1 else ''}, "
        f"{score.text['dataset']} ({score.text['split']}), {training['steps']:,} steps at "
        f"{training['block_size']:,} tokens; trained recall: {task['steps']:,} steps at "
        f"{task['block_size']:,}. a, b, c, speed: docs/scores.md; ?: not decided. Place: parts "
        "that hold; ties sorted by perplexity. Intervals: scores.csv."
    )


def draw(cards: list[Card], file) -> None:
    """Write the picture: perplexity relative to the reference against recall."""
    points = []
    for card in cards:
        ratio = Interval(1) if card.score.pe == REFERENCE else card.measured[RATIO]
        if ratio and (recall := card.measured[RECALL]):
            points.append((card.score.pe, ratio, recall))
    x_label = f"perplexity / that of {REFERENCE}"
    title = "At 16 times the training length; triangles: outside of the plot"
    figures.scatter(points, file, x_label, "recall of text (%)", title)


if __name__ == "__main__":
    cli.run(main)
