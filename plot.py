"""Plot a trained model's biases, biases of the distance alone, or losses of runs.

    python plot.py biases runs/quickstart/cable --text "def double(x): return 2 * x"
    python plot.py distances sandwich alibi --out distances.png
    python plot.py losses runs/medium/cable runs/medium/rope --out losses.png

`python plot.py biases --help`, and so on, describe the plots and list
the options.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime import cli
from runtime.files import atomic, read_json, working_folder_of
from runtime.validation import Count, Text, check

import msgspec
import numpy as np
import torch
import yaml
from torch import Tensor

import attention
import pe_spec
import posenc
from errors import InputError, refusing
from evaluation import bias_statistics
from evaluation.record_schema import FineTuning, Number
from evaluation.runner import shards_for_run
from more_encodings.combinations import unwrap
from reporting import figures
from reporting.columns import name_model
from setting import setting
from text_data.tokenizer import run_tokenizer
from training import run_folder
from training.checkpoints import load_model
from training.settings import plugin_setting

MAX_LABELED_TOKENS = 40
MASKED = "0.9"  # where a query does not attend to a key
HEADS = 12  # of GPT-2 small, for biases of the distance alone
CHANNELS_PER_HEAD = 64
MATRIX_PIXELS = 256  # rows and columns of a matrix that are drawn
REMEDY = "train again, or remove the run"


class Settings(msgspec.Struct):
    """Settings of config.yaml or config.json."""

    pe: Text
    size: Text | None = None
    data: Text | None = None
    seed: Count | None = None
    block_size: Count | None = None


class LoggedLoss(msgspec.Struct):
    step: Count
    loss: Number


def main(argv=None):
    kind, *flags = (sys.argv[1:] if argv is None else argv) or [""]
    if kind in ("-h", "--help"):
        print(__doc__)
        return
    if kind not in PLOTS:
        what = f"unknown plot '{kind}'" if kind else "no plot given"
        raise InputError(f"{what}: use {', '.join(PLOTS)}")
    if argv is None:
        sys.argv[0] += f" {kind}"  # the name of the program in its help
    function, settings = PLOTS[kind]
    config = cli.parse(settings, flags, inspect.getdoc(function))
    if Path(config.out).suffix != ".png":
        raise InputError(f"--out {config.out} is not a PNG file: use a name that ends in .png")
    draw = function(config)
    with atomic(config.out) as file:
        draw(file)
    print(f"wrote {config.out}")


@dataclass
class BiasesConfig:
    """Settings of the plot of a trained model's biases."""

    run: list[str] = setting([], positional=True)
    """run folder or checkpoint file"""
    plugin: dict[str, str] | None = plugin_setting()
    """Python file with encodings of your own; may be repeated"""
    text: str = "def area(width, height):\n    return width * height\n"
    """text to plot, best a few dozen tokens"""
    tokens: int | None = setting(None, 2)
    """use the first TOKENS tokens of the validation split in place of --text"""
    layer: int = -1
    """layer, from 0; negative numbers count from the last"""
    mean: bool = False
    """plot the mean over heads, divided by its largest magnitude"""
    out: str = "biases.png"
    """PNG file to write"""


def plot_biases(config: BiasesConfig) -> Callable:
    """Plot the attention biases of a trained model: every head of one layer.

        python plot.py biases runs/quickstart/cable --text "def double(x): return 2 * x"
        python plot.py biases runs/quickstart/rope --layer 0 --out scores.png
        python plot.py biases runs/quickstart/alibi --tokens 512 --mean

    Upper row: the bias B[i, j] of query token i (vertical) and key token j (horizontal). Encodings
    without a bias (rope, sinusoidal, ...) show the attention scores before the softmax, q k^T *
    scale + B. All heads have one color scale, white at zero; masked keys are gray.

    Lower row, for encodings with cumulative sums S (alibi, cable, fox and similar): S[j-1] - S[j],
    the decay at token j. A high bar weakens the attention to all tokens before j; no bar keeps it.

    Figures 4 and 8 to 15 of the CABLE paper, figure 8 of its version 1; --mean: its figure 7.
    """
    if len(config.run) != 1:
        raise InputError("expected one run: python plot.py biases runs/NAME")
    (run,) = config.run
    model, checkpoint = load_model(run, torch.device("cpu"), causal=None)
    network, settings, layers = checkpoint["gpt"], checkpoint["config"], len(model.h)
    if not -layers <= config.layer < layers:
        what = f"--layer {config.layer}: the model has {layers} layers"
        use = f"use 0 to {layers - 1}, or negative numbers from the last"
        raise InputError(f"{what}: {use}")
    tokenizer = run_tokenizer(run, checkpoint)
    tokens = tokenizer.encode(config.text)
    if config.tokens is not None:
        shards = shards_for_run(run, checkpoint, None)
        tokens = shards.tokens[0][: config.tokens].tolist()
    if len(tokens) < 2:
        raise InputError("the text has fewer than two tokens: pass a longer --text")
    if model.max_context and len(tokens) > model.max_context:
        what = f"the text has {len(tokens)} tokens, but {network['pe']} supports at most"
        raise InputError(f"{what} {model.max_context}: pass a shorter text")
    matrices, decay, content = layer_matrices(model, torch.tensor([tokens]), config)
    labels = None
    if len(tokens) <= MAX_LABELED_TOKENS:
        texts = map(tokenizer.decode, ([token] for token in tokens))
        labels = [text.replace("\n", "⏎").replace(" ", "␣")[:9] for text in texts]
    about = {"settings": settings, "size": network["size"]}
    name = name_model(about | {"parameters": model.parameter_count()})
    data = Path(settings["data"] or "unknown data").name  # None: imported weights
    title = (
        f"{content}\n{name}, {network['pe']}, layer {config.layer % layers} of 0–{layers - 1}, "
        f"trained on {data} at {network['block_size']:,} tokens, seed {settings['seed']}"
    )
    return lambda file: draw_heads(file, matrices, decay, labels, title)


