"""What is a run on disk? A folder that tells all about it:

    config.yaml      every setting, resolved: `--config` takes it back
    log.jsonl        a record per log step, flushed at once; {"kind": "start" | "train" | "val", ...}
    checkpoint.pt    weights, optimizer, step, sampler position, random state, config; replaced atomically
    eval_*.json      records of the programs that ask a question about it

    run = Run("runs/cable", config, data, resume=True, may_differ={"device"})      # looks at the folder, or says what is wrong
    run.begin()                                                                    # takes it
    model, checkpoint = load_model("runs/cable", device)
"""

import datetime
import hashlib
import json
import os
import pickle
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import yaml

import device as devices
from errors import InputError
from files import atomic, writing
from model import GPT, GPTConfig

CHECKPOINT, CONFIG, LOG = "checkpoint.pt", "config.yaml", "log.jsonl"
FORMAT = "gpt checkpoint 1"
KEYS = {"format", "model", "optimizer", "step", "sampler", "rng", "gpt", "config", "data"}


class Run:
    """A training run's folder: looked at when made, written to from `begin` on.

    config: the run's settings; may_differ: those that need not agree with the ones the folder's run began with.
    data: {"sha256", "tokenizer"} of the training data. checkpoint: where `resume` found one, its content, else None.
    Raises InputError where the folder holds another run, and as soon as it cannot be written.
    """

    def __init__(self, folder: str | Path, config: dict, data: dict, resume: bool, may_differ: set[str]):
        self.folder, self.config, self.data = Path(folder), config, data
        self.checkpoint = None
        if (self.folder / CONFIG).exists() or (self.folder / CHECKPOINT).exists():
            if not resume:
                raise InputError(f"{folder} already holds a run: go on with it by --resume, or choose another --out_dir")
            if (self.folder / CHECKPOINT).exists():
                self.checkpoint = load_checkpoint(self.folder)
                found, mend = self.checkpoint["config"], "give the same, or choose another --out_dir"
                problems = [f"--resume: {folder} was trained with {key} {found.get(key)}, not {value}: {mend}"
                            for key, value in config.items() if key not in may_differ and found.get(key) != value]
                if self.checkpoint["data"] != data:
                    problems.append(f"--resume: {folder} was trained on other data than {config['data']}: {mend}")
                if problems:
                    raise InputError(*problems)
        elif self.folder.is_dir() and any(self.folder.iterdir()):
            raise InputError(f"{folder} holds other files: choose another --out_dir")

    def begin(self) -> None:
        """Takes the folder: writes the config, and opens the log after the checkpoint's step."""
        with atomic(self.folder / CONFIG) as file:
            file.write(yaml.safe_dump(self.config, sort_keys=False).encode())
        self._cut_log(self.checkpoint["step"] if self.checkpoint else -1)
        with writing(self.folder / LOG):
            self._log = open(self.folder / LOG, "a", encoding="utf-8")

    def _cut_log(self, step: int) -> None:
        """Forgets what was logged after the checkpoint: those steps are taken again."""
        path = self.folder / LOG
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            with atomic(path) as file:
                file.write("".join(line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= step).encode())

    def log(self, kind: str, step: int, **values) -> None:
        with writing(self.folder / LOG):
            self._log.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._log.flush()

    def save(self, **checkpoint) -> None:
        """Replaces the checkpoint; on the disk there is always a whole one."""
        checkpoint |= {"format": FORMAT, "config": self.config, "data": self.data}
        assert set(checkpoint) == KEYS
        with atomic(self.folder / CHECKPOINT) as file:
            torch.save(checkpoint, file)


def checkpoint_path(run: str | Path) -> Path:
    """The checkpoint of a run's folder; a file stands for itself."""
    return Path(run) / CHECKPOINT if Path(run).is_dir() else Path(run)


def load_checkpoint(run: str | Path) -> dict:
    """A checkpoint's content, tensors on the CPU. Raises InputError where there is none, or not a whole one of ours."""
    path = checkpoint_path(run)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: train first, or name the run's folder") from None
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path} is damaged or no checkpoint ({reason}): train again, or name another") from None
    if not isinstance(checkpoint, dict) or checkpoint.get("format") != FORMAT or set(checkpoint) != KEYS:
        raise InputError(f"{path} is not a checkpoint of this program: name the folder of a run by train_gpt.py")
    return checkpoint


def load_model(run: str | Path, device: torch.device, attention: str = "auto") -> tuple[GPT, dict]:
    """The trained model, in evaluation mode on `device`, and the rest of its checkpoint."""
    checkpoint = load_checkpoint(run)
    model = GPT(GPTConfig(**{**checkpoint["gpt"], "attention": attention}))
    load_weights(model, checkpoint.pop("model"), run)
    return model.to(device).eval(), checkpoint


def load_weights(model: GPT, weights: dict, run: str | Path) -> None:
    """Strict: every weight, no other. Raises InputError where they belong to another architecture."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(f"the weights in {run} are those of another model ({' '.join(str(error).split())[:200]}): "
                         "name another run") from None


def sha256_of(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def provenance(device: torch.device) -> dict:
    """Who made a record: command, commit, versions, hardware, time."""
    return {"command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]), "commit": _commit(), "python": platform.python_version(),
            "torch": torch.__version__, "numpy": np.__version__, "device": devices.describe(device),
            "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")}


def _commit() -> str | None:
    """The commit of this code, marked where files were changed since; None outside a git checkout."""
    folder = Path(__file__).parent
    try:
        return subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"], cwd=folder, text=True,
                              capture_output=True, check=True, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
                              ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
