"""Run folder: everything that a training run writes.

config.yaml             every setting, resolved; `--config` accepts the file
log.jsonl               one record per log step: {"kind": "start" | "train" | "val", "step", ...}
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

import json
import math
import os
import uuid
import weakref
from pathlib import Path

import torch
import yaml

try:
    import fcntl
except ImportError:  # not a Unix system
    fcntl = None

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
        if not has_checkpoint and not (self.folder / CONFIG).exists():
            if self._has_other_files():
                raise InputError(f"{self.folder} contains other files: use another --out_dir")
            return None
        if not resume:
            raise InputError(
                f"{self.folder} already contains a run: pass --resume to continue it, "
                "or use another --out_dir"
            )
        if not has_checkpoint:
            return None
        checkpoint = load_checkpoint(self.folder)
        self._check_settings(checkpoint, defaults)
        self.step = checkpoint["step"]
        return checkpoint

    def _has_other_files(self) -> bool:
        """Return whether the folder contains more than an interrupted start leaves behind."""
        if not self.folder.is_dir():
            return False
        return any(
            path.name != "wandb" and path.suffix != ".partial" for path in self.folder.iterdir()
        )

    def _check_settings(self, checkpoint: dict, defaults: dict) -> None:
        """Raise InputError if a setting or the data differ from those of the checkpoint."""
        remedy = "use the same, or another --out_dir"
        old_config = {**defaults, **checkpoint["config"]}
        problems = []
        for name, value in self.config.items():
            old_value = old_config.get(name)
            if name not in MAY_CHANGE_ON_RESUME and old_value != value:
                problems.append(f"was trained with {name} {old_value}, not {value}: {remedy}")
        if checkpoint["data"] != self.data:
            problems.append(f"was not trained on the data in {self.config['data']}: {remedy}")
        if problems:
            raise InputError(*(f"--resume: {self.folder} {problem}" for problem in problems))

    def start(self, device: torch.device, **facts) -> None:
        """Lock the folder, write the config, and open the log with a "start" record.

        facts: further values of that record. Raises InputError if another process trains in the
        folder, or if it cannot be written.
        """
        if not self.is_writer:
            return
        self._lock()
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

    def _lock(self) -> None:
        """Keep other processes out of the folder for as long as this object exists."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            return
        descriptor = os.open(self.folder, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"another process trains in {self.folder}: wait until it ends, "
                "or use another --out_dir"
            ) from None
        except OSError:
            pass  # a file system without locks

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
