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
from reporting.loss_plots import describe_run, read_settings

METRIC = "Training logs"


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
    runs = [read_run(Path(run)) for run in config.runs]
    runs = add_runs(out.path / "training_logs.json", runs)
    table = Table.from_rows([table_row(run) for run in runs])
    print(out.add_text("training_logs.md", table.markdown()))
    out.write()
    print(f"wrote {out.path / 'training_logs.json'}")


def read_run(run: Path) -> dict:
    """Return what the log of a run holds. Raises InputError if it has no log."""
    if not (run / run_folder.LOG).exists():
        raise InputError(f"{run} has no {run_folder.LOG}: use the folder of a run")
    settings = read_settings(run / run_folder.CONFIG, "train again, or remove the run")
    entries = run_folder.read_log(run)
    speeds = [entry["tokens_per_second"] for entry in entries if entry["kind"] == "train"]
    validations = [entry for entry in entries if entry["kind"] == "val"]
    last = validations[-1] if validations else {}
    return describe_run(run) | {
        "lr": settings["lr"],
        "step": last.get("step"),
        "loss": last.get("loss"),
        "tokens_per_second": statistics.median(speeds) if speeds else None,
        "slope": last.get("slope"),
        "window": last.get("window"),
    }


def add_runs(path: Path, runs: list[dict]) -> list[dict]:
    """Add runs to the record at `path`, in place of those of the same name and rate; return all.

    Raises InputError if the file is not such a record.
    """
    known = []
    if path.exists():
        remedy = "remove it, or use another --out_dir"
        record = read_json(path, remedy)
        if not isinstance(record, dict) or record.get("metric") != METRIC:
            raise InputError(f"{path} is not a record of {METRIC}: {remedy}")
        known = record["runs"]
    merged = {(run["run"], run["lr"]): run for run in [*known, *runs]}
    write_json(path, {"metric": METRIC, "runs": [*merged.values()]})
    return [*merged.values()]


def table_row(run: dict) -> dict[str, str]:
    """Return the row of a run in the table."""
    speed = run["tokens_per_second"]
    windows = ", ".join(f"{window:,.0f}" for window in run["window"] or [])
    return {
        "run": run["run"],
        "peak learning rate": f"{run['lr']:g}",
        "validation loss": format_number(run["loss"]),
        "tokens/s": f"{speed:,.0f}" if speed else MISSING,
        "window by layer": windows or MISSING,
    }


if __name__ == "__main__":
    cli.run(main)
