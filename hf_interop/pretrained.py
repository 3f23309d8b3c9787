"""Pretrained weights: models of Hugging Face, and checkpoints of the CABLE authors.

    model, revision, folder, config = load_pretrained("gpt2")  # or a folder, or a file
    tokenizer, files = tokenizer_of("gpt2", folder, model)
    if config := original_config(run, checkpoint["gpt"]):  # None under another encoding
        save_original(model, config, dtype, folder)     # as the class it came from

Weights are read from safetensors and keep their dtype. Those of a GGUF
are converted to float32 by transformers.
"""

import contextlib
import dataclasses
import functools
import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.checkpoints import check_finite, describe_load_error
from runtime.files import read_json, working_folder_of
from runtime.run_folder import PRETRAINED

import msgspec
import torch
from torch import Tensor

from errors import InputError, refusing
from hf_interop.pretrained_config import settings_of
from model import GPT, GPTConfig
from text_data import hub
from text_data.tokenizer import GPT2_VOCABULARY, from_hugging_face, is_gpt2

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
TOKENIZER_FILES = ("tokenizer*", "vocab.*", "merges.txt", "*tokens*.json")
INDEX = "model.safetensors.index.json"
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Index(msgspec.Struct):
    """Content of INDEX: names of tensors -> files."""

    weight_map: dict[str, str]


def load_pretrained(
    name: str, block_size: int | None = None
) -> tuple[GPT, str | None, Path | None, dict | None]:
    """Return a model, its commit on the hub, its files and its config.json.

    name: as in import_pretrained.py. block_size: of a CABLE checkpoint,
    which has no config.json and no tokenizer; None: 1024. Raises
    InputError if the model does not exist or is not supported.
    """
    where, source = name, {}
    revision = folder = content = None
    if name.endswith(".gguf"):
        folder = Path(name)
        content, source = read_gguf(folder)
    elif os.path.isfile(name):
        if name.endswith(".safetensors"):
            raise InputError(f"{name} is a file: pass its folder, which has config.json")
        settings, weights = _read_cable_v1(name)
        settings["block_size"] = block_size or 1024
    else:
        import transformers  # noqa: F401  (if it is missing, nothing is downloaded)

        folder, revision = _find_folder(name)
        source = _open_weights(name, folder)
        where = f"{name}/config.json"
        content = read_json(folder / "config.json", "name another model", dict)
    if content is not None:
        content.pop("auto_map", None)  # code of others
        settings = settings_of(where, content)
        settings["tied"] = content["tie_word_embeddings"] = _tie(name, settings, source)
    with _naming(where), torch.device("meta"):  # without memory
        model = GPT(GPTConfig(size="custom", **settings))
    if content is not None:
        weights = _read_weights(name, model, source)
    what = f"the weights of {name} do not fit its settings"
    with refusing(what, "name another model", RuntimeError):
        model.load_state_dict(weights, assign=True)
    check_finite(model, name)
    return model, revision, folder, content


@contextlib.contextmanager
def _naming(where: str):
    """Put the name of a file in front of the problems of the block."""
    try:
        yield
    except InputError as error:
        raise InputError(*(f"{where}: {problem}" for problem in error.problems)) from None


def _find_folder(name: str) -> tuple[Path, str | None]:
    """Return a folder of transformers, local or downloaded, and its commit on the hub."""
    if os.path.isdir(name):
        return Path(name), None
    if name.startswith(("/", ".", "~")):
        raise InputError(
            f"{name} does not exist{working_folder_of(name)}: name a folder of transformers"
        )
    patterns = ["config.json", "model*.safetensors", INDEX, *TOKENIZER_FILES]
    remedy = "name a folder with config.json and model.safetensors, or gpt2, …"
    folder = hub.download_model(name, patterns, remedy)
    return folder, folder.name


