"""Sliding-window attention."""

from posenc import Encoding


class Window(Encoding):
    """Attention only to keys at a distance below w.

    Inside the window there is no positional information. Combine it with a bias:
    `window:w=64+alibi`.
    Source: Chi et al. 2023 (Sandwich), section 3.3; Beltagy et al. 2020 (Longformer)
    """

    names = ("window",)

    def __init__(self, heads, channels, block_size, *, w: int = 100):
        super().__init__(heads, channels, block_size)
        self.window_size = w
