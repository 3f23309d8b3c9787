"""Measure how far back a prediction depends on the text: the receptive field.

    python eval_receptive_field.py runs/quickstart/*
    python eval_receptive_field.py runs/medium/* --lengths 1x,4x --windows 500

The cumulative normalized gradient of Chi et al. 2023, section 5.1: the
loss of the last token is differentiated with respect to the token
embeddings. Each token's fraction is the norm of its gradient over the
sum of all norms. The receptive field is the smallest n such that the
last n tokens hold more than 99% of the gradient.

Everything is computed in float32: in bfloat16, a field of 24 tokens
(`fox` at 1,024 tokens of context) became 440. The texts are windows of
the longest context, evenly spaced over the split. All contexts end with
the same token.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

from runtime import cli

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_loader import Shards, Windows
from evaluation import runner
from evaluation.runner import LoadedRun, Plan
from model import GPT
from setting import setting

FIELD_FRACTION = 0.99  # of the gradient, within the receptive field: the paper's value
# Points of the cumulative curve: near the prediction, and evenly spaced.
POINTS_PER_DOUBLING, EVEN_POINTS = 4, 32


@dataclass
class Config(runner.TextEvaluationConfig):
    """Settings of the receptive field evaluation."""

    dtype: Literal["float32"] = "float32"
    """dtype of matrix products"""
    lengths: str = "1x,2x,4x"
    """context lengths in tokens, separated by commas; 1x: the training length"""
    windows: int = setting(100, 2)
    """number of predictions, each from a window of its own; fewer if the split has fewer"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    runner.run_evaluation(config, plan)


def plan(run: str, checkpoint: dict, shards: Shards, config: Config) -> list[Plan]:
    """Return a run's plan. Raises InputError without text for two windows."""
    lengths = cli.parse_lengths(config.lengths, checkpoint["gpt"]["block_size"])
    windows, numbers = runner.spaced_windows(shards, lengths[-1], config.windows, 2)
    count, span = len(numbers), windows.length
    return [
        Plan(
            measure=partial(measure, windows=windows, numbers=numbers),
            value="receptive_field",
            shards=shards,
            lengths=lengths,
            protocol={"windows": count, "span": span, "held": FIELD_FRACTION},
            identity={"metric": "Receptive field"},
            file_words=(["receptive-field"], [f"{count}x{span}"]),
        )
    ]


def gradient_fractions(model: GPT, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return each token's fraction of the gradient of the last loss.

    tokens: (B, T) int64. targets: (B,) int64, the tokens that follow. Returns (B, T) float64; each
    row sums to 1.
    """
    embeddings = []

    def require_gradient(module, arguments, output):
        embeddings.append(output.requires_grad_())
        return output

    hook = model.wte.register_forward_hook(require_gradient)
    hidden = model.hidden(tokens)[:, -1]  # (B, C)
    hook.remove()
    loss = F.cross_entropy(hidden @ model.output_embeddings.T, targets, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, embeddings)  # (B, T, C)
    norms = gradient.double().norm(dim=-1)  # (B, T)
    return norms / norms.sum(1, keepdim=True)


def measure(loaded: LoadedRun, length: int, windows: Windows, numbers: np.ndarray) -> dict:
    """Return the receptive field at one context length.

    receptive_field: in tokens, mean over the windows, with its standard error.
    cumulative: the mean fraction ("share") of the gradient in the last tokens.
    """
    model = loaded.model
    model.requires_grad_(False)
    model.activation_checkpointing = True  # memory of one layer, however long the text
    cumulative = np.zeros((len(numbers), length))  # fractions of the last 1, 2, ... tokens
    items = np.arange(len(numbers))
    for batch in loaded.batches(items, length, f"at {length:,}", "window"):
        tensors = windows.batch(numbers[batch])
        inputs, targets = (x[:, -length:].to(loaded.device) for x in tensors)
        fractions = gradient_fractions(model, inputs, targets[:, -1])
        cumulative[batch] = fractions.flip(1).cumsum(1).cpu().numpy()
    loaded.sum(cumulative)
    fields = (cumulative <= FIELD_FRACTION).sum(1) + 1
    points = curve_points(length)
    return {
        **runner.mean_with_error("receptive_field", fields),
        "cumulative": {
            "tokens": points,
            "share": cumulative[:, np.array(points) - 1].mean(0).tolist(),
        },
    }


def curve_points(length: int) -> list[int]:
    """Return the numbers of tokens, up to `length`, of the cumulative curve."""
    steps = range(int(POINTS_PER_DOUBLING * math.log2(length)) + 1)
    points = {round(2 ** (step / POINTS_PER_DOUBLING)) for step in steps}
    even = {math.ceil(length * step / EVEN_POINTS) for step in range(1, EVEN_POINTS + 1)}
    return sorted(points | even)


if __name__ == "__main__":
    cli.run(main)
