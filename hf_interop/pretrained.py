"""Pretrained weights: models of Hugging Face, and checkpoints of the CABLE authors.

    model, revision, folder, config = load_pretrained("gpt2")  # or a folder, or a file
    tokenizer, files = tokenizer_of("gpt2", folder, model)
    if config := original_config(run, checkpoint["gpt"]):  # None under another encoding
        save_original(model, config, dtype, folder)     # as the class it came from

Weights are read from safetensors and keep their dtype. Those of a GGUF are converted to float32 by
transformers.
"""

import contextlib
import dataclasses
import functools
import io
import os
import re
from pathlib import Path
from typing import Any

from runtime.files import read_json, working_folder_of

import msgspec
import torch
from torch import Tensor

from errors import InputError, refusing
from hf_interop.pretrained_config import settings_of
from model import GPT, GPTConfig
from text_data import hub
from text_data.tokenizer import GPT2_VOCABULARY, from_hugging_face, is_gpt2
from training.checkpoints import check_finite, describe_load_error
from training.run_folder import PRETRAINED

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
}
# Conv1D of GPT-2 stores its matrix transposed.
TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
# Constants in older files.
NOT_READ = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "merges.txt", "*tokens*.json")
WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


class Index(msgspec.Struct):
    """Content of INDEX: names of tensors -> files."""

    weight_map: dict[str, str]


def load_pretrained(
    name: str, block_size: int | None = None
) -> tuple[GPT, str | None, Path | None, dict | None]:
    """Return a model, its commit on the hub, its files and its config.json.

    name: as in import_pretrained.py. block_size: of a CABLE checkpoint, which has no config.json
    and no tokenizer; None: 1024. Raises InputError if the model does not exist or is not supported.
    """
    where, revision, folder, content = name, None, None, None
    if os.path.isfile(name) and not name.endswith(".gguf"):
        if name.endswith(".safetensors"):
            raise InputError(f"{name} is a file: pass its folder, which has config.json")
        settings, weights = _read_cable_v1(name)
        settings["block_size"] = block_size or 1024
    else:
        import transformers  # noqa: F401  (if it is missing, nothing is downloaded)

        folder, revision = _find_folder(name)
        if name.endswith(".gguf"):
            theirs = read_gguf(folder)
            content = theirs.config.to_diff_dict()
            content.pop("quantization_config", None)
            settings = settings_of(where, content)
        else:
            where = f"{name}/config.json"
            content = read_json(folder / "config.json", "name another model", dict)
            content.pop("auto_map", None)  # code of others
            settings = settings_of(where, content)  # before the weights are read
            theirs = _load(name, folder, dtype=_stored_dtype(name, folder))
        weights = theirs.state_dict()
        embedding, head = theirs.get_input_embeddings(), theirs.get_output_embeddings()
        tied = embedding.weight is head.weight
        if settings["tied"] and not tied:
            print(
                f"note: the output layer of {name} differs from its embedding, although its "
                "config ties them: both are kept, as in transformers"
            )
        settings["tied"] = content["tie_word_embeddings"] = tied
    with _naming(where), torch.device("meta"):  # without memory
        model = GPT(GPTConfig(size="custom", **settings))
    if content:
        weights = _convert(weights, model)
    what = f"the weights of {name} do not fit its settings"
    with refusing(what, "name another model", RuntimeError):
        model.load_state_dict(weights, assign=True)
    check_finite(model, name)
    return model, revision, folder, content


def _convert(source: dict[str, Tensor], model: GPT) -> dict[str, Tensor]:
    """Return a state_dict of our model from one of transformers."""
    weights = {}
    for ours in model.state_dict():
        names = _source_names(ours, model.config.block)
        tensors = [source[name] for name in names]
        weights[ours] = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
        if names[0].endswith(TRANSPOSED):
            weights[ours] = weights[ours].T.contiguous()
    return weights


@contextlib.contextmanager
def _naming(where: str):
    """Put the name of a file in front of the problems of the block."""
    try:
        yield
    except InputError as error:
        raise InputError(*(f"{where}: {problem}" for problem in error.problems)) from None


