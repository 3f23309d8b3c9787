"""Choice of the attention path at the start of a training, by measuring every path on the GPU.

    choose_path(model, config, sequences, device, dtype, processes)
    # attention: triton, 1.8x sdpa/flash, error 3e-03; sdpa/cudnn rejected: dq error 0.4

Each path computes one layer, forward and backward. It must agree with the dense path in float32 on
a small problem (TOLERANCES), and is timed on the shapes of the training. The fastest correct one is
taken; within 10%, the order of PATHS decides. Rank 0 decides for all ranks. On a CPU nothing is
timed: the rule of `attention.resolve_path` keeps results reproducible.

The measurement runs in a process of its own, because a faulty kernel can end the process or make
its GPU unusable. A path that fails, is wrong or takes too long is rejected, and the others are
measured in a new process. Measurements are cached per device, versions, code and shapes in
~/.cache/length-extrapolation (XDG_CACHE_HOME).
"""

import contextlib
import dataclasses
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

from runtime import devices, files, plugins
from runtime.distributed import Processes
from runtime.provenance import hash_file, short_hash

import torch

import attention
import posenc
import triton_attention.flex  # noqa: F401, registers the attention path "flex"
from errors import InputError
from model import GPT
from posenc import Encoding
from training.attention_layer import AttentionLayer, random_layer, relative_errors

# Values of --attention.
Name = Literal[
    "auto", "sdpa", "sdpa/flash", "sdpa/cudnn", "sdpa/efficient", "triton", "flex", "dense"
]
# Paths to measure. If several are equally fast, the first is taken: PyTorch's kernels have been
# tested most, and the dense path needs the most memory.
PATHS = ("sdpa/flash", "sdpa/cudnn", "sdpa/efficient", "triton", "flex", "dense")
ON_ANY_DEVICE = ("sdpa", "sdpa/flash", "dense")
EQUALLY_FAST = 1.1
# Largest relative errors on the small problem: of the output and the gradients of queries, keys,
# values and features; of the gradients of parameters. The latter are sums along the text, in which
# rounding errors add up: the sdpa path in bfloat16 has 0.16 at the bias of a gate of `fox`.
TOLERANCES = {
    torch.float32: (1e-3, 1e-2),
    torch.float16: (1e-2, 5e-2),
    torch.bfloat16: (5e-2, 0.3),
}
SMALL_BATCH, SMALL_LENGTH = 2, 256  # sequences and most tokens of the small problem
ROUNDS = 5  # timings of each path
# Longest text, in tokens, for which the dense path is measured. Each of its chunks is compiled
# separately, half a second each. Beyond, it is taken if no other path is correct.
DENSE_CONTEXT = 2048
TIME_LIMIT = 300  # seconds of a measurement; the other ranks wait for it (runtime.distributed)
ANY_MICRO_BATCH = 8  # sequences per pass for which paths are timed with --micro_batch auto
CODE = ("attention.py", "posenc.py", "more_encodings", "triton_attention", "training")
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Problem:
    """One attention layer of a training, in values that JSON can represent."""

    pe: str
    heads: int
    width: int
    block_size: int
    micro_batch: int
    causal: bool
    attn_scale: float | None
    skip_tolerance: float
    device: str
    dtype: str
    compile: bool
    deterministic: bool
    plugins: list[str]
    """files that define the encoding"""

    def layer(self, micro_batch: int, tokens: int) -> AttentionLayer:
        """Return the layer with random inputs."""
        return random_layer(
            self.pe,
            self.heads,
            self.width,
            self.block_size,
            (micro_batch, tokens),
            devices.DTYPES[self.dtype],
            torch.device(self.device),
            self.causal,
            self.attn_scale,
        )


class Candidate(NamedTuple):
    """A path to measure."""

    path: str
    check: Callable[[], dict[str, float]]
    """computes the small problem and returns the relative errors by name"""
    run: Callable[[], object]
    """computes the real shapes once, forward and backward"""


@dataclass
class Measurement:
    """What is known about the paths so far."""

    errors: dict[str, float] = field(default_factory=dict)
    """largest relative error of each correct path"""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """of each round, by path"""
    rejected: dict[str, str] = field(default_factory=dict)
    """reasons, by path"""
    running: str | None = None
    """path that is being measured"""
    failure: str | None = None
    """why nothing could be measured on this machine"""

    def reject(self, path: str, reason: str) -> None:
        """Record why a path cannot be taken."""
        self.rejected[path] = reason
        self.errors.pop(path, None)
        self.seconds.pop(path, None)

    def medians(self) -> dict[str, float]:
        """Return the median seconds of each path that was timed."""
        return {path: statistics.median(times) for path, times in self.seconds.items() if times}


