"""Claims on speed and memory, judged from the benchmarks train and generate of bench.py.

The ratio of two encodings' speeds is a mean over rounds of log ratios. bench.py measures every
encoding together with rope, so that ratios of two other encodings are those of their speeds
relative to rope. The interval is a t interval over the rounds of one process (Welch's); it does not
cover other machines. Memory is deterministic and has no interval.

The criteria were fixed before any benchmark of dapev2+cable, dapev2+kerple, cable-v1 and sandwich
on this set of contexts, and after results/bench/figure3.json of the other encodings on two CPU
cores.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from evaluation import intervals
from evaluation.intervals import Interval
from reporting.claims.verdicts import (
    CABLE,
    CABLE_V1,
    FAILS,
    HOLDS,
    OURS,
    UNDECIDED,
    Verdict,
    combine,
    judge_bound,
    printed_interval,
)
from reporting.formatting import MISSING, Table
from reporting.paper import SANDWICH, PaperStatements

SAME = 1.05  # ratios from 1 / 1.05 to 1.05 count as the same speed or memory
SAME_MEMORY_V1 = 1.1  # version 1: in the authors' figure, 27.5 GB are "almost the same" as 25.2 GB
SIGNIFICANT = 0.9  # lower ratios count as a significant overhead, others as a negligible one
# Ratio of an encoding's speed to that of each other encoding: benchmark, encoding, relation, bound,
# others, contexts in tokens (None: all that were measured), paper, where. "~": the same. OURS: the
# paper does not print the bound. "8%" and "11%" of version 1 are read as fewer tokens per second.
# The authors' figure has 0.919, which rounds to 8%, and 0.88, so the bounds are 0.915 and 0.88.
# Sentences of version 1 without a length are judged at those of the sentences around them. The
# "slightly" of "slightly higher overhead" is not judged.
SPEED_BOUNDS = (
    ("train", "cable", "~", SAME, ("alibi", "kerple"), None, CABLE, "section 5.2" + OURS),
    (
        "train",
        "cable",
        ">=",
        SIGNIFICANT,
        ("sinusoidal", "learnable"),  # those of "the vanilla transformer"
        None,
        CABLE,
        "section 3" + OURS,
    ),
    ("train", "cable", "<", 1, ("rope", "sinusoidal", "learnable"), None, CABLE, "section 5.2"),
    ("train", "alibi", "<", 1, ("rope", "sinusoidal", "learnable"), None, CABLE, "section 5.2"),
    ("train", "t5", "<", SIGNIFICANT, ("cable",), None, CABLE, "section 5.2" + OURS),
    ("train", "t5-clip", "<", SIGNIFICANT, ("cable",), None, CABLE, "section 5.2" + OURS),
    (
        "generate",
        "cable",
        ">",
        1,
        ("alibi", "fire", "t5", "t5-clip", "kerple", "rope"),
        None,
        CABLE,
        "section 5.2",
    ),
    ("generate", "cable", "<", 1, ("sinusoidal", "learnable"), None, CABLE, "section 5.2"),
    ("train", "dapev2+cable", "<=", 1 / 3, ("cable",), (512,), CABLE, "section 5.3"),
    ("generate", "dapev2+cable", "<=", 1 / 1.7, ("cable",), (512,), CABLE, "section 5.3"),
    # "Similar slowdowns": the numbers are those of dapev2+cable.
    ("train", "dapev2+kerple", "<=", 1 / 3, ("kerple",), (512,), CABLE, "section 5.3" + OURS),
    ("generate", "dapev2+kerple", "<=", 1 / 1.7, ("kerple",), (512,), CABLE, "section 5.3" + OURS),
    ("train", "cable-v1", "~", SAME, ("alibi",), (512,), CABLE_V1, "section 5.2" + OURS),
    ("train", "cable-v1", ">=", 0.915, ("alibi",), (1024,), CABLE_V1, "section 5.2" + OURS),
    ("train", "cable-v1", "<", 1, ("rope", "sinusoidal"), (512, 1024), CABLE_V1, "section 5.2"),
    ("train", "alibi", "<", 1, ("rope", "sinusoidal"), (512, 1024), CABLE_V1, "section 5.2"),
    ("train", "t5", "<", SIGNIFICANT, ("cable-v1",), (1024,), CABLE_V1, "section 5.2" + OURS),
    ("train", "t5-clip", "<", SIGNIFICANT, ("cable-v1",), (1024,), CABLE_V1, "section 5.2" + OURS),
    ("generate", "cable-v1", ">=", 0.88, ("alibi",), (512,), CABLE_V1, "section 5.2" + OURS),
    ("generate", "cable-v1", ">", 1, ("rope",), (512, 1024), CABLE_V1, "section 5.2"),
    ("generate", "cable-v1", ">", 1, ("alibi",), (2048,), CABLE_V1, "section 5.2"),
    ("train", "t5", "<=", 1 / 1.1, ("sandwich",), None, SANDWICH, "section 6.2"),
    ("train", "kerple", "<", 1, ("sandwich",), None, SANDWICH, "section 6.2"),
)
# Encodings whose memory in training is the same as that of others.
MEMORY_RIVALS = ("alibi", "fire", "t5", "t5-clip", "kerple", "rope", "learnable", "sinusoidal")
MEMORY_BOUNDS = (
    ("cable", SAME, MEMORY_RIVALS, CABLE, "section 5.2" + OURS),
    (
        "cable-v1",
        SAME_MEMORY_V1,
        ("alibi", "t5", "t5-clip", "rope", "sinusoidal"),
        CABLE_V1,
        "section 5.2" + OURS,
    ),
)
# Sizes of GPT-2 in the statements on speed. Models of another of these sizes are not judged;
# smaller ones are, as measurements at small scale.
STATED_SIZES = {
    (CABLE, "section 5.2"): "medium",
    (CABLE, "section 5.3"): "small",
    (CABLE_V1, "section 5.2"): "medium",  # not printed, docs/differences.md
    (SANDWICH, "section 6.2"): "small",
}


def all_claims() -> list[Verdict]:
    """Return the claims of this module on GPUs, not measured."""
    gpu = {"device": "cuda"}
    claims = []
    for name, pe, relation, bound, others, contexts, *source in SPEED_BOUNDS:
        claim = _claim(gpu, f"{name}: speed of {pe}", others, relation, bound) + _where(contexts)
        claims.append(Verdict(claim, *source))
    for pe, bound, others, *source in MEMORY_BOUNDS:
        claim = _claim(gpu, f"train: memory of {pe}", others, "~", bound)
        claims.append(Verdict(claim, *source))
    return claims


def judge_speed(benchmark: str, result: dict) -> list[Verdict]:
    """Return verdicts on one benchmark of a record of bench.py; none for encoders.

    Claims on a CPU say so: the papers measured GPUs.
    """
    if "objective" in result:
        return []
    verdicts = []
    for name, pe, relation, bound, others, contexts, *source in SPEED_BOUNDS:
        rivals = _measured_rivals(result, pe, others)
        if name != benchmark or not rivals or not _has_stated_size(result, *source):
            continue
        claim = _claim(result, f"{benchmark}: speed of {pe}", rivals, relation, bound)
        claim += _where(contexts)
        ratios = dict(_ratios(result, pe, rivals, contexts, speed_ratio))
        verdicts.append(_judge(Verdict(claim, *source), ratios, relation, bound))
    for pe, bound, others, *source in MEMORY_BOUNDS:
        rivals = _measured_rivals(result, pe, others)
        if benchmark == "train" and rivals and _has_stated_size(result, *source):
            claim = _claim(result, f"train: memory of {pe}", rivals, "~", bound)
            ratios = dict(_ratios(result, pe, rivals, None, memory_ratio))
            verdicts.append(_judge(Verdict(claim, *source), ratios, "~", bound))
    return verdicts


def _has_stated_size(result: dict, paper: str, where: str) -> bool:
    """Return whether a benchmark has the size of a paper's statement, or one of no statement."""
    stated = STATED_SIZES.get((paper, where.removesuffix(OURS)))
    return stated in (None, result["model"]) or result["model"] not in STATED_SIZES.values()


