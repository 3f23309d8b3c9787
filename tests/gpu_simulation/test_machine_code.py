"""Tests of the compiled Triton kernels on a simulated GPU, and of their machine-code statistics.

Triton compiles in processes of its own, because this process may be running Triton's interpreter.
"""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

from errors import InputError

pytest.importorskip("triton", reason="Triton is not installed")
from gpu_simulation import emulator, machine_code  # noqa: E402

from triton_attention import kernels  # noqa: E402
from triton_attention.bias import KINDS  # noqa: E402

RUN_CASES = """
import json, sys
import torch
import kernel_cases
from gpu_simulation import emulator
from triton_attention import interface, operators

interface.runs_on = lambda device: True
operators.SEQUENCES = 2
results = []
for capability, kind, causal, B, T, D, dtype, *window_size in json.loads(sys.argv[1]):
    options = {"causal": causal}
    if window_size:
        options["window_size"] = window_size[0]
    inputs = kernel_cases.make_inputs(kind, T, T, D, B=B, H=1, causal=causal)
    with emulator.simulated_gpu(capability) as launched:
        errors = kernel_cases.relative_errors(kind, inputs, getattr(torch, dtype), **options)
    results.append((errors, {program.name: program.asm["ptx"] for program in launched}))
print(json.dumps(results))
"""

RUN_WITHOUT = """
import re, sys
import torch
import kernel_cases
from gpu_simulation import emulator
from triton_attention import interface

interface.runs_on = lambda device: True
inputs = kernel_cases.make_inputs("decay", 200, 200, 64, B=1, H=1)
for instruction in sys.argv[1:]:
    def remove(ptx):
        return re.sub(instruction + r"[^;]*;", "", ptx)
    try:
        with emulator.simulated_gpu(90, edit_ptx=remove):
            kernel_cases.relative_errors("decay", inputs, torch.bfloat16)
    except AssertionError as error:
        print(error)
"""

# FIRE's kernels take longest to compile: test_compiled_kernels_match_formulas compiles them.
STATISTICS = """
import sys
from gpu_simulation import machine_code
machine_code.KINDS = machine_code.KINDS[:-1]
machine_code.main(["--out", sys.argv[1]])
"""


def run_compiling(*arguments):
    """Run Python in a process whose Triton compiles and return its standard output."""
    folders = (".", "tests", "tests/triton_attention")
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in folders),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=ROOT,
        text=True,
        capture_output=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# compute capability, kind, causal, sequences, tokens, head dimension, dtype, window size
