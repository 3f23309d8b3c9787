"""Cost of trainings and evaluations: parameters, tokens, FLOPs, time and disk.

    print(describe_cost(config))  # train_gpt.py --dry_run
    print(describe_costs(trainings, jobs))  # run_experiment.py --dry_run

Needs no data. Time on GPUs assumes 40% model FLOPs utilization (MFU). A
machine without GPUs is measured.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from runtime import cli, devices
from runtime.scheduler import Job, describe_seconds

import torch

from benchmarking import profiles
from benchmarking.cases import train_step
from model import GPT, GPTConfig
from text_data import recall_task
from text_data.data_loader import masked_count
from text_data.shards import Shards
from training import attention_path, settings
from training.optimizer import make_grad_scaler, make_optimizer

MFU = 0.4
BYTES = 320  # padded vocabulary of prepare_text.py without flags, which writes Config.data
# Steps to measure a CPU, FLOPs and length of sequences of each, most seconds.
MEASURED_STEPS, STEP_FLOPS, MEASURED_TOKENS, MEASURED_SECONDS = 5, 1e10, 256, 10


@dataclass
class Cost:
    """Cost of one training or evaluation."""

    model: GPT  # without memory
    tokens: int
    flops_per_token: float
    data: list[str]  # lines on the data
    disk: float = 0  # of checkpoints, in bytes

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.tokens


def estimate_cost(config, vocab_size: int | None = None) -> Cost:
    """Return the cost of a training.

    config: of train_gpt.py. vocab_size: padded, assumed where the data
    does not exist; None: that of the default data, or GPT-2's. Raises
    InputError if the data or the batch size cannot be used.
    """
    config.sequences_per_step(1)  # raises InputError
    if Path(config.data).is_dir():
        windows = settings.make_windows(config, Shards(config.data, "train", "never"))
        vocab_size, data = (
            windows.padded_vocab_size,
            settings.describe_epochs(config, windows),
        )
    else:
        default = BYTES if config.data == settings.Config.data else GPTConfig.vocab_size
        vocab_size = vocab_size or default
        data = [f"{config.data} does not exist yet, assuming a vocabulary of {vocab_size}"]
    with torch.device("meta"):  # shapes only, no memory
        model = GPT(config.gpt_config(vocab_size))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    attention_path.choose_path(model, config, torch.device(device))
    targets = {  # tokens of a sequence whose logits are computed
        "clm": config.block_size,
        "mlm": masked_count(config.block_size, config.mask_rate),
        "recall": recall_task.TARGETS,
    }[config.objective]
    # Weights and two moments; one more checkpoint while it is written.
    disk = 12 * model.parameter_count() * (1 + config.keep_checkpoints)
    flops_per_token = model.flops_per_token(config.block_size, targets)
    return Cost(model, config.steps * config.tokens_per_step, flops_per_token, data, disk)


def describe_cost(config) -> str:
    """Return a text with the cost of a training run."""
    cost = estimate_cost(config)
    lines = [
        cost.model.describe(config.micro_batch),
        *cost.data,
        f"{config.steps:,} steps of {config.tokens_per_step:,} tokens = {cost.tokens:,} tokens",
        f"{cost.flops_per_token:.3g} FLOPs a token = 6 N + 12 L C T, "
        f"N = {cost.model.parameter_count():,}",
    ]
    return "\n".join([*lines, *describe_total([cost], [(config, cost)])])


def describe_costs(trainings: dict, jobs: list[Job], vocab_size: int | None) -> str:
    """Return a table of trainings and evaluations, and the total.

    trainings: {name: config of train_gpt.py}; jobs: evaluations of
    perplexity need such a training; vocab_size: as in `estimate_cost`.
    """
    costs = {name: estimate_cost(config, vocab_size) for name, config in trainings.items()}
    measured = [(config, costs[name]) for name, config in trainings.items()]
    for job in jobs:
        trained = job.needs[0].name if job.needs else ""
        if trained not in trainings or "--max_tokens" not in job.words:
            continue
        flags = dict(cli.split_flags(job.words[2:]))
        tokens, model = int(flags["max_tokens"][0]), costs[trained].model
        if (folder := Path(flags["data"][0])).is_dir():
            tokens = min(tokens, Shards(folder, flags["split"][0], "never").total)
        lengths = cli.parse_lengths(flags["lengths"][0], trainings[trained].block_size)
        forward = sum(model.flops_per_token(length) / 3 for length in lengths) / len(
            lengths
        )
        costs[job.name] = Cost(model, tokens * len(lengths), forward, [])
    machine, speed = machines()[0]
    width = max(10, len(machine))
    lines = [f"{'parameters':>13} {'tokens':>15} {'FLOPs':>8} {machine:>{width}}  job"]
    for name, cost in costs.items():
        time = describe_seconds(cost.flops / speed)
        numbers = (
            f"{cost.model.parameter_count():>13,} {cost.tokens:>15,} {cost.flops:>8.2g}"
        )
        lines.append(f"{numbers} {time:>{width}}  {name}")
    lines.append(
        f"total of {len(trainings)} trainings and {len(costs) - len(trainings)} evaluations:"
    )
    return "\n".join([*lines, *describe_total([*costs.values()], measured)])


def describe_total(costs: list[Cost], trainings: list[tuple]) -> list[str]:
    """Return lines with FLOPs, time and disk.

    trainings: configs and costs, of which the smallest is measured on a
    CPU.
    """
    flops = sum(cost.flops for cost in costs)
    named = [f"{describe_seconds(flops / speed)} on {name}" for name, speed in machines()]
    times = ", ".join(named)
    if trainings and not torch.cuda.is_available():
        config, cost = min(trainings, key=lambda pair: pair[1].flops_per_token)
        if speed := measure_cpu(config, cost.model.config.vocab_size):
            times += f"; this CPU: about {describe_seconds(flops / speed)}"
    return [
        f"{flops:.3g} FLOPs",
        f"time at {MFU:.0%} MFU: {times}",
        f"disk: {sum(cost.disk for cost in costs) / 1e9:,.2f} GB of checkpoints",
    ]


def machines() -> list[tuple[str, float]]:
    """Return name and FLOP/s of the GPUs, else of one and of eight H100."""
    count = torch.cuda.device_count()
    name = torch.cuda.get_device_name() if count else ""
    if peak := devices.peak_flops(name):
        return [(f"{count} {name}", count * peak * MFU)]
    return [(f"{n} H100", n * 1e12 * devices.PEAK_TFLOPS["H100"] * MFU) for n in (1, 8)]


def measure_cpu(config, vocab_size: int) -> float:
    """Return the FLOP/s of the fastest of five training steps.

    A step has each kind of layer once, and short sequences.
    """
    device, dtype = devices.select_device("cpu", config.dtype)
    shape = config.gpt_config(vocab_size)
    layers = min(shape.n_layer, len(shape.encodings.layers))
    length = min(shape.block_size, MEASURED_TOKENS)
    torch.manual_seed(0)
    model = GPT(dataclasses.replace(shape, n_layer=layers, block_size=length))
    attention_path.choose_path(model, config, device)
    optimizer = make_optimizer(model, name=config.optimizer)
    scaler = make_grad_scaler(device, dtype)
    flops = length * model.flops_per_token(length)
    sequences = min(int(STEP_FLOPS // flops) + 1, config.sequences_per_step(1))
    tokens = torch.randint(vocab_size, (sequences, length))
    seconds: list[float] = []

    def step():
        train_step(model, optimizer, scaler, (tokens, tokens), dtype)

    while len(seconds) < MEASURED_STEPS and sum(seconds) < MEASURED_SECONDS:
        seconds.append(profiles.measure_seconds(step, device))
    return flops * sequences / min(seconds)
