"""Run folder: everything that a training run writes.

The files of a run:

    config.yaml             every setting, resolved; `--config` accepts the file
    log.jsonl               records with "kind" (start, train or val), "step" and values
    checkpoint_0001000.pt   after step 1,000 (checkpoints.py); the newest few are kept
    eval_*.json             evaluation records (evaluation/records.py)
    wandb/                  what is sent to Weights & Biases, with --wandb_project

    run = Run("runs/cable", config, data)
    checkpoint = run.find_checkpoint(resume=True, defaults={})  # reads only
    run.start(device)                                           # locks the folder and writes
    run.log("train", step, loss=loss)
    run.save(**checkpoint)
    run.finish()
"""

import fcntl
import functools
import json
import math
import os
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
import yaml

from errors import InputError
from runtime.checkpoints import (
    FILE_NAME,
    FORMAT,
    KEYS,
    MAY_CHANGE_ON_RESUME,
    list_checkpoints,
    load_checkpoint,
)
from runtime.files import atomic, writing
from runtime.provenance import provenance

CONFIG, LOG = "config.yaml", "log.jsonl"


class Run:
    """A training run's folder: find a checkpoint to resume from, then lock, log and save.

    config: the run's settings. data: {"sha256", "tokenizer"} of the training data. keep: how many
    checkpoints are kept. is_writer: False on every rank except one; the others write nothing.
    """

    def __init__(
        self,
        folder: str | Path,
        config: dict,
        data: dict,
        keep: int = 1,
        wandb_project: str | None = None,
        is_writer: bool = True,
    ):
        self.folder = Path(folder)
        self.config = config
        self.data = data
        self.keep = keep
        self.is_writer = is_writer
        self.wandb_project = wandb_project
        self.wandb = None
        self.step = -1  # of the checkpoint that training resumes from
        self.is_validated = False  # whether the log contains a validation at that step
        if wandb_project:
            _import_wandb()

    def find_checkpoint(self, resume: bool, defaults: dict) -> dict | None:
        """Return the content of the newest checkpoint to resume from, or None for a new run.

        defaults: values of settings that did not exist when an older checkpoint was written. Writes
        nothing. Raises InputError if the folder contains another run, other files, or this run and
        `resume` is False.
        """
        has_checkpoint = bool(list_checkpoints(self.folder))
        has_run = has_checkpoint or (self.folder / CONFIG).exists()
        check_folder(self.folder, has_run, resume)
        if not has_checkpoint:
            return None
        checkpoint = load_checkpoint(self.folder)
        self._check_settings(checkpoint, defaults)
        self.step = checkpoint["step"]
        return checkpoint

    def _check_settings(self, checkpoint: dict, defaults: dict) -> None:
        """Raise InputError if a setting or the data differ from those of the checkpoint."""
        problems = changed_settings(
            {**defaults, **checkpoint["config"]}, self.config, MAY_CHANGE_ON_RESUME
        )
        if checkpoint["data"] != self.data:
            problems.append(f"not trained on the data in {self.config['data']}")
        check_unchanged(self.folder, problems)

    def start(self, device: torch.device, **facts) -> None:
        """Lock the folder, write the config, and open the log with a "start" record.

        facts: further values of that record. Raises InputError if another process trains in the
        folder, or if it cannot be written.
        """
        if not self.is_writer:
            return
        weakref.finalize(self, lock_folder(self.folder))
        lines = self._truncate_log()
        run_id = json.loads(lines[0])["id"] if lines else uuid.uuid4().hex[:8]
        records = [json.loads(line) for line in lines]
        self.is_validated = any(
            record["kind"] == "val" and record["step"] == self.step for record in records
        )
        wandb = None
        if self.wandb_project:  # may raise, so it precedes the config
            wandb = _start_wandb(self.wandb_project, self.folder, run_id, self.config)
        with atomic(self.folder / CONFIG) as file:
            file.write(yaml.safe_dump(self.config, sort_keys=False).encode())
        with writing(self.folder / LOG):
            self._log = open(self.folder / LOG, "a", encoding="utf-8")  # noqa: SIM115
        self.log("start", max(0, self.step), id=run_id, **facts, **provenance(device))
        self.wandb = wandb

    def _truncate_log(self) -> list[str]:
        """Truncate the log to the checkpoint's step and return its lines.

        Training repeats the later steps. An incomplete last line is removed, too.
        """
        path = self.folder / LOG
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        complete = [line for line in lines if line.endswith("\n")]
        kept = [line for line in complete if json.loads(line)["step"] <= self.step]
        with atomic(path) as file:
            file.write("".join(kept).encode())
        return kept

    def log(self, kind: str, step: int, **values) -> None:
        """Append a record to the log, and send it to Weights & Biases if that is enabled.

        values: numbers, or lists with one number per layer.
        """
        if not self.is_writer:
            return
        with writing(self.folder / LOG):
            self._log.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._log.flush()
        if not self.wandb:
            return
        flat = {"step": step}
        for name, value in values.items():
            if isinstance(value, list):
                flat |= {f"{kind}/{name}/{layer}": number for layer, number in enumerate(value)}
            else:
                flat[f"{kind}/{name}"] = value
        self.wandb.log(flat)

    def save(self, **checkpoint) -> None:
        """Write a checkpoint atomically, then remove all but the newest `keep`.

        checkpoint: all of KEYS except "format", "config" and "data", which are added here.
        """
        if not self.is_writer:
            return
        checkpoint |= {"format": FORMAT, "config": self.config, "data": self.data}
        assert set(checkpoint) == KEYS
        with atomic(self.folder / FILE_NAME.format(checkpoint["step"])) as file:
            torch.save(checkpoint, file)
        for path in list_checkpoints(self.folder)[: -self.keep]:
            path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Close the connection to Weights & Biases, if there is one."""
        if self.wandb:
            self.wandb.finish()


def check_folder(folder: Path, has_run: bool, resume: bool) -> None:
    """Raise InputError if the folder has a run and `resume` is False, or if it has other files.

    Files that an interrupted start leaves behind are ignored.
    """
    if has_run and not resume:
        raise InputError(
            f"{folder} already contains a run: pass --resume to continue it, "
            "or use another --out_dir"
        )
    if has_run or not folder.is_dir():
        return
    if any(path.name != "wandb" and path.suffix != ".partial" for path in folder.iterdir()):
        raise InputError(f"{folder} contains other files: use another --out_dir")


def changed_settings(old: dict, new: dict, may_change: set[str]) -> list[str]:
    """Return "trained with NAME OLD, not NEW" for each setting that must not change on resume."""
    return [
        f"trained with {name} {old.get(name)}, not {value}"
        for name, value in new.items()
        if name not in may_change and old.get(name) != value
    ]


def check_unchanged(folder: Path, problems: list[str]) -> None:
    """Raise InputError if there are differences between a run and how it is resumed."""
    remedy = "use the same, or another --out_dir"
    if problems:
        raise InputError(*(f"--resume: {folder} was {problem}: {remedy}" for problem in problems))


def lock_folder(folder: Path) -> Callable[[], None]:
    """Create the folder, keep other processes from locking it, and return the function to unlock.

    The lock also ends with the process. Raises InputError if another process has it.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InputError(
            f"another process trains in {folder}: wait until it ends, or use another --out_dir"
        ) from None
    except OSError:
        pass  # a file system without locks
    return functools.partial(os.close, descriptor)


def _import_wandb():
    try:
        import wandb
    except ImportError as error:
        raise InputError(f"--wandb_project needs wandb ({error}): pip install wandb") from None
    return wandb


def _start_wandb(project, folder, run_id, config):
    """Start or resume a run of Weights & Biases; WANDB_MODE=offline keeps it in the folder."""
    wandb = _import_wandb()
    try:
        run = wandb.init(
            project=project, name=folder.name, id=run_id, dir=folder, config=config, resume="allow"
        )
    except wandb.errors.Error as error:
        raise InputError(
            f"wandb: {' '.join(str(error).split())}: run `wandb login`, or set WANDB_MODE=offline"
        ) from None
    run.define_metric("*", step_metric="step")
    return run


def read_log(run: str | Path) -> list[dict]:
    """Return the records of a run's log, without an incomplete last line."""
    lines = (Path(run) / LOG).read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def validation_loss(run: str | Path) -> float:
    """Return the loss of the last validation in a run's log; infinity if there is none yet."""
    losses = [entry["loss"] for entry in read_log(run) if entry["kind"] == "val"]
    return losses[-1] if losses else math.inf