def _find_folder(name: str) -> tuple[Path, str | None]:
    """Return a folder of transformers, local or downloaded, and its commit on the hub."""
    if os.path.exists(name):
        return Path(name), None
    if name.startswith(("/", ".", "~")) or name.endswith((".pt", ".pth", ".bin", ".gguf")):
        raise InputError(
            f"{name} does not exist{working_folder_of(name)}: name a folder of transformers, a "
            "GGUF, or a file of axiomlaborg/Cable"
        )
    patterns = ["config.json", "model*.safetensors", INDEX, *TOKENIZER_FILES]
    remedy = "name a folder with config.json and model.safetensors, or gpt2, …"
    folder = hub.download_model(name, patterns, remedy)
    return folder, folder.name


def tokenizer_of(name: str, folder: Path | None, model: GPT) -> tuple[str, dict[str, bytes]]:
    """Return name and files (OpenAI's GPT-2: none) of a model's tokenizer.

    Raises InputError if there is none, or if it has more tokens than the model.
    """
    found, vocab_size, files = "gpt2", GPT2_VOCABULARY, {}
    paths = []
    if folder:
        paths = [path for pattern in TOKENIZER_FILES for path in folder.glob(pattern)]
    if other := [path for path in paths if not (path.is_file() or path.is_dir())]:
        # Reading may never end.
        raise InputError(f"{other[0]} is not a file: copy it again")
    if paths or name.endswith(".gguf"):
        tokenizer = from_hugging_face(str(folder), name)
        if not is_gpt2(tokenizer):
            found, vocab_size, files = tokenizer.name, tokenizer.vocab_size, tokenizer.files
    elif folder and (model.config.block, model.config.vocab_size) != ("gpt2", vocab_size):
        raise InputError(f"{name} has no tokenizer.json: copy it from the model's source")
    elif folder:
        print(f"note: {name} has no tokenizer: its tokens are taken for those of OpenAI's gpt2")
    if model.config.vocab_size < vocab_size:
        raise InputError(
            f"{name} has a vocabulary of {model.config.vocab_size:,} tokens, but its tokenizer "
            f"{found} has {vocab_size:,}: name another model"
        )
    return found, files


def _source_names(name: str, block: str) -> list[str]:
    """Return transformers' names of the rows of our parameter."""
    if name == "lm_head.weight":
        return [name]
    if name.startswith("posenc."):
        return ["transformer.wpe.weight"]
    if block == "gpt2":
        return [f"transformer.{name}"]
    module, _, parameter = name.rpartition(".")
    prefix = "model."
    if module.startswith("h."):
        _, number, module = module.split(".", 2)
        prefix = f"model.layers.{number}."
    return [f"{prefix}{theirs}.{parameter}" for theirs in LLAMA_NAMES[module]]


def _stored_dtype(name: str, folder: Path) -> torch.dtype:
    """Return the dtype that holds all weights in the files that transformers reads."""
    from safetensors import safe_open

    files = {WEIGHTS}
    if not (folder / WEIGHTS).is_file():
        remedy = "name a folder with safetensors, as save_pretrained of transformers writes"
        files = {*read_json(folder / INDEX, remedy, Index)["weight_map"].values()}
    kinds = set()
    for path in (folder / file for file in files):
        with (
            refusing(f"{path} is missing or corrupt", "copy it again"),
            safe_open(path, "pt") as weights,
        ):
            keys = [key for key in weights.keys() if not key.endswith(NOT_READ)]  # noqa: SIM118
            kinds |= {weights.get_slice(key).get_dtype() for key in keys}
    if other := kinds - DTYPES.keys():
        raise InputError(f"{name} has weights of {', '.join(other)}: name another model")
    return functools.reduce(torch.promote_types, (DTYPES[kind] for kind in kinds))


