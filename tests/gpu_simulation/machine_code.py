"""Machine-code statistics of the Triton kernels, compiled without a GPU.

    python tests/gpu_simulation/machine_code.py
    python tests/gpu_simulation/machine_code.py --arch 80 --out runs/machine_code.json

The kernels are compiled in bf16 at head dimension 64 and disassembled. Two tables have a row for
each kind of bias and a column for each kernel. The first shows the cycles that a multiprocessor
needs to issue the inner loop for 128 x 64 pairs of query and key without a mask. The second shows
the registers of a thread, the bytes that spill out of them to its stack, and the KB of shared
memory of a program.

A multiprocessor has four schedulers, and each issues one instruction of one warp per cycle. So the
instructions of a loop times the warps over four are a lower bound on the cycles of one iteration,
however well latencies are hidden. This is a bound on the speed, not a measurement.
"""

import argparse
import dataclasses
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # when this file runs as a program

from runtime import cli  # noqa: E402
from runtime.files import write_json  # noqa: E402

import torch  # noqa: E402
import triton  # noqa: E402
from triton import knobs  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from attention import SKIP_TOLERANCE  # noqa: E402
from errors import InputError  # noqa: E402
from triton_attention import kernels, operators, tile_sizes, tile_skipping  # noqa: E402
from triton_attention.bias import KINDS  # noqa: E402

ARCHITECTURES = (80, 90)  # compute capabilities of A100 and H100
HEAD_DIM = 64
PAIRS = 128 * 64  # pairs of query and key that the cycles refer to
KERNELS = {
    "forward": kernels.attention_forward,
    "rows": kernels.attention_backward_rows,
    "columns": kernels.attention_backward_columns,
    "distances": kernels.attention_backward_distances,
}
LEARNABLE_PARTS = {  # which parts of the bias get gradients
    "decay, g fixed": {"g_learns": False},
    "decay, all fixed": {"g_learns": False, "s_learns": False},
}
INT_ARGUMENTS = {"B", "H", "T", "S"}
BF16_ARGUMENTS = {"Q", "K", "V", "Y", "DY", "DQ", "DK", "DV"}


@dataclass
class MachineCode:
    """Statistics of one compiled kernel."""

    cycles: float
    """cycles to issue the inner loop without a mask for PAIRS pairs"""
    registers: int
    """registers per thread"""
    stack: int
    """bytes per thread that spill out of the registers"""
    shared: int
    """bytes of shared memory per program"""

    def describe_resources(self) -> str:
        return f"{self.registers}, {self.stack}, {self.shared / 1024:.0f} KB"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--arch", type=int, choices=ARCHITECTURES, default=90, help="compute capability of the GPU"
    )
    parser.add_argument("--out", metavar="FILE", help="write the statistics to this JSON file")
    options = parser.parse_args(argv)
    statistics = compile_all(options.arch)
    print(format_table("cycles to issue", statistics, lambda code: f"{code.cycles:,.0f}"))
    print()
    print(format_table("registers, stack, shared", statistics, MachineCode.describe_resources))
    if options.out:
        record = {
            "triton": version("triton"),
            "gpu": f"sm_{options.arch}",
            "dtype": "bfloat16",
            "head_size": HEAD_DIM,
            "kinds": {
                label: {name: dataclasses.asdict(code) for name, code in codes.items()}
                for label, codes in statistics.items()
            },
        }
        write_json(options.out, {"instructions": record})


def compile_all(arch: int = 90) -> dict[str, dict[str, MachineCode]]:
    """Return the statistics of every kernel, by kind of bias and by what is learnable."""
    statistics = {}
    for label in (*KINDS, *LEARNABLE_PARTS):
        kind = label.partition(",")[0]
        learnable = LEARNABLE_PARTS.get(label, {})
        statistics[label] = {
            name: compile_kernel(kind, name, arch=arch, **learnable) for name in names(kind)
        }
    return statistics


def format_table(
    title: str,
    statistics: dict[str, dict[str, MachineCode]],
    describe: Callable[[MachineCode], str],
) -> str:
    """Return a Markdown table of `describe` of every kernel, aligned to the right."""
    rows = [[title, *KERNELS]]
    for label, codes in statistics.items():
        cells = [describe(codes[name]) if name in codes else "–" for name in KERNELS]
        rows.append([label, *cells])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, ["-" * (width - 1) + ":" for width in widths])
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def names(kind: str) -> list[str]:
    """Return the names of the kernels that a kind of bias launches.

    Only biases with a table have a kernel for gradients by distance.
    """
    return [
        name for name in KERNELS if name != "distances" or kind in ("distance", "piecewise-linear")
    ]


