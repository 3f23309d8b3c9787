"""Benchmark cases of training, attention, generation and evaluation, timed by bench.py."""

import collections
import functools
from collections.abc import Callable

from runtime import devices

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

import attention
import pe_spec
from benchmarking import baselines
from benchmarking.profiles import profile_round
from benchmarking.setting import (
    BASELINES,
    SEED,
    BenchmarkCase,
    Setting,
    ending,
    tensor_bytes,
)
from generation import sampling
from kv_cache import Cache
from model import GPT, GPTConfig
from training.attention_layer import AttentionLayer, random_layer, relative_errors
from training.optimizer import make_grad_scaler, make_optimizer, optimizer_step

NEW_TOKENS = 64  # tokens to generate per round, or half of the context if that is less


def train_cases(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    """Return the cases of the optimizer steps of a round, by name."""
    shape = GPTConfig(size=setting.model, **setting.shape)
    if "@" in pe:
        paths = {"": "auto"}  # of each layer
    else:
        encoding, *_ = pe_spec.build(pe, shape.n_head, shape.n_embd, setting.context, layers=1)
        paths = setting.paths(encoding)
        timed = ("", " triton", *(setting.backends() if pe == BASELINES[0] else ()))
        paths = {suffix: path for suffix, path in paths.items() if suffix in timed}
    if " triton" in paths and paths[""] == "dense":
        del paths[""]  # takes a minute to compile; the attention benchmark compares it too
    return {
        pe + suffix: train_case(setting, setting.build_model(pe, setting.context, path))
        for suffix, path in paths.items()
    }


def train_case(setting: Setting, model: GPT | baselines.OtherNetwork) -> BenchmarkCase:
    """Return the case of the optimizer steps of a round; all micro-batches are the same one."""
    model.train()
    optimizer = make_optimizer(model)
    scaler = make_grad_scaler(setting.device, setting.dtype)
    if setting.compile:
        model.compile()
    batch = setting.make_batch(model.config.vocab_size)

    def train():
        for _ in range(setting.steps):
            train_step(model, optimizer, scaler, batch, setting.dtype, setting.micro_batches)

    def measure(seconds: float):
        moments = [x for state in optimizer.state.values() for x in state.values()]
        held = weights_of(model) + tensor_bytes(moments)
        memory = held + devices.measure_peak_memory(train, setting.device)
        return {"memory": memory} | profile_round(train, setting.device, seconds)

    flops = model.flops_per_token(setting.context)
    tokens = batch[0].numel() * setting.steps * setting.micro_batches
    return BenchmarkCase(lambda: train, tokens, measure, flops)


def train_step(
    model: GPT | baselines.OtherNetwork,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
    batch: tuple[Tensor, ...],
    dtype: torch.dtype,
    micro_batches: int = 1,
) -> None:
    """Take one optimizer step of train_gpt.py from a batch of `Setting.make_batch`, repeated."""
    for _ in range(micro_batches):
        with devices.autocast(batch[0].device, dtype):
            loss = model(*batch)
        scaler.scale(loss / micro_batches).backward()
    optimizer_step(model, optimizer, scaler)


def attention_cases(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    """Return the cases of an encoding by name, and with `rope` those of plain SDPA.

    training/attention_layer.py describes what a case computes.
    """
    config = GPTConfig(size=setting.model, pe=pe, n_layer=1)
    shape = setting.micro_batch, setting.context
    layer = random_layer(config, shape, setting.dtype, setting.device)
    exact = functools.cache(layer.reference)

    def make(forward: Callable[[], Tensor], path: str | None) -> BenchmarkCase:
        compiled = setting.maybe_compile(forward)

        def run():
            return layer.forward_backward(compiled)

        def measure(seconds: float):
            memory = devices.measure_peak_memory(run, setting.device)
            if path is None:  # another function than the encoding's
                return {"memory": memory}
            errors = [0.0, *relative_errors(run(), exact()).values()]
            # Unlike Python's max, PyTorch's keeps NaN.
            return {"memory": memory, "error": torch.tensor(errors).max().item()}

        return BenchmarkCase(lambda: run, shape[0] * shape[1], measure, path=path)

    cases = {
        pe + suffix: make(functools.partial(layer.attend, path), path)
        for suffix, path in setting.paths(layer.encoding).items()
    }
    if pe == BASELINES[0]:
        for suffix, name in {"": "", **setting.backends()}.items():
            backend = attention.BACKENDS.get(name)
            forward = functools.partial(attend_without_encoding, layer, backend)
            cases[f"sdpa{suffix}"] = make(forward, None)
    return cases


def attend_without_encoding(layer: AttentionLayer, backend: SDPBackend | None) -> Tensor:
    """Return attention (B, T, C) by PyTorch's fused kernel alone."""
    q, k, v = layer.attn.split_heads(layer.packed_qkv)
    y = attention.sdpa(q, k, v, layer.attn.scale, attention.MaskSpec(), backend)
    return y.transpose(1, 2).flatten(2)


def generation_task(setting: Setting, vocab_size: int) -> tuple[list[int], int]:
    """Return a random prompt, and how many tokens to generate up to the context."""
    new_tokens = min(NEW_TOKENS, setting.context // 2)
    torch.manual_seed(SEED)
    return torch.randint(vocab_size, (setting.context - new_tokens,)).tolist(), new_tokens


def generation_cases(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    """Return the case of greedy generation up to the context; {} beyond the encoding's limit."""
    model = setting.build_model(pe, GPTConfig.block_size).eval()
    if setting.context > (model.max_context or setting.context):
        return {}
    sampling.prepare_generation(model, setting.dtype)
    prompt, new_tokens = generation_task(setting, model.config.vocab_size)
    # The first new token comes from reading the prompt, which is not timed.
    options = sampling.SamplingConfig(new_tokens + 1, temperature=0, compile=setting.compile)

    def prepare():
        steps = sampling.generate(model, [prompt], options, -1, setting.device, setting.dtype)
        next(steps)
        return lambda: collections.deque(steps, maxlen=0)

    def measure(seconds: float):
        memory = cache_bytes(model, setting.context, setting.device, setting.dtype)
        return {"memory": memory, "weights": weights_of(model)}

    flops = model.flops_per_token(setting.context) / 3  # forward only
    return {pe: BenchmarkCase(prepare, new_tokens, measure, flops)}


@torch.no_grad()
def cache_bytes(model: GPT, tokens: int, device: torch.device, dtype: torch.dtype) -> int:
    """Return the size of the KV cache for one sequence of at most so many tokens, in bytes."""
    cache = Cache(model, tokens)
    with devices.autocast(device, dtype):
        model.hidden(torch.zeros(1, 1, dtype=torch.int64, device=device), cache)
    return tensor_bytes(buffer for layer in cache.layers for buffer in layer.buffers)


def weights_of(model: torch.nn.Module) -> int:
    """Return the size of a model's parameters and buffers in bytes."""
    return tensor_bytes([*model.parameters(), *model.buffers()])


def evaluation_cases(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    """Return the case of losses without gradients; {} beyond the encoding's limit."""
    model = setting.build_model(pe, GPTConfig.block_size).eval()
    if setting.context > (model.max_context or setting.context):
        return {}
    batch = setting.make_batch(model.config.vocab_size)
    losses = setting.maybe_compile(functools.partial(model.loss, reduction="none"))

    def forward():
        with devices.autocast(setting.device, setting.dtype):
            losses(*batch)

    def measure(seconds: float):
        peak = devices.measure_peak_memory(forward, setting.device)
        return {"memory": weights_of(model) + peak}

    flops = model.flops_per_token(setting.context) / 3
    return {pe: BenchmarkCase(lambda: forward, batch[0].numel(), measure, flops)}


# Benchmarks by their name on the command line: function of the setting and an encoding.
BENCHMARKS = {
    "train": train_cases,
    "attention": attention_cases,
    "generate": generation_cases,
    "eval": evaluation_cases,
}
# Endings of the names of cases that the hardware may not support.
OPTIONAL = (*map(ending, ("sdpa/flash", "sdpa/cudnn", "triton", "flex")),)


def build_cases(name: str, setting: Setting, encodings) -> dict[str, BenchmarkCase]:
    """Return the supported cases of encodings, by name."""
    cases = {}
    for pe in encodings:
        for key, case in BENCHMARKS[name](setting, pe).items():
            if not key.endswith(OPTIONAL) or case.is_supported(key):
                cases[key] = case
    return cases
