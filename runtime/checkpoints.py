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

import pickle
from pathlib import Path

from runtime import plugins
from runtime.provenance import short_hash

import torch

from errors import InputError

FILE_NAME = "checkpoint_{:07d}.pt"
FORMAT = "gpt checkpoint 2"
KEYS = {"format", "model", "optimizer", "scaler", "step", "sampler", "rng", "gpt", "config", "data"}
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


def list_checkpoints(folder: str | Path) -> list[Path]:
    """Return the checkpoint files of a run's folder, the newest last."""
    steps = {}
    for path in Path(folder).glob("checkpoint_*.pt"):
        step = path.stem.removeprefix("checkpoint_")
        if step.isdecimal():
            steps[path] = int(step)
    return sorted(steps, key=steps.get)


def checkpoint_path(run: str | Path) -> Path:
    """Return the newest checkpoint of a run's folder; a path to a file is returned unchanged.

    Raises InputError if there is no checkpoint.
    """
    if Path(run).is_file():
        return Path(run)
    paths = list_checkpoints(run)
    if not paths:
        problem = "contains no checkpoint" if Path(run).is_dir() else "does not exist"
        raise InputError(f"{run} {problem}: train first, or pass the folder of a run")
    return paths[-1]


def load_checkpoint(
    run: str | Path,
    causal: bool | None = None,
    weights: bool = True,
    check_plugins: bool = True,
) -> dict:
    """Return the content of a run's newest checkpoint, or of a checkpoint file, on the CPU.

    causal: True accepts decoders only, False encoders only, None both. weights: False maps tensors
    into memory without reading them, for callers that need the settings only. check_plugins: raise
    InputError if a plugin that the run was trained with is not loaded. Raises InputError if there
    is no checkpoint, or if it is corrupt or in another format.
    """
    path = checkpoint_path(run)
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=not weights)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError, ValueError, KeyError) as error:
        lines = str(error).strip().splitlines()
        reason = lines[0] if lines else type(error).__name__
        others = [other for other in list_checkpoints(path.parent) if other != path]
        remedy = "train again, or pass another run"
        if others:
            remedy = f"remove it to resume from {others[-1]}"
        raise InputError(f"{path} is corrupt or not a checkpoint ({reason}): {remedy}") from None
    is_ours = isinstance(checkpoint, dict) and checkpoint.get("format") == FORMAT
    if not is_ours or set(checkpoint) != KEYS:
        raise InputError(
            f"{path} is not a checkpoint of train_gpt.py: pass the folder of a run that it trained"
        )
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


def trained_steps(checkpoint: dict) -> int | None:
    """Return the optimizer steps behind a checkpoint's weights, with those of --init_from.

    None: unknown, as for imported weights and older checkpoints of runs with --init_from.
    """
    step, config = checkpoint["step"], checkpoint["config"]
    if step > 0 and not config.get("init_from"):
        return step
    init_steps = config.get("init_steps")
    return None if init_steps is None else init_steps + step


def recipe_hash(checkpoint: dict) -> str:
    """Return a hash of what defines what a run learns, except the seed and --init_from.

    Runs with the same hash are seeds of one recipe.
    """
    excluded = MAY_CHANGE_ON_RESUME | {"seed", "init_from", "init_steps"}
    recipe = {name: value for name, value in checkpoint["config"].items() if name not in excluded}
    plugin = recipe.pop("plugin", None)
    if plugin:
        recipe["plugin"] = sorted(plugin.values())  # SHA-256, whatever the names of the files are
    return short_hash([recipe, checkpoint["data"]["sha256"]])
