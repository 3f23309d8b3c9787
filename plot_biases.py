"""Draws the bias that a trained model adds between the tokens of a text: every head of one layer, and how steeply each
token lets the bias fall.

    python plot_biases.py runs/quickstart/cable --text "def double(x): return 2 * x" --out biases.png

Upper row: B[i, j], query token i down, key token j across; dark is far below zero. Lower row: S[j-1] - S[j], by how much
token j pushes everything before it away; a tall bar closes the view on the past, none keeps it open.
"""

from dataclasses import dataclass, field

import torch

import attention
import cli
import data
import device as devices
from errors import InputError
from files import atomic
from model import GPT
from posenc import WeightedFall
from runs import load_model


@dataclass
class Config:
    """Settings of a picture."""

    run: list[str] = field(default_factory=list)
    """folder of a run, or a checkpoint"""
    text: str = "def area(width, height):\n    return width * height\n"
    """text to look at, some dozens of tokens"""
    layer: int = -1
    """layer, from 0; negative ones count from the last"""
    out: str = "biases.png"
    """picture to write"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("run", "folder of a run, or a checkpoint"))
    if len(config.run) != 1:
        raise InputError("name one run: python plot_biases.py runs/NAME")
    device, _ = devices.choose("cpu", "float32")
    model, checkpoint = load_model(config.run[0], device)
    layers, pe = len(model.h), checkpoint["gpt"]["pe"]
    if not -layers <= config.layer < layers:
        raise InputError(f"layer {config.layer}: the model has {layers}: choose 0 to {layers - 1}")
    if model.posenc[0].score is None:
        raise InputError(f"{pe} adds no bias to the logits: there is nothing to draw")
    encoding = data.tokenizer(checkpoint["data"]["tokenizer"])
    tokens = encoding.encode_ordinary(config.text)
    if len(tokens) < 2:
        raise InputError("the text has no two tokens: give a longer --text")
    labels = [encoding.decode([token]) for token in tokens]
    bias, falls = biases(model, torch.tensor([tokens]), config.layer)
    with atomic(config.out) as file:
        plot(bias.numpy(), falls if falls is None else falls.numpy(), labels, f"{pe}, layer {config.layer % layers} (of {layers}, from 0)", file)
    print(f"written: {config.out}")


@torch.no_grad()
def biases(model: GPT, tokens: torch.Tensor, layer: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """B (H, T, T), NaN for future keys, and where the bias is a fall along the text, the fall at each token (H, T)."""
    seen = []
    hook = model.h[layer].attn.register_forward_pre_hook(lambda _, arguments: seen.extend(arguments))
    model(tokens)
    hook.remove()
    x, pos, encoding, *_ = seen
    q_states, k_states = encoding.states(x, pos)
    T, heads = tokens.size(1), model.config.n_head
    bias = attention.bias(encoding, q_states, k_states, heads, T).expand(1, heads, T, T)[0]
    bias = bias.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), torch.nan)
    falls = None
    if isinstance(encoding, WeightedFall):
        s = k_states[0].expand(1, heads, T)[0]
        falls = -s.diff(dim=-1, prepend=s[:, :1])
    return bias, falls


def plot(bias, falls, labels, title, file) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heads, T, _ = bias.shape
    rows = 1 if falls is None else 2
    figure, axes = pyplot.subplots(rows, heads, figsize=(3.1 * heads + 0.6, 3.3 if rows == 1 else 4.6), squeeze=False,
                                   height_ratios=[3, 1][:rows], layout="constrained")
    names = [label.replace("\n", "⏎").replace(" ", "␣") for label in labels]
    size = min(7, 240 / T)
    for head in range(heads):
        top = axes[0, head]
        image = top.imshow(bias[head], cmap="magma", interpolation="nearest")
        figure.colorbar(image, ax=top, shrink=0.8, pad=0.02).ax.tick_params(labelsize=7)
        top.set_title(f"head {head}", fontsize=10)
        top.set_yticks(range(T), names, fontsize=size, family="monospace")
        top.set_xticks(range(T), names, fontsize=size, family="monospace")
        top.spines[:].set_visible(False)
        top.tick_params(length=0, pad=1)
        if falls is not None:
            below = axes[1, head]
            below.bar(range(T), falls[head], color="#0072b2", width=0.8)
            below.set_xticks(range(T), names, fontsize=size, family="monospace")
            below.set_xlim(-0.5, T - 0.5)
            below.set_ylim(0, max(1e-6, float(falls.max())) * 1.05)
            below.tick_params(axis="y", labelsize=7)
            below.tick_params(axis="x", length=0, pad=1)
            below.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("query")
    if falls is not None:
        axes[1, 0].set_ylabel("fall at the token", fontsize=8)
    figure.suptitle(f"bias added to the attention logits: {title}", fontsize=11)
    figure.savefig(file, format="png", dpi=150)
    pyplot.close(figure)


if __name__ == "__main__":
    cli.run(main)
