"""The criterion: does an encoding extrapolate and remember? Estimates with 95% intervals, verdicts.

    verdicts = judge(score, cable)     # parts (a), (b), (c) and the speed
    perplexity(score, 16)              # Interval, at 16 times the training length

An encoding meets the criterion if all four hold, over the seeds of the budget:

    a       perplexity at 16 times the training length is not above that of cable: the ratio, paired
            over text and seeds, is at most 1
    b       recall of text at 4 and at 16 times the training length is at least 5 times that of
            cable, and above zero: recall - 5 x (recall of cable), paired over trials and seeds, is
            at least 0
    c       the accuracy of trained recall, mean over its kinds of sequences, is at least 0.99 at
            its training length and at least 0.9 at 16 times it
    speed   a training step has at least 0.95 of the speed of rope, over interleaved rounds

A part holds if the whole interval is on its side of the bound, fails if the whole interval is on
the other side, and is not decided otherwise. A part with several bounds holds if all do, and fails
if one does. Part b does not compare ratios of recalls: that of cable may be zero or negative.
"""

import itertools
import math
import operator
import statistics

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval, mean_interval
from reporting.claims.verdicts import HOLDS, Verdict, combine, judge_bound, printed_interval

FAR = 16  # multiple of the training length
RECALL_MULTIPLES = (4, FAR)
RECALL_FACTOR = 5
ACCURACIES = {1: 0.99, FAR: 0.9}  # by multiple of the training length
SPEED = 0.95
REFERENCE = "cable"
RELATIONS = {"<=": operator.le, ">": operator.gt, ">=": operator.ge}
IS_REFERENCE = "reference"  # outcome of a part that compares the reference with itself


def length_at(score: dict, multiple: float, training: str = "training") -> str:
    """Return the key of the entries at a multiple of the training length; see score_file.py."""
    return str(round(multiple * score["budget"][training]["block_size"]))


def entries_of(by_seed: dict, length: str) -> list[dict]:
    """Return the entries of all seeds at a length; [] if one of them has none."""
    entries = [by_length.get(length) for by_length in by_seed.values()]
    return [entry for entry in entries if entry] if all(entries) else []


def paired_entries(ours: dict, theirs: dict, length: str) -> list[tuple[dict, dict]]:
    """Return the entries of two encodings at a length, paired by seed; [] if one has none."""
    pairs = [(ours[seed].get(length), theirs[seed].get(length)) for seed in ours if seed in theirs]
    return [(a, b) for a, b in pairs if a and b] if all(all(pair) for pair in pairs) else []


# Estimates, None where a length is not supported


def perplexity(score: dict, multiple: float) -> Interval | None:
    """Return the perplexity at a multiple of the training length."""
    entries = entries_of(score["perplexity"], length_at(score, multiple))
    if not entries:
        return None
    losses, errors = zip(*((entry["loss"], entry["loss_se"]) for entry in entries), strict=True)
    return mean_interval(losses, errors, len(entries[0]["blocks"])).exp()


def perplexity_ratio(score: dict, other: dict, multiple: float) -> Interval | None:
    """Return the ratio of the perplexities of two encodings, paired over text and seeds."""
    length = length_at(score, multiple)
    pairs = paired_entries(score["perplexity"], other["perplexity"], length)
    return intervals.perplexity_ratio(pairs) if pairs else None


def recall(score: dict, length: str) -> Interval | None:
    """Return the recall of text in percent at a distance in tokens."""
    entries = entries_of(score["recall"], length)
    if not entries:
        return None
    values, errors = zip(*((each["recall"], each["recall_se"]) for each in entries), strict=True)
    return mean_interval(values, errors, len(entries[0]["by_trial"]))


def recall_difference(score: dict, other: dict, length: str, factor: float = 1) -> Interval | None:
    """Return recall - factor x (recall of another encoding), paired over trials and seeds."""
    pairs = paired_entries(score["recall"], other["recall"], length)
    if not pairs:
        return None
    return intervals.score_difference(
        [(recall_by_trial(ours), factor * recall_by_trial(theirs)) for ours, theirs in pairs]
    )


def recall_by_trial(entry: dict) -> np.ndarray:
    """Return values (trials,) in percent whose mean is the recall and whose error is its error.

    Recall is 100 (1 - exp(-mean of what the trials gained in nats)): these are its linearization.
    """
    gained = np.array(entry["by_trial"])
    ratio = math.exp(-gained.mean())
    return 100 * (1 - ratio) + 100 * ratio * (gained - gained.mean())


