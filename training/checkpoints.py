"""Checkpoint files: find, read and validate them; models from them.

    checkpoint = load_checkpoint("runs/cable")  # the newest one
    model, checkpoint = load_model("runs/cable", device)

The content of `checkpoint_0001000.pt`, written after step 1,000:

    format      version of this format
    model       state_dict of the network
    optimizer   state_dict of the optimizer
    scaler      state_dict of the gradient scaler; empty without float16
    step        optimizer steps taken
    sampler     position in the training data
    rng         random number states, one per rank
    gpt         fields of `GPTConfig`
    config      settings of `train_gpt.py`; "changes": those changed on resume,
                see run_folder.Run; "init_steps": see trained_steps
    data        SHA-256 and tokenizer of the training data

The file is what torch.save writes, then the SHA-256 of those bytes in 64 hexadecimal digits, which
torch.load ignores.
"""

import dataclasses
import hashlib
import json
import math
import os
import pickle
import re
from pathlib import Path
from typing import Any

from runtime.files import working_folder_of
from runtime.validation import Count, Versions, find_mismatch

import msgspec
import torch
from torch import Tensor, nn

from errors import InputError, refusing
from model import GPT, GPTConfig
from setting import settings_of

FILE_NAME = "checkpoint_{:07d}.pt"
FORMAT = "gpt checkpoint 5"
DIGEST_BYTES = 64  # of a SHA-256 in hexadecimal, the end of the file
VERIFIED: dict[tuple[int, ...], str] = {}  # identity of a file -> its SHA-256
READ_BYTES = 1 << 20
# Settings that are newer than a checkpoint have their default, except those that every record has.
# A free one may have a value of an earlier version.
FREE = settings_of(GPTConfig, resume="free")
REQUIRED = settings_of(GPTConfig, record="always")
NETWORK = [
    (
        x.name,
        Any if x.name in FREE else x.type,
        msgspec.NODEFAULT if x.name in REQUIRED else x.default,
    )
    for x in dataclasses.fields(GPTConfig)
]
Network = msgspec.defstruct("Network", NETWORK, forbid_unknown_fields=True, kw_only=True)


class Sampler(msgspec.Struct, forbid_unknown_fields=True):
    epoch: Count = 0
    index: Count = 0


class RandomStates(msgspec.Struct):
    cpu: Tensor


class Settings(msgspec.Struct):
    """Settings that programs read; --init_from and imported weights have others."""

    seed: int | None
    steps: Count = 0
    mask_rate: float = 0.0
    data: str | None = None
    init_from: str | None = None
    init_steps: Count | None = None
    plugin: Versions = None
    changes: list = []


class Data(msgspec.Struct, forbid_unknown_fields=True):
    sha256: str | None
    tokenizer: str


class Checkpoint(msgspec.Struct, forbid_unknown_fields=True):
    """Content of a file."""

    format: str
    model: dict[str, Tensor]
    optimizer: dict
    scaler: dict
    step: Count
    sampler: Sampler
    rng: list[RandomStates]
    gpt: Network  # pyright: ignore
    config: Settings
    data: Data


def list_checkpoints(folder: str | Path, before: float = math.inf) -> list[Path]:
    """Return the checkpoints of a run, before a step, the newest last."""
    paths = [path for path in Path(folder).glob("checkpoint_*.pt") if path.is_file()]
    return sorted((x for x in paths if 0 <= named_step(x) < before), key=named_step)


def named_step(path: Path) -> int:
    """Return the step in a checkpoint's name; -1 for other names."""
    match = re.fullmatch(r"checkpoint_([0-9]+)\.pt", path.name)
    return int(match[1]) if match else -1


def checkpoint_path(run: str | Path) -> Path:
    """Return the newest checkpoint of a run, or the path to a file."""
    if os.path.isfile(run):  # False, no exception, for names that are too long
        return Path(run)
    remedy = "train first, or pass the folder of a run"
    if not os.path.exists(run):
        raise InputError(f"{run} does not exist{working_folder_of(run)}: {remedy}")
    if paths := list_checkpoints(run):
        return paths[-1]
    if paths := sorted(Path(run).glob("*/checkpoint_*.pt")):
        remedy = f"pass {paths[0].parent}, or {Path(run) / '*'} to programs that take several runs"
    raise InputError(f"{run} contains no checkpoint: {remedy}")


