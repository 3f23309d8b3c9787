"""A learnable logit in the denominator of the softmax."""

import torch
from torch import nn

from posenc import Encoding


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
