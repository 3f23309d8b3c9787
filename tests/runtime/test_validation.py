"""Tests of validation: which values fit a type, and how the first mismatch is named."""

import math
from typing import Annotated

from runtime.validation import (
    Count,
    Length,
    LengthKey,
    Name,
    PythonFile,
    Sha256,
    Text,
    find_mismatch,
)

import msgspec
import pytest

from evaluation.record_schema import NOT_EMPTY, Number


class Record(msgspec.Struct):
    a: Length
    b: Annotated[list[Text], NOT_EMPTY]
    c: dict[Name, Number | None]
    d: Name = ""


A, B = {"a": 1}, {"b": ["x"], "c": {}}


@pytest.mark.parametrize(
    "value, problem",
    [
        (A | B | {"c": {"k": None}, "unknown": 1}, None),
        (A | B | {"d": "/"}, 'expected a name without "/" and "\\" at d'),
        ([], "expected object, got array"),
        (A, "missing required field b"),
        ({"a": True} | B, "expected int, got bool at a"),
        ({"a": 1.0} | B, "expected int, got float at a"),
        ({"a": 0} | B, "expected int >= 1 at a"),
        ({"a": 10**30} | B, "expected int <= 9223372036854775807 at a"),
        (A | B | {"b": []}, "expected array of length >= 1 at b"),
        (A | B | {"b": ["x", "\n"]}, "expected a text of one line at b[1]"),
        (A | B | {"c": {"": 1}}, 'expected a name without "/" and "\\" at a key of c'),
        (A | B | {"c": {"k": math.nan}}, "expected float >= -1e+18 at c[...]"),
        (A | B | {"c": {"k": -math.inf}}, "expected float >= -1e+18 at c[...]"),
        (A | B | {"\ud800": 1}, "expected Unicode without surrogates in the names of fields"),
    ],
    ids=str,
)
def test_the_first_wrong_field_is_named(value, problem):
    assert find_mismatch(value, Record) == problem


@pytest.mark.parametrize(
    "kind, good, bad",
    [
        (Count, [0, 2**63 - 1], [-1, 2**63, 1.0, True, "1", None, math.nan]),
        (Length, [1, 2**63 - 1], [0, 2**63, 1.0, True]),
        (Text, ["", "a b", "é", "x" * 1000], ["x\n", "\r", "\0", "\x85", "\u2028", "\ud800"]),
        (Text, [], ["x" * 1001, 1, None]),
        (Name, ["a.b", "...", "-"], ["", ".", "..", "a/b", "a\\b", "a\n", "\0", "x" * 201]),
        (LengthKey, ["1", "1024"], ["0", "007", "-1", "2e3", "1\n", "٣", "1" * 16, ""]),
        (PythonFile, ["a.py"], ["a", ".py", "a/b.py", "a\\b.py", "a.py\n", "x" * 198 + ".py"]),
        (Sha256, ["0f" * 32], ["0F" * 32, "0f" * 31, "0" * 64 + "\n", ""]),
    ],
    ids=str,
)
def test_limits_and_patterns(kind, good, bad):
    assert not [value for value in good if find_mismatch(value, kind)]
    assert not [value for value in bad if not find_mismatch(value, kind)]
