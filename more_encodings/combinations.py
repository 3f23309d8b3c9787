"""Combinations: several encodings in a layer (`rope+cable`), some heads only (`cable:heads=2`).

`pe_spec.build` imports them when a --pe string needs them.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from errors import InputError
from posenc import Encoding, ModuleList, RoPE, accepts_grouped_keys


class Composition(Encoding):
    """Several encodings at once, as in `rope+cable`: biases are added, then transformed."""

    def __init__(self, parts: list[Encoding], channels: int):
        nn.Module.__init__(self)
        self.parts = ModuleList(parts)
        self.causal = parts[0].causal
        limits = [part.max_context for part in parts if part.max_context is not None]
        windows = [part.window_size for part in parts if part.window_size is not None]
        self.max_context = min(limits, default=None)
        self.window_size = min(windows, default=None)
        for module in self.modules():
            if isinstance(module, Encoding):
                module.combined_window_size = self.window_size
        self.changes_width = any(part.changes_width for part in parts)
        self.rotates_heads_alike = all(map(accepts_grouped_keys, parts))
        # Each part's query features are number q_start to q_stop; key features likewise.
        self.bounds: list[tuple[int, int, int, int]] = []
        q_start = k_start = 0
        x, pos = torch.zeros(1, 1, channels), torch.zeros(1, 1, dtype=torch.int64)
        for part in parts:
            q_features, k_features = part.features(x, pos)
            q_stop, k_stop = q_start + len(q_features), k_start + len(k_features)
            self.bounds.append((q_start, q_stop, k_start, k_stop))
            self.running_features += tuple(k_start + i for i in part.running_features)
            q_start, k_start = q_stop, k_stop

    def has(self, hook):
        having, biased = (sum(part.has(name) for part in self.parts) for name in (hook, "bias"))
        if hook == "factors":  # products add up, if all biases are sums of products
            return having > 0 and having == biased
        if hook in ("distance_bias", "triton_bias"):  # not added up
            return having == 1 and biased == 1
        return having > 0

    def split(self, q_features, k_features):
        pairs = zip(self.parts, self.bounds, strict=True)
        return [(part, q_features[a:b], k_features[c:d]) for part, (a, b, c, d) in pairs]

    def only_part(self, hook: str, q_features: tuple = (), k_features: tuple = ()) -> tuple:
        """Return the only part that has a hook, its query features and its key features."""
        split = self.split(q_features, k_features)
        return next(each for each in split if each[0].has(hook))

    def embed(self, x, pos):
        for part in self.parts:
            x = part.embed(x, pos)
        return x

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        split = self.split(q_features, k_features)
        for scales_queries in (True, False):  # the order of the parts must not matter
            for part, part_q, part_k in split:
                if part.scales_queries == scales_queries:
                    q, k = part.rotate(q, k, pos, part_q, part_k)
        return q, k

    def features(self, x, pos, previous=None):
        q_features, k_features = (), ()
        for part, _, part_previous in self.split((), previous or ()):
            q, k = part.features(x, pos, None if previous is None else part_previous)
            q_features += q
            k_features += k
        return q_features, k_features

    def bias(self, q_features, k_features, h):
        split = self.split(q_features, k_features)
        return sum(part.bias(q, k, h) for part, q, k in split if part.has("bias"))

    def factors(self, q_features, k_features):
        split = self.split(q_features, k_features)
        sums = [part.factors(q, k) for part, q, k in split if part.has("factors")]
        return tuple(pair for pairs in sums for pair in pairs)

    def distance_bias(self, d, h):
        part, *_ = self.only_part("distance_bias")
        return part.distance_bias(d, h)

    def triton_bias(self, q_features, k_features, h):
        part, *features = self.only_part("triton_bias", q_features, k_features)
        return part.triton_bias(*features, h)

    def logits_transform(self, logits, bias, q, k, scale, d, mask, q_features, k_features):
        part, *features = self.only_part("logits_transform", q_features, k_features)
        return part.logits_transform(logits, bias, q, k, scale, d, mask, *features)

    def sink(self):
        part, *_ = self.only_part("sink")
        return part.sink()

    def clamp_parameters_(self):
        for part in self.parts:
            part.clamp_parameters_()


class SomeHeads(Encoding):
    """An encoding on the first `count` heads only, as in `cable:heads=2`.

    encoding: one of `count` heads. Features per head are padded with zeros.
    """

    def __init__(self, encoding: Encoding, count: int, heads: int):
        nn.Module.__init__(self)
        self.encoding, self.count, self.heads = encoding, count, heads
        self.max_context = encoding.max_context
        self.scales_queries = encoding.scales_queries
        self.running_features = encoding.running_features
        self.changes_width = encoding.changes_width
        self.rotates_heads_alike = not self.has("rotate")

    def has(self, hook):
        return self.encoding.has(hook)

    def rotate(self, q, k, pos, q_features=(), k_features=()):
        if not self.has("rotate"):
            return q, k
        sizes = self.count, self.heads - self.count
        (first_q, rest_q), (first_k, rest_k) = q.split(sizes, 1), k.split(sizes, 1)
        own = self._own(q_features), self._own(k_features)
        rotated_q, rotated_k = self.encoding.rotate(first_q, first_k, pos, *own)
        return _join_heads(rotated_q, rest_q), _join_heads(rotated_k, rest_k)

    def features(self, x, pos, previous=None):
        previous = None if previous is None else self._own(previous)
        q_features, k_features = self.encoding.features(x, pos, previous)
        return self._padded(q_features), self._padded(k_features)

    def bias(self, q_features, k_features, h):
        bias = self.encoding.bias(q_features, k_features, h.clamp(max=self.count - 1))
        return torch.where(h < self.count, bias, 0)

    def distance_bias(self, d, h):
        bias = self.encoding.distance_bias(d, h.clamp(max=self.count - 1))
        return torch.where(h < self.count, bias, 0)

    def factors(self, q_features, k_features):
        pairs = self.encoding.factors(self._own(q_features), self._own(k_features))
        return tuple((self._pad(u), w if w is None else self._pad(w)) for u, w in pairs)

    def triton_bias(self, q_features, k_features, h):
        own = self._own(q_features), self._own(k_features)
        kind, tensors = self.encoding.triton_bias(*own, h[: self.count])
        dims = {"table": 0, "pieces": 0}
        return kind, {key: self._pad(x, dims.get(key, 1)) for key, x in tensors.items()}

    def zero_others(self, x: Tensor) -> Tensor:
        """Return x (B|1, H|1, T) as (B|1, H, T), with zeros for others."""
        return self._pad(x[:, : self.count])

    def clamp_parameters_(self):
        self.encoding.clamp_parameters_()

    def _own(self, features: tuple) -> tuple:
        """Return features of the encoding's own heads."""
        return tuple(x[:, : self.count] for x in features)

    def _padded(self, features: tuple) -> tuple:
        """Return features with zeros for others; one head stands for all."""
        return tuple(x if x.size(1) == 1 else self._pad(x) for x in features)

    def _pad(self, x: Tensor, dim: int = 1) -> Tensor:
        """Return x, one or `count` heads along `dim`, with zeros for others."""
        sizes = list(x.shape)
        sizes[dim] = self.count
        x = x.expand(sizes)
        sizes[dim] = self.heads - self.count
        return torch.cat([x, x.new_zeros(sizes)], dim)


