"""PTX emulator: a simulated NVIDIA GPU in NumPy.

    with emulator.simulated_gpu(90) as launched:  # an H100
        ...                                       # Triton kernels on CPU tensors

Triton's interpreter runs a kernel's source. This emulator executes the PTX that the compiler
generated, instruction by instruction: shared-memory layouts and swizzles, asynchronous copies,
tensor cores, registers and approximate functions. It needs a process in which Triton compiles
(TRITON_INTERPRET=0). It is slow and says nothing about speed.

Differences from a GPU, all of them checks:

- The order of warps between two barriers is checked, not tried. RaceError: a warp reads or writes
  shared memory that another warp writes, or that an asynchronous copy or product still uses.
- Shared memory starts as NaN. Registers are NaN until an asynchronous product has written them.
- Global memory is the tensors of the launch. An access outside of them, or a misaligned one, raises
  AssertionError.
- NotImplementedError: the threads of a program diverge.

Source: PTX ISA 9.0, https://docs.nvidia.com/cuda/parallel-thread-execution.
n: threads of a program. Registers are arrays (n,) of unsigned integers.
"""

import contextlib
import ctypes
import itertools
import operator
import re
import types

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import JITFunction, driver
from triton.runtime.errors import OutOfResources

SHARED_LIMIT = {80: 163, 89: 99, 90: 227}  # KB of shared memory per program, by compute capability
SHARED_START = 1 << 14  # first address of shared memory: swizzles need its low bits to be zero
COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
INT_OPERATIONS = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
FLOAT_OPERATIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.fmin,
    "max": np.fmax,
}
UNARY_OPERATIONS = {
    "neg": np.negative,
    "abs": np.abs,
    "not": np.invert,
    "ex2": np.exp2,
    "lg2": np.log2,
}
NAN = np.uint32(0x7FFFFFFF)


class RaceError(AssertionError):
    """A result depends on the order in which the warps of a program run."""


@contextlib.contextmanager
def simulated_gpu(capability, edit_ptx=lambda ptx: ptx):
    """Execute all launches of Triton kernels in this context on a simulated GPU.

    capability: compute capability 80 (A100), 89 (RTX 4090) or 90 (H100). edit_ptx: function that
    changes the PTX before it is executed.
    Yields a list to which every launch appends Triton's compiled kernel (with `name` and `asm`).
    Raises OutOfResources for a program that needs more shared memory than the GPU has.
    """
    launched, triton_run, active = [], JITFunction.run, driver._active
    driver.set_active(
        types.SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", capability, 32),
            # Triton caches compiled kernels by device number.
            get_current_device=lambda: capability,
            get_current_stream=lambda device: 0,
        )
    )

    def run(self, *arguments, grid, warmup, **options):
        compiled = triton_run(self, *arguments, grid=grid, warmup=True, **options)
        limit = 1024 * SHARED_LIMIT[capability]
        if compiled.metadata.shared > limit:
            raise OutOfResources(compiled.metadata.shared, limit, "shared memory")
        values = dict(zip(self.arg_names, arguments, strict=False)) | options
        parameters = [
            values[name] for name, kind in compiled.src.signature.items() if kind != "constexpr"
        ]
        tensors = [x for x in parameters if isinstance(x, torch.Tensor)]
        addresses = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in parameters]
        addresses += [0, 0]  # no scratch memory
        code = _parse(edit_ptx(compiled.asm["ptx"]))
        memory = GlobalMemory(tensors)
        grid = (*grid, 1, 1)[:3]
        with np.errstate(all="ignore"):
            for program_id in np.ndindex(*grid):
                Program(code, addresses, memory, program_id, grid, compiled.metadata).run()
        launched.append(compiled)

    JITFunction.run = run
    try:
        yield launched
    finally:
        JITFunction.run = triton_run
        driver._active = active


