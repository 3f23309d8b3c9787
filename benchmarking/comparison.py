"""Pairs of cases for `bench.py compare`: ours, and another implementation of the same task.

What is not available is skipped. Every pair is interleaved with a product of two square matrices,
whose speed is the measured peak of the device.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarking import baselines
from benchmarking.cases import generation_cases, generation_task, train_case
from benchmarking.setting import SEED, BenchmarkCase, Setting, interleave
from errors import InputError, one_line
from model import GPTConfig

PRODUCT_SIZE = {"cpu": 2048, "cuda": 8192}  # rows and columns of the matrices

LLAMA = ", llama block"  # after an encoding
Pair = tuple[BenchmarkCase, BenchmarkCase]  # ours, theirs
Network = Callable[[GPTConfig], baselines.OtherNetwork]


def train(network: Network, pe: str, setting: Setting) -> Pair:
    """Return one optimizer step of an encoding and of other authors' network."""
    ours = setting.build_model(pe, setting.context)
    torch.manual_seed(SEED)
    theirs = network(ours.config).to(setting.device)
    return train_case(setting, ours), train_case(setting, theirs)


def generate(pe: str, setting: Setting) -> Pair:
    """Return greedy generation of an encoding and of transformers, with its dynamic cache.

    Theirs starts from a cache of the prompt and the first new token, as ours.
    """
    cases = generation_cases(setting, pe)
    if not cases:
        raise InputError(f"{pe} is limited to {GPTConfig.block_size} tokens: lower --context")
    config = GPTConfig(size=setting.model, pe=pe, **setting.shape)
    prompt, new_tokens = generation_task(setting, config.vocab_size)
    torch.manual_seed(SEED)
    positions = max(setting.context + 1, GPTConfig.block_size)
    model = baselines.make_transformers_model(config, positions)
    model = model.to(setting.device, setting.dtype).eval()
    tokens = torch.tensor([prompt], device=setting.device)

    @torch.no_grad()
    def prepare():
        output = model(tokens, use_cache=True, logits_to_keep=1)
        known = torch.cat([tokens, output.logits[:, -1:].argmax(-1)], 1)
        options = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": 0}
        options |= {"attention_mask": torch.ones_like(known)}
        return lambda: model.generate(known, past_key_values=output.past_key_values, **options)

    return cases[pe], BenchmarkCase(prepare, new_tokens)


# What is compared, the encoding, with what, and the function that returns the pair.
STEP = "training step"
ROWS: list[tuple[str, str, str, Callable[[str, Setting], Pair]]] = [
    (STEP, "learnable", "nanoGPT", partial(train, baselines.nanogpt)),
    (STEP, "cable-v1", "CABLE authors", partial(train, baselines.authors_cable)),
    (STEP, f"rope{LLAMA}", "transformers", partial(train, baselines.llama)),
    ("generation", f"rope{LLAMA}", "transformers", generate),
    ("generation", "learnable", "transformers", generate),
    ("generation", "rope", "transformers", generate),
    ("generation", "cable", "transformers", generate),
]


def measure_rows(setting: Setting, repeats: int, skipped: dict[str, str]) -> Iterator[dict]:
    """Yield the row of each pair that is available.

    Others are printed and added to `skipped`: label of a row -> why.
    """
    size = PRODUCT_SIZE[setting.device.type]
    torch.manual_seed(SEED)
    factors = torch.randn(2, size, size, device=setting.device, dtype=setting.dtype)
    for task, name, against, build in ROWS:
        label = f"{task}, {name}, {against}"
        shape = {"block": "llama", "qk_norm": False} if LLAMA in name else {}
        with_block = dataclasses.replace(setting, shape=setting.shape | shape)
        try:
            ours, theirs = build(name.removesuffix(LLAMA), with_block)
        except (InputError, ImportError) as error:
            skipped[label] = one_line(error)
            print(f"{label}: skipped, {error}")
            continue
        if not theirs.is_supported(label):
            skipped[label] = "their code fails on this machine: see the output"
            continue
        prepare = {"ours": ours.prepare, "theirs": theirs.prepare}
        prepare["product"] = lambda: lambda: factors[0] @ factors[1]
        seconds = interleave(prepare, repeats, setting.device, label)
        row = {"task": task, "encoding": name, "against": against, "tokens": ours.tokens}
        row["flops"] = ours.flops * ours.tokens if ours.flops else None
        yield row | {"product_flops": 2 * size**3, "seconds": seconds}
