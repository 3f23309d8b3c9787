"""What does a model's positional encoding do to a text: the bias between its tokens, how steeply it falls, how far it sees."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import attention
from model import GPT, Attention
from posenc import Composition, Encoding, NoPE, WeightedDecay
from triton_attention.bias import bias_from_encoding
from triton_attention.tile_skipping import skipped_fraction


@dataclass
class Layer:
    """One attention layer as it reads tokens (B, T): its module, encoding, normalised input (B, T, C), positions, states."""

    attn: Attention
    encoding: Encoding
    x: Tensor
    pos: Tensor

    @property
    def features(self) -> tuple[tuple, tuple]:
        with torch.autocast(self.x.device.type, enabled=False):  # as the model takes them
            return self.encoding.features(self.x.float(), self.pos)

    def bias(self) -> Tensor | None:
        """What is added to the scaled logits of every pair, future keys included: (B|1, H|1, T, T), what an encoding makes of whole rows
        included; None for encodings that add nothing."""
        if self.encoding.logits_transform is not None:
            return self._logits(self.encoding) - self._logits(
                NoPE(self.attn.heads, self.x.size(-1), len(self.pos))
            )
        return (
            None
            if self.encoding.bias is None
            else attention.bias_matrix(
                attention.BiasInputs(self.encoding, *self.features), self.attn.heads, len(self.pos)
            )
        )

    def scores(self) -> Tensor:
        """What the softmax is taken of where keys are seen, q k^T * scale + bias: (B, H, T, T)."""
        return self._logits(self.encoding)

    def attention_mask(self) -> Tensor:
        """Return the attention mask (T, T) bool, True where a query attends to a key."""
        q, k, *_ = self.attn.qkv(self.x, self.pos, self.encoding)
        return attention.attention_mask(q, k, attention.mask_spec_of(self.encoding))

    def _logits(self, added):
        q, k, *_ = self.attn.qkv(self.x, self.pos, self.encoding)
        bias_inputs = attention.BiasInputs(added, *self.features)
        return attention.logits(q, k, bias_inputs, self.attn.scale)

    def left_out(self) -> float:
        """Which share of the tiles of keys that a query has to read the Triton kernels leave out."""
        if self.encoding.window_size is not None:  # where they leave out nothing
            return 0.0
        q, k, *_ = self.attn.qkv(self.x, self.pos, self.encoding)
        bias = bias_from_encoding(self.encoding, *self.features, self.attn.heads)
        return skipped_fraction(
            q, k, bias, self.attn.scale, self.encoding.causal, self.attn.skip_tolerance
        )

    def falls(self) -> Tensor | None:
        """S[j-1] - S[j] of every token, (B|1, H|1, T): how far it pushes everything before it; None where no S falls."""
        if self.encoding.bias is None:
            return None
        parts = (
            self.encoding.split(*self.features)
            if isinstance(self.encoding, Composition)
            else [(self.encoding, *self.features)]
        )
        falling = (
            k_features[0] for part, _, k_features in parts if isinstance(part, WeightedDecay)
        )
        return next((-s.diff(dim=-1, prepend=s[..., :1]) for s in falling), None)


@torch.no_grad()
def visit(model: GPT, tokens: Tensor, look: Callable[[Layer], object]) -> list:
    """What `look` finds in every layer, while the model reads tokens (B, T)."""
    found = []

    def note(attn, arguments):
        x, pos, encoding, *_ = arguments
        found.append(look(Layer(attn, encoding, x, pos)))

    hooks = [block.attn.register_forward_pre_hook(note) for block in model.h]
    model.hidden(tokens)
    for hook in hooks:
        hook.remove()
    return found


def layers(model: GPT, tokens: Tensor) -> list[Layer]:
    """Every layer of the model as it reads tokens (B, T)."""
    return visit(model, tokens, lambda layer: layer)


def left_out(model: GPT, tokens: Tensor) -> list[float]:
    """Which share of their work the Triton kernels leave out, by layer."""
    return visit(model, tokens, Layer.left_out)


def summary(model: GPT, tokens: Tensor) -> dict[str, list[float]]:
    """What the last of tokens (B, T) sees, by layer, mean over texts and heads; empty for encodings without a bias. What is made of
    whole rows does not count.

    slope: by how much the bias falls per token over the whole context, in nats. window: exp of the entropy of softmax(bias),
    the number of tokens that it would in effect attend to if all queries and keys were alike: T without any fall. left_out:
    see there; only where the Triton kernels are at work.
    """

    def look(layer):
        q_features, k_features = layer.features
        q_features = tuple(s[..., -1:] for s in q_features)
        bias_inputs = attention.BiasInputs(layer.encoding, q_features, k_features)
        row = attention.bias_matrix(bias_inputs, layer.attn.heads, 1, last)[..., 0, :]
        row = row[..., -(layer.encoding.window_size or row.size(-1)) :]
        weights = row.softmax(-1)
        entropy = -(weights * weights.clamp(min=1e-30).log()).sum(-1)
        seen = {
            "slope": ((row[..., -1] - row[..., 0]) / max(1, row.size(-1) - 1)).mean().item(),
            "window": entropy.exp().mean().item(),
        }
        return seen | ({"left_out": layer.left_out()} if model.path == "triton" else {})

    if model.posenc[0].bias is None:
        return {}
    last = tokens.size(1) - 1
    found = visit(model, tokens, look)
    return {name: [seen[name] for seen in found] for name in found[0]}
