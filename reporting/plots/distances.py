"""Plot biases of the distance alone: matrices and last rows, without a model.

    python plot.py distances sandwich sandwich-smoothed --fit 8192 --out figure9.png
    python plot.py distances sandwich sandwich:dimension=32 --out figure10.png

Upper row: the bias B[i, j] of query token i (vertical) and key token j
(horizontal) in the last of 12 heads. Lower panel: the bias by distance.
--fit N fits a log(1 + d) + b to the first encoding at the N shortest
distances d by least squares. Learnable encodings have their initial
values.

Figures 8 to 10 of the Sandwich paper: the last head has the compression
ratio h = 8. The fitted curve is `sandwich-smoothed` there.
"""

from dataclasses import dataclass, field

from runtime import cli
from runtime.files import atomic

import numpy as np
import torch

import attention
import model  # noqa: F401 (registers all encodings)
import pe_spec
import posenc
from errors import InputError
from pe_spec import unwrap
from reporting import figures

HEADS = 12  # of GPT-2 small
CHANNELS_PER_HEAD = 64
MATRIX_PIXELS = 256  # rows and columns of a matrix that are drawn


@dataclass
class Config:
    """Settings of the plot."""

    encodings: list[str] = field(default_factory=list)
    """encodings whose bias depends on the distance alone: sandwich, alibi, kerple, t5, ..."""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    context: int = cli.limited(8192, 2, 10**8)
    """number of tokens"""
    fit: int | None = None
    """fit a logarithm to the first encoding at this many distances; null: no fit"""
    out: str = "distances.png"
    """PNG file to write"""

    def __post_init__(self):
        figures.check_png(self.out)
        if not self.encodings:
            raise InputError("no encodings given: python plot.py distances sandwich ...")
        if self.fit is not None and not 2 <= self.fit <= self.context:
            raise InputError(f"--fit {self.fit}: use 2 to {self.context}, the --context")


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, ("encodings", "positional encodings"))
    rows = {pe: bias_by_distance(pe, config.context, HEADS, -1) for pe in config.encodings}
    fitted = None
    if config.fit:
        pe = config.encodings[0]
        fitted = np.polyfit(np.log1p(np.arange(config.fit)), rows[pe][: config.fit], 1)
        a, b = fitted
        curve = f"{a:.3f} log(1 + d) {b:+.3f}"
        print(f"{pe}: {curve}, fitted to distances 0 to {config.fit - 1:,}")
    with atomic(config.out) as file:
        title = f"last of {HEADS} heads, {config.context:,} tokens"
        plot(rows, fitted, title, file)
    print(f"wrote {config.out}")


@torch.no_grad()
def bias_by_distance(pe: str, context: int, heads: int, head: int) -> np.ndarray:
    """Return one head's bias at distances 0 to context - 1: (context,) float64.

    Raises InputError for encodings whose bias is not of the distance
    alone.
    """
    encoding = pe_spec.build(pe, heads, heads * CHANNELS_PER_HEAD, context, layers=1)[0]
    if not isinstance(unwrap(encoding), (posenc.DistanceBias, posenc.ALiBi)):
        raise InputError(
            f"{pe} has no bias of the distance alone: use sandwich, alibi, kerple, t5 or similar, "
            "or plot the biases of a run by python plot.py biases"
        )
    x = torch.zeros(1, context, heads * CHANNELS_PER_HEAD)  # not used by these encodings
    queries, keys = encoding.features(x, torch.arange(context))
    last_query = tuple(feature[..., -1:] for feature in queries)
    inputs = attention.BiasInputs(encoding, last_query, keys)
    bias = attention.bias_matrix(inputs, heads, queries=1, query_offset=context - 1)
    return bias[0, head, 0].flip(0).double().numpy()


def plot(rows: dict[str, np.ndarray], fitted: np.ndarray | None, title: str, file) -> None:
    """Write a PNG of the encodings' matrices, and the biases by distance.

    rows: {encoding: bias (n,)}; fitted: a and b of the curve, or None.
    """
    heights = (min(3.3, 0.9 + 6 / len(rows)), 3.3)
    figure = figures.new_figure(sum(heights), title)
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
    all_axes = upper.subplots(1, len(rows), squeeze=False, sharey=True)[0]
    n = len(next(iter(rows.values())))
    tokens = np.linspace(0, n - 1, min(n, MATRIX_PIXELS)).astype(int)
    distances = tokens[:, None] - tokens
    biases = np.stack([bias[distances.clip(min=0)] for bias in rows.values()])
    matrices = np.where(distances < 0, np.nan, biases)
    titles = [figures.short_label(pe).replace(", ", "\n") for pe in rows]
    figures.draw_matrices(upper, all_axes, matrices, titles, extent=(0, n, n, 0))
    lines = [figures.Line(pe, pe, [*enumerate(bias)]) for pe, bias in rows.items()]
    if fitted is not None:
        a, b = fitted
        curve = a * np.log1p(np.arange(n)) + b
        label = f"fit: {a:.3f} log(1 + d) {b:+.3f}"
        lines.append(figures.Line(label, "nope", [*enumerate(curve)]))
    figures.draw_panel(lower.subplots(), lines, "distance (tokens)", "bias", 10, marker="")
    figure.savefig(file, format="png")
