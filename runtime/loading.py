"""Models from checkpoints."""

from pathlib import Path

from runtime.checkpoints import load_checkpoint

import torch
from torch import nn

from attention import SKIP_TOLERANCE, resolve_paths
from errors import InputError
from model import GPT, GPTConfig


def load_model(
    run: str | Path,
    device: torch.device,
    attention: str = "auto",
    skip_tolerance: float = SKIP_TOLERANCE,
    causal: bool | None = True,
    dtype: torch.dtype = torch.float32,
) -> tuple[GPT, dict]:
    """Return the trained model in evaluation mode, and its checkpoint.

    attention, skip_tolerance: of `GPTConfig`, instead of the training's.
    causal: as in `load_checkpoint`. dtype: see `cast_blocks`. Prints a note if
    the training was not finished. Raises InputError as `load_checkpoint` does,
    or if a parameter contains NaN or Inf.
    """
    checkpoint = load_checkpoint(run, causal)
    step, steps = checkpoint["step"], checkpoint["config"].get("steps", 0)
    if step < steps:
        print(f"note: {run} has been trained for {step:,} of {steps:,} steps")
    settings = checkpoint["gpt"] | {"attention": attention, "skip_tolerance": skip_tolerance}
    model = GPT(GPTConfig(**settings))
    load_weights(model, checkpoint.pop("model"), run)
    cast_blocks(model, dtype)
    model.attention_paths = resolve_paths(attention, model.posenc, device.type)
    return model.to(device).eval(), checkpoint


def cast_blocks(model: GPT, dtype: torch.dtype) -> None:
    """Cast the blocks' Linear layers to `dtype`, for inference under autocast.

    Without gradients, autocast would cast them in every call, to the same
    results. Norms, encodings, embedding and logits stay float32.
    """
    for module in model.h.modules():
        if isinstance(module, nn.Linear):
            module.to(dtype)


def load_weights(model: GPT, weights: dict, run: str | Path) -> None:
    """Load a state_dict; raise InputError for other names or shapes, NaN or Inf."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"the weights in {run} belong to another architecture ({reason}): use another run"
        ) from None
    check_finite(model, run)


def check_finite(model: GPT, run: str | Path) -> None:
    """Raise InputError if a parameter contains NaN or Inf."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            raise InputError(
                f"{run}: the weights contain NaN or Inf ({name}): "
                "use an earlier checkpoint, or other weights"
            )