def entry_of(result: dict, context: int, pe: str) -> dict | None:
    """Return the entry of an encoding, or None if it was not measured.

    It is that of the fused kernel (`sdpa`) where the encoding has it, else on a GPU that of Triton,
    else that of the dense path. A training on a GPU takes the path that it measures as the fastest.
    """
    entries = result["contexts"].get(str(context), {})
    return entries.get(pe) or entries.get(f"{pe} triton")


def speed_ratio(entry: dict, other: dict) -> Interval:
    """Return the ratio of two speeds at the same context, both relative to rope.

    Older records have no seconds of rope: their ratio has no interval.
    """
    if not ("others" in entry and "others" in other):
        return Interval(entry["ratios"]["rope"] / other["ratios"]["rope"])
    logs = []
    for each in (entry, other):
        rope = np.log(each["others"]["rope"]) - np.log(each["seconds"])
        if rope.any():  # all 0: rope itself
            logs.append(rope)
        else:
            logs.append(())
    first, second = logs
    if len(first):
        return intervals.ratio_of_rounds(first, second)
    return intervals.ratio_of_rounds([-log for log in second])


def memory_ratio(entry: dict, other: dict) -> Interval:
    """Return the ratio of the bytes of two entries."""
    return Interval(*[entry["memory"] / other["memory"]] * 3)