def _load(name: str, folder: Path, **arguments) -> Any:
    """Return a model of transformers. Raises InputError if its weights do not fit."""
    import transformers

    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    transformers.utils.logging.set_verbosity_error()
    with (
        refusing(f"{name} cannot be read by transformers", "name another model"),
        contextlib.redirect_stderr(io.StringIO()),  # without progress bars
    ):
        model, report = load(
            folder,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported, too
            use_safetensors=True,
            trust_remote_code=False,
            **arguments,
        )
    if problems := [
        f"{what.replace('_', ' ')} {sorted(found)}" for what, found in report.items() if found
    ]:
        raise InputError(
            f"the weights of {name} do not fit its settings ({'; '.join(problems)[:200]}): "
            "name another model"
        )
    return model


def read_gguf(path: Path):
    """Return transformers' model of a GGUF file, float32.

    transformers reads some of the settings and fills in others: raises InputError if it lost or
    added any.
    """
    import gguf
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    with refusing(f"{path} cannot be read", "name another model"):
        reader = gguf.GGUFReader(path)
    model = _load(str(path), path.parent, gguf_file=path.name, dtype=torch.float32)
    found = {key: field.contents() for key, field in reader.fields.items()}
    kind = found["general.architecture"]
    needed = [f"{kind}.{key}" for key, to in GGUF_CONFIG_MAPPING[kind].items() if to]
    problems = {f"no {key}" for key in {*needed} - {*found, f"{kind}.vocab_size"}}
    problems |= {
        f"{key} {found[key]}"
        for key in found.keys() - needed
        if re.search("scal|sliding_window", key) and found[key] not in ("none", 0, 1)
    }
    if (extra := len(reader.tensors) - len([*model.parameters()])) > 0:
        problems |= {x.name for x in reader.tensors if "rope" in x.name} or {f"{extra} tensors"}
    if problems:
        raise InputError(
            f"transformers does not read all of {path} ({', '.join(sorted(problems))[:120]}): "
            "name a folder with safetensors"
        )
    return model


def _read_cable_v1(path: str) -> tuple[dict, dict]:
    """Return settings of GPTConfig and weights of the CABLE authors' checkpoint.

    Their h_attn is the gate of `cable-v1` with its sign changed: -Softplus(z) = log sigmoid(-z).
    Their training code scales logits by 1.
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
        reason = describe_load_error(error)
        raise InputError(
            f"{path} is not a checkpoint of the CABLE authors ({reason}): name one with "
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

    gpt: the run's GPTConfig. Raises InputError if the file is not of this run's model.
    """
    path = run / PRETRAINED
    if not path.is_file():
        return None
    config = read_json(path, "import the model again", dict)
    config.pop("auto_map", None)  # code of others, in runs of earlier versions
    if gpt["block"] == "llama":  # the table of GPT-2 has a fixed length
        config["max_position_embeddings"] = gpt["block_size"]
    settings = settings_of(str(path), config)
    with _naming(str(path)):
        settings = dataclasses.asdict(GPTConfig(size="custom", **settings))
    changed = {key for key, value in settings.items() if gpt[key] != value}
    if wrong := changed - {"pe", "attn_scale", "causal", "attention"}:
        raise InputError(
            f"{path} is not of this run's model ({', '.join(sorted(wrong))} differ): "
            "import the model again"
        )
    return None if changed - {"attention"} else config


def save_original(model: GPT, config: dict, dtype: torch.dtype, folder: Path) -> None:
    """Write a model as the class of transformers that its config.json names."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    with torch.device("meta"):  # without memory
        settings = CONFIG_MAPPING[config["model_type"]].from_dict(config)
        theirs: Any = AutoModelForCausalLM.from_config(settings, dtype=dtype)
    shapes = theirs.state_dict()
    weights = {}
    for ours, tensor in model.state_dict().items():
        names = _source_names(ours, model.config.block)
        if names[0].endswith(TRANSPOSED):
            tensor = tensor.T
        parts = tensor.to(dtype).split([len(shapes[name]) for name in names])
        weights |= {x: part.clone() for x, part in zip(names, parts, strict=True)}
    theirs.load_state_dict(weights, strict=False, assign=True)
    theirs.tie_weights()
    theirs.save_pretrained(folder)
