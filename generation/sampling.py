"""Autoregressive text generation: token sampling with a KV cache."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runtime import devices

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kv_cache import CACHE_CHUNK, Cache
from model import GPT
from setting import setting
from training.checkpoints import cast_blocks

GROWTH = 256  # least growth of the buffer of the texts, in tokens


@dataclass
class SamplingConfig:
    """Settings of token sampling."""

    max_new_tokens: int = setting(256, 0, 10**9)
    """maximum number of new tokens; the end of a document stops earlier"""
    temperature: float = setting(0.8, 0)
    """divides the logits; 0: greedy decoding"""
    top_k: int | None = setting(None, 1)
    """sample from the k most likely tokens only; null: from all"""
    top_p: float = setting(1.0, 0)
    """nucleus sampling: sample from the fewest most likely tokens that together reach this
    probability"""
    seed: int = setting(1, 0)
    """random seed of the sampling"""
    compile: bool = False
    """compile the decoding step; pays off on a GPU and for many tokens"""


@torch.inference_mode()
def generate(
    model: GPT,
    prompts: list[list[int]],
    config: SamplingConfig,
    end_token: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[dict[int, int]]:
    """Yield the new tokens of each step, {row: token}, of unfinished rows.

    model: `prepare_generation` makes it faster. prompts: of at least one token.
    end_token: finishes a row; it is not yielded.

    All rows advance together from the end of the shortest prompt; a row inside of its prompt takes
    the prompt's token. When an encoding's longest context is full, its second half is the start of
    a new one.
    """
    generator = torch.Generator(device).manual_seed(config.seed)
    prompt_lengths = [len(prompt) for prompt in prompts]
    final_lengths = [length + config.max_new_tokens for length in prompt_lengths]
    running = set(range(len(prompts))) if config.max_new_tokens else set()
    capacity = max(final_lengths)
    if model.max_context is not None:
        capacity = min(capacity, model.max_context)
    compiled = torch.compile(decode, fullgraph=True) if config.compile else None

    longest = max(prompt_lengths)
    padded = [prompt + [0] * (longest - len(prompt)) for prompt in prompts]
    texts = torch.tensor(padded, device=device)  # (B, tokens); grows as it is filled
    first_new = torch.tensor(prompt_lengths, device=device)
    length = min(prompt_lengths)  # tokens known of every row
    # the cache holds `cached` tokens of each row, from position `start` on
    start, cached = 0, 0
    cache = Cache(model, capacity)
    while running:
        if length - start > capacity:
            start, cached = length - max(1, capacity // 2), 0
            cache = Cache(model, capacity)
        with devices.autocast(device, dtype):
            logits = _logits(model, texts[:, start + cached : length], cache, compiled)
        cached = length - start
        sampled = sample_token(logits.float(), config, generator)
        if length < longest:
            sampled = torch.where(first_new > length, texts[:, length], sampled)
        elif length == texts.size(1):
            texts = F.pad(texts, (0, max(GROWTH, length)))
        texts[:, length] = sampled
        new_tokens = {}
        for row, token in enumerate(sampled.tolist()):
            if row not in running or length < prompt_lengths[row]:
                continue
            if token != end_token:
                new_tokens[row] = token
            if token == end_token or length + 1 == final_lengths[row]:
                running.discard(row)
        length += 1
        yield new_tokens


def decode(model: GPT, tokens: Tensor, cache: Cache) -> Tensor:
    """Return logits (B, V) after tokens (B, 1); the cache has fixed shapes.

    Only the device knows the position: the capacity is not checked.
    """
    assert cache.position is not None, "call Cache.fix_shapes first"
    logits = model.logits(tokens, cache)[:, 0]
    cache.position += 1
    return logits


def _logits(model: GPT, tokens: Tensor, cache: Cache, compiled: Callable | None) -> Tensor:
    """Read tokens (B, T) into the cache; return the next logits (B, V)."""
    if compiled is not None and cache.length > 0:
        if cache.position is None:
            cache.fix_shapes()
        return compiled(model, tokens.clone(), cache)  # a slice has another alignment in each step
    for part in tokens.split(CACHE_CHUNK, 1):
        last = model.hidden(part, cache)[:, -1]  # (B, C)
    return last @ model.output_embeddings.T


def sample_token(logits: Tensor, config: SamplingConfig, generator: torch.Generator) -> Tensor:
    """Return one token per row of logits (B, V) float32: (B,) int64.

    Temperature applies first, then top_k, then top_p to what top_k leaves.
    """
    if config.temperature == 0:
        return logits.argmax(-1)
    # at most 0: a low temperature cannot overflow
    shifted = logits - logits.amax(-1, keepdim=True)
    # Lower temperatures differ only in float32's range: 1 / 1e-40 is Inf.
    probabilities = (shifted / max(config.temperature, 1e-30)).softmax(-1)
    tokens = None  # those of the columns of `probabilities`, if not all in order
    if config.top_k is not None and config.top_k < logits.size(-1):
        probabilities, tokens = probabilities.topk(config.top_k)
    elif config.top_p < 1:
        probabilities, tokens = probabilities.sort(-1, descending=True)
    if config.top_p < 1:
        # probability of all more likely tokens
        before = probabilities.cumsum(-1) - probabilities
        too_far = before >= config.top_p * probabilities.sum(-1, keepdim=True)
        probabilities = probabilities.masked_fill(too_far, 0)
        probabilities[:, 0].clamp_(min=1e-30)  # top_p = 0 keeps the most likely token
    # Unlike torch.multinomial, this draws one random number per row.
    cumulative = probabilities.cumsum(-1)
    drawn = 1 - torch.rand(len(logits), 1, generator=generator, device=logits.device)
    index = torch.searchsorted(cumulative, drawn * cumulative[:, -1:])
    return (index if tokens is None else tokens.gather(-1, index))[:, 0]


def prepare_generation(model: GPT, dtype: torch.dtype) -> None:
    """Cast the weights of all matrix products for autocast to `dtype`.

    Call it when the model is on its device; the model can then only generate. On a CPU the product
    with one row reads all weights. In float32, those (out, in) with out >= in are stored by
    columns, which halves its time.
    """
    cast_blocks(model, dtype)
    tables = [model.wte, model.output_layer]
    for table in tables:
        table.to(dtype)
    if model.wte.weight.device.type != "cpu" or dtype != torch.float32:
        return
    for module in [*tables, *model.h.modules()]:
        if isinstance(module, nn.Linear | nn.Embedding):
            rows, columns = module.weight.shape
            if rows >= columns:
                module.weight.data = module.weight.data.T.contiguous().T