class GlobalMemory:
    """Global memory: the bytes of some tensors, each from its first element to its last."""

    def __init__(self, tensors):
        sizes = {}  # bytes, by address
        for x in tensors:
            if x.numel():
                strides = zip(x.shape, x.stride(), strict=True)
                size = sum((n - 1) * stride for n, stride in strides) + 1
                sizes[x.data_ptr()] = max(size * x.element_size(), sizes.get(x.data_ptr(), 0))
        self.starts = np.array(sorted(sizes), np.uint64)
        self.bytes = [
            np.frombuffer((ctypes.c_uint8 * sizes[start]).from_address(start), np.uint8)
            for start in sorted(sizes)
        ]

    def locate(self, addresses, size):
        """Yield (bytes of a tensor, offsets (m, size) in them, indices (m,) of the addresses).

        Each item covers the addresses that are in one tensor.
        """
        assert not (addresses % np.uint64(size)).any(), "an address is misaligned"
        tensor = np.searchsorted(self.starts, addresses, "right") - 1
        assert (tensor >= 0).all(), "an address is before all tensors"
        for number in np.unique(tensor):
            which = np.flatnonzero(tensor == number)
            first = (addresses[which] - self.starts[number]).astype(np.int64)
            end = len(self.bytes[number])
            assert first.max() + size <= end, "an address is past the end of its tensor"
            yield self.bytes[number], first[:, None] + np.arange(size), which

    def load(self, addresses, size):
        data = np.empty((len(addresses), size), np.uint8)
        for source, offsets, which in self.locate(addresses, size):
            data[which] = source[offsets]
        return data

    def store(self, addresses, data):
        for target, offsets, which in self.locate(addresses, data.shape[1]):
            target[offsets] = data[which]


class SharedMemory:
    """Shared memory of a program, with the warps that used each byte since the last barrier."""

    NOBODY, SEVERAL = -1, -2

    def __init__(self, size):
        self.bytes = np.full(size, 0xFF, np.uint8)
        self.reader = np.full(size, self.NOBODY, np.int8)
        self.writer = np.full(size, self.NOBODY, np.int8)
        self.copying = np.zeros(size, bool)  # targets of asynchronous copies
        self.unfenced = np.zeros(size, bool)  # written, but not yet visible to products
        self.products = []  # bytes that asynchronous products read, (size,) bool each

    def barrier(self):
        self.reader[:] = self.writer[:] = self.NOBODY

    def _exclusive(self, offsets, warps):
        """Return where no other warp of the same instruction accesses the same byte."""
        last = np.empty_like(self.reader)
        last[offsets] = warps
        return last[offsets] == warps

    def read(self, offsets, warps):
        """Return the bytes at `offsets`; `warps`, broadcast to the same shape, read them."""
        if self.copying[offsets].any():
            raise RaceError("reads what an asynchronous copy writes")
        writer, reader = self.writer[offsets], self.reader[offsets]
        if ((writer != self.NOBODY) & (writer != warps)).any():
            raise RaceError("reads what another warp writes")
        unread = (reader == self.NOBODY) | (reader == warps)
        exclusive = self._exclusive(offsets, warps) & unread
        self.reader[offsets] = np.where(exclusive, warps, self.SEVERAL)
        return self.bytes[offsets]

    def write(self, offsets, warps, data):
        """Write `data` at `offsets`. Several warps may write the same value to the same byte."""
        self.check_write(offsets, warps)
        writer = self.writer[offsets]
        unwritten = (writer == self.NOBODY) | (writer == warps)
        exclusive = self._exclusive(offsets, warps) & unwritten
        conflicts = ~unwritten & (self.bytes[offsets] != data)
        self.bytes[offsets] = data
        if (conflicts | (self.bytes[offsets] != data)).any():
            raise RaceError("writes what another thread writes")
        self.writer[offsets] = np.where(exclusive, warps, self.SEVERAL)
        self.unfenced[offsets] = True

    def check_write(self, offsets, warps):
        """Raise RaceError if another warp, copy or product uses these bytes."""
        used = any(product[offsets].any() for product in self.products)
        if used or self.copying[offsets].any():
            raise RaceError("writes what an asynchronous copy or product uses")
        reader = self.reader[offsets]
        if ((reader != self.NOBODY) & (reader != warps)).any():
            raise RaceError("writes what another warp reads")


