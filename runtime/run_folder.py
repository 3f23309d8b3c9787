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

A training calls find_checkpoint (which only reads), start, log, save, finish.
"""

import contextlib
import fcntl
import functools
import json
import os
import uuid
import weakref
from collections.abc import Callable, Set
from pathlib import Path

from runtime import plugins
from runtime.checkpoints import (
    CONTENT,
    FILE_NAME,
    FORMAT,
    list_checkpoints,
    load_checkpoint,
    named_step,
    write_checkpoint,
)
from runtime.devices import provenance
from runtime.files import atomic, read_json_lines, run_folder_of, writing
from runtime.schema import (
    MAY_BE_OVERRIDDEN,
    MAY_CHANGE_ON_RESUME,
    Count,
    fields,
    find_mismatch,
)

import torch
import yaml

from errors import InputError

CONFIG, LOG, PRETRAINED = "config.yaml", "log.jsonl", "pretrained_config.json"
LOSSES = ("train", "val")  # kinds of records with a loss
RECORD = fields({"kind": str, "step": Count, "loss?": float, "id?": str})  # of the log
ALREADY = "{} already contains a run: pass --resume to continue it, or use another --out_dir"
USE_THE_SAME = "use the same, or another --out_dir"


class Run:
    """A training run's folder: find a checkpoint, then lock, log and save.

    data: {"sha256", "tokenizer"} of the training data. keep: how many
    checkpoints stay. logger: of training/loggers.py, or None. is_writer: other
    ranks write nothing. files: of the tokenizer, copied into the folder.

    A checkpoint's config also has `init_steps`, the trained_steps of the
    --init_from source, and `changes`, one for each resume with other settings:
    {"step": 6, "settings": {"steps": [6, 12]}} for 12 steps instead of 6.
    """

    def __init__(
        self,
        folder: str | Path,
        config: dict,
        data: dict,
        keep: int = 1,
        logger=None,
        is_writer: bool = True,
        files: dict[str, bytes] | None = None,
    ):
        self.folder = Path(folder)
        self.config = config
        self.data = data
        self.keep = keep
        self.is_writer = is_writer
        self.files = files or {}
        self.logger = logger if is_writer else None
        self.step = -1  # of the checkpoint that training resumes from
        self.init_steps: int | None = None
        self.changes = []

    def find_checkpoint(self, resume: bool, override: Set[str] = frozenset()) -> dict | None:
        """Return the content of the newest checkpoint, or None for a new run.

        override: settings that may differ. Raises InputError if the folder
        contains another run, imported weights, or a run and `resume` is False,
        and if the checkpoint is corrupt.
        """
        paths = list_checkpoints(self.folder)
        if not resume and (paths or any((self.folder / x).exists() for x in (CONFIG, LOG))):
            raise InputError(ALREADY.format(self.folder))
        if (self.folder / "meta.json").exists():
            raise InputError(f"{self.folder} contains a data set: use another --out_dir")
        if not paths:
            return None
        checkpoint = load_checkpoint(self.folder, check_plugins=False)
        if checkpoint["data"]["sha256"] is None:
            raise InputError(
                f"--resume: {self.folder} contains imported weights, not a training to continue: "
                f"start a new run with --init_from {self.folder} and another --out_dir"
            )
        self.step = checkpoint["step"]
        old = checkpoint["config"]
        changed = {
            name: [old.get(name), value]
            for name, value in self.config.items()
            if name not in MAY_CHANGE_ON_RESUME and _identity(old.get(name)) != _identity(value)
        }
        self._check_changes(changed, checkpoint["data"], override)
        self.init_steps = old.get("init_steps")
        self.changes = list(old.get("changes", []))
        if changed:
            self.changes.append({"step": self.step, "settings": changed})
        return checkpoint

    def _check_changes(self, changed: dict, old_data: dict, override: Set[str]) -> None:
        """Raise InputError for changes that are not allowed."""
        old_steps, steps = changed.get("steps", (0, 0))
        allowed = override | ({"steps"} if steps > old_steps else set())
        refused = [name for name in changed if name not in allowed]
        flag = ",".join(
            name for name in [*sorted(override), *refused] if name in MAY_BE_OVERRIDDEN
        )
        overridden = (
            f"use the same, or pass --override {flag} to change it from step {self.step} on"
        )
        remedies = {difference(name, *changed[name]): USE_THE_SAME for name in refused}
        remedies |= {
            difference(x, *changed[x]): overridden for x in refused if x in MAY_BE_OVERRIDDEN
        }
        if old_data != self.data:
            remedy = f"use the same, or start a new run with --init_from {self.folder}"
            remedies[f"not trained on the data in {self.config['data']}"] = remedy
        if remedies:
            raise InputError(*(refusal(self.folder, *each) for each in remedies.items()))

    def start(self, device: torch.device, init_steps: int | None = None, **facts) -> None:
        """Lock the folder, write the config, and open the log with "start".

        facts: further values of that record. Raises InputError if the folder is
        locked or cannot be written.
        """
        if init_steps is not None:
            self.init_steps = init_steps
        if not self.is_writer:
            return
        weakref.finalize(self, lock_folder(self.folder))
        records = self._truncate_log()
        ids = [record["id"] for record in records if "id" in record]
        run_id = ids[0] if ids else uuid.uuid4().hex[:8]
        if self.logger:  # may raise, so it precedes the config
            self.logger.start(self.folder, run_id, self.config, self.step)
        with atomic(self.folder / CONFIG) as file:
            file.write(yaml.safe_dump(self.config, sort_keys=False).encode())
        if self.step < 0 and (source := self.config.get("init_from")):
            imported = run_folder_of(source) / PRETRAINED
            if imported.is_file():  # for an export
                self.files = self.files | {PRETRAINED: imported.read_bytes()}
        for name, content in self.files.items():
            with atomic(self.folder / name) as file:
                file.write(content)
        for plugin in plugins.LOADED.values():
            if plugin.path.name in (self.config.get("plugin") or {}):
                with atomic(self.folder / plugin.path.name) as file:
                    file.write(plugin.source)
        # For --tokenizer RUN.
        facts |= {"data": self.data["sha256"], "tokenizer": self.data["tokenizer"]}
        if self.config.get("plugin"):
            facts["plugin"] = self.config["plugin"]
        if self.changes and self.changes[-1]["step"] == self.step:
            facts["changed"] = self.changes[-1]["settings"]
        self._write("start", max(0, self.step), id=run_id, **facts, **provenance(device))

    def _truncate_log(self) -> list[dict]:
        """Truncate the log to the checkpoint's step; return its records."""
        path = self.folder / LOG
        if not path.exists():
            return []
        records = [record for record in read_log(self.folder) if record["step"] <= self.step]
        with atomic(path) as file:
            file.writelines(json.dumps(record).encode() + b"\n" for record in records)
        return records

    def log(self, kind: str, step: int, **values) -> None:
        """Append numbers to the log, and send them to the logger."""
        if not self.is_writer:
            return
        self._write(kind, step, **values)
        if self.logger:
            self.logger.log({f"{kind}/{name}": value for name, value in values.items()}, step)

    def log_sample(self, step: int, text: str) -> None:
        """Append a text to the log, and send it to the logger."""
        self._write("sample", step, text=text)
        if self.logger:
            self.logger.log_text("sample", text, step)

    def _write(self, kind: str, step: int, **values) -> None:
        with writing(self.folder / LOG), open(self.folder / LOG, "a", encoding="utf-8") as log:
            log.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")

    def save(self, **checkpoint) -> None:
        """Write a checkpoint, then remove all but the newest `keep`.

        checkpoint: CONTENT without format, config and data. Raises InputError
        if it cannot be written; the earlier checkpoints then stay.
        """
        if not self.is_writer:
            return
        config = self.config | ({"changes": self.changes} if self.changes else {})
        if self.init_steps is not None:
            config["init_steps"] = self.init_steps
        checkpoint |= {"format": FORMAT, "config": config, "data": self.data}
        assert checkpoint.keys() == CONTENT.keys()
        with writing(self.folder / LOG), open(self.folder / LOG, "ab") as log:
            os.fsync(log.fileno())
        with atomic(self.folder / FILE_NAME.format(checkpoint["step"])) as file:
            try:
                write_checkpoint(file, checkpoint)
            except RuntimeError as error:
                # PyTorch fails again when it closes its zip file.
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise
        for path in list_checkpoints(self.folder)[: -self.keep]:
            with writing(path):
                path.unlink()

    def describe_last_good(self, step: int) -> str:
        """Return which checkpoint to use if the weights of `step` give NaN."""
        good = [path for path in list_checkpoints(self.folder) if named_step(path) < step]
        if not good:
            return "train again with a lower --lr and another --out_dir"
        remedy = "remove later ones, pass --resume, a lower --lr and --override lr"
        return f"to continue from {good[-1].name}, {remedy}"

    def finish(self) -> None:
        """Close the logger, if there is one."""
        if self.logger:
            self.logger.finish()


