"""What is an encoder to sentence-transformers? A model that turns texts into vectors: the mean of its tokens' last layer.

model = embedding.from_export("exported/cable", max_tokens=None)        # made by export_hf.py
model = embedding.load("runs/retrieval/cable", dtype, device)           # made by retrieval.finetune
model.encode(["a text"])                                                # (1, C)
"""

from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from errors import InputError
from runtime.files import read_json


def _trusting() -> dict:
    """The code of the network lies in the folder, and is ours. (A new dictionary each time: sentence-transformers writes into them.)"""
    return {"trust_remote_code": True}


def from_export(folder: str, max_tokens: int | None) -> SentenceTransformer:
    """Of an exported encoder; texts are cut at max_tokens, or at its training length. Raises InputError where it is none."""
    mend = "name a folder that export_hf.py made of an encoder"
    config = config_of(folder, mend)
    longest = config.get("max_position_embeddings")
    length = max_tokens or config["block_size"]
    if longest is not None and length > longest:
        raise InputError(
            f"{folder}: {config['pe']} knows positions up to {longest} only: lower --max_tokens"
        )
    with _reading(folder, mend):
        transformer = Transformer(
            folder,
            max_seq_length=length,
            model_kwargs=_trusting(),
            config_kwargs=_trusting(),
            processor_kwargs=_trusting(),
        )
    return SentenceTransformer(
        modules=[transformer, Pooling(config["n_embd"], "mean")], **_trusting()
    )


def load(folder: str, dtype: torch.dtype, device: torch.device) -> SentenceTransformer:
    """A fine-tuned encoder, to compute in `dtype`. Raises InputError where it is none."""
    mend = "name a folder that retrieval.finetune made"
    config_of(folder, mend)
    with _reading(folder, mend):
        return SentenceTransformer(
            folder, device=str(device), model_kwargs={"dtype": dtype}, **_trusting()
        )


@contextmanager
def _reading(folder: str, mend: str):
    """Turns what the libraries raise for missing or damaged files into an InputError of one line."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(
            f"{folder} cannot be read ({' '.join(str(error).split())[:200]}): make it again, or {mend}"
        ) from None


def config_of(folder: str, mend: str = "name another") -> dict:
    """The settings of the network in a folder. Raises InputError where it holds no encoder."""
    path = Path(folder) / "config.json"
    config = read_json(path, mend) if path.is_file() else None
    if (
        not isinstance(config, dict)
        or config.get("model_type") != "posenc-gpt"
        or config.get("causal", True)
    ):
        raise InputError(f"{folder} holds no encoder: {mend}")
    return config