class Program:
    """One program of a launch: all its threads execute each instruction together."""

    def __init__(self, code, arguments, memory, program_id, grid, metadata):
        self.instructions, self.labels, parameters = code
        self.parameters = dict(zip(parameters, arguments, strict=True))
        self.memory, self.n = memory, metadata.num_warps * 32
        self.shared = SharedMemory(metadata.shared)
        self.warps = np.arange(self.n) // 32
        self.active = None  # (n,) bool: the threads that execute the instruction; None: all
        threads = np.arange(self.n, dtype=np.uint32)
        start = np.full(self.n, SHARED_START, np.uint32)
        self.registers = {"%tid.x": threads, "global_smem": start}
        for axis, index, count in zip("xyz", program_id, grid, strict=True):
            self.registers[f"%ctaid.{axis}"] = np.full(self.n, index, np.uint32)
            self.registers[f"%nctaid.{axis}"] = np.full(self.n, count, np.uint32)
        # Asynchronous copies: (offsets in shared memory, warps, data).
        self.copies, self.copy_groups = [], []
        # Asynchronous products: (registers by name, bytes of shared memory that they read).
        self.products, self.product_groups = [], []

    def run(self):
        position = 0
        while position is not None:
            guard, execute, words, operands = self.instructions[position]
            self.active = None
            if guard:
                self.active = self.get(guard.lstrip("!"), bool) ^ guard.startswith("!")
            try:
                target = execute(self, words, operands)
            except Exception as error:
                error.add_note(f"{guard} {'.'.join(words)} {operands}")
                raise
            position = position + 1 if target is None else self.labels.get(target)

    # --- registers

    def get(self, name, dtype):
        """Return a register or a constant as (n,) of dtype, zero-extended or truncated."""
        if name[0] in "%g":
            value = self.registers[name]
        elif name.startswith("0f"):
            value = np.full(self.n, int(name[2:], 16), np.uint32)
        else:
            value = np.full(self.n, int(name.rstrip("U"), 0), np.int64).view(np.uint64)
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return value.astype(bool)
        return value.astype(f"u{dtype.itemsize}").view(dtype)

    def put(self, name, value):
        """Write a register in all active threads."""
        value = np.broadcast_to(np.asarray(value), self.n)
        if value.dtype != bool:
            value = value.view(f"u{value.dtype.itemsize}")
        if self.active is not None and not self.active.all():
            before = self.registers.get(name, NAN).astype(value.dtype)
            value = np.where(self.active, value, before)
        self.registers[name] = value

    def active_threads(self):
        return np.arange(self.n) if self.active is None else np.flatnonzero(self.active)

    # --- memory

    def address(self, operand, dtype):
        name, _, offset = operand.replace(" ", "").partition("+")
        return self.get(name, dtype) + np.dtype(dtype).type(int(offset or 0))

    def shared_offsets(self, operand, size, threads):
        """Return the offsets (threads, size) of an operand's bytes in shared memory."""
        first = self.address(operand, np.uint32)[threads].astype(np.int64) - SHARED_START
        assert not (first % size).any(), "a shared-memory address is misaligned"
        assert first.min(initial=0) >= 0, "an address is before the start of shared memory"
        end = first.max(initial=0) + size
        assert end <= len(self.shared.bytes), "an address is past the end of shared memory"
        return first[:, None] + np.arange(size)

    # --- asynchronous copies and products

    def wait_copies(self, pending):
        """Complete the oldest groups of copies, until `pending` groups are left."""
        count = max(0, len(self.copy_groups) - pending)
        done, self.copy_groups = self.copy_groups[:count], self.copy_groups[count:]
        for offsets, warps, data in itertools.chain.from_iterable(done):
            self.shared.copying[offsets] = False
            self.shared.write(offsets, warps, data)
            self.shared.unfenced[offsets] = False  # Triton 3.6 emits no fence after copies

    def wait_products(self, pending):
        """Complete the oldest groups of products, until `pending` groups are left."""
        count = max(0, len(self.product_groups) - pending)
        done, self.product_groups = self.product_groups[:count], self.product_groups[count:]
        for registers, used in itertools.chain.from_iterable(done):
            self.shared.products = [x for x in self.shared.products if x is not used]
            self.shared.reader[used] = SharedMemory.SEVERAL
            self.registers |= registers

    def pending(self, name):
        """Return a register's value after all products, also those that are not complete."""
        for group in (self.products, *self.product_groups[::-1]):
            for registers, *_ in group[::-1]:
                if name in registers:
                    return registers[name]
        return self.registers[name]


