"""Benchmark cases of attention alone, forward and backward.

A case starts from a layer's projection and its normalized input, and ends with the outputs of all
heads. It includes everything that the encoding adds: rotation, features and bias.
"""

import functools
from dataclasses import dataclass
from importlib.util import find_spec

from runtime import devices

import torch
from torch import Tensor

import attention
import posenc
import triton_attention
from benchmarking import baselines
from benchmarking.setting import (
    BASELINES,
    OPTIONAL_SUFFIXES,
    SEED,
    BenchmarkCase,
    Setting,
)
from errors import InputError
from evaluation import bias_statistics
from model import GPT, GPTConfig
from text_data import shards
from text_data.data_loader import Windows, evenly_spaced
from triton_attention.bias import bias_from_encoding
from triton_attention.tile_skipping import skipped_fraction


@dataclass
class LayerInputs:
    """Inputs of one attention layer."""

    encoding: posenc.Encoding
    heads: int
    x: Tensor
    """(B, T, C) float32, the layer's normalized input"""
    projection: Tensor
    """(B, T, 3 C), queries, keys and values in one tensor"""

    @property
    def scale(self) -> float:
        return (self.x.size(-1) // self.heads) ** -0.5

    def qkv(self) -> tuple[Tensor, ...]:
        """Return queries, keys and values (B, H, T, D), views of the projection."""
        parts = self.projection.chunk(3, -1)
        return tuple(part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)

    def differentiable(self) -> list[Tensor]:
        """Return the tensors that gradients are computed for."""
        return [self.x, self.projection, *self.encoding.parameters()]

    def in_float32(self) -> "LayerInputs":
        """Return the same layer with a float32 projection."""
        projection = self.projection.detach().float().requires_grad_()
        return LayerInputs(self.encoding, self.heads, self.x, projection)


def random_layer(setting: Setting, pe: str) -> LayerInputs:
    """Return an untrained encoding with random inputs."""
    shape = GPTConfig(size=setting.model)
    torch.manual_seed(SEED)
    encodings = posenc.build(pe, shape.n_head, shape.n_embd, shape.block_size, 1, setting.causal)
    options = {"device": setting.device, "requires_grad": True}
    batch = setting.micro_batch, setting.context
    encoding = encodings[0].to(setting.device)
    x = torch.randn(*batch, shape.n_embd, **options)
    projection = torch.randn(*batch, 3 * shape.n_embd, dtype=setting.dtype, **options)
    return LayerInputs(encoding, shape.n_head, x, projection)


def trained_layers(setting: Setting, pe: str) -> list[LayerInputs]:
    """Return the inputs of every layer of the trained model in `setting.layers`.

    The model's own encodings are used unless `pe` is one of BASELINES.
    """
    layers = []
    for layer in setting.layers:
        heads, x = layer.attn.heads, layer.x.float().detach()
        encoding = layer.encoding
        if pe in BASELINES:
            encodings = posenc.build(pe, heads, x.size(-1), setting.context, 1, setting.causal)
            encoding = encodings[0].to(setting.device)
        projection = layer.attn.c_attn(x).to(setting.dtype).detach()
        layers.append(LayerInputs(encoding, heads, x.requires_grad_(), projection.requires_grad_()))
    return layers


def read_validation_text(
    setting: Setting, model: GPT, checkpoint: dict
) -> tuple[list[bias_statistics.Layer], dict]:
    """Return the layers of a trained model with their inputs, and statistics of their biases.

    The text is micro_batch windows of the run's validation split. Raises InputError if the run has
    no data, or too few windows.
    """
    folder = checkpoint["config"]["data"]
    if folder is None:
        raise InputError("--run: this run has no validation data: use one that was trained here")
    windows = Windows(shards.Shards(folder, "val"), setting.context)
    if len(windows) < setting.micro_batch:
        raise InputError(
            f"{folder} holds {len(windows)} windows of {setting.context:,} tokens: "
            "lower --micro_batch or --context"
        )
    tokens = windows.batch(evenly_spaced(len(windows), setting.micro_batch))[0].to(setting.device)
    with devices.autocast(setting.device, setting.dtype):
        statistics = bias_statistics.summary(model, tokens)
        if find_spec("triton") and triton_attention.supports(model.posenc[0]):
            statistics["left_out"] = bias_statistics.skipped_fractions(model, tokens)
        return bias_statistics.layers(model, tokens), statistics


class AttentionBenchmark:
    """Computes attention of some layers by any path, and compares results with the dense path."""

    def __init__(self, setting: Setting, layers: list[LayerInputs]):
        self.setting, self.layers = setting, layers
        x = layers[0].x
        self.output_grad = torch.randn_like(x, dtype=setting.dtype)
        self.positions = torch.arange(setting.context, device=setting.device)
        self.tokens = x.size(0) * x.size(1)

    @functools.cached_property
    def block_mask(self):
        """FlexAttention's block mask, or None for encoders."""
        if not self.setting.causal:
            return None
        return baselines.causal_block_mask(self.setting.context, self.setting.device)

    def compute_without_encoding(self, layer: LayerInputs) -> Tensor:
        """Compute attention by PyTorch's fused kernel alone: (B, H, T, D)."""
        q, k, v = layer.qkv()
        return attention.sdpa(q, k, v, layer.scale, attention.MaskSpec(self.setting.causal))

    def compute(self, path: str, layer: LayerInputs) -> Tensor:
        """Compute attention with the layer's encoding by a path: (B, H, T, D)."""
        encoding, scale = layer.encoding, layer.scale
        q, k, v = layer.qkv()
        rotated_q, rotated_k = encoding.rotate(q, k, self.positions)
        packed_qkv = None
        if rotated_q is q and rotated_k is k:  # as in model.py
            packed_qkv = layer.projection
        features = encoding.features(layer.x, self.positions)
        if path == "flex":
            inputs = rotated_q, rotated_k, v, encoding, *features, scale
            return baselines.flex_attention(*inputs, self.block_mask)
        if path == "theirs":
            return baselines.forgetting_attention(
                rotated_q, rotated_k, v, encoding, *features, scale
            )
        inputs = rotated_q, rotated_k, v, attention.BiasInputs(encoding, *features), scale
        if path == "all tiles":
            mask_spec = attention.make_mask_spec(encoding, skip_tolerance=0.0)
            return attention.attend(*inputs, "triton", mask_spec, packed_qkv)
        return attention.attend(*inputs, path, packed_qkv=packed_qkv)

    def forward_backward(self, forward, layer: LayerInputs) -> tuple[Tensor | None, ...]:
        """Return the output (B, T, C) of `forward()` and the gradients of the layer's inputs."""
        y = forward()
        grads = torch.autograd.grad(
            y, layer.differentiable(), self.output_grad.to(y.dtype), allow_unused=True
        )
        return y.detach(), *grads

    @functools.cached_property
    def exact(self) -> list[tuple[Tensor | None, ...]]:
        """Outputs and gradients of the dense path in float32, by layer."""
        dense = functools.partial(self.compute, "dense")
        results = []
        for layer in self.layers:
            layer = layer.in_float32()
            forward = functools.partial(merged_heads, dense, layer)
            results.append(self.forward_backward(forward, layer))
        return results

    def case(self, compute, **options) -> BenchmarkCase:
        """Return the case that computes `compute(layer)` for every layer, and its gradients."""
        forwards = [
            self.setting.maybe_compile(functools.partial(merged_heads, compute, layer))
            for layer in self.layers
        ]

        def run():
            for forward, layer in zip(forwards, self.layers, strict=True):
                self.forward_backward(forward, layer)

        def error():
            errors = [0.0]
            for forward, layer, exact in zip(forwards, self.layers, self.exact, strict=True):
                results = self.forward_backward(forward, layer)
                norms = [0 if x is None else x.norm().item() for x in exact]
                for result, reference, norm in zip(results, exact, norms, strict=True):
                    # The gradient of a bias that is constant per head is only rounding noise.
                    if norm > 1e-4 * max(norms):
                        assert result is not None and reference is not None
                        errors.append(relative_error(result, reference))
            return torch.tensor(errors).max().item()  # unlike Python's max, keeps NaN

        return BenchmarkCase(
            prepare=lambda: run,
            tokens=self.tokens,
            memory=lambda: devices.measure_peak_memory(run, self.setting.device),
            error=error,
            **options,
        )

    @torch.no_grad()
    def skipped_fraction(self) -> float:
        """Return the fraction of key tiles that the Triton kernels skip, the mean over layers."""
        fractions = []
        for layer in self.layers:
            q, k, _ = layer.qkv()
            q, k = layer.encoding.rotate(q, k, self.positions)
            features = layer.encoding.features(layer.x, self.positions)
            bias = bias_from_encoding(layer.encoding, *features, layer.heads)
            tolerance = attention.SKIP_TOLERANCE
            fractions.append(
                skipped_fraction(q, k, bias, layer.scale, self.setting.causal, tolerance)
            )
        return sum(fractions) / len(fractions)


def merged_heads(compute, layer: LayerInputs) -> Tensor:
    """Return the output as (B, T, C), as a block has it.

    This is part of the compiled function: outside of it, the gradient would be copied, which
    training does not do.
    """
    return compute(layer).transpose(1, 2).flatten(2)


def relative_error(x: Tensor, exact: Tensor) -> float:
    """Return the norm of the difference divided by the norm of `exact`."""
    return ((x.float() - exact).norm() / exact.norm()).item()


def attention_cases(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    """Return the cases of an encoding by name, and with the first baseline those of plain SDPA."""
    layers = trained_layers(setting, pe) if setting.layers else [random_layer(setting, pe)]
    benchmark = AttentionBenchmark(setting, layers)
    encoding = layers[0].encoding
    cases = {}
    for suffix, path in setting.paths(pe, encoding).items():
        skips_tiles = path == "triton" and encoding.window_size is None
        cases[pe + suffix] = benchmark.case(
            functools.partial(benchmark.compute, path),
            optional=suffix in OPTIONAL_SUFFIXES,
            left_out=benchmark.skipped_fraction if skips_tiles else None,
        )
    if pe == BASELINES[0]:
        plain = benchmark.case(benchmark.compute_without_encoding)
        plain.error = None  # another function than the encoding's
        cases["sdpa"] = plain
        for suffix, backend in setting.backends().items():
            case = benchmark.case(benchmark.compute_without_encoding)
            cases[f"sdpa{suffix}"] = case.with_backend(backend)
    return cases
