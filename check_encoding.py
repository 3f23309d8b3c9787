"""Check a positional encoding by the tests of all registered encodings.

    python check_encoding.py my_encoding.py  # all encodings that the file defines
    python check_encoding.py my_encoding.py --pe rope+mine  # a combination, or with options
    python check_encoding.py --pe cable  # an encoding of this repository

Prints a table of checks, each with the measured error and its bound,
and the usual cause of the first failure. Exit status: 0 if no check
failed, 1 if one failed, 2 for invalid input.

A class may define `reference_bias(self, x)`: the formula of the bias in
NumPy, for x (B, T, C) float64, as an array that broadcasts to (B, H, T,
T); later keys do not count. The bias is then compared with it.
"""

import collections
import itertools
import re
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

from runtime import cli, devices

import torch

import pe_spec
import posenc
from errors import InputError
from evaluation import layer_checks, model_checks  # noqa: F401  # both fill CHECKS
from evaluation.checks import CHECKS, CheckFailed, Measurement, NotApplicable
from setting import setting
from training import plugins


@dataclass
class Config:
    """Settings of a check."""

    files: list[str] = setting([], positional=True)
    """Python files with encodings of your own"""
    pe: str | None = None
    """encodings to check, separated by commas; null: all that the files define"""


class Result(NamedTuple):
    """A check's result. status: "ok", "failed" or "not applicable"."""

    status: str
    measurement: Measurement | None = None
    message: str = ""
    cause: str = ""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    specs = specs_to_check(config)
    devices.configure_backends(torch.device("cpu"))
    if sum(map(check_encoding, specs)):
        sys.exit(1)


def specs_to_check(config: Config) -> list[str]:
    """Return the encodings. Raises InputError for invalid files or names."""
    names = [name for path in config.files for name in plugins.load_plugin(path).names]
    if config.pe is None:
        if not names:
            raise InputError("pass a Python file with your encoding, or one as --pe")
        return list(dict.fromkeys(posenc.ENCODINGS[name].names[0] for name in names))
    # a comma before `option=` is part of an encoding
    specs = re.split(r",(?!\w+=)", config.pe)
    for spec in specs:
        pe_spec.parse(spec)
    return specs


def check_encoding(spec: str) -> int:
    """Run and print an encoding's checks; return the number of failures."""
    docs = [(cls.__doc__ or "no docstring").strip() for cls, _ in pe_spec.parse(spec)]
    print(f"\n{spec}: {' | '.join(doc.splitlines()[0] for doc in docs)}\n")
    print(f"{'check':24} {'result':16} {'measured':>10} {'bound':>10}")
    start, counts = time.perf_counter(), collections.Counter()
    for name in CHECKS:
        result = run_check(name, spec)
        print(format_result(name, result, with_cause=not counts["failed"]), flush=True)
        counts[result.status] += 1
        if name in ("options", "shapes") and result.status == "failed":
            print("Other checks need an encoding that can be built, with the right shapes.")
            break
    statuses = ("ok", "failed", "not applicable")
    described = ", ".join(f"{counts[status]} {status}" for status in statuses)
    seconds = time.perf_counter() - start
    print(f"\n{counts.total()} checks of {spec}: {described} ({seconds:.0f} s)")
    if counts["failed"] > 1:
        print("Fix the first failure first: the others may follow from it.")
    return counts["failed"]


def format_result(name: str, result: Result, with_cause: bool) -> str:
    """Return a check's row, and the lines that explain a failure."""
    if result.status == "not applicable":
        return f"{name:24} not applicable: {result.message}"
    value = bound = ""
    if result.measurement:
        value = f"{result.measurement.value:.2g}"
        bound = f"<= {result.measurement.bound:g}"
    status = result.status.replace("failed", "FAILED")
    lines = [f"{name:24} {status:16} {value:>10} {bound:>10}".rstrip()]
    if result.status == "failed":
        lines += [(CHECKS[name].function.__doc__ or "").partition("\n")[0], result.message]
        if result.cause and with_cause:
            lines.append(f"usual cause: {result.cause}")
    return "\n    ".join(lines)


def run_check(name: str, spec: str) -> Result:
    """Run a check, whatever it raises."""
    try:
        with torch.random.fork_rng(devices=[]):
            return Result("ok", measure(name, spec))
    except NotApplicable as reason:
        return Result("not applicable", message=str(reason))
    except CheckFailed as error:
        return Result("failed", error.measurement, str(error), CHECKS[name].cause)
    except Exception as error:
        where = ", ".join([plugins.reason(error), *plugins.lines_in_plugins(error)[-1:]])
        return Result("failed", None, where, usual_cause(name, error))


def measure(name: str, spec: str) -> Measurement | None:
    """Run all cases of a check; return the measurement closest to its bound.

    Raises CheckFailed, NotApplicable to all cases, or the encoding's error.
    """
    check = CHECKS[name]
    specs = [spec]
    if check.function.__module__ == layer_checks.__name__:  # of each layer of a pattern
        specs = dict.fromkeys(pe_spec.layer_specs(spec))
    measured, reasons = [], []
    for layer_spec, case in itertools.product(specs, check.cases):
        try:
            measured += check.function(layer_spec, **case) or ()
        except NotApplicable as reason:
            reasons.append(reason)
    if reasons and not measured:
        raise reasons[0]
    return max(measured, key=lambda m: m.value / m.bound, default=None)


def usual_cause(name: str, error: Exception) -> str:
    """Return the usual cause of an exception, "" for a slip in the code."""
    is_slip = isinstance(error, NameError | AttributeError)
    return "" if is_slip and "__init__() call" not in str(error) else CHECKS[name].cause


if __name__ == "__main__":
    cli.run(main)
