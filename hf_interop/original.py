"""Imported models as the class of transformers that they came from.

if config := original_config(folders, checkpoint):  # None under another encoding
    save(model, config, dtype, folder)
"""

import json
from collections.abc import Iterable
from pathlib import Path

from runtime.files import read_json

import torch
from torch import Tensor

from hf_interop.pretrained import CONFIG_COPY, TRANSPOSED, source_names
from hf_interop.pretrained_config import settings_of
from model import GPT


def original_config(folders: Iterable[Path], gpt: dict) -> dict | None:
    """Return the config.json of the model that a run comes from, if it describes the run.

    folders: of the run and of those that it started from. gpt: the fields of its GPTConfig. A
    config with another encoding describes another model.
    """
    for path in (folder / CONFIG_COPY for folder in folders):
        if path.is_file():
            config = read_json(path, "import the model again")
            if gpt["block"] == "llama":  # the table of GPT-2 has a fixed length
                config["max_position_embeddings"] = gpt["block_size"]
            return config if settings_of(str(path), config)["pe"] == gpt["pe"] else None
    return None


def save(model: GPT, config: dict, dtype: torch.dtype, folder: Path) -> None:
    """Write config.json and the weights, converted to dtype."""
    from huggingface_hub import save_torch_state_dict

    weights = {name: tensor.to(dtype) for name, tensor in original_weights(model).items()}
    save_torch_state_dict(weights, folder)
    config = config | {"dtype": str(dtype).removeprefix("torch.")}
    config.pop("torch_dtype", None)  # the older name
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def original_weights(model: GPT) -> dict[str, Tensor]:
    """Return copies of the weights under transformers' names: the inverse of an import."""
    c = model.config
    heads = (c.n_head, c.n_kv_head, c.n_kv_head)
    rows = {2: [c.n_inner] * 2, 3: [count * c.head_dim for count in heads]}  # of joined matrices
    prefix = "transformer." if c.block == "gpt2" else "model."
    weights = {}
    for ours, tensor in model.state_dict().items():
        if c.block == "gpt2" and ours.endswith(TRANSPOSED):
            tensor = tensor.T
        names = source_names(ours, c.block)
        parts = tensor.split(rows.get(len(names), len(tensor)))
        for name, part in zip(names, parts, strict=True):
            name = name if name.startswith("lm_head") else prefix + name
            weights[name] = part.clone(memory_format=torch.contiguous_format)
    return weights
