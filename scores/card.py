"""Write the scores of encodings from their runs, print their cards, verify score files.

    python -m scores.card rope cable fox                          # after scripts/score.sh
    python -m scores.card --plugin my_encoding.py recency
    python -m scores.card --verify results/scores/records.jsonl:fox  # does it fit the runs?
    python -m scores.card --missing fox --data data/stdlib        # what scripts/score.sh trains

scripts/score.sh runs the fixed budget and calls this program. A card has each number next to those
of the --references, the verdicts on the criterion (scores/criterion.py), and the place in the table
of all score files in --out_dir. It is printed once the references have scores.

--verify reads the runs again and raises an error unless they give the same numbers. --missing
prints the encodings that are to be trained: those given, and the references without a score file.
It raises an error if the references are measured on another text than --data.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli
from runtime.files import write_json

from errors import InputError
from evaluation.intervals import Interval
from reporting.formatting import MISSING, Table, escape_markdown, with_interval
from scores import criterion
from scores.collection import collect
from scores.criterion import FAR, REFERENCE
from scores.score_file import (
    REFERENCES,
    check_comparable,
    read_folder,
    read_scores,
    score_path,
)
from text_data.shards import Shards

MEASURED = ("perplexity", "recall", "trained_recall", "steps_to_95", "receptive_field")
EXACT = (
    *MEASURED,
    "pe",
    "text",
    "training_text",
    "budget",
    "parameters",
    "cache_bytes_per_token",
    "speed",
)


@dataclass
class Config:
    """Settings of score cards."""

    names: list[str] = field(default_factory=list)
    """encodings; with --verify: score files"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    runs: str = "runs/scores"
    """folder of the runs"""
    out_dir: str = "results/scores"
    """folder of the score files"""
    seeds: str = "1 2 3"
    """seeds of the runs, separated by spaces"""
    references: str = "rope cable"
    """encodings to compare with, separated by spaces; one must be cable"""
    data: str = "data/stdlib"
    """--missing: folder of the shards"""
    verify: bool = False
    """compare score files with their runs"""
    missing: bool = False
    """print the encodings to be trained"""

    def __post_init__(self):
        problems = [] if self.names else ["no encoding given: python -m scores.card rope cable"]
        if self.verify and self.missing:
            problems.append("--verify and --missing exclude each other: remove one of them")
        if REFERENCE not in self.references.split():
            problems.append(f"references '{self.references}' lack {REFERENCE}: add it")
        if not self.seeds.split() or not all(word.isdecimal() for word in self.seeds.split()):
            problems.append(f"seeds '{self.seeds}' are invalid: use integers, as in '1 2 3'")
        if problems:
            raise InputError(*problems)

    def seed_numbers(self) -> list[int]:
        return [int(word) for word in self.seeds.split()]


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("names", "encodings; with --verify: score files")
    )
    if config.verify:
        for path, score in read_scores(config.names).items():
            verify(path, score, config.runs)
    elif config.missing:
        print(*missing(config))
    else:
        write_scores(config)


def missing(config: Config) -> list[str]:
    """Return the encodings to be trained: references without a score file, and those given.

    Raises InputError if the score files of the references have other seeds, or another text than
    the data.
    """
    needed, problems = [], []
    scores = read_folder(config.out_dir)
    for pe in config.references.split():
        if pe not in scores:
            needed.append(pe)
            continue
        score, path = scores[pe], f"the score of {pe} in {config.out_dir}"
        seeds = score["budget"]["seeds"]
        if seeds != config.seed_numbers():
            problems.append(f"{path} has the seeds {seeds}: use the same, or another OUT folder")
        if not Path(config.data).is_dir():
            continue  # a dry run
        if Shards(config.data, score["text"]["split"], "never").identity != score["text"]:
            problems.append(
                f"{config.data} has another text than {path}: prepare it with Python "
                f"{score['python']}, or pass OUT=FOLDER to train the references on your text"
            )
    if problems:
        raise InputError(*problems)
    return list(dict.fromkeys([*needed, *config.names]))


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
    references = config.references.split()
    absent = [pe for pe in references if pe not in scores]
    if absent:
        print(f"the card needs the scores of {' and '.join(absent)}")
        return
    for pe in found:
        print(f"\n{card(pe, scores, references)}")


