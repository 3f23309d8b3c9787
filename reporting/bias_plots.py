"""Draws what a trained model's positional encoding does to the attention between the tokens of a text: every head of a
layer, and how steeply each token lets the bias fall.

    python plot.py biases runs/quickstart/cable --text "def double(x): return 2 * x" --out biases.png
    python plot.py biases runs/quickstart/rope --layer 0 --out scores.png
    python plot.py biases runs/quickstart/alibi --tokens 512 --mean

Upper row: query token i down, key token j across. The bias B[i, j]; for encodings that add none (rope, sinusoidal, ...), or
with --scores, the whole score before the softmax, q k^T * scale + B. Lower row, for the family of alibi, cable and fox:
S[j-1] - S[j], by how much token j pushes everything before it away; a tall bar closes the view on the past, none keeps it
open. The paper's figures 4 and 8 to 15; --mean is version 1's figure 7.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from errors import InputError
from evaluation import bias_statistics
from evaluation.records import shards_for_run
from runtime import cli, devices
from runtime.loading import load_model
from runtime.files import atomic
from text_data import tokenization

READABLE = 64  # tokens that have room for their names


@dataclass
class Config:
    """Settings of a picture."""

    run: list[str] = field(default_factory=list)
    """folder of a run, or a checkpoint"""
    text: str = "def area(width, height):\n    return width * height\n"
    """text to look at, some dozens of tokens"""
    tokens: int | None = None
    """instead of the text, so many tokens from the beginning of the validation split"""
    data: str | None = None
    """folder of the shards that --tokens are taken from; null: the one that the run was trained on"""
    layer: int = -1
    """layer, from 0; negative ones count from the last"""
    scores: bool = False
    """draw the scores with the bias in them, not the bias"""
    mean: bool = False
    """draw the mean over the heads, divided by its largest magnitude"""
    out: str = "biases.png"
    """picture to write, .png"""


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("run", "folder of a run, or a checkpoint")
    )
    if len(config.run) != 1:
        raise InputError("name one run: python plot.py biases runs/NAME")
    if Path(config.out).suffix != ".png":
        raise InputError(f"--out {config.out}: the picture is a PNG, name it so")
    if config.tokens is not None and config.tokens < 2:
        raise InputError(f"tokens is {config.tokens}: it must be at least 2")
    device, _ = devices.select_device("cpu", "float32")
    model, checkpoint = load_model(config.run[0], device, causal=None)
    layers, pe = len(model.h), checkpoint["gpt"]["pe"]
    if not -layers <= config.layer < layers:
        raise InputError(f"layer {config.layer}: the model has {layers}: choose 0 to {layers - 1}")
    encoding = tokenization.tiktoken_encoding(checkpoint["data"]["tokenizer"])
    tokens = (
        encoding.encode_ordinary(config.text)
        if config.tokens is None
        else beginning(config, checkpoint)
    )
    if len(tokens) < 2:
        raise InputError("the text has no two tokens: give a longer --text, or more --tokens")
    if len(tokens) > (model.max_context or len(tokens)):
        raise InputError(
            f"the text has {len(tokens)} tokens, {pe} takes {model.max_context} at most: give less of it"
        )
    with torch.no_grad():
        layer = bias_statistics.layers(model, torch.tensor([tokens]))[config.layer]
        bias, falls, T, heads = layer.bias(), layer.falls(), len(tokens), model.config.n_head
        drawn, what = bias, "bias added to the attention scores"
        if bias is None or config.scores:
            drawn, what = layer.scores(), "attention scores"
        drawn = drawn.expand(1, heads, T, T)[0].masked_fill(~layer.attention_mask(), torch.nan)
        falls = None if falls is None else falls.expand(1, heads, T)[0].numpy()
        if config.mean:
            drawn, falls, what = (
                drawn.mean(0, keepdim=True),
                None,
                f"mean over {heads} heads of the {what}, over its largest magnitude",
            )
            drawn = drawn / drawn.nan_to_num().abs().max().clamp(min=1e-30)
    labels = (
        None
        if T > READABLE
        else [encoding.decode([token]).replace("\n", "⏎").replace(" ", "␣") for token in tokens]
    )
    title = f"{what}: {pe}, layer {config.layer % layers} of 0–{layers - 1}"
    with atomic(config.out) as file:
        plot(drawn.numpy(), falls, labels, title, file)
    print(f"written: {config.out}")


def beginning(config: Config, checkpoint: dict) -> list[int]:
    """The first --tokens of the validation split."""
    return (
        shards_for_run(config.run[0], checkpoint, config.data).tokens[0][: config.tokens].tolist()
    )


def plot(matrices, falls, labels, title, file) -> None:
    """matrices (H, T, T), falls (H, T) or None, labels of the tokens or None: four heads a row of pictures."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heads, T, _ = matrices.shape
    columns = min(4, heads)
    kinds = 1 if falls is None else 2  # rows of axes for each row of heads
    rows = -(-heads // columns)
    figure, axes = pyplot.subplots(
        rows * kinds,
        columns,
        squeeze=False,
        figsize=(3.1 * columns + 0.6, (3.3, 4.6)[kinds - 1] * rows),
        height_ratios=[3, 1][:kinds] * rows,
        layout="constrained",
    )
    for unused in axes.flat[:]:
        unused.set_visible(False)
    font = {"fontsize": min(7, 240 / T), "family": "monospace"}
    ticks = (
        {} if labels is None else {"ticks": range(T), "labels": labels, "parse_math": False, **font}
    )  # "$$" is no formula
    for head in range(heads):
        row, column = divmod(head, columns)
        top = axes[row * kinds, column]
        top.set_visible(True)
        image = top.imshow(matrices[head], cmap="magma", interpolation="nearest")
        figure.colorbar(image, ax=top, shrink=0.8, pad=0.02).ax.tick_params(labelsize=7)
        if heads > 1:
            top.set_title(f"head {head}", fontsize=10)
        if labels:
            top.set_yticks(**ticks)
            top.set_xticks(**ticks)
        top.spines[:].set_visible(False)
        top.tick_params(length=0, pad=1)
        if falls is not None:
            below = axes[row * kinds + 1, column]
            below.set_visible(True)
            below.bar(range(T), falls[head], color="#0072b2", width=0.8)
            if labels:
                below.set_xticks(**ticks)
            below.set(xlim=(-0.5, T - 0.5), ylim=(0, max(1e-6, float(falls.max())) * 1.05))
            below.tick_params(axis="y", labelsize=7)
            below.tick_params(axis="x", length=0, pad=1)
            below.spines[["top", "right"]].set_visible(False)
        if column == 0:
            top.set_ylabel("query")
            if falls is not None:
                below.set_ylabel("fall at the token", fontsize=8)
    figure.suptitle(title, fontsize=11)
    figure.savefig(file, format="png", dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    cli.run(main)
