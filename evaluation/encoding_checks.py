"""Checks of a positional encoding: registered ones, and a user's own.

    result = run_check("causality", "cable")  # a Result, whatever is raised
    measure("causality", "cable")  # raises CheckFailed or NotApplicable

CHECKS is the table; layer_checks.py and model_checks.py fill it.
"""

import itertools
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import pe_spec
from evaluation import layer_checks, model_checks  # noqa: F401  # both fill CHECKS
from evaluation.measurement import CHECKS, CheckFailed, Measurement, NotApplicable


@dataclass(frozen=True)
class Result:
    """A check's result. status: "ok", "failed" or "not applicable"."""

    name: str
    status: str
    measurement: Measurement | None = None
    message: str = ""
    cause: str = ""


def measure(name: str, spec: str) -> Measurement | None:
    """Run all cases of a check; return the measurement closest to its bound.

    Raises CheckFailed, NotApplicable to all cases, or the encoding's error.
    """
    check = CHECKS[name]
    measurements, reasons = [], []
    specs = [spec]
    if check.function.__module__ == layer_checks.__name__:  # of each layer of a pattern
        specs = dict.fromkeys(pe_spec.layer_specs(spec))
    for layer_spec, case in itertools.product(specs, check.cases):
        try:
            measurements.append([*(check.function(layer_spec, **case) or ())])
        except NotApplicable as reason:
            reasons.append(reason)
    if not measurements:
        raise reasons[0]
    found = itertools.chain(*measurements)
    return max(found, key=lambda measurement: measurement.value / measurement.bound, default=None)


def run_check(name: str, spec: str, sources: Sequence[str] = ()) -> Result:
    """Run a check and return its result, whatever the encoding raises.

    sources: files that define the encoding; messages name the line there.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            return Result(name, "ok", measure(name, spec))
    except NotApplicable as reason:
        return Result(name, "not applicable", message=str(reason))
    except CheckFailed as error:
        cause = error.cause or CHECKS[name].cause
        return Result(name, "failed", error.measurement, str(error), cause)
    except Exception as error:
        return Result(name, "failed", None, _describe(error, sources), _cause(name, error))


def _cause(name: str, error: Exception) -> str:
    """Return the usual cause of an exception, "" for a slip in the code."""
    if isinstance(error, TypeError) and "argument" in str(error):
        return (
            "a hook has other arguments than in posenc.Encoding, which has "
            "features(self, x, pos, previous=None) and bias(self, q_features, k_features, h)"
        )
    is_slip = isinstance(error, NameError | AttributeError) and "__init__() call" not in str(error)
    return "" if is_slip else CHECKS[name].cause


def _describe(error: Exception, sources: Sequence[str]) -> str:
    """Return an exception in one line, with the last line of `sources`."""
    text = str(error)
    first = " ".join(text.partition("\n")[0].split())  # torch.compile's messages have many lines
    message = f"{type(error).__name__}: {first[:200]}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename in sources]
    # torch.compile quotes the user's code.
    quoted = re.findall(r'File "(.*)", line (\d+)', text)
    lines += [int(line) for file, line in quoted if file in sources]
    return f"{message} (line {lines[-1]})" if lines else message
