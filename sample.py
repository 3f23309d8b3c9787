"""Generate text with a trained model.

    python sample.py runs/quickstart/cable --prompt "def main(" --max_new_tokens 2000
    python sample.py runs/quickstart/cable --prompt_file prompts.txt     # a batch, one per line
    python sample.py runs/quickstart/cable --interactive true            # asks for prompts

The text may be longer than the training length. A single text is printed while
it is generated, a batch at its end. The last line, on standard error, is the
throughput.
"""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtime import cli, devices
from runtime.checkpoints import load_model

import torch

from errors import InputError
from generation.sampling import SamplingConfig, generate, prepare_generation
from model import GPT
from text_data.tokenizer import Tokenizer, run_tokenizer


@dataclass
class Config(SamplingConfig):
    """Settings of text generation."""

    run: list[str] = field(default_factory=list)
    """run folder or checkpoint file"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    prompt: str = ""
    """text to continue; empty: start of a document"""
    prompt_file: str | None = None
    """file of prompts, one per line, that are continued as one batch; instead of --prompt"""
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
        sources = [self.prompt != "", self.prompt_file is not None, self.interactive]
        if sources.count(True) > 1:
            problems.append("--prompt, --prompt_file and --interactive exclude each other: use one")
        if problems:
            raise InputError(*problems)


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("run", "run folder or checkpoint file"))
    prompts = [config.prompt]
    if config.prompt_file is not None:
        prompts = read_prompts(config.prompt_file)
    device, dtype = devices.select_device(config.device, config.dtype)
    model, checkpoint = load_model(config.run[0], device)
    prepare_generation(model, dtype, config.compile)
    tokenizer = run_tokenizer(config.run[0], checkpoint)
    model.set_vocabulary(tokenizer.vocab_size)
    if not config.interactive:
        complete(model, tokenizer, prompts, config, device, dtype)
        return
    while True:
        try:
            prompt = input("prompt> ")
            prompt.encode()  # with LC_ALL=C, Python reads other bytes as surrogates
        except EOFError:
            print()
            return
        except UnicodeError as error:
            print()
            raise InputError(f"the prompt is not text in UTF-8 ({error}): type another") from None
        complete(model, tokenizer, [prompt], config, device, dtype)


def read_prompts(path: str) -> list[str]:
    """Return the lines of a file. Raises InputError if there are none."""
    try:
        prompts = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"--prompt_file {path} cannot be read ({error}): use a text file in UTF-8"
        ) from None
    if not prompts:
        raise InputError(f"--prompt_file {path} is empty: write one prompt per line")
    return prompts


def complete(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: list[str],
    config: Config,
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Print continued prompts; a single one while it is generated."""
    start, count = time.perf_counter(), 0
    tokens = [[tokenizer.eot, *tokenizer.encode(prompt)] for prompt in prompts]
    decoders = [tokenizer.incremental_decoder() for _ in prompts]
    texts = list(prompts)
    limit = model.max_context
    if limit is not None and max(map(len, tokens)) + config.max_new_tokens > limit:
        print(
            f"note: {model.config.pe} supports at most {limit} positions: beyond them, each token "
            f"follows from the latest {limit // 2} to {limit} tokens",
            file=sys.stderr,
        )
    print_at_once = len(prompts) == 1
    if print_at_once:
        print(prompts[0], end="", flush=True)
    steps = generate(model, tokens, config, tokenizer.eot, device, dtype)
    for new_tokens in steps:
        for row, token in new_tokens.items():
            text = decoders[row](token)
            texts[row] += text
            count += 1
            if print_at_once:
                print(text, end="", flush=True)
    if print_at_once:
        print()
    else:
        for number, text in enumerate(texts, 1):
            print(f"--- {number}\n{text}")
    seconds = time.perf_counter() - start
    print(f"{count} tokens in {seconds:.1f} s, {count / seconds:,.0f} tokens/s", file=sys.stderr)


if __name__ == "__main__":
    cli.run(main)
