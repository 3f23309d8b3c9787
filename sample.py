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

from errors import InputError
from generation.sampling import Sampling, generate
from model import GPT
from runtime import cli, devices
from runtime.loading import load_model
from text_data import tokenization


@dataclass
class Config(Sampling):
    """Settings of a continuation."""

    run: list[str] = field(default_factory=list)
    """folder of a run, or a checkpoint"""
    prompt: str = ""
    """text to continue; empty: the start of a document"""
    prompt_file: str | None = None
    """file of prompts to continue together, one a line, instead of --prompt"""
    interactive: bool = False
    """ask for prompts until the input ends"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it"""

    def __post_init__(self):
        problems = cli.check_minimums(
            self, max_new_tokens=0, temperature=0, top_k=1, top_p=0, seed=0
        )
        if len(self.run) != 1:
            problems.append("name one run: python sample.py runs/NAME")
        if sum((bool(self.prompt), self.prompt_file is not None, self.interactive)) > 1:
            problems.append(
                "--prompt, --prompt_file and --interactive exclude each other: choose one"
            )
        if problems:
            raise InputError(*problems)


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("run", "folder of a run, or a checkpoint")
    )
    prompts = [config.prompt]
    if config.prompt_file is not None:
        try:
            prompts = Path(config.prompt_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"--prompt_file {config.prompt_file} cannot be read ({error}): name a text file"
            ) from None
        if not prompts:
            raise InputError(
                f"--prompt_file {config.prompt_file} is empty: give it a prompt a line"
            )
    device, dtype = devices.select_device(config.device, config.dtype)
    model, checkpoint = load_model(config.run[0], device, dtype)
    encoding = tokenization.tiktoken_encoding(checkpoint["data"]["tokenizer"])
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
    decoders = [
        codecs.getincrementaldecoder("utf-8")(errors="replace") for _ in prompts
    ]  # a character may take several tokens
    texts, stream = list(prompts), len(prompts) == 1
    if stream:
        print(prompts[0], end="", flush=True)
    for step in generate(
        model, tokens, config, encoding.n_vocab, encoding.eot_token, device, dtype
    ):
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


if __name__ == "__main__":
    cli.run(main)
