"""Sliding-window attention."""

from posenc import Encoding


class Window(Encoding):
    """Keys with |d| < w alone are seen (Chi et al. 2023, section 3.3; Beltagy et al. 2020). Positions show at the window's end only; biases
    go with it, as in `window:w=64+alibi`."""

    names = ("window",)

    def __init__(self, heads, channels, block_size, *, w: int = 100):
        super().__init__(heads, channels, block_size)
        self.window_size = w
