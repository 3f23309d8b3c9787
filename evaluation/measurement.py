"""Measured errors with bounds: what the checks of an encoding return and raise."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Measurement:
    """A measured number that must be at most `bound`, or at least `bound` if `at_least`."""

    value: float
    bound: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the number is within its bound; NaN is not."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    @property
    def closeness(self) -> float:
        """How close the number is to its bound, to order measurements: 1 is at the bound."""
        if self.value != self.value:
            return torch.inf
        over, under = (self.bound, self.value) if self.at_least else (self.value, self.bound)
        return over / under if under else torch.inf


class CheckFailed(Exception):
    """A check failed: what was found, the usual cause, and the measured number if there is one."""

    def __init__(self, message: str, cause: str = "", measurement: Measurement | None = None):
        super().__init__(message)
        self.cause = cause
        self.measurement = measurement


class NotApplicable(Exception):
    """A check does not apply to an encoding, for the reason given."""


def require(condition: bool, message: str, cause: str = "") -> None:
    """Raise CheckFailed unless the condition holds."""
    if not condition:
        raise CheckFailed(message, cause)


def within(measurement: Measurement, what: str, cause: str = "") -> Measurement:
    """Return the measurement. Raises CheckFailed if it is beyond its bound."""
    if not measurement.holds:
        limit = "at least" if measurement.at_least else "at most"
        raise CheckFailed(
            f"{what}: {measurement.value:.2g}, {limit} {measurement.bound:.2g} expected",
            cause,
            measurement,
        )
    return measurement


def compare(
    what: str, actual: Tensor, expected: Tensor, atol: float, rtol: float = 0.0, cause: str = ""
) -> Measurement:
    """Return the largest error of `actual`, scaled so that its bound is atol (rtol if atol is 0).

    The condition is that of torch.testing.assert_close: equal shapes, and an error of at most
    atol + rtol |expected| everywhere. Raises CheckFailed, with `what` in the message, otherwise.
    """
    shapes = tuple(actual.shape), tuple(expected.shape)
    require(shapes[0] == shapes[1], f"{what}: the shape is {shapes[0]}, not {shapes[1]}", cause)
    bound = atol or rtol
    actual, expected = actual.detach().double(), expected.detach().double()
    allowed = atol + rtol * expected.abs()
    errors = (actual - expected).abs()
    errors = torch.where(errors == 0, 0, errors / allowed)
    largest = errors.max().item() if errors.numel() else 0.0
    return within(Measurement(largest * bound, bound), what, cause)


def worst(measurements: Sequence[Measurement | None]) -> Measurement | None:
    """Return the measurement that is closest to its bound; None if nothing was measured."""
    found = [measurement for measurement in measurements if measurement is not None]
    return max(found, key=lambda measurement: measurement.closeness, default=None)
