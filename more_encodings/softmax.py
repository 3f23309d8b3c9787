"""Scales of logits, a sliding window, and a sink: SSMax, log n, Window, Sink.

n counts the tokens up to the query, within the window of a combination such as `window+ssmax`, but
not within the window of a KV cache.
"""

import math

import torch
from torch import Tensor, nn

from posenc import Encoding


class LogN(Encoding):
    """Multiplies queries by log n / log L, n the number of keys that the query attends to.

    The division by log L is ours: logits have their usual size at the training
    length. Combines with all encodings, as in `rope+logn`.
    Source: Chiang & Cholak 2022
    """

    names = ("logn",)
    scales_queries = True
    rotates_heads_alike = True
    supports_bidirectional = False  # n would depend on the padding

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.length = max(2, block_size)

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        n = pos + 1
        if self.combined_window_size is not None:
            n = n.clamp(max=self.combined_window_size)
        dtype = torch.promote_types(q.dtype, torch.float32)
        scale = n.double().log().to(dtype)[:, None, :, None] * self.factor()  # (B|1, H|1, T, 1)
        return (q.to(dtype) * scale).to(q.dtype), k

    def factor(self) -> float | Tensor:
        """Return the factor of log n, one for all heads or (H, 1, 1)."""
        return 1 / math.log(self.length)


class SSMax(LogN):
    """Multiplies queries by s_h log n, n the number of keys that the query attends to.

    s starts at the reciprocal of the mean of log n over the training length
    (ours), so that logits start with their usual size.
    Source: Nakanishi 2025 (Scalable-Softmax)
    """

    names = ("ssmax",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        mean = math.lgamma(self.length + 1) / self.length  # of log n, n = 1..length
        self.s = nn.Parameter(torch.full((heads,), 1 / mean))

    def factor(self):
        return self.s[:, None, None]


class Window(Encoding):
    """Attention only to keys at a distance below w.

    Combine it with a bias: `window:w=64+alibi`.
    Source: Chi et al. 2023 (Sandwich), section 3.3; Beltagy et al. 2020 (Longformer)
    """

    names = ("window",)

    def __init__(self, heads, channels, block_size, *, w: int = 100):
        super().__init__(heads, channels, block_size)
        self.window_size = w


class Sink(Encoding):
    """exp(s_h) is added to the denominator of each row's softmax; s starts at 0.

    Combines with all encodings, as in `rope+sink`.
    Source: gpt-oss (OpenAI 2025); Miller 2023 ("softmax1") for s = 0
    """

    names = ("sink",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.s = nn.Parameter(torch.zeros(heads))

    def sink(self):
        return self.s
