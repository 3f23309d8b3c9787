"""Attention path of a training: `--attention auto`, and its check.

    choose_path(model, config, device)          # sets the path of each layer
    check_paths(model, config, device, dtype)   # raises InputError if one is wrong

On a GPU, `auto` is a fixed order of paths, by speed on an H100. Before
the first step one layer of each kind is compared with the dense path.
Of named paths only `flex` is checked, which compiles each encoding's
formula and supports not all.
"""

import dataclasses
import itertools
from importlib.util import find_spec
from typing import Literal

import torch

import attention
import triton_attention.flex  # noqa: F401, registers the attention path "flex"
from errors import InputError
from model import GPT
from pe_spec import unwrap
from posenc import Encoding
from training.attention_layer import AttentionLayer, random_layer, relative_errors
from triton_attention.bias import MAX_HEAD_DIM, MIN_HEAD_DIM

# Values of --attention.
Name = Literal[
    "auto", "sdpa", "sdpa/flash", "sdpa/cudnn", "sdpa/efficient", "triton", "flex", "dense"
]
GPU_PATHS = {"sdpa/cudnn", "sdpa/efficient", "flex"}
# Largest relative errors: of TENSORS; of the gradients of parameters,
# which are sums along the text. In bfloat16 sdpa has 0.23 at the bias
# of a forget gate.
TOLERANCES = {
    torch.float32: (1e-3, 1e-2),
    torch.float16: (1e-2, 5e-2),
    torch.bfloat16: (5e-2, 0.3),
}
TENSORS = ("output", "dq", "dk", "dv", "dx")
SEQUENCES = 2
TOKENS = (256, 600)  # whole tiles of all kernels; partial tiles


def choose_path(model: GPT, config, device: torch.device) -> None:
    """Set each layer's path, also in the config that checkpoints store.

    config: of train_gpt.py. Raises InputError on a CPU if the path
    needs a GPU.
    """
    name = config.attention
    if device.type == "cpu" and name in GPU_PATHS:
        raise InputError(f"attention {name} needs a GPU: use auto, sdpa or dense")
    if name == "auto":
        paths = attention.resolve_paths("auto", model.posenc, device.type)
        if device.type == "cuda":
            D, hopper = model.config.head_dim, is_hopper(device)
            paths = tuple(fastest_path(x, config, D, hopper) for x in model.posenc)
        model.attention_paths = paths
        model.config.attention = attention.join_names(paths)


def is_hopper(device: torch.device) -> bool:
    """Return whether a GPU is like an H100, where cuDNN's kernel was the fastest."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] == 9


def fastest_path(encoding: Encoding, config, head_dim: int, hopper: bool) -> attention.Path:
    """Return the fastest path on a GPU, for heads of `head_dim` columns."""
    order = ["sdpa"]
    if MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM:
        order.insert(0, "triton")
    # Triton compiles FlexAttention, whose gradients use atomic additions.
    if not config.deterministic and find_spec("triton") is not None:
        order.append("flex")
    if encoding.bias is None and type(unwrap(encoding)).rotate is not Encoding.rotate:
        # cuDNN's kernel takes half precision; it is not deterministic.
        is_exact = config.dtype == "float32" or config.deterministic
        fits = head_dim % 8 == 0 and head_dim <= 128 and not encoding.changes_width
        order.insert(0, "sdpa/cudnn" if hopper and fits and not is_exact else "sdpa")
    for name in order:
        path = attention.PATHS[name]
        if path.reason_against(encoding) is None:
            return path
    return attention.DENSE


def is_checked(config, device: torch.device) -> bool:
    """Return whether a training checks its paths."""
    return device.type == "cuda" and config.attention in ("auto", "flex")


def check_paths(model: GPT, config, device: torch.device, dtype: torch.dtype) -> None:
    """Raise InputError if a path fails or differs from the dense path.

    dtype: of matrix products. Random states do not change.
    """
    if not is_checked(config, device):
        return
    specs = itertools.cycle(model.config.encodings.layers)
    names = [path.name for path in model.attention_paths]
    kinds = {*zip(specs, names, strict=False)}
    has_sdpa = all(attention.resolve_path("auto", each).fused for each in model.posenc)
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for spec, path in sorted(kind for kind in kinds if kind[1] != "dense"):
            shape = dataclasses.replace(model.config, pe=spec, n_layer=1)
            for tokens in sorted({min(config.block_size, tokens) for tokens in TOKENS}):
                layer = random_layer(shape, (SEQUENCES, tokens), dtype, device)
                layer.encoding.eval()  # draws no random numbers
                if reason := find_error(layer, path):
                    other = "sdpa" if has_sdpa and path != "sdpa" else "dense"
                    raise InputError(
                        f"attention by {path} fails its check on this GPU ({spec}, {tokens} "
                        f"tokens: {reason}): pass --attention {other}"
                    )


def find_error(layer: AttentionLayer, path: str) -> str | None:
    """Return why a path is wrong for a layer, None if it is right."""
    try:
        results = layer.forward_backward(lambda: layer.attend(path))
        errors = relative_errors(results, layer.reference())
    except Exception as error:  # compilers report missing support by many types
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    for name, error in errors.items():
        limit = TOLERANCES[layer.output_grad.dtype][name not in TENSORS]
        if not error <= limit:  # also NaN
            return f"{name} error {error:.2g}"
    return None
