"""Parts of a session on a GPU, as data: budgets in seconds and commands, in the order to run.

On a CPU the same parts have tiny sizes, which tests the parts themselves.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarking import baselines
from benchmarking.gpu_session.kernels import PROCESSES

FUSED = "cable,alibi,fox,cable-nw"  # encodings whose bias PyTorch's fused kernel can compute
OTHERS = "t5,k-cable,fire,kerple,t5-clip"
STEPS = 20
# The warmup is as long as the training, so that the learning rate at a step does not depend on
# --steps, and a training of 10 steps can continue to 20.
SMOKE = (
    f"--warmup_steps {STEPS} --lr 2e-3 --min_lr 2e-4 --log_every 1 --val_every {STEPS} "
    f"--checkpoint_every {STEPS // 2} --size quickstart --resume"
)
SHAPES = {  # 16 sequences per step, which 8 ranks can share
    "cuda": "--n_head 2 --block_size 256 --tokens_per_step 4096 --micro_batch 16 --val_tokens 4096",
    "cpu": "--n_layer 2 --n_head 2 --n_embd 16 --block_size 32 --tokens_per_step 512 "
    "--micro_batch 16 --val_tokens 512",
}
REFERENCES = {  # run of the smoke part -> encoding that a CPU trains, too
    "rope": "rope",
    "cable": "cable",
    "cable-triton": "cable",
    "t5": "t5",
    "micro-batch-auto": "cable",
    "activation-checkpointing": "cable",
}
INTERRUPTED_STEPS = 300  # of the training that gets SIGTERM; it must not end before


@dataclass(frozen=True)
class Command:
    """One process of a part."""

    name: str
    words: list[str]
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """Commands with a common time budget."""

    name: str
    budget: int
    """seconds"""
    stages: list[list[Command]]
    """a stage starts when the commands of the one before have ended"""
    side_by_side: bool = False
    """whether commands of a stage may run at the same time: they measure no speed"""
    not_possible: str | None = None
    """why the part cannot run on this machine"""


@dataclass(frozen=True)
class Machine:
    """What the parts depend on."""

    out: Path
    """folder of the records"""
    data: str
    """folder of token shards for the trainings"""
    device: str
    """cuda or cpu"""
    gpus: int

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"


def make_parts(machine: Machine) -> list[Part]:
    """Return all parts for a machine, the cheap and decisive ones first."""
    others = OTHERS
    if baselines.is_installed("Cable"):  # the CABLE authors' code
        others += ",cable-v1"
    return [
        _environment(machine),
        _smoke(machine),
        _several_gpus(machine),
        _kernels(machine, "core", 90),
        _kernels(machine, "rest", 240),
        _bench(machine, "train-small", 120, f"train --encodings {FUSED}"),
        _bench(machine, "train-medium", 210, f"train --encodings {FUSED}"),
        _bench(machine, "attention", 180, f"attention --encodings {FUSED},{others}"),
        _trace(machine),
        _bench(machine, "memory", 60, "eval --encodings cable", context="131072", micro_batch=1),
        _bench(machine, "generate", 90, "generate --encodings cable,alibi,fox,k-cable --compile"),
        _bench(machine, "train-small-others", 150, f"train --encodings {others}"),
        _bench(machine, "train-medium-others", 150, f"train --encodings {others}"),
        _trained(machine),
        _bench(
            machine,
            "long",
            90,
            "attention --encodings cable",
            context="2048,4096,8192,16384",
            micro_batch=1,
        ),
        _bench(
            machine,
            "encoders",
            150,
            f"attention --encodings {FUSED},{OTHERS} --objective mlm",
            context="512,4096",
            micro_batch=8,
        ),
    ]


def _python(name: str, words: str, *more: str | Path, **environment: str) -> Command:
    """Return a command that runs Python with these words, which are separated by spaces."""
    return Command(name, [sys.executable, *words.split(), *map(str, more)], environment)


def _module(
    machine: Machine, name: str, module: str, *words: str | Path, **environment: str
) -> Command:
    """Return a command that runs a module of this package."""
    start = f"-m benchmarking.gpu_session.{module} --out"
    return _python(name, start, machine.out, *words, **environment)


def _train(machine: Machine, folder: str, name: str, flags: str, launcher: str = "") -> Command:
    """Return a command that trains STEPS steps, in a run folder below the records."""
    words = f"{launcher} train_gpt.py {SHAPES[machine.device]} --steps {STEPS} {SMOKE} {flags}"
    if "--device" not in flags:
        words += f" --device {machine.device}"
    out = machine.out / folder / name
    return _python(name, words, "--data", machine.data, "--out_dir", out)


def _environment(machine: Machine) -> Part:
    """Return the part that records versions, clocks and settings of the machine."""
    command = _module(machine, "environment", "environment", machine.device)
    return Part("environment", 30, [[command]])


def _smoke(machine: Machine) -> Part:
    """Return the part of short trainings whose losses are compared with a CPU's."""

    def train(name: str, flags: str) -> Command:
        return _train(machine, "smoke", name, flags)

    sdpa = "--pe cable --attention sdpa"
    runs = [
        train("t5", "--pe t5"),
        train("rope", "--pe rope --attention sdpa"),
        train("cable", sdpa),
        train("deterministic-1", f"{sdpa} --deterministic"),
        train("deterministic-2", f"{sdpa} --deterministic"),
        train("resumed", f"{sdpa} --deterministic --steps {STEPS // 2}"),
        train("activation-checkpointing", f"{sdpa} --activation_checkpointing"),
    ]
    if machine.is_gpu:
        runs.insert(1, train("cable-triton", "--pe cable --attention triton"))
        runs.append(train("micro-batch-auto", f"{sdpa} --micro_batch auto"))
    on_cpu = "--device cpu --dtype float32 --compile false"
    runs += [train(f"cpu-{pe}", f"--pe {pe} {on_cpu}") for pe in ("rope", "cable", "t5")]
    resume = _train(machine, "smoke", "resumed", f"{sdpa} --deterministic")
    resume = Command("resume", resume.words)
    prepare = _python("data", "prepare_text.py --out_dir", machine.data)
    check = _module(machine, "check", "checks", "smoke")
    return Part("smoke", 120, [[prepare], runs, [resume], [check]], side_by_side=True)


