"""The criterion: does an encoding extrapolate and remember? With intervals.

    verdicts = judge(score, cable)     # parts a, b, c and the speed
    perplexity(score, 16)              # Interval, at 16 times the training length

Each of CLAIMS has BOUNDS: it holds if the whole 95% interval is on the right
side of all, fails if it is on the wrong side of one, and is not decided
otherwise. Comparisons with cable are paired over text or trials, and over
seeds, without ratios of recalls: cable's may be zero or negative.
"""

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval, fraction_interval, mean_interval
from reporting.claims.claim import HOLDS, Verdict, combine, judge_bound, printed_interval
from scores.score_file import Score

FAR = 16  # multiple of the training length
REFERENCE = "cable"
IS_REFERENCE = "reference"  # outcome of a part that compares the reference with itself

# Quantities at a multiple of the training length; None: not supported.


def at_length(length: str, *results: dict) -> list[tuple]:
    """Return each seed's entries at a length, one of each result, or []."""
    rows = [tuple(by_seed[seed].get(length) for by_seed in results) for seed in results[0]]
    return rows if all(map(all, rows)) else []


def mean(by_seed: dict, length: str, value: str, error: str, samples: str) -> Interval | None:
    """Return the mean over seeds of a value with an error over samples."""
    entries = [entry for (entry,) in at_length(length, by_seed)]
    if not entries:
        return None
    values, errors = ([entry[name] for entry in entries] for name in (value, error))
    return mean_interval(values, errors, len(entries[0][samples]))


def perplexity(score: Score, multiple: float) -> Interval | None:
    loss = mean(score.perplexity, score.length(multiple), "loss", "loss_se", "blocks")
    return loss and loss.exp()


def perplexity_ratio(score: Score, multiple: float, other: Score) -> Interval | None:
    pairs = at_length(score.length(multiple), score.perplexity, other.perplexity)
    return intervals.perplexity_ratio(pairs) if pairs else None


def recall(score: Score, multiple: float, *_) -> Interval | None:
    """Return the recall of text in percent."""
    return mean(score.recall, score.length(multiple), "recall", "recall_se", "by_trial")


def recall_margin(score: Score, multiple: float, other: Score) -> Interval | None:
    """Return recall - 5 x (recall of another encoding), in percent."""
    pairs = [
        (recall_by_trial(ours), 5 * recall_by_trial(theirs))
        for ours, theirs in at_length(score.length(multiple), score.recall, other.recall)
    ]
    return intervals.score_difference(pairs) if pairs else None


def recall_by_trial(entry: dict) -> np.ndarray:
    """Return linearized values (trials,) in percent with the recall's mean and error."""
    gained = np.array(entry["by_trial"])
    ratio = math.exp(-gained.mean())
    return 100 * (1 - ratio) + 100 * ratio * (gained - gained.mean())


def accuracy(score: Score, multiple: float, *_) -> Interval | None:
    """Return the accuracy of trained recall; values and errors are means over kinds."""
    if not score.trained_recall:
        return None
    length = score.length(multiple, "recall_training")
    by_seed = at_length(length, *score.trained_recall.values())
    if not by_seed:
        return None
    values, errors = (
        [statistics.mean(entry[name] for entry in kinds) / 100 for kinds in by_seed]
        for name in ("accuracy", "accuracy_se")
    )
    protocols = score.budget["trained_recall"].values()
    return fraction_interval(values, errors, min(protocol["trials"] for protocol in protocols))


def speed(score: Score, *_) -> Interval:
    """Return the speed of a training step relative to rope, over rounds."""
    rope, seconds = np.log(score.speed["rope"]), np.log(score.speed["seconds"])
    return intervals.ratio_of_rounds((rope - seconds).tolist())


class Bound(NamedTuple):
    """What must hold for a part of the criterion: quantity relation bound."""

    part: str
    what: str
    quantity: Callable[..., Interval | None]
    multiple: int
    relation: str
    bound: float


CLAIMS = {
    "a": "perplexity at 16 times the training length is not above that of cable",
    "b": "recall of text at 4x and 16x is at least 5 times that of cable, and above zero",
    "c": "accuracy of trained recall is at least 0.99 at 1x and 0.9 at 16x",
    "speed": "a training step has at least 0.95 of the speed of rope",
}
BOUNDS = (
    Bound("a", "ratio", perplexity_ratio, FAR, "<=", 1),
    Bound("b", "recall at 4x - 5 cable's", recall_margin, 4, ">=", 0),
    Bound("b", "recall at 4x", recall, 4, ">", 0),
    Bound("b", "recall at 16x - 5 cable's", recall_margin, FAR, ">=", 0),
    Bound("b", "recall at 16x", recall, FAR, ">", 0),
    Bound("c", "at 1x", accuracy, 1, ">=", 0.99),
    Bound("c", "at 16x", accuracy, FAR, ">=", 0.9),
    Bound("speed", "ratio", speed, 1, ">=", 0.95),
)


def judge(score: Score, reference: Score) -> list[Verdict]:
    """Return the verdicts on the parts; not measured if a quantity is not."""
    verdicts = []
    for part, claim in CLAIMS.items():
        texts, outcomes, bounds = [], [], [bound for bound in BOUNDS if bound.part == part]
        for bound in bounds:
            if interval := bound.quantity(score, bound.multiple, reference):
                texts.append(f"{bound.what} {printed_interval(interval)}")
                outcomes.append(judge_bound(interval, bound.relation, bound.bound))
        verdict = Verdict(claim, "criterion", part, "; ".join(texts))
        if score.pe == REFERENCE and part in ("a", "b"):
            verdict.outcome = IS_REFERENCE
        elif len(outcomes) == len(bounds):
            verdict.outcome, _ = combine(outcomes)
        verdicts.append(verdict)
    return verdicts


def rank(scores: dict[str, Score]) -> dict[str, int | None]:
    """Return {encoding: place} by the number of parts that hold.

    Equal numbers share a place, sorted by perplexity at FAR. The reference has
    none.
    """
    reference = scores[REFERENCE]
    held = {
        pe: sum(verdict.outcome == HOLDS for verdict in judge(score, reference))
        for pe, score in scores.items()
    }

    def key(pe: str) -> tuple[int, float]:
        far = perplexity(scores[pe], FAR)
        return -held[pe], far.estimate if far else math.inf

    others = [count for pe, count in held.items() if pe != REFERENCE]
    places = {
        pe: 1 + sum(count > held[pe] for count in others) for pe in sorted(scores, key=key)
    }
    return places | {REFERENCE: None}
