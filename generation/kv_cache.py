"""What does a model remember of a sequence that it reads piece by piece?"""

import torch
from torch import Tensor


class LayerCache:
    """Keys, values and key states of one layer's past, in buffers of a fixed size that the first `extend` allocates.

    window: if given, only so many tokens are remembered, the latest one included, in buffers that move on.
    position: int64 (1,), where the next token goes, once shapes are fixed (Cache.fix_shapes); until then None.
    """

    def __init__(self, capacity: int | None, window: int | None):
        self.capacity, self.window, self.length, self.buffers, self.position = (
            capacity,
            window,
            0,
            None,
            None,
        )

    def extend(self, k: Tensor, v: Tensor, *k_features: Tensor) -> list[Tensor]:
        """Appends k, v (B, H, T, D) and states (B|1, H|1, T); returns the same of all tokens so far, as views.

        With a window: of these T tokens and the window - 1 before the first. With fixed shapes T is 1 and the whole buffers are
        returned, what lies after the token included.
        """
        new = [k, v, *(state[..., None] for state in k_features)]
        if self.position is not None:
            for buffer, x in zip(self.buffers, new):
                buffer.index_copy_(2, self.position, x.to(buffer.dtype))
            k, v, *k_features = self.buffers
            return [k, v, *(state[..., 0] for state in k_features)]
        start, self.length = self.length, self.length + k.size(2)
        if self.window:
            old = [
                buffer[:, :, max(0, buffer.size(2) - self.window + 1) :]
                for buffer in self.buffers or ()
            ]
            self.buffers = [torch.cat(pair, 2) for pair in zip(old, new)] if old else new
            k, v, *k_features = self.buffers
        else:
            if self.buffers is None:
                self.buffers = [x.new_zeros(*x.shape[:2], self.capacity, x.size(3)) for x in new]
            for buffer, x in zip(self.buffers, new):
                buffer[:, :, start : self.length] = x
            k, v, *k_features = (buffer[:, :, : self.length] for buffer in self.buffers)
        return [k, v, *(state[..., 0] for state in k_features)]

    def last(self) -> tuple[Tensor, ...] | None:
        """The key states of the latest token, each (B|1, H|1, 1); None at the start of a sequence."""
        if self.position is not None:
            return tuple(
                buffer.index_select(2, self.position - 1)[..., 0] for buffer in self.buffers[2:]
            )
        latest = -1 if self.window else self.length - 1
        return (
            tuple(buffer[:, :, latest, None, 0] for buffer in self.buffers[2:])
            if self.length
            else None
        )


class Cache:
    """What a GPT remembers of a sequence that it reads piece by piece, for use without gradients: up to `capacity` tokens, or,
    however long the sequence is, the latest `window` of them (Sandwich, appendix B: keys further back are not seen).

    model(tokens[:, :100], cache=cache), then model(tokens[:, 100:], cache=cache): the logits are those of one call.
    After fix_shapes(), tokens come one at a time, and GPT.decode has the same shapes at every step, so that it compiles.
    """

    def __init__(self, model, capacity: int | None = None, window: int | None = None):
        self.layers = [LayerCache(capacity, window) for _ in model.h]
        self.capacity, self.position = capacity, None

    @property
    def length(self) -> int:
        """Tokens taken in; with fixed shapes, `position` counts on."""
        return self.layers[0].length

    def fix_shapes(self) -> None:
        self.position = torch.tensor([self.length], device=self.layers[0].buffers[0].device)
        for layer in self.layers:
            layer.position = self.position
