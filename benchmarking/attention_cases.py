"""Benchmark cases of attention alone, forward and backward.

training/attention_layer.py describes what a case computes.
"""

import functools

from runtime import devices

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

import attention
import pe_spec
from benchmarking.setting import BASELINES, BenchmarkCase, Setting
from errors import InputError
from evaluation import bias_statistics
from model import GPT, GPTConfig
from text_data import shards
from text_data.data_loader import Windows, evenly_spaced
from training.attention_layer import AttentionLayer, random_layer, relative_errors
from triton_attention.bias import bias_from_encoding
from triton_attention.tile_skipping import skipped_fraction


def untrained_layer(setting: Setting, pe: str) -> AttentionLayer:
    """Return an untrained encoding with random inputs."""
    config = GPTConfig(size=setting.model)
    shape = config.n_head, config.n_embd, config.block_size
    batch = setting.micro_batch, setting.context
    return random_layer(pe, *shape, batch, setting.dtype, setting.device, setting.causal)


def trained_layers(setting: Setting, pe: str) -> list[AttentionLayer]:
    """Return the inputs of every layer of the trained model in `setting.layers`.

    The model's own encodings are used unless `pe` is one of BASELINES.
    """
    layers = []
    for layer in setting.layers:
        heads, x, encoding = layer.attn.heads, layer.x.float().detach(), layer.encoding
        if pe in BASELINES:
            encodings = pe_spec.build(pe, heads, x.size(-1), setting.context, 1, setting.causal)
            encoding = encodings[0].to(setting.device)
        projection = layer.attn.c_attn(x).to(setting.dtype).detach().requires_grad_()
        layers.append(AttentionLayer(encoding, heads, x.requires_grad_(), projection))
    return layers


def read_validation_text(
    setting: Setting, model: GPT, checkpoint: dict
) -> list[bias_statistics.Layer]:
    """Return the layers of a trained model with their inputs.

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
        return bias_statistics.layers(model, tokens)


class AttentionBenchmark:
    """Computes attention of some layers by any path, and compares results with the dense path."""

    def __init__(self, setting: Setting, layers: list[AttentionLayer]):
        self.setting, self.layers = setting, layers
        self.positions = torch.arange(setting.context, device=setting.device)
        self.tokens = layers[0].x.size(0) * layers[0].x.size(1)

    def compute_without_encoding(self, backend: SDPBackend | None, layer: AttentionLayer) -> Tensor:
        """Compute attention by PyTorch's fused kernel alone: (B, T, C)."""
        mask_spec = attention.MaskSpec(self.setting.causal)
        q, k, v = layer.qkv()
        return attention.sdpa(q, k, v, layer.scale, mask_spec, backend).transpose(1, 2).flatten(2)

    def compute(self, path: str, layer: AttentionLayer) -> Tensor:
        """Compute attention with the layer's encoding by a path: (B, T, C)."""
        if path == "all tiles":
            return layer.attend("triton", skip_tolerance=0.0)
        return layer.attend(path)

    @functools.cached_property
    def exact(self) -> list[dict[str, Tensor | None]]:
        """Outputs and gradients of the dense path in float32, by layer."""
        return [layer.reference() for layer in self.layers]

    def case(self, compute, **options) -> BenchmarkCase:
        """Return the case that computes `compute(layer)` for every layer, and its gradients."""
        forwards = [
            self.setting.maybe_compile(functools.partial(compute, layer)) for layer in self.layers
        ]

        def run():
            for forward, layer in zip(forwards, self.layers, strict=True):
                layer.forward_backward(forward)

        def error():
            errors = [0.0]
            for forward, layer, exact in zip(forwards, self.layers, self.exact, strict=True):
                results = layer.forward_backward(forward)
                errors += relative_errors(results, exact).values()
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
            features = layer.encoding.features(layer.x, self.positions)
            q, k = layer.encoding.rotate(q, k, self.positions, *features)
            bias = bias_from_encoding(layer.encoding, *features, layer.heads)
            options = layer.scale, self.setting.causal, attention.SKIP_TOLERANCE
            fractions.append(skipped_fraction(q, k, bias, *options))
        return sum(fractions) / len(fractions)


def attention_cases(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    """Return the cases of an encoding by name, and with the first baseline those of plain SDPA."""
    layers = trained_layers(setting, pe) if setting.layers else [untrained_layer(setting, pe)]
    benchmark = AttentionBenchmark(setting, layers)
    encoding = layers[0].encoding
    cases = {}
    for suffix, path in setting.paths(pe, encoding).items():
        skips_tiles = path == "triton" and encoding.window_size is None
        cases[pe + suffix] = benchmark.case(
            functools.partial(benchmark.compute, path),
            path=path if path in attention.PATHS else None,
            left_out=benchmark.skipped_fraction if skips_tiles else None,
        )
    if pe == BASELINES[0]:
        for suffix, path in {"": "sdpa", **setting.backends()}.items():
            backend = attention.BACKENDS.get(path)
            case = benchmark.case(functools.partial(benchmark.compute_without_encoding, backend))
            case.error = None  # another function than the encoding's
            cases[f"sdpa{suffix}"] = case
    return cases
