"""The Triton kernels as machine code, in processes of their own: this one may be that of Triton's interpreter, which compiles nothing."""

import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

from errors import InputError

pytest.importorskip("triton", reason="triton is not installed")
import kernels  # noqa: E402
import machine_code  # noqa: E402

COMPILE = """
import re
import kernels, machine_code
for kind, causal in [*((kind, True) for kind in kernels.KINDS), ("pieces", False), ("fall", False)]:
    for name in machine_code.names(kind):
        ptx = machine_code.compiled(kind, name, causal=causal).ptx
        print(kind, name, *(bool(re.search(word, ptx)) for word in ("wgmma.mma_async", "cp.async", r"\\b(atom|red)\\.")))
"""


def compiling(*command):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-W", "ignore", *command], cwd=ROOT, text=True, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_they_compile_for_hopper():
    """Triton needs no GPU to compile for one: what the interpreter takes, the compiler may not.

    Products run on the tensor cores, tiles are fetched ahead but for FIRE's, whose inner loop forbids it; nothing is added atomically. The
    last seven are FIRE's and a fall's that see both ways.
    """
    assert compiling("-c", COMPILE).splitlines() == [
        f"{kind} {name} True {kind != 'pieces' or name == 'distances'} False"
        for kind in (*kernels.KINDS, "pieces", "fall") for name in machine_code.names(kind)]


def test_what_they_issue_is_told(tmp_path):
    """Each pair takes an exponential and two to four products, at least; a bias costs, and FIRE's and k-cable's the most; what does not
    learn saves its gradient."""
    table = compiling("bench.py", "instructions", "--out", str(tmp_path / "out.json"))
    result = json.loads((tmp_path / "out.json").read_text())["instructions"]
    assert list(result["kinds"]) == [*kernels.KINDS, "fall, g fixed", "fall, all fixed"] and result["gpu"] == "sm_90"
    cycles = {kind: {name: code["cycles"] for name, code in codes.items()} for kind, codes in result["kinds"].items()}
    for name in ("forward", "rows", "columns"):
        exponentials = machine_code.PAIRS / 32 / 4  # instructions of a warp, to the four schedulers
        assert 5 * exponentials < cycles["none"][name] < cycles["fall"][name] < cycles["log-fall"][name] < 50 * exponentials
    assert cycles["fall, all fixed"]["rows"] < cycles["fall, g fixed"]["rows"] < cycles["fall"]["rows"]
    assert cycles["fall, all fixed"]["columns"] < cycles["fall, g fixed"]["columns"] == cycles["fall"]["columns"]
    for codes in result["kinds"].values():
        assert all(32 < code["registers"] <= 255 and 0 < code["shared"] <= 227 * 1024 for code in codes.values())
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
    assert outer == ["HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24", "FMUL R0, R1, R2", "@!P1 BRA `(.L_x_1)"]


def test_the_interpreter_compiles_nothing(monkeypatch):
    monkeypatch.setattr(kernels.INTERPRETED, "value", True)
    with pytest.raises(InputError, match="unset TRITON_INTERPRET"):
        machine_code.compiled("fall", "forward")
