"""The logarithm of the decay of FoX."""

from posenc import Fox, LogDecay


class KFox(LogDecay, Fox):
    """-log(b^2 + 1), b the bias of `cable-v1`.

    Source: Veisi et al. 2025, version 1, section 5.4, which prints the other sign
    """

    names = ("k-cable-v1",)