def runs_among(paths: list[str]) -> list[str]:
    """Return paths without those that are no runs, which a note names, if others are."""
    runs = [
        path
        for path in paths
        if (list_checkpoints(path) if os.path.isdir(path) else path.endswith(".pt"))
    ]
    others = [path for path in paths if path not in runs and os.path.exists(path)]
    if not (runs and others):
        return paths
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    print(f"note: left out, as they contain no checkpoint: {' '.join(others[:5])}{more}")
    return [path for path in paths if path not in others]


def load_checkpoint(
    run: str | Path, causal: bool | None = None, check_plugins: bool = True
) -> dict:
    """Return the content of a run's newest checkpoint, or of a checkpoint file.

    Its "sha256" is that of the loaded bytes. The tensors are mapped into memory: reading the
    settings alone takes none.

    causal: True accepts decoders only, False encoders only, None both.
    check_plugins: require the run's plugins. Raises InputError if there is no checkpoint, or if it
    is corrupt or in another format.
    """
    path = checkpoint_path(run)
    checkpoint, sha256 = _read(path)
    _check_content(path, checkpoint)
    gpt = checkpoint["gpt"]
    if len(gpt) < len(NETWORK):  # any encoding fills the shape: a plugin may be missing
        checkpoint["gpt"] = dataclasses.asdict(GPTConfig(**gpt | {"pe": "nope"})) | gpt
    if check_plugins and checkpoint["config"].get("plugin"):
        from training import plugins

        plugins.check_loaded(checkpoint["config"], path.parent)
    is_decoder = checkpoint["gpt"]["causal"]
    if causal is not None and is_decoder != causal:
        kind = "a decoder" if is_decoder else "an encoder and cannot continue text"
        objective = "clm" if causal else "mlm"
        raise InputError(f"{run} is {kind}: use a run with --objective {objective}")
    return checkpoint | {"sha256": sha256}


def write_checkpoint(file, checkpoint: dict) -> None:
    """Write a checkpoint and its SHA-256 to a binary file."""
    hashed: Any = _HashedFile(file)
    torch.save(checkpoint, hashed)
    file.write(hashed.digest.hexdigest().encode())


class _HashedFile:
    """A file to write to, and the hash of what is written."""

    def __init__(self, file):
        self.file = file
        self.digest = hashlib.sha256()

    def write(self, data) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()


def _read(path: Path) -> tuple[Any, str]:
    """Return the content of a checkpoint file and its SHA-256."""
    try:
        with open(path, "rb") as file:
            sha256 = _check_digest(path, file)
            # The file that was checked, also if it has been replaced since.
            opened = f"/proc/self/fd/{file.fileno()}"
            content = torch.load(opened, map_location="cpu", weights_only=True, mmap=True)
    except InputError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path} cannot be read ({reason}): check the disk") from None
    except Exception as error:  # a file of another program can cause any
        raise _foreign(path, describe_load_error(error)) from None
    return content, sha256


def _check_digest(path: Path, file) -> str:
    """Check the SHA-256 at a file's end, once; return the whole file's."""
    status = os.fstat(file.fileno())
    identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    if identity not in VERIFIED:
        digest, remaining = hashlib.sha256(), max(0, status.st_size - DIGEST_BYTES)
        while block := file.read(min(READ_BYTES, remaining)):
            digest.update(block)
            remaining -= len(block)
        expected = file.read(DIGEST_BYTES)
        if expected[-22:].startswith(b"PK\5\6"):  # the end of what torch.save writes
            raise _foreign(path, "it has no SHA-256: another program wrote it")
        if digest.hexdigest().encode() != expected:
            raise _corrupt(path, "its SHA-256 is wrong")
        digest.update(expected)
        VERIFIED[identity] = digest.hexdigest()
    return VERIFIED[identity]


