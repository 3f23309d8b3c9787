"""Checkpoint files: find, read and validate them.

    path = checkpoint_path("runs/cable")        # the newest checkpoint of a run
    checkpoint = load_checkpoint("runs/cable")  # its content, tensors on the CPU

The content of `checkpoint_0001000.pt`, written after step 1,000:

    format      version of this format
    model       state_dict of the network
    optimizer   state_dict of AdamW
    scaler      state_dict of the gradient scaler; empty unless training uses float16
    step        optimizer steps taken
    sampler     position in the training data
    rng         random number states, one per rank
    gpt         fields of `GPTConfig`
    config      settings of `train_gpt.py`; "changes": those changed on resume, see run_folder.Run;
                "init_steps": of the --init_from source, see trained_steps
    data        SHA-256 and tokenizer of the training data
"""

import errno
import hashlib
import os
import pickle
import re
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

from runtime import plugins
from runtime.provenance import short_hash

import torch
from torch import Tensor

from errors import InputError

FILE_NAME = "checkpoint_{:07d}.pt"
FORMAT = "gpt checkpoint 2"
# What zipfile raises on corrupt files.
ZIP_ERRORS = (
    zipfile.BadZipFile,
    NotImplementedError,
    OverflowError,
    ValueError,
    struct.error,
)
NUMBER = int | float
# Types of the values that programs read; keys of dictionaries may be missing, except REQUIRED.
# Other keys are allowed in "config" only.
TYPES = {
    "model": dict,
    "optimizer": dict,
    "scaler": dict,
    "step": int,
    "sampler": {"epoch": int, "index": int},
    "rng": list,
    "gpt": {
        "size": str,
        "pe": str,
        "vocab_size": int,
        "block_size": int,
        "n_layer": int,
        "n_head": int,
        "n_embd": int,
        "attn_scale": NUMBER | None,
        "causal": bool,
        "attention": str,
        "skip_tolerance": NUMBER,
    },
    "config": {
        "seed": int | None,
        "steps": int,
        "mask_rate": NUMBER,
        "data": str | None,
        "init_from": str | None,
        "init_steps": int | None,
        "plugin": dict | None,
        "changes": list,
    },
    "data": {"sha256": str | None, "tokenizer": str},
}
REQUIRED = {
    "gpt": {"size", "pe", "vocab_size", "block_size", "n_layer", "n_head", "n_embd"},
    "config": {"seed"},
    "data": {"sha256", "tokenizer"},
}
KEYS = {"format", *TYPES}
# Settings of train_gpt.py that do not define what is learned, only where, how fast and how exactly
# it is computed and what is logged.
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
    "logger",
    "wandb_project",
    "device",
    "dtype",
    "compile",
    "activation_checkpointing",
    "deterministic",
}

# Settings that shape what is learned and may be changed on resume with --override. All others
# define the network or the data.
MAY_BE_OVERRIDDEN = {
    "mask_rate",
    "steps",
    "tokens_per_step",
    "lr",
    "min_lr",
    "warmup_steps",
    "beta1",
    "beta2",
    "weight_decay",
    "grad_clip",
    "seed",
    "plugin",
}


class CorruptCheckpoint(InputError):
    """A checkpoint file whose bytes are not those that were written.

    path: of the file. reason: what was found.
    """

    def __init__(self, path: Path, reason: str):
        paths = list_checkpoints(path.parent)
        older = paths[: paths.index(path)] if path in paths else []
        self.path = path
        self.reason = reason
        remedy = "train again, or pass another run"
        if older:
            remedy = f"use {older[-1]}, or resume training from it with train_gpt.py --resume"
        super().__init__(f"{path} is corrupt or not a checkpoint ({reason}): {remedy}")


def list_checkpoints(folder: str | Path) -> list[Path]:
    """Return the checkpoint files of a run's folder, the newest last."""
    paths = [path for path in Path(folder).glob("checkpoint_*.pt") if path.is_file()]
    return sorted((path for path in paths if named_step(path) >= 0), key=named_step)


