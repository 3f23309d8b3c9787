"""Models from checkpoints.

model, checkpoint = load_model("runs/cable", device)
tokenizer = run_tokenizer("runs/cable", checkpoint)
"""

from pathlib import Path

from runtime.checkpoints import checkpoint_path, load_checkpoint

import torch

from attention import SKIP_TOLERANCE
from errors import InputError
from model import GPT, GPTConfig
from text_data.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer


def load_model(
    run: str | Path,
    device: torch.device,
    attention: str = "auto",
    skip_tolerance: float = SKIP_TOLERANCE,
    causal: bool | None = True,
) -> tuple[GPT, dict]:
    """Return the trained model in evaluation mode, and the rest of its checkpoint.

    attention, skip_tolerance: as in `GPTConfig`; they replace the settings of the training. causal:
    True accepts decoders only, False encoders only, None both. Prints a note if the training was
    not finished. Raises InputError as `load_checkpoint` does.
    """
    checkpoint = load_checkpoint(run, causal)
    step, steps = checkpoint["step"], checkpoint["config"].get("steps", 0)
    if step < steps:
        print(f"note: {run} has been trained for {step:,} of {steps:,} steps")
    settings = checkpoint["gpt"] | {"attention": attention, "skip_tolerance": skip_tolerance}
    model = GPT(GPTConfig(**settings))
    load_weights(model, checkpoint.pop("model"), run)
    return model.to(device).eval(), checkpoint


def run_tokenizer(run: str | Path, checkpoint: dict) -> Tokenizer:
    """Return the tokenizer of a run, from the run's folder or from its training data.

    checkpoint: the content of the checkpoint. Raises InputError as `load_tokenizer` does.
    """
    name = checkpoint["data"]["tokenizer"]
    folder = checkpoint_path(run).parent
    data = checkpoint["config"].get("data")
    if data and not (folder / TOKENIZER_FILE).exists():
        folder = data
    return load_tokenizer(name, folder)


def load_weights(model: GPT, weights: dict, run: str | Path) -> None:
    """Load a state_dict strictly. Raises InputError if names or shapes differ."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"the weights in {run} belong to another architecture ({reason}): use another run"
        ) from None
