"""Bias statistics: what a model's positional encoding does on a text."""

from dataclasses import dataclass

import torch
from torch import Tensor

import attention
from model import GPT, Attention
from more_encodings.combinations import SomeHeads, unwrap
from posenc import Encoding, WeightedDecay


@dataclass
class Layer:
    """One attention layer of a model that reads tokens (B, T).

    x: its input after the LayerNorm, (B, T, C). pos: positions (1, T) int64.
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
        k = attention.repeat_heads(k, self.attn.heads)
        return self.encoding.rotate(q, k, self.pos, *self.features)

    def bias(self) -> Tensor | None:
        """Return the bias of all pairs, also of later keys: (B|1, H|1, T, T).

        With what `logits_transform` adds. None: nothing is added to logits.
        """
        if self.encoding.has("logits_transform"):
            q, k = self.queries_and_keys()
            return self.logits() - q @ k.mT * self.attn.scale
        if not self.encoding.has("bias"):
            return None
        bias_inputs = attention.BiasInputs(self.encoding, *self.features)
        return attention.bias_matrix(bias_inputs, self.attn.heads, self.pos.size(1))

    def logits(self) -> Tensor:
        """Return q k^T * scale + bias, without a mask: (B, H, T, T)."""
        bias_inputs = attention.BiasInputs(self.encoding, *self.features)
        return attention.logits(*self.queries_and_keys(), bias_inputs, self.attn.scale)

    def attention_mask(self) -> Tensor:
        """Return the mask (T, T) bool, True where a query attends to a key."""
        q, k = self.queries_and_keys()
        return attention.attention_mask(q, k, attention.make_mask_spec(self.encoding))

    def decay(self) -> Tensor | None:
        """Return S[j-1] - S[j], (B|1, H|1, T), of a WeightedDecay, or None."""
        for part, _, k_features in self.encoding.split(*self.features):
            if isinstance(unwrap(part), WeightedDecay):
                s = k_features[0]
                decay = -s.diff(dim=-1, prepend=s[..., :1])
                return part.zero_others(decay) if isinstance(part, SomeHeads) else decay
        return None


@torch.no_grad()
def layers(model: GPT, tokens: Tensor) -> list[Layer]:
    """Return a model's layers, with their inputs as it reads tokens (B, T)."""
    found = []

    def hook(attn, arguments):
        x, pos, encoding, *_ = arguments
        found.append(Layer(attn, encoding, x, pos))

    hooks = [block.attn.register_forward_pre_hook(hook) for block in model.h]
    try:
        model.hidden(tokens)
    finally:
        for handle in hooks:
            handle.remove()
    return found