@torch.no_grad()
def layer_matrices(model, tokens: Tensor, config: BiasesConfig) -> tuple:
    """Return what to plot of one layer: matrices, decay, and a description.

    tokens: (1, T) int64.
    matrices: (H, T, T), (1, T, T) with config.mean; NaN: masked.
    decay: (H, T); None without cumulative sums, and with config.mean.
    """
    layer = bias_statistics.layers(model, tokens)[config.layer]
    T, heads = tokens.size(1), model.config.n_head
    matrices, decay = layer.bias(), layer.decay()
    content = "bias added to the attention scores"
    if matrices is None:
        matrices, content = layer.logits(), "attention scores"
    matrices = matrices.expand(1, heads, T, T)[0].float()
    matrices = matrices.masked_fill(~layer.attention_mask(), torch.nan)
    if config.mean:
        mean = matrices.mean(0, keepdim=True)
        largest = mean.nan_to_num().abs().max().clamp(min=1e-30)
        matrices, decay = mean / largest, None
        content = f"mean over {heads} heads of the {content}, divided by its largest magnitude"
    if decay is not None:
        decay = decay.expand(1, heads, T)[0].float().numpy()
    return matrices.numpy(), decay, content


def draw_heads(file, matrices, decay, labels: list[str] | None, title: str):
    """Write a PNG with four heads per row, with labels two; return its figure.

    matrices: (H, T, T); decay: (H, T) or None; labels: of the tokens, or None.
    """
    heads, T, _ = matrices.shape
    columns = min(2 if labels else 4, heads)
    ratios = [3] if decay is None else [3, 1]
    rows, parts = -(-heads // columns), len(ratios)
    height = rows * sum(ratios) * 0.3 * figures.WIDTH / max(2, columns)
    with figures.new_figure(file, 0.6 + height, title) as figure:
        grid = figure.subplots(rows * parts, columns, squeeze=False, height_ratios=ratios * rows)
        # (heads, parts), with axes that no head needs
        grid = grid.reshape(rows, parts, columns).swapaxes(1, 2).reshape(-1, parts)
        for unused in grid[heads:].flat:
            unused.remove()
        grid = grid[:heads]
        titles = [f"head {n}" for n in range(heads)] if heads > 1 else [""]
        draw_matrices(figure, grid[:, 0], matrices, titles)
        for head, (top, *_, bottom) in enumerate(grid[:, [0, -1]]):
            top.tick_params(labelbottom=top is bottom)
            top.locator_params(integer=True)
            if decay is not None:
                bottom.bar(range(T), decay[head], width=1, color=figures.BARS)
                bottom.set(xlim=(-0.5, T - 0.5), ylim=(0, 1.05 * max(1e-6, decay.max())))
                bottom.spines[["top", "right"]].set_visible(False)
                bottom.tick_params(length=0, pad=1, labelsize=8)
            if labels:
                font = {"fontsize": min(8, 180 / T), "family": "monospace"}
                bottom.set_xticks(range(T), labels, rotation=90, **font)
                top.set_yticks(range(T), labels, **font)
        if decay is not None:
            grid[0, 1].set_ylabel("decay at the token", fontsize=8)
    return figure


def draw_matrices(figure, grid, matrices: np.ndarray, titles: list[str], **style) -> None:
    """Draw matrices (n, queries, keys), NaN where masked, and a color bar.

    All have one color scale, which is white at zero.
    """
    low, high = float(np.nanmin(matrices)), float(np.nanmax(matrices))
    limit = max(-low, high, 1e-6)
    scale = {"cmap": "RdBu", "vmin": -limit, "vmax": limit, "interpolation": "nearest"}
    for axes, matrix, title in zip(grid, matrices, titles, strict=True):
        image = axes.imshow(matrix, **scale, **style)
        axes.set_title(title, fontsize=9)
        axes.set_facecolor(MASKED)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, pad=1, labelsize=8)
    figure.supxlabel("key token", fontsize=9)
    figure.supylabel("query token", fontsize=9)
    bar = figure.colorbar(image, ax=grid, shrink=0.6, pad=0.02, panchor=False).ax
    bar.set_ylim(min(low, 0), max(high, low + 1e-6, 0))
    bar.tick_params(labelsize=8)


