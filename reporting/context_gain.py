"""Gain of context: how much a long context lowers the loss, by position.

eval_extrapolation.py --within_documents records the losses of all context
lengths on the same windows, by position in the longest one. The gain is the
loss with the shortest context minus that with the longest.
"""

import numpy as np


def gain_records(records: list[dict]) -> list[dict]:
    """Return records of metrics.GAIN, of those with losses by position at two lengths.

    An entry is the mean from half its position on, the first one from 0 on.
    """
    found = []
    for record in records:
        entries = {int(length): entry for length, entry in record["lengths"].items()}
        has_losses = all(entry and "by_offset" in entry for entry in entries.values())
        if len(entries) < 2 or not has_losses:
            continue
        curve, longest = entries[min(entries)]["by_offset"], max(entries)
        gain = np.subtract(curve["loss"], entries[longest]["by_offset"]["loss"])
        positions = curve["first"] + curve["width"] * np.arange(len(gain))
        lengths, start, stop = {}, 0, min(entries)
        while start < longest:
            inside = (positions >= start) & (positions < stop)
            lengths[str(min(stop, longest))] = {"value": 100 * float(gain[inside].mean())}
            start, stop = stop, 2 * stop
        found.append(record | {"metric": "Gain of context", "lengths": lengths})
    return found