def _tie(name: str, settings: dict, source: dict) -> bool:
    """Return whether the output layer is the embedding; copy it to where it is missing."""
    embedding = _source_names("wte.weight", settings["block"])[0]
    tied, head = settings["tied"], source.get("lm_head.weight")
    if not tied or head is None or source.setdefault(embedding, head) is head:
        return tied
    if not (tied := torch.equal(source[embedding](), head())):
        print(
            f"note: the output layer of {name} differs from its embedding, although its "
            "config ties them: both are kept, as in transformers"
        )
    return tied


def tokenizer_of(
    name: str, folder: Path | None, model: GPT
) -> tuple[str, dict[str, bytes]]:
    """Return name and files (OpenAI's GPT-2: none) of a model's tokenizer.

    Raises InputError if there is none, or if it has more tokens than
    the model.
    """
    found, vocab_size, files = "gpt2", GPT2_VOCABULARY, {}
    paths = (
        [path for pattern in TOKENIZER_FILES for path in folder.glob(pattern)]
        if folder
        else []
    )
    if other := [path for path in paths if not (path.is_file() or path.is_dir())]:
        raise InputError(
            f"{other[0]} is not a file: copy it again"
        )  # reading may never end
    if paths or (folder and folder.suffix == ".gguf"):
        tokenizer = from_hugging_face(str(folder), name)
        if not is_gpt2(tokenizer):
            found, vocab_size, files = tokenizer.name, tokenizer.vocab_size, tokenizer.files
    elif folder and (model.config.block, model.config.vocab_size) != ("gpt2", vocab_size):
        raise InputError(f"{name} has no tokenizer.json: copy it from the model's source")
    elif folder:
        print(
            f"note: {name} has no tokenizer: its tokens are taken for those of OpenAI's gpt2"
        )
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


def _open_weights(name: str, folder: Path) -> dict[str, Callable[[], Tensor]]:
    """Return {name in `_source_names`: function that reads the tensor}.

    Reads the files that transformers reads: one, or those of the index.
    """
    from safetensors import SafetensorError, safe_open

    single, index = folder / "model.safetensors", folder / INDEX
    if single.is_file():
        paths = [single]
    elif index.is_file():
        files = read_json(index, "copy it again", Index)["weight_map"].values()
        paths = [folder / file for file in sorted({*files})]
    elif older := [*folder.glob("*.bin")]:
        remedy = "load it in transformers and write it by save_pretrained"
        raise InputError(f"'{name}' has {older[0].name}, and no safetensors: {remedy}")
    else:
        raise InputError(
            f"no model at '{name}' (no model.safetensors): name a folder of transformers, or, "
            "with internet access, a model on the hub"
        )
    source = {}
    for path in paths:
        with refusing(
            f"{path} is missing or corrupt", "copy it again", (OSError, SafetensorError)
        ):
            file = safe_open(path, "pt")
        for key in file.keys():  # noqa: SIM118
            name = re.sub(r"^(model|transformer)\.", "", key)
            source[name] = functools.partial(file.get_tensor, key)
    return source


def read_gguf(path: Path) -> tuple[dict, dict[str, Callable[[], Tensor]]]:
    """Return config.json and weights, as `_open_weights`, of a GGUF file.

    transformers reads some of the settings and fills in others: raises
    InputError if it lost or added any.
    """
    import gguf
    from transformers import AutoModelForCausalLM
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    load: Any = AutoModelForCausalLM.from_pretrained
    with (
        refusing(f"{path} cannot be read by transformers", "name another file"),
        contextlib.redirect_stderr(io.StringIO()),  # without progress bars
    ):
        reader = gguf.GGUFReader(path)
        model, report = load(
            path.parent,
            gguf_file=path.name,
            dtype=torch.float32,
            output_loading_info=True,
        )
    found = {key: field.contents() for key, field in reader.fields.items()}
    kind = found["general.architecture"]
    needed = [f"{kind}.{key}" for key, to in GGUF_CONFIG_MAPPING[kind].items() if to]
    problems = report["missing_keys"] | {*needed} - {*found, f"{kind}.vocab_size"}
    problems = {f"no {key}" for key in problems}
    problems |= {
        f"{key} {found[key]}"
        for key in found.keys() - needed
        if re.search("scal|sliding_window", key) and found[key] not in ("none", 0, 1)
    }
    if (extra := len(reader.tensors) - len([*model.parameters()])) > 0:
        problems |= {x.name for x in reader.tensors if "rope" in x.name} or {
            f"{extra} tensors"
        }
    if problems:
        raise InputError(
            f"transformers does not read all of {path} ({', '.join(sorted(problems))[:120]}): "
            "name a folder with safetensors"
        )
    content = model.config.to_diff_dict()
    content.pop("quantization_config", None)
    weights = {
        re.sub(r"^(model|transformer)\.", "", x): y for x, y in model.state_dict().items()
    }
    return content, {key: functools.partial(Tensor.detach, x) for key, x in weights.items()}