def accuracy(score: dict, multiple: float) -> Interval | None:
    """Return the accuracy of trained recall in percent, mean over the kinds of sequences.

    The standard error of a seed is the mean of those of its kinds, as if they were one sample.
    """
    if not score["trained_recall"]:
        return None
    length = length_at(score, multiple, "recall_training")
    by_kind = [entries_of(by_seed, length) for by_seed in score["trained_recall"].values()]
    if not all(by_kind):
        return None
    by_seed = [*zip(*by_kind, strict=True)]
    values = [statistics.mean(entry["accuracy"] for entry in kinds) for kinds in by_seed]
    errors = [statistics.mean(entry["accuracy_se"] for entry in kinds) for kinds in by_seed]
    protocols = score["budget"]["trained_recall"].values()
    return mean_interval(values, errors, min(protocol["trials"] for protocol in protocols))


def speed(score: dict) -> Interval:
    """Return the speed of a training step relative to rope, over interleaved rounds."""
    logs = np.log(score["speed"]["rope"]) - np.log(score["speed"]["seconds"])
    return intervals.ratio_of_rounds(logs)


# Verdicts


Bound = tuple[str, Interval | None, str, float]  # what, its interval, relation, bound


def part_bounds(score: dict, cable: dict) -> dict[str, list[Bound]]:
    """Return what must hold for each part of the criterion: a, b, c and speed."""
    recalls: list[Bound] = []
    for multiple in RECALL_MULTIPLES:
        length, name = length_at(score, multiple), f"recall at {multiple}x"
        difference = recall_difference(score, cable, length, RECALL_FACTOR)
        recalls += [
            (f"{name} - {RECALL_FACTOR} {REFERENCE}'s", difference, ">=", 0),
            (name, recall(score, length), ">", 0),
        ]
    accuracies: list[Bound] = []
    for n, bound in ACCURACIES.items():
        percent = accuracy(score, n)
        accuracies.append((f"at {n}x", percent and percent.scaled(0.01), ">=", bound))
    return {
        "a": [("ratio", perplexity_ratio(score, cable, FAR), "<=", 1)],
        "b": recalls,
        "c": accuracies,
        "speed": [("ratio", speed(score), ">=", SPEED)],
    }


def conditions() -> dict[str, str]:
    """Return {part: what must hold} of the criterion."""
    multiples = " and ".join(f"{multiple}x" for multiple in RECALL_MULTIPLES)
    accuracies = " and ".join(f"{bound:g} at {n}x" for n, bound in ACCURACIES.items())
    return {
        "a": f"perplexity at {FAR} times the training length is not above that of {REFERENCE}",
        "b": f"recall of text at {multiples} is at least {RECALL_FACTOR} times that of "
        f"{REFERENCE}, and above zero",
        "c": f"accuracy of trained recall is at least {accuracies}",
        "speed": f"a training step has at least {SPEED} of the speed of rope",
    }


def judge(score: dict, cable: dict) -> list[Verdict]:
    """Return the verdicts on the parts of the criterion: a, b, c and speed."""
    bounds = part_bounds(score, cable)
    verdicts = [judge_part(name, claim, bounds[name]) for name, claim in conditions().items()]
    if score["pe"] == REFERENCE:
        for verdict in verdicts:
            if verdict.where in ("a", "b"):
                verdict.outcome = IS_REFERENCE
    return verdicts


def survives(score: dict, cable: dict) -> bool:
    """Return whether all estimates of a, b and c are on the right side of their bounds.

    This is the rule for other settings in docs/extrapolate-and-remember.md. It ignores the speed,
    and it is weaker than the criterion, which requires whole intervals.
    """
    bounds = part_bounds(score, cable)
    return all(
        interval is not None and RELATIONS[relation](interval.estimate, bound)
        for part in ("a", "b", "c")
        for _, interval, relation, bound in bounds[part]
    )


def judge_part(name: str, claim: str, bounds: list[Bound]) -> Verdict:
    """Return the verdict on a part of the criterion: all bounds must hold.

    Not measured if one of them is not.
    """
    verdict = Verdict(claim, "criterion", name)
    measured, outcomes = [], []
    for what, interval, relation, bound in bounds:
        if interval is not None:
            measured.append(f"{what} {printed_interval(interval)}")
            outcomes.append(judge_bound(interval, relation, bound))
    verdict.measured = "; ".join(measured)
    if len(outcomes) == len(bounds):
        verdict.outcome, _ = combine(outcomes)
    return verdict


def rank(scores: dict[str, dict]) -> dict[str, int | None]:
    """Return {encoding: place}: by parts of the criterion that hold, then by perplexity.

    scores: {encoding: score}, with the reference, which has no place. Perplexity is that at FAR
    times the training length; an encoding that does not support this length is behind the others.
    """

    def key(pe: str) -> tuple[int, float]:
        verdicts = judge(scores[pe], scores[REFERENCE])
        holding = sum(verdict.outcome == HOLDS for verdict in verdicts)
        value = perplexity(scores[pe], FAR)
        return -holding, value.estimate if value else math.inf

    places = itertools.count(1)
    ranked = sorted(scores, key=key)
    return {pe: None if pe == REFERENCE else next(places) for pe in ranked}
