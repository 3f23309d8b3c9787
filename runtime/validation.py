"""Validation of values from files: types, and the check that words an error.

    class Point(msgspec.Struct):
        step: Count
        loss: float | None = None

    find_mismatch({"step": -1}, Point)  # "expected int >= 0 at step"

Unknown fields are ignored, except in a Struct with forbid_unknown_fields. 1.0 is no integer, True
is no number, and a number with a range is neither NaN nor, with two ends, Inf. This module does not
import PyTorch.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from errors import InputError

MAX_INTEGER = 2**63 - 1
# Line breaks, control characters, and changes of the direction of a text.
UNPRINTABLE = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
WORDS = {  # patterns of texts, in words
    rf"\A[^{UNPRINTABLE}]*\Z": "a text of one line",
    rf"\A(?!\.\.?\Z)[^/\\{UNPRINTABLE}]+\Z": 'a name without "/" and "\\"',
    r"\A[1-9][0-9]{0,14}\Z": "a length in tokens",
    rf"\A[^/\\{UNPRINTABLE}]+\.py\Z": "the name of a Python file",
    r"\A[0-9a-f]{64}\Z": "a SHA-256",
}
TEXT, NAME, LENGTH_KEY, PYTHON_FILE, SHA256 = WORDS

Text = Annotated[str, Meta(pattern=TEXT, max_length=1000)]
Name = Annotated[str, Meta(pattern=NAME, max_length=200)]
"""part of a file name"""
LengthKey = Annotated[str, Meta(pattern=LENGTH_KEY)]
PythonFile = Annotated[str, Meta(pattern=PYTHON_FILE, max_length=200)]
Sha256 = Annotated[str, Meta(pattern=SHA256)]
Versions = dict[PythonFile, Sha256] | None  # of files with encodings, in settings
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
Length = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


def find_mismatch(value, type_: Any) -> str | None:
    """Return the first difference between a value and its type, or None.

    It is msgspec's message with patterns in words, fields as in a.b[1].
    """
    try:
        msgspec.convert(value, type_)
        return None
    except UnicodeEncodeError:
        return "expected Unicode without surrogates in the names of fields"
    except msgspec.ValidationError as error:
        message = str(error).replace("`key` in `", "a key of `").replace("`$.", "`")
    for pattern, words in WORDS.items():
        message = message.replace(f"`str` matching regex {pattern!r}", words)
    message = message.replace("Object missing", "missing").replace("`", "")
    return f"{message[0].lower()}{message[1:]}".replace(" - at ", " at ")


def check(value, type_: Any, source, remedy: str) -> None:
    """Raise InputError unless a value of a source has a type."""
    if problem := find_mismatch(value, type_):
        raise InputError(f"{source}: {problem}: {remedy}")