def _read_weights(name: str, model: GPT, source: dict) -> dict:
    """Return a state_dict. Raises InputError for missing, unknown and wrong weights."""
    block, expected = model.config.block, model.state_dict()
    names = {ours: _source_names(ours, block) for ours in expected}
    needed = {theirs for parts in names.values() for theirs in parts}
    unknown = {theirs for theirs in source.keys() - needed if not theirs.endswith(NOT_READ)}
    for verb, found in (("lacks", needed - source.keys()), ("has unknown", unknown)):
        if found:
            listed = ", ".join(sorted(found))[:120]
            raise InputError(f"'{name}' {verb} weights ({listed}): name another model")
    weights = {}
    for ours, parts in names.items():
        tensors = [source[theirs]() for theirs in parts]
        if block == "gpt2" and ours.endswith(TRANSPOSED):
            tensors = [tensors[0].T.contiguous()]
        shapes = [part.shape for part in expected[ours].split(_rows(model, ours))]
        for theirs, tensor, shape in zip(parts, tensors, shapes, strict=True):
            if tensor.shape != shape or tensor.dtype not in DTYPES:
                raise InputError(
                    f"the weights of {name} do not fit its settings ({theirs} is {tensor.dtype} "
                    f"{tuple(tensor.shape)}, not {tuple(shape)} of float): name another model"
                )
        weights[ours] = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return weights


def _rows(model: GPT, ours: str) -> list[int] | int:
    """Return the rows of the parts of our matrix, as of split."""
    c = model.config
    parts = len(_source_names(ours, c.block))
    heads = (c.n_head, c.n_kv_head, c.n_kv_head)
    rows = {2: [c.n_inner] * 2, 3: [n * c.head_dim for n in heads]}  # of joined matrices
    return rows.get(parts, len(model.state_dict()[ours]))


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

    gpt: the run's GPTConfig. Raises InputError if the file is not of
    this run's model.
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
    """Write config.json and the weights, converted to dtype."""
    from huggingface_hub import save_torch_state_dict
    from safetensors import SafetensorError

    weights = {name: tensor.to(dtype) for name, tensor in _original_weights(model).items()}
    try:
        save_torch_state_dict(weights, folder)
    except SafetensorError as error:  # a full disk
        raise OSError(str(error)) from error
    config = config | {"dtype": str(dtype).removeprefix("torch.")}
    config.pop("torch_dtype", None)  # the older name
    text = json.dumps(config, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def _original_weights(model: GPT) -> dict[str, Tensor]:
    """Return copies of the weights under transformers' names."""
    block = model.config.block
    prefix = "transformer." if block == "gpt2" else "model."
    weights = {}
    for ours, tensor in model.state_dict().items():
        names = _source_names(ours, block)
        parts = tensor.split(_rows(model, ours))
        if block == "gpt2" and ours.endswith(TRANSPOSED):
            parts = [tensor.T]
        for name, part in zip(names, parts, strict=True):
            name = name if name.startswith("lm_head") else prefix + name
            weights[name] = part.clone(memory_format=torch.contiguous_format)
    return weights