def is_on_cpu(result: dict) -> bool:
    """Return whether a benchmark ran on a CPU."""
    return result["device"].startswith("cpu")


def paper_speeds(
    benchmark: str, result: dict, printed: PaperStatements
) -> tuple[Table, str] | None:
    """Return a table of ratios here and in a paper's text, with its caption; None if none is here.

    Also None if both have sizes of STATED_SIZES that differ.

    Ratios whose context a paper does not state, or that was not measured, are shown next to each
    measured context.
    """
    if not _has_stated_size(result, printed.paper, printed.where):
        return None
    cells = [["benchmark", "context", "speed of", "relative to", "here", "paper", "at context"]]
    for name, printed_at, pe, other, value in printed.speed_ratios():
        if name != benchmark:
            continue
        measured = [int(context) for context in result["contexts"]]
        for context in [printed_at] if printed_at in measured else measured:
            entry = entry_of(result, context, pe)
            other_entry = entry_of(result, context, other)
            if entry and other_entry:
                ratio = printed_interval(speed_ratio(entry, other_entry))
                at = f"{printed_at:,}" if printed_at else MISSING
                cells.append([name, f"{context:,}", pe, other, ratio, f"{value:.3f}", at])
    if len(cells) == 1:
        return None
    return Table(cells), (
        f"Ratios of speed here ({result['model']} model, {result['device']}) with 95% intervals "
        f"over rounds, and in {printed.source} (on GPUs)."
    )


def _measured_rivals(result: dict, pe: str, others: tuple[str, ...]) -> list[str]:
    """Return the other encodings in a benchmark, or [] if it does not have the encoding."""
    contexts = [int(context) for context in result["contexts"]]

    def is_measured(name):
        return any(entry_of(result, context, name) for context in contexts)

    return [name for name in others if is_measured(name)] if is_measured(pe) else []


def _claim(result: dict, quantity: str, rivals: Sequence[str], relation: str, bound: float) -> str:
    prefix = "on a CPU: " if is_on_cpu(result) else ""
    if relation == "~":
        comparison = f"within {bound - 1:.0%} of that of"
        return f"{prefix}{quantity} {comparison} {', '.join(rivals)}"
    return f"{prefix}{quantity} / that of {', '.join(rivals)} {relation} {bound:.3g}"


def _where(contexts: tuple[int, ...] | None) -> str:
    return f" at {' and '.join(f'{n:,}' for n in contexts)} tokens" if contexts else ""


def _ratios(
    result: dict, pe: str, rivals: list[str], contexts: tuple[int, ...] | None, ratio
) -> Iterator[tuple[str, Interval]]:
    for context in sorted(map(int, result["contexts"])):
        if contexts and context not in contexts:
            continue
        for rival in rivals:
            entries = [entry_of(result, context, name) for name in (pe, rival)]
            if all(entries):
                yield f"{rival} at {context:,} tokens", ratio(*entries)


def _judge(claim: Verdict, ratios: dict[str, Interval], relation: str, bound: float) -> Verdict:
    """Return the verdict that all ratios satisfy the relation; claim: not yet measured."""
    if not ratios:
        return claim
    if relation == "~":
        outcomes = [_judge_same(ratio, bound) for ratio in ratios.values()]
        distance = {name: abs(math.log(ratio.estimate)) for name, ratio in ratios.items()}
    else:
        outcomes = [judge_bound(ratio, relation, bound) for ratio in ratios.values()]
        sign = 1 if relation.startswith("<") else -1
        distance = {name: sign * ratio.estimate for name, ratio in ratios.items()}
    farthest = max(distance, key=lambda name: distance[name])
    ratio = ratios[farthest]
    claim.outcome, counts = combine(outcomes)
    is_exact = ratio.low == ratio.high == ratio.estimate
    claim.measured = f"{ratio.estimate:.3f}" if is_exact else printed_interval(ratio)
    if len(ratios) > 1:
        claim.measured += f", {farthest}; {counts}"
    return claim


def _judge_same(ratio: Interval, bound: float) -> str:
    if ratio.above(1 / bound) and ratio.below(bound):
        return HOLDS
    return FAILS if ratio.above(bound) or ratio.below(1 / bound) else UNDECIDED
