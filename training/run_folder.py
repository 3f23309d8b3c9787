"""Run folder: everything that a training run writes.

The files of a run:

    config.yaml             every setting, resolved; `--config` accepts the file
    log.jsonl               records: kind (start, train, val, sample), step, ...
    tokenizer.json          copy of the tokenizer, unless its name is enough
    my_encoding.py          copy of the plugin that defines the encoding
    pretrained_config.json  config.json of the imported model that it comes from
    checkpoint_0001000.pt   after step 1,000 (checkpoints.py); the newest stay
    eval_*.json             evaluation records (evaluation/runner.py)
    events.out.tfevents.*   for TensorBoard, with --logger tensorboard
    wandb/                  for Weights & Biases, with --logger wandb

A training calls find_checkpoint (which only reads), start, log, save.
"""

import contextlib
import fcntl
import functools
import json
import os
import uuid
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.devices import provenance
from runtime.files import atomic, read_json_lines, run_folder_of, writing
from runtime.validation import Count, find_mismatch

import msgspec
import torch
import yaml

from errors import InputError
from setting import settings_of
from training import checkpoints

CONFIG, LOG, PRETRAINED = "config.yaml", "log.jsonl", "pretrained_config.json"
LOSSES = ("train", "val")  # kinds of records with a loss
ALREADY = "{} already contains a run: use another --out_dir, or --resume to continue it"


class LogRecord(msgspec.Struct):
    """A line of the log; other fields depend on its kind."""

    kind: str
    step: Count
    loss: float | msgspec.UnsetType = msgspec.UNSET
    id: str | msgspec.UnsetType = msgspec.UNSET


