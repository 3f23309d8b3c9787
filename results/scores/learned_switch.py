"""ALiBi with a learned switch per head: does training leave some heads without position?"""

import torch
from torch import nn

from posenc import ALiBi


class ALiBiSwitch(ALiBi):
    """-sigmoid(8 s_h) m_h d: ALiBi's slopes m times a switch, s learnable per head, 0 at the start.

    In the budget of the score card, AdamW moves s by at most about 0.5, so that a switch stays
    between 0.02 and 0.98.
    """

    names = ("alibi-switch",)

    def __init__(self, heads, channels, block_size):
        super().__init__(heads, channels, block_size)
        self.s = nn.Parameter(torch.zeros(heads))

    def features(self, x, pos, previous=None):
        (position, slopes), k_features = super().features(x, pos, previous)
        return (position, slopes * (8 * self.s).sigmoid()[:, None]), k_features
