"""Schemas of JSON files: types for msgspec, and the check of a value.

    point = fields({"step": Count, "loss?": nullable(Number)})
    find_mismatch([{"step": -1}], list[point])  # "expected int >= 0 at …"

1.0 is no integer, True is no number, and a number with a range is neither NaN
nor, with two ends, Inf. This module does not import PyTorch.
"""

import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta

# Settings of train_gpt.py that do not define what is learned.
MAY_CHANGE_ON_RESUME = {
    *("data", "verify_data", "out_dir", "log_every", "val_every", "val_tokens"),
    *("sample_every", "checkpoint_every", "keep_checkpoints", "logger"),
    *("attention", "micro_batch", "activation_checkpointing"),
    *("device", "dtype", "compile", "deterministic"),
}
# Settings that --override may change on resume. All others define the network
# or the data.
MAY_BE_OVERRIDDEN = {
    *("steps", "tokens_per_step", "lr", "min_lr", "warmup_steps", "beta1", "beta2"),
    *(
        "schedule",
        "decay_fraction",
        "weight_decay",
        "grad_clip",
        "mask_rate",
        "seed",
        "plugin",
    ),
}
# Settings that records leave out at these values.
RECORD_DEFAULTS = {"schedule": "cosine", "decay_fraction": 0.2, "optimizer": "adamw"}
RECORD_DEFAULTS |= {"block": "gpt2", "tied": True, "norm_eps": 1e-5}
RECORD_DEFAULTS |= dict.fromkeys(
    ("n_kv_head", "head_dim", "n_inner", "qk_norm", "qkv_bias")
)

MAX_INTEGER = 2**63 - 1
EXP_OVERFLOW = 700.0  # losses from here on have infinite perplexity
# Line breaks, control characters, and changes of the direction of a text.
UNPRINTABLE = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
WORDS = {  # patterns of texts, in words
    rf"\A[^{UNPRINTABLE}]*\Z": "a text of one line",
    rf"\A(?!\.\.?\Z)[^/\\{UNPRINTABLE}]+\Z": 'a name without "/" and "\\"',
    r"\A[1-9][0-9]{0,14}\Z": "a length in tokens",
    r"\A(0|[1-9][0-9]{0,14})\Z": "a seed",
    rf"\A[^/\\{UNPRINTABLE}]+\.py\Z": "the name of a Python file",
    r"\A[0-9a-f]{64}\Z": "a SHA-256",
}
TEXT, NAME, LENGTH_KEY, SEED_KEY, PYTHON_FILE, SHA256 = WORDS

Text = Annotated[str, Meta(pattern=TEXT, max_length=1000)]
Name = Annotated[str, Meta(pattern=NAME, max_length=200)]
"""part of a file name"""
LengthKey = Annotated[str, Meta(pattern=LENGTH_KEY)]
SeedKey = Annotated[str, Meta(pattern=SEED_KEY)]
PythonFile = Annotated[str, Meta(pattern=PYTHON_FILE, max_length=200)]
Sha256 = Annotated[str, Meta(pattern=SHA256)]
Integer = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Length = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Number = Annotated[float, Meta(ge=-1e18, le=1e18)]
NotNegative = Annotated[float, Meta(ge=0, le=1e18)]
Positive = Annotated[float, Meta(ge=1e-18, le=1e18)]
Loss = Annotated[float, Meta(ge=-1e-6, le=1e18)]
Fraction = Annotated[float, Meta(ge=0, le=1 + 1e-6)]
"""sums of fractions are rounded"""
Percent = Annotated[float, Meta(ge=0, le=100)]


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean loss in nats; infinity on overflow."""
    return math.inf if loss >= EXP_OVERFLOW else math.exp(loss)


def fields(types: dict[str, Any], forbid_others: bool = False) -> Any:
    """Return the type of an object with these fields; "name?" may be missing.

    types: a key has one or several names. forbid_others: refuse other fields.
    """
    named = [(name, type_) for names, type_ in types.items() for name in names.split()]
    required = [(name, type_) for name, type_ in named if not name.endswith("?")]
    optional = [(name[:-1], type_, None) for name, type_ in named if name.endswith("?")]
    members = [*required, *optional]
    return msgspec.defstruct("Object", members, forbid_unknown_fields=forbid_others)


def nullable(type_) -> Any:
    """Return the type of null or a value."""
    return type_ | None


def not_empty(type_) -> Any:
    """Return the type of an array or an object with at least one value."""
    return Annotated[type_, Meta(min_length=1)]


def find_mismatch(value, schema) -> str | None:
    """Return the first difference between a value and its schema, or None."""
    try:
        msgspec.convert(value, schema)
    except msgspec.ValidationError as error:
        return _describe(str(error))
    except UnicodeEncodeError:
        return "expected Unicode without surrogates in the names of fields"
    return None


def _describe(message: str) -> str:
    """Return msgspec's message with patterns in words, fields as in a.b[1]."""
    message = message.replace("Object missing", "missing")
    for pattern, words in WORDS.items():
        message = message.replace(f"`str` matching regex {pattern!r}", words)
    message = (
        message.replace("`key` in `", "a key of `").replace("`$.", "`").replace("`", "")
    )
    return f"{message[0].lower()}{message[1:]}".replace(" - at ", " at ")