def named_step(path: Path, default: int = -1) -> int:
    """Return the step in the name of a checkpoint file; `default` for other names."""
    match = re.fullmatch(r"checkpoint_([0-9]+)\.pt", path.name)
    return int(match[1]) if match else default


def checkpoint_path(run: str | Path) -> Path:
    """Return the newest checkpoint of a run's folder; a path to a file is returned unchanged.

    Raises InputError if there is no checkpoint.
    """
    if os.path.isfile(run):  # False instead of an exception for names that are too long
        return Path(run)
    problem = "does not exist"
    if os.path.isdir(run):
        problem = "contains no checkpoint"
        if paths := list_checkpoints(run):
            return paths[-1]
    elif os.path.exists(run):
        problem = "is neither a file nor a folder"
    raise InputError(f"{run} {problem}: train first, or pass the folder of a run")


def run_folder_of(run: str | Path) -> Path:
    """Return the folder of a run, also for the path of one of its checkpoints."""
    return Path(run) if os.path.isdir(run) else Path(run).parent


def load_checkpoint(
    run: str | Path,
    causal: bool | None = None,
    weights: bool = True,
    check_plugins: bool = True,
) -> dict:
    """Return the content of a run's newest checkpoint, or of a checkpoint file, on the CPU.

    causal: True accepts decoders only, False encoders only, None both. weights: False maps tensors
    into memory without reading and checking them, for callers that need the settings only.
    check_plugins: raise InputError if a plugin that the run was trained with is not loaded. Raises
    InputError if there is no checkpoint, or if it is corrupt or in another format.
    """
    return _load(run, causal, weights, check_plugins)


def load_with_hash(run: str | Path, causal: bool | None = None) -> tuple[dict, str]:
    """Return what `load_checkpoint` does, and the SHA-256 of the file.

    The hash is of the bytes that were loaded, also if a training replaces the file meanwhile.
    """
    digest = hashlib.sha256()
    return _load(run, causal, digest=digest), digest.hexdigest()


def _load(
    run: str | Path,
    causal: bool | None,
    weights: bool = True,
    check_plugins: bool = True,
    digest=None,
) -> dict:
    """Return what `load_checkpoint` does; update `digest`, a hash, with the bytes of the file."""
    for _ in range(10):
        path = checkpoint_path(run)
        try:
            checkpoint = _read(path, weights, digest)
            break
        except FileNotFoundError:  # a training has just replaced it by a newer one
            continue
    else:
        raise InputError(f"{path} was removed while it was read: run the command again")
    _check_content(path, checkpoint)
    if check_plugins:
        plugins.check_loaded(checkpoint["config"], path.parent)
    is_decoder = checkpoint["gpt"].get("causal", True)
    if causal is True and not is_decoder:
        raise InputError(
            f"{run} is an encoder and cannot continue text: use a run with --objective clm"
        )
    if causal is False and is_decoder:
        raise InputError(f"{run} is a decoder: use a run with --objective mlm")
    return checkpoint


def load_newest_intact(
    folder: str | Path, weights: bool = True
) -> tuple[dict, list[CorruptCheckpoint]]:
    """Return the newest checkpoint of a run that is not corrupt, and the errors of newer ones.

    weights: as in `load_checkpoint`. Raises InputError if all are corrupt.
    """
    errors = []
    for path in reversed(list_checkpoints(folder)):
        try:
            return load_checkpoint(path, weights=weights, check_plugins=False), errors
        except CorruptCheckpoint as error:
            errors.append(error)
    if not errors:
        raise InputError(f"the checkpoints in {folder} were removed: run the command again")
    if len(errors) == 1:
        raise errors[0]
    raise InputError(
        f"all {len(errors)} checkpoints in {folder} are corrupt (the newest one: "
        f"{errors[0].reason}): restore a copy, or train again with another --out_dir"
    )


