"""Continues texts with a trained model, token by token, as far as you like.

    python sample.py runs/quickstart/cable --prompt "def main(" --max_new_tokens 2000
    python sample.py runs/quickstart/cable --prompt_file prompts.txt            # a batch: every line is a prompt
    python sample.py runs/quickstart/cable --interactive true                   # asks for one prompt after another

One text is printed as it grows, a batch when it is done; the last line tells tokens per second.
"""

import codecs
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

import cli
import corpus
import device as devices
from errors import InputError
from cache import Cache
from model import GPT
from runs import load_model

PREFILL = 1024  # tokens of a prompt read at a time


@dataclass
class Config:
    """Settings of a continuation."""

    run: list[str] = field(default_factory=list)
    """folder of a run, or a checkpoint"""
    prompt: str = ""
    """text to continue; none: the start of a document"""
    prompt_file: str | None = None
    """file of prompts to continue together, one a line, instead of --prompt"""
    interactive: bool = False
    """ask for prompts until the input ends"""
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
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it"""

    def __post_init__(self):
        problems = [f"{name} is {getattr(self, name)}: it must be at least {least}" for name, least in
                    (("max_new_tokens", 0), ("temperature", 0), ("top_k", 1), ("top_p", 0), ("seed", 0))
                    if getattr(self, name) is not None and getattr(self, name) < least]
        if len(self.run) != 1:
            problems.append("name one run: python sample.py runs/NAME")
        if sum((bool(self.prompt), self.prompt_file is not None, self.interactive)) > 1:
            problems.append("--prompt, --prompt_file and --interactive exclude each other: choose one")
        if problems:
            raise InputError(*problems)


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("run", "folder of a run, or a checkpoint"))
    prompts = [config.prompt]
    if config.prompt_file is not None:
        try:
            prompts = Path(config.prompt_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"--prompt_file {config.prompt_file} cannot be read ({error}): name a text file") from None
        if not prompts:
            raise InputError(f"--prompt_file {config.prompt_file} is empty: give it a prompt a line")
    device, dtype = devices.choose(config.device, config.dtype)
    model, checkpoint = load_model(config.run[0], device)
    encoding = corpus.tiktoken_encoding(checkpoint["data"]["tokenizer"])
    if not config.interactive:
        complete(model, encoding, prompts, config, device, dtype)
        return
    while True:
        try:
            prompt = input("prompt> ")
        except EOFError:
            print()
            return
        complete(model, encoding, [prompt], config, device, dtype)


def complete(model: GPT, encoding, prompts: list[str], config: Config, device, dtype) -> None:
    """Prints the prompts with their continuations."""
    begun, count = time.perf_counter(), 0
    tokens = [[encoding.eot_token, *encoding.encode_ordinary(prompt)] for prompt in prompts]
    decoders = [codecs.getincrementaldecoder("utf-8")(errors="replace") for _ in prompts]  # a character may take several tokens
    texts, stream = list(prompts), len(prompts) == 1
    if stream:
        print(prompts[0], end="", flush=True)
    for step in generate(model, tokens, config, encoding.n_vocab, encoding.eot_token, device, dtype):
        for row, token in step.items():
            text = decoders[row].decode(encoding.decode_single_token_bytes(token))
            texts[row] += text
            count += 1
            if stream:
                print(text, end="", flush=True)
    if stream:
        print()
    else:
        for number, text in enumerate(texts, 1):
            print(f"--- {number}\n{text}")
    seconds = time.perf_counter() - begun
    print(f"{count} tokens in {seconds:.1f} s, {count / seconds:,.0f} tokens/s", file=sys.stderr)


@torch.no_grad()
def generate(model: GPT, prompts: list[list[int]], config: Config, vocab_size: int, end: int, device, dtype):
    """Yields the new tokens of each step, {row: token}, of the prompts whose text has not ended yet.

    Prompts of different lengths run side by side: the shortest is read first, and the others go on reading theirs while it
    already writes. An encoding with a longest context forgets the earlier half of it whenever it is full.
    """
    generator = torch.Generator().manual_seed(config.seed)
    texts, goals = [list(prompt) for prompt in prompts], [len(prompt) + config.max_new_tokens for prompt in prompts]
    running = set(range(len(texts))) if config.max_new_tokens else set()
    capacity = min(max(goals), model.max_context or max(goals))
    decode = torch.compile(model.decode, fullgraph=True) if config.compile else None
    start, held, cache = 0, 0, Cache(model, capacity)  # the cache holds the `held` tokens from `start` on
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
                for part in unread.split(PREFILL, 1):
                    last = model.hidden(part, cache)[:, -1]  # (B, C)
                logits = last @ model.wte.weight.T
        held = length - start
        logits = logits[:, :vocab_size].float().cpu()  # the padding of the vocabulary is no token
        new = {}
        for row, token in enumerate(choose(logits, config, generator).tolist()):
            if len(texts[row]) == length:  # its prompt is read; ended rows go on unseen, the batch keeps its shape
                texts[row].append(token)
                if row in running and token != end:
                    new[row] = token
                if token == end or length + 1 == goals[row]:
                    running.discard(row)
        length += 1
        yield new


def choose(logits: torch.Tensor, config: Config, generator: torch.Generator) -> torch.Tensor:
    """One token for each row of logits (B, V) float32 -> (B,) int64, by temperature, top_k and top_p."""
    if config.temperature == 0:
        return logits.argmax(-1)
    probabilities = (logits / config.temperature).softmax(-1)
    ordered, tokens = probabilities.sort(-1, descending=True)
    if config.top_k is not None:
        ordered[:, config.top_k :] = 0
    ordered[ordered.cumsum(-1) - ordered >= config.top_p * ordered.sum(-1, keepdim=True)] = 0  # what lies before it is enough
    ordered[:, 0].clamp_(min=1e-30)  # top_p = 0 means the likeliest
    return tokens.gather(-1, torch.multinomial(ordered, 1, generator=generator))[:, 0]


if __name__ == "__main__":
    cli.run(main)
