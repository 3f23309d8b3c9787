"""Settings of models of Hugging Face in terms of GPTConfig.

    settings = settings_of("gpt2/config.json", content)

Each model type has only the settings that its class in transformers declares; other keys of the
file are ignored, as transformers does. The encoding is one: settings["pe"] is "rope:base=500000",
"rope@3_nope@1", ….
"""

import dataclasses
import itertools
import math
from typing import Annotated, Any

from runtime.validation import check

import msgspec
from msgspec import Meta

from errors import InputError, refusing

MODELS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3")  # model_type
SETTINGS = {  # setting of transformers -> field of GPTConfig
    "vocab_size": "vocab_size",
    "max_position_embeddings": "block_size",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "n_embd",
    "num_key_value_heads": "n_kv_head",
    "head_dim": "head_dim",
    "intermediate_size": "n_inner",
    "n_inner": "n_inner",
    "rms_norm_eps": "norm_eps",
    "layer_norm_epsilon": "norm_eps",
    "tie_word_embeddings": "tied",
}
# Settings of variants that model.GPT implements.
SUPPORTED = {
    "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "hidden_act": ("silu",),
    "quantization_config": (None,),
    "transformers_weights": (None,),
}
# Also of types that do not declare them; head_dim: not of GPT-2.
READ_BY_ALL = ("head_dim", "quantization_config", "transformers_weights")
ROPE_TYPES = {  # rope_type -> encoding
    "default": "rope:",
    "linear": "rope-pi:",
    "llama3": "rope-llama3:",
    "yarn": "yarn:ramp=released,",
}
# What the types read that ignore other settings.
ROPE_READ = {
    "default": ["rope_theta"],
    "linear": ["rope_theta", "factor", "partial_rotary_factor"],
}
ROPE_OPTIONS = {"rope_theta": "base", "factor": "factor"}
ROPE_OPTIONS |= {"original_max_position_embeddings": "length"}
# Further rope settings, with the value that the encodings have.
ROPE_CONSTANTS = {
    "low_freq_factor": 1,
    "high_freq_factor": 4,
    "beta_fast": 32,
    "beta_slow": 1,
    "truncate": True,
    "partial_rotary_factor": 1,
}


Size = Annotated[int, Meta(ge=1, le=10**9)]


class Shape(msgspec.Struct):
    """Fields of GPTConfig: larger numbers are errors, and take forever."""

    vocab_size: Size
    block_size: Size
    n_layer: Annotated[int, Meta(ge=1, le=1000)]
    n_head: Size
    n_embd: Size
    norm_eps: Annotated[float, Meta(gt=0, lt=1)]
    tied: bool
    n_kv_head: Size | None = None
    head_dim: Size | None = None
    n_inner: Size | None = None


def settings_of(where: str, content: dict) -> dict:
    """Return the fields of GPTConfig of a model, from its config.json.

    where: the file, for messages. Raises InputError for other architectures and variants.
    """
    from transformers import CONFIG_MAPPING

    kind = content.get("model_type")
    if kind == "mistral" and "layer_types" in content:
        kind = "ministral"  # as transformers
    if kind not in MODELS:
        known = f"one of {', '.join(MODELS)}; of an export, the run itself"
        raise InputError(f"{where} has model_type {kind}: use {known}")
    with refusing(f"{where} is wrong", "copy it again"):  # transformers has many checks
        config = CONFIG_MAPPING[kind].from_dict(content)
    keys = [*config.attribute_map, *READ_BY_ALL]
    keys += [field.name for field in dataclasses.fields(config)]
    own = {key: getattr(config, key, None) for key in keys}
    if kind == "gpt2":
        del own["head_dim"]
    for key, values in SUPPORTED.items():
        if own.get(key, values[0]) not in values:
            raise InputError(
                f"{where} has {key} {own[key]}, but only "
                f"{' or '.join(map(str, values))} is supported: name another model"
            )
    found: dict[str, Any] = {field: own[key] for key, field in SETTINGS.items() if key in own}
    check(found, Shape, where, "copy it again")
    if kind == "gpt2":
        return found | {"block": "gpt2", "pe": "learnable"}
    found |= {"qkv_bias": kind == "qwen2", "qk_norm": kind == "qwen3"}
    return found | {"block": "llama", "pe": _join_layers(_encodings(where, own))}


def _encodings(where: str, own: dict[str, Any]) -> list[str]:
    """Return the --pe string of each layer of a model with RoPE."""
    rope = _rope(where, own["rope_parameters"])
    layers = own["num_hidden_layers"]
    window = own.get("sliding_window")
    kinds = own.get("layer_types") or ["sliding_attention"] * layers
    rotated = own.get("no_rope_layers") or [1] * layers  # 1: has RoPE
    known = {"full_attention", "sliding_attention"}
    if {len(kinds), len(rotated)} != {layers} or not known.issuperset(kinds):
        raise InputError(
            f"{where} has layer_types or no_rope_layers other than full_attention and "
            f"sliding_attention for {layers} layers: name another model"
        )
    encodings = [rope if is_rotated else "nope" for is_rotated in rotated]
    return [
        f"window:w={window}+{encoding}" if window and kind == "sliding_attention" else encoding
        for encoding, kind in zip(encodings, kinds, strict=True)
    ]


def _rope(where: str, parameters: dict) -> str:
    """Return the --pe string of transformers' rope_parameters."""
    kind = str(parameters["rope_type"])
    if kind not in ROPE_TYPES:
        known = " or ".join(ROPE_TYPES)
        raise InputError(f"{where} has the rope_type {kind}: use a model with {known}")
    options = []
    for key in filter(ROPE_READ.get(kind, (*parameters,)).__contains__, parameters):
        value = parameters[key]
        is_whole = type(value) in (int, float) and math.isfinite(value) and value == int(value)
        if key in ROPE_OPTIONS and is_whole:
            options.append(f"{ROPE_OPTIONS[key]}={int(value)}")
        elif key in ROPE_OPTIONS or (
            key not in ("type", "rope_type") and value not in (None, ROPE_CONSTANTS.get(key))
        ):
            raise InputError(
                f"{where} has {key} {value} among its rope_parameters, which is not supported: "
                "name another model"
            )
    return ROPE_TYPES[kind] + ",".join(options)


def _join_layers(layers: list[str]) -> str:
    """Return one --pe string for all layers: the inverse of layer_specs."""
    count = len(layers)
    period = next(n for n in range(1, count + 1) if layers[: count - n] == layers[n:])
    if period == 1:
        return layers[0]
    groups = [(spec, len(list(group))) for spec, group in itertools.groupby(layers[:period])]
    return "_".join(f"{spec}@{length}" for spec, length in groups)