def describe_load_error(error: Exception) -> str:
    """Return why torch.load failed, without its advice to load unsafe files."""
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        return "it contains Python objects other than tensors and settings"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "".join(char if char.isprintable() else "?" for char in lines[0][:200])


def _corrupt(path: Path, reason: str) -> InputError:
    """Return the error for a file whose bytes have changed."""
    older = list_checkpoints(path.parent, before=named_step(path))
    remedy = f"remove it to continue from {older[-1]}" if older else "restore a copy of it"
    return InputError(f"{path} is corrupt or not a checkpoint ({reason}): {remedy}")


def _foreign(path: Path, reason: str) -> InputError:
    what = f"{path} is not a checkpoint of train_gpt.py ({reason})"
    return InputError(f"{what}: pass the folder of a run that it trained")


def _check_content(path: Path, checkpoint) -> None:
    """Raise InputError unless train_gpt.py wrote the content of a file."""
    if not isinstance(checkpoint, dict) or checkpoint.get("format") != FORMAT:
        raise _foreign(path, f"its format is not {FORMAT}")
    if problem := find_mismatch(checkpoint, Checkpoint):
        raise _foreign(path, problem)
    if named_step(path) not in (-1, checkpoint["step"]):
        raise _corrupt(path, f"it was written after step {checkpoint['step']}")
    try:
        json.dumps(checkpoint["config"])
    except TypeError:
        raise _foreign(path, "its config has other values than settings") from None
    shape, model = checkpoint["gpt"], checkpoint["model"]
    # Otherwise a wrong number could make a network larger than the memory.
    layers = {name.split(".")[1] for name in model if name.startswith("h.")}
    table = model.get("wte.weight", torch.empty(0))
    expected = (shape.get("n_layer"), shape.get("vocab_size"), shape.get("n_embd"))
    if (len(layers), *table.shape) != expected:
        raise _foreign(path, "its weights do not have the shape of its settings")


def trained_steps(checkpoint: dict) -> int | None:
    """Return all optimizer steps of the weights; None for imported weights."""
    step, config = checkpoint["step"], checkpoint["config"]
    if step > 0 and not config.get("init_from"):
        return step
    init_steps = config.get("init_steps")
    return None if init_steps is None else init_steps + step


def load_model(
    run: str | Path,
    device: torch.device | str,
    attention: str = "auto",
    causal: bool | None = True,
    dtype: torch.dtype = torch.float32,
) -> tuple[GPT, dict]:
    """Return the trained model in evaluation mode, and its checkpoint.

    attention: of `GPTConfig`. causal: as in `load_checkpoint`.
    dtype: see `cast_blocks`. Prints a note if the training was not finished. Raises InputError as
    `load_checkpoint` does, and for NaN or Inf.
    """
    checkpoint = load_checkpoint(run, causal)
    step, steps = checkpoint["step"], checkpoint["config"].get("steps", 0)
    if step < steps:
        print(f"note: {run} has been trained for {step:,} of {steps:,} steps")
    model = GPT(GPTConfig(**checkpoint["gpt"] | {"attention": attention}))
    model.choose_paths(torch.device(device), dtype)
    load_weights(model, checkpoint.pop("model"), run)
    cast_blocks(model, dtype)
    return model.to(device).eval(), checkpoint


def cast_blocks(model: GPT, dtype: torch.dtype) -> None:
    """Cast the blocks' Linear layers to `dtype`, for inference under autocast.

    Without gradients, autocast would cast them in every call, to the same results. Norms,
    encodings, embedding and logits stay float32.
    """
    for module in model.h.modules():
        if isinstance(module, nn.Linear):
            module.to(dtype)


def load_weights(model: GPT, weights: dict, run: str | Path) -> None:
    """Load a state_dict; raise InputError for other shapes, NaN or Inf."""
    what = f"the weights in {run} belong to another architecture"
    with refusing(what, "use another run", RuntimeError):
        model.load_state_dict(weights)
    check_finite(model, run)


def check_finite(model: GPT, run: str | Path) -> None:
    """Raise InputError if a parameter contains NaN or Inf."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            remedy = "use an earlier checkpoint, or other weights"
            raise InputError(f"{run}: the weights contain NaN or Inf ({name}): {remedy}")
