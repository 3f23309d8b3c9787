"""Write the table of encodings in other settings: learning rates, training lengths, texts.

    python -m scores.settings runs/settings/*/*.json --out_dir runs/settings

Each folder of score files is one setting, measured by scripts/score.sh with FLAGS or DATA, and has
the score of cable. Writes settings.md. The table has no speed: scores.speed always measures steps
of 256 tokens.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli

from errors import InputError
from reporting.formatting import Folder, Table, with_interval
from scores import criterion
from scores.criterion import FAR, REFERENCE
from scores.table import outcomes, read_scores


@dataclass
class Config:
    """Settings of the table of settings."""

    scores: list[str] = field(default_factory=list)
    """score files of scripts/score.sh, one folder for each setting"""
    out_dir: str = "runs/settings"
    """folder for the table"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("scores", "score files"))
    if not config.scores:
        raise InputError("no score files given: python -m scores.settings runs/settings/*/*.json")
    paths_by_folder = defaultdict(list)
    for path in config.scores:
        paths_by_folder[Path(path).resolve().parent].append(path)
    settings = {folder.name: read_scores(paths) for folder, paths in paths_by_folder.items()}
    if len(settings) < len(paths_by_folder):
        raise InputError("two folders have the same name: rename one, because names are settings")
    rows = [
        row(name, score, scores[REFERENCE])
        for name, scores in settings.items()
        for score in scores.values()
        if score["pe"] != REFERENCE
    ]
    if not rows:
        raise InputError(f"the settings have no encoding but {REFERENCE}: pass more score files")
    out = Folder(config.out_dir)
    print(out.add_text("settings.md", Table.from_rows(rows).markdown(), caption(settings)))
    out.write()


def row(name: str, score: dict, reference: dict) -> dict[str, str]:
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


def caption(settings: dict[str, dict[str, dict]]) -> str:
    """Return what the table shows; settings: {name of the setting: {encoding: score}}."""
    counts = {len(scores[REFERENCE]["budget"]["seeds"]) for scores in settings.values()}
    return (
        f"{' or '.join(map(str, sorted(counts)))} seeds, in brackets 95% intervals over text and "
        f"seeds; those with {REFERENCE} are paired. Survives: all estimates of a, b and c are on "
        "the right side of their bounds, so none of them fails. Multiples are of the training "
        "length of the setting."
    )


if __name__ == "__main__":
    cli.run(main)
