"""Pretrained weights: models of Hugging Face, and checkpoints of the CABLE authors.

model, revision, folder = load_pretrained("gpt2")  # or a folder, or a file
tokenizer, files = tokenizer_of("gpt2", folder, model)
if config := original_config(run, checkpoint["gpt"]):  # None under another encoding
    save_original(model, config, dtype, folder)     # as the class it came from

Weights are read from safetensors and keep their dtype.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

from runtime.checkpoints import check_finite, describe_load_error
from runtime.files import read_json
from runtime.run_folder import PRETRAINED

import torch
from torch import Tensor

from errors import InputError
from hf_interop.pretrained_config import settings_of
from model import GPT, GPTConfig
from text_data import hub
from text_data.tokenizer import GPT2_VOCABULARY, make_tokenizer

# Our module -> theirs, whose rows it holds one after the other. GPT-2's
# names are ours.
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
# A tied output layer, and constants in older files.
NOT_READ = ("lm_head.weight", ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json")


def load_pretrained(
    name: str, block_size: int | None = None
) -> tuple[GPT, str | None, Path | None]:
    """Return a model, its commit on the hub, and its folder of transformers.

    name: as in import_pretrained.py. block_size: of a CABLE checkpoint;
    None: 1024. Raises InputError if the model does not exist or is not
    supported.
    """
    folder = revision = source = None
    if os.path.isfile(name):
        if name.endswith(".safetensors"):
            raise InputError(f"{name} is a file: pass its folder, which has config.json")
        settings, weights = _read_cable_v1(name)
        settings["block_size"] = block_size or 1024
    else:
        import transformers  # noqa: F401  (if it is missing, nothing is downloaded)

        folder = Path(name)
        if not folder.is_dir():
            if name.startswith(("/", ".", "~")):
                raise InputError(f"{name} does not exist: name a folder of transformers")
            patterns = ["config.json", "model*.safetensors", *TOKENIZER_FILES]
            remedy = "name a folder with config.json and model.safetensors, or gpt2, …"
            folder = hub.download_model(name, patterns, remedy)
            revision = folder.name
        source = _open_weights(name, folder)
        content = read_json(folder / "config.json", "name another model", dict[str, Any])
        settings = settings_of(name, content)
        if settings["block"] == "llama":
            settings["qkv_bias"] = "layers.0.self_attn.q_proj.bias" in source
            settings["qk_norm"] = "layers.0.self_attn.q_norm.weight" in source
    with torch.device("meta"):  # without memory
        model = GPT(GPTConfig(size="custom", **settings))
    if source:
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


def tokenizer_of(
    name: str, folder: Path | None, model: GPT
) -> tuple[str, dict[str, bytes]]:
    """Return name and files (GPT-2: none) of a model's tokenizer.

    Raises InputError if there is none, or if it has more tokens than
    the model.
    """
    found, vocab_size, files = "gpt2", GPT2_VOCABULARY, {}
    if folder and model.config.block != "gpt2":
        if not any(any(folder.glob(pattern)) for pattern in TOKENIZER_FILES):
            raise InputError(
                f"{name} has no tokenizer.json: copy it from the model's source"
            )
        tokenizer = make_tokenizer(f"hf:{name}", tuple)
        found, vocab_size, files = tokenizer.name, tokenizer.vocab_size, tokenizer.files
    if model.config.vocab_size < vocab_size:
        raise InputError(
            f"{name} has a vocabulary of {model.config.vocab_size:,} tokens, but its tokenizer "
            f"{found} has {vocab_size:,}: name another model"
        )
    return found, files


def _source_names(name: str, block: str) -> list[str]:
    """Return transformers' names of the rows of our parameter."""
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
    """Return {name in `_source_names`: (open file, its name there)}."""
    from safetensors import SafetensorError, safe_open

    paths = sorted(folder.glob("model*.safetensors"))
    if not paths and (older := [*folder.glob("*.bin")]):
        remedy = "load it in transformers and write it by save_pretrained"
        raise InputError(f"'{name}' has {older[0].name}, and no safetensors: {remedy}")
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
            raise InputError(
                f"{path} is corrupt ({_one_line(error)}): copy it again"
            ) from None
        keys = file.keys()
        source |= {re.sub(r"^(model|transformer)\.", "", key): (file, key) for key in keys}
    return source


