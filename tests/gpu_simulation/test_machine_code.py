"""The Triton kernels as machine code, in processes of their own: this one may be that of Triton's interpreter, which compiles nothing."""

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

pytest.importorskip("triton", reason="triton is not installed")
from gpu_simulation import emulator, machine_code  # noqa: E402

from triton_attention import kernels  # noqa: E402

COMPUTE = """
import json, sys
import torch
import test_kernels
from gpu_simulation import emulator
from triton_attention import kernels

kernels.runs_on, kernels.SEQUENCES, found = lambda device: True, 2, []
for capability, kind, causal, B, T, D, dtype, *window_size in json.loads(sys.argv[1]):
    dtype, settings = getattr(torch, dtype), {"causal": causal, **({"window_size": window_size[0]} if window_size else {})}
    with emulator.gpu(capability) as launched:
        errors = test_kernels.errors(kind, test_kernels.case(kind, T, T, D, B=B, H=1, causal=causal), dtype, **settings)
    found.append((errors, {program.name: program.asm["ptx"] for program in launched}))
print(json.dumps(found))
"""

MISSING = """
import re, sys
import torch
import test_kernels
from gpu_simulation import emulator
from triton_attention import kernels

kernels.runs_on = lambda device: True
leaves = test_kernels.case("fall", 200, 200, 64, B=1, H=1)
for what in sys.argv[1:]:
    try:
        with emulator.gpu(90, mend=lambda ptx: re.sub(what + r"[^;]*;", "", ptx)) as launched:
            test_kernels.errors("fall", leaves, torch.bfloat16)
    except AssertionError as error:
        print(error)
"""


def compiling(*command):
    """What a command prints in a process whose Triton compiles."""
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "PYTHONPATH": os.pathsep.join(
            str(ROOT / part) for part in (".", "tests", "tests/triton_attention")
        ),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=ROOT,
        text=True,
        capture_output=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


CASES = {  # (GPU, kind, causal, sequences, tokens, head size, dtype, reach)
    "kinds": [
        (90, kind, True, 3 if kind == "distance" else 1, 200, 64, "bfloat16")
        for kind in kernels.KINDS
    ],
    "both ways": [
        (90, "fall", False, 1, 200, 64, "bfloat16"),
        (90, "pieces", False, 1, 200, 64, "bfloat16"),
        (90, "distance", False, 1, 200, 64, "bfloat16", 70),
    ],
    "other sizes": [
        (90, "fall", True, 1, 200, 16, "float16"),
        (90, "log-fall", True, 1, 200, 80, "bfloat16"),
        (90, "fall", True, 1, 40, 64, "float32"),
    ],
    "RTX 4090": [
        (89, "distance", True, 1, 200, 64, "bfloat16"),
        (89, "pieces", True, 1, 140, 128, "bfloat16"),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_what_they_become_computes_the_formula(name):
    """Triton needs no GPU to compile for one. What it made of them is carried out on one in NumPy, and held to the formulas in float64.

    Products run on the tensor cores, but for float32's; tiles are fetched ahead but for FIRE's on Hopper, whose inner loop forbids it;
    nothing is added atomically.
    """
    for case, (errors, programs) in zip(
        CASES[name], json.loads(compiling("-c", COMPUTE, json.dumps(CASES[name]))), strict=True
    ):
        capability, kind, _, _, _, _, dtype, *_ = case
        bound = torch.finfo(getattr(torch, dtype)).eps * (10 if dtype == "float32" else 1)
        loose = (
            {"g": 5, "slopes": 3} if kind == "pieces" else {}
        )  # what cancels in them is rounded all the same
        assert all(error < bound * loose.get(name, 1) for name, error in errors.items()), (
            case,
            errors,
        )
        assert {*programs} == {
            machine_code.KERNELS[name].fn.__name__ for name in machine_code.names(kind)
        }
        for program, ptx in programs.items():
            product = "wgmma.mma_async" if capability == 90 else "mma.sync"
            assert (product in ptx) == (dtype != "float32"), (case, program)
            assert "cp.async" in ptx or kind == "pieces" and not program.endswith("distances"), (
                case,
                program,
            )
            assert not re.search(r"\b(atom|red)\.", ptx), (case, program)


def test_what_a_gpu_would_do_in_another_order_is_seen():
    """Without its barriers, its waiting and its fences the forward pass is no longer the same whichever warp comes first."""
    missing = "bar.sync", r"cp\.async\.wait_group", r"wgmma\.wait_group", r"fence\.proxy"
    assert compiling("-c", MISSING, *missing).splitlines() == [
        "reads what another warp writes",
        "reads what an asynchronous copy writes",
        "writes what an asynchronous copy or product is about",
        "a product reads what no fence has shown it",
    ]


@pytest.mark.parametrize(
    "accesses, told",
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
def test_what_warps_may_do_between_two_barriers(accesses, told):
    memory, seen = emulator.Shared(4), None
    for what, *numbers in (words.split() for words in accesses.split(", ")):
        places, *numbers = np.array([[2]]), *(np.array([[int(number)]]) for number in numbers)
        try:
            getattr(memory, what)(*([] if what == "barrier" else [places, *numbers]))
        except emulator.RaceError as error:
            seen = str(error)
    assert seen == told


def test_what_they_issue_is_told(tmp_path):
    """Each pair takes an exponential and two to four products, at least; a bias costs, and FIRE's and k-cable's the most; what does not
    learn saves its gradient."""
    table = compiling(machine_code.__file__, "--out", str(tmp_path / "out.json"))
    result = json.loads((tmp_path / "out.json").read_text())["instructions"]
    assert (
        list(result["kinds"]) == [*kernels.KINDS, "fall, g fixed", "fall, all fixed"]
        and result["gpu"] == "sm_90"
    )
    cycles = {
        kind: {name: code["cycles"] for name, code in codes.items()}
        for kind, codes in result["kinds"].items()
    }
    for name in ("forward", "rows", "columns"):
        exponentials = machine_code.PAIRS / 32 / 4  # instructions of a warp, to the four schedulers
        assert (
            5 * exponentials
            < cycles["none"][name]
            < cycles["fall"][name]
            < cycles["log-fall"][name]
            < 50 * exponentials
        )
    assert (
        cycles["fall, all fixed"]["rows"] < cycles["fall, g fixed"]["rows"] < cycles["fall"]["rows"]
    )
    assert (
        cycles["fall, all fixed"]["columns"]
        < cycles["fall, g fixed"]["columns"]
        == cycles["fall"]["columns"]
    )
    for codes in result["kinds"].values():
        assert all(
            32 < code["registers"] <= 255 and 0 < code["shared"] <= 227 * 1024
            for code in codes.values()
        )
    assert re.search(rf"\| +fall \| +{cycles['fall']['forward']:,.0f} \(\d+\) \|", table)


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


def test_loops_are_those_of_the_disassembly():
    """One in another, whose instructions are its own; jumps forward are no loops."""
    inner, outer = machine_code.loops(DISASSEMBLY)
    assert inner == ["FADD R0, R1, R2", "@P0  BRA `(.L_x_0)"]
    assert outer == [
        "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24",
        "FMUL R0, R1, R2",
        "@!P1 BRA `(.L_x_1)",
    ]


def test_the_interpreter_compiles_nothing(monkeypatch):
    monkeypatch.setattr(kernels.INTERPRETED, "value", True)
    with pytest.raises(InputError, match="unset TRITON_INTERPRET"):
        machine_code.compile_kernel("fall", "forward")
