"""Sentence encoder: an exported or fine-tuned encoder as a sentence-transformers model.

    model = load_export("exported/cable", max_tokens=None)            # written by export_hf.py
    model = load_finetuned("runs/retrieval/cable", dtype, device)     # by retrieval.finetune
    model.encode(["a text"])                                          # (1, C)

The vector of a text is the mean of the last layer over its tokens.
"""

from contextlib import contextmanager
from pathlib import Path

from runtime import plugins
from runtime.files import read_json

import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

import posenc
from errors import InputError


def load_export(folder: str, max_tokens: int | None) -> SentenceTransformer:
    """Return an exported encoder; texts are truncated to max_tokens, or to its training length.

    Raises InputError if the folder has no encoder, the length is not supported, or its plugin is
    another version than a loaded one.
    """
    remedy = "pass a folder that export_hf.py wrote for an encoder"
    config = read_config(folder, remedy)
    check_plugins(folder, config)
    max_positions = config.get("max_position_embeddings")
    length = max_tokens or config["block_size"]
    if max_positions is not None and length > max_positions:
        raise InputError(
            f"{folder}: {config['pe']} supports at most {max_positions} positions: "
            "use a lower --max_tokens"
        )
    with _raise_input_errors(folder, remedy):
        transformer = Transformer(
            folder,
            max_seq_length=length,
            model_kwargs=_trust(),
            config_kwargs=_trust(),
            processor_kwargs=_trust(),
        )
    pooling = Pooling(config["n_embd"], "mean")
    return SentenceTransformer(modules=[transformer, pooling], **_trust())


def load_finetuned(folder: str, dtype: torch.dtype, device: torch.device) -> SentenceTransformer:
    """Return a fine-tuned encoder that computes in `dtype`.

    Raises InputError if the folder has none, or if its plugin is another version than a loaded one.
    """
    remedy = "pass a folder that retrieval.finetune wrote"
    check_plugins(folder, read_config(folder, remedy))
    with _raise_input_errors(folder, remedy):
        return SentenceTransformer(
            folder, device=str(device), model_kwargs={"dtype": dtype}, **_trust()
        )


def check_plugins(folder: str, config: dict) -> None:
    """Raise InputError if a loaded plugin defines the encoding in another version than the folder.

    config: of the folder, whose own copy computes the encoding. Folders of older exports do not
    state versions.
    """
    recorded = plugins.recorded_versions(config, folder)
    try:
        loaded = plugins.recorded(posenc.parse(config["pe"])) or {}
    except InputError:
        return  # no loaded plugin defines the encoding
    problems = [
        f"{folder} contains another version of the plugin {name} than --plugin (SHA-256 "
        f"{' '.join(value[:12] for value in recorded.values())}, not {sha256[:12]}): remove "
        "--plugin to use the folder's version, or export the run again"
        for name, sha256 in loaded.items()
        if recorded and sha256 not in recorded.values()
    ]
    if problems:
        raise InputError(*problems)


def clamp_parameters(model: SentenceTransformer) -> None:
    """Clamp the encoding's bounded parameters, after an optimizer step."""
    network = model[0].auto_model.model
    # The code in the folder is that of the export's time, when the method had another name.
    clamp = getattr(network, "clamp_parameters_", None) or network.project
    clamp()


def _trust() -> dict:
    """Return arguments that allow running the model code in the folder, which export_hf.py wrote.

    A new dictionary each time, because sentence-transformers changes it.
    """
    return {"trust_remote_code": True}


@contextmanager
def _raise_input_errors(folder: str, remedy: str):
    """Raise an InputError of one line for missing or corrupt files, instead of a library's."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        message = " ".join(str(error).split())[:200]
        raise InputError(
            f"{folder} cannot be read ({message}): write it again, or {remedy}"
        ) from None


def read_config(folder: str, remedy: str = "pass another folder") -> dict:
    """Return the settings of the network in a folder. Raises InputError if it has no encoder."""
    path = Path(folder) / "config.json"
    config = read_json(path, remedy) if path.is_file() else None
    is_ours = isinstance(config, dict) and config.get("model_type") == "posenc-gpt"
    if not is_ours or config.get("causal", True):
        raise InputError(f"{folder} holds no encoder: {remedy}")
    return config
