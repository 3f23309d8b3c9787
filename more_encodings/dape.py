"""DAPE and DAPEv2: a small network over logits and biases."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import Encoding


class DAPE(Encoding):
    """f([A; B]), A the logits and B the bias of a pair in all heads, f an MLP 2H -> width -> H.

    f has a LeakyReLU. Combine it with a bias, as in `dape+kerple`.
    Source: Zheng et al. 2024a (DAPE)
    """

    names = ("dape",)
    kernel = 1  # neighboring keys that each layer of f reads

    def __init__(self, heads, channels, block_size, *, width: int = 32):
        super().__init__(heads, channels, block_size)
        self.hidden = nn.Conv2d(2 * heads, width, (1, self.kernel))
        self.output = nn.Conv2d(width, heads, (1, self.kernel))

    def logits_transform(self, logits, bias, q, k, scale, d, mask, q_features, k_features):
        x = torch.cat([logits, bias.expand_as(logits)], 1)  # (B, 2H, T, S)
        hidden = F.leaky_relu(self.convolve(self.hidden, x, mask))
        return self.convolve(self.output, hidden, mask)

    def convolve(self, layer: nn.Conv2d, x: Tensor, mask: Tensor) -> Tensor:
        """Convolve x (B, channels, T, S) with masked keys as zeros."""
        x = x.masked_fill(~mask, 0)
        bias = None if layer.bias is None else layer.bias.to(x.dtype)
        return F.conv2d(x, layer.weight.to(x.dtype), bias, padding=(0, self.kernel // 2))


class DAPEv2(DAPE):
    """`dape` whose f is two convolutions along the keys, each over three of them.

    Unlike in the published code, no row depends on a future key: the hidden
    layer of masked keys is zero, too.
    Source: Zheng et al. 2024b (DAPE V2)
    """

    names = ("dapev2",)
    kernel = 3
