"""Generate text with a trained model.

    python sample.py runs/quickstart/cable --prompt "def main(" --max_new_tokens 2000
    python sample.py runs/quickstart/cable --prompt_file prompts.txt --samples 3
    python sample.py runs/quickstart/cable --interactive true            # asks for prompts

The text may be longer than the training length. The last line, on
standard error, is the throughput.
"""

import dataclasses
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime import cli, devices

from errors import InputError
from generation.sampling import SamplingConfig, generate, prepare_generation
from setting import setting
from text_data.tokenizer import run_tokenizer
from training.checkpoints import load_model
from training.settings import plugin_setting


@dataclass
class Config(SamplingConfig):
    """Settings of text generation."""

    run: list[str] = setting([], positional=True)
    """run folder or checkpoint file"""
    plugin: dict[str, str] | None = plugin_setting()
    """Python file with encodings of your own; may be repeated"""
    prompt: str = ""
    """text to continue; empty: start of a document"""
    prompt_file: str | None = None
    """file with a prompt per line"""
    samples: int = setting(1, 1)
    """texts for each prompt; the n-th has the seed of the first plus n - 1"""
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
        if bool(self.prompt) + self.interactive + bool(self.prompt_file) > 1:
            problems.append("--prompt, --prompt_file and --interactive: use one of them")
        if problems:
            raise InputError(*problems)


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    prompts = read_prompts(config)
    device, dtype = devices.select_device(config.device, config.dtype)
    model, checkpoint = load_model(config.run[0], device)
    prepare_generation(model, dtype)
    tokenizer = run_tokenizer(config.run[0], checkpoint)
    model.set_vocabulary(tokenizer.vocab_size)
    limit = model.max_context
    numbers = range(config.samples)
    for prompt, number in ((prompt, number) for prompt in prompts for number in numbers):
        start, count = time.perf_counter(), 0
        sampling = dataclasses.replace(config, seed=config.seed + number)
        tokens = [tokenizer.eot, *tokenizer.encode(prompt)]
        decode = tokenizer.incremental_decoder(tokens[1:])
        if limit is not None and len(tokens) + config.max_new_tokens > limit:
            print(
                f"note: {model.config.pe} supports at most {limit} positions: beyond them, "
                f"each token follows from the latest {limit // 2} to {limit} tokens",
                file=sys.stderr,
            )
        print(prompt, end="", flush=True)
        for new_tokens in generate(model, [tokens], sampling, tokenizer.eot, device, dtype):
            for token in new_tokens.values():
                count += 1
                print(decode(token), end="", flush=True)
        print()
        seconds = time.perf_counter() - start
        rate = f"{count / seconds:,.0f} tokens/s"
        print(f"{count} tokens in {seconds:.1f} s, {rate}", file=sys.stderr)


def read_prompts(config: Config) -> Iterable[str]:
    """Return the prompts. Raises InputError for an unreadable file, or without a prompt."""
    if config.interactive:
        return typed_prompts()
    if not config.prompt_file:
        return [config.prompt]
    try:
        prompts = Path(config.prompt_file).read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{config.prompt_file} is not UTF-8: convert it") from None
    if not any(prompts):
        raise InputError(f"{config.prompt_file} has no prompts: write one per line")
    return [*filter(None, prompts)]


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