def _read_weights(name: str, model: GPT, source: dict) -> dict:
    """Return a state_dict. Raises InputError for missing and unknown weights."""
    block = model.config.block
    names = {ours: _source_names(ours, block) for ours in model.state_dict()}
    needed = {theirs for parts in names.values() for theirs in parts}
    unknown = {theirs for theirs in source.keys() - needed if not theirs.endswith(NOT_READ)}
    for verb, found in (("lacks", needed - source.keys()), ("has unknown", unknown)):
        if found:
            listed = ", ".join(sorted(found))[:120]
            raise InputError(f"'{name}' {verb} weights ({listed}): name another model")
    weights = {}
    for ours, parts in names.items():
        tensors = [
            file.get_tensor(key) for file, key in (source[theirs] for theirs in parts)
        ]
        weights[ours] = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        if block == "gpt2" and ours.endswith(TRANSPOSED):
            weights[ours] = weights[ours].T.contiguous()
    return weights


def _read_cable_v1(path: str) -> tuple[dict, dict]:
    """Return settings of GPTConfig and weights of the CABLE authors' checkpoint.

    Their h_attn is the gate of `cable-v1` with its sign changed:
    -Softplus(z) = log sigmoid(-z). Their training code scales logits by
    1.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        source = {
            key.replace("_orig_mod.", "").removeprefix("transformer."): weight.float()
            for key, weight in checkpoint.get("model", checkpoint).items()
        }
        vocab_size, width = source["wte.weight"].shape
        heads = len(source["h.0.attn.h_attn.bias"])
    except Exception as error:  # a file of another program can cause any
        raise InputError(
            f"{path} is not a checkpoint of the CABLE authors ({_one_line(error)}): name one with "
            "transformer.wte.weight and transformer.h.0.attn.h_attn.bias"
        ) from None
    weights = {}
    for key, weight in source.items():
        if gate := re.fullmatch(r"h\.(\d+)\.attn\.h_attn\.(weight|bias)", key):
            weights[f"posenc.{gate[1]}.gate.{gate[2]}"] = -weight
        # lm_head.weight is wte.weight, and the mask is a constant.
        elif key != "lm_head.weight" and not key.endswith(".attn.mask"):
            weights[key] = weight
    settings = {
        "pe": "cable-v1",
        "attn_scale": 1.0,
        "vocab_size": vocab_size,
        "n_layer": sum(key.endswith("h_attn.bias") for key in source),
        "n_head": heads,
        "n_embd": width,
    }
    return settings, weights


def original_config(run: Path, gpt: dict) -> dict | None:
    """Return the config.json of a run's imported model, None for another encoding.

    gpt: the run's GPTConfig.
    """
    path = run / PRETRAINED
    if not path.is_file():
        return None
    config = read_json(path, "import the model again", dict)
    if gpt["block"] == "llama":  # the table of GPT-2 has a fixed length
        config["max_position_embeddings"] = gpt["block_size"]
    return config if settings_of(str(path), config)["pe"] == gpt["pe"] else None


def save_original(model: GPT, config: dict, dtype: torch.dtype, folder: Path) -> None:
    """Write config.json and the weights, converted to dtype."""
    from huggingface_hub import save_torch_state_dict

    weights = {name: tensor.to(dtype) for name, tensor in _original_weights(model).items()}
    save_torch_state_dict(weights, folder)
    config = config | {"dtype": str(dtype).removeprefix("torch.")}
    config.pop("torch_dtype", None)  # the older name
    (folder / "config.json").write_text(
        json.dumps(config, indent=2) + "\n", encoding="utf-8"
    )


def _original_weights(model: GPT) -> dict[str, Tensor]:
    """Return copies of the weights under transformers' names."""
    c = model.config
    heads = (c.n_head, c.n_kv_head, c.n_kv_head)
    rows = {2: [c.n_inner] * 2, 3: [n * c.head_dim for n in heads]}  # of joined matrices
    prefix = "transformer." if c.block == "gpt2" else "model."
    weights = {}
    for ours, tensor in model.state_dict().items():
        if c.block == "gpt2" and ours.endswith(TRANSPOSED):
            tensor = tensor.T
        names = _source_names(ours, c.block)
        parts = tensor.split(rows.get(len(names), len(tensor)))
        for name, part in zip(names, parts, strict=True):
            name = name if name.startswith("lm_head") else prefix + name
            weights[name] = part.clone(memory_format=torch.contiguous_format)
    return weights


def _one_line(error: Exception) -> str:
    return " ".join(describe_load_error(error).split())[:120]
