"""Autoregressive text generation: token sampling with a KV cache."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runtime import devices

import torch
from torch import Tensor

from generation.kv_cache import Cache
from model import CACHE_CHUNK, GPT


@dataclass
class SamplingConfig:
    """Settings of token sampling."""

    max_new_tokens: int = 256
    """maximum number of new tokens; the end of a document stops earlier"""
    temperature: float = 0.8
    """divides the logits; 0: greedy decoding"""
    top_k: int | None = None
    """sample from the k most likely tokens only; null: from all"""
    top_p: float = 1.0
    """nucleus sampling: sample from the fewest most likely tokens that together reach this
    probability"""
    seed: int = 1
    """random seed of the sampling"""
    compile: bool = False
    """compile the decoding step; pays off on a GPU and for many tokens"""


@torch.no_grad()
def generate(
    model: GPT,
    prompts: list[list[int]],
    config: SamplingConfig,
    vocab_size: int,
    end_token: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[dict[int, int]]:
    """Yield the new tokens of each step, {row: token}, of the rows that are not finished.

    prompts: at least one token each. vocab_size: logits from here on are padding of the vocabulary.
    end_token: the token that finishes a row; it is not yielded.

    All rows advance together, one position per step, from the end of the shortest prompt. A row
    inside of its prompt takes the prompt's token instead of the sampled one. When an encoding's
    longest context is full, its second half is read again as the start of a new context.
    """
    generator = torch.Generator().manual_seed(config.seed)
    texts = [list(prompt) for prompt in prompts]
    final_lengths = [len(prompt) + config.max_new_tokens for prompt in prompts]
    running = set(range(len(texts))) if config.max_new_tokens else set()
    capacity = max(final_lengths)
    if model.max_context is not None:
        capacity = min(capacity, model.max_context)
    decode = torch.compile(model.decode, fullgraph=True) if config.compile else None

    length = min(map(len, texts))  # tokens known of every row
    start, cached = 0, 0  # the cache holds `cached` tokens of each row, from position `start` on
    cache = Cache(model, capacity)
    while running:
        if length - start > capacity:
            start, cached = length - max(1, capacity // 2), 0
            cache = Cache(model, capacity)
        unread = torch.tensor([text[start + cached : length] for text in texts], device=device)
        with devices.autocast(device, dtype):
            logits = _next_logits(model, unread, cache, decode)
        cached = length - start
        logits = logits[:, :vocab_size].float().cpu()

        new_tokens = {}
        for row, token in enumerate(sample_token(logits, config, generator).tolist()):
            if len(texts[row]) > length:
                continue  # inside of its prompt
            texts[row].append(token)  # also of finished rows: the batch keeps its shape
            if row in running and token != end_token:
                new_tokens[row] = token
            if token == end_token or length + 1 == final_lengths[row]:
                running.discard(row)
        length += 1
        yield new_tokens


def _next_logits(model: GPT, tokens: Tensor, cache: Cache, decode: Callable | None) -> Tensor:
    """Read tokens (B, T) int64 into the cache; return the logits of the next token, (B, V).

    decode: the compiled step of one token, used once the cache holds the prompt.
    """
    if decode is not None and cache.length > 0:
        if cache.position is None:
            cache.fix_shapes()
        return decode(tokens, cache)
    for part in tokens.split(CACHE_CHUNK, 1):
        last = model.hidden(part, cache)[:, -1]  # (B, C)
    return last @ model.wte.weight.T


def sample_token(logits: Tensor, config: SamplingConfig, generator: torch.Generator) -> Tensor:
    """Return one token for each row of logits (B, V) float32: (B,) int64.

    Temperature applies first, then top_k, then top_p to the probability that top_k leaves.
    """
    if config.temperature == 0:
        return logits.argmax(-1)
    shifted = logits - logits.amax(-1, keepdim=True)  # at most 0: a low temperature cannot overflow
    # Lower temperatures differ only in float32's range: 1 / 1e-40 is Inf.
    probabilities = (shifted / max(config.temperature, 1e-30)).softmax(-1)
    ordered, tokens = probabilities.sort(-1, descending=True)
    if config.top_k is not None:
        ordered[:, config.top_k :] = 0
    before = ordered.cumsum(-1) - ordered  # probability of all more likely tokens
    ordered[before >= config.top_p * ordered.sum(-1, keepdim=True)] = 0
    ordered[:, 0].clamp_(min=1e-30)  # top_p = 0 keeps the most likely token
    return tokens.gather(-1, torch.multinomial(ordered, 1, generator=generator))[:, 0]