# --- instructions: functions of a program `m`, the words of the opcode, and the operands. They
# return the label to jump to, or None.


def _dtype(word):
    return np.dtype({"s": "i", "f": "f"}.get(word[0], "u") + str(int(word[1:]) // 8))


def _flush_denormals(x):
    return np.where(np.abs(x) < 2.0**-126, np.float32(0), x)


def _binary(m, words, operands):
    dtype = _dtype(words[-1])
    a, b = (m.get(x, dtype) for x in operands[1:])
    operations = FLOAT_OPERATIONS if dtype.kind == "f" else INT_OPERATIONS
    result = operations[words[0]](a, b)
    if "relu" in words:
        result = np.maximum(result, 0)
    m.put(operands[0], _flush_denormals(result) if "ftz" in words else result)


def _logic(m, words, operands):
    dtype = bool if words[1] == "pred" else _dtype(words[1])
    m.put(operands[0], INT_OPERATIONS[words[0]](*(m.get(x, dtype) for x in operands[1:])))


def _multiply(m, words, operands):
    """mul and mad. Of integers: `lo`, which truncates, and `wide`."""
    dtype = _dtype(words[-1])
    if dtype.kind == "f":
        return _binary(m, words, operands)
    wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}") if words[1] == "wide" else dtype
    a, b = (m.get(x, dtype).astype(wide) for x in operands[1:3])
    m.put(operands[0], a * b + m.get(operands[3], wide) if words[0] == "mad" else a * b)


def _divide(m, words, operands):
    if words[-1] != "s32":
        return _binary(m, words, operands)
    a, b = (m.get(x, np.int32) for x in operands[1:])
    m.put(operands[0], np.trunc(a / b).astype(np.int32))


def _fma(m, words, operands):
    a, b, c = (m.get(x, np.float32).astype(np.float64) for x in operands[1:])
    result = (a * b + c).astype(np.float32)
    m.put(operands[0], _flush_denormals(result) if "ftz" in words else result)


def _unary(m, words, operands):
    dtype = bool if words[-1] == "pred" else _dtype(words[-1])
    x = m.get(operands[1], dtype)
    if "ftz" in words:
        x = _flush_denormals(x)
    result = UNARY_OPERATIONS[words[0]](x)
    m.put(operands[0], _flush_denormals(result) if "ftz" in words else result)


def _shift(m, words, operands):
    """shl and shr. A count of at least the width gives 0, or the sign of a signed integer."""
    dtype = _dtype(words[-1])
    x, count = m.get(operands[1], dtype), m.get(operands[2], np.uint32)
    bits = 8 * dtype.itemsize
    clamped = np.minimum(count, bits - 1).astype(dtype)
    if dtype.kind == "i":
        return m.put(operands[0], x >> clamped)
    shifted = x << clamped if words[0] == "shl" else x >> clamped
    m.put(operands[0], np.where(count < bits, shifted, dtype.type(0)))


def _extract_bits(m, words, operands):
    dtype = _dtype(words[-1])
    x, first, count = m.get(operands[1], np.uint32), int(operands[2]), int(operands[3])
    result = (x >> np.uint32(first)) & np.uint32((1 << count) - 1)
    if dtype.kind == "i":
        result = (result << np.uint32(32 - count)).view(np.int32) >> (32 - count)
    m.put(operands[0], result.astype(dtype))


def _compare(m, words, operands):
    dtype = _dtype(words[2])
    m.put(operands[0], COMPARISONS[words[1]](*(m.get(x, dtype) for x in operands[1:])))


def _select(m, words, operands):
    dtype = _dtype(words[-1])
    a, b = (m.get(x, dtype) for x in operands[1:3])
    m.put(operands[0], np.where(m.get(operands[3], bool), a, b))


def _move(m, words, operands):
    """mov, also between one register and the list of its parts."""
    target, source = operands
    if words[-1] == "pred":
        return m.put(target, m.get(source, bool))
    dtype = _dtype(words[-1])
    if isinstance(target, list):
        parts = m.get(source, dtype)[:, None].view(f"u{dtype.itemsize // len(target)}")
        for number, name in enumerate(target):
            if name != "_":
                m.put(name, parts[:, number].copy())
    elif isinstance(source, list):
        parts = [m.get(name, f"u{dtype.itemsize // len(source)}") for name in source]
        m.put(target, np.stack(parts, 1).view(dtype)[:, 0])
    else:
        m.put(target, m.get(source, dtype))


def _to_half(x, kind):
    """Round float32 to the nearest bf16 or f16; return its bits, uint16."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float16
    half = torch.from_numpy(np.ascontiguousarray(x)).to(dtype)
    return half.view(torch.int16).numpy().view(np.uint16)


def _to_float(x, kind):
    """Return the float32 of the bits of bf16 or f16, uint16."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float16
    return torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).view(dtype).float().numpy()


