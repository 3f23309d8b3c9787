"""What is a run on disk? A folder that tells all about it:

config.yaml             every setting, resolved: `--config` takes it back
log.jsonl               a record per log step, flushed at once; {"kind": "start" | "train" | "val", "step", ...}
checkpoint_0001000.pt   after step 1,000: weights, optimizer, scaler, step, sampler position, random states, config; written
                        atomically, the newest few are kept, and the newest stands for the run
eval_*.json             records of the programs that ask a question about it
wandb/                  what goes to Weights & Biases as well, if asked for

run = Run("runs/cable", config, data)
checkpoint = run.find(resume=True, defaults={})         # looks at the folder, or says what is wrong
run.begin(device)                                       # takes it
model, checkpoint = load_model("runs/cable", device)
"""

import datetime
import hashlib
import json
import math
import os
import pickle
import platform
import shlex
import subprocess
import sys
import uuid
import weakref
from pathlib import Path

import numpy as np
import torch
import yaml

try:
    import fcntl
except ImportError:  # no Unix
    fcntl = None

import posenc
from attention import SKIP_TOLERANCE
from errors import InputError
from model import GPT, GPTConfig
from runtime import devices
from runtime.files import atomic, writing

CHECKPOINT, CONFIG, LOG = "checkpoint_{:07d}.pt", "config.yaml", "log.jsonl"
FORMAT = "gpt checkpoint 2"
# Settings of train_gpt.py that may change when a run goes on: where, how fast and how exactly it is computed and told, not what is learned.
MAY_CHANGE_ON_RESUME = {
    "data",
    "verify_data",
    "out_dir",
    "attention",
    "skip_tolerance",
    "micro_batch",
    "log_every",
    "val_every",
    "val_tokens",
    "checkpoint_every",
    "keep_checkpoints",
    "wandb_project",
    "device",
    "dtype",
    "compile",
    "activation_checkpointing",
    "deterministic",
}
KEYS = {"format", "model", "optimizer", "scaler", "step", "sampler", "rng", "gpt", "config", "data"}


