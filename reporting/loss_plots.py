"""Draws how the loss fell: a line for each training, over its steps.

    python plot.py losses runs/medium/cable runs/medium/rope --out losses.png
    python plot.py losses runs/bert/*-retrieval --out losses.png

Runs are folders of train_gpt.py (log.jsonl) or retrieval.finetune (finetune.json); a point is the mean over the steps since the one
before. The CABLE paper's figures 6 and 7.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from errors import InputError
from reporting import figures
from runtime import cli, run_folder
from runtime.files import atomic, read_json


@dataclass
class Config:
    """Settings of a picture."""

    runs: list[str] = field(default_factory=list)
    """folders of trainings"""
    kind: Literal["train", "val"] = "train"
    """which losses: of the training, or of the validations"""
    from_step: int = 1
    """leave out what comes before"""
    out: str = "losses.png"
    """picture to write, .png"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("runs", "folders of trainings"))
    if not config.runs:
        raise InputError("no run named: python plot.py losses runs/NAME ...")
    if Path(config.out).suffix != ".png":
        raise InputError(f"--out {config.out}: the picture is a PNG, name it so")
    lines = []
    for run in config.runs:
        points = [
            (step, loss)
            for step, loss in losses_of(Path(run), config.kind)
            if step >= config.from_step
        ]
        if not points:
            raise InputError(
                f"{run} has no {config.kind} losses from step {config.from_step} on: leave it out, or lower --from_step"
            )
        lines.append((Path(run).name, points))
    with atomic(config.out) as file:
        figures.losses(lines, file)
    print(f"written: {config.out}")


def losses_of(run: Path, kind: str) -> list[tuple[int, float]]:
    """(step, loss) of a training. Raises InputError where the folder holds none."""
    if (run / "finetune.json").exists():
        return (
            read_json(run / "finetune.json", "fine-tune again").get("losses", [])
            if kind == "train"
            else []
        )  # none: it goes on
    if not (run / "log.jsonl").exists():
        raise InputError(
            f"{run} holds neither log.jsonl nor finetune.json: name the folder of a training"
        )
    return [
        (entry["step"], entry["loss"])
        for entry in run_folder.read_log(run)
        if entry["kind"] == kind
    ]


if __name__ == "__main__":
    cli.run(main)
