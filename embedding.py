"""What is an encoder to sentence-transformers? A model that turns texts into vectors: the mean of its tokens' last layer.

    model = embedding.from_export("exported/cable", max_tokens=None)        # made by export_hf.py
    model = embedding.load("runs/retrieval/cable", dtype, device)           # made by finetune_retrieval.py
    model.encode(["a text"])                                                # (1, C)
"""

import json
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from errors import InputError


def _trusting() -> dict:
    """The code of the network lies in the folder, and is ours. (A new dictionary each time: sentence-transformers writes into them.)"""
    return {"trust_remote_code": True}


def from_export(folder: str, max_tokens: int | None) -> SentenceTransformer:
    """Of an exported encoder; texts are cut at max_tokens, or at its training length. Raises InputError where it is none."""
    config = config_of(folder, "name a folder that export_hf.py made of an encoder")
    longest = config.get("max_position_embeddings")
    length = max_tokens or config["block_size"]
    if longest is not None and length > longest:
        raise InputError(f"{folder}: {config['pe']} knows positions up to {longest} only: lower --max_tokens")
    transformer = Transformer(folder, max_seq_length=length, model_kwargs=_trusting(), config_kwargs=_trusting(),
                              processor_kwargs=_trusting())
    return SentenceTransformer(modules=[transformer, Pooling(config["n_embd"], "mean")], **_trusting())


def load(folder: str, dtype: torch.dtype, device: torch.device) -> SentenceTransformer:
    """A fine-tuned encoder, to compute in `dtype`. Raises InputError where it is none."""
    config_of(folder, "name a folder that finetune_retrieval.py made")
    return SentenceTransformer(folder, device=str(device), model_kwargs={"dtype": dtype}, **_trusting())


def config_of(folder: str, mend: str = "name another") -> dict:
    """The settings of the network in a folder."""
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    if config.get("model_type") != "posenc-gpt" or config.get("causal", True):
        raise InputError(f"{folder} holds no encoder: {mend}")
    return config