def _identity(value):
    """Return what a setting is compared by: plugins by their SHA-256."""
    return sorted(value.values()) if isinstance(value, dict) else value


def _shorten(value):
    """Return the value of a setting, with 12 digits of a plugin's SHA-256."""
    if not isinstance(value, dict):
        return value
    return " ".join(f"{name} {sha256[:12]}" for name, sha256 in value.items())


def difference(name: str, old, new) -> str:
    """Return "trained with NAME OLD, not NEW" for `refusal`."""
    if old is None:
        return f"trained without {name}, not with {name} {_shorten(new)}"
    other = "not without it" if new is None else f"not {_shorten(new)}"
    return f"trained with {name} {_shorten(old)}, {other}"


def refusal(folder: Path, difference: str, remedy: str = USE_THE_SAME) -> str:
    """Return the error for a difference between a run and its resume."""
    return f"--resume: {folder} was {difference}: {remedy}"


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
            raise InputError(
                f"another process trains in {folder}: wait until it ends, or use another --out_dir"
            ) from None
    return functools.partial(os.close, descriptor)


def read_log(run: str | Path) -> list[dict]:
    """Return the records of a run's log, without corrupt lines."""
    records = [x for x in read_json_lines(Path(run) / LOG) if find_mismatch(x, RECORD) is None]
    return [record for record in records if "loss" in record or record["kind"] not in LOSSES]
