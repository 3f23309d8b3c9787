"""Generate text with a trained model.

    python sample.py runs/quickstart/cable --prompt "def main(" --max_new_tokens 2000
    python sample.py runs/quickstart/cable --interactive true            # asks for prompts

The text may be longer than the training length. The last line, on
standard error, is the throughput.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from runtime import cli, devices
from runtime.checkpoints import load_model

from errors import InputError
from generation.sampling import SamplingConfig, generate, prepare_generation
from text_data.tokenizer import run_tokenizer


@dataclass
class Config(SamplingConfig):
    """Settings of text generation."""

    run: list[str] = field(default_factory=list)
    """run folder or checkpoint file"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    prompt: str = ""
    """text to continue; empty: start of a document"""
    interactive: bool = False
    """ask for prompts until the end of input"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """dtype of matrix products; auto: bfloat16 if the hardware supports it"""

    def __post_init__(self):
        problems = []
        if len(self.run) != 1:
            problems.append("one run is needed: python sample.py runs/NAME")
        if self.prompt and self.interactive:
            problems.append("--prompt and --interactive exclude each other: use one")
        if problems:
            raise InputError(*problems)


def main(argv=None):
    positional = ("run", "run folder or checkpoint file")
    config = cli.parse(Config, argv, __doc__, positional=positional)
    device, dtype = devices.select_device(config.device, config.dtype)
    model, checkpoint = load_model(config.run[0], device)
    prepare_generation(model, dtype, config.compile)
    tokenizer = run_tokenizer(config.run[0], checkpoint)
    model.set_vocabulary(tokenizer.vocab_size)
    limit = model.max_context
    for prompt in typed_prompts() if config.interactive else [config.prompt]:
        start, count = time.perf_counter(), 0
        tokens = [tokenizer.eot, *tokenizer.encode(prompt)]
        decode = tokenizer.incremental_decoder(tokens[1:])
        if limit is not None and len(tokens) + config.max_new_tokens > limit:
            print(
                f"note: {model.config.pe} supports at most {limit} positions: beyond them, "
                f"each token follows from the latest {limit // 2} to {limit} tokens",
                file=sys.stderr,
            )
        print(prompt, end="", flush=True)
        for new_tokens in generate(model, [tokens], config, tokenizer.eot, device, dtype):
            for token in new_tokens.values():
                count += 1
                print(decode(token), end="", flush=True)
        print()
        seconds = time.perf_counter() - start
        rate = f"{count / seconds:,.0f} tokens/s"
        print(f"{count} tokens in {seconds:.1f} s, {rate}", file=sys.stderr)


def typed_prompts() -> Iterator[str]:
    """Ask for prompts until the end of input."""
    while True:
        try:
            prompt = input("prompt> ")
            prompt.encode()  # with LC_ALL=C, Python reads other bytes as surrogates
        except EOFError:
            print()
            return
        except UnicodeError as error:
            print()
            raise InputError(f"the prompt is not UTF-8 ({error}): type another") from None
        yield prompt


if __name__ == "__main__":
    cli.run(main)
