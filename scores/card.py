"""Write the scores of encodings from their runs, and print their cards.

    python -m scores.card rope cable fox                          # after scripts/score.sh
    python -m scores.card --plugin my_encoding.py recency

scripts/score.sh runs the fixed budget and calls this program. A card has each number next to those
of rope and cable, the verdicts on the criterion (scores/criterion.py), and the place in the table
of all score files in --out_dir.

The same runs give the same file, so a score is verified by writing it again into another --out_dir
and comparing the files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from runtime import cli
from runtime.files import write_json

from errors import InputError
from reporting.formatting import MISSING, Table, escape_markdown, with_interval
from scores import criterion
from scores.criterion import FAR, REFERENCE
from scores.score_file import REFERENCES, check_comparable, collect, read_folder, score_path


@dataclass
class Config:
    """Settings of score cards."""

    names: list[str] = field(default_factory=list)
    """encodings"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    runs: str = "runs/scores"
    """folder of the runs"""
    out_dir: str = "results/scores"
    """folder of the score files"""
    seeds: str = "1 2 3"
    """seeds of the runs, separated by spaces"""

    def __post_init__(self):
        problems = [] if self.names else ["no encoding given: python -m scores.card rope cable"]
        if not self.seeds.split() or not all(word.isdecimal() for word in self.seeds.split()):
            problems.append(f"seeds '{self.seeds}' are invalid: use integers, as in '1 2 3'")
        if problems:
            raise InputError(*problems)

    def seed_numbers(self) -> list[int]:
        return [int(word) for word in self.seeds.split()]


def main(argv=None):
    write_scores(cli.parse(Config, argv, __doc__, positional=("names", "encodings")))


def write_scores(config: Config) -> None:
    """Write the score file of each encoding and print its card."""
    found = {
        pe: collect(config.runs, pe, config.seed_numbers()) for pe in dict.fromkeys(config.names)
    }
    scores = read_folder(config.out_dir) | found
    check_comparable({str(score_path(config.out_dir, pe)): s for pe, s in scores.items()})
    for pe, score in found.items():
        write_json(score_path(config.out_dir, pe), score)
        print(f"wrote {score_path(config.out_dir, pe)}")
    if REFERENCE not in scores:
        print(f"the card needs the score of {REFERENCE}: measure it, too")
        return
    references = [pe for pe in REFERENCES if pe in scores]
    for pe in found:
        print(f"\n{card(pe, scores, references)}")


def card(pe: str, scores: dict[str, dict], references: Sequence[str]) -> str:
    """Return the card of an encoding as Markdown; scores: {encoding: score} with the references."""
    score, others = scores[pe], [name for name in references if name != pe]
    columns = {name: numbers(scores[name]) for name in (pe, *others)}
    columns |= {f"relative to {name}": comparisons(score, scores[name]) for name in others}
    # Those of the reference, because a pattern of layers may have no trained recall.
    rows = [
        {"": name} | {title: column.get(name, MISSING) for title, column in columns.items()}
        for name in numbers(scores[REFERENCE])
    ]
    seeds = len(score["budget"]["seeds"])
    parts = [
        f"# {escape_markdown(pe)}",
        Table.from_rows(rows).markdown(),
        f"With 95% intervals over text and {seeds} seed{'s' if seeds > 1 else ''}; relative: ratio "
        "of perplexities, difference of recalls (docs/scores.md).",
        "\n".join(f"- {verdict}" for verdict in criterion.judge(score, scores[REFERENCE])),
    ]
    if place := criterion.rank(scores)[pe]:
        parts.append(
            f"Place {place} of {len(scores) - 1}: by parts of the criterion that hold, then by "
            f"perplexity at {FAR} times the training length."
        )
    return "\n\n".join(parts)


def numbers(score: dict) -> dict[str, str]:
    """Return {name: text} of the numbers of a score."""
    texts = {}
    for multiple in multiples(score, score["perplexity"]):
        texts[f"perplexity at {multiple:g}x"] = with_interval(criterion.perplexity(score, multiple))
    for length in next(iter(score["recall"].values())):
        texts[recall_name(length)] = with_interval(criterion.recall(score, length))
    for by_seed in [*score["trained_recall"].values()][:1]:
        for multiple in multiples(score, by_seed, "recall_training"):
            accuracy = criterion.accuracy(score, multiple)
            texts[f"trained recall at {multiple:g}x (%)"] = with_interval(accuracy, 1)
    (by_length,) = score["receptive_field"].values()
    length, entry = max(by_length.items(), key=lambda item: int(item[0]))
    receptive_field = f"{entry['receptive_field']:,.0f} of {int(length):,}" if entry else MISSING
    return texts | {
        "steps to 95% of trained recall": steps(score),
        "receptive field (tokens)": receptive_field,
        "speed of training / rope": with_interval(criterion.speed(score), 3),
        "KV cache (bytes per token)": f"{score['cache_bytes_per_token']:,.0f}",
        "parameters": f"{score['parameters']:,}",
    }


def comparisons(score: dict, other: dict) -> dict[str, str]:
    """Return {name: text} of the numbers of a score that are compared with those of another."""
    texts = {}
    for multiple in multiples(score, score["perplexity"]):
        ratio = criterion.perplexity_ratio(score, other, multiple)
        texts[f"perplexity at {multiple:g}x"] = with_interval(ratio, 3)
    for length in next(iter(score["recall"].values())):
        difference = criterion.recall_difference(score, other, length)
        sign = "+" if difference and difference.estimate > 0 else ""
        texts[recall_name(length)] = sign + with_interval(difference)
    return texts


def recall_name(distance: str) -> str:
    """Return the name of recall of text at a distance in tokens."""
    return f"recall of text at {int(distance):,} (%)"


def multiples(score: dict, by_seed: dict, training: str = "training") -> list[float]:
    """Return the lengths of results by seed as multiples of the training length."""
    trained_at = score["budget"][training]["block_size"]
    return [int(length) / trained_at for length in next(iter(by_seed.values()))]


def steps(score: dict) -> str:
    """Return the steps to 95% of each seed."""
    values = score["steps_to_95"].values()
    return ", ".join(MISSING if value is None else f"{value:,}" for value in values) or MISSING


if __name__ == "__main__":
    cli.run(main)