class Run:
    """A training run's folder: `find` looks at it, `begin` takes it, `log` and `save` write to it.

    config: the run's settings; data: {"sha256", "tokenizer"} of the training data. keep: how many checkpoints stay.
    writes: False in all processes but one. Raises InputError as soon as the folder cannot be written.
    """

    def __init__(
        self,
        folder: str | Path,
        config: dict,
        data: dict,
        keep: int = 1,
        wandb_project: str | None = None,
        writes: bool = True,
    ):
        self.folder, self.config, self.data, self.keep, self.writes = (
            Path(folder),
            config,
            data,
            keep,
            writes,
        )
        self.wandb_project, self.wandb = wandb_project, None
        self.step = -1  # of the checkpoint that training goes on from
        self.validated = False  # whether the log tells of a validation there
        if wandb_project:
            _wandb()

    def find(self, resume: bool, defaults: dict) -> dict | None:
        """The newest checkpoint's content, for a run to go on; None where there is nothing yet.

        defaults: values of settings that did not exist when an older checkpoint was written.
        Raises InputError where the folder holds another run, or this one without `resume`.
        """
        found = checkpoints(self.folder)
        if not found and not (self.folder / CONFIG).exists():
            if self.folder.is_dir() and any(
                path.name != "wandb" and path.suffix != ".partial" for path in self.folder.iterdir()
            ):
                raise InputError(f"{self.folder} holds other files: choose another --out_dir")
            return None
        if not resume:
            raise InputError(
                f"{self.folder} already holds a run: go on with it by --resume, or choose another --out_dir"
            )
        if not found:
            return None
        checkpoint = load_checkpoint(self.folder)
        mend = "give the same, or choose another --out_dir"
        before = {**defaults, **checkpoint["config"]}
        problems = [
            f"--resume: {self.folder} was trained with {key} {before.get(key)}, not {value}: {mend}"
            for key, value in self.config.items()
            if key not in MAY_CHANGE_ON_RESUME and before.get(key) != value
        ]
        if checkpoint["data"] != self.data:
            problems.append(
                f"--resume: {self.folder} was trained on other data than {self.config['data']}: {mend}"
            )
        if problems:
            raise InputError(*problems)
        self.step = checkpoint["step"]
        return checkpoint

    def begin(self, device: torch.device, **facts) -> None:
        """Takes the folder: writes the config, and opens the log after the checkpoint's step with a record of who goes on.

        Raises InputError where another process holds it.
        """
        if not self.writes:
            return
        self._hold()
        kept = self._cut_log()
        run_id = json.loads(kept[0])["id"] if kept else uuid.uuid4().hex[:8]
        self.validated = any(
            (record := json.loads(line))["kind"] == "val" and record["step"] == self.step
            for line in kept
        )
        wandb = (
            _start_wandb(self.wandb_project, self.folder, run_id, self.config)
            if self.wandb_project
            else None
        )  # it may refuse
        with atomic(self.folder / CONFIG) as file:
            file.write(yaml.safe_dump(self.config, sort_keys=False).encode())
        with writing(self.folder / LOG):
            self._log = open(self.folder / LOG, "a", encoding="utf-8")
        self.log("start", max(0, self.step), id=run_id, **facts, **provenance(device))
        self.wandb = wandb

    def _hold(self) -> None:
        """As long as this run lives in this process, no other can begin here: two would write into each other's."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            return
        held = os.open(self.folder, os.O_RDONLY)
        weakref.finalize(self, os.close, held)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{self.folder}: another process trains there: wait until it ends, or choose another --out_dir"
            ) from None
        except OSError:
            pass  # a file system without locks

    def _cut_log(self) -> list[str]:
        """Forgets what was logged after the checkpoint: those steps are taken again. Returns the lines that stay."""
        path, kept = self.folder / LOG, []
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [
                line
                for line in lines
                if line.endswith("\n") and json.loads(line)["step"] <= self.step
            ]
            with atomic(path) as file:
                file.write("".join(kept).encode())
        return kept

    def log(self, kind: str, step: int, **values) -> None:
        """Numbers, and lists of them that hold one for each layer."""
        if not self.writes:
            return
        with writing(self.folder / LOG):
            self._log.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
            self._log.flush()
        if self.wandb:
            flat = {
                f"{kind}/{key}": value
                for key, value in values.items()
                if not isinstance(value, list)
            }
            layers = {
                f"{kind}/{key}/{layer}": x
                for key, value in values.items()
                if isinstance(value, list)
                for layer, x in enumerate(value)
            }
            self.wandb.log({"step": step, **flat, **layers})

    def save(self, **checkpoint) -> None:
        """Writes the checkpoint of checkpoint["step"], then removes all but the newest `keep`; there is always a whole one."""
        if not self.writes:
            return
        checkpoint |= {"format": FORMAT, "config": self.config, "data": self.data}
        assert set(checkpoint) == KEYS
        with atomic(self.folder / CHECKPOINT.format(checkpoint["step"])) as file:
            torch.save(checkpoint, file)
        for old in checkpoints(self.folder)[: -self.keep]:
            old.unlink(missing_ok=True)

    def end(self) -> None:
        if self.wandb:
            self.wandb.finish()


def _wandb():
    try:
        import wandb
    except ImportError:
        raise InputError("--wandb_project needs wandb: pip install wandb") from None
    return wandb


def _start_wandb(project, folder, run_id, config):
    """The same run again where it goes on. WANDB_MODE=offline keeps everything in the folder, for `wandb sync`."""
    wandb = _wandb()
    try:
        run = wandb.init(
            project=project, name=folder.name, id=run_id, dir=folder, config=config, resume="allow"
        )
    except wandb.errors.Error as error:
        raise InputError(
            f"wandb: {' '.join(str(error).split())}: log in by `wandb login`, or set WANDB_MODE=offline"
        ) from None
    run.define_metric("*", step_metric="step")
    return run


def checkpoints(folder: str | Path) -> list[Path]:
    """The checkpoints in a run's folder, the newest last."""
    steps = {
        path: path.stem.removeprefix("checkpoint_") for path in Path(folder).glob("checkpoint_*.pt")
    }
    return sorted(
        (path for path, step in steps.items() if step.isdecimal()),
        key=lambda path: int(steps[path]),
    )


def checkpoint_path(run: str | Path) -> Path:
    """The newest checkpoint of a run's folder; a file stands for itself. Raises InputError where there is none."""
    if Path(run).is_file():
        return Path(run)
    found = checkpoints(run)
    if not found:
        raise InputError(
            f"{run} holds no checkpoint: train first, or name the folder of a run"
            if Path(run).is_dir()
            else f"{run} does not exist: train first, or name the folder of a run"
        )
    return found[-1]


def validation_loss(run: str | Path) -> float:
    """The loss of the last validation in a run's log; infinite where there is none yet."""
    losses = [entry["loss"] for entry in read_log(run) if entry["kind"] == "val"]
    return losses[-1] if losses else math.inf


def read_log(run: str | Path) -> list[dict]:
    """The records in a run's log; a last line that was cut off in writing is none."""
    lines = (Path(run) / LOG).read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def load_checkpoint(run: str | Path, causal: bool | None = None, weights: bool = True) -> dict:
    """A checkpoint's content, tensors on the CPU. Raises InputError where there is none, or not a whole one of ours.

    causal: also where it is no decoder (True), or no encoder (False). weights: False where no tensor will be looked into, nor need be read.
    """
    path = checkpoint_path(run)
    others = [other for other in checkpoints(path.parent) if other != path]
    mend = f"remove it to go on from {others[-1]}" if others else "train again, or name another"
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=not weights)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{path} is damaged or no checkpoint ({reason}): {mend}") from None
    if (
        not isinstance(checkpoint, dict)
        or checkpoint.get("format") != FORMAT
        or set(checkpoint) != KEYS
    ):
        raise InputError(
            f"{path} is not a checkpoint of this program: name the folder of a run by train_gpt.py"
        )
    if causal is not None and checkpoint["gpt"].get("causal", True) != causal:
        raise InputError(
            f"{run} is a decoder: name a run with --objective mlm"
            if not causal
            else f"{run} is an encoder, which continues no text: name a run with --objective clm"
        )
    return checkpoint