def _convert(m, words, operands):
    target, source = words[-2:]
    if target in ("bf16x2", "f16x2"):
        high, low = (_to_half(m.get(x, np.float32), target[:-2]) for x in operands[1:])
        m.put(operands[0], low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16))
    elif source in ("bf16", "f16"):
        m.put(operands[0], _to_float(m.get(operands[1], np.uint16), source))
    else:
        m.put(operands[0], m.get(operands[1], _dtype(source)).astype(_dtype(target)))


def _permute_bytes(m, words, operands):
    pair = np.concatenate([m.get(x, np.uint32)[:, None].view(np.uint8) for x in operands[1:3]], 1)
    selector = int(operands[3].rstrip("U"), 0)
    selected = pair[:, [selector >> 4 * byte & 7 for byte in range(4)]]
    m.put(operands[0], np.ascontiguousarray(selected).view(np.uint32)[:, 0])


def _shuffle(m, words, operands):
    x, argument = (m.get(operand, np.uint32).reshape(-1, 32) for operand in operands[1:3])
    lane = np.arange(32, dtype=np.uint32)
    source = lane ^ argument if words[2] == "bfly" else argument
    m.put(operands[0], np.take_along_axis(x, source % 32, 1).ravel())


def _reduce(m, words, operands):
    x = m.get(operands[1], _dtype(words[-1])).reshape(-1, 32)
    m.put(operands[0], np.repeat(getattr(x, words[2])(1), 32))


def _load_parameter(m, words, operands):
    value = m.parameters[operands[1]]
    dtype = _dtype(words[-1])
    if isinstance(value, float):
        bits = np.array([value], np.float32).view(np.uint32)
    else:
        bits = np.array([value]).astype(dtype)
    sign_extended = operands[0].startswith("%rd") and dtype.kind == "i"
    m.put(operands[0], np.full(m.n, bits[0]).astype(np.int64 if sign_extended else dtype))


def _vector(words):
    """Return how many numbers a memory access has per thread, and their dtype."""
    counts = (int(word[1:]) for word in words if re.fullmatch("v[0-9]", word))
    return next(counts, 1), _dtype(words[-1])


def _load(m, words, operands):
    if words[1] == "param":
        return _load_parameter(m, words, operands)
    count, dtype = _vector(words)
    threads, size = m.active_threads(), count * dtype.itemsize
    if words[1] == "global":
        data = m.memory.load(m.address(operands[1], np.uint64)[threads], size)
    else:
        offsets = m.shared_offsets(operands[1], size, threads)
        data = m.shared.read(offsets, m.warps[threads, None])
    values = np.full((m.n, count), 0, dtype)
    values[threads] = data.view(dtype)
    names = operands[0] if isinstance(operands[0], list) else [operands[0]]
    for number, name in enumerate(names):
        m.put(name, values[:, number].copy())


