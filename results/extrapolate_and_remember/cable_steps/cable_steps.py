"""CABLE with steps that have a gradient everywhere, or start above zero: does the ReLU matter?

Used by results/extrapolate_and_remember/README.md.
"""

import torch.nn.functional as F

from posenc import Cable


class CableSoftplus(Cable):
    """`cable` with S = cumsum(-Softplus(x w_c)): all steps are positive and have a gradient."""

    names = ("cable-softplus",)

    def features(self, x, pos, previous=None):
        s = self.cumulative_sum(-F.softplus(self.step(x)), previous)
        return (s, F.softplus(self.weight(x)).mT.contiguous()), (s,)


class CableOpen(Cable):
    """`cable` with S = cumsum(-ReLU(x w_c + 1)): all steps are positive at the start."""

    names = ("cable-open",)

    def features(self, x, pos, previous=None):
        s = self.cumulative_sum(-F.relu(self.step(x) + 1), previous)
        return (s, F.softplus(self.weight(x)).mT.contiguous()), (s,)
