"""Models from checkpoints: for evaluation, and as initial weights of another run.

model, checkpoint = load_model("runs/cable", device)
"""

from pathlib import Path

import torch

import posenc
from attention import SKIP_TOLERANCE
from errors import InputError
from model import GPT, GPTConfig
from runtime.checkpoints import load_checkpoint


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


def load_weights(model: GPT, weights: dict, run: str | Path) -> None:
    """Load a state_dict strictly. Raises InputError if names or shapes differ."""
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"the weights in {run} belong to another architecture ({reason}): use another run"
        ) from None


def initialize_from(model: GPT, run: str | Path, checkpoint: dict, tokenizer: str) -> None:
    """Load the weights of another run, to train on other data or at another sequence length.

    checkpoint: that run's content; tokenizer: of the new run's data. The encoding must be the same
    or a variant with the same parameters, as `yarn` is of `rope`. Raises InputError if the network,
    the encoding or the tokenizer differs, or if a table belongs to another training length.
    """
    old, new = GPTConfig(**checkpoint["gpt"]), model.config
    problems = []
    for name in ("n_layer", "n_head", "n_embd", "vocab_size", "attn_scale"):
        old_value, new_value = getattr(old, name), getattr(new, name)
        if old_value != new_value:
            problems.append(f"{run} has {name} {old_value}, not {new_value}: use the same value")

    new_shapes = _encoding_shapes(model.posenc)
    with torch.device("meta"):  # the old encoding at the new training length
        old_encodings = posenc.build(
            old.encodings, new.n_head, new.n_embd, new.block_size, new.n_layer, old.causal
        )
    old_shapes = _encoding_shapes(old_encodings)
    tables_fit = all(
        checkpoint["model"][name].shape == shape
        for name, shape in new_shapes.items()
        if name in checkpoint["model"]
    )
    if old.causal != new.causal:
        kind, objective = ("a decoder", "clm") if old.causal else ("an encoder", "mlm")
        problems.append(f"{run} is {kind}: use --objective {objective}")
    elif (
        not _is_variant(old, new)
        or old_shapes.keys() != new_shapes.keys()
        or (not tables_fit and old_shapes != new_shapes)
    ):
        problems.append(f"{run} has pe {old.pe}, not {new.pe}: use the same value")
    old_tokenizer = checkpoint["data"]["tokenizer"]
    if old_tokenizer != tokenizer:
        problems.append(
            f"{run} was trained on {old_tokenizer} tokens, not {tokenizer}: use other data"
        )
    if not problems and not tables_fit:
        problems.append(
            f"the tables of {old.pe} in {run} are made for block_size {old.block_size}, not "
            f"{new.block_size}: use --block_size {old.block_size}, or an encoding without a "
            "length limit"
        )
    if problems:
        raise InputError(*(f"--init_from: {problem}" for problem in problems))
    load_weights(model, checkpoint["model"], run)


def _encoding_shapes(encodings: torch.nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of the encodings' parameters, by their names in a checkpoint."""
    state = encodings.state_dict(prefix="posenc.")
    return {name: tensor.shape for name, tensor in state.items()}


def _is_variant(old: GPTConfig, new: GPTConfig) -> bool:
    """Return whether the parts of two models' encodings are pairwise of related classes."""
    old_classes = [cls for cls, _ in old.encodings]
    new_classes = [cls for cls, _ in new.encodings]
    if len(old_classes) != len(new_classes):
        return False
    pairs = zip(old_classes, new_classes, strict=True)
    return all(issubclass(old, new) or issubclass(new, old) for old, new in pairs)
