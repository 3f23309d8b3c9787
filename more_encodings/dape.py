"""DAPE and DAPEv2 (Zheng et al. 2024): a small network over logits and biases."""

import torch
import torch.nn.functional as F
from torch import nn

from posenc import Encoding


class DAPE(Encoding):
    """f([A; B]) of the logits A and the bias B: 2H -> width -> H for each pair of query and key, LeakyReLU between (DAPE, Zheng et al.
    2024a). It adds to a bias, as in `dape+kerple`; alone, B is 0."""

    names = ("dape",)
    kernel = 1  # keys that a number of f is made of

    def __init__(self, heads, channels, block_size, *, width: int = 32):
        super().__init__(heads, channels, block_size)
        self.hidden, self.output = (
            nn.Conv2d(2 * heads, width, (1, self.kernel)),
            nn.Conv2d(width, heads, (1, self.kernel)),
        )

    def logits_transform(self, logits, bias, q, d, mask):
        x = torch.cat([logits, bias.expand_as(logits)], 1)
        return self.convolve(self.output, F.leaky_relu(self.convolve(self.hidden, x, mask)), mask)

    def convolve(self, layer, x, mask):
        """In the precision of x (B, channels, T, S)."""
        x = x.masked_fill(~mask, 0)
        return F.conv2d(
            x, layer.weight.to(x.dtype), layer.bias.to(x.dtype), padding=(0, self.kernel // 2)
        )


class DAPEv2(DAPE):
    """`dape` whose f is two convolutions along the keys, each over three of them (DAPE V2, Zheng et al. 2024b).

    Unlike the published code it zeroes the hidden layer of keys that are not seen, too: otherwise a row would read the first one after
    the query, which is not there while a text is being written.
    """

    names = ("dapev2",)
    kernel = 3
