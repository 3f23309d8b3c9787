"""Encodings on some heads only: the options `heads` and `heads_percent`."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from errors import InputError
from posenc import Encoding, RoPE


class SomeHeads(Encoding):
    """An encoding on the first `count` heads only, as in `cable:heads=2`.

    encoding: one of `count` heads. Features per head are padded with zeros.
    """

    shared_options = ("heads", "heads_percent")
    encoding: Any  # its optional hooks are called only if it has them

    def __init__(self, encoding: Encoding, count: int, heads: int):
        nn.Module.__init__(self)
        self.encoding, self.count, self.heads = encoding, count, heads
        self.max_context = encoding.max_context
        self.scales_queries = encoding.scales_queries
        self.running_features = encoding.running_features
        self.changes_width = encoding.changes_width
        self.rotates = type(encoding).rotate is not Encoding.rotate
        self.rotates_heads_alike = not self.rotates
        self.remove_missing_hooks()

    def remove_missing_hooks(self) -> None:
        """Set the optional hooks that the encoding does not have to None."""
        for hook in ("bias", "factors", "triton_bias", "distance_bias"):
            if getattr(self.encoding, hook) is None:
                setattr(self, hook, None)

    def set_bidirectional(self):
        super().set_bidirectional()
        self.encoding.set_bidirectional()
        self.remove_missing_hooks()

    @staticmethod
    def supports(wrapped: type[Encoding]) -> bool:
        """Return whether a class acts only on queries, keys or biases."""
        acts = wrapped.rotate is not Encoding.rotate or wrapped.bias is not None
        acts = acts and wrapped.embed is Encoding.embed and wrapped.logits_transform is None
        return acts and not wrapped.needs_head_dimension

    @staticmethod
    def problems(name: str, options: dict) -> list[str]:
        """Return a line for each problem of the options of `name`."""
        problems = []
        if options.get("heads_percent", 1) > 100:
            problems.append(f"{name}: heads_percent is {options['heads_percent']}: use 1 to 100")
        if "heads" in options and "heads_percent" in options:
            problems.append(f"{name}: heads and heads_percent exclude each other: use one of them")
        return problems

    @classmethod
    def wrap(
        cls, wrapped: type[Encoding], make: Callable[[int], Encoding], options: dict, heads: int
    ) -> Encoding:
        """Return the encoding on some heads; make(n) returns one of n heads.

        Buffers are of the first of all heads. RoPE rotates others by 0 itself.
        """
        count = options.get("heads") or max(1, heads * options["heads_percent"] // 100)
        if count > heads:
            raise InputError(
                f"{wrapped.names[0]}: heads is {count}, but the model has {heads} heads: "
                f"use at most {heads}"
            )
        if wrapped.rotate is RoPE.rotate:
            rope: Any = make(heads)
            rope.rotated_heads = count
            rope.rotates_heads_alike = False
            return rope
        encoding = make(count)
        if encoding.window_size is not None:
            raise InputError(
                f"{wrapped.names[0]} has a sliding window, which acts on all heads: remove heads"
            )
        for buffer, of_all_heads in zip(encoding.buffers(), make(heads).buffers(), strict=True):
            buffer.copy_(of_all_heads[tuple(map(slice, buffer.shape))])
        return cls(encoding, count, heads)

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        if not self.rotates:
            return q, k
        sizes = self.count, self.heads - self.count
        (first_q, rest_q), (first_k, rest_k) = q.split(sizes, 1), k.split(sizes, 1)
        own = self._own(q_features), self._own(k_features)
        rotated_q, rotated_k = self.encoding.rotate(first_q, first_k, pos, *own)
        new_k = k if rotated_k is first_k else _join_heads(rotated_k, rest_k)
        return _join_heads(rotated_q, rest_q), new_k

    def features(self, x, pos, previous=None):
        previous = None if previous is None else self._own(previous)
        q_features, k_features = self.encoding.features(x, pos, previous)
        return self._padded(q_features), self._padded(k_features)

    def bias(self, q_features, k_features, h):
        own_h = h.clamp(max=self.count - 1)
        return torch.where(h < self.count, self.encoding.bias(q_features, k_features, own_h), 0)

    def distance_bias(self, d, h):
        own_h = h.clamp(max=self.count - 1)
        return torch.where(h < self.count, self.encoding.distance_bias(d, own_h), 0)

    def factors(self, q_features, k_features):
        pairs = self.encoding.factors(self._own(q_features), self._own(k_features))
        return tuple((self._pad(u, 1), w if w is None else self._pad(w, 1)) for u, w in pairs)

    def triton_bias(self, q_features, k_features, h):
        own = self._own(q_features), self._own(k_features)
        kind, tensors = self.encoding.triton_bias(*own, h[: self.count])
        head_dims = {"table": 0, "pieces": 0}
        return kind, {name: self._pad(x, head_dims.get(name, 1)) for name, x in tensors.items()}

    def zero_others(self, x: Tensor) -> Tensor:
        """Return x (B|1, H|1, T) as (B|1, H, T), with zeros for others."""
        return self._pad(x[:, : self.count], 1)

    def clamp_parameters_(self):
        self.encoding.clamp_parameters_()

    def _own(self, features: tuple) -> tuple:
        """Return features of the encoding's own heads."""
        return tuple(x[:, : self.count] for x in features)

    def _padded(self, features: tuple) -> tuple:
        """Return features with zeros for others; one head stands for all."""
        return tuple(x if x.size(1) == 1 else self._pad(x, 1) for x in features)

    def _pad(self, x: Tensor, dim: int) -> Tensor:
        """Return x, one or `count` heads along `dim`, with zeros for others."""
        sizes = list(x.shape)
        sizes[dim] = self.count
        x = x.expand(sizes)
        sizes[dim] = self.heads - self.count
        return torch.cat([x, x.new_zeros(sizes)], dim)


def unwrap(encoding: Encoding) -> Encoding:
    """Return an encoding without its wrapper, if it has one."""
    return encoding.encoding if isinstance(encoding, SomeHeads) else encoding


def _join_heads(first: Tensor, rest: Tensor) -> Tensor:
    """Return (B, H, T, D), in memory (B, T, H, D); pad `rest` with columns."""
    rest = F.pad(rest, (0, first.size(-1) - rest.size(-1)))
    return torch.cat([first.transpose(1, 2), rest.transpose(1, 2)], 2).transpose(1, 2)
