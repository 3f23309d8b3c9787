"""What takes turns in a benchmark? For each encoding, what is to be timed, made ready outside the clock: of a training step, of attention
alone, of generation, of an evaluation. `bench.py` lets them take turns, and tells what each means.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

import attention
import posenc
import triton_attention
from benchmarking import baselines
from errors import InputError
from evaluation import bias_statistics
from generation import sampling
from generation.kv_cache import Cache
from model import GPT, GPTConfig
from runtime import devices
from runtime.optimizer import make_grad_scaler, make_optimizer, optimizer_step
from text_data import shards
from text_data.data_loader import Windows, evenly_spaced, masked_count
from triton_attention.bias import bias_from_encoding
from triton_attention.tile_skipping import skipped_fraction

BASELINES = ("rope", "nope")  # measured whatever else is
RIVALS = (" triton", " all tiles", " flex", " theirs")
DENSE_CONTEXT = 8192  # tokens, up to which the dense path is compared: compiled, each of its chunks is compiled by itself
NEW_TOKENS = 64  # of a turn of `generate`, or half of the context where that is less
MASK_RATE = 0.15  # of an encoder's tokens
SEED = 1


@dataclass
class Setting:
    """What all turns of a benchmark have in common."""

    model: str
    micro_batch: int
    context: int
    device: torch.device
    dtype: torch.dtype
    compile: bool
    causal: bool = True
    """decoders; False: encoders, which see both ways"""
    layers: list[bias_statistics.Layer] | None = None
    """attention: of a trained model, as they read a text"""

    def network(self, pe: str, block_size: int, path: str = "auto") -> GPT:
        torch.manual_seed(SEED)
        return GPT(
            GPTConfig(
                size=self.model, pe=pe, block_size=block_size, attention=path, causal=self.causal
            )
        ).to(self.device)

    def paths(self, pe: str, encoding: posenc.Encoding) -> dict[str, str]:
        """What is compared, by what is added to the encoding's name: nothing, " dense", " triton", " all tiles" (the same, but nothing
        left out), " flex", " theirs"."""
        found = {"": attention.resolve_path("auto", encoding)}
        if (
            found[""] != "dense"
            and encoding.bias is not None
            and (self.context <= DENSE_CONTEXT or not self.compile)
        ):
            found[" dense"] = "dense"
        if self.device.type == "cuda" and triton_attention.supports(encoding):
            found[" triton"] = "triton"
            if getattr(encoding, "triton_kind", None) == "decay":
                found[" all tiles"] = "all tiles"
        if (
            self.device.type == "cuda"
            and encoding.bias is not None
            and encoding.logits_transform is None
            and encoding.window_size is None
        ):
            found[" flex"] = "flex"
        if (
            self.device.type == "cuda"
            and pe == "fox"
            and self.causal
            and baselines.installed("forgetting_transformer")
        ):
            found[" theirs"] = "theirs"
        return found

    def backends(self) -> dict[str, SDPBackend]:
        """Those of PyTorch's fused kernel that it is pinned to, beside the one that PyTorch takes by itself."""
        return (
            {" flash": SDPBackend.FLASH_ATTENTION, " cudnn": SDPBackend.CUDNN_ATTENTION}
            if self.device.type == "cuda"
            else {}
        )

    def batch(self, vocab_size: int) -> tuple[Tensor, ...]:
        """Random inputs and targets, (B, T) each; of an encoder inputs (B, T), targets and their masked_positions, (B, masked tokens) each."""
        torch.manual_seed(SEED)
        tokens = torch.randint(vocab_size, (self.micro_batch, self.context + 1), device=self.device)
        if self.causal:
            return tokens[:, :-1], tokens[:, 1:]
        masked_positions = (
            torch.rand(tokens[:, 1:].shape, device=self.device)
            .argsort()[:, : masked_count(self.context, MASK_RATE)]
            .sort()
            .values
        )
        return tokens[:, :-1], tokens.gather(1, masked_positions), masked_positions

    def compiled(self, function: Callable) -> Callable:
        return torch.compile(function) if self.compile else function


