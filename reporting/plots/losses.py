"""Plot losses against steps, one line per run.

    python plot.py losses runs/medium/cable runs/medium/rope --out losses.png
    python plot.py losses runs/bert/*-retrieval --out losses.png

Runs are folders of train_gpt.py (log.jsonl) or retrieval.finetune
(finetune.json). A point is the mean loss since the previous logged
step. Figures 6 and 7 of the CABLE paper.

Training losses of runs that differ only in encoding and seed are also
written as a record next to the picture (losses.json). report.py makes a
table of them, and judges the claims on encoders.
"""

from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli, run_folder
from runtime.files import atomic, read_json, write_json
from runtime.schema import Count, Text, fields, find_mismatch

import yaml

from errors import InputError
from evaluation.record_schema import FINETUNING, Number
from reporting import figures

REMEDY = "train again, or remove the run"
SETTINGS = fields(  # of config.yaml or config.json
    {
        "pe": Text,
        "size? objective? data?": Text | None,
        "seed? block_size?": Count | None,
    }
)
LOG_ENTRY = fields({"step": Count, "loss": Number})


@dataclass
class Config:
    """Settings of the plot."""

    runs: list[str] = field(default_factory=list)
    """run folders"""
    out: str = "losses.png"
    """PNG file to write"""

    def __post_init__(self):
        figures.check_png(self.out)
        if not self.runs:
            raise InputError("no runs given: python plot.py losses runs/NAME ...")


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("runs", "run folders"))
    found = [read_run(Path(run)) for run in config.runs]
    runs, setups = [run for run, _ in found], {setup for _, setup in found}
    lines = [figures.Line(run["run"], run["pe"], run["losses"]) for run in runs]
    descriptions = {f"{description}, seed {run['seed']}" for run, (_, description) in found}
    title = f"training loss; one run per line\n{'; '.join(sorted(descriptions))}"
    panels = [("loss (nats)", lines)]
    with atomic(config.out) as file:
        figures.draw_lines(file, title, panels, "steps", "linear", "linear", marker="")
    print(f"wrote {config.out}")
    if len(setups) > 1 or len({(run["pe"], run["seed"]) for run in runs}) < len(runs):
        print("no record: the runs differ in more than encoding and seed, or are equal")
        return
    path, ((training, _),) = Path(config.out).with_suffix(".json"), setups
    write_json(path, {"metric": "Training loss", "training": training, "runs": runs})
    print(f"record: {path}")


def read_run(run: Path) -> tuple[dict, tuple[str, str]]:
    """Return a run's fields of the record, and its setup.

    setup: training, and in words what is equal for all seeds. Raises
    InputError if a file is missing or corrupt, or has no losses.
    """
    path, tuned = run / run_folder.CONFIG, run / "finetune.json"
    finetuning = read_json(tuned, "fine-tune again", FINETUNING) if tuned.exists() else None
    if finetuning:
        path, losses = run / "config.json", finetuning.get("losses")
    else:
        losses = _logged_losses(run)
    if not losses:
        raise InputError(f"{run} has no training losses: remove it")
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read ({reason}): {REMEDY}") from None
    if problem := find_mismatch(settings, SETTINGS):
        raise InputError(f"{path}: {problem}: {REMEDY}")
    found = {key: settings.get(key) for key in ("pe", "size", "objective", "seed")}
    found |= {"run": run.name, "losses": losses, "step": losses[-1][0]}
    model = f"{settings.get('size') or 'custom'} model"
    if finetuning:
        found |= {"objective": "mlm", "seed": finetuning["settings"]["seed"]}
        return found, ("fine-tuning", f"{model}, fine-tuned")
    data = Path(settings.get("data") or "unknown data").name
    length = settings.get("block_size") or 0
    return found, ("pretraining", f"{model} on {data}, trained at {length:,} tokens")


def _logged_losses(run: Path) -> list[tuple[float, float]]:
    """Return [(step, loss)] of a training's log."""
    path = run / run_folder.LOG
    if not path.exists():
        raise InputError(f"{run} has no log.jsonl or finetune.json: use a run folder")
    entries = [entry for entry in run_folder.read_log(run) if entry["kind"] == "train"]
    if problem := find_mismatch(entries, list[LOG_ENTRY]):
        raise InputError(f"{path}: {problem}: {REMEDY}")
    return [(entry["step"], entry["loss"]) for entry in entries]
