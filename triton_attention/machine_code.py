"""What do the Triton kernels become, compiled for a GPU that need not be there? Registers, memory, and what their inner loops issue.

A multiprocessor of an NVIDIA GPU has four schedulers, each of which issues one instruction of one warp a cycle. So instructions of a loop
times warps over four are the cycles that a pass takes at least, however well everything else is hidden: a bound on speed, no speed.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from errors import InputError
from triton_attention import kernels

HOPPER = GPUTarget("cuda", 90, 32)
HEAD_SIZE = 64
PAIRS = 128 * 64  # of query and key, that cycles are told for
FUNCTIONS = {
    "forward": kernels._forward,
    "rows": kernels._backward_rows,
    "columns": kernels._backward_columns,
    "distances": kernels._backward_distances,
}
INTEGERS, HALVES = {"B", "H", "T", "S"}, {"Q", "K", "V", "Y", "DY", "DQ", "DK", "DV"}


@dataclass
class MachineCode:
    """Of one kernel."""

    cycles: float
    """to issue what PAIRS take, in the inner loop that needs no mask"""
    registers: int
    """of a thread"""
    stack: int
    """bytes of a thread that its registers cannot hold"""
    shared: int
    """bytes of a program"""


def names(kind: str) -> list[str]:
    """The kernels of a kind of bias: those without numbers by distance have no gradient of them."""
    return [name for name in FUNCTIONS if name != "distances" or kind in ("distance", "pieces")]


def compiled(kind: str, name: str, s_learns: bool = True, g_learns: bool = True) -> MachineCode:
    """For a Hopper GPU, causal, in bf16, heads of 64; FIRE's network as wide as it is; tensors aligned as PyTorch's are, lengths multiples
    of 16; S and g get gradients or none. Raises InputError under Triton's interpreter, which compiles nothing.
    """
    if kernels.INTERPRETED.value:
        raise InputError("Triton's interpreter compiles nothing: unset TRITON_INTERPRET")
    function, q = FUNCTIONS[name], torch.empty(1, 1, 1, HEAD_SIZE, dtype=torch.bfloat16)
    pieces = torch.empty(1, 3, 64 if kind == "pieces" else 0)
    chosen = kernels._settings(name, q, pieces, kernels.KINDS.index(kind), True, kernels.FAR)
    options = {x: chosen.pop(x) for x in ("num_warps", "num_stages", "enable_fp_fusion")}
    chosen |= {
        "skips": kernels.leaves_out(kind, kernels.SKIP_TOLERANCE),
        "UNIT": 64,
        "QUERIES": 128,
        "SEQUENCES": kernels.SEQUENCES,
        "s_learns": s_learns,
        "g_learns": g_learns,
    }
    types = (
        dict.fromkeys(INTEGERS, "i32")
        | dict.fromkeys(HALVES, "*bf16")
        | {"KEPT": "*i32", "scale": "fp32"}
    )
    signature, constants, aligned = {}, {}, {}
    for place, x in enumerate(function.arg_names):
        signature[x] = (
            "constexpr" if x in chosen else types.get(x, "*fp32" if x.isupper() else "i32")
        )
        if x in chosen:
            constants[place,] = chosen[x]
        elif x not in ("scale", "B", "H"):
            aligned[place,] = [["tt.divisibility", 16]]
    found = triton.compile(ASTSource(function, signature, constants, aligned), HOPPER, options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(found.asm["cubin"])
        file.flush()
        usage = _output(knobs.nvidia.cuobjdump.path, "-res-usage", file.name)
        passes = loops(_output(knobs.nvidia.nvdisasm.path, "-c", file.name))
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    M, N, warps, _ = kernels.tiles(kind, HEAD_SIZE, q.dtype)[name]
    products = [lines for lines in passes if any(re.search(r"\bH?G?MMA\b", line) for line in lines)]
    least = min(len(lines) for lines in products or passes)  # of a loop with a mask there are more
    return MachineCode(least * warps / 4 * PAIRS / (M * N), registers, stack, found.metadata.shared)


def loops(disassembly: str) -> list[list[str]]:
    """The instructions of each loop of a program disassembled by nvdisasm -c, without those of loops inside it."""
    instructions, labels = [], {}
    for line in disassembly.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            instructions.append(instruction[1])
    backward = [
        (labels[jump[1]], place)
        for place, line in enumerate(instructions)
        if (jump := re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line))
        and labels.get(jump[1], place) < place
    ]
    inside = {
        outer: [
            inner
            for inner in backward
            if inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]
        ]
        for outer in backward
    }
    return [
        [
            line
            for place, line in enumerate(instructions[first : last + 1], first)
            if not any(start <= place <= stop for start, stop in inside[first, last])
        ]
        for first, last in backward
    ]


def _output(*command: str) -> str:
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout
