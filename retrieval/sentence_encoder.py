"""Sentence encoder: a sentence-transformers model of an exported encoder.

    model = load_export("exported/cable", max_tokens=None)  # of export_hf.py
    model = load_finetuned("runs/retrieval/cable", dtype, device)  # of retrieval.finetune
    model.encode(["a text"])  # (1, C)
    save(model, "runs/retrieval/cable")

A text's vector is the mean of the last layer over its tokens. This repository's classes compute it:
a folder's code is never executed.
"""

import math
from pathlib import Path
from typing import Any

from runtime.files import read_json, writing
from runtime.validation import Length, check

import msgspec
import torch
from safetensors import safe_open
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoConfig, AutoModel, TrainerCallback

from errors import InputError
from hf_interop.exported_code import auto_map, write_modules
from hf_interop.modeling import PosencConfig, PosencModel
from text_data import hub
from training import plugins
from training.checkpoints import NETWORK

AutoConfig.register(PosencConfig.model_type, PosencConfig, exist_ok=True)
AutoModel.register(PosencConfig, PosencModel, exist_ok=True)
WEIGHTS = "model.safetensors"
LONGEST = ("max_position_embeddings", Length, None)
# In config.json.
Settings = msgspec.defstruct("Settings", [*NETWORK, LONGEST], kw_only=True)


def load_export(folder: str, max_tokens: int | None) -> SentenceTransformer:
    """Return an exported encoder.

    Truncates texts to max_tokens, or its training length. Raises InputError if it has none, the
    length is not supported, or a plugin is missing.
    """
    remedy = "pass a folder that export_hf.py wrote for an encoder"
    config = read_config(folder, remedy)
    length = max_tokens or config["block_size"]
    if length > config.get("max_position_embeddings", length):
        raise InputError(
            f"{folder}: {config['pe']} supports at most {config['max_position_embeddings']} "
            "positions: use a lower --max_tokens"
        )
    return _load(folder, remedy, max_seq_length=length)


def load_finetuned(run: str, dtype: torch.dtype, device: torch.device) -> SentenceTransformer:
    """Return a fine-tuned encoder in `dtype`. Raises InputError as load_export."""
    remedy = "pass a folder that retrieval.finetune wrote"
    read_config(run, remedy)
    return _load(run, remedy, str(device), dtype=dtype)


def _load(
    folder: str,
    remedy: str,
    device: str | None = None,
    max_seq_length: int | None = None,
    **model_arguments,
) -> SentenceTransformer:
    """Return a sentence encoder, without modules.json, which names classes."""
    # transformers asks a question at None, and sentence-transformers changes the dictionaries.
    trust = {"trust_remote_code": False}
    with hub.input_errors(folder, f"write it again, or {remedy}", is_local=True):
        if not (Path(folder) / WEIGHTS).is_file():
            raise FileNotFoundError(f"it has no {WEIGHTS}")
        transformer = Transformer(
            folder,
            max_seq_length=max_seq_length,
            model_kwargs={**trust, **model_arguments},
            config_kwargs={**trust},
            processor_kwargs={**trust},
        )
        if transformer.tokenizer is None:
            raise OSError("it has no tokenizer")
        network: Any = transformer.auto_model
        _check_names(folder, network)
        # A fine-tuned folder must not inherit the names of other code.
        network.config.auto_map = auto_map("AutoModelForMaskedLM")
        transformer.tokenizer.init_kwargs.pop("auto_map", None)
        modules = [transformer, Pooling(transformer.get_embedding_dimension(), "mean")]
    return SentenceTransformer(modules=modules, device=device, trust_remote_code=False)


def _check_names(folder: str, network: PosencModel) -> None:
    """Raise OSError for unknown parameters, which transformers would draw."""
    with safe_open(Path(folder) / WEIGHTS, "pt") as file:
        stored = set(file.keys())
    expected = network.state_dict().keys() - network._tied_weights_keys.keys()
    if stored != expected:
        names = " ".join(sorted(stored ^ expected)[:3])
        raise OSError(f"its parameters are not those of this version's encoding: {names}")


def save(model: SentenceTransformer, folder: Path) -> None:
    """Write an encoder, and its code, to a folder for load_finetuned."""
    model.save_pretrained(str(folder), create_model_card=False)
    network: Any = model[0].auto_model
    write_modules(folder, plugins.plugins_of(network.model.config.encodings))


class StepCallback(TrainerCallback):
    """Clamp parameters after each step, log the last, refuse NaN and Inf."""

    def __init__(self, model: SentenceTransformer):
        network: Any = model[0].auto_model
        self.network = network.model

    def on_step_end(self, arguments, state, control, **_):
        self.network.clamp_parameters_()
        if state.global_step == state.max_steps:
            control.should_log = True

    def on_log(self, arguments, state, control, logs, **_):
        if not math.isfinite(logs.get("loss", 0)):
            raise InputError(
                f"the loss is {logs['loss']} at step {state.global_step}: "
                "use a lower --lr and another --out_dir"
            )


class EncoderTrainer(SentenceTransformerTrainer):
    """Trainer with InputErrors for unwritable or corrupt checkpoints."""

    def _save_checkpoint(self, *arguments):
        with writing(Path(str(self.args.output_dir))):
            super()._save_checkpoint(*arguments)

    def _load_from_checkpoint(self, folder: str):
        with hub.input_errors(folder, "remove it", is_local=True):
            super()._load_from_checkpoint(folder)


def read_config(folder: str, remedy: str = "pass another folder") -> dict:
    """Return the settings of a folder's network.

    Raises InputError if they are not those of an encoder, or need a plugin.
    """
    path = Path(folder) / "config.json"
    config = read_json(path, remedy, dict)
    if config.get("model_type") != PosencConfig.model_type or config.get("causal", True):
        raise InputError(f"{folder} holds no encoder of this repository: {remedy}")
    check(config, Settings, path, f"write it again, or {remedy}")
    plugins.check_loaded(config, folder)
    return config
