"""Plot losses against steps, one line per run.

    python plot.py losses runs/medium/cable runs/medium/rope --out losses.png
    python plot.py losses runs/bert/*-retrieval --out losses.png

Runs are folders of train_gpt.py (log.jsonl) or retrieval.finetune (finetune.json). A point is the
mean loss since the previous logged step. Figures 6 and 7 of the CABLE paper.

Training losses are also written as a record next to the picture (losses.json), unless pretraining
and fine-tuning are mixed. report.py makes a table of them, and judges the claims on encoders.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtime import cli, run_folder
from runtime.files import atomic, read_json, write_json
from runtime.schema import Count, Integer, Number, Text, fields, find_mismatch, nullable

import yaml

from errors import InputError
from evaluation import record_schema
from reporting import figures, style

METRIC = "Training loss"  # record["metric"]
PRETRAINING, FINETUNING = "pretraining", "fine-tuning"
SETTINGS = fields(  # of config.yaml or config.json
    {
        "pe": Text,
        "size? objective? data?": nullable(Text),
        "seed? block_size?": nullable(Integer),
    }
)
LOG_ENTRY = fields({"step": Count, "loss": Number})


@dataclass
class Config:
    """Settings of the plot."""

    runs: list[str] = field(default_factory=list)
    """run folders"""
    plugin: dict[str, str] | None = None
    """files with encodings of your own: not needed, the log has the losses"""
    kind: Literal["train", "val"] = "train"
    """training or validation losses"""
    from_step: int = 1
    """first step to plot"""
    out: str = "losses.png"
    """PNG file to write"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("runs", "run folders"))
    if not config.runs:
        raise InputError("no runs given: python plot.py losses runs/NAME ...")
    style.check_png(config.out)
    lines, runs, trainings = [], [], {training_of(Path(run)) for run in config.runs}
    is_described = len(trainings) == 1
    for run in map(Path, config.runs):
        losses = read_losses(run, config.kind)
        points = [(step, loss) for step, loss in losses if step >= config.from_step]
        if not points:
            raise InputError(
                f"{run} has no {config.kind} losses from step {config.from_step}: "
                "remove it, or use a lower --from_step"
            )
        found = describe_run(run) if is_described else {"pe": run.name, "size": None}
        lines.append(figures.Line(run.name, found["pe"], points))
        runs.append(found | {"step": losses[-1][0], "losses": losses})
    sizes = sorted({f"{run['size'] or 'custom'} model" for run in runs})
    title = f"{config.kind} loss, {', '.join([*sorted(trainings), *sizes])}; one run per line"
    if trainings == {PRETRAINING}:
        title += "\n" + " and ".join(sorted({describe_data(Path(run)) for run in config.runs}))
    seeds = sorted({run["seed"] for run in runs if run.get("seed") is not None})
    title += f"; seed {', '.join(map(str, seeds))}" if seeds else ""
    with atomic(config.out) as file:
        figures.losses(lines, file, title)
    print(f"wrote {config.out}")
    if is_described and config.kind == "train":
        path = Path(config.out).with_suffix(".json")
        write_json(path, {"metric": METRIC, "training": trainings.pop(), "runs": runs})
        print(f"record: {path}")


def describe_run(run: Path) -> dict:
    """Return the name, encoding, size, objective and seed of a run."""
    if training_of(run) == FINETUNING:
        path, remedy = run / "config.json", "fine-tune again, or remove the run"
        model = read_json(path, remedy)
        others = {"seed": read_finetuning(run)["settings"]["seed"], "objective": "mlm"}
    else:
        path, remedy = run / run_folder.CONFIG, "train again, or remove the run"
        model, others = read_settings(path, remedy), {}
    if problem := find_mismatch(model, SETTINGS):
        raise InputError(f"{path}: {problem}: {remedy}")
    keys = ("pe", "size", "objective", "seed")
    return {"run": run.name} | {key: model.get(key) for key in keys} | others


def describe_data(run: Path) -> str:
    """Return the data and the training length of a pretraining, whose settings were checked."""
    settings = read_settings(run / run_folder.CONFIG, "train again, or remove the run")
    data, length = settings.get("data"), settings.get("block_size")
    return f"{Path(data or 'unknown data').name}, trained at {length or 0:,} tokens"


def read_settings(path: Path, remedy: str):
    """Return the content of a YAML file. Raises InputError, with `remedy`, if it is corrupt."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read ({reason}): {remedy}") from None


def read_finetuning(run: Path) -> dict:
    """Return the record of a fine-tuning. Raises InputError if it is corrupt."""
    return read_json(run / "finetune.json", "fine-tune again", record_schema.FINETUNING)


def training_of(run: Path) -> str:
    """Return whether a folder holds a pretraining or a fine-tuning."""
    return FINETUNING if (run / "finetune.json").exists() else PRETRAINING


def read_losses(run: Path, kind: str) -> list[tuple[int, float]]:
    """Return [(step, loss)] of a run; kind: "train" or "val".

    Raises InputError if the folder has no log.
    """
    if training_of(run) == FINETUNING:
        # Fine-tuning does not validate. An unfinished one has no losses yet.
        return read_finetuning(run).get("losses", []) if kind == "train" else []
    if not (run / run_folder.LOG).exists():
        raise InputError(f"{run} has no log.jsonl or finetune.json: use the folder of a run")
    entries = [entry for entry in run_folder.read_log(run) if entry["kind"] == kind]
    for entry in entries:
        if problem := find_mismatch(entry, LOG_ENTRY):
            raise InputError(f"{run / run_folder.LOG}: {problem}: train again, or remove the run")
    return [(entry["step"], entry["loss"]) for entry in entries]