CASES = {
    "kinds": [
        (90, kind, True, 3 if kind == "distance" else 1, 200, 64, "bfloat16") for kind in KINDS
    ],
    "bidirectional": [
        (90, "decay", False, 1, 200, 64, "bfloat16"),
        (90, "piecewise-linear", False, 1, 200, 64, "bfloat16"),
        (90, "distance", False, 1, 200, 64, "bfloat16", 70),
    ],
    "other sizes": [
        (90, "decay", True, 1, 200, 16, "float16"),
        (90, "log-decay", True, 1, 200, 80, "bfloat16"),
        (90, "decay", True, 1, 40, 64, "float32"),
    ],
    "RTX 4090": [
        (89, "distance", True, 1, 200, 64, "bfloat16"),
        (89, "piecewise-linear", True, 1, 140, 128, "bfloat16"),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_compiled_kernels_match_formulas(name):
    """The compiled kernels agree with the formulas in float64.

    Products use tensor cores, except in float32. Tiles are prefetched, except FIRE's on Hopper,
    whose inner loop prevents it. Nothing is accumulated with atomics.
    """
    results = json.loads(run_compiling("-c", RUN_CASES, json.dumps(CASES[name])))
    for case, (errors, programs) in zip(CASES[name], results, strict=True):
        capability, kind, _, _, _, _, dtype, *_ = case
        tolerance = torch.finfo(getattr(torch, dtype)).eps * (10 if dtype == "float32" else 1)
        # Terms of these gradients cancel, but their rounding errors do not.
        factors = {"g": 5, "slopes": 3} if kind == "piecewise-linear" else {}
        for leaf, error in errors.items():
            assert error < tolerance * factors.get(leaf, 1), (case, leaf, errors)
        expected = {machine_code.KERNELS[name].fn.__name__ for name in machine_code.names(kind)}
        assert set(programs) == expected
        for program, ptx in programs.items():
            product = "wgmma.mma_async" if capability == 90 else "mma.sync"
            assert (product in ptx) == (dtype != "float32"), (case, program)
            if kind != "piecewise-linear" or program.endswith("distances"):
                assert "cp.async" in ptx, (case, program)
            assert not re.search(r"\b(atom|red)\.", ptx), (case, program)


def test_missing_synchronization_is_detected():
    """Without a barrier, wait or fence the result of the forward pass depends on the warp order."""
    removed = "bar.sync", r"cp\.async\.wait_group", r"wgmma\.wait_group", r"fence\.proxy"
    assert run_compiling("-c", RUN_WITHOUT, *removed).splitlines() == [
        "reads what another warp writes",
        "reads what an asynchronous copy writes",
        "writes what an asynchronous copy or product uses",
        "a product reads what no fence made visible",
    ]


@pytest.mark.parametrize(
    "accesses, message",
    [
        ("write 0 5, read 1", "reads what another warp writes"),
        ("write 0 5, barrier, read 1, read 0", None),
        ("read 0, write 1 5", "writes what another warp reads"),
        ("read 0, read 1, write 0 5", "writes what another warp reads"),
        ("write 0 5, write 1 6", "writes what another thread writes"),
        ("write 0 5, write 0 6, read 0", None),
        ("write 0 5, write 1 5", None),
        ("write 0 5, write 1 5, read 0", "reads what another warp writes"),
    ],
)
def test_race_detection_between_barriers(accesses, message):
    """Each access is a method of SharedMemory, a warp and, to write, a value; all at one byte."""
    memory = emulator.SharedMemory(4)
    raised = None
    for access in accesses.split(", "):
        method, *numbers = access.split()
        arguments = [np.array([[int(number)]]) for number in numbers]
        if method != "barrier":
            arguments.insert(0, np.array([[2]]))
        try:
            getattr(memory, method)(*arguments)
        except emulator.RaceError as error:
            raised = str(error)
    assert raised == message


def test_machine_code_statistics(tmp_path):
    """A biased kernel issues more instructions, and one with fewer gradients issues fewer.

    Each pair of query and key needs an exponential and two to four products at least.
    """
    table = run_compiling("-c", STATISTICS, str(tmp_path / "out.json"))
    record = json.loads((tmp_path / "out.json").read_text())["instructions"]
    assert list(record["kinds"]) == [*KINDS[:-1], "decay, g fixed", "decay, all fixed"]
    assert record["gpu"] == "sm_90"
    cycles = {
        kind: {name: code["cycles"] for name, code in codes.items()}
        for kind, codes in record["kinds"].items()
    }
    exponentials = machine_code.PAIRS / 32 / 4  # instructions per warp, on four schedulers
    for name in ("forward", "rows", "columns"):
        none, decay, log_decay = (cycles[kind][name] for kind in ("none", "decay", "log-decay"))
        assert 5 * exponentials < none < decay < log_decay < 50 * exponentials
    both, g_fixed, all_fixed = (
        cycles[kind] for kind in ("decay", "decay, g fixed", "decay, all fixed")
    )
    assert all_fixed["rows"] < g_fixed["rows"] < both["rows"]
    assert all_fixed["columns"] < g_fixed["columns"] == both["columns"]
    for codes in record["kinds"].values():
        for code in codes.values():
            assert 32 < code["registers"] <= 255
            assert 0 < code["shared"] <= 227 * 1024
    assert re.search(rf"\| +decay \| +{cycles['decay']['forward']:,.0f} \|", table)
    decay = record["kinds"]["decay"]["forward"]
    resources = f"{decay['registers']}, {decay['stack']}, {decay['shared'] / 1024:.0f} KB"
    assert re.search(rf"\| +decay \| +{resources} \|", table)


DISASSEMBLY = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;
.L_x_0:
        /*0020*/                   FADD R0, R1, R2 ;
        /*0030*/              @P0  BRA `(.L_x_0) ;
        /*0040*/                   FMUL R0, R1, R2 ;
        /*0050*/              @!P1 BRA `(.L_x_1) ;
        /*0060*/                   BRA `(.L_x_2) ;
        /*0070*/                   EXIT ;
.L_x_2:
        /*0080*/                   BRA `(.L_x_2);
"""


def test_loops_of_disassembly():
    """An inner loop's instructions are not the outer loop's, and forward branches are no loops."""
    inner, outer = machine_code.loops(DISASSEMBLY)
    assert inner == ["FADD R0, R1, R2", "@P0  BRA `(.L_x_0)"]
    assert outer == [
        "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24",
        "FMUL R0, R1, R2",
        "@!P1 BRA `(.L_x_1)",
    ]


def test_interpreter_cannot_compile(monkeypatch):
    monkeypatch.setattr(kernels.INTERPRETED, "value", True)
    with pytest.raises(InputError, match="unset TRITON_INTERPRET"):
        machine_code.compile_kernel("decay", "forward")
