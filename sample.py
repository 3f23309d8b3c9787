"""Continues a text with a trained model, token by token.

    python sample.py runs/quickstart/cable --prompt "def main(" --max_new_tokens 300
"""

import codecs
from dataclasses import dataclass, field
from typing import Literal

import torch

import cli
import data
import device as devices
from errors import InputError
from runs import load_model


@dataclass
class Config:
    """Settings of a continuation."""

    run: list[str] = field(default_factory=list)
    """folder of a run, or a checkpoint"""
    prompt: str = ""
    """text to continue; none: the start of a document"""
    max_new_tokens: int = 256
    """how many tokens to add at most; the end of a document ends it sooner"""
    temperature: float = 0.8
    """divides the logits; 0: always the likeliest token"""
    top_k: int | None = None
    """choose among the k likeliest tokens only"""
    seed: int = 1
    """of the choices"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("run", "folder of a run, or a checkpoint"))
    if len(config.run) != 1:
        raise InputError("name one run: python sample.py runs/NAME")
    for name, least in (("max_new_tokens", 0), ("temperature", 0), ("top_k", 1)):
        if (getattr(config, name) if getattr(config, name) is not None else least) < least:
            raise InputError(f"{name} is {getattr(config, name)}: it must be at least {least}")
    device, dtype = devices.choose(config.device, config.dtype)
    model, checkpoint = load_model(config.run[0], device)
    encoding = data.tokenizer(checkpoint["data"]["tokenizer"])

    prompt = [encoding.eot_token, *encoding.encode_ordinary(config.prompt)]
    print(config.prompt, end="", flush=True)
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")  # a character may take several tokens
    for token in generate(model, prompt, config, encoding.n_vocab, device, dtype):
        if token == encoding.eot_token:
            break
        print(decoder.decode(encoding.decode_single_token_bytes(token)), end="", flush=True)
    print()


@torch.no_grad()
def generate(model, prompt: list[int], config: Config, vocab_size: int, device, dtype):
    """Yields one new token at a time; the model sees all tokens so far, or as many as its encoding can take."""
    generator = torch.Generator().manual_seed(config.seed)
    tokens = torch.tensor([prompt], device=device)
    for _ in range(config.max_new_tokens):
        if model.max_context is not None:
            tokens = tokens[:, -model.max_context :]
        with devices.autocast(device, dtype):
            logits = model(tokens)[0, -1, :vocab_size].float().cpu()  # the padding of the vocabulary is no token
        if config.top_k is not None:
            logits[logits < logits.topk(min(config.top_k, vocab_size)).values[-1]] = -torch.inf
        if config.temperature == 0:
            token = logits.argmax()
        else:
            token = torch.multinomial((logits / config.temperature).softmax(0), 1, generator=generator)
        tokens = torch.cat([tokens, token.view(1, 1).to(device)], 1)
        yield int(token)


if __name__ == "__main__":
    cli.run(main)