def choose_path(
    model: GPT,
    config,
    sequences: int,
    device: torch.device,
    dtype: torch.dtype,
    processes: Processes,
) -> None:
    """Set the attention path of a model, and print it if it was measured.

    config: the `Config` of train_gpt.py. sequences: of one rank and one optimizer step. A path that
    --attention or a checkpoint names is kept.
    """
    if model.config.attention != "auto":
        return
    path, line = model.attention_path, None
    if _is_measured(config, device):
        if processes.rank == 0:
            path, line = _find_path(model, config, sequences, device, dtype)
        path = processes.gather(path)[0]
    _set_path(model, path)
    if line:
        print(line)


def _is_measured(config, device: torch.device) -> bool:
    """Return whether paths are measured: on GPUs, unless --attention_check is off."""
    return device.type == "cuda" and config.attention_check != "off"


def _set_path(model: GPT, path: str) -> None:
    """Set the paths of a model, also in the config that its checkpoints store."""
    model.attention_path = attention.resolve_paths(path, model.posenc)
    model.config.attention = path


def reuse_path(model: GPT, checkpoint: dict, device: torch.device) -> None:
    """Set the path that a checkpoint was trained with, unless --attention names another one.

    Checkpoints of earlier versions store "auto": then it is that of the rule. Prints a note if this
    machine does not have the path.
    """
    if model.config.attention != "auto":
        return
    path = checkpoint["gpt"].get("attention", "auto")
    try:
        if device.type == "cpu" and not {*path.split("_")} <= {"auto", *ON_ANY_DEVICE}:
            raise InputError("it needs a GPU")
        _set_path(model, model.attention_path if path == "auto" else path)
    except InputError as error:
        print(f"note: the checkpoint was trained with attention by {path}: {error.problems[0]}")


def _find_path(
    model: GPT, config, sequences: int, device: torch.device, dtype: torch.dtype
) -> tuple[str, str]:
    """Return the best paths for a model by measurements, new or cached, and the lines to print.

    Layers with the same encoding have the same path.
    """
    pattern = posenc.layer_specs(config.pe)
    found = {
        spec: _find_layer_path(model, pattern.index(spec), spec, config, sequences, device, dtype)
        for spec in dict.fromkeys(pattern)
    }
    paths = [found[pattern[n % len(pattern)]][0] for n in range(len(model.h))]
    lines = [line if len(found) == 1 else f"{spec}: {line}" for spec, (_, line) in found.items()]
    return attention.join_paths(paths), "\n".join(lines)


def _find_layer_path(
    model: GPT,
    layer: int,
    spec: str,
    config,
    sequences: int,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[str, str]:
    """Return the best path for a layer, whose encoding is `spec`, and the line to print."""
    limit = ANY_MICRO_BATCH if config.micro_batch == "auto" else config.micro_batch
    encoding = model.posenc[layer]
    loaded = plugins.LOADED.values()
    problem = Problem(
        pe=spec,
        heads=model.config.n_head,
        width=model.config.n_embd,
        block_size=config.block_size,
        micro_batch=devices.largest_divisor(sequences, limit),
        causal=encoding.causal,
        attn_scale=config.attn_scale,
        skip_tolerance=config.skip_tolerance,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        compile=devices.uses_compile(config.compile, device),
        deterministic=config.deterministic,
        plugins=[str(plugin.path.resolve()) for plugin in loaded],
    )
    paths = possible_paths(encoding, problem)
    if paths == ["dense"]:
        return "dense", f"attention: dense, the only path of {spec}"
    facts = {"problem": dataclasses.asdict(problem), "paths": paths, **_versions(device)}
    facts["plugins"] = [plugin.sha256 for plugin in loaded]
    measurement = read_cached(facts)
    if measurement is None:
        print(f"attention: measuring {', '.join(paths)}")
        try:
            measurement = measure_in_process(problem, paths)
        except (InputError, OSError) as error:  # as for a full disk
            measurement = Measurement(failure=str(error))
        if measurement.failure is None:
            write_cached(facts, measurement)
    default = "dense"
    if measurement.failure is not None:
        default = attention.layer_paths(model.attention_path, len(model.h))[layer]
    path = fastest_path(measurement) or default
    return path, describe(measurement, path)


def possible_paths(encoding: Encoding, problem: Problem) -> list[str]:
    """Return the paths that may compute an encoding on this machine, in the order of PATHS."""
    excluded = set()
    if problem.deterministic or (encoding.bias is None and encoding.window_size is None):
        excluded.add("flex")  # its gradients use atomic additions; without a bias it is flash
    if problem.block_size > DENSE_CONTEXT:
        excluded.add("dense")
    paths = []
    for path in PATHS:
        with contextlib.suppress(InputError):
            if path not in excluded:
                paths.append(attention.resolve_path(path, encoding))
    return paths or ["dense"]


def _versions(device: torch.device) -> dict:
    """Return what may change a measurement: the device, versions and the hash of the code."""
    triton = None
    with contextlib.suppress(PackageNotFoundError):
        triton = version("triton")
    sources = [file for name in CODE for file in (ROOT / name, *(ROOT / name).glob("*.py"))]
    hashes = [hash_file(file) for file in sorted(sources) if file.is_file()]
    facts = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "triton": triton,
        "driver": devices.nvidia_driver_version(),
        "code": short_hash(hashes),
    }
    if device.type == "cuda":
        facts["name"] = torch.cuda.get_device_name(device)
    return facts


