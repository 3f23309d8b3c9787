"""Record what the logs of trainings hold: learning rate, speed, effective window of each layer.

    python -m reporting.scaling.training_logs runs/full/ladder_2-512-lr0.002/cable --out_dir runs

Writes training_logs.json and a table, training_logs.md. Validation loss, slope and window are those
of the last validation (evaluation/bias_statistics.py defines the latter two); tokens per second is
the median over the log lines, on what the machine had left for the run. Other runs that the record
holds are kept.
"""

import statistics
from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli, run_folder
from runtime.files import read_json, write_json

from errors import InputError
from reporting.formatting import MISSING, Folder, Table, format_number
from reporting.plots.losses import describe_run, read_settings


@dataclass
class Config:
    """Settings of the record."""

    runs: list[str] = field(default_factory=list)
    """run folders"""
    out_dir: str = "runs"
    """folder for the record and the table"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("runs", "run folders"))
    if not config.runs:
        raise InputError("no runs given: python -m reporting.scaling.training_logs runs/NAME ...")
    out = Folder(config.out_dir)
    path = out.path / "training_logs.json"
    known = read_json(path, "remove it, or use another --out_dir")["runs"] if path.exists() else []
    runs = {(run["run"], run["lr"]): run for run in [*known, *map(read_run, config.runs)]}
    write_json(path, {"metric": "Training logs", "runs": [*runs.values()]})
    print(
        out.add_text(
            "training_logs.md", Table.from_rows([*map(table_row, runs.values())]).markdown()
        )
    )
    out.write()
    print(f"wrote {path}")


def read_run(folder: str) -> dict:
    """Return what the log of a run holds. Raises InputError if it has no log."""
    run = Path(folder)
    if not (run / run_folder.LOG).exists():
        raise InputError(f"{run} has no {run_folder.LOG}: use the folder of a run")
    settings = read_settings(run / run_folder.CONFIG, "train again, or remove the run")
    entries = run_folder.read_log(run)
    speeds = [entry["tokens_per_second"] for entry in entries if entry["kind"] == "train"]
    last = ([entry for entry in entries if entry["kind"] == "val"] or [{}])[-1]
    found = {name: last.get(name) for name in ("step", "loss", "slope", "window")}
    speed = statistics.median(speeds) if speeds else None
    return describe_run(run) | {"lr": settings["lr"], "tokens_per_second": speed} | found


def table_row(run: dict) -> dict[str, str]:
    """Return the row of a run in the table."""
    speed = run["tokens_per_second"]
    return {
        "run": run["run"],
        "peak learning rate": f"{run['lr']:g}",
        "validation loss": format_number(run["loss"]),
        "tokens/s": f"{speed:,.0f}" if speed else MISSING,
        "window by layer": ", ".join(f"{n:,.0f}" for n in run["window"] or []) or MISSING,
    }


if __name__ == "__main__":
    cli.run(main)
