"""Registers, spills and shared memory of the Triton kernels, compiled without a GPU.

    python -m tests.kernel_resources                    # an H100
    python -m tests.kernel_resources 80 decay distance  # an A100 (89: an RTX 4090), kinds of bias

The causal kernels are compiled in bf16 at head dimension 64. A row is a kind of bias, a column a
kernel. A cell has the registers of a thread, the bytes of its stack (what spills out of the
registers), and the KB of shared memory of a program. Needs Triton's compiler (Linux).
"""

import re
import subprocess
import sys
import tempfile

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget

from triton_attention import kernels, operators
from triton_attention.bias import KINDS

HEAD_DIM = 64
# Types of the arguments; other tensors are float32 and other lengths are int32.
TYPES = dict.fromkeys("BHTS", "i32") | {"scale": "fp32", "KEPT_TILES": "*i32"}
TYPES |= dict.fromkeys(("Q", "K", "V", "Y", "DY", "DQ", "DK", "DV"), "*bf16")
KERNELS = {
    "forward": kernels.attention_forward,
    "rows": kernels.attention_backward_rows,
    "columns": kernels.attention_backward_columns,
    "distances": kernels.attention_backward_distances,
}


def main(arch: str = "90", *kinds: str) -> None:
    """Print the table. arch: compute capability."""
    print(f"{'registers, stack, shared':>24}" + "".join(f"{name:>18}" for name in KERNELS))
    for kind in kinds or KINDS:
        print(f"{kind:>24}", end="", flush=True)
        for name in KERNELS:
            cell = "–"
            if name != "distances" or kind in ("distance", "piecewise-linear"):
                registers, stack, shared = measure(kind, name, int(arch))
                cell = f"{registers}, {stack}, {shared / 1024:.0f} KB"
            print(f"{cell:>18}", end="", flush=True)
        print()


def measure(kind: str, name: str, arch: int) -> tuple[int, int, int]:
    """Compile a kernel. Return registers, bytes of stack (per thread), bytes of shared memory.

    kind: one of bias.KINDS. name: one of KERNELS. All parameters of the bias are learnable, and the
    network of FIRE has its real width.
    """
    function = KERNELS[name]
    q = torch.empty(1, 1, 1, HEAD_DIM, dtype=torch.bfloat16)
    pieces = torch.empty(1, 3, 64 if kind == "piecewise-linear" else 0)
    settings = q, q, pieces, KINDS.index(kind), True, operators.NO_WINDOW
    constants = operators.kernel_settings(name, *settings)
    options = {key: constants.pop(key) for key in ("num_warps", "num_stages", "enable_fp_fusion")}
    constants |= {"skips_tiles": kind == "decay", "SKIP_KEYS": 64, "SKIP_QUERIES": 128}
    constants |= {"SEQUENCES": operators.SEQUENCES, "s_learns": True, "g_learns": True}
    signature, values, aligned = {}, {}, {}
    for index, x in enumerate(function.arg_names):
        signature[x] = TYPES.get(x, "*fp32" if x.isupper() else "i32")
        if x in constants:
            signature[x], values[index,] = "constexpr", constants[x]
        elif x not in ("scale", "B", "H"):
            # PyTorch aligns pointers to 16 bytes; lengths and strides are multiples of 16, too.
            aligned[index,] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(function, signature, values, aligned)
    compiled = triton.compile(source, GPUTarget("cuda", arch, 32), options)
    with tempfile.NamedTemporaryFile(suffix=".cubin", buffering=0) as file:
        file.write(compiled.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    registers, stack = re.findall(r"(?:REG|STACK):(\d+)", usage)[:2]
    return int(registers), int(stack), compiled.metadata.shared


if __name__ == "__main__":
    main(*sys.argv[1:])
