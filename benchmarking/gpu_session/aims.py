"""Aims of a session on a GPU, judged from its records: ten lines, each met, missed or not measured.

Speeds are judged on an H100 only. A case of the Triton kernels counts only if no test of its kind
failed; where tests did not finish in time, they are neither passed nor failed.
"""

from collections.abc import Callable
from pathlib import Path

from runtime.files import read_json

from benchmarking import roofline
from benchmarking.gpu_session.kernels import ANY_KIND, PROCESSES, encoding_kind, read_results
from benchmarking.gpu_session.parts import FUSED
from benchmarking.gpu_session.runner import PASSED, Session
from errors import InputError

MET, MISSED, NOT_MEASURED = "met", "missed", "not measured"
CABLE_RATIO = 0.97  # cable's speed of training relative to rope's
FUSED_RATIO = 0.92  # the same of the slowest encoding on the fused path
ROPE_RATIO = 0.98  # rope's relative to nope's
LONGEST = 131_072  # tokens that `medium` evaluates
MEMORY = 8e9  # bytes for them
ROPE_CASES = ("rope", "flash", "cudnn")  # keys of the ratios to rope, by its path


def summarize(session: Session) -> list[str]:
    """Return the ten lines."""
    lines: list[tuple[str, str, str]] = [
        ("smoke", *judge_checks(session, "smoke")),
        ("several GPUs", *judge_checks(session, "several-gpus")),
        ("Triton kernels", *judge_kernels(session)),
        *(("rope, " + size, *judge_speed(session, size)) for size in roofline.AIMS),
        *(
            (f"cable / rope, {size}", *judge_ratio(session, size, ["cable"], CABLE_RATIO))
            for size in roofline.AIMS
        ),
        ("fused encodings / rope", *judge_both(session, judge_fused)),
        ("rope / nope", *judge_both(session, judge_rope)),
        (f"medium, {LONGEST:,} tokens", *judge_memory(session)),
    ]
    return [f"{verdict:12}  {name}: {detail}" for name, verdict, detail in lines]


Verdict = tuple[str, str]


def not_measured(session: Session, part: str) -> Verdict:
    """Return the verdict where a part has no record, or none of the case in question."""
    status = session.status(part)
    return NOT_MEASURED, f"part {part}: {'other sizes' if status == PASSED else status}"


def judge(is_met: bool, detail: str) -> Verdict:
    return (MET if is_met else MISSED), detail


def judge_checks(session: Session, part: str) -> Verdict:
    """Return whether all checks of a part passed."""
    checks = read_record(session.folder / f"{part}.json")
    if not isinstance(checks, list) or not checks:
        return not_measured(session, part)
    failed = [check["name"] for check in checks if not check["passed"]]
    detail = f"{len(checks) - len(failed)} of {len(checks)} checks passed"
    if failed:
        detail += f"; failed: {', '.join(failed)}"
    is_complete = session.status(part) == PASSED
    if not failed and not is_complete:
        detail += f"; part {part}: {session.status(part)}"
    return judge(not failed and is_complete, detail)


def judge_kernels(session: Session) -> Verdict:
    """Return whether all tests of the kernels passed; "not measured" if some did not finish."""
    passed = total = 0
    failed, unfinished = [], []
    for kind in PROCESSES:
        for scope in ("core", "rest"):
            results = read_results(session.folder, scope, kind)
            count = results.get("passed", 0) + len(results.get("failed", []))
            passed += results.get("passed", 0)
            total += results.get("total", 0)
            if results.get("failed"):
                failed.append(kind)
            elif not results or count < results["total"]:
                unfinished.append(kind)
    if not total:
        return not_measured(session, "kernels-core")
    detail = f"{passed} of {total} tests passed"
    if failed:
        return MISSED, f"{detail}; wrong: {', '.join(dict.fromkeys(failed))}"
    if unfinished:
        kinds = ", ".join(dict.fromkeys(unfinished))
        return NOT_MEASURED, f"{detail}; not finished, no failure: {kinds}"
    return MET, detail


def judge_speed(session: Session, size: str) -> Verdict:
    """Return whether rope, by its fastest path, trains as fast as aimed at."""
    cases = train_cases(session, size)
    speeds = {
        name: entry["tokens_per_second"]
        for name, entry in cases.items()
        if name in ("rope", "rope flash", "rope cudnn")
    }
    if not speeds:
        return not_measured(session, f"train-{size}")
    name = max(speeds, key=speeds.__getitem__)
    aim = roofline.AIMS[size]
    milliseconds = 1000 * cases[name]["tokens"] / speeds[name]
    detail = f"{speeds[name]:,.0f} tokens/s ({milliseconds:.1f} ms, {name})"
    if not is_h100(session):
        return NOT_MEASURED, f"{detail}; the aim, {aim:,}, is for one H100"
    estimate = roofline.group_milliseconds(
        size, "rope", roofline.MICRO_BATCHES[size], roofline.Config()
    )
    detail += f", aim {aim:,}, roofline {sum(estimate.values()):.1f} ms"
    return judge(speeds[name] >= aim, detail)