def _several_gpus(machine: Machine) -> Part:
    """Return the part that trains on 2 and 8 GPUs, and stops and resumes a training."""
    available = machine.gpus if machine.is_gpu else 2  # gloo
    counts = [count for count in (2, 8) if count <= available]
    stages = []
    for count in counts:
        launcher = f"-m torch.distributed.run --standalone --nproc_per_node={count}"
        flags = "--pe cable --attention sdpa"
        train = _train(machine, "several-gpus", f"{count}-ranks", flags, launcher)
        steps = f"{flags} --steps {INTERRUPTED_STEPS} --warmup_steps 0"
        stopped = _train(machine, "several-gpus", f"{count}-stopped", steps, launcher)
        name, run = stopped.name, stopped.words[-1]
        interrupt = _module(machine, name, "checks", "interrupt", run, *stopped.words)
        stages += [[train], [interrupt]]
    stages.append([_module(machine, "check", "checks", "several-gpus")])
    reason = None if counts else f"needs 2 GPUs, found {machine.gpus}"
    return Part("several-gpus", 150, stages, not_possible=reason)


def _kernels(machine: Machine, scope: str, budget: int) -> Part:
    """Return the part that tests the Triton kernels, a process for each kind of bias."""
    environment = {} if machine.is_gpu else {"TRITON_INTERPRET": "1"}
    tests = [_module(machine, kind, "kernels", scope, kind, **environment) for kind in PROCESSES]
    return Part(f"kernels-{scope}", budget, [tests], side_by_side=True)


def _bench(
    machine: Machine,
    name: str,
    budget: int,
    words: str,
    context: str = "1024",
    micro_batch: int | None = None,
) -> Part:
    """Return a part of one call of bench.py; the record is written after each encoding."""
    model = "medium" if "medium" in name or name == "memory" else "small"
    micro_batch = micro_batch or {"train-small": 32, "train-small-others": 32}.get(name, 16)
    size = f"--model {model} --context {context} --micro_batch {micro_batch}"
    if not machine.is_gpu:
        words = words.replace("--compile", "").replace(f"{FUSED}", "cable")
        size = "--model quickstart --context 64 --micro_batch 2 --repeats 2 --dtype float32"
    out = machine.out / f"{name}.json"
    words = f"bench.py {words} {size} --device {machine.device} --out"
    return Part(name, budget, [[_python("bench", words, out)]])


def _trace(machine: Machine) -> Part:
    """Return the part that profiles three training steps."""
    size = "--model small --micro_batch 32"
    if not machine.is_gpu:
        size = "--model quickstart --context 64 --micro_batch 2"
    profiles = []
    for pe, path in (("rope", "sdpa"), ("cable", "triton" if machine.is_gpu else "sdpa")):
        words = f"-m benchmarking.kernel_times --pe {pe} --attention {path} {size} --device"
        words += f" {machine.device} --out"
        profiles.append([_python(pe, words, machine.out / f"trace-{pe}.json")])
    return Part("trace", 90, profiles)


def _trained(machine: Machine) -> Part:
    """Return the part that measures attention with the biases of a trained model."""
    run = machine.out / "trained"
    flags = "train_gpt.py --config configs/quickstart.yaml --pe cable --resume"
    context = "4096,65536"
    if machine.is_gpu:
        flags += " --size tiny --attention triton"
    else:
        flags += " --steps 2 --val_tokens 256"
        context = "64"
    flags += f" --device {machine.device} --data {machine.data} --out_dir"
    measure = f"bench.py attention --context {context} --micro_batch 1 --device {machine.device}"
    record = machine.out / "trained.json"
    stages = [
        [_python("train", flags, run)],
        [_python("bench", measure, "--run", run, "--out", record)],
    ]
    return Part("trained", 150, stages)
