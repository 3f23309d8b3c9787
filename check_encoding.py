"""Check a positional encoding: the tests of all registered encodings, for a file of your own.

    python check_encoding.py my_encoding.py                   # all encodings that the file defines
    python check_encoding.py my_encoding.py --pe rope+mine    # a combination, or with options
    python check_encoding.py --pe cable                       # an encoding of this repository

Prints a table of checks, each with the measured error and its bound, and the
usual cause of the first failure. Then the speed of training and decoding next
to `rope` and `nope`. Takes less than a minute on one CPU core. Exit status: 0
if no check failed, 1 if one failed, 2 for invalid input.

A class may define `reference_bias(self, x)`: the formula of the bias in NumPy,
for x (B, T, C) float64, as an array that broadcasts to (B, H, T, T); later keys
do not count. The bias is then compared with it.
"""

import collections
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from runtime import cli, devices, plugins

import torch

import pe_spec
import posenc
from benchmarking.cases import generation_cases, train_cases
from benchmarking.setting import BASELINES, BenchmarkCase, Setting, interleave, make_entry
from errors import InputError
from evaluation.encoding_checks import CHECKS, Result, run_check
from reporting.formatting import MISSING, Table

SHAPE: dict[str, Any] = {"n_layer": 2, "n_head": 4, "n_embd": 128, "vocab_size": 512}
MICRO_BATCH = 4
TRAINING_CONTEXTS = (256, 1024)  # in tokens
DECODING_CONTEXT = 512
REPEATS = 7  # counted rounds


@dataclass
class Config:
    """Settings of a check."""

    files: list[str] = field(default_factory=list)
    """Python files with encodings of your own"""
    pe: str | None = None
    """encodings to check, separated by commas; null: all that the files define"""
    speed: bool = True
    """measure the speed of training and decoding, too"""


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("files", "Python files with encodings of your own")
    )
    specs = specs_to_check(config)
    devices.configure_backends(torch.device("cpu"))
    failed = 0
    for spec in specs:
        failed += check_encoding(spec)
        if config.speed:
            print_speed(spec)
    if failed:
        sys.exit(1)


def specs_to_check(config: Config) -> list[str]:
    """Return the encodings. Raises InputError for invalid files or names."""
    names, problems = [], []
    for path in config.files:
        try:
            names += plugins.load_plugin(path).names
        except InputError as error:
            raise InputError(*(line.removeprefix("--plugin ") for line in error.problems)) from None
    if config.pe is None:
        if not names:
            raise InputError("name a Python file with your encoding, or an encoding with --pe")
        classes = {posenc.ENCODINGS[name]: name for name in reversed(names)}
        return list(reversed(classes.values()))  # the first name of each class
    specs = re.split(r",(?!\w+=)", config.pe)  # a comma before `option=` is part of an encoding
    for spec in specs:
        try:
            pe_spec.parse(spec)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return specs


def check_encoding(spec: str) -> int:
    """Run and print an encoding's checks; return the number of failures."""
    sources = [str(plugin.path) for plugin in plugins.plugins_of(pe_spec.parse(spec))]
    docs = [(cls.__doc__ or "no docstring").strip() for cls, _ in pe_spec.parse(spec)]
    print(f"\n{spec}: {' | '.join(doc.splitlines()[0] for doc in docs)}\n")
    print(f"{'check':24} {'result':16} {'measured':>10} {'bound':>10}")
    start, counts = time.perf_counter(), collections.Counter()
    for name in CHECKS:
        result = run_check(name, spec, sources)
        print(format_result(result, with_cause=not counts["failed"]), flush=True)
        counts[result.status] += 1
        if name in ("options", "shapes") and result.status == "failed":
            print("The other checks need an encoding that can be built, with the right shapes.")
            break
    statuses = ("ok", "failed", "not applicable")
    described = ", ".join(f"{counts[status]} {status}" for status in statuses)
    seconds = time.perf_counter() - start
    print(f"\n{counts.total()} checks of {spec}: {described} ({seconds:.0f} s)")
    if counts["failed"] > 1:
        print("Fix the first failure first: the others may follow from it.")
    return counts["failed"]


def format_result(result: Result, with_cause: bool) -> str:
    """Return a check's row, and the lines that explain a failure."""
    if result.status == "not applicable":
        return f"{result.name:24} not applicable: {result.message}"
    value = bound = ""
    if result.measurement:
        value, bound = f"{result.measurement.value:.2g}", f"<= {result.measurement.bound:g}"
    status = result.status.replace("failed", "FAILED")
    lines = [f"{result.name:24} {status:16} {value:>10} {bound:>10}".rstrip()]
    if result.status == "failed":
        lines += [(CHECKS[result.name].function.__doc__ or "").partition("\n")[0], result.message]
        if result.cause and with_cause:
            lines.append(f"usual cause: {result.cause}")
    return "\n    ".join(lines)


def print_speed(spec: str) -> None:
    """Print the speed of an encoding next to the baselines."""
    shape = SHAPE | {"n_layer": max(SHAPE["n_layer"], len(pe_spec.layer_specs(spec)))}
    rows = [["", "tokens/s", *(f"vs {name}" for name in BASELINES)]]
    try:
        for context in TRAINING_CONTEXTS:
            label = f"training, {context:,} tokens"
            rows.append(speed_row(label, train_cases, spec, context, shape))
        label = f"decoding at {DECODING_CONTEXT:,} tokens"
        rows.append(speed_row(label, generation_cases, spec, DECODING_CONTEXT, shape))
    except Exception as error:  # of an encoding that failed checks
        print(f"The speed cannot be measured: {type(error).__name__}: {error}")
        return
    print(f"\n{Table(rows).markdown()}")
    print(
        f"Medians of {REPEATS} interleaved rounds, ratios above 1 are faster; "
        f"{shape['n_layer']} layers of width {shape['n_embd']}, {shape['n_head']} heads, "
        f"training with {MICRO_BATCH} sequences, float32, {devices.describe(torch.device('cpu'))}."
    )


def speed_row(label: str, make_cases, spec: str, context: int, shape: dict) -> list[str]:
    """Return a row of the table; rounds of all encodings are interleaved."""
    device = torch.device("cpu")
    setting = Setting("custom", MICRO_BATCH, context, device, torch.float32, False, shape=shape)
    cases: dict[str, BenchmarkCase] = {}
    for pe in (spec, *BASELINES):
        cases |= make_cases(setting, pe)
    if spec not in cases:
        return [label, *[MISSING] * (1 + len(BASELINES))]  # beyond max_context
    prepare = {name: case.prepare for name, case in cases.items()}
    seconds = interleave(prepare, REPEATS, device, label)
    entry = make_entry(spec, cases[spec], seconds, None)
    ratios = [f"{entry['ratios'][name]:.2f}" for name in BASELINES]
    return [label, f"{entry['tokens_per_second']:,.0f}", *ratios]


if __name__ == "__main__":
    cli.run(main)