@dataclass
class DistancesConfig:
    """Settings of the plot of biases of the distance alone."""

    encodings: list[str] = setting([], positional=True)
    """encodings whose bias depends on the distance alone: sandwich, alibi, kerple, t5, ..."""
    plugin: dict[str, str] | None = plugin_setting()
    """Python file with encodings of your own; may be repeated"""
    context: int = setting(8192, 2, 10**8)
    """number of tokens"""
    fit: int | None = None
    """fit a logarithm to the first encoding at this many distances; null: no fit"""
    out: str = "distances.png"
    """PNG file to write"""


def plot_distances(config: DistancesConfig) -> Callable:
    """Plot biases of the distance alone: matrices and last rows, without a model.

        python plot.py distances sandwich sandwich-smoothed --fit 8192 --out figure9.png
        python plot.py distances sandwich sandwich:dimension=32 --out figure10.png

    Upper row: the bias B[i, j] of query token i (vertical) and key token j (horizontal) in the last
    of 12 heads, divided by its largest magnitude. Lower panel: the bias by distance. --fit N fits
    a log(1 + d) + b to the first encoding at the N shortest distances d by least squares.
    Parameters are untrained: they have their initial values.

    Figures 8 to 10 of the Sandwich paper: the last head has the compression ratio h = 8. The fitted
    curve is `sandwich-smoothed` there.
    """
    if not config.encodings:
        raise InputError("no encodings given: python plot.py distances sandwich ...")
    if config.fit is not None and not 2 <= config.fit <= config.context:
        raise InputError(f"--fit {config.fit}: use 2 to {config.context}, the --context")
    rows = {pe: bias_by_distance(pe, config.context, HEADS, -1) for pe in config.encodings}
    lines = [figures.Line(pe, [*enumerate(bias)]) for pe, bias in rows.items()]
    if config.fit:
        pe, distances = config.encodings[0], np.log1p(np.arange(config.context))
        a, b = np.polyfit(distances[: config.fit], rows[pe][: config.fit], 1)
        curve = f"{a:.3f} log(1 + d) {b:+.3f}"
        print(f"{pe}: {curve}, fitted to distances 0 to {config.fit - 1:,}")
        lines.append(figures.Line(f"fit: {curve}", [*enumerate(a * distances + b)]))
    return lambda file: draw_distances(file, rows, lines)


@torch.no_grad()
def bias_by_distance(pe: str, context: int, heads: int, head: int) -> np.ndarray:
    """Return one head's bias at distances 0 to context - 1: (context,) float64.

    Raises InputError for encodings whose bias is not of the distance alone.
    """
    encoding = pe_spec.build(pe, heads, heads * CHANNELS_PER_HEAD, context, layers=1)[0]
    if not isinstance(unwrap(encoding), (posenc.DistanceBias, posenc.ALiBi)):
        raise InputError(
            f"{pe} has no bias of the distance alone: use sandwich, alibi, kerple, t5 or similar, "
            "or plot the biases of a run by python plot.py biases"
        )
    x = torch.zeros(1, context, heads * CHANNELS_PER_HEAD)  # not used by these encodings
    queries, keys = encoding.features(x, torch.arange(context)[None])
    last_query = tuple(feature[..., -1:] for feature in queries)
    inputs = attention.BiasInputs(encoding, last_query, keys)
    bias = attention.bias_matrix(inputs, heads, queries=1, query_offset=context - 1)
    return bias[0, head, 0].flip(0).double().numpy()


