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
from runtime.files import atomic

from errors import InputError
from reporting.formatting import MISSING, Table
from scores import criterion
from scores.criterion import FAR, REFERENCE, printed
from scores.table import SHORT, read_scores


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
    text = f"{settings_table(settings).markdown()}\n\n{caption(settings)}\n"
    print(text)
    path = Path(config.out_dir) / "settings.md"
    with atomic(path) as file:
        file.write(text.encode())
    print(f"wrote {path}")


def settings_table(settings: dict[str, dict[str, dict]]) -> Table:
    """Return a table with one row for each setting and encoding but cable.

    settings: {name of the setting: {encoding: score}}.
    """
    cells = [
        [
            "setting",
            "encoding",
            "survives",
            "a",
            "b",
            "c",
            f"perplexity at {FAR}x / {REFERENCE}",
            *(
                f"{what} (%)"
                for multiple in criterion.RECALL_MULTIPLES
                for what in criterion.recall_names(multiple)
            ),
            *(f"trained recall at {multiple}x (%)" for multiple in criterion.ACCURACIES),
        ]
    ]
    for name, scores in settings.items():
        reference = scores[REFERENCE]
        for pe, score in scores.items():
            if pe == REFERENCE:
                continue
            verdicts = criterion.judge(score, reference)
            recalls = criterion.part_bounds(score, reference)["b"]
            cells.append(
                [
                    name,
                    pe,
                    "yes" if criterion.survives(score, reference) else "no",
                    *(
                        SHORT.get(each.outcome, MISSING)
                        for each in verdicts
                        if each.where != "speed"
                    ),
                    printed(criterion.perplexity_ratio(score, reference, FAR), 3),
                    *(printed(interval) for _, interval, _, _ in recalls),
                    *(printed(criterion.accuracy(score, n), 1) for n in criterion.ACCURACIES),
                ]
            )
    return Table(cells)


def caption(settings: dict[str, dict[str, dict]]) -> str:
    """Return what the table shows."""
    counts = {len(scores[REFERENCE]["budget"]["seeds"]) for scores in settings.values()}
    return (
        f"{' or '.join(map(str, sorted(counts)))} seeds, in brackets 95% intervals over text and "
        f"seeds; those with {REFERENCE} are paired. Survives: all estimates of a, b and c are on "
        "the right side of their bounds, so none of them fails. Multiples are of the training "
        "length of the setting."
    )


if __name__ == "__main__":
    cli.run(main)
