"""The Triton kernels give the same bits in 200 calls at the size of a training step.

Triton 3.6 puts no fence between asynchronous copies and the tensor-core products that read them
(wgmma). A product that reads too early differs from call to call.
"""

import pytest
import torch
from gpu_kit import DEVICE, record
from kernel_cases import gradients, make_inputs, run_kernels

CALLS, SEQUENCES, HEADS, LENGTH = (200, 8, 12, 1024) if DEVICE == "cuda" else (2, 1, 1, 32)


@pytest.mark.parametrize("kind", ["none", "decay", "log-decay", "distance", "piecewise-linear"])
def test_repeated_calls_are_bitwise_equal(kind, record):
    """Compares the output and all gradients with those of the first call."""
    inputs = make_inputs(kind, LENGTH, LENGTH, 64, SEQUENCES, HEADS)
    inputs = {name: x.float() for name, x in inputs.items()}

    def compute():
        return gradients(lambda x: run_kernels(kind, x), inputs, torch.bfloat16)

    first = compute()
    different = 0
    for _ in range(CALLS - 1):
        again = compute()
        different += not all(torch.equal(first[name], again[name]) for name in first)
    record(calls=CALLS, different=different)
    assert all(x.isfinite().all() and x.abs().max() > 0 for x in first.values())
    assert different == 0
