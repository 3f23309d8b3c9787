"""Settings of models of Hugging Face in terms of GPTConfig.

    settings = settings_of(name, content_of_config_json)

The encoding is one: settings["pe"] is "rope:base=500000",
"rope@3_nope@1", ….
"""

import itertools

from errors import InputError

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
}
ROPE_TYPES = {  # rope_type -> encoding
    "default": "rope:",
    "linear": "rope-pi:",
    "llama3": "rope-llama3:",
    "yarn": "yarn:ramp=released,",
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


def settings_of(name: str, content: dict) -> dict:
    """Return the fields of GPTConfig of a model, from its config.json.

    Only the weights show `qkv_bias` and `qk_norm`. name: for messages.
    Raises InputError for other architectures and variants.
    """
    from transformers import CONFIG_MAPPING

    kind = content.get("model_type")
    if kind not in MODELS:
        raise InputError(
            f"'{name}' is a model of type {kind}: use one of {', '.join(MODELS)}"
        )
    try:
        config = CONFIG_MAPPING[kind].from_dict(content)
    except Exception as error:  # of the many checks of transformers
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{name}/config.json is wrong ({reason}): copy it again") from None
    for key, values in SUPPORTED.items():
        if getattr(config, key, values[0]) not in values:
            raise InputError(
                f"'{name}' has {key} {getattr(config, key)}, but only "
                f"{' or '.join(map(str, values))} is supported: name another model"
            )
    known = [key for key in SETTINGS if hasattr(config, key)]
    found = {SETTINGS[key]: getattr(config, key) for key in known}
    if kind == "gpt2":
        return found | {"block": "gpt2", "pe": "learnable"}
    return found | {"block": "llama", "pe": _join_layers(_encodings(name, config))}


def _encodings(name: str, config) -> list[str]:
    """Return the --pe string of each layer of a model with RoPE."""
    rope = _rope(name, config.rope_parameters)
    layers = config.num_hidden_layers
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    rotated = getattr(config, "no_rope_layers", None) or [1] * layers  # 1: has RoPE
    encodings = [rope if is_rotated else "nope" for is_rotated in rotated]
    return [
        f"window:w={window}+{encoding}"
        if window and kind == "sliding_attention"
        else encoding
        for encoding, kind in zip(encodings, kinds, strict=True)
    ]


def _rope(name: str, parameters: dict) -> str:
    """Return the --pe string of transformers' rope_parameters."""
    kind = parameters["rope_type"]
    if kind not in ROPE_TYPES:
        known = " or ".join(ROPE_TYPES)
        raise InputError(f"'{name}' has the rope_type {kind}: use a model with {known}")
    options = []
    for key, value in parameters.items():
        if key in ROPE_OPTIONS and value == int(value):
            options.append(f"{ROPE_OPTIONS[key]}={int(value)}")
        elif key not in ("type", "rope_type") and value not in (
            None,
            ROPE_CONSTANTS.get(key),
        ):
            raise InputError(
                f"'{name}' has {key} {value} among its rope_parameters, which is not supported: "
                "name another model"
            )
    return ROPE_TYPES[kind] + ",".join(options)


def _join_layers(layers: list[str]) -> str:
    """Return one --pe string for all layers: the inverse of layer_specs."""
    count = len(layers)
    period = next(n for n in range(1, count + 1) if layers[: count - n] == layers[n:])
    if period == 1:
        return layers[0]
    groups = [
        (spec, len(list(group))) for spec, group in itertools.groupby(layers[:period])
    ]
    return "_".join(f"{spec}@{length}" for spec, length in groups)