@dataclass(eq=False)
class Run:
    """A training run's folder: find a checkpoint, then lock, log and save.

    A checkpoint's config also has `init_steps`, the trained_steps of --init_from, and `changes`,
    one for each resume with other settings: {"step": 6, "settings": {"steps": [6, 12]}} for 12
    steps instead of 6.
    """

    folder: Path
    config: dict
    data: dict[str, str | None]  # "sha256" and "tokenizer" of the training data
    keep: int = 1  # number of newest checkpoints that stay
    logger: Any = None  # of training/loggers.py, of the rank that writes
    is_writer: bool = True  # other ranks write nothing
    files: dict[str, bytes] = field(default_factory=dict)  # of the tokenizer, to copy
    step: int = -1  # of the checkpoint that training resumes from
    init_steps: int | None = None
    changes: list[dict] = field(default_factory=list)

    def find_checkpoint(self, settings) -> dict | None:
        """Return the content of the newest checkpoint, or None for a new run.

        settings: training.settings.Config, with `resume` and what it may override. Raises
        InputError if the folder has another run, or any without `resume`, or a corrupt checkpoint.
        """
        kind, override = type(settings), settings.overridden
        paths = checkpoints.list_checkpoints(self.folder)
        is_used = paths or any((self.folder / x).exists() for x in (CONFIG, LOG))
        if is_used and not settings.resume:
            raise InputError(ALREADY.format(self.folder))
        if (self.folder / "meta.json").exists():
            raise InputError(f"{self.folder} contains a data set: use another --out_dir")
        if not paths:
            return None
        checkpoint = checkpoints.load_checkpoint(self.folder, check_plugins=False)
        newer = {x.name: x.default for x in settings_of(kind).values()}
        old, self.step = newer | checkpoint["config"], checkpoint["step"]
        if checkpoint["data"] != self.data:
            what = f"not trained on the data in {self.config['data']}"
            remedy = f"start a new run with --init_from {self.folder}"
            raise InputError(refusal(self.folder, what, remedy))
        changed, free = {}, settings_of(kind, resume="free")
        may_change = settings_of(kind, resume="override").keys()
        for name, value in self.config.items():
            is_same = _identity(old.get(name)) == _identity(value)
            if not is_same and name not in free:
                changed[name] = [old.get(name), value]
        is_finished = self.step >= self.config["steps"]
        if changed and changed.keys() <= may_change and is_finished:
            names = " ".join(sorted(changed))
            raise InputError(
                f"--resume: {self.folder} has finished {self.step} steps, so that a change of "
                f"{names} has no effect: use more --steps, or another --out_dir"
            )
        old_steps, steps = changed.get("steps", (0, 0))
        allowed = override | ({"steps"} if steps > old_steps else set())
        refused = {name: change for name, change in changed.items() if name not in allowed}
        flag = ",".join(sorted((override | refused.keys()) & may_change))
        consent = f"pass --override {flag} to change it from step {self.step} on"
        remedies = dict.fromkeys(may_change, consent)
        problems = [
            refusal(self.folder, difference(name, *change), remedies.get(name))
            for name, change in refused.items()
        ]
        if problems:
            raise InputError(*problems)
        self.init_steps, self.changes = old.get("init_steps"), [*old.get("changes", [])]
        if changed:
            self.changes.append({"step": self.step, "settings": changed})
        return checkpoint

    def start(self, device: torch.device, init_steps: int | None = None, **facts) -> None:
        """Lock the folder, write the config, and open the log with "start".

        facts: further values of that record. Raises InputError if the folder is locked or cannot be
        written.
        """
        if init_steps is not None:
            self.init_steps = init_steps
        if not self.is_writer:
            return
        weakref.finalize(self, lock_folder(self.folder))
        path, logged, records = self.folder / LOG, [], []
        if path.exists():  # without later steps
            logged = read_log(self.folder)
            records = [record for record in logged if record["step"] <= self.step]
            with atomic(path) as file:
                file.writelines(json.dumps(record).encode() + b"\n" for record in records)
        ids = [record["id"] for record in records if "id" in record]
        is_repeated = len(records) < len(logged)
        if is_repeated and self.logger and not self.logger.replaces_steps:
            ids = []
        run_id = ids[-1] if ids else uuid.uuid4().hex[:8]
        if self.logger:  # may raise, so it precedes the config
            self.logger.start(self.folder, run_id, self.config, self.step)
        files = {CONFIG: yaml.safe_dump(self.config, sort_keys=False).encode()} | self.files
        if plugin := self.config.get("plugin"):
            from training import plugins

            used = [each for each in plugins.LOADED.values() if each.path.name in plugin]
            files |= {each.path.name: each.source for each in used}
        if self.step < 0 and (source := self.config.get("init_from")):
            imported = run_folder_of(source) / PRETRAINED
            if imported.is_file():  # for an export
                files[PRETRAINED] = imported.read_bytes()
        for name, content in files.items():
            with atomic(self.folder / name) as file:
                file.write(content)
        # For --tokenizer RUN.
        facts |= {"data": self.data["sha256"], "tokenizer": self.data["tokenizer"]}
        if plugin:
            facts["plugin"] = plugin
        if self.changes and self.changes[-1]["step"] == self.step:
            facts["changed"] = self.changes[-1]["settings"]
        self._write("start", max(0, self.step), id=run_id, **facts, **provenance(device))

    def log(self, kind: str, step: int, **values) -> None:
        """Append numbers or texts to the log, and send them to the logger."""
        if not self.is_writer:
            return
        self._write(kind, step, **values)
        if self.logger:
            named = {f"{kind}/{name}": value for name, value in values.items()}
            self.logger.log(named, step)

    def _write(self, kind: str, step: int, **values) -> None:
        path = self.folder / LOG
        with writing(path), open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")

    def save(self, **checkpoint) -> None:
        """Write a checkpoint, then remove all but the newest `keep`.

        checkpoint: Checkpoint without format, config and data. Raises InputError if it cannot be
        written; the earlier checkpoints then stay.
        """
        if not self.is_writer:
            return
        config = self.config | ({"changes": self.changes} if self.changes else {})
        if self.init_steps is not None:
            config["init_steps"] = self.init_steps
        checkpoint |= {"format": checkpoints.FORMAT, "config": config, "data": self.data}
        assert {*checkpoint} == {*checkpoints.Checkpoint.__struct_fields__}
        with writing(self.folder / LOG), open(self.folder / LOG, "ab") as log:
            os.fsync(log.fileno())
        with atomic(self.folder / checkpoints.FILE_NAME.format(checkpoint["step"])) as file:
            try:
                checkpoints.write_checkpoint(file, checkpoint)
            except RuntimeError as error:
                # PyTorch fails again when it closes its zip file.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise
        for path in checkpoints.list_checkpoints(self.folder)[: -self.keep]:
            with writing(path):
                path.unlink()

    def describe_last_good(self, step: int) -> str:
        """Return which checkpoint to use if the weights of `step` give NaN."""
        if good := checkpoints.list_checkpoints(self.folder, before=step):
            remedy = "remove later ones, pass --resume, a lower --lr and --override lr"
            return f"to continue from {good[-1].name}, {remedy}"
        return "train again with a lower --lr and another --out_dir"


def _identity(value):
    """Return what a setting is compared by: plugins by their SHA-256."""
    return sorted(value.values()) if isinstance(value, dict) else value


def difference(name: str, old, new) -> str:
    """Return "trained with NAME OLD, not NEW" for `refusal`."""
    old, new = (  # 12 digits of a plugin's SHA-256
        " ".join(f"{file} {sha256[:12]}" for file, sha256 in value.items())
        if isinstance(value, dict)
        else value
        for value in (old, new)
    )
    if old is None:
        return f"trained without {name}, not with {name} {new}"
    return f"trained with {name} {old}, not {'without it' if new is None else new}"


def refusal(folder: Path, difference: str, remedy: str | None = None) -> str:
    """Return the error for a difference between a run and its resume."""
    remedy = remedy or "another --out_dir"
    return f"--resume: {folder} was {difference}: use the same, or {remedy}"


def lock_folder(folder: Path) -> Callable[[], None]:
    """Create and lock a folder, and return the function to unlock it.

    The lock ends with the process. Raises InputError if another one has it.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):  # a file system without locks
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            remedy = "wait until it ends, or use another --out_dir"
            raise InputError(f"another process trains in {folder}: {remedy}") from None
    return functools.partial(os.close, descriptor)


def read_log(run: str | Path) -> list[dict]:
    """Return the records of a run's log, without corrupt lines."""
    lines = read_json_lines(Path(run) / LOG)
    records = [x for x in lines if find_mismatch(x, LogRecord) is None]
    return [x for x in records if "loss" in x or x["kind"] not in LOSSES]