def _read(path: Path, weights: bool, digest=None):
    """Return the content of a checkpoint file; arguments as in `_load`.

    Raises FileNotFoundError if there is no file, CorruptCheckpoint, or InputError.
    """
    try:
        with open(path, "rb") as file:
            try:
                _check_crcs(file, weights, digest)
            except OSError as error:
                if error.errno != errno.EINVAL:  # by seek, to a position that is no position
                    raise
                raise CorruptCheckpoint(path, "it names impossible positions") from None
            except ZIP_ERRORS as error:
                raise CorruptCheckpoint(path, _first_line(error)) from None
            file.seek(0)
            # A path can be mapped into memory, a file cannot.
            source = file if weights else path
            with warnings.catch_warnings(action="ignore"):  # of a TorchScript archive
                content = torch.load(
                    source, map_location="cpu", weights_only=True, mmap=not weights
                )
    except (InputError, FileNotFoundError):
        raise
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path} cannot be read ({reason}): check the file and its disk") from None
    except Exception as error:  # a file of another program can cause any
        if str(error).startswith(("PytorchStreamReader", "[enforce fail at inline_container")):
            raise CorruptCheckpoint(path, "PyTorch cannot read the zip file") from None
        raise _foreign(path, describe_load_error(error)) from None
    return content


def describe_load_error(error: Exception) -> str:
    """Return one line on why torch.load failed, without its advice to load unsafe files."""
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in str(error):
        return "it contains Python objects other than tensors and settings"
    return _first_line(error)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "".join(char if char.isprintable() else "?" for char in lines[0][:200])


def _foreign(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path} is not a checkpoint of train_gpt.py ({reason}): "
        "pass the folder of a run that it trained"
    )


def _check_crcs(file, weights: bool, digest) -> None:
    """Compare the members of a checkpoint, a zip file, with their CRC-32; torch.load does not.

    weights: check all members in one pass over the file; digest: a hash to update with it, or None.
    Without weights: check all but the tensors. Raises an exception of ZIP_ERRORS if one differs.

    At size `tiny` (45M parameters and AdamW, 0.54 GB), load_checkpoint takes 1.6 times the CPU time
    of torch.load alone, and load_with_hash 2.7 times (torch.load and a separate hash: 2.1):

        python -m timeit -p -n 1 -s "from runtime.checkpoints import load_checkpoint" \\
            "load_checkpoint('runs/tiny')"
        python -m timeit -p -n 1 -s "import torch" \\
            "torch.load('runs/tiny/checkpoint_0000001.pt', weights_only=True)"
    """
    with zipfile.ZipFile(file) as archive:
        members = sorted(archive.infolist(), key=lambda member: member.header_offset)
        directory = archive.start_dir
    if not members:
        raise zipfile.BadZipFile("it has no members")
    starts = [_find_content(file, member) for member in members]
    headers = [member.header_offset for member in members]
    for member, start, following in zip(members, starts, [*headers[1:], directory], strict=True):
        # Otherwise an entry whose size and CRC-32 are 0 would hide its content.
        file.seek(start + member.file_size)
        descriptor = file.read(min(8, max(0, following - file.tell())))
        if descriptor and not descriptor.startswith(b"PK\7\10" + struct.pack("<L", member.CRC)):
            raise zipfile.BadZipFile(f"the size of {member.filename} is wrong")
    file.seek(0)
    for member, start in zip(members, starts, strict=True):
        if weights:
            _read_until(file, start, digest)
        elif "/data/" in member.filename:
            continue
        else:
            file.seek(start)
        if _read_until(file, start + member.file_size, digest) != member.CRC:
            raise zipfile.BadZipFile(f"the CRC-32 of {member.filename} is wrong")
    if digest:
        _read_until(file, os.fstat(file.fileno()).st_size, digest)


def _find_content(file, member: zipfile.ZipInfo) -> int:
    """Return where the content of a zip member starts. Raises BadZipFile if torch.save differs."""
    file.seek(member.header_offset)
    header = file.read(30)
    if len(header) < 30 or not header.startswith(b"PK\3\4"):
        raise zipfile.BadZipFile(f"the header of {member.filename} is damaged")
    name_length, extra_length = struct.unpack("<HH", header[26:])
    is_expected = (
        file.read(name_length) == member.orig_filename.encode()
        and member.compress_type == zipfile.ZIP_STORED
        and member.compress_size == member.file_size
        and not member.flag_bits & ~0x808  # data descriptor, name in UTF-8
        and not member.external_attr & 0x10  # a directory
    )
    if not is_expected:
        raise zipfile.BadZipFile(f"the entry of {member.filename} is not as torch.save writes it")
    return member.header_offset + len(header) + name_length + extra_length


