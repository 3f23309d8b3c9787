"""Plot biases of the distance alone: matrices and last rows of several encodings, without a model.

    python plot.py distances sandwich sandwich-smoothed --fit 8192 --out figure9.png
    python plot.py distances sandwich sandwich:dimension=32 --out figure10.png

Upper row: the bias B[i, j] of query token i (vertical) and key token j (horizontal) in one head.
Lower panel: the last row of each matrix, which is the bias of the last query. --fit N fits
a log(1 + d) + b to the first encoding at the N shortest distances d by least squares, and draws and
prints the curve. Learnable encodings have their initial values.

Figures 8 to 10 of the Sandwich paper: 12 heads, of which the last has the compression ratio h = 8,
and 8,192 tokens. The fitted curve is `sandwich-smoothed` there.
"""

from dataclasses import dataclass, field
from itertools import cycle

from runtime import cli
from runtime.files import atomic

import numpy as np
import torch

import attention
import model  # noqa: F401 (registers all encodings)
import pe_spec
import posenc
from errors import InputError
from more_encodings.some_heads import unwrap
from reporting import figures
from reporting.figures import COLORS

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
    heads: int = cli.limited(12, 1, 1_000)
    """number of heads"""
    head: int = -1
    """head to plot, from 0; negative numbers count from the last"""
    fit: int | None = None
    """fit a logarithm to the first encoding at this many distances; null: no fit"""
    out: str = "distances.png"
    """PNG file to write"""

    def __post_init__(self):
        problems = []
        if not self.encodings:
            problems.append("no encodings given: python plot.py distances sandwich ...")
        if not -self.heads <= self.head < self.heads:
            problems.append(f"--head {self.head} of {self.heads} heads: use 0 to {self.heads - 1}")
        if self.fit is not None and not 2 <= self.fit <= self.context:
            problems.append(f"--fit {self.fit}: use 2 to {self.context}, the --context")
        if problems:
            raise InputError(*problems)
        figures.check_png(self.out)


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("encodings", "positional encodings"))
    shape = (config.context, config.heads, config.head)
    rows = {pe: bias_by_distance(pe, *shape) for pe in config.encodings}
    fitted = None
    if config.fit:
        pe = config.encodings[0]
        fitted = a, b = fit_logarithm(rows[pe][: config.fit])
        print(f"{pe}: {a:.3f} log(1 + d) {b:+.3f}, fitted to distances 0 to {config.fit - 1:,}")
    with atomic(config.out) as file:
        plot(rows, fitted, file)
    print(f"wrote {config.out}")


@torch.no_grad()
def bias_by_distance(pe: str, context: int, heads: int, head: int) -> np.ndarray:
    """Return the bias of one head at the distances 0 to context - 1: (context,) float64.

    Raises InputError for encodings without a bias that depends on the distance alone.
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


def fit_logarithm(bias: np.ndarray) -> tuple[float, float]:
    """Return a and b of a log(1 + d) + b, fitted by least squares to the bias at d = 0, 1, ...

    bias: (n,), n >= 2.
    """
    a, b = np.polyfit(np.log1p(np.arange(len(bias))), bias, 1)
    return float(a), float(b)


def plot(rows: dict[str, np.ndarray], fitted: tuple[float, float] | None, file) -> None:
    """Write a PNG with the matrix of each encoding, and all last rows below them.

    rows: {encoding: bias (n,) at the distances 0 to n - 1}; fitted: the result of fit_logarithm to
    draw, or None.
    """
    figure = figures.new_figure(2.9 * max(2, len(rows)) + 0.9, 6.6)
    upper, lower = figure.subfigures(2, 1, squeeze=False)[:, 0]
    all_axes = upper.subplots(1, len(rows), squeeze=False)[0]
    scale = {"vmin": min(map(np.min, rows.values())), "vmax": max(map(np.max, rows.values()))}
    for axes, (pe, bias) in zip(all_axes, rows.items(), strict=True):
        tokens = np.linspace(0, len(bias) - 1, min(len(bias), MATRIX_PIXELS)).astype(int)
        distances = tokens[:, None] - tokens
        matrix = np.where(distances < 0, np.nan, bias[distances.clip(min=0)])
        extent = (0, len(bias), len(bias), 0)
        image = figures.draw_matrix(axes, matrix, extent=extent, **scale)
        axes.set_title(pe, fontsize=10)
        axes.tick_params(labelsize=7)
    upper.colorbar(image, ax=all_axes, shrink=0.8, pad=0.02).ax.tick_params(labelsize=7)
    axes = lower.subplots()
    keys = np.arange(len(bias))
    for color, (pe, bias) in zip(cycle(COLORS), rows.items(), strict=False):
        axes.plot(keys, bias[::-1], color=color, linewidth=1.2, label=pe)
    if fitted:
        a, b = fitted
        curve, label = a * np.log1p(keys) + b, f"fit: {a:.3f} log(1 + d) {b:+.3f}"
        axes.plot(keys, curve[::-1], "--", color="black", linewidth=1.2, label=label)
    axes.set(xlabel="key token", ylabel=f"bias of query token {keys[-1]:,}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(file, format="png", dpi=110)
