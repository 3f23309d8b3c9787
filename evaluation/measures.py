"""Ratios of speed and memory of benchmarks, and the gain of context of records.

speed_ratio(entry, other)  # of bench.py
gain_records(records)
"""

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval

GAIN = "Gain of context"  # record["metric"] of gain_records


def speed_ratio(entry: dict, other: dict) -> Interval:
    """Return the ratio of two speeds, a mean over rounds of log ratios.

    Both are relative to rope, which bench.py measures in the same round. Records without its
    seconds have no interval.
    """
    if not ("others" in entry and "others" in other):
        return Interval(entry["ratios"]["rope"] / other["ratios"]["rope"])
    logs = [np.log(e["others"]["rope"]) - np.log(e["seconds"]) for e in (entry, other)]
    return intervals.ratio_of_rounds(*logs)


def memory_ratio(entry: dict, other: dict) -> Interval:
    """Return the ratio of two memories."""
    return Interval(entry["memory"] / other["memory"])


def time_ratio(entry: dict, other: dict) -> Interval:
    """Return the ratio of two times per token, a mean over rounds."""
    logs = [np.log(e["seconds"]) - np.log(e["tokens"]) for e in (entry, other)]
    return intervals.ratio_of_rounds(*logs)


MEASURES = {"memory": memory_ratio, "time per token": time_ratio}  # of training_lengths.csv


def gain_records(records: list[dict]) -> list[dict]:
    """Return records of GAIN: of those with losses by position at two lengths.

    eval_extrapolation.py --within_documents records such losses on the same windows. An entry is
    the mean from half its position on, the first one from 0 on.
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