def _read_until(file, end: int, digest) -> int:
    """Read a file from its position to `end`; update the digest, and return the CRC-32."""
    remaining = end - file.tell()
    buffer = memoryview(bytearray(max(0, min(remaining, 1 << 20))))
    crc = 0
    while remaining:
        count = file.readinto(buffer[:remaining]) if remaining > 0 else 0
        if not count:
            raise zipfile.BadZipFile("its members overlap or are cut off")
        if digest:
            digest.update(buffer[:count])
        crc = zlib.crc32(buffer[:count], crc)
        remaining -= count
    return crc


def _check_content(path: Path, checkpoint) -> None:
    """Raise InputError unless the content of a file is that of a checkpoint of train_gpt.py."""
    is_ours = isinstance(checkpoint, dict) and checkpoint.get("format") == FORMAT
    if not is_ours or set(checkpoint) != KEYS:
        raise _foreign(path, "it has other content")
    for key, expected in TYPES.items():
        value = checkpoint[key]
        kind, fields = (dict, expected) if isinstance(expected, dict) else (expected, {})
        if not isinstance(value, kind):
            raise _foreign(path, f"its {key} is a {type(value).__name__}")
        if not fields:
            continue
        if missing := REQUIRED.get(key, set()) - set(value):
            raise _foreign(path, f"its {key} has no {min(missing)}")
        if key != "config" and not set(value) <= set(fields):
            raise _foreign(path, f"its {key} has unknown names")
        for name, kind in fields.items():
            if name in value and not isinstance(value[name], kind):
                raise _foreign(path, f"its {key}.{name} is a {type(value[name]).__name__}")
    if (written := checkpoint["step"]) != named_step(path, default=written):
        raise CorruptCheckpoint(path, f"it was written after step {written}")
    try:
        recipe_hash(checkpoint)
    except (AttributeError, TypeError, ValueError):
        raise _foreign(path, "its config has other values than settings") from None
    shape = checkpoint["gpt"]
    model = checkpoint["model"]
    if not all(isinstance(name, str) for name in model):
        raise _foreign(path, "its model has names that are no text")
    if not all(isinstance(value, Tensor) for value in model.values()):
        raise _foreign(path, "its model has values that are no tensors")
    if not all(isinstance(state, dict) and "cpu" in state for state in checkpoint["rng"]):
        raise _foreign(path, "its rng is not a list of random states")
    # Otherwise a wrong number could make a network that does not fit into memory.
    layers = {name.split(".")[1] for name in model if name.startswith("h.")}
    table = model.get("wte.weight", torch.empty(0))
    expected = (shape["n_layer"], shape["vocab_size"], shape["n_embd"])
    if (len(layers), *table.shape) != expected:
        raise _foreign(path, "its weights do not have the shape of its settings")


def trained_steps(checkpoint: dict) -> int | None:
    """Return the optimizer steps behind a checkpoint's weights, with those of --init_from.

    None: unknown, as for imported weights and older checkpoints of runs with --init_from.
    """
    step, config = checkpoint["step"], checkpoint["config"]
    if step > 0 and not config.get("init_from"):
        return step
    init_steps = config.get("init_steps")
    return None if init_steps is None else init_steps + step


def recipe_hash(checkpoint: dict, settings_only: bool = False) -> str:
    """Return a hash of what defines what a run learns, except the seed and --init_from.

    Runs with the same hash are seeds of one recipe. settings_only: except the encoding and the
    training text, too.
    """
    excluded = MAY_CHANGE_ON_RESUME | {"seed", "init_from", "init_steps"}
    if settings_only:
        excluded |= {"pe", "plugin"}
    recipe = {name: value for name, value in checkpoint["config"].items() if name not in excluded}
    plugin = recipe.pop("plugin", None)
    if plugin:
        recipe["plugin"] = sorted(plugin.values())  # SHA-256, whatever the names of the files are
    return short_hash([recipe] if settings_only else [recipe, checkpoint["data"]["sha256"]])