def _store(m, words, operands):
    count, dtype = _vector(words)
    threads, size = m.active_threads(), count * dtype.itemsize
    names = operands[1] if isinstance(operands[1], list) else [operands[1]]
    values = np.stack([m.get(name, f"u{dtype.itemsize}") for name in names], 1)
    data = values.view(np.uint8)[threads]
    if words[1] == "global":
        m.memory.store(m.address(operands[0], np.uint64)[threads], data)
    else:
        offsets = m.shared_offsets(operands[0], size, threads)
        m.shared.write(offsets, m.warps[threads, None], data)


def _copy(m, words, operands):
    """cp.async: copy some bytes from global to shared memory and fill the rest with zeros."""
    if words[2] == "commit_group":
        m.copy_groups.append(m.copies)
        m.copies = []
        return
    if words[2] == "wait_group":
        return m.wait_copies(int(operands[0]))
    threads, size = m.active_threads(), int(operands[2], 0)
    offsets = m.shared_offsets(operands[0], size, threads)
    if len(operands) > 3:
        copied = m.get(operands[3], np.uint32)[threads]
    else:
        copied = np.full(len(threads), size)
    assert np.isin(copied, (0, size)).all()
    data = np.zeros((len(threads), size), np.uint8)
    addresses = m.address(operands[1], np.uint64)[threads][copied > 0]
    data[copied > 0] = m.memory.load(addresses, size)
    warps = np.broadcast_to(m.warps[threads, None], offsets.shape)
    m.shared.check_write(offsets, warps)
    m.shared.bytes[offsets] = 0xFF
    m.shared.copying[offsets] = True
    m.copies.append((offsets, warps, data))


def _matrices(m, words, operands):
    """ldmatrix and stmatrix: 8 x 8 matrices of halves. The lanes of a warp give the rows."""
    assert words[1:4] == ["sync", "aligned", "m8n8"] and m.active is None
    loads = words[0] == "ldmatrix"
    names, address = operands if loads else operands[::-1]
    rows = m.shared_offsets(address, 16, np.arange(m.n)).reshape(-1, 32, 16)  # (warps, rows, bytes)
    lane = np.arange(m.n) % 32
    row, column = lane // 4, lane % 4 * 2  # each thread has two neighbors of a row
    warps = np.arange(len(rows))[:, None, None]
    for number, name in enumerate(names):
        offsets = rows[:, 8 * number : 8 * number + 8]
        halves = np.empty((len(rows), 8, 8), np.uint16)
        if loads:
            halves[:] = np.ascontiguousarray(m.shared.read(offsets, warps)).view(np.uint16)
        fragment = halves.swapaxes(1, 2) if "trans" in words else halves
        if loads:
            pair = [fragment[m.warps, row, column], fragment[m.warps, row, column + 1]]
            m.put(name, np.stack(pair, 1).view(np.uint32)[:, 0])
        else:
            pairs = m.get(name, np.uint32)[:, None].view(np.uint16)
            fragment[m.warps, row, column], fragment[m.warps, row, column + 1] = pairs.T
            m.shared.write(offsets, warps, halves.view(np.uint8))