def _cache_file(facts: dict) -> Path:
    """Return the path of the cached measurement of these facts."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "length-extrapolation" / f"attention_{short_hash(facts)}.json"


def read_cached(facts: dict) -> Measurement | None:
    """Return the cached measurement of these facts; None if there is none, or it is corrupt."""
    try:
        value = files.read_json(_cache_file(facts), "measure again")
        measurement = Measurement(**value["measurement"])
        is_known = set(measurement.medians()) | set(measurement.rejected) <= set(facts["paths"])
        describe(measurement, fastest_path(measurement) or "dense")
    except (InputError, RuntimeError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return measurement if is_known and value.get("facts") == facts else None


def write_cached(facts: dict, measurement: Measurement) -> None:
    """Write a measurement to the cache, unless the folder cannot be written."""
    value = {"facts": facts, "measurement": dataclasses.asdict(measurement)}
    with contextlib.suppress(InputError, RuntimeError):  # RuntimeError: there is no home
        files.write_json(_cache_file(facts), value)


def fastest_path(measurement: Measurement) -> str | None:
    """Return the fastest path, or the first in PATHS of those within 10% of it; None if none is."""
    medians = measurement.medians()
    limit = EQUALLY_FAST * min(medians.values(), default=0)
    fast = [path for path, seconds in medians.items() if seconds <= limit]
    return min(fast, key=PATHS.index, default=None)


def describe(measurement: Measurement, path: str) -> str:
    """Return a line with the chosen path, its speed and its error, and what was rejected."""
    if measurement.failure is not None:
        return f"attention: {path}, not measured: {measurement.failure}"
    words = [path]
    medians = measurement.medians()
    seconds = medians.pop(path, 0)
    if medians and seconds:
        other = min(medians, key=medians.__getitem__)
        words.append(f"{medians[other] / seconds:.1f}x {other}")
    if path in measurement.errors:
        words.append(f"error {measurement.errors[path]:.0e}")
    rejected = [f"; {name} rejected: {why}" for name, why in measurement.rejected.items()]
    return f"attention: {', '.join(words)}{''.join(rejected)}"


def measure_in_process(
    problem: Problem, paths: list[str], time_limit: float = TIME_LIMIT
) -> Measurement:
    """Measure paths in a new process, and again without the path in which the process ended."""
    deadline = time.monotonic() + time_limit
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "measurement.json"
        measurement = Measurement()
        while True:
            known = len(measurement.rejected)
            files.write_json(file, dataclasses.asdict(measurement))
            arguments = json.dumps([dataclasses.asdict(problem), paths, str(file)])
            reason = _run_process(arguments, Path(folder), deadline - time.monotonic())
            measurement = Measurement(**files.read_json(file, "run the command again"))
            if reason is None:
                return measurement
            is_late = time.monotonic() >= deadline
            if measurement.running:
                measurement.reject(measurement.running, reason)
                measurement.running = None
            elif len(measurement.rejected) == known and not is_late:
                measurement.failure = reason
                return measurement
            if is_late:
                for path in paths:
                    if path not in {*measurement.medians(), *measurement.rejected}:
                        measurement.reject(path, reason)
                return measurement


def _run_process(arguments: str, folder: Path, seconds: float) -> str | None:
    """Run `main` in a process, whose messages go to a file in a folder; return why it failed."""
    messages = folder / "messages.txt"
    try:
        with open(messages, "wb") as file:
            done = subprocess.run(
                [sys.executable, "-m", "training.attention_choice", arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                timeout=max(0.0, seconds),
            )
    except subprocess.TimeoutExpired:
        return "not finished in time"
    if done.returncode == 0:
        return None
    lines = messages.read_text(errors="replace").strip().splitlines() or ["no message"]
    status = f"signal {-done.returncode}" if done.returncode < 0 else f"status {done.returncode}"
    return f"its process ended with {status} ({lines[-1][:120]})"


def main(arguments: str) -> None:
    """Measure the paths of a problem in this process; arguments: JSON of what `measure` needs."""
    values, paths, file = json.loads(arguments)
    problem = Problem(**values)
    for plugin in problem.plugins:
        plugins.load_plugin(plugin)
    device = torch.device(problem.device)
    if problem.deterministic:
        devices.enable_determinism()
    devices.configure_backends(device)
    # Both shapes of all paths share one code object.
    torch._dynamo.config.recompile_limit = 8 * len(PATHS)
    measurement = Measurement(**files.read_json(file, "run the command again"))
    measure(
        device,
        make_candidates(problem, paths),
        functools.partial(devices.measure_gpu_seconds, device=device),
        TOLERANCES[devices.DTYPES[problem.dtype]],
        measurement,
        lambda: files.write_json(file, dataclasses.asdict(measurement)),
    )


def make_candidates(problem: Problem, paths: list[str]) -> list[Candidate]:
    """Return the candidates of a problem. Its layers are made when they are first needed."""

    @functools.cache
    def layers():
        small = problem.layer(SMALL_BATCH, min(problem.block_size, SMALL_LENGTH))
        small.encoding.eval()  # draws no random numbers
        real = problem.layer(problem.micro_batch, problem.block_size)
        return small, small.reference(), real

    def compute(path, layer):
        path = attention.resolve_path(path, layer.encoding)
        forward = functools.partial(layer.attend, path, problem.skip_tolerance)
        if problem.compile:
            forward = torch.compile(forward, dynamic=False)
        return forward

    def candidate(path):
        @functools.cache
        def forward():
            return compute(path, layers()[2])

        def check():
            small, reference, _ = layers()
            return relative_errors(small.forward_backward(compute(path, small)), reference)

        return Candidate(path, check, lambda: layers()[2].forward_backward(forward()))

    return [candidate(path) for path in paths]


def measure(
    device: torch.device,
    candidates: list[Candidate],
    timer: Callable[[Callable[[], object]], float],
    tolerances: tuple[float, float],
    measurement: Measurement,
    save: Callable[[], None] = lambda: None,
) -> None:
    """Check all candidates, then time those that are correct, interleaved; reject the others.

    timer: returns the seconds of a call. tolerances: see TOLERANCES. measurement: is updated; what
    it contains is not done again. save: is called after each change of it. Raises an exception if
    the device is unusable after an error.
    """

    def attempt(path: str, action: Callable[[], object]) -> None:
        measurement.running = path
        save()
        reason = None
        try:
            action()
            devices.synchronize(device)  # errors of GPU kernels surface here
        except Exception as error:  # compilers report missing support by exceptions of many types
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        measurement.running = None
        if reason is None:
            save()
            return
        measurement.reject(path, reason)
        save()
        if device.type == "cuda":
            torch.cuda.empty_cache()  # after an error for lack of memory
        devices.synchronize(device)

    def check(candidate: Candidate) -> None:
        errors = candidate.check()
        for name, error in errors.items():
            limit = tolerances[0 if name in ("output", "dq", "dk", "dv", "dx") else 1]
            if not error <= limit:  # also NaN
                measurement.reject(candidate.path, f"{name} error {error:.2g}")
                return
        measurement.errors[candidate.path] = max(errors.values(), default=0.0)

    def time_once(candidate: Candidate) -> None:
        measurement.seconds[candidate.path].append(timer(candidate.run))

    for candidate in candidates:
        if candidate.path not in {*measurement.errors, *measurement.rejected}:
            attempt(candidate.path, functools.partial(check, candidate))
    correct = [candidate for candidate in candidates if candidate.path in measurement.errors]
    measurement.seconds = {}
    for candidate in correct:
        attempt(candidate.path, candidate.run)  # compiles
    correct = [candidate for candidate in correct if candidate.path in measurement.errors]
    measurement.seconds = {candidate.path: [] for candidate in correct}
    for _ in range(ROUNDS):
        for candidate in correct:
            if candidate.path in measurement.errors:
                attempt(candidate.path, functools.partial(time_once, candidate))


if __name__ == "__main__":
    main(sys.argv[1])
