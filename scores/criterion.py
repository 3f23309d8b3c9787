"""The criterion: does an encoding extrapolate and remember? With intervals.

    rank(scores)["rope"].measured["recall at 16x (%)"]  # Interval; best encoding first

Each of CLAIMS has BOUNDS: it holds if the whole 95% interval is on the right
side of all, fails if it is on the wrong side of one, and else is not decided.
Comparisons with cable are paired over text or trials, and over seeds, without
ratios of recalls: cable's may be zero or negative.
"""

import math
import statistics
from dataclasses import dataclass

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval, mean_interval
from reporting.claims.claim import HOLDS, Verdict, combine, judge_bound, printed_interval
from scores.score_file import Score

FAR = 16  # multiple of the training length
REFERENCE = "cable"


def entries(score: Score, multiple: float, *results: dict, of="training") -> list[tuple]:
    """Return each seed's entries, one of each result, or []; of: a training's length."""
    if not results:
        return []
    length = str(round(multiple * score.budget[of]["block_size"]))
    rows = [tuple(by_seed[seed].get(length) for by_seed in results) for seed in results[0]]
    return rows if all(map(all, rows)) else []


def perplexity(score: Score, multiple: float, *_) -> Interval | None:
    rows = entries(score, multiple, score.perplexity)
    losses, errors = ([entry[name] for (entry,) in rows] for name in ("loss", "loss_se"))
    return mean_interval(losses, errors, len(rows[0][0]["blocks"])).exp() if rows else None


def perplexity_ratio(score: Score, multiple: float, other: Score) -> Interval | None:
    pairs = entries(score, multiple, score.perplexity, other.perplexity)
    return intervals.perplexity_ratio(pairs) if pairs and score.pe != other.pe else None


def recall(score: Score, multiple: float, *_) -> Interval | None:
    """Return the recall of text in percent."""
    rows = entries(score, multiple, score.recall)
    values, errors = ([entry[x] for (entry,) in rows] for x in ("recall", "recall_se"))
    return mean_interval(values, errors, len(rows[0][0]["by_trial"])) if rows else None


def recall_margin(score: Score, multiple: float, other: Score) -> Interval | None:
    """Return recall - 5 x (recall of another encoding), in percent."""
    rows = entries(score, multiple, score.recall, other.recall)
    pairs = [(recall_by_trial(ours), 5 * recall_by_trial(theirs)) for ours, theirs in rows]
    return intervals.score_difference(pairs) if pairs and score.pe != other.pe else None


def recall_by_trial(entry: dict) -> np.ndarray:
    """Return linearized values (trials,) in percent with the recall's mean and error."""
    gained = np.array(entry["by_trial"])
    ratio = math.exp(-gained.mean())
    return 100 * (1 - ratio) + 100 * ratio * (gained - gained.mean())


def accuracy(score: Score, multiple: float, *_) -> Interval | None:
    """Return the percentage of trained recall; values and errors are means over kinds."""
    kinds = score.trained_recall.values()
    rows = entries(score, multiple, *kinds, of="recall_training")
    if not rows:
        return None
    values, errors = (
        [statistics.mean(entry[name] for entry in row) / 100 for row in rows]
        for name in ("accuracy", "accuracy_se")
    )
    trials = min(each["trials"] for each in score.budget["trained_recall"].values())
    return mean_interval(values, errors, trials).on_log_odds().scaled(100)


def speed(score: Score, *_) -> Interval:
    """Return the speed of a training step relative to rope, over rounds."""
    rope, seconds = np.log(score.speed["rope"]), np.log(score.speed["seconds"])
    return intervals.ratio_of_rounds((rope - seconds).tolist())


QUANTITIES = {
    "perplexity at 1x": (perplexity, 1),
    "perplexity at 16x": (perplexity, FAR),
    "perplexity at 16x / cable": (perplexity_ratio, FAR),
    "recall at 4x (%)": (recall, 4),
    "recall at 4x - 5 cable's (%)": (recall_margin, 4),
    "recall at 16x (%)": (recall, FAR),
    "recall at 16x - 5 cable's (%)": (recall_margin, FAR),
    "trained recall at 1x (%)": (accuracy, 1),
    "trained recall at 16x (%)": (accuracy, FAR),
    "speed / rope": (speed, 1),
}
CLAIMS = {
    "a": "perplexity at 16 times the training length is not above that of cable",
    "b": "recall of text at 4x and 16x is at least 5 times that of cable, and above zero",
    "c": "accuracy of trained recall is at least 99% at 1x and 90% at 16x",
    "speed": "a training step has at least 0.95 of the speed of rope",
}
BOUNDS = (
    ("a", "perplexity at 16x / cable", "<=", 1),
    ("b", "recall at 4x - 5 cable's (%)", ">=", 0),
    ("b", "recall at 4x (%)", ">", 0),
    ("b", "recall at 16x - 5 cable's (%)", ">=", 0),
    ("b", "recall at 16x (%)", ">", 0),
    ("c", "trained recall at 1x (%)", ">=", 99),
    ("c", "trained recall at 16x (%)", ">=", 90),
    ("speed", "speed / rope", ">=", 0.95),
)


@dataclass
class Card:
    """What a score shows."""

    score: Score
    measured: dict[str, Interval | None]  # None: not supported, or cable / cable
    verdicts: list[Verdict]  # by CLAIMS; not measured if a quantity is not
    held: int  # number of parts that hold
    place: int | None = None


def judge(score: Score, reference: Score) -> Card:
    """Return the card of a score, without its place."""
    measured = {name: each(score, n, reference) for name, (each, n) in QUANTITIES.items()}
    verdicts = []
    for part, claim in CLAIMS.items():
        texts, outcomes, bounds = [], [], [bound for bound in BOUNDS if bound[0] == part]
        for _, name, relation, bound in bounds:
            if interval := measured[name]:
                texts.append(f"{name} {printed_interval(interval)}")
                outcomes.append(judge_bound(interval, relation, bound))
        verdict = Verdict(claim, "criterion", part, "; ".join(texts))
        if len(outcomes) == len(bounds):
            verdict.outcome, _ = combine(outcomes)
        verdicts.append(verdict)
    held = sum(verdict.outcome == HOLDS for verdict in verdicts)
    return Card(score, measured, verdicts, held)


def rank(scores: dict[str, Score]) -> dict[str, Card]:
    """Return {encoding: card} by the number of parts that hold, then by perplexity.

    Equal numbers share a place; the reference has none.
    """

    def key(card: Card) -> tuple[int, float]:
        far = card.measured["perplexity at 16x"]
        return -card.held, far.estimate if far else math.inf

    cards = sorted((judge(each, scores[REFERENCE]) for each in scores.values()), key=key)
    others = [card for card in cards if card.score.pe != REFERENCE]
    for card in others:
        card.place = 1 + sum(other.held > card.held for other in others)
    return {card.score.pe: card for card in cards}
