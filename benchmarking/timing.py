"""Timing of benchmark cases: interleaved rounds and the numbers made of them.

seconds = interleave({"cable": prepare_cable, "rope": prepare_rope}, 5, device, "train")
entry = make_entry("cable", case, seconds, peak=None)
"""

import statistics
from collections.abc import Callable

from runtime import devices

import torch
from tqdm import tqdm

from benchmarking.setting import BenchmarkCase


def interleave(
    prepare: dict[str, Callable[[], Callable]],
    repeats: int,
    device: torch.device,
    label: str,
    clock: Callable[[Callable, torch.device], float] = devices.measure_seconds,
    uncounted: int = 1,
) -> dict[str, list[float]]:
    """Return the seconds of `repeats` rounds by name, after `uncounted` rounds.

    prepare: functions that prepare a round, untimed, and return the function to time.
    """
    seconds = {name: [] for name in prepare}
    total = (repeats + uncounted) * len(prepare)
    with tqdm(total=total, desc=label, unit="case", disable=None, leave=False) as bar:
        for _ in range(repeats + uncounted):
            for name, prepare_round in prepare.items():
                seconds[name].append(clock(prepare_round(), device))
                bar.update()
    return {name: rounds[uncounted:] for name, rounds in seconds.items()}


def make_entry(
    name: str, case: BenchmarkCase, seconds: dict[str, list[float]], peak: float | None
) -> dict:
    """Return the numbers of one case.

    seconds: of all cases measured together. peak: FLOP/s of the device, or None if unknown.
    "others" holds the seconds of the cases it is compared with, "ratios" its speed over theirs.
    """
    rate = case.tokens / statistics.median(seconds[name])
    pe = name.removesuffix(" triton").removesuffix(" all tiles")
    plain = "sdpa" if "sdpa" in seconds else "rope"
    compared = {
        "rope": "rope",
        "nope": "nope",
        "sdpa": "sdpa",
        "flash": f"{plain} flash",
        "cudnn": f"{plain} cudnn",
        "dense": f"{pe} dense",
        "flex": f"{pe} flex",
        "theirs": f"{pe} theirs",
        "transformers": f"{pe} transformers",
    }
    others = {key: seconds[other] for key, other in compared.items() if other in seconds}
    entry = {
        "seconds": seconds[name],
        "others": others,
        "tokens": case.tokens,
        "tokens_per_second": rate,
        "ratios": {key: speed_ratio(seconds[name], other) for key, other in others.items()},
        "mfu": rate * case.flops / peak if peak and case.flops else None,
        "memory": case.memory(),
    }
    if case.weights is not None:
        entry["weights"] = case.weights
    if case.error:
        entry["error"] = case.error()
    if case.left_out:
        entry["left_out"] = case.left_out()
    return entry


def speed_ratio(seconds: list[float], other: list[float]) -> float:
    """Return the median over rounds of the speed relative to another case."""
    return statistics.median(b / a for a, b in zip(seconds, other, strict=True))
