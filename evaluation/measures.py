"""Measures by which entries of records are compared, with intervals.

    MEASURES["perplexity"]([(entry, other), (entry_of_seed_2, other_of_seed_2)])

Each takes a pair of entries for each seed, and returns the first one's
value relative to the second's.
"""

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval

GAIN = "Gain of context"  # record["metric"] of gain_records

Pairs = list[tuple[dict, dict]]  # entries, one pair for each seed


def _speed_ratio(pairs: Pairs) -> Interval:
    """Return the ratio of two speeds, a mean over rounds of log ratios.

    Both are relative to rope, which bench.py measures in the same
    round. Records without its seconds have no interval.
    """
    entry, other = pairs[0]
    if not ("others" in entry and "others" in other):
        return Interval(entry["ratios"]["rope"] / other["ratios"]["rope"])
    logs = [np.log(e["others"]["rope"]) - np.log(e["seconds"]) for e in pairs[0]]
    return intervals.ratio_of_rounds(*logs)


def log_seconds_per_token(entry: dict) -> list[float]:
    """Return logarithms of times per token, one of each round."""
    return (np.log(entry["seconds"]) - np.log(entry["tokens"])).tolist()


def _memory_ratio(pairs: Pairs) -> Interval:
    return Interval(pairs[0][0]["memory"] / pairs[0][1]["memory"])


def _time_ratio(pairs: Pairs) -> Interval:
    return intervals.ratio_of_rounds(*map(log_seconds_per_token, pairs[0]))


MEASURES = {
    "perplexity": intervals.perplexity_ratio,
    "speed": _speed_ratio,
    "memory": _memory_ratio,  # this and the next one: quantities of training_lengths.csv
    "time per token": _time_ratio,
}


def gain_records(records: list[dict]) -> list[dict]:
    """Return records of GAIN: of those with losses by position at two lengths.

    eval_extrapolation.py --within_documents records such losses on the
    same windows. An entry is the mean from half its position on, the
    first one from 0 on.
    """
    found = []
    for record in records:
        entries = {int(length): entry for length, entry in record["lengths"].items()}
        has_losses = all(entry and "by_offset" in entry for entry in entries.values())
        if len(entries) < 2 or not has_losses:
            continue
        curve = entries[min(entries)]["by_offset"]
        longest = max(entries)
        gain = np.subtract(curve["loss"], entries[longest]["by_offset"]["loss"])
        positions = curve["first"] + curve["width"] * np.arange(len(gain))
        lengths, start, stop = {}, 0, min(entries)
        while start < longest:
            inside = (positions >= start) & (positions < stop)
            lengths[str(min(stop, longest))] = {"value": 100 * float(gain[inside].mean())}
            start, stop = stop, 2 * stop
        found.append(record | {"metric": GAIN, "lengths": lengths})
    return found
