"""Checks of the trainings of a session, and a training that gets SIGTERM.

    python -m benchmarking.gpu_session.checks --out FOLDER smoke           # compares finished runs
    python -m benchmarking.gpu_session.checks --out FOLDER several-gpus
    python -m benchmarking.gpu_session.checks --out FOLDER interrupt RUN COMMAND...

smoke and several-gpus write smoke.json or several-gpus.json: name, passed and detail of each check.
"""

import argparse
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from runtime import checkpoints, run_folder
from runtime.files import write_json

import torch

from benchmarking.gpu_session.parts import INTERRUPTED_STEPS, REFERENCES, STEPS
from errors import InputError

# Only losses of the first steps are compared. Later the learning rate is high, and a training
# amplifies rounding errors: on an H100, two orders of summation change the losses of `cable` by
# 0.003% in 10 steps and by 0.6% in 20.
COMPARED_STEPS = STEPS // 2
TOLERANCE = 0.001  # largest relative difference of a loss from the CPU's
SAVED = "is saved, use --resume to continue"  # train_gpt.py, stopped by a signal


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("task", choices=("smoke", "several-gpus", "interrupt"))
    parser.add_argument("words", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    if arguments.task == "interrupt":
        run, *command = arguments.words
        interrupt_and_resume(Path(run), command)
        return
    folder = arguments.out / arguments.task
    check = check_smoke if arguments.task == "smoke" else check_several_gpus
    checks = check(folder, arguments.out / "smoke")
    write_json(arguments.out / f"{arguments.task}.json", checks)
    for item in checks:
        print(f"{item['name']}: {'passed' if item['passed'] else 'FAILED'}, {item['detail']}")
    failed = [item["name"] for item in checks if not item["passed"]]
    if failed:
        print(f"failed: {', '.join(failed)}")
        sys.exit(1)


def check_smoke(folder: Path, _: Path) -> list[dict]:
    """Return the checks of the short trainings in a folder."""
    checks = []
    for name, pe in REFERENCES.items():
        if name in ("cable-triton", "micro-batch-auto") and not (folder / name).exists():
            continue  # needs a GPU
        checks.append(compare_losses(f"{name}: losses", folder / name, folder / f"cpu-{pe}"))
    first = folder / "deterministic-1"
    checks.append(compare_weights("deterministic", first, folder / "deterministic-2"))
    checks.append(compare_weights("resumed", first, folder / "resumed"))
    return checks


def check_several_gpus(folder: Path, smoke: Path) -> list[dict]:
    """Return the checks of the trainings on several GPUs: against one GPU, and after SIGTERM."""
    checks = []
    for run in sorted(folder.glob("*-ranks")):
        checks.append(compare_losses(f"{run.name}: losses", run, smoke / "cable"))
    for run in sorted(folder.glob("*-stopped")):
        losses = read_losses(run)
        steps = len(losses)
        passed = steps == INTERRUPTED_STEPS and all(map(math.isfinite, losses.values()))
        detail = f"{steps} of {INTERRUPTED_STEPS} steps after SIGTERM and --resume"
        checks.append({"name": run.name, "passed": passed, "detail": detail})
    return checks


def read_losses(run: Path) -> dict[int, float]:
    """Return the training losses of a run by step; {} if it has not started."""
    try:
        log = run_folder.read_log(run)
    except InputError:
        return {}
    return {entry["step"]: entry["loss"] for entry in log if entry["kind"] == "train"}


def compare_losses(name: str, run: Path, reference: Path) -> dict:
    """Return the check that the first losses of a run are within TOLERANCE of the reference's.

    Later steps than COMPARED_STEPS must exist, but are not compared.
    """
    losses, expected = read_losses(run), read_losses(reference)
    if len(expected) < STEPS or losses.keys() != expected.keys():
        detail = f"{len(losses)} steps, and {len(expected)} of {reference.name}"
        return {"name": name, "passed": False, "detail": detail}
    first = range(1, COMPARED_STEPS + 1)
    differences = [abs(losses[step] / expected[step] - 1) for step in first]
    largest = torch.tensor(differences).max().item()  # unlike Python's max, keeps NaN
    detail = f"at most {largest:.3%} from {reference.name} in {COMPARED_STEPS} steps"
    return {"name": name, "passed": largest <= TOLERANCE, "detail": detail}


def compare_weights(name: str, run: Path, other: Path) -> dict:
    """Return the check that two runs have bit-identical weights and losses after STEPS steps."""
    try:
        first, second = (checkpoints.load_checkpoint(folder) for folder in (run, other))
    except InputError as error:
        return {"name": name, "passed": False, "detail": error.problems[0]}
    weights = first["model"]
    different = [key for key in weights if not torch.equal(weights[key], second["model"][key])]
    steps = {first["step"], second["step"]}
    passed = not different and steps == {STEPS} and read_losses(run) == read_losses(other)
    detail = f"{len(different)} of {len(weights)} tensors differ from {other.name}"
    return {"name": name, "passed": passed, "detail": detail}


def interrupt_and_resume(run: Path, command: list[str]) -> None:
    """Start a training, send SIGTERM after its first steps, and resume it to its end."""
    if run.exists():
        shutil.rmtree(run)  # of an earlier attempt
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None and not read_losses(run):
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate()
    finally:
        process.kill()
    print(output)
    if SAVED not in output:
        print("no checkpoint was saved after SIGTERM")
        sys.exit(1)
    sys.exit(subprocess.run(command).returncode)


if __name__ == "__main__":
    main()
