"""Biases that the Triton kernels compute: their kinds and their numbers.

For a query at position i and a key at position j, with d = i - j:

    none              b = 0
    decay             b = g_i (S_i - S_j): cable, cable-nw, fox, alibi
    log-decay         b = -log(1 + (g_i (S_i - S_j))^2): k-cable
    distance          b = r_h[d], a table per head: t5, t5-clip, kerple and other functions of d
    piecewise-linear  b = f_h(r[d] g_i), f_h piecewise linear: fire (a ReLU network of one input)

S_i - S_j is taken before anything is rounded. In bidirectional attention it becomes -|S_i - S_j|,
and a table has entries for both signs of d.

The numbers of all heads are float32; only ends of pieces get no gradients:

    s_i     (B|1, H|1, T), s_j: (B|1, H|1, S), for decays
    g       (B|1, H|1, T|1), for decays and piecewise-linear
    table   (H|1, N), for distance and piecewise-linear. If causal, N >= S and
            entries start at distance 0; else N = 2 S - 1 and at -(S - 1)
    pieces  (H, 3, K), for piecewise-linear, K a power of 2: the K - 1 ascending
            ends of the pieces, then infinity; slopes; intercepts. g and the
            table are >= 0 then, g never increases with the position, and the
            table never decreases with d. Causal only
"""

import torch
from torch import Tensor

from posenc import Encoding

# An operator's argument `kind` is an index into this tuple.
KINDS = ("none", "decay", "log-decay", "distance", "piecewise-linear")
NAMES = ("s_i", "g", "s_j", "table", "pieces")
Bias = tuple[str, dict[str, Tensor]]  # kind, numbers by name


def bias_from_encoding(
    encoding: Encoding, q_features: tuple, k_features: tuple, heads: int
) -> Bias:
    """Return the bias of an encoding for its features."""
    if not encoding.has("bias"):
        return "none", {}
    assert encoding.has("triton_bias"), "the kernels do not support the encoding"
    device = k_features[0].device
    h = torch.arange(heads, device=device)
    kind, numbers = encoding.triton_bias(q_features, k_features, h)
    assert all(name in NAMES for name in numbers), f"use numbers named {', '.join(NAMES)}"
    return kind, numbers