def load_model(
    run: str | Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    attention: str = "auto",
    skip_tolerance: float = SKIP_TOLERANCE,
    causal: bool | None = True,
) -> tuple[GPT, dict]:
    """The trained model, in evaluation mode on `device`, to compute in `dtype`, and the rest of its checkpoint; causal: see there.
    Tells where its training has not come to its end."""
    checkpoint = load_checkpoint(run, causal)
    if checkpoint["step"] < (steps := checkpoint["config"].get("steps", 0)):
        print(f"note: {run} has been trained for {checkpoint['step']:,} of {steps:,} steps")
    model = GPT(
        GPTConfig(**{**checkpoint["gpt"], "attention": attention, "skip_tolerance": skip_tolerance})
    )
    load_weights(model, checkpoint.pop("model"), run)
    return model.to_device(device, dtype).eval(), checkpoint


def load_weights(model: GPT, weights: dict, run: str | Path) -> None:
    """Strict: every weight, no other. Raises InputError where they belong to another architecture."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"the weights in {run} are those of another model ({' '.join(str(error).split())[:200]}): "
            "name another run"
        ) from None


def initialize_from(model: GPT, run: str | Path, checkpoint: dict, tokenizer: str) -> None:
    """Weights of another run, of which this is the checkpoint, for a training of its own on other data or at another length.

    The encoding is the same, or a variant of it with the same parameters, as `yarn` is of `rope`. Raises InputError where model, encoding
    or tokens are others, and for tables that belong to another training length.
    """
    old, new = GPTConfig(**checkpoint["gpt"]), model.config
    problems = [
        f"--init_from: {run} has {name} {getattr(old, name)}, not {getattr(new, name)}: give the same"
        for name in ("n_layer", "n_head", "n_embd", "vocab_size", "attn_scale")
        if getattr(old, name) != getattr(new, name)
    ]
    parts = [[cls for cls, _ in posenc.parse(config.pe)] for config in (old, new)]
    kin = len(parts[0]) == len(parts[1]) and all(
        issubclass(a, b) or issubclass(b, a) for a, b in zip(*parts)
    )
    with torch.device("meta"):
        before = posenc.build(
            old.pe, new.n_head, new.n_embd, new.block_size, new.n_layer, old.causal
        )  # at the new length
    tables, before = (
        {name: value.shape for name, value in encodings.state_dict(prefix="posenc.").items()}
        for encodings in (model.posenc, before)
    )
    alike = all(
        checkpoint["model"][name].shape == shape
        for name, shape in tables.items()
        if name in checkpoint["model"]
    )
    if old.causal != new.causal:
        problems.append(
            f"--init_from: {run} is {'a de' if old.causal else 'an en'}coder: give --objective {'clm' if old.causal else 'mlm'}"
        )
    elif not kin or before.keys() != tables.keys() or not alike and before != tables:
        problems.append(f"--init_from: {run} has pe {old.pe}, not {new.pe}: give the same")
    if checkpoint["data"]["tokenizer"] != tokenizer:
        problems.append(
            f"--init_from: {run} was trained on {checkpoint['data']['tokenizer']} tokens, not {tokenizer}: choose other data"
        )
    if not problems and not alike:
        problems.append(
            f"--init_from: the tables of {old.pe} in {run} are made for the training length {old.block_size}, not "
            f"{new.block_size}: give --block_size {old.block_size}, or an encoding without a length limit"
        )
    if problems:
        raise InputError(*problems)
    load_weights(model, checkpoint["model"], run)


def recipe_hash(checkpoint: dict) -> str:
    """A hash of all that a run learned from, but for its seed: runs of the same recipe are seeds of one."""
    told = {
        name: value
        for name, value in checkpoint["config"].items()
        if name not in MAY_CHANGE_ON_RESUME | {"seed", "init_from"}
    }
    return short_hash([told, checkpoint["data"]["sha256"]])


def short_hash(value) -> str:
    """Twelve digits that tell a value of JSON from others."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def sha256_of(path: str | Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def provenance(device: torch.device) -> dict:
    """Who made a record: command, commit, versions, hardware, time."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": devices.describe(device),
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    """The commit of this code, marked where files were changed since; None outside a git checkout."""
    folder = Path(__file__).parent.parent
    try:
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"],
            cwd=folder,
            text=True,
            capture_output=True,
            check=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
