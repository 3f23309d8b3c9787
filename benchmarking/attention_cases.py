"""Benchmark cases of attention alone, forward and backward.

training/attention_layer.py describes what a case computes.
"""

import copy
import functools
from collections.abc import Callable

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
from training.attention_layer import AttentionLayer, make_layer, random_layer, relative_errors
from triton_attention.bias import bias_from_encoding
from triton_attention.tile_skipping import skipped_fraction


def untrained_layer(setting: Setting, pe: str) -> AttentionLayer:
    """Return an untrained encoding with random inputs."""
    config = GPTConfig(size=setting.model, pe=pe, n_layer=1)
    batch = setting.micro_batch, setting.context
    return random_layer(config, batch, setting.dtype, setting.device)


def trained_layers(setting: Setting, pe: str) -> list[AttentionLayer]:
    """Return the inputs of every layer of the trained model in `setting.layers`.

    The model's own encodings are used unless `pe` is one of BASELINES.
    """
    layers = []
    for layer in setting.layers:
        attn, x, encoding = layer.attn, layer.x.float().detach(), layer.encoding
        if pe in BASELINES:
            encoding = pe_spec.build(pe, attn.heads, x.size(-1), setting.context, 1)[0]
        projection = attn.c_attn(x).to(setting.dtype).detach()
        layers.append(make_layer(attn, encoding.to(setting.device), x, projection))
    return layers


def read_validation_text(
    setting: Setting, model: GPT, checkpoint: dict
) -> list[bias_statistics.Layer]:
    """Return the layers of a trained model with their inputs.

    The text is micro_batch windows of the run's validation split. Raises
    InputError if the run has no data, or too few windows.
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


def without_skipping(layer: AttentionLayer) -> AttentionLayer:
    """Return the same layer, whose Triton kernels skip no tiles."""
    attn = copy.copy(layer.attn)
    attn.skip_tolerance = 0.0
    return layer._replace(attn=attn)


def attend_without_encoding(layer: AttentionLayer, backend: SDPBackend | None) -> Tensor:
    """Return attention (B, T, C) by PyTorch's fused kernel alone."""
    q, k, v = layer.attn.split_heads(layer.packed_qkv)
    y = attention.sdpa(q, k, v, layer.attn.scale, attention.MaskSpec(), backend)
    return y.transpose(1, 2).flatten(2)


def attention_cases(setting: Setting, pe: str) -> dict[str, BenchmarkCase]:
    """Return the cases of an encoding by name, and with `rope` those of plain SDPA."""
    layers = trained_layers(setting, pe) if setting.layers else [untrained_layer(setting, pe)]

    @functools.cache
    def exact():
        return [layer.reference() for layer in layers]

    def make(compute: Callable, argument, layers=layers) -> BenchmarkCase:
        """Return the case that computes `compute(layer, argument)` and its gradients."""
        forwards = [functools.partial(compute, layer, argument) for layer in layers]
        pairs = [*zip(layers, map(setting.maybe_compile, forwards), strict=True)]

        def run():
            for layer, forward in pairs:
                layer.forward_backward(forward)

        def error():
            errors = [0.0]
            for (layer, forward), expected in zip(pairs, exact(), strict=True):
                errors += relative_errors(layer.forward_backward(forward), expected).values()
            return torch.tensor(errors).max().item()  # unlike Python's max, keeps NaN

        return BenchmarkCase(
            prepare=lambda: run,
            tokens=layers[0].x.size(0) * layers[0].x.size(1),
            memory=lambda: devices.measure_peak_memory(run, setting.device),
            error=error,
        )

    cases = {}
    encoding = layers[0].encoding
    for suffix, path in setting.paths(encoding).items():
        case = make(AttentionLayer.attend, path)
        if path == "all tiles":
            case = make(AttentionLayer.attend, "triton", [*map(without_skipping, layers)])
        cases[pe + suffix] = case
        case.path = path if path in attention.PATHS else None
        if path == "triton" and encoding.window_size is None:
            case.left_out = functools.partial(mean_skipped_fraction, layers)
    if pe == BASELINES[0]:
        for suffix, path in {"": "sdpa", **setting.backends()}.items():
            case = make(attend_without_encoding, attention.BACKENDS.get(path))
            cases[f"sdpa{suffix}"] = case
            cases[f"sdpa{suffix}"].error = None  # another function than the encoding's
    return cases


@torch.no_grad()
def mean_skipped_fraction(layers: list[AttentionLayer]) -> float:
    """Return the fraction of key tiles that the Triton kernels skip, the mean over layers."""
    fractions = []
    for layer in layers:
        positions = torch.arange(layer.x.size(1), device=layer.x.device)
        q, k, _ = layer.attn.split_heads(layer.packed_qkv)
        features = layer.encoding.features(layer.x, positions)
        q, k = layer.encoding.rotate(q, k, positions, *features)
        bias = bias_from_encoding(layer.encoding, *features, layer.attn.heads)
        fractions.append(
            skipped_fraction(q, k, bias, layer.attn.scale, True, attention.SKIP_TOLERANCE)
        )
    return sum(fractions) / len(fractions)