def on_some_heads(make: Callable[[int], Any], count: int, heads: int) -> Encoding:
    """Return an encoding on the first `count` of `heads` heads; make: one of a number of heads.

    Fixed slopes are those of the first of all heads.
    """
    encoding, whole = make(count), make(heads)
    if type(encoding).rotate is RoPE.rotate:  # rotates other heads by 0
        whole.rotated_heads = count
        whole.rotates_heads_alike = False
        return whole
    if encoding.window_size is not None:
        name = encoding.names[0]
        raise InputError(f"{name} is a window, which acts on all heads: remove heads")
    for buffer, of_all_heads in zip(encoding.buffers(), whole.buffers(), strict=True):
        buffer.copy_(of_all_heads[tuple(map(slice, buffer.shape))])
    return SomeHeads(encoding, count, heads)


def unwrap(encoding: Encoding) -> Encoding:
    """Return an encoding without its wrapper, if it has one."""
    return encoding.encoding if isinstance(encoding, SomeHeads) else encoding


def _join_heads(first: Tensor, rest: Tensor) -> Tensor:
    """Return (B, H, T, D), in memory (B, T, H, D); pad `rest` with columns."""
    rest = F.pad(rest, (0, first.size(-1) - rest.size(-1)))
    return torch.cat([first.transpose(1, 2), rest.transpose(1, 2)], 2).transpose(1, 2)
