"""Plot the attention biases of a trained model: every head of one layer.

    python plot.py biases runs/quickstart/cable --text "def double(x): return 2 * x"
    python plot.py biases runs/quickstart/rope --layer 0 --out scores.png
    python plot.py biases runs/quickstart/alibi --tokens 512 --mean

Upper row: the bias B[i, j] of query token i (vertical) and key token j
(horizontal). Encodings without a bias (rope, sinusoidal, ...) show the
attention scores before the softmax, q k^T * scale + B. All heads have
one color scale, white at zero; masked keys are gray.

Lower row, for encodings with cumulative sums S (alibi, cable, fox and
similar): S[j-1] - S[j], the decay at token j. A high bar weakens the
attention to all tokens before j; no bar keeps it.

Figures 4 and 8 to 15 of the CABLE paper, figure 8 of its version 1;
--mean: its figure 7.
"""

from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli
from runtime.checkpoints import load_model
from runtime.files import atomic

import torch
from torch import Tensor

from errors import InputError
from evaluation import bias_statistics
from evaluation.runner import shards_for_run
from reporting import figures
from text_data.tokenizer import run_tokenizer

MAX_LABELED_TOKENS = 40


@dataclass
class Config:
    """Settings of the plot."""

    run: list[str] = field(default_factory=list)
    """run folder or checkpoint file"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    text: str = "def area(width, height):\n    return width * height\n"
    """text to plot, best a few dozen tokens"""
    tokens: int | None = cli.limited(None, 2)
    """use the first TOKENS tokens of the validation split in place of --text"""
    data: str | None = None
    """folder of shards for --tokens; null: the training data of the run"""
    layer: int = -1
    """layer, from 0; negative numbers count from the last"""
    mean: bool = False
    """plot the mean over heads, divided by its largest magnitude"""
    out: str = "biases.png"
    """PNG file to write"""

    def __post_init__(self):
        figures.check_png(self.out)


def main(argv=None):
    positional = "run", "run folder or checkpoint file"
    config = cli.parse(Config, argv, __doc__, positional)
    if len(config.run) != 1:
        raise InputError("expected one run: python plot.py biases runs/NAME")
    (run,) = config.run
    model, checkpoint = load_model(run, torch.device("cpu"), causal=None)
    pe, layers = checkpoint["gpt"]["pe"], len(model.h)
    if not -layers <= config.layer < layers:
        what = f"--layer {config.layer}: the model has {layers} layers"
        raise InputError(f"{what}: use 0 to {layers - 1}")
    tokenizer = run_tokenizer(run, checkpoint)
    tokens = tokenizer.encode(config.text)
    if config.tokens is not None:
        shards = shards_for_run(run, checkpoint, config.data)
        tokens = shards.tokens[0][: config.tokens].tolist()
    if len(tokens) < 2:
        raise InputError("the text has fewer than two tokens: pass a longer --text")
    if model.max_context and len(tokens) > model.max_context:
        what = f"the text has {len(tokens)} tokens, but {pe} supports at most"
        raise InputError(f"{what} {model.max_context}: pass a shorter text")
    matrices, decay, content = layer_matrices(model, torch.tensor([tokens]), config)
    labels = None
    if len(tokens) <= MAX_LABELED_TOKENS:
        texts = map(tokenizer.decode, ([token] for token in tokens))
        labels = [text.replace("\n", "⏎").replace(" ", "␣")[:9] for text in texts]
    millions, settings = model.parameter_count() / 1e6, checkpoint["config"]
    data = Path(settings["data"] or "unknown data").name  # None: imported weights
    seed = "" if settings["seed"] is None else f", seed {settings['seed']}"
    title = (
        f"{content}\n{pe}, layer {config.layer % layers} of 0–{layers - 1}, {millions:.1f}M "
        f"parameters, trained on {data} at {checkpoint['gpt']['block_size']:,} tokens{seed}"
    )
    with atomic(config.out) as file:
        draw(matrices, decay, labels, title).savefig(file, format="png")
    print(f"wrote {config.out}")


@torch.no_grad()
def layer_matrices(model, tokens: Tensor, config: Config) -> tuple:
    """Return what to plot of one layer: matrices, decay, and a description.

    tokens: (1, T) int64, on the model's device.
    matrices: (H, T, T), (1, T, T) with config.mean; NaN: masked.
    decay: (H, T); None without cumulative sums, and with config.mean.
    """
    layer = bias_statistics.layers(model, tokens)[config.layer]
    T, heads = tokens.size(1), model.config.n_head
    matrices, decay = layer.bias(), layer.decay()
    content = "bias added to the attention scores"
    if matrices is None:
        matrices, content = layer.logits(), "attention scores"
    matrices = matrices.expand(1, heads, T, T)[0]
    matrices = matrices.masked_fill(~layer.attention_mask(), torch.nan).float().cpu()
    if config.mean:
        mean = matrices.mean(0, keepdim=True)
        largest = mean.nan_to_num().abs().max().clamp(min=1e-30)
        what = f"mean over {heads} heads of the {content}, divided by its largest magnitude"
        return (mean / largest).numpy(), None, what
    if decay is not None:
        decay = decay.expand(1, heads, T)[0].float().cpu().numpy()
    return matrices.numpy(), decay, content


def draw(matrices, decay, labels: list[str] | None, title: str):
    """Return a figure of Matplotlib with four heads per row; with labels, two.

    matrices: (H, T, T); decay: (H, T) or None; labels: of the tokens,
    or None.
    """
    heads, T, _ = matrices.shape
    columns = min(2 if labels else 4, heads)
    rows = -(-heads // columns)
    ratios = [3] if decay is None else [3, 1]
    parts, width = len(ratios), figures.WIDTH / max(2, columns)
    figure = figures.new_figure(0.6 + rows * width * sum(ratios) * 0.35, title)
    heights = ratios * rows
    grid = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    tops, lowest = grid[::parts].ravel(), grid[parts - 1 :: parts].ravel()
    for axes in (*tops[heads:], *lowest[heads:]):
        axes.set_visible(False)
    titles = [f"head {head}" if heads > 1 else "" for head in range(heads)]
    figures.draw_matrices(figure, tops[:heads].tolist(), matrices, titles)
    for head, (top, bottom) in enumerate(zip(tops[:heads], lowest, strict=False)):
        top.tick_params(labelbottom=top is bottom)
        top.locator_params(integer=True)
        if decay is not None:
            bottom.bar(range(T), decay[head], width=1, color=figures.GRAY)
            bottom.set(xlim=(-0.5, T - 0.5), ylim=(0, 1.05 * max(1e-6, float(decay.max()))))
            bottom.set_ylabel("" if head % columns else "decay at the token", fontsize=8)
            bottom.spines[["top", "right"]].set_visible(False)
            bottom.tick_params(length=0, pad=1, labelsize=8)
        if labels:
            # parse_math: a token "$$" is not a formula.
            font = {"fontsize": min(8, 180 / T), "family": "monospace", "parse_math": False}
            bottom.set_xticks(range(T), labels, rotation=90, **font)
            top.set_yticks(range(T), labels, **font)
    return figure
