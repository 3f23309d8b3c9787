"""Schemas of JSON files: types for msgspec, and the check of a value.

    point = fields({"step": Count, "loss?": Number | None})
    find_mismatch([{"step": -1}], list[point])  # "expected int >= 0 at …"

1.0 is no integer, True is no number, and a number with a range is neither NaN
nor, with two ends, Inf. This module does not import PyTorch.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

MAX_INTEGER = 2**63 - 1
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

Text: Any = Annotated[str, Meta(pattern=TEXT, max_length=1000)]
Name: Any = Annotated[str, Meta(pattern=NAME, max_length=200)]
"""part of a file name"""
LengthKey: Any = Annotated[str, Meta(pattern=LENGTH_KEY)]
SeedKey: Any = Annotated[str, Meta(pattern=SEED_KEY)]
PythonFile: Any = Annotated[str, Meta(pattern=PYTHON_FILE, max_length=200)]
Sha256: Any = Annotated[str, Meta(pattern=SHA256)]
Count: Any = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Length: Any = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


def fields(types: dict[str, Any], **options: Any) -> Any:
    """Return the type of an object with these fields; "name?" may be missing.

    types: a key has one or several names. options: of msgspec.defstruct.
    """
    named = [(name, type_) for names, type_ in types.items() for name in names.split()]
    required = [(name, type_) for name, type_ in named if not name.endswith("?")]
    optional = [(name[:-1], type_, None) for name, type_ in named if name.endswith("?")]
    return msgspec.defstruct("Object", [*required, *optional], **options)


def find_mismatch(value, schema) -> str | None:
    """Return the first difference between a value and its schema, or None.

    It is msgspec's message with patterns in words, fields as in a.b[1].
    """
    try:
        msgspec.convert(value, schema)
        return None
    except UnicodeEncodeError:
        return "expected Unicode without surrogates in the names of fields"
    except msgspec.ValidationError as error:
        message = str(error).replace("`key` in `", "a key of `").replace("`$.", "`")
    for pattern, words in WORDS.items():
        message = message.replace(f"`str` matching regex {pattern!r}", words)
    message = message.replace("Object missing", "missing").replace("`", "")
    return f"{message[0].lower()}{message[1:]}".replace(" - at ", " at ")
