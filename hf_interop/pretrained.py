"""Pretrained weights: GPT-2 of Hugging Face, and checkpoints of the CABLE authors.

model, revision = load_pretrained("gpt2")                           # or a folder
model, revision = load_pretrained("axiomlaborg/Cable", "NAME.pt")   # or the path of a file
"""

import fnmatch
import os
from pickle import PickleError

from runtime.checkpoints import describe_load_error
from runtime.loading import check_finite

import torch

from errors import InputError
from model import GPT, GPTConfig
from text_data import hub

CABLE_REPOSITORY = "axiomlaborg/Cable"  # on the hub: weights that the authors of CABLE trained
# Settings of GPT-2 variants that model.GPT implements.
SUPPORTED_GPT2 = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "tie_word_embeddings": (True,),
}
# Conv1D of GPT-2 stores its matrix transposed.
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def load_pretrained(
    name: str, file: str | None = None, block_size: int = 1024, attn_scale: float = 1.0
) -> tuple[GPT, str | None]:
    """Return a GPT-2 or a model of the CABLE authors, and its commit on the hub, if it is there.

    name, file: as in import_pretrained.py. block_size, attn_scale: of a CABLE checkpoint, which
    records neither. Raises InputError if there is no such model, or it is not supported.
    """
    if is_cable(name, file):
        path, revision = (name, None) if os.path.isfile(name) else _download_cable(name, file)
        settings, weights = _read_cable_v1(path)
        settings |= {"block_size": block_size, "attn_scale": attn_scale}
    else:
        settings, weights, revision = _read_gpt2(name)
    model = GPT(GPTConfig(**settings))
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise InputError(
            f"{name} is not a GPT-2 or CABLE model ({' '.join(str(error).split())[:200]}): "
            "name another model"
        ) from None
    check_finite(model, name)
    return model, revision


def is_cable(name: str, file: str | None) -> bool:
    """Return whether the arguments name a checkpoint of the CABLE authors rather than a GPT-2."""
    return name == CABLE_REPOSITORY or file is not None or os.path.isfile(name)


def _read_gpt2(name: str) -> tuple[dict, dict, str | None]:
    """Return the settings of GPTConfig, the weights and the commit of a GPT-2 of transformers."""
    from safetensors import SafetensorError
    from transformers import GPT2Config, GPT2LMHeadModel

    folder, revision = (name, None) if os.path.isdir(name) else _download_gpt2(name)
    try:
        c = GPT2Config.from_pretrained(folder)
        problems = [
            f"'{name}' has {key} {getattr(c, key)}, but only {' or '.join(map(str, values))} is "
            "supported: name another model"
            for key, values in SUPPORTED_GPT2.items()
            if getattr(c, key) not in values
        ]
        if problems:
            raise InputError(*problems)
        loaded = GPT2LMHeadModel.from_pretrained(folder, output_loading_info=True)
        # transformers declares that it returns the model alone, whatever output_loading_info is.
        gpt2, loading_info = loaded  # pyright: ignore[reportGeneralTypeIssues]
    except InputError:
        raise
    except (OSError, RuntimeError, SafetensorError, TypeError, ValueError, PickleError) as error:
        raise InputError(
            f"no GPT-2 model at '{name}' ({_one_line(error)}): name a folder with config.json and "
            "model.safetensors, or, with internet access, gpt2, gpt2-medium, gpt2-large or gpt2-xl"
        ) from None
    # transformers initializes missing weights at random.
    if missing := sorted(loading_info.get("missing_keys", ())):
        raise InputError(
            f"weights of '{name}' are missing ({', '.join(missing)[:120]}): save the model again, "
            "or name another"
        )
    weights = {
        key: weight.T if key.endswith(TRANSPOSED) else weight
        for key, weight in gpt2.transformer.state_dict().items()
    }
    table = weights.pop("wpe.weight")
    shared = ("vocab_size", "n_layer", "n_head", "n_embd")
    settings = {name: getattr(c, name) for name in shared}
    settings |= {"pe": "learnable", "block_size": c.n_positions}
    weights |= {f"posenc.{layer}.table.weight": table for layer in range(c.n_layer)}
    return settings, weights, revision


def _read_cable_v1(path: str) -> tuple[dict, dict]:
    """Return the settings of GPTConfig and the weights of a checkpoint of the CABLE authors.

    Their h_attn is the gate of `cable-v1` with its sign changed: -Softplus(z) = log sigmoid(-z).
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        source = {
            key.replace("_orig_mod.", "").removeprefix("transformer."): weight
            for key, weight in checkpoint.get("model", checkpoint).items()
        }
        vocab_size, width = source["wte.weight"].shape
        heads = len(source["h.0.attn.h_attn.bias"])
        if not all(isinstance(weight, torch.Tensor) for weight in source.values()):
            raise TypeError("it has values that are no tensors")
    except Exception as error:  # a file of another program can cause any
        raise InputError(
            f"{path} is not a checkpoint of the CABLE authors ({_one_line(error)}): name one with "
            "transformer.wte.weight and transformer.h.0.attn.h_attn.bias"
        ) from None
    weights = {}
    for key, weight in source.items():
        if ".h_attn." in key:
            layer = key.split(".")[1]
            parameter = key.rpartition(".")[2]
            weights[f"posenc.{layer}.gate.{parameter}"] = -weight.float()
        # lm_head.weight is wte.weight, and the mask is a constant.
        elif key != "lm_head.weight" and not key.endswith(".attn.mask"):
            weights[key] = weight.float()
    settings = {
        "pe": "cable-v1",
        "vocab_size": vocab_size,
        "n_layer": sum(key.endswith("h_attn.bias") for key in source),
        "n_head": heads,
        "n_embd": width,
    }
    return settings, weights


def _download_gpt2(name: str) -> tuple[str, str]:
    """Return the folder of a GPT-2 of the hub, and its commit; it has safetensors or bin files."""

    def choose(names: list[str]) -> list[str]:
        if "config.json" not in names:
            raise InputError(f"{name} has no config.json: {remedy}")
        weights = fnmatch.filter(names, "*.safetensors") or fnmatch.filter(names, "*.bin")
        weights = [file for file in weights if "/" not in file]
        indexes = fnmatch.filter(names, "*.index.json")
        settings = fnmatch.filter(names, "generation_config.json")
        return ["config.json", *settings, *indexes, *weights]

    remedy = "name a folder with config.json and model.safetensors, or gpt2, gpt2-medium, …"
    paths, revision = hub.download_model(name, choose, remedy)
    return os.path.dirname(paths[0]), revision


def _download_cable(repository: str, file: str | None) -> tuple[str, str]:
    """Return the path of a file of weights from the hub, of its only one if None; its commit."""

    def choose(names: list[str]) -> list[str]:
        names = [name for name in names if name.endswith((".pt", ".pth", ".bin"))]
        if file is None and len(names) == 1:
            return names
        if file is None or file not in names:
            raise InputError(
                f"{repository} holds {', '.join(names) or 'no weights'}: pass one of them as --file"
            )
        return [file]

    (path,), revision = hub.download_model(repository, choose, "name a local file")
    return path, revision


def _one_line(error: Exception) -> str:
    return " ".join(describe_load_error(error).split())[:120]