def _matrix_offsets(m, descriptor, rows, transposed, columns=16):
    """Return the offsets (rows, columns, 2) of the bytes of a matrix of halves in shared memory.

    descriptor: the matrix descriptor of a warpgroup.
    """
    start, leading, stride = ((descriptor >> first & 0x3FFF) << 4 for first in (0, 16, 32))
    row, column = np.indices((rows, columns))
    line = {1: 128, 2: 64, 3: 32}[descriptor >> 62]  # bytes after which the swizzle repeats
    assert descriptor >> 49 & 7 == 0
    if transposed:  # neighbors in memory are rows
        halves = line // 2
        within_line = 2 * (row % halves) + row // halves * leading
        first = within_line + column % 8 * line + column // 8 * stride
    else:
        first = 2 * column + row % 8 * line + row // 8 * stride
    address = start + first
    address ^= (address >> 7 & (line // 16 - 1)) << 4
    return address[..., None] - (SHARED_START & 0x3FFFF) + np.arange(2)


def _warpgroup_product(m, words, operands):
    """wgmma: D (64, N) += A (64, 16) B (16, N) for each warpgroup, that is, four warps.

    A is in registers or in shared memory, B is in shared memory.
    """
    if words[1] == "fence":
        return
    if words[1] == "commit_group":
        m.product_groups.append(m.products)
        m.products = []
        return
    if words[1] == "wait_group":
        return m.wait_products(int(operands[0]))
    N, kind = int(re.search(r"n(\d+)k16", words[4])[1]), words[6]
    names, a, b, accumulates, *flags = operands
    assert m.active is None and flags[:2] == ["1", "1"]
    accumulates = m.get(accumulates, bool)
    lane, warp = np.arange(m.n) % 32, m.warps % 4
    results = {name: np.empty(m.n, np.float32) for name in names}
    used = np.zeros(len(m.shared.bytes), bool)
    for group in range(m.n // 128):
        threads = slice(128 * group, 128 * group + 128)
        row, column = 16 * warp[threads] + lane[threads] // 4, 2 * (lane[threads] % 4)
        if isinstance(a, list):
            places = [(row + 8 * (number % 2), column + 8 * (number // 2)) for number in range(4)]
            left = _register_matrix(m, a, threads, places, 64)
        else:
            descriptor = _uniform(m.get(a, np.uint64)[threads])
            left = _read_matrix(m, _matrix_offsets(m, descriptor, 64, flags[2] == "1"), used)
        descriptor = _uniform(m.get(b, np.uint64)[threads])
        # (N, 16)
        right = _read_matrix(m, _matrix_offsets(m, descriptor, N, flags[-1] == "1"), used)
        product = _multiply_halves(left, right, kind)
        for number, name in enumerate(names):
            before = 0
            if accumulates[threads].any():
                accumulator = m.pending(name)[threads].view(np.float32)
                before = np.where(accumulates[threads], accumulator, 0)
            i = row + 8 * (number // 2 % 2)
            j = column + 8 * (number // 4) + number % 2
            results[name][threads] = before + product[i, j]
    m.shared.products.append(used)
    m.products.append(({name: x.view(np.uint32) for name, x in results.items()}, used))
    for name in names:
        m.registers[name] = np.full(m.n, NAN)


def _multiply_halves(left, right, kind):
    """Return left (M, K) times the transpose of right (N, K), bits of halves, in float64."""
    left, right = (_to_float(x, kind).astype(np.float64) for x in (left, right))
    return left @ right.T


def _register_matrix(m, names, threads, places, rows):
    """Return the bits of a matrix (rows, 16) of halves in registers.

    Each register has two neighbors of a row, from (row, column) of `places` on, (threads,) each.
    """
    matrix = np.empty((rows, 16), np.uint16)
    for name, (row, column) in zip(names, places, strict=True):
        pairs = m.get(name, np.uint32)[threads, None].view(np.uint16)
        matrix[row, column], matrix[row, column + 1] = pairs.T
    return matrix


def _warp_product(m, words, operands):
    """mma.sync: D (16, 8) = A (16, 16) B (16, 8) + C for each warp, all in registers."""
    assert words[1:6] == ["sync", "aligned", "m16n8k16", "row", "col"] and m.active is None
    names, a, b, c = operands
    kind, results = words[7], np.empty((4, m.n), np.float32)
    row, column = np.arange(32) // 4, 2 * (np.arange(32) % 4)
    for first in range(0, m.n, 32):
        threads = slice(first, first + 32)
        places = [(row + 8 * (number % 2), column + 8 * (number // 2)) for number in range(4)]
        left = _register_matrix(m, a, threads, places, 16)
        right = _register_matrix(m, b, threads, [(row, column), (row, column + 8)], 8)
        product = _multiply_halves(left, right, kind)
        for number in range(4):
            addend = m.get(c[number], np.float32)[threads]
            i, j = row + 8 * (number // 2), column + number % 2
            results[number, threads] = addend + product[i, j]
    for name, x in zip(names, results, strict=True):
        m.put(name, x)


def _uniform(x):
    """Return the value that all threads have."""
    assert (x == x[0]).all()
    return int(x[0])


def _read_matrix(m, offsets, used):
    """Return the bits of a product's factor in shared memory; mark its bytes in `used`."""
    if m.shared.unfenced[offsets].any():
        raise RaceError("a product reads what no fence made visible")
    used[offsets] = True
    if (m.shared.copying[offsets] | (m.shared.writer[offsets] != SharedMemory.NOBODY)).any():
        raise RaceError("a product reads what is being written")
    return np.ascontiguousarray(m.shared.bytes[offsets]).view(np.uint16)[..., 0]


def _fence(m, words, operands):
    m.shared.unfenced[:] = False


def _barrier(m, words, operands):
    if words[:2] == ["bar", "sync"]:
        m.shared.barrier()


def _branch(m, words, operands):
    if m.active is None or m.active.all():
        return operands[0]
    if m.active.any():
        raise NotImplementedError("the threads of a program diverge")


def _return(m, words, operands):
    assert not (m.copies or m.copy_groups), "asynchronous copies are pending at the end"
    assert not (m.products or m.product_groups), "asynchronous products are pending at the end"
    return "end"  # no label of the program


INSTRUCTIONS = {
    **dict.fromkeys(["add", "sub", "min", "max"], _binary),
    **dict.fromkeys(["and", "or", "xor"], _logic),
    **dict.fromkeys(["mul", "mad"], _multiply),
    "div": _divide,
    "fma": _fma,
    **dict.fromkeys(["neg", "abs", "not", "ex2", "lg2"], _unary),
    **dict.fromkeys(["shl", "shr"], _shift),
    "bfe": _extract_bits,
    "setp": _compare,
    "selp": _select,
    "mov": _move,
    "cvt": _convert,
    "prmt": _permute_bytes,
    "shfl": _shuffle,
    "redux": _reduce,
    "ld": _load,
    "st": _store,
    "cp": _copy,
    "ldmatrix": _matrices,
    "stmatrix": _matrices,
    "wgmma": _warpgroup_product,
    "mma": _warp_product,
    "fence": _fence,
    "bar": _barrier,
    "bra": _branch,
    "ret": _return,
}


def _parse(ptx):
    """Return (instructions, labels, parameters) of a kernel's PTX.

    An instruction is (guard, function, words of the opcode, operands). Labels are indices of
    instructions, by name. Parameters are names.
    """
    ptx = re.sub(r"//[^\n]*", "", ptx)
    head, _, body = ptx.partition("{\n\t.reg")
    parameters = re.findall(r"\.param [^\n]*?(\w+_param_\d+)", head)
    body = "{\n\t.reg" + body.rpartition("}")[0]
    instructions, labels = [], {}
    for line in re.split(r"[;\n]", body):
        line = line.strip()
        if not line or line.startswith(".") or line in "{}":
            continue
        if label := re.fullmatch(r"(\$\w+):", line):
            labels[label[1]] = len(instructions)
            continue
        guard, opcode, rest = re.fullmatch(r"(?:@(!?%\w+)\s+)?([\w.:]+)\s*(.*)", line).groups()
        words = opcode.split(".")
        instructions.append((guard, INSTRUCTIONS[words[0]], words, _operands(rest)))
    return instructions, labels, parameters


def _operands(text):
    """Return the operands of an instruction: strings, and lists of strings for {a, b}."""
    operands = []
    for part in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,{}\[\]]+", text):
        part = part.strip()
        if part.startswith("{"):
            operands.append([name.strip() for name in part[1:-1].split(",")])
        elif part:
            operands.append(part.strip("[] "))
    return operands