def compile_kernel(
    kind: str, name: str, s_learns: bool = True, g_learns: bool = True, arch: int = 90
) -> MachineCode:
    """Compile one causal kernel and return its statistics.

    kind: one of bias.KINDS. name: one of KERNELS. s_learns, g_learns: whether S and g get
    gradients. arch: one of ARCHITECTURES. FIRE's network has its real width. Pointers are aligned
    to 16 bytes, as PyTorch aligns them, and lengths and strides are multiples of 16.
    Raises InputError under Triton's interpreter, which does not compile.
    """
    if kernels.INTERPRETED.value:
        raise InputError("Triton's interpreter does not compile kernels: unset TRITON_INTERPRET")
    function = KERNELS[name]
    q = torch.empty(1, 1, 1, HEAD_DIM, dtype=torch.bfloat16)
    pieces = torch.empty(1, 3, 64 if kind == "piecewise-linear" else 0)
    constants = operators.kernel_settings(
        name, q, pieces, KINDS.index(kind), True, operators.NO_WINDOW
    )
    options = {x: constants.pop(x) for x in ("num_warps", "num_stages", "enable_fp_fusion")}
    constants |= {
        "skips_tiles": tile_skipping.can_skip(kind, SKIP_TOLERANCE),
        "SKIP_KEYS": 64,
        "SKIP_QUERIES": 128,
        "SEQUENCES": operators.SEQUENCES,
        "s_learns": s_learns,
        "g_learns": g_learns,
    }
    compiled = triton.compile(_source(function, constants), GPUTarget("cuda", arch, 32), options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _output(knobs.nvidia.cuobjdump.path, "-res-usage", file.name)
        all_loops = loops(_output(knobs.nvidia.nvdisasm.path, "-c", file.name))
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    M, N, warps, _ = tile_sizes.select(kind, HEAD_DIM, q.dtype)[name]
    matrix_loops = [lines for lines in all_loops if any(map(_is_matrix_product, lines))]
    # The loop with a mask has more instructions than the loop without one.
    instructions = min(len(lines) for lines in matrix_loops or all_loops)
    cycles = instructions * warps / 4 * PAIRS / (M * N)
    return MachineCode(cycles, registers, stack, compiled.metadata.shared)


def _source(function, constants: dict) -> ASTSource:
    """Return a kernel with the types of its arguments, as a launch would specialize them."""
    types = (
        dict.fromkeys(INT_ARGUMENTS, "i32")
        | dict.fromkeys(BF16_ARGUMENTS, "*bf16")
        | {"KEPT_TILES": "*i32", "scale": "fp32"}
    )
    signature, values, attributes = {}, {}, {}
    for index, name in enumerate(function.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            values[index,] = constants[name]
            continue
        signature[name] = types.get(name, "*fp32" if name.isupper() else "i32")
        if name not in ("scale", "B", "H"):
            attributes[index,] = [["tt.divisibility", 16]]
    return ASTSource(function, signature, values, attributes)


def _is_matrix_product(instruction: str) -> bool:
    return re.search(r"\bH?G?MMA\b", instruction) is not None


def loops(disassembly: str) -> list[list[str]]:
    """Return the instructions of each loop of a program, without those of its inner loops.

    disassembly: the output of nvdisasm -c. A loop is the code from a label to a branch back to it.
    """
    instructions, labels = [], {}
    for line in disassembly.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(instructions)
        elif instruction := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line):
            instructions.append(instruction[1])
    spans = []  # index of the first and of the last instruction
    for last, line in enumerate(instructions):
        branch = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line)
        if branch and labels.get(branch[1], last) < last:
            spans.append((labels[branch[1]], last))
    return [_own_instructions(instructions, span, spans) for span in spans]


def _own_instructions(instructions: list[str], span: tuple, spans: list[tuple]) -> list[str]:
    first, last = span
    indices = set(range(first, last + 1))
    for start, stop in spans:
        if (start, stop) != span and first <= start and stop <= last:
            indices -= set(range(start, stop + 1))
    return [instructions[index] for index in sorted(indices)]


def _output(*command: str) -> str:
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


if __name__ == "__main__":
    cli.run(main)
