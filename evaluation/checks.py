"""Table of an encoding's checks, and the measured errors that they yield."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Measurement(NamedTuple):
    """A measured error that must be at most `bound`."""

    value: float
    bound: float


Measurements = Iterator[Measurement]


class CheckFailed(Exception):
    """A check failed: what was found, and the measured number if any."""

    def __init__(self, message: str, measurement: Measurement | None = None):
        super().__init__(message)
        self.measurement = measurement


class NotApplicable(Exception):
    """A check does not apply to an encoding, for the reason given."""


class Check(NamedTuple):
    """A check: its function, and its settings, one for each call."""

    function: Callable[..., Measurements | None]
    cases: list[dict]

    @property
    def cause(self) -> str:
        """The usual cause of a failure, from the function's docstring."""
        return " ".join((self.function.__doc__ or "").partition("Usual cause:")[2].split())


CHECKS: dict[str, Check] = {}  # filled by layer_checks.py and model_checks.py


def check(name: str, **values: Sequence):
    """Return a decorator that adds a function, with all settings, to CHECKS."""
    products = itertools.product(*values.values())
    cases = [dict(zip(values, case, strict=True)) for case in products]

    def add(function):
        CHECKS[name] = Check(function, cases)
        return function

    return add


def require(condition: bool, message: str) -> None:
    """Raise CheckFailed unless the condition holds."""
    if not condition:
        raise CheckFailed(message)


def within(value: float, bound: float, what: str) -> Measurement:
    """Return the measurement; raise CheckFailed if it is above its bound."""
    measurement = Measurement(value, bound)
    if not value <= bound:
        raise CheckFailed(f"{what}: {value:.2g}, at most {bound:.2g} expected", measurement)
    return measurement


def compare(
    actual: Tensor, expected: Tensor, atol: float, rtol: float = 0.0, what: str = "error"
) -> Measurement:
    """Return the largest error, scaled so that its bound is atol (rtol if 0).

    At most atol + rtol |expected|, as in torch.testing.assert_close.
    """
    shapes = tuple(actual.shape), tuple(expected.shape)
    require(shapes[0] == shapes[1], f"{what}: the shape is {shapes[0]}, not {shapes[1]}")
    bound = atol or rtol
    actual, expected = actual.detach().double(), expected.detach().double()
    errors = (actual - expected).abs()
    errors = torch.where(errors == 0, 0, errors / (atol + rtol * expected.abs()))
    largest = errors.max().item() if errors.numel() else 0.0
    return within(largest * bound, bound, what)
