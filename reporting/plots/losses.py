"""Plot losses against steps, one line per run.

    python plot.py losses runs/medium/cable runs/medium/rope --out losses.png
    python plot.py losses runs/bert/*-retrieval --out losses.png

Runs are folders of train_gpt.py (log.jsonl) or retrieval.finetune
(finetune.json). A point is the mean loss since the previous logged step.
Figures 6 and 7 of the CABLE paper.

Training losses of runs that differ only in encoding and seed are also written
as a record next to the picture (losses.json). report.py makes a table of them,
and judges the claims on encoders.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtime import cli, run_folder
from runtime.files import atomic, read_json, write_json
from runtime.schema import Count, Integer, Number, Text, fields, find_mismatch, nullable

import yaml

from errors import InputError
from evaluation.record_schema import FINETUNING
from reporting import figures

REMEDY = "train again, or remove the run"
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
    out: str = "losses.png"
    """PNG file to write"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("runs", "run folders"))
    if not config.runs:
        raise InputError("no runs given: python plot.py losses runs/NAME ...")
    figures.check_png(config.out)
    lines, runs, setups, descriptions = [], [], set(), set()
    for run in map(Path, config.runs):
        found, setup = read_run(run, config.kind)
        if not found["losses"]:
            raise InputError(f"{run} has no {config.kind} losses: remove it")
        lines.append(figures.Line(run.name, found["pe"], found["losses"]))
        runs.append(found | {"step": found["losses"][-1][0]})
        setups.add(setup)
        descriptions.add(f"{setup[1]}, seed {found['seed']}")
    title = f"{config.kind} loss; one run per line\n{'; '.join(sorted(descriptions))}"
    panels = [("loss (nats)", lines)]
    with atomic(config.out) as file:
        figures.draw_lines(file, title, panels, "steps", "linear", "linear", marker="")
    print(f"wrote {config.out}")
    if config.kind != "train":
        return
    if len(setups) > 1 or len({(run["pe"], run["seed"]) for run in runs}) < len(runs):
        print("no record: the runs differ in more than encoding and seed, or are equal")
        return
    path, ((training, _),) = Path(config.out).with_suffix(".json"), setups
    write_json(path, {"metric": "Training loss", "training": training, "runs": runs})
    print(f"record: {path}")


def read_run(run: Path, kind: str) -> tuple[dict, tuple[str, str]]:
    """Return a run's fields of the record, with losses; and its setup.

    kind: "train" or "val". setup: training, and in words what is equal for all
    seeds. Raises InputError if a file is missing or corrupt.
    """
    path, tuned = run / "config.json", run / "finetune.json"
    finetuning = read_json(tuned, "fine-tune again", FINETUNING) if tuned.exists() else None
    if finetuning is None:
        path = run / run_folder.CONFIG
        losses = _logged_losses(run, kind)
    else:
        # Fine-tuning does not validate. An unfinished one has no losses yet.
        losses = finetuning.get("losses", []) if kind == "train" else []
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read ({reason}): {REMEDY}") from None
    if problem := find_mismatch(settings, SETTINGS):
        raise InputError(f"{path}: {problem}: {REMEDY}")
    keys = ("pe", "size", "objective", "seed")
    found = {"run": run.name} | {key: settings.get(key) for key in keys} | {"losses": losses}
    model = f"{settings.get('size') or 'custom'} model"
    if finetuning:
        found |= {"objective": "mlm", "seed": finetuning["settings"]["seed"]}
        return found, ("fine-tuning", f"{model}, fine-tuned")
    data = Path(settings.get("data") or "unknown data").name
    length = settings.get("block_size") or 0
    return found, ("pretraining", f"{model} on {data}, trained at {length:,} tokens")


def _logged_losses(run: Path, kind: str) -> list[tuple[float, float]]:
    """Return [(step, loss)] of a training's log."""
    path = run / run_folder.LOG
    if not path.exists():
        raise InputError(f"{run} has no log.jsonl or finetune.json: use the folder of a run")
    entries = [entry for entry in run_folder.read_log(run) if entry["kind"] == kind]
    if problem := find_mismatch(entries, list[LOG_ENTRY]):
        raise InputError(f"{path}: {problem}: {REMEDY}")
    return [(entry["step"], entry["loss"]) for entry in entries]