def draw_distances(file, rows: dict[str, np.ndarray], lines: list[figures.Line]) -> None:
    """Write a PNG of the encodings' matrices, and of lines by distance.

    rows: {encoding: bias (n,)}.
    """
    n = len(next(iter(rows.values())))
    heights = (min(3.3, 0.9 + 6 / len(rows)), 3.3)
    title = f"untrained parameters, last of {HEADS} heads, {n:,} tokens"
    scale = "colors: bias divided by its largest magnitude in the panel"
    with figures.new_figure(file, sum(heights), f"{title}\n{scale}") as figure:
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
        all_axes = upper.subplots(1, len(rows), squeeze=False, sharey=True)[0]
        tokens = np.linspace(0, n - 1, min(n, MATRIX_PIXELS)).astype(int)
        distances = tokens[:, None] - tokens
        biases = [bias / max(1e-30, abs(bias).max()) for bias in rows.values()]
        matrices = [np.where(distances < 0, np.nan, bias[distances]) for bias in biases]
        titles = [pe.replace(":", ":\n") for pe in rows]
        draw_matrices(upper, all_axes, np.stack(matrices), titles, extent=(0, n, n, 0))
        style_of = figures.styles(line.label for line in lines)
        labels = "distance (tokens)", "bias"
        figures.draw_panel(lower.subplots(), lines, style_of, *labels, False)


@dataclass
class LossesConfig:
    """Settings of the plot of losses."""

    runs: list[str] = setting([], positional=True)
    """run folders"""
    out: str = "losses.png"
    """PNG file to write"""


def plot_losses(config: LossesConfig) -> Callable:
    """Plot losses against steps, one line per run.

        python plot.py losses runs/medium/cable runs/medium/rope --out losses.png
        python plot.py losses runs/bert/*-retrieval --out losses.png

    Runs are folders of train_gpt.py (log.jsonl) or retrieval.finetune (finetune.json). A point is
    the mean loss since the previous logged step. Figures 6 and 7 of the CABLE paper.
    """
    if not config.runs:
        raise InputError("no runs given: python plot.py losses runs/NAME ...")
    runs = [read_run(path) for path in config.runs]
    lines = [figures.Line(label_of(run, runs), run["losses"]) for run in runs]
    trainings = "; ".join(sorted({run["training"] for run in runs}))
    title = f"training loss; one run per line\n{trainings}"
    axes = [("loss (nats)", lines)], "steps", "linear", "linear"
    return lambda file: figures.draw_lines(file, title, *axes, has_markers=False)


def label_of(run: dict, runs: Sequence[dict]) -> str:
    """Return a run's encoding, with its seed or its name if others have the same one."""
    for text in ("{pe}", "{pe}, seed {seed}", "{pe}, run {run}"):
        label = text.format(**run)
        if sum(text.format(**other) == label for other in runs) == 1:
            break
    return label


def read_run(path: str) -> dict:
    """Return a run's name, encoding, seed, losses [(step, loss)], and training in words.

    Raises InputError if a file is missing or corrupt, or has no losses.
    """
    run = Path(path)
    file, tuned = run / run_folder.CONFIG, run / "finetune.json"
    finetuning = read_json(tuned, "fine-tune again", FineTuning) if tuned.exists() else None
    if finetuning:
        file, losses = run / "config.json", finetuning.get("losses")
    else:
        losses = read_losses(run)
    if not losses:
        raise InputError(f"{run} has no training losses: remove it")
    kinds = OSError, ValueError, RecursionError, yaml.YAMLError
    with refusing(f"{file} cannot be read", REMEDY, kinds):
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
    check(settings, Settings, file, REMEDY)
    seed, training = settings.get("seed"), "fine-tuning"
    if finetuning:
        seed = finetuning["settings"]["seed"]
    else:
        data = Path(settings.get("data") or "unknown data").name
        shape = [settings.get(name) for name in ("n_layer", "n_head", "n_embd")]
        size = "custom" if any(shape) else settings.get("size")
        training = f"{size} model on {data}, trained at {settings.get('block_size')} tokens"
    found = {"run": run.name, "pe": settings["pe"], "seed": seed}
    return found | {"losses": losses, "training": training}


def read_losses(run: Path) -> list[tuple[int, float]]:
    """Return [(step, loss)] of a training's log."""
    path = run / run_folder.LOG
    if not path.exists():
        where = working_folder_of(path)
        raise InputError(f"{run} has no log.jsonl or finetune.json{where}: use a run folder")
    entries = [entry for entry in run_folder.read_log(run) if entry["kind"] == "train"]
    check(entries, list[LoggedLoss], path, REMEDY)
    return [(entry["step"], entry["loss"]) for entry in entries]


PLOTS = {  # function and its settings
    "biases": (plot_biases, BiasesConfig),
    "distances": (plot_distances, DistancesConfig),
    "losses": (plot_losses, LossesConfig),
}

if __name__ == "__main__":
    cli.run(main)
