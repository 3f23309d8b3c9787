"""Pretrained weights: models of Hugging Face, and checkpoints of the CABLE authors.

model, revision, folder = load_pretrained("gpt2")                         # or a folder
model, revision, _ = load_pretrained("axiomlaborg/Cable", "NAME.pt")      # or the path of a file
tokenizer, files = tokenizer_of("gpt2", folder, model)

Weights are read from safetensors and keep their dtype. `LLAMA_NAMES` says which of our parameters
holds which of theirs; `source_names` is also used to write them.
"""

import fnmatch
import os
import re
from pathlib import Path
from typing import Any

from runtime.checkpoints import describe_load_error
from runtime.files import read_json
from runtime.loading import check_finite

import torch

from errors import InputError
from hf_interop.pretrained_config import settings_of
from model import GPT, GPTConfig
from text_data import hub
from text_data.tokenizer import GPT2_VOCABULARY, make_tokenizer

CABLE_REPOSITORY = "axiomlaborg/Cable"  # on the hub: weights that the authors of CABLE trained
# Our module -> theirs, whose rows it holds one after the other. GPT-2's names are ours.
LLAMA_NAMES = {
    "wte": ["embed_tokens"],
    "ln_1": ["input_layernorm"],
    "attn.c_attn": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    "attn.q_norm": ["self_attn.q_norm"],
    "attn.k_norm": ["self_attn.k_norm"],
    "attn.c_proj": ["self_attn.o_proj"],
    "ln_2": ["post_attention_layernorm"],
    "mlp.c_fc": ["mlp.gate_proj", "mlp.up_proj"],
    "mlp.c_proj": ["mlp.down_proj"],
    "ln_f": ["norm"],
    "lm_head": ["lm_head"],
}
# Conv1D of GPT-2 stores its matrix transposed.
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
CONSTANTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")  # in older files
CONFIG_COPY = "pretrained_config.json"  # the model's config.json in the folder of a run
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json")


def load_pretrained(
    name: str, file: str | None = None, block_size: int = 1024, attn_scale: float = 1.0
) -> tuple[GPT, str | None, Path | None]:
    """Return a model, its commit if it is on the hub, and its folder if it is of transformers.

    name, file: as in import_pretrained.py. block_size, attn_scale: of a CABLE checkpoint, which
    records neither. Raises InputError if there is no such model, or it is not supported.
    """
    if is_cable(name, file):
        path, revision = (name, None) if os.path.isfile(name) else _download_cable(name, file)
        settings, weights = _read_cable_v1(path)
        folder = None
        settings |= {"block_size": block_size, "attn_scale": attn_scale}
        model = _make_model(settings)
    else:
        folder, revision = (name, None) if os.path.isdir(name) else _download_model(name)
        folder = Path(folder)
        source = _open_weights(name, folder)
        content = read_json(folder / "config.json", "name another model", dict[str, Any])
        settings = settings_of(name, content)
        if settings["block"] == "llama":
            settings["qkv_bias"] = "layers.0.self_attn.q_proj.bias" in source
            settings["qk_norm"] = "layers.0.self_attn.q_norm.weight" in source
        model = _make_model(settings)
        weights = _read_weights(name, model, source)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise InputError(
            f"the weights of {name} do not fit its settings ({' '.join(str(error).split())[:200]}):"
            " name another model"
        ) from None
    check_finite(model, name)
    return model, revision, folder


def _make_model(settings: dict) -> GPT:
    """Return a model whose parameters have no memory yet."""
    with torch.device("meta"):
        return GPT(GPTConfig(size="custom", **settings))


def tokenizer_of(name: str, folder: Path | None, model: GPT) -> tuple[str, dict[str, bytes]]:
    """Return name and files of the tokenizer of a model of `load_pretrained`.

    That of GPT-2 has no files. Raises InputError if the folder has no tokenizer, or one with more
    tokens than the model.
    """
    found, vocab_size, files = "gpt2", GPT2_VOCABULARY, {}
    if folder and model.config.block != "gpt2":
        names = os.listdir(folder)
        if not any(fnmatch.filter(names, pattern) for pattern in TOKENIZER_FILES):
            raise InputError(f"{name} has no tokenizer.json: copy it from the model's repository")
        tokenizer = make_tokenizer(f"hf:{name}", tuple)
        found, vocab_size, files = tokenizer.name, tokenizer.vocab_size, tokenizer.files
    if model.config.vocab_size < vocab_size:
        raise InputError(
            f"{name} has a vocabulary of {model.config.vocab_size:,} tokens, but its tokenizer "
            f"{found} has {vocab_size:,}: name another model"
        )
    return found, files


def is_cable(name: str, file: str | None) -> bool:
    """Return whether the arguments name a checkpoint of the CABLE authors."""
    return name == CABLE_REPOSITORY or file is not None or os.path.isfile(name)


def source_names(name: str, block: str) -> list[str]:
    """Return the names that the rows of our parameter have in a file of transformers."""
    if name.startswith("posenc."):
        return ["wpe.weight"]
    if block == "gpt2":
        return [name]
    module, _, parameter = name.rpartition(".")
    prefix = ""
    if module.startswith("h."):
        _, number, module = module.split(".", 2)
        prefix = f"layers.{number}."
    return [f"{prefix}{theirs}.{parameter}" for theirs in LLAMA_NAMES[module]]


def _open_weights(name: str, folder: Path) -> dict:
    """Return {name in `source_names`: (open file, its name there)} of all weights of a folder."""
    from safetensors import SafetensorError, safe_open

    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        raise InputError(
            f"no model at '{name}' (no model.safetensors): name a folder of transformers, or, "
            "with internet access, a model on the hub"
        )
    source = {}
    for path in paths:
        try:
            file = safe_open(path, "pt")
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} is corrupt ({_one_line(error)}): copy it again") from None
        keys = file.keys()
        source |= {re.sub(r"^(model|transformer)\.", "", key): (file, key) for key in keys}
    return source


def _read_weights(name: str, model: GPT, source: dict) -> dict:
    """Return the state_dict of a model. Raises InputError for missing and unknown weights."""
    block = model.config.block
    names = {ours: source_names(ours, block) for ours in model.state_dict()}
    needed = {theirs for parts in names.values() for theirs in parts}
    if missing := sorted(needed - source.keys()):
        raise InputError(
            f"weights of '{name}' are missing ({', '.join(missing)[:120]}): save the model again, "
            "or name another"
        )
    unknown = [theirs for theirs in sorted(source.keys() - needed) if theirs != "lm_head.weight"]
    if unknown := [theirs for theirs in unknown if not theirs.endswith(CONSTANTS)]:
        raise InputError(
            f"'{name}' has weights that model.GPT does not implement ({', '.join(unknown)[:120]}): "
            "name another model"
        )
    weights = {}
    for ours, parts in names.items():
        tensors = [file.get_tensor(key) for file, key in (source[theirs] for theirs in parts)]
        weights[ours] = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        if block == "gpt2" and ours.endswith(TRANSPOSED):
            weights[ours] = weights[ours].T.contiguous()
    return weights


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


def _download_model(name: str) -> tuple[str, str]:
    """Return the folder of a model of the hub, and its commit."""

    def choose(names: list[str]) -> list[str]:
        if "config.json" not in names:
            raise InputError(f"{name} has no config.json: {remedy}")
        patterns = ("model*.safetensors", *TOKENIZER_FILES)
        return ["config.json", *(x for p in patterns for x in fnmatch.filter(names, p))]

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
