"""Tests that the kernels' results do not depend on the order in which programs run."""

import numpy as np
import pytest
import torch
from kernel_cases import (
    DEVICE,
    gradients,
    make_inputs,
    relative_errors,
    run_kernels,
    small_tiles,  # noqa: F401
    small_tiles_on_cpu,  # noqa: F401
)
from triton.runtime import interpreter

from triton_attention import operators
from triton_attention.bias import KINDS

NOBODY, SEVERAL = -1, -2  # instead of a program's number


class LaunchAudit:
    """The memory accesses of one launch: the program that reads and writes each element."""

    def __init__(self, name, tensors):
        self.name = name
        addresses = [np.zeros(0, np.uint64)]
        for x in tensors:
            addresses.append(element_addresses(x))
        self.addresses = np.unique(np.concatenate(addresses))
        self.reader = np.full(len(self.addresses), NOBODY)
        self.writer = np.full(len(self.addresses), NOBODY)

    def locate(self, pointers, mask):
        """Return the indices of the elements that a masked access covers."""
        shape = np.broadcast_shapes(pointers.data.shape, mask.data.shape)
        active = np.broadcast_to(mask.data.astype(bool), shape)
        addresses = np.broadcast_to(pointers.data, shape)[active]
        indices = np.searchsorted(self.addresses, addresses).clip(max=len(self.addresses) - 1)
        in_bounds = (self.addresses[indices] == addresses).all()
        assert in_bounds, f"{self.name} accesses memory outside of its tensors"
        return indices

    def read(self, indices, program):
        assert (self.writer[indices] == NOBODY).all(), f"{self.name} reads what it writes"
        only = np.isin(self.reader[indices], (NOBODY, program))
        self.reader[indices] = np.where(only, program, SEVERAL)

    def write(self, indices, program):
        once = len(np.unique(indices)) == len(indices)
        assert once and (self.writer[indices] == NOBODY).all(), f"{self.name} writes twice"
        only = np.isin(self.reader[indices], (NOBODY, program)).all()
        assert only, f"{self.name} writes what another program reads"
        self.writer[indices] = program


def element_addresses(x):
    """Return the addresses of a tensor's elements."""
    count = x.untyped_storage().nbytes() // x.element_size()
    offsets = torch.arange(count).as_strided(x.shape, x.stride(), x.storage_offset())
    offsets = offsets.flatten().numpy().astype(np.uint64)
    return x.untyped_storage().data_ptr() + x.element_size() * offsets


@pytest.fixture
def audited(monkeypatch):
    """Check every memory access in the interpreter; yield the list of launches.

    Each access is to an element of one of the launch's tensors. Each element is written at most
    once, and no other program reads it. Memory holds NaN until it is written.
    """
    builder = interpreter.InterpreterBuilder
    prepare = interpreter.GridExecutor._init_args_hst
    load, store = builder.create_masked_load, builder.create_masked_store
    launches = []

    def audited_launch(self, args, kwargs):
        prepared = prepare(self, args, kwargs)
        tensors = [x for x in prepared[0] if isinstance(x, torch.Tensor) and x.numel()]
        launches.append(LaunchAudit(self.fn.__name__, tensors))
        return prepared

    def program_number(builder):
        return np.ravel_multi_index(builder.grid_idx, builder.grid_dim)

    def audited_load(self, pointers, mask, *rest):
        launches[-1].read(launches[-1].locate(pointers, mask), program_number(self))
        return load(self, pointers, mask, *rest)

    def audited_store(self, pointers, value, mask, *rest):
        launches[-1].write(launches[-1].locate(pointers, mask), program_number(self))
        return store(self, pointers, value, mask, *rest)

    monkeypatch.setattr(interpreter.GridExecutor, "_init_args_hst", audited_launch)
    monkeypatch.setattr(builder, "create_masked_load", audited_load)
    monkeypatch.setattr(builder, "create_masked_store", audited_store)
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)  # fills uninitialized memory with NaN
    yield launches
    torch.use_deterministic_algorithms(False)


@pytest.mark.skipif(DEVICE == "cuda", reason="only the interpreter can audit memory accesses")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "kind, D, steep",
    [*((kind, 16, 1.0) for kind in KINDS), ("distance", 24, 1.0), ("decay", 24, 30.0)],
)
def test_programs_are_independent(kind, D, steep, causal, audited, monkeypatch):
    """Covers partial tiles, a padded head dimension, three sequences and skipped tiles."""
    monkeypatch.setattr(operators, "SEQUENCES", 2)
    inputs = make_inputs(kind, 85, 85, D, B=3, H=1, steep=steep, causal=causal)
    errors = relative_errors(kind, inputs, causal=causal)
    assert max(errors.values()) < 1e-5, errors
    expected = ["attention_forward", "attention_backward_rows", "attention_backward_columns"]
    if kind in ("distance", "piecewise-linear"):
        expected.append("attention_backward_distances")
    assert [launch.name for launch in audited] == expected


def test_results_are_deterministic():
    inputs = make_inputs("piecewise-linear", 37, 37, 16)
    first, second = (
        gradients(lambda x: run_kernels("piecewise-linear", x), inputs, torch.float32)
        for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