@dataclass
class BenchmarkCase:
    """One of those that take turns."""

    ready: Callable[[], Callable[[], object]]
    """makes a turn ready, outside the clock, and returns what is timed"""
    tokens: int
    """of a turn"""
    memory: Callable[[], int]
    """bytes"""
    flops: float | None = None
    """of a token, where they count"""
    error: Callable[[], float] | None = None
    """attention: of its outputs and gradients, relative to those of the dense path in float32"""
    left_out: Callable[[], float] | None = None
    """attention: the share of the tiles of keys, by the Triton kernels"""
    rival: bool = False
    """not what the programs take by themselves: it may be impossible on this hardware, and the others are measured all the same"""

    def pinned(self, backend: SDPBackend) -> "BenchmarkCase":
        """The same, with this backend of the fused kernel and no other."""

        def under(function):
            def timed():
                attention.BACKEND = backend
                try:
                    return function()
                finally:
                    attention.BACKEND = None

            return timed

        return dataclasses.replace(
            self,
            ready=lambda: under(self.ready()),
            memory=under(self.memory),
            error=None,
            rival=True,
        )


def train(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    shape = GPTConfig(size=setting.model)
    encoding = posenc.build(pe, shape.n_head, shape.n_embd, setting.context, 1, setting.causal)[0]
    paths = {
        added: path
        for added, path in setting.paths(pe, encoding).items()
        if added in ("", " triton")
    }
    if " triton" in paths and paths[""] == "dense":
        del paths[""]  # a minute of compilation for what `attention` compares, too
    found = {
        pe + added: dataclasses.replace(
            train_turn(setting, setting.network(pe, setting.context, path)), rival=added in RIVALS
        )
        for added, path in paths.items()
    }
    if pe == BASELINES[0]:
        plain = functools.partial(setting.network, pe, setting.context, "sdpa")
        found |= {
            pe + added: train_turn(setting, plain()).pinned(backend)
            for added, backend in setting.backends().items()
        }
    if pe == "cable-v1" and setting.causal and baselines.installed("Cable"):
        theirs = baselines.Cable(GPTConfig(size=setting.model, block_size=setting.context)).to(
            setting.device
        )
        found[f"{pe} theirs"] = dataclasses.replace(train_turn(setting, theirs), rival=True)
    return found


def train_turn(setting: Setting, model: GPT | baselines.Cable) -> BenchmarkCase:
    model.train()
    optimizer = make_optimizer(model)
    scaler = make_grad_scaler(setting.device, setting.dtype)
    if setting.compile:
        model.compile()
    inputs, targets, *masked_positions = setting.batch(model.config.vocab_size)

    def step():
        train_step(model, optimizer, scaler, (inputs, targets, *masked_positions), setting.dtype)

    def memory():
        moments = [x for state in optimizer.state.values() for x in state.values()]
        return _size([*model.parameters(), *model.buffers(), *moments]) + devices.memory_of(
            step, setting.device
        )

    return BenchmarkCase(
        lambda: step,
        inputs.numel(),
        memory,
        model.flops_per_token(setting.context, targets.size(1)),
    )


def train_step(
    model: GPT | baselines.Cable, optimizer, scaler, batch: tuple[Tensor, ...], dtype: torch.dtype
) -> None:
    """Take one optimizer step of train_gpt.py from one micro-batch, made by `Setting.batch`."""
    with devices.autocast(batch[0].device, dtype):
        loss = model(*batch)
    scaler.scale(loss).backward()
    optimizer_step(model, optimizer, scaler)


def attend(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    layers = (
        trained_layers(setting, pe) if setting.layers else [random_layer(setting, pe)]
    )  # (encoding, heads, x, projection) each
    encoding, _, x, _ = layers[0]
    grad = torch.randn_like(x, dtype=setting.dtype)
    pos = torch.arange(setting.context, device=setting.device)

    def plain(encoding, heads, x, projection):
        q, k, v = _qkv(projection, heads)
        return attention._sdpa(q, k, v, q.size(-1) ** -0.5, attention.MaskSpec(setting.causal))

    def encoded(path, encoding, heads, x, projection):
        q, k, v = _qkv(projection, heads)
        rotated = encoding.rotate(q, k, pos)
        packed_qkv = projection if rotated[0] is q and rotated[1] is k else None  # as in model.py
        features, scale = encoding.features(x, pos), q.size(-1) ** -0.5
        if path == "flex":
            return baselines.flex(*rotated, v, encoding, *features, scale, blocks)
        if path == "theirs":
            return baselines.forgetting(*rotated, v, encoding, *features, scale)
        inputs = *rotated, v, attention.BiasInputs(encoding, *features), scale
        if path == "all tiles":
            mask_spec = attention.mask_spec_of(encoding, skip_tolerance=0.0)
            return attention.attend(*inputs, "triton", mask_spec, packed_qkv)
        return attention.attend(*inputs, path, packed_qkv=packed_qkv)

    @torch.no_grad()
    def left_out():
        """Mean over layers."""
        found = []
        for encoding, heads, x, projection in layers:
            q, k, _ = _qkv(projection, heads)
            q, k = encoding.rotate(q, k, pos)
            bias = bias_from_encoding(encoding, *encoding.features(x, pos), heads)
            found.append(
                skipped_fraction(
                    q, k, bias, q.size(-1) ** -0.5, setting.causal, attention.SKIP_TOLERANCE
                )
            )
        return sum(found) / len(found)

    def results(forward, learned):
        y = forward()
        return y.detach(), *torch.autograd.grad(y, learned, grad.to(y.dtype), allow_unused=True)

    def outputs(compute, layer):
        """As a block has them; not outside of what is compiled, or their gradient would be copied as in no training."""
        return compute(*layer).transpose(1, 2).flatten(2)

    def turn(compute):
        forwards = [
            (
                setting.compiled(functools.partial(outputs, compute, layer)),
                [*layer[2:], *layer[0].parameters()],
            )
            for layer in layers
        ]

        def both():
            for forward in forwards:
                results(*forward)

        def error():
            errors = [0.0]
            for forward, rights in zip(forwards, exact()):
                norms = [0 if right is None else right.norm().item() for right in rights]
                # The gradient of a constant of a head is nothing but rounding.
                errors += [
                    relative_error(ours, right)
                    for ours, right, norm in zip(results(*forward), rights, norms)
                    if norm > 1e-4 * max(norms)
                ]
            return torch.tensor(errors).max().item()  # Python's max would pass over NaN

        return BenchmarkCase(
            lambda: both,
            x.size(0) * x.size(1),
            lambda: devices.memory_of(both, setting.device),
            error=None if compute is plain else error,
        )

    @functools.cache
    def exact():
        """Output and gradients of the dense path in float32, by layer."""
        wide = [(*layer[:3], layer[3].detach().float().requires_grad_()) for layer in layers]
        dense = functools.partial(encoded, "dense")
        return [
            results(functools.partial(outputs, dense, layer), [*layer[2:], *layer[0].parameters()])
            for layer in wide
        ]

    paths = setting.paths(pe, encoding)
    blocks = (
        baselines.causal_blocks(setting.context, setting.device)
        if setting.causal and " flex" in paths
        else None
    )
    turns = {
        pe + added: dataclasses.replace(
            turn(functools.partial(encoded, path)),
            rival=added in RIVALS,
            left_out=left_out if path == "triton" and encoding.window_size is None else None,
        )
        for added, path in paths.items()
    }
    if pe == BASELINES[0]:
        turns |= {
            "sdpa": turn(plain),
            **{
                "sdpa" + added: turn(plain).pinned(backend)
                for added, backend in setting.backends().items()
            },
        }
    return turns


def relative_error(x: Tensor, exact: Tensor) -> float:
    return ((x.float() - exact).norm() / exact.norm()).item()


def _qkv(projection, heads):
    return (
        y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in projection.chunk(3, -1)
    )  # (B, H, T, D) each


def random_layer(setting: Setting, pe: str) -> tuple[posenc.Encoding, int, Tensor, Tensor]:
    """An untrained encoding, the number of heads, a normalised input (B, T, C) and its projection (B, T, 3 C)."""
    shape = GPTConfig(size=setting.model)
    torch.manual_seed(SEED)
    encoding = posenc.build(pe, shape.n_head, shape.n_embd, shape.block_size, 1, setting.causal)[
        0
    ].to(setting.device)
    x = torch.randn(
        setting.micro_batch,
        setting.context,
        shape.n_embd,
        device=setting.device,
        requires_grad=True,
    )
    projection = torch.randn(
        *x.shape[:2],
        3 * shape.n_embd,
        device=setting.device,
        dtype=setting.dtype,
        requires_grad=True,
    )
    return encoding, shape.n_head, x, projection


def trained_layers(setting: Setting, pe: str) -> list[tuple[posenc.Encoding, int, Tensor, Tensor]]:
    """The same of each layer of the trained model; its own encodings where `pe` is its encoding, else fresh ones."""
    found = []
    for layer in setting.layers:
        heads, x = layer.attn.heads, layer.x.float().detach()
        encoding = layer.encoding
        if pe in BASELINES:
            encoding = posenc.build(pe, heads, x.size(-1), setting.context, 1, setting.causal)[
                0
            ].to(setting.device)
        projection = layer.attn.c_attn(x).to(setting.dtype).detach()
        found.append((encoding, heads, x.requires_grad_(), projection.requires_grad_()))
    return found


def reads(
    setting: Setting, model: GPT, checkpoint: dict
) -> tuple[list[bias_statistics.Layer], dict]:
    """The model's layers as they read micro_batch windows of its validation text, and what its biases do there."""
    if checkpoint["config"]["data"] is None:
        raise InputError(
            "--run: this one was not trained here, so that it has no text to read: name one that was"
        )
    windows = Windows(shards.Shards(checkpoint["config"]["data"], "val"), setting.context)
    if len(windows) < setting.micro_batch:
        raise InputError(
            f"{windows.shards.folder} holds {len(windows)} windows of {setting.context:,} tokens: "
            "lower --micro_batch or --context"
        )
    tokens = windows.batch(evenly_spaced(len(windows), setting.micro_batch))[0].to(setting.device)
    with devices.autocast(setting.device, setting.dtype):
        found = bias_statistics.summary(model, tokens)
        if find_spec("triton") and triton_attention.supports(model.posenc[0]):
            found["left_out"] = bias_statistics.left_out(model, tokens)
        return bias_statistics.layers(model, tokens), found


def possible(key: str, turn: BenchmarkCase) -> bool:
    """Whether a rival runs at all: where it cannot, which its compiler tells by errors of many kinds, the others go on."""
    try:
        turn.ready()()
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what goes wrong on a GPU shows then
        return True
    except Exception as error:
        print(f"{key}: not possible, {' '.join(str(error).split())[:200]}")
        return False


def generate(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    model = setting.network(pe, GPTConfig.block_size).eval()
    if setting.context > (model.max_context or setting.context):
        return {}
    new, vocab_size = min(NEW_TOKENS, setting.context // 2), model.config.vocab_size
    settings = sampling.Sampling(
        max_new_tokens=new + 1, temperature=0, compile=setting.compile
    )  # the prompt gives the first
    torch.manual_seed(SEED)
    prompt = torch.randint(vocab_size, (setting.context - new,)).tolist()

    def ready():
        steps = sampling.generate(
            model, [prompt], settings, vocab_size, -1, setting.device, setting.dtype
        )
        next(steps)
        return lambda: collections.deque(steps, maxlen=0)

    @torch.no_grad()
    def memory():
        cache = Cache(model, setting.context)
        with devices.autocast(setting.device, setting.dtype):
            model.hidden(torch.zeros(1, 1, dtype=torch.int64, device=setting.device), cache)
        return _size(buffer for layer in cache.layers for buffer in layer.buffers)

    return {pe: BenchmarkCase(ready, new, memory)}


def evaluate(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    model = setting.network(pe, GPTConfig.block_size).eval()
    if setting.context > (model.max_context or setting.context):
        return {}
    batch = setting.batch(model.config.vocab_size)
    losses = setting.compiled(model.losses)

    def forward():
        with devices.autocast(setting.device, setting.dtype):
            losses(*batch)

    return {
        pe: BenchmarkCase(
            lambda: forward,
            batch[0].numel(),
            lambda: (
                _size([*model.parameters(), *model.buffers()])
                + devices.memory_of(forward, setting.device)
            ),
        )
    }


def _size(tensors) -> int:
    return sum(x.nbytes for x in tensors)


# Name on the command line -> its function of setting and encoding: those that take turns, by name.
BENCHMARKS = {"train": train, "attention": attend, "generate": generate, "eval": evaluate}
