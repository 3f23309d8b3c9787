"""An NVIDIA GPU in NumPy: carries out the PTX that Triton's compiler made, instruction by instruction, on tensors of the CPU.

    with emulator.gpu(90) as launched: ...     # an H100; in a process whose Triton is not interpreted (TRITON_INTERPRET=0)

The interpreter runs the source; this runs what the compiler made of it: layouts and swizzles in shared memory, tiles fetched ahead, tensor
cores, registers, approximate functions. Slow, and no measure of speed. Warps may come in any order between two barriers, which is checked
rather than tried: RaceError where one reads or writes in shared memory what another writes meanwhile, or what an asynchronous copy or
product is still about. Shared memory at first, and registers that a product has not written yet, hold NaN. Global memory is the launch's
tensors; an access outside of them, or one that is not aligned, is an AssertionError. Where threads of a program part: NotImplementedError.

Source: PTX ISA 9.0, https://docs.nvidia.com/cuda/parallel-thread-execution. Legend: n threads of a program; registers are (n,), unsigned.
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

LARGEST = {80: 163, 89: 99, 90: 227}  # KB of shared memory that a program gets at most
SHARED = 1 << 14  # address of the first byte: its low bits are zero, as swizzles want it
COMPARISONS = {name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")}
WHOLE = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
REAL = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.fmin,
    "max": np.fmax,
}
NAN = np.uint32(0x7FFFFFFF)


class RaceError(AssertionError):
    """What this program computes depends on the order in which its warps come."""


@contextlib.contextmanager
def gpu(capability, mend=lambda ptx: ptx):
    """Launches of Triton kernels are carried out here. capability: 80, 89 or 90, that of an A100, RTX 4090 or H100; mend: changes PTX.

    Yields the list of what was launched so far: Triton's compiled kernels, with name and asm.
    """
    launched, run, active = [], JITFunction.run, driver._active
    driver.set_active(
        types.SimpleNamespace(  # Triton keeps what it compiled by the number of the device
            get_current_target=lambda: GPUTarget("cuda", capability, 32),
            get_current_device=lambda: capability,
            get_current_stream=lambda device: 0,
        )
    )

    def launch(self, *arguments, grid, warmup, **options):
        compiled = run(self, *arguments, grid=grid, warmup=True, **options)
        if compiled.metadata.shared > 1024 * LARGEST[capability]:
            raise OutOfResources(
                compiled.metadata.shared, 1024 * LARGEST[capability], "shared memory"
            )
        values = dict(zip(self.arg_names, arguments)) | options
        taken = [
            values[name] for name, kind in compiled.src.signature.items() if kind != "constexpr"
        ]
        code = _code(mend(compiled.asm["ptx"]))
        memory = Memory([x for x in taken if isinstance(x, torch.Tensor)])
        taken = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in taken] + [
            0,
            0,
        ]  # no scratch memory
        with np.errstate(all="ignore"):
            for place in np.ndindex(*(*grid, 1, 1)[:3]):
                Program(
                    code, taken, memory, place, (*grid, 1, 1)[:3], compiled.metadata
                ).carry_out()
        launched.append(compiled)

    JITFunction.run = launch
    try:
        yield launched
    finally:
        JITFunction.run = run
        driver._active = active


class Memory:
    """Global memory: the bytes of some tensors, from the first of each to its last."""

    def __init__(self, tensors):
        spans = {}
        for x in tensors:
            if x.numel():
                size = sum((n - 1) * stride for n, stride in zip(x.shape, x.stride())) + 1
                spans[x.data_ptr()] = max(size * x.element_size(), spans.get(x.data_ptr(), 0))
        self.starts = np.array(sorted(spans), np.uint64)
        self.bytes = [
            np.frombuffer((ctypes.c_uint8 * spans[start]).from_address(start), np.uint8)
            for start in sorted(spans)
        ]

    def places(self, addresses, size):
        """(bytes of a tensor, numbers (n, size) of bytes in them, which of the addresses they belong to), for each that is addressed."""
        assert not (addresses % np.uint64(size)).any(), "an address is not aligned"
        tensor = np.searchsorted(self.starts, addresses, "right") - 1
        assert (tensor >= 0).all(), "an address lies before all tensors"
        for number in np.unique(tensor):
            which = np.flatnonzero(tensor == number)
            first = (addresses[which] - self.starts[number]).astype(np.int64)
            assert first.max() + size <= len(self.bytes[number]), (
                "an address lies behind its tensor"
            )
            yield self.bytes[number], first[:, None] + np.arange(size), which

    def load(self, addresses, size):
        found = np.empty((len(addresses), size), np.uint8)
        for source, places, which in self.places(addresses, size):
            found[which] = source[places]
        return found

    def store(self, addresses, data):
        for target, places, which in self.places(addresses, data.shape[1]):
            target[places] = data[which]


class Shared:
    """Shared memory of a program, and which of its warps is about which byte since the last barrier."""

    NOBODY, SEVERAL = -1, -2

    def __init__(self, size):
        self.bytes = np.full(size, 0xFF, np.uint8)
        self.reader, self.writer = (np.full(size, self.NOBODY, np.int8) for _ in range(2))
        self.coming = np.zeros(size, bool)  # by asynchronous copies
        self.unfenced = np.zeros(size, bool)  # written, but not yet for products to read
        self.products = []  # bytes of asynchronous ones, (size,) bool each

    def barrier(self):
        self.reader[:] = self.writer[:] = self.NOBODY

    def alone(self, places, warps):
        """Whether no other warp accesses the same byte at once."""
        last = np.empty_like(self.reader)
        last[places] = warps
        return last[places] == warps

    def read(self, places, warps):
        """Numbers of bytes, and who reads each of them, both of one shape."""
        if self.coming[places].any():
            raise RaceError("reads what an asynchronous copy writes")
        writer, reader = self.writer[places], self.reader[places]
        if ((writer != self.NOBODY) & (writer != warps)).any():
            raise RaceError("reads what another warp writes")
        only = self.alone(places, warps) & ((reader == self.NOBODY) | (reader == warps))
        self.reader[places] = np.where(only, warps, self.SEVERAL)
        return self.bytes[places]

    def write(self, places, warps, data):
        """The same, and what is written; warps may write the same to the same place."""
        self.begin(places, warps)
        writer = self.writer[places]
        alone = self.alone(places, warps) & ((writer == self.NOBODY) | (writer == warps))
        rivals = (writer != self.NOBODY) & (writer != warps) & (self.bytes[places] != data)
        self.bytes[places] = data
        if (rivals | (self.bytes[places] != data)).any():
            raise RaceError("writes what another thread writes")
        self.writer[places], self.unfenced[places] = np.where(alone, warps, self.SEVERAL), True

    def begin(self, places, warps):
        """Of writing: nobody may be about these bytes."""
        if self.coming[places].any() or any(product[places].any() for product in self.products):
            raise RaceError("writes what an asynchronous copy or product is about")
        reader = self.reader[places]
        if ((reader != self.NOBODY) & (reader != warps)).any():
            raise RaceError("writes what another warp reads")


class Program:
    """One program of a launch, at `place` of the grid."""

    def __init__(self, code, arguments, memory, place, grid, metadata):
        self.steps, self.labels, parameters = code
        self.parameters = dict(zip(parameters, arguments, strict=True))
        self.memory, self.n = memory, metadata.num_warps * 32
        self.shared = Shared(metadata.shared)
        self.warps = np.arange(self.n) // 32
        threads = np.arange(self.n, dtype=np.uint32)
        self.registers = {"%tid.x": threads, "global_smem": np.full(self.n, SHARED, np.uint32)}
        for axis, here, count in zip("xyz", place, grid):
            self.registers |= {
                f"%ctaid.{axis}": np.full(self.n, here, np.uint32),
                f"%nctaid.{axis}": np.full(self.n, count, np.uint32),
            }
        self.copies, self.copy_groups = [], []  # asynchronous: (shared places, warps, data)
        self.products, self.product_groups = [], []  # (registers by name, bytes of their factors)

    def carry_out(self):
        place = 0
        while place is not None:
            guard, step, words, operands = self.steps[place]
            self.active = None
            if guard:
                self.active = self.get(guard.lstrip("!"), bool) ^ guard.startswith("!")
            try:
                target = step(self, words, operands)
            except Exception as error:
                error.add_note(f"{guard} {'.'.join(words)} {operands}")
                raise
            place = place + 1 if target is None else self.labels.get(target)

    # --- registers

    def get(self, name, dtype):
        """A register or a constant, (n,) of dtype; what is narrower is filled up with zeros, what is wider cut off."""
        if name[0] in "%g":
            found = self.registers[name]
        elif name.startswith("0f"):
            found = np.full(self.n, int(name[2:], 16), np.uint32)
        else:
            found = np.full(self.n, int(name.rstrip("U"), 0), np.int64).view(np.uint64)
        dtype = np.dtype(dtype)
        if dtype == bool:
            return found.astype(bool)
        return found.astype(f"u{dtype.itemsize}").view(dtype)

    def put(self, name, value):
        value = np.broadcast_to(np.asarray(value), self.n)
        if value.dtype != bool:
            value = value.view(f"u{value.dtype.itemsize}")
        if self.active is not None and not self.active.all():
            before = (
                self.registers[name].astype(value.dtype)
                if name in self.registers
                else NAN.astype(value.dtype)
            )
            value = np.where(self.active, value, before)
        self.registers[name] = value

    def lanes(self):
        return np.arange(self.n) if self.active is None else np.flatnonzero(self.active)

    # --- memory

    def address(self, operand, dtype):
        name, _, offset = operand.replace(" ", "").partition("+")
        return self.get(name, dtype) + np.dtype(dtype).type(int(offset or 0))

    def shared_places(self, operand, size, lanes):
        """Numbers (lanes, size) of bytes in shared memory."""
        first = self.address(operand, np.uint32)[lanes].astype(np.int64) - SHARED
        assert (
            not (first % size).any()
            and first.min(initial=0) >= 0
            and first.max(initial=0) + size <= len(self.shared.bytes)
        )
        return first[:, None] + np.arange(size)

    # --- asynchronous copies and products

    def wait_copies(self, left):
        count = max(0, len(self.copy_groups) - left)
        done, self.copy_groups = self.copy_groups[:count], self.copy_groups[count:]
        for places, warps, data in itertools.chain.from_iterable(done):
            self.shared.coming[places] = False
            self.shared.write(places, warps, data)
            self.shared.unfenced[places] = False  # Triton 3.6 has no fence behind copies

    def wait_products(self, left):
        count = max(0, len(self.product_groups) - left)
        done, self.product_groups = self.product_groups[:count], self.product_groups[count:]
        for registers, factors in itertools.chain.from_iterable(done):
            self.shared.products = [x for x in self.shared.products if x is not factors]
            self.shared.reader[factors] = Shared.SEVERAL
            self.registers |= registers

    def pending(self, name):
        """A register that products still write, or as it is."""
        for group in (self.products, *self.product_groups[::-1]):
            for registers, *_ in group[::-1]:
                if name in registers:
                    return registers[name]
        return self.registers[name]


# --- instructions: functions of a program, the words of the opcode, and operands; what they return is the label to go on from


def _dtype(word):
    return np.dtype({"s": "i", "f": "f"}.get(word[0], "u") + str(int(word[1:]) // 8))


def _binary(m, words, operands):
    dtype = _dtype(words[-1])
    a, b = (m.get(x, dtype) for x in operands[1:])
    found = (REAL if dtype.kind == "f" else WHOLE)[words[0]](a, b)
    if "relu" in words:
        found = np.maximum(found, 0)
    m.put(operands[0], _flushed(found) if "ftz" in words else found)


def _flushed(x):
    return np.where(np.abs(x) < 2.0**-126, np.float32(0), x)


def _logic(m, words, operands):
    dtype = bool if words[1] == "pred" else _dtype(words[1])
    m.put(operands[0], WHOLE[words[0]](*(m.get(x, dtype) for x in operands[1:])))


def _multiply(m, words, operands):
    """mul and mad: of whole numbers lo, which is cut off, and wide."""
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
    found = (a * b + c).astype(np.float32)
    m.put(operands[0], _flushed(found) if "ftz" in words else found)


def _unary(m, words, operands):
    dtype = bool if words[-1] == "pred" else _dtype(words[-1])
    x = m.get(operands[1], dtype)
    compute = {"neg": np.negative, "abs": np.abs, "not": np.invert, "ex2": np.exp2, "lg2": np.log2}[
        words[0]
    ]
    found = compute(_flushed(x) if "ftz" in words else x)
    m.put(operands[0], _flushed(found) if "ftz" in words else found)


def _shift(m, words, operands):
    dtype = _dtype(words[-1])
    x, by = m.get(operands[1], dtype), m.get(operands[2], np.uint32)
    bits = 8 * dtype.itemsize
    if dtype.kind == "i":
        return m.put(operands[0], x >> np.minimum(by, bits - 1).astype(dtype))
    shifted = getattr(np, "left_shift" if words[0] == "shl" else "right_shift")(
        x, np.minimum(by, bits - 1).astype(dtype)
    )
    m.put(operands[0], np.where(by < bits, shifted, dtype.type(0)))


def _bits(m, words, operands):
    dtype = _dtype(words[-1])
    x, first, count = m.get(operands[1], np.uint32), int(operands[2]), int(operands[3])
    found = (x >> np.uint32(first)) & np.uint32((1 << count) - 1)
    if dtype.kind == "i":
        found = (found << np.uint32(32 - count)).view(np.int32) >> (32 - count)
    m.put(operands[0], found.astype(dtype))


def _compare(m, words, operands):
    dtype = _dtype(words[2])
    m.put(operands[0], COMPARISONS[words[1]](*(m.get(x, dtype) for x in operands[1:])))


def _select(m, words, operands):
    dtype = _dtype(words[-1])
    m.put(
        operands[0],
        np.where(m.get(operands[3], bool), m.get(operands[1], dtype), m.get(operands[2], dtype)),
    )


def _move(m, words, operands):
    if words[-1] == "pred":
        return m.put(operands[0], m.get(operands[1], bool))
    dtype = _dtype(words[-1])
    if isinstance(operands[0], list):
        parts = m.get(operands[1], dtype)[:, None].view(f"u{dtype.itemsize // len(operands[0])}")
        for number, name in enumerate(operands[0]):
            if name != "_":
                m.put(name, parts[:, number].copy())
    elif isinstance(operands[1], list):
        parts = [m.get(name, f"u{dtype.itemsize // len(operands[1])}") for name in operands[1]]
        m.put(operands[0], np.stack(parts, 1).view(dtype)[:, 0])
    else:
        m.put(operands[0], m.get(operands[1], dtype))


def _half(x, kind):
    """float32 -> the bits of bf16 or f16, uint16, to the nearest."""
    x = np.ascontiguousarray(x)
    return (
        torch.from_numpy(x)
        .to(torch.bfloat16 if kind == "bf16" else torch.float16)
        .view(torch.int16)
        .numpy()
        .view(np.uint16)
    )


def _single(x, kind):
    halves = torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).view(
        torch.bfloat16 if kind == "bf16" else torch.float16
    )
    return halves.float().numpy()


def _convert(m, words, operands):
    to, source = words[-2:]
    if to in ("bf16x2", "f16x2"):
        high, low = (_half(m.get(x, np.float32), to[:-2]) for x in operands[1:])
        m.put(operands[0], low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16))
    elif source in ("bf16", "f16"):
        m.put(operands[0], _single(m.get(operands[1], np.uint16), source))
    else:
        m.put(operands[0], m.get(operands[1], _dtype(source)).astype(_dtype(to)))


def _permute(m, words, operands):
    both = np.concatenate([m.get(x, np.uint32)[:, None].view(np.uint8) for x in operands[1:3]], 1)
    selector = int(operands[3].rstrip("U"), 0)
    m.put(
        operands[0],
        np.ascontiguousarray(both[:, [selector >> 4 * byte & 7 for byte in range(4)]]).view(
            np.uint32
        )[:, 0],
    )


def _shuffle(m, words, operands):
    x, by = (m.get(operand, np.uint32).reshape(-1, 32) for operand in operands[1:3])
    lane = np.arange(32, dtype=np.uint32)
    m.put(
        operands[0],
        np.take_along_axis(x, (lane ^ by if words[2] == "bfly" else by) % 32, 1).ravel(),
    )


def _reduce(m, words, operands):
    x = m.get(operands[1], _dtype(words[-1])).reshape(-1, 32)
    m.put(operands[0], np.repeat(getattr(x, words[2])(1), 32))


def _parameter(m, words, operands):
    value = m.parameters[operands[1]]
    dtype = _dtype(words[-1])
    bits = (
        np.array([value], np.float32).view(np.uint32)
        if isinstance(value, float)
        else np.array([value]).astype(dtype)
    )
    wide = np.int64 if operands[0].startswith("%rd") and dtype.kind == "i" else dtype
    m.put(operands[0], np.full(m.n, bits[0]).astype(wide))


def _vector(words):
    """Numbers of an access, and their dtype."""
    return next((int(word[1:]) for word in words if re.fullmatch("v[0-9]", word)), 1), _dtype(
        words[-1]
    )


def _load(m, words, operands):
    if words[1] == "param":
        return _parameter(m, words, operands)
    count, dtype = _vector(words)
    lanes, size = m.lanes(), count * dtype.itemsize
    if words[1] == "global":
        data = m.memory.load(m.address(operands[1], np.uint64)[lanes], size)
    else:
        places = m.shared_places(operands[1], size, lanes)
        data = m.shared.read(places, m.warps[lanes, None])
    found = np.full((m.n, count), 0, dtype)
    found[lanes] = data.view(dtype)
    names = operands[0] if isinstance(operands[0], list) else [operands[0]]
    for number, name in enumerate(names):
        m.put(name, found[:, number].copy())


def _store(m, words, operands):
    count, dtype = _vector(words)
    lanes, size = m.lanes(), count * dtype.itemsize
    names = operands[1] if isinstance(operands[1], list) else [operands[1]]
    data = np.stack([m.get(name, f"u{dtype.itemsize}") for name in names], 1).view(np.uint8)[lanes]
    if words[1] == "global":
        m.memory.store(m.address(operands[0], np.uint64)[lanes], data)
    else:
        m.shared.write(m.shared_places(operands[0], size, lanes), m.warps[lanes, None], data)


def _copy(m, words, operands):
    """cp.async: the first bytes of global memory, then zeros."""
    if words[2] == "commit_group":
        m.copy_groups.append(m.copies)
        m.copies = []
    elif words[2] == "wait_group":
        m.wait_copies(int(operands[0]))
    else:
        lanes, size = m.lanes(), int(operands[2], 0)
        places = m.shared_places(operands[0], size, lanes)
        taken = (
            m.get(operands[3], np.uint32)[lanes] if len(operands) > 3 else np.full(len(lanes), size)
        )
        data = np.zeros((len(lanes), size), np.uint8)
        assert np.isin(taken, (0, size)).all()
        data[taken > 0] = m.memory.load(m.address(operands[1], np.uint64)[lanes][taken > 0], size)
        warps = np.broadcast_to(m.warps[lanes, None], places.shape)
        m.shared.begin(places, warps)
        m.shared.bytes[places], m.shared.coming[places] = 0xFF, True
        m.copies.append((places, warps, data))


def _matrices(m, words, operands):
    """ldmatrix and stmatrix: of 8 x 8 halves each, whose rows the lanes of a warp tell."""
    assert words[1:4] == ["sync", "aligned", "m8n8"] and m.active is None
    (names, address), lane = (
        operands if words[0] == "ldmatrix" else operands[::-1],
        np.arange(m.n) % 32,
    )
    rows = m.shared_places(address, 16, np.arange(m.n)).reshape(-1, 32, 16)  # (warps, rows, bytes)
    row, side = lane // 4, lane % 4 * 2
    warps = np.arange(len(rows))[:, None, None]
    for number, name in enumerate(names):
        places = rows[:, 8 * number : 8 * number + 8]
        halves = np.empty((len(rows), 8, 8), np.uint16)
        if words[0] == "ldmatrix":
            halves[:] = np.ascontiguousarray(m.shared.read(places, warps)).view(np.uint16)
        mine = halves.swapaxes(1, 2) if "trans" in words else halves
        if words[0] == "ldmatrix":
            m.put(
                name,
                np.stack([mine[m.warps, row, side], mine[m.warps, row, side + 1]], 1).view(
                    np.uint32
                )[:, 0],
            )
        else:
            pairs = m.get(name, np.uint32)[:, None].view(np.uint16)
            mine[m.warps, row, side], mine[m.warps, row, side + 1] = pairs.T
            m.shared.write(places, warps, halves.view(np.uint8))


def _factor(m, descriptor, rows, transposed, columns=16):
    """Numbers of the bytes of a matrix of halves (rows, columns) in shared memory, which one warpgroup's descriptor tells."""
    start, leading, stride = ((descriptor >> first & 0x3FFF) << 4 for first in (0, 16, 32))
    row, column = np.indices((rows, columns))
    line = {1: 128, 2: 64, 3: 32}[descriptor >> 62]  # bytes until the swizzle begins again
    assert descriptor >> 49 & 7 == 0
    if transposed:  # neighbours in memory are rows
        halves = line // 2
        first = (
            2 * (row % halves) + row // halves * leading + column % 8 * line + column // 8 * stride
        )
    else:
        first = 2 * column + row % 8 * line + row // 8 * stride
    address = start + first
    address ^= (address >> 7 & (line // 16 - 1)) << 4
    return address[..., None] - (SHARED & 0x3FFFF) + np.arange(2)


def _product(m, words, operands):
    """wgmma: D (64, N) += A (64, 16) B (16, N) of a warpgroup, four warps; A in registers or shared memory, B in shared memory."""
    if words[1] == "fence":
        return
    if words[1] == "commit_group":
        m.product_groups.append(m.products)
        m.products = []
        return
    if words[1] == "wait_group":
        return m.wait_products(int(operands[0]))
    N, kind = int(re.search(r"n(\d+)k16", words[4])[1]), words[6]
    names, a, b, adds, *flags = operands
    assert m.active is None and flags[:2] == ["1", "1"]
    adds = m.get(adds, bool)
    lane, warp = np.arange(m.n) % 32, m.warps % 4
    found = {name: np.empty(m.n, np.float32) for name in names}
    used = np.zeros(len(m.shared.bytes), bool)
    for group in range(m.n // 128):
        threads = slice(128 * group, 128 * group + 128)
        row, pair = 16 * warp[threads] + lane[threads] // 4, 2 * (lane[threads] % 4)
        if isinstance(a, list):
            left = _halves(
                m,
                a,
                threads,
                [(row + 8 * (number % 2), pair + 8 * (number // 2)) for number in range(4)],
                64,
            )
        else:
            left = _read(
                m, _factor(m, _same(m.get(a, np.uint64)[threads]), 64, flags[2] == "1"), used
            )
        right = _read(
            m, _factor(m, _same(m.get(b, np.uint64)[threads]), N, flags[-1] == "1"), used
        )  # (N, 16)
        total = _single(left, kind).astype(np.float64) @ _single(right, kind).astype(np.float64).T
        for number, name in enumerate(names):
            before = (
                np.where(adds[threads], m.pending(name)[threads].view(np.float32), 0)
                if adds[threads].any()
                else 0
            )
            found[name][threads] = (
                before + total[row + 8 * (number // 2 % 2), pair + 8 * (number // 4) + number % 2]
            )
    m.shared.products.append(used)
    m.products.append(({name: x.view(np.uint32) for name, x in found.items()}, used))
    for name in names:
        m.registers[name] = np.full(m.n, NAN)


def _halves(m, names, threads, places, rows):
    """A matrix (rows, 16) of halves in registers, two in each: next to each other from (row, column) of `places` on, (threads,) each."""
    found = np.empty((rows, 16), np.uint16)
    for name, (row, column) in zip(names, places):
        pairs = m.get(name, np.uint32)[threads, None].view(np.uint16)
        found[row, column], found[row, column + 1] = pairs.T
    return found


def _warp_product(m, words, operands):
    """mma.sync: D (16, 8) = A (16, 16) B (16, 8) + C of each warp, all in registers."""
    assert words[1:6] == ["sync", "aligned", "m16n8k16", "row", "col"] and m.active is None
    names, a, b, c = operands
    kind, found = words[7], np.empty((4, m.n), np.float32)
    row, pair = np.arange(32) // 4, 2 * (np.arange(32) % 4)
    for first in range(0, m.n, 32):
        threads = slice(first, first + 32)
        left = _halves(
            m,
            a,
            threads,
            [(row + 8 * (number % 2), pair + 8 * (number // 2)) for number in range(4)],
            16,
        )
        right = _halves(m, b, threads, [(row, pair), (row, pair + 8)], 8)
        total = _single(left, kind).astype(np.float64) @ _single(right, kind).astype(np.float64).T
        for number in range(4):
            found[number, threads] = (
                m.get(c[number], np.float32)[threads]
                + total[row + 8 * (number // 2), pair + number % 2]
            )
    for name, x in zip(names, found):
        m.put(name, x)


def _same(x):
    assert (x == x[0]).all()
    return int(x[0])


def _read(m, places, used):
    if m.shared.unfenced[places].any():
        raise RaceError("a product reads what no fence has shown it")
    used[places] = True
    if (m.shared.coming[places] | (m.shared.writer[places] != Shared.NOBODY)).any():
        raise RaceError("a product reads what is being written")
    return np.ascontiguousarray(m.shared.bytes[places]).view(np.uint16)[..., 0]


def _fence(m, words, operands):
    m.shared.unfenced[:] = False


def _barrier(m, words, operands):
    if words[:2] == ["bar", "sync"]:
        m.shared.barrier()


def _branch(m, words, operands):
    if m.active is None or m.active.all():
        return operands[0]
    if m.active.any():
        raise NotImplementedError("threads part")


def _return(m, words, operands):
    assert not (m.copies or m.copy_groups), "asynchronous copies are left at the end"
    assert not (m.products or m.product_groups), "asynchronous products are left at the end"
    return "the end"


STEPS = {
    **dict.fromkeys(["add", "sub", "min", "max"], _binary),
    **dict.fromkeys(["and", "or", "xor"], _logic),
    **dict.fromkeys(["mul", "mad"], _multiply),
    "div": _divide,
    "fma": _fma,
    **dict.fromkeys(["neg", "abs", "not", "ex2", "lg2"], _unary),
    **dict.fromkeys(["shl", "shr"], _shift),
    "bfe": _bits,
    "setp": _compare,
    "selp": _select,
    "mov": _move,
    "cvt": _convert,
    "prmt": _permute,
    "shfl": _shuffle,
    "redux": _reduce,
    "ld": _load,
    "st": _store,
    "cp": _copy,
    "ldmatrix": _matrices,
    "stmatrix": _matrices,
    "wgmma": _product,
    "mma": _warp_product,
    "fence": _fence,
    "bar": _barrier,
    "bra": _branch,
    "ret": _return,
}


def _code(ptx):
    """Steps (guard, function, words of the opcode, operands), the labels' places among them, and the parameters' names."""
    ptx = re.sub(r"//[^\n]*", "", ptx)
    head, _, body = ptx.partition("{\n\t.reg")
    parameters = re.findall(r"\.param [^\n]*?(\w+_param_\d+)", head)
    body = "{\n\t.reg" + body.rpartition("}")[0]
    steps, labels = [], {}
    for line in re.split(r"[;\n]", body):
        line = line.strip()
        if not line or line.startswith(".") or line in "{}":
            continue
        if label := re.fullmatch(r"(\$\w+):", line):
            labels[label[1]] = len(steps)
            continue
        guard, opcode, rest = re.fullmatch(r"(?:@(!?%\w+)\s+)?([\w.:]+)\s*(.*)", line).groups()
        operands = [
            x.strip() for x in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,{}\[\]]+", rest) if x.strip()
        ]
        operands = [
            [y.strip() for y in x[1:-1].split(",")] if x[0] == "{" else x.strip("[] ")
            for x in operands
        ]
        words = opcode.split(".")
        steps.append((guard, STEPS[words[0]], words, operands))
    return steps, labels, parameters
