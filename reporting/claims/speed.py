"""Claims on speed and memory, by the benchmarks of bench.py.

The ratio of two encodings' speeds is a mean over rounds of log ratios. bench.py measures every
encoding together with rope, so that both are first taken relative to rope. The interval is a t
interval over the rounds of one process (Welch's). Memory is deterministic and has no interval.
"""

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.claim import Claim, Measured, judge
from reporting.claims.verdicts import Verdict, printed_interval
from reporting.formatting import MISSING, Table
from reporting.paper import PaperStatements

SIZES = ("small", "medium")  # of the papers' statements on speed


def judge_speed(benchmark: str, result: dict) -> list[Verdict]:
    """Return verdicts on one benchmark of a record of bench.py.

    Claims on a CPU say so: the papers measured GPUs.
    """
    return judge(["speed"], _ratios, benchmark, result)


def _ratios(claim: Claim, benchmark: str, result: dict) -> Measured:
    has_size = claim.size in (None, result["model"]) or result["model"] not in SIZES
    if claim.benchmark != benchmark or not has_size:
        return
    entries = [pe for entries in result["contexts"].values() for pe in entries if entries[pe]]

    def ratio(other: str, context: int) -> Interval | None:
        entry, theirs = (entry_of(result, context, pe) for pe in (claim.encoding, other))
        measure = memory_ratio if claim.quantity == "memory" else speed_ratio
        return measure(entry, theirs) if entry and theirs else None

    contexts = sorted(claim.contexts or map(int, result["contexts"]))
    places = {f"at {context:,} tokens": context for context in contexts}
    measured = {name.partition(" triton")[0] for name in entries}
    yield from claim.but(prefix=on_device(result)).against(measured, places, ratio)


def entry_of(result: dict, context: int, pe: str) -> dict | None:
    """Return the entry of an encoding, or None if it was not measured.

    It is that of the fused kernel (`sdpa`) where the encoding has it, else on a GPU that of Triton,
    else that of the dense path. A training on a GPU takes the path that it measures as the fastest.
    """
    entries = result["contexts"].get(str(context), {})
    return entries.get(pe) or entries.get(f"{pe} triton")


def speed_ratio(entry: dict, other: dict) -> Interval:
    """Return the ratio of two speeds at the same context, both relative to rope.

    Records without the seconds of rope have no interval.
    """
    if not ("others" in entry and "others" in other):
        return Interval(entry["ratios"]["rope"] / other["ratios"]["rope"])
    first, second = (
        np.log(each["others"]["rope"]) - np.log(each["seconds"]) for each in (entry, other)
    )
    if not first.any():  # rope itself
        return intervals.ratio_of_rounds(-second)
    return intervals.ratio_of_rounds(first, second if second.any() else ())


def memory_ratio(entry: dict, other: dict) -> Interval:
    """Return the ratio of the bytes of two entries."""
    return Interval(*[entry["memory"] / other["memory"]] * 3)


def on_device(result: dict) -> str:
    """Return the start of a claim's text."""
    return "on a CPU: " if result["device"].startswith("cpu") else ""


def paper_speeds(
    benchmark: str, result: dict, printed: PaperStatements
) -> tuple[Table, str] | None:
    """Return a table of ratios here and in a paper's text, with its caption; None if none is here.

    Ratios whose context a paper does not state, or that was not measured, are shown next to each
    measured context.
    """
    cells = [["benchmark", "context", "speed of", "relative to", "here", "paper", "at context"]]
    measured = [int(context) for context in result["contexts"]]
    for name, printed_at, pe, other, value in printed.speed_ratios():
        for context in [printed_at] if printed_at in measured else measured:
            entry, theirs = (entry_of(result, context, each) for each in (pe, other))
            if name == benchmark and entry and theirs:
                ratio = printed_interval(speed_ratio(entry, theirs))
                at = f"{printed_at:,}" if printed_at else MISSING
                cells.append([name, f"{context:,}", pe, other, ratio, f"{value:.3f}", at])
    if len(cells) == 1:
        return None
    return Table(cells), (
        f"Ratios of speed here ({result['model']} model, {result['device']}) with 95% intervals "
        f"over rounds, and in {printed.source} (on GPUs)."
    )
