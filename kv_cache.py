"""KV cache for incremental decoding.

cache = Cache(model, capacity=1024)
logits = model(tokens[:, :100], cache=cache)
logits = model(tokens[:, 100:], cache=cache)  # as of one call with all tokens
"""

import torch
from torch import Tensor

from errors import InputError
from operators.elementary import at_least_float32

CACHE_CHUNK = 1024  # tokens of a long text that are read at a time


class LayerCache:
    """Keys, values and key features of one layer, in buffers (B, G, tokens, D).

    Without a window the first `extend` allocates `capacity` tokens, in float32 on a CPU, which is
    faster.

    window:   tokens attended to, including the current one; None: all.
    position: int64 (1,), of the next token, once the shapes are fixed;
              generation.sampling.decode advances it.
    running:  indices of features of which only the latest is kept.
    """

    def __init__(
        self, capacity: int | None, window: int | None = None, running: tuple[int, ...] = ()
    ):
        self.capacity = capacity
        self.window = window
        self.running = running
        self.length = 0
        self.buffers: list[Tensor] = []  # of k, v and the features that are not running
        self.latest: list[Tensor] = []  # all features of the latest token
        self.position: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor, *k_features: Tensor) -> list[Tensor]:
        """Append k, v (B, G, T, D), features (B|1, H|1, T[, N]); return all S.

        S: all tokens so far, or with a window these T and window - 1 before them. With fixed shapes
        T is 1 and S the capacity. On a CPU a single token gets k and v in float32, as in the
        buffers. Running features are returned as they are.
        """
        kept = [n for n in range(len(k_features)) if n not in self.running]
        all_k, all_v, *stored = self.store([k, v, *(_columns(k_features[n]) for n in kept)])
        features = list(k_features)
        for n, all_tokens in zip(kept, stored, strict=True):
            features[n] = all_tokens if k_features[n].dim() == 4 else all_tokens[..., 0]
        latest = [feature[:, :, -1:] for feature in k_features]
        # copies, because a slice keeps those of all tokens in memory
        if self.position is None:
            self.latest = [feature.clone() for feature in latest]
        else:  # compiled code needs the same tensors in every step
            for old, new in zip(self.latest, latest, strict=True):
                old.copy_(new)
        return [all_k, all_v, *features]

    def store(self, new: list[Tensor]) -> list[Tensor]:
        """Append tensors (B|1, H|1, T, D); return all S tokens."""
        if self.position is not None:
            for buffer, x in zip(self.buffers, new, strict=True):
                buffer.index_copy_(2, self.position, x.to(buffer.dtype))
            return self.buffers
        start = self.length
        self.length += new[0].size(2)
        if self.window is None:
            return self._append(new, start)
        if self.buffers:
            kept = min(self.window - 1, start)
            pairs = zip(self.buffers, new, strict=True)
            new = [torch.cat([old[:, :, old.size(2) - kept :], x], 2) for old, x in pairs]
        self.buffers = new
        return new

    def _append(self, new: list[Tensor], start: int) -> list[Tensor]:
        if not self.buffers:
            assert self.capacity is not None, "a cache needs a capacity or a window"
            for x in new:
                wide = at_least_float32(x[:0]) if x.device.type == "cpu" else x
                shape = *x.shape[:2], self.capacity, x.size(3)
                self.buffers.append(x.new_zeros(shape, dtype=wide.dtype))
        if self.length > self.buffers[0].size(2):
            raise InputError(
                f"a KV cache of {self.capacity} tokens gets {self.length}: use a larger capacity, "
                "or window=N for the latest N"
            )
        for buffer, x in zip(self.buffers, new, strict=True):
            buffer[:, :, start : self.length] = x
        if start == 0:
            return new
        tokens = [buffer[:, :, : self.length] for buffer in self.buffers]
        if new[0].size(2) == 1:
            return tokens
        return [x.to(y.dtype) for x, y in zip(tokens, new, strict=True)]

    def last(self) -> tuple[Tensor, ...] | None:
        """Return the latest key features (B|1, H|1, 1[, N]), or None."""
        return tuple(self.latest) if self.length else None


def _columns(feature: Tensor) -> Tensor:
    """Return a feature (B|1, H|1, T[, N]) with a last dimension."""
    return feature if feature.dim() == 4 else feature[..., None]


class Cache:
    """KV cache of a GPT, for use without gradients; one LayerCache per layer.

    capacity: most tokens; or window: latest tokens to attend to, for sequences of any length
    (Sandwich, appendix B).
    """

    def __init__(self, model, capacity: int | None = None, window: int | None = None):
        running = [encoding.running_features for encoding in model.posenc]
        self.layers = [LayerCache(capacity, window, features) for features in running]
        self.capacity = capacity
        self.position: Tensor | None = None

    @property
    def length(self) -> int:
        """The number of tokens; constant once the shapes are fixed."""
        return self.layers[0].length

    def fix_shapes(self) -> None:
        """Fix the shapes of one-token steps: `generation.sampling.decode` compiles once."""
        self.position = torch.tensor([self.length], device=self.layers[0].buffers[0].device)
        for layer in self.layers:
            layer.position = self.position