def judge_ratio(session: Session, size: str, encodings: list[str], aim: float) -> Verdict:
    """Return whether the slowest of some encodings is fast enough, relative to rope's fastest.

    Each encoding counts by its fastest path whose kernels are correct.
    """
    cases = train_cases(session, size)
    ratios = {}
    for pe in encodings:
        paths = {name: entry for name, entry in cases.items() if name in (pe, f"{pe} triton")}
        if f"{pe} triton" in paths and has_wrong_kernels(session, pe):
            del paths[f"{pe} triton"]
        speeds = [ratio_to_rope(entry) for entry in paths.values()]
        if speeds:
            ratios[pe] = max(speeds)
    if not ratios:
        return not_measured(session, f"train-{size}")
    slowest = min(ratios, key=ratios.__getitem__)
    detail = f"{ratios[slowest]:.3f} ({slowest}, of {len(ratios)} encodings), aim {aim}"
    if len(encodings) == 1:
        detail = f"{ratios[slowest]:.3f}, aim {aim}"
    if not is_h100(session):
        return NOT_MEASURED, f"{detail} on one H100"
    return judge(ratios[slowest] >= aim, detail)


def ratio_to_rope(entry: dict) -> float:
    """Return a case's speed relative to the fastest path of rope in the same rounds."""
    return min(entry["ratios"][key] for key in ROPE_CASES if key in entry["ratios"])


def judge_fused(session: Session, size: str) -> Verdict:
    return judge_ratio(session, size, [*FUSED.split(",")], FUSED_RATIO)


def judge_rope(session: Session, size: str) -> Verdict:
    """Return whether rope is as fast as nope, relative to it."""
    rope = train_cases(session, size).get("rope")
    if not rope:
        return not_measured(session, f"train-{size}")
    ratio = rope["ratios"]["nope"]
    detail = f"{ratio:.3f}, aim {ROPE_RATIO}"
    if not is_h100(session):
        return NOT_MEASURED, f"{detail} on one H100"
    return judge(ratio >= ROPE_RATIO, detail)


def judge_both(session: Session, judge_size: Callable[[Session, str], Verdict]) -> Verdict:
    """Return the verdict over all sizes: missed if one is, then not measured if one is not."""
    verdicts = {size: judge_size(session, size) for size in roofline.AIMS}
    found = [verdict for verdict, _ in verdicts.values()]
    verdict = next((word for word in (MISSED, NOT_MEASURED) if word in found), MET)
    return verdict, "; ".join(f"{size} {detail}" for size, (_, detail) in verdicts.items())


def judge_memory(session: Session) -> Verdict:
    """Return whether the evaluation of a long text fits into the memory aimed at."""
    record = read_record(session.folder / "memory.json")
    cases = contexts(record, "eval").get(str(LONGEST)) or {}
    entry = cases.get("cable")
    if not entry:
        return not_measured(session, "memory")
    detail = f"{entry['memory'] / 1e9:.1f} GB with cable, aim {MEMORY / 1e9:.0f} GB"
    return judge(entry["memory"] <= MEMORY, detail)


def has_wrong_kernels(session: Session, pe: str) -> bool:
    """Return whether a test of the kernels that an encoding uses failed."""
    kinds = (encoding_kind(pe), ANY_KIND)
    results = [
        read_results(session.folder, scope, kind) for kind in kinds for scope in ("core", "rest")
    ]
    return any(result.get("failed") for result in results)


def train_cases(session: Session, size: str) -> dict[str, dict]:
    """Return the measured cases of training at a size, by name."""
    record = read_record(session.folder / f"train-{size}.json")
    cases: dict[str, dict] = {}
    for entries in contexts(record, "train").values():
        cases |= {name: entry for name, entry in entries.items() if entry}
    return cases


def contexts(record, benchmark: str) -> dict[str, dict]:
    """Return the entries of a benchmark by context; {} if the record has none."""
    if not isinstance(record, dict):
        return {}
    return record.get(benchmark, {}).get("contexts", {})


def read_record(path: Path):
    """Return the content of a record; None if there is none, or it is corrupt."""
    try:
        return read_json(path, "remove it")
    except InputError:
        return None


def is_h100(session: Session) -> bool:
    """Return whether the session's GPU is an H100 (not its PCIe and NVL versions)."""
    record = read_record(session.folder / "environment.json") or {}
    device = record.get("device", "")
    return "H100" in device and "PCIe" not in device and "NVL" not in device
