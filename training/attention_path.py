"""Check of a training's attention paths, before the first step on a GPU.

    check_paths(model, config, device, dtype)   # raises InputError if one is wrong

One layer of each kind is compared with the dense path. Of named paths only `flex` is checked, which
compiles each encoding's formula and supports not all.
"""

import dataclasses
import itertools

import torch

import attention
from errors import InputError
from model import GPT
from training.attention_layer import AttentionLayer, random_layer, relative_errors

# Largest relative errors: of TENSORS; of the gradients of parameters, which are sums along the
# text. In bfloat16 sdpa has 0.23 at the bias of a forget gate.
TOLERANCES = {
    torch.float32: (1e-3, 1e-2),
    torch.float16: (1e-2, 5e-2),
    torch.bfloat16: (5e-2, 0.3),
}
TENSORS = ("output", "dq", "dk", "dv", "dx")
SEQUENCES = 2
TOKENS = (256, 600)  # whole tiles of all kernels; partial tiles


def check_paths(model: GPT, config, device: torch.device, dtype: torch.dtype) -> None:
    """Raise InputError if a path fails or differs from the dense path.

    dtype: of matrix products. Random states do not change.
    """
    specs = itertools.cycle(model.config.encodings.layers)
    names = [path.name for path in model.attention_paths]
    kinds = {*zip(specs, names, strict=False)}
    has_sdpa = not any(map(attention.reason_against_sdpa, model.posenc))
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
