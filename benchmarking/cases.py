"""Benchmark cases of training, generation and evaluation. bench.py times them, interleaved."""

import collections

from runtime import devices

import torch
from torch import Tensor

import pe_spec
from benchmarking import baselines
from benchmarking.attention_cases import attention_cases
from benchmarking.setting import BASELINES, SEED, BenchmarkCase, Setting, tensor_bytes
from generation import sampling
from kv_cache import Cache
from model import GPT, GPTConfig, optimizer_step
from training.optimizer import make_grad_scaler, make_optimizer

NEW_TOKENS = 64  # tokens to generate per round, or half of the context if that is less


def train_cases(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    """Return the cases of the optimizer steps of a round, by name."""
    shape = GPTConfig(size=setting.model, **setting.shape)
    if "@" in pe:
        paths = {"": "auto"}  # of each layer
    else:
        where = shape.n_head, shape.n_embd, setting.context, 1
        paths = setting.paths(pe_spec.build(pe, *where)[0])
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

    def memory():
        moments = [x for state in optimizer.state.values() for x in state.values()]
        held = weights_of(model) + tensor_bytes(moments)
        return held + devices.measure_peak_memory(train, setting.device)

    flops = model.flops_per_token(setting.context)
    tokens = batch[0].numel() * setting.steps * setting.micro_batches
    return BenchmarkCase(lambda: train, tokens, memory, flops=flops, is_profiled=True)


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


def generation_cases(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    """Return the case of greedy generation up to the context; {} beyond the encoding's limit."""
    model = setting.build_model(pe, GPTConfig.block_size).eval()
    if setting.context > (model.max_context or setting.context):
        return {}
    sampling.prepare_generation(model, setting.dtype, setting.compile)
    new_tokens, vocab_size = min(NEW_TOKENS, setting.context // 2), model.config.vocab_size
    # The first new token comes from reading the prompt, which is not timed.
    options = sampling.SamplingConfig(
        max_new_tokens=new_tokens + 1, temperature=0, compile=setting.compile
    )
    torch.manual_seed(SEED)
    prompt = torch.randint(vocab_size, (setting.context - new_tokens,)).tolist()

    def prepare():
        steps = sampling.generate(model, [prompt], options, -1, setting.device, setting.dtype)
        next(steps)
        return lambda: collections.deque(steps, maxlen=0)

    def memory():
        return cache_bytes(model, setting.context, setting.device, setting.dtype)

    flops = model.flops_per_token(setting.context) / 3  # forward only
    cases = {pe: BenchmarkCase(prepare, new_tokens, memory, weights_of(model), flops)}
    if setting.against == "transformers":
        cases[f"{pe} transformers"] = transformers_case(setting, model.config, prompt, new_tokens)
    return cases


@torch.no_grad()
def cache_bytes(model: GPT, tokens: int, device: torch.device, dtype: torch.dtype) -> int:
    """Return the size of the KV cache for one sequence of at most so many tokens, in bytes."""
    cache = Cache(model, tokens)
    with devices.autocast(device, dtype):
        model.hidden(torch.zeros(1, 1, dtype=torch.int64, device=device), cache)
    return tensor_bytes(buffer for layer in cache.layers for buffer in layer.buffers)


def transformers_case(
    setting: Setting, config: GPTConfig, prompt: list[int], new_tokens: int
) -> BenchmarkCase:
    """Return the case of greedy generation by transformers, with its dynamic cache.

    It starts from a cache of the prompt and the first new token, as ours.
    """
    positions = max(setting.context + 1, GPTConfig.block_size)
    torch.manual_seed(SEED)
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

    @torch.no_grad()
    def memory():
        whole = torch.zeros(1, setting.context, dtype=torch.int64, device=setting.device)
        cache = model(whole, use_cache=True, logits_to_keep=1).past_key_values
        return tensor_bytes(x for layer in cache.layers for x in (layer.keys, layer.values))

    return BenchmarkCase(prepare, new_tokens, memory, weights_of(model))


def weights_of(model: torch.nn.Module) -> int:
    """Return the size of a model's parameters and buffers in bytes."""
    return tensor_bytes([*model.parameters(), *model.buffers()])


def evaluation_cases(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    """Return the case of losses without gradients; {} beyond the encoding's limit."""
    model = setting.build_model(pe, GPTConfig.block_size).eval()
    if setting.context > (model.max_context or setting.context):
        return {}
    batch = setting.make_batch(model.config.vocab_size)
    losses = setting.maybe_compile(model.losses)

    def forward():
        with devices.autocast(setting.device, setting.dtype):
            losses(*batch)

    def memory():
        return weights_of(model) + devices.measure_peak_memory(forward, setting.device)

    flops = model.flops_per_token(setting.context) / 3
    return {pe: BenchmarkCase(lambda: forward, batch[0].numel(), memory, flops=flops)}


# Benchmarks by their name on the command line: function of the setting and an encoding.
BENCHMARKS = {
    "train": train_cases,
    "attention": attention_cases,
    "generate": generation_cases,
    "eval": evaluation_cases,
}
