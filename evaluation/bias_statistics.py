"""Bias statistics: what a model's positional encoding does on a text.

layer = layers(model, tokens)[0]
layer.bias()                # the bias between all pairs of tokens
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import attention
import triton_attention
from model import GPT, Attention
from more_encodings.some_heads import SomeHeads, unwrap
from posenc import Encoding, NoPE, WeightedDecay
from triton_attention.bias import bias_from_encoding
from triton_attention.tile_skipping import skipped_fraction


@dataclass
class Layer:
    """One attention layer of a model that reads tokens (B, T).

    attn: its module. x: its input after the LayerNorm, (B, T, C). pos: positions (T,) int64.
    """

    attn: Attention
    encoding: Encoding
    x: Tensor
    pos: Tensor

    @property
    def features(self) -> tuple[tuple, tuple]:
        """The encoding's per-token features of queries and of keys."""
        with torch.autocast(self.x.device.type, enabled=False):  # as in the model
            return self.encoding.features(attention.at_least_float32(self.x), self.pos)

    def queries_and_keys(self) -> tuple[Tensor, Tensor]:
        """Return q and k (B, H, T, D), as the encoding rotates them."""
        q, k, _ = self.attn.split_heads(self.attn.c_attn(self.x))
        return self.encoding.rotate(q, k, self.pos, *self.features)

    def bias(self) -> Tensor | None:
        """Return the bias of all pairs, future keys included: (B|1, H|1, T, T).

        It includes what `logits_transform` adds. None if the encoding adds nothing to logits.
        """
        if self.encoding.logits_transform is not None:
            no_encoding = NoPE(self.attn.heads, self.x.size(-1), len(self.pos))
            return self._logits(self.encoding) - self._logits(no_encoding)
        if self.encoding.bias is None:
            return None
        bias_inputs = attention.BiasInputs(self.encoding, *self.features)
        return attention.bias_matrix(bias_inputs, self.attn.heads, len(self.pos))

    def logits(self) -> Tensor:
        """Return the logits of attention, q k^T * scale + bias, without a mask: (B, H, T, T)."""
        return self._logits(self.encoding)

    def attention_mask(self) -> Tensor:
        """Return the attention mask (T, T) bool, True where a query attends to a key."""
        q, k = self.queries_and_keys()
        return attention.attention_mask(q, k, attention.make_mask_spec(self.encoding))

    def _logits(self, bias_encoding):
        """Return the logits of this layer's q and k with the bias of `bias_encoding`."""
        q, k = self.queries_and_keys()
        bias_inputs = attention.BiasInputs(bias_encoding, *self.features)
        return attention.logits(q, k, bias_inputs, self.attn.scale)

    def skipped_fraction(self) -> float:
        """Return the fraction of tiles inside the attention mask that the Triton kernels skip."""
        # Nothing is skipped with a sliding window, or in layers that take another path.
        if self.encoding.window_size is not None or not triton_attention.supports(self.encoding):
            return 0.0
        q, k = self.queries_and_keys()
        bias = bias_from_encoding(self.encoding, *self.features, self.attn.heads)
        return skipped_fraction(
            q, k, bias, self.attn.scale, self.encoding.causal, self.attn.skip_tolerance
        )

    def decay(self) -> Tensor | None:
        """Return S[j-1] - S[j] of every token, by how much it decays the bias of all before it.

        (B|1, H|1, T); None if the encoding has no S (see posenc.WeightedDecay).
        """
        if self.encoding.bias is None:
            return None
        for part, _, k_features in self.encoding.split(*self.features):
            if isinstance(unwrap(part), WeightedDecay):
                s = k_features[0]
                decay = -s.diff(dim=-1, prepend=s[..., :1])
                return part.zero_others(decay) if isinstance(part, SomeHeads) else decay
        return None


@torch.no_grad()
def layers(
    model: GPT, tokens: Tensor, function: Callable[[Layer], object] = lambda layer: layer
) -> list:
    """Return what `function` returns for every layer while the model reads tokens (B, T)."""
    results = []

    def hook(attn, arguments):
        x, pos, encoding, *_ = arguments
        results.append(function(Layer(attn, encoding, x, pos)))

    hooks = [block.attn.register_forward_pre_hook(hook) for block in model.h]
    try:
        model.hidden(tokens)
    finally:
        for handle in hooks:
            handle.remove()
    return results