def verify(path: str, score: dict, runs: str) -> None:
    """Raise InputError unless the runs give the numbers of a score; path: of its file."""
    measured = collect(runs, score["pe"], score["budget"]["seeds"])
    different = [name for name in EXACT if score[name] != measured[name]]
    if different:
        raise InputError(
            f"{path} differs from the runs in {runs} ({', '.join(different)}): "
            "write it again with scripts/score.sh"
        )
    print(f"{path} has the numbers of the runs in {runs}")
    if score["code_sha256"] != measured["code_sha256"]:
        print(f"note: the code of {score['pe']} has changed since {path} was written")


# The card


def card(pe: str, scores: dict[str, dict], references: Sequence[str] = REFERENCES) -> str:
    """Return the card of an encoding as Markdown; scores: {encoding: score} with the references."""
    score = scores[pe]
    others = [scores[name] for name in references if name != pe]
    places = criterion.places(criterion.rank(scores))
    seeds = len(score["budget"]["seeds"])
    parts = [
        f"# {escape_markdown(pe)}",
        Table.from_rows(card_rows(score, others, scores[REFERENCE])).markdown(),
        f"With 95% intervals over text and {seeds} seed{'s' if seeds > 1 else ''}; relative: ratio "
        "of perplexities, difference of recalls (docs/scores.md).",
        "\n".join(f"- {verdict}" for verdict in criterion.judge(score, scores[REFERENCE])),
    ]
    if pe in places:
        parts.append(
            f"Place {places[pe]} of {len(places)}: by parts of the criterion that hold, then by "
            f"perplexity at {FAR} times the training length."
        )
    return "\n\n".join(parts)


def card_rows(score: dict, others: list[dict], reference: dict) -> list[dict[str, str]]:
    """Return the rows of a card: name, texts of all scores, and comparisons with the others.

    reference: its lengths of trained recall are shown, because a pattern may have none.
    """

    def row(name: str, show: Callable[[dict], str], compare=None) -> dict[str, str]:
        texts = {each["pe"]: show(each) for each in (score, *others)}
        relative = {
            f"relative to {other['pe']}": compare(other) if compare else MISSING for other in others
        }
        return {"": name} | texts | relative

    def perplexity(multiple: float) -> dict[str, str]:
        return row(
            f"perplexity at {multiple:g}x",
            lambda each: with_interval(criterion.perplexity(each, multiple)),
            lambda other: with_interval(criterion.perplexity_ratio(score, other, multiple), 3),
        )

    def recall(length: str) -> dict[str, str]:
        return row(
            f"recall of text at {int(length):,} (%)",
            lambda each: with_interval(criterion.recall(each, length)),
            lambda other: signed(criterion.recall_difference(score, other, length)),
        )

    def trained_recall(multiple: float) -> dict[str, str]:
        return row(
            f"trained recall at {multiple:g}x (%)",
            lambda each: with_interval(criterion.accuracy(each, multiple), 1),
        )

    trained_at = score["budget"]["training"]["block_size"]
    lengths, distances = (next(iter(score[name].values())) for name in ("perplexity", "recall"))
    return [
        *(perplexity(int(length) / trained_at) for length in lengths),
        *map(recall, distances),
        *map(trained_recall, trained_multiples(reference)),
        row("steps to 95% of trained recall", steps),
        row("receptive field (tokens)", field_text),
        row("speed of training / rope", lambda each: with_interval(criterion.speed(each), 3)),
        row("KV cache (bytes per token)", lambda each: f"{each['cache_bytes_per_token']:,.0f}"),
        row("parameters", lambda each: f"{each['parameters']:,}"),
    ]


def trained_multiples(score: dict) -> list[float]:
    """Return the multiples of the training length at which trained recall is measured."""
    trained_at = score["budget"]["recall_training"]["block_size"]
    by_seed = next(iter(score["trained_recall"].values()))
    return [int(length) / trained_at for length in next(iter(by_seed.values()))]


def signed(interval: Interval | None) -> str:
    """Return a difference with its interval; a dash for None."""
    sign = "+" if interval and interval.estimate > 0 else ""
    return sign + with_interval(interval)


def steps(score: dict) -> str:
    """Return the steps to 95% of each seed."""
    values = score["steps_to_95"].values()
    return ", ".join(MISSING if value is None else f"{value:,}" for value in values) or MISSING


def field_text(score: dict) -> str:
    """Return the receptive field at the longest measured context."""
    (by_length,) = score["receptive_field"].values()
    length, entry = max(by_length.items(), key=lambda item: int(item[0]))
    if entry is None:
        return MISSING
    return f"{entry['receptive_field']:,.0f} of {int(length):,}"


if __name__ == "__main__":
    cli.run(main)
