"""How does a model continue tokens? One at a time, each drawn from what the model predicts, its past kept in a cache."""

from dataclasses import dataclass

import torch

from generation.kv_cache import Cache
from model import GPT, READ
from runtime import devices


@dataclass
class Sampling:
    """How tokens are drawn, and how many."""

    max_new_tokens: int = 256
    """how many tokens to add at most; the end of a document ends it sooner"""
    temperature: float = 0.8
    """divides the logits; 0: always the likeliest token"""
    top_k: int | None = None
    """choose among the k likeliest tokens only"""
    top_p: float = 1.0
    """choose among the likeliest tokens that make up this share of the probability only"""
    seed: int = 1
    """of the choices"""
    compile: bool = False
    """compile the step of one token, which pays on a GPU and for many tokens"""


@torch.no_grad()
def generate(
    model: GPT, prompts: list[list[int]], config: Sampling, vocab_size: int, end: int, device, dtype
):
    """Yields the new tokens of each step, {row: token}, of the prompts whose text has not ended yet.

    Prompts of different lengths run side by side: the shortest is read first, and the others go on reading theirs while it
    already writes. An encoding with a longest context forgets the earlier half of it whenever it is full.
    """
    generator = torch.Generator().manual_seed(config.seed)
    texts, goals = (
        [list(prompt) for prompt in prompts],
        [len(prompt) + config.max_new_tokens for prompt in prompts],
    )
    running = set(range(len(texts))) if config.max_new_tokens else set()
    capacity = min(max(goals), model.max_context or max(goals))
    decode = torch.compile(model.decode, fullgraph=True) if config.compile else None
    start, held, cache = (
        0,
        0,
        Cache(model, capacity),
    )  # the cache holds the `held` tokens from `start` on
    length = min(map(len, texts))
    while running:
        if length - start > capacity:
            start, held, cache = length - max(1, capacity // 2), 0, Cache(model, capacity)
        unread = torch.tensor([text[start + held : length] for text in texts], device=device)
        with devices.autocast(device, dtype):
            if decode and held:
                if cache.position is None:
                    cache.fix_shapes()
                logits = decode(unread, cache)
            else:
                for part in unread.split(READ, 1):
                    last = model.hidden(part, cache)[:, -1]  # (B, C)
                logits = last @ model.wte.weight.T
        held = length - start
        logits = logits[:, :vocab_size].float().cpu()  # the padding of the vocabulary is no token
        new = {}
        for row, token in enumerate(sample_token(logits, config, generator).tolist()):
            if (
                len(texts[row]) == length
            ):  # its prompt is read; ended rows go on unseen, the batch keeps its shape
                texts[row].append(token)
                if row in running and token != end:
                    new[row] = token
                if token == end or length + 1 == goals[row]:
                    running.discard(row)
        length += 1
        yield new


def sample_token(
    logits: torch.Tensor, config: Sampling, generator: torch.Generator
) -> torch.Tensor:
    """One token for each row of logits (B, V) float32 -> (B,) int64, by temperature, top_k and top_p."""
    if config.temperature == 0:
        return logits.argmax(-1)
    probabilities = ((logits - logits.amax(-1, keepdim=True)) / config.temperature).softmax(
        -1
    )  # no quotient becomes infinite
    ordered, tokens = probabilities.sort(-1, descending=True)
    if config.top_k is not None:
        ordered[:, config.top_k :] = 0
    ordered[ordered.cumsum(-1) - ordered >= config.top_p * ordered.sum(-1, keepdim=True)] = (
        0  # what lies before it is enough
    )
    ordered[:, 0].clamp_(min=1e-30)  # top_p = 0 means the likeliest
    return tokens.gather(-1, torch.multinomial(ordered, 1, generator=generator))[:, 0]
