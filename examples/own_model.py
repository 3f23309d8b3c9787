"""A transformer of your own with any positional encoding and a KV cache.

    python examples/own_model.py               # CABLE
    python examples/own_model.py rope+cable

Trains a byte-level model on this file for a few steps, then generates
text with a KV cache. docs/own_model.md explains the marked lines.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import attention  # noqa: E402
import pe_spec  # noqa: E402
from errors import InputError  # noqa: E402
from kv_cache import LayerCache  # noqa: E402

LAYERS, HEADS, WIDTH, CONTEXT = 2, 4, 64, 128
Past = LayerCache | None


class Block(nn.Module):
    """Pre-norm attention and MLP. The encoding is an argument, because layers may share one."""

    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, pos: Tensor, encoding, past: Past) -> Tensor:
        """Return the output (B, T, C) for x (B, T, C) at positions pos (B|1, T)."""
        normed = self.norm_1(x)
        qkv = self.qkv(normed).unflatten(-1, (3, HEADS, -1))  # (B, T, 3, H, D)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        y = attention.attend(encoding, normed, q, k, v, pos, cache=past)  # (2)
        x = x + self.out(y.transpose(1, 2).flatten(2))  # (B, H, T, D) -> (B, T, C)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Model(nn.Module):
    """A byte-level language model; `posenc` has one encoding per layer."""

    def __init__(self, pe: str):
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.posenc = pe_spec.build(pe, HEADS, WIDTH, CONTEXT, LAYERS)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor, cache: list[LayerCache] | None = None) -> Tensor:
        """Return logits (B, T, 256) of tokens (B, T), which follow those in the cache."""
        start = cache[0].length if cache else 0
        pos = torch.arange(start, start + tokens.size(1), device=tokens.device)[None]
        x = self.posenc[0].embed(self.tokens(tokens), pos)  # (1)
        for n, block in enumerate(self.blocks):
            x = block(x, pos, self.posenc[n], cache[n] if cache else None)
        return x @ self.tokens.weight.T


def train(model: Model, text: Tensor, steps: int) -> float:
    """Train on random windows of text (N,) int64; return the last loss in nats."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0)
    pe_spec.prepare(model.posenc, optimizer)  # (3)
    loss = torch.tensor(0.0)
    for _ in range(steps):
        starts = torch.randint(len(text) - CONTEXT, (8, 1))
        windows = text[starts + torch.arange(CONTEXT + 1)]  # (8, CONTEXT + 1)
        logits = model(windows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def generate(model: Model, tokens: Tensor, count: int) -> Tensor:
    """Return tokens (1, T), continued greedily by `count` tokens: (1, T + count)."""
    cache = [LayerCache(tokens.size(1) + count, window=None) for _ in model.blocks]
    logits = model(tokens, cache)
    for _ in range(count):
        new = logits[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, new], 1)
        logits = model(new, cache)
    return tokens


if __name__ == "__main__":
    torch.manual_seed(0)
    try:
        model = Model(*sys.argv[1:2] or ["cable"])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    text = torch.tensor([*Path(__file__).read_bytes()])
    print(f"loss after 100 steps: {train(model, text, 100):.2f}")
    model.eval()
    print(bytes(generate(model, text[None, :20], 60)[0].tolist()).decode(errors="replace"))
