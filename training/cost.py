"""Cost of trainings, from their settings: parameters, tokens, FLOPs, hours and disk. Needs no GPU.

    print(describe_cost(config))  # train_gpt.py --dry_run
    cost = estimate_cost(config)  # the numbers

Hours on GPUs assume 40% model FLOPs utilization (MFU). A machine without GPUs is measured.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from runtime import cli, devices

import torch

from attention import resolve_paths
from model import GPT, GPTConfig, optimizer_step
from text_data import recall_task
from text_data.data_loader import masked_count
from text_data.shards import Shards
from training import attention_path, metrics, settings
from training.optimizer import block_matrices, make_grad_scaler, make_optimizer

MFU = 0.4
BYTES = 320  # padded vocabulary of prepare_text.py without flags, which writes Config.data
# Steps to measure a CPU, the FLOPs of each, and the seconds after which no other step starts.
MEASURED_STEPS, STEP_FLOPS, MEASURED_SECONDS = 5, 1e10, 10
MEASURED_TOKENS = 256  # of one sequence, if a full one has more than STEP_FLOPS


@dataclass
class Cost:
    """Cost of one training or evaluation."""

    model: GPT
    """without memory"""
    epochs: str
    """as in "0.5 epochs of 12,004\""""
    notes: list[str]
    """on what may not be intended"""
    tokens: int
    targets: int
    """tokens of a sequence whose logits are computed"""
    flops_per_token: float
    optimizer: str

    @property
    def flops(self) -> float:
        return self.flops_per_token * self.tokens

    @property
    def checkpoint_gb(self) -> float:
        """Weights and AdamW's two moments, 4 bytes each; of Muon's matrices one moment."""
        numbers = 3 * self.model.parameter_count()
        if self.optimizer == "muon":
            numbers -= sum(matrix.numel() for matrix in block_matrices(self.model))
        return 4 * numbers / 1e9


def estimate_cost(config, vocab_size: int | None = None) -> Cost:
    """Return the cost of a training.

    config: the `Config` of train_gpt.py. vocab_size: padded, assumed where the data does not exist;
    None: that of the default data, or GPT-2's. Raises InputError if tokens_per_step is not a
    multiple of block_size, and if the data cannot be used.
    """
    config.sequences_per_step(1)  # raises InputError
    notes = []
    if Path(config.data).is_dir():
        train = settings.make_windows(config, Shards(config.data, "train", "never"))
        vocab_size = train.padded_vocab_size
        epochs, notes = metrics.describe_epochs(config, train), settings.notes(config, train)
    else:
        is_default = config.data == settings.Config.data
        vocab_size = vocab_size or (BYTES if is_default else GPTConfig.vocab_size)
        epochs = f"{config.data} does not exist yet, assuming a vocabulary of {vocab_size}"
    with torch.device("meta"):  # shapes only, no memory
        model = GPT(config.gpt_config(vocab_size))
    model.attention_paths = resolve_paths(config.attention, model.posenc, "cuda")
    targets = {
        "clm": config.block_size,
        "mlm": masked_count(config.block_size, config.mask_rate),
        "recall": recall_task.TARGETS,
    }[config.objective]
    tokens = config.steps * config.tokens_per_step
    flops_per_token = model.flops_per_token(config.block_size, targets)
    return Cost(model, epochs, notes, tokens, targets, flops_per_token, config.optimizer)


def describe_cost(config) -> str:
    """Return a text with parameters, tokens, epochs, FLOPs, hours and disk of a training run."""
    cost = estimate_cost(config)
    parameters = cost.model.parameter_count()
    formula = f"{cost.flops_per_token:.3g} a token = 6 N + 12 L C T, N = {parameters:,}"
    if config.objective != "clm":
        fraction = cost.targets / config.block_size
        formula += f", of the logits for {fraction:.1%} of the tokens"
    files = 1 + config.keep_checkpoints
    lines = [
        cost.model.describe(),
        f"{config.steps:,} steps of {config.tokens_per_step:,} tokens = {cost.tokens:,} tokens "
        f"({cost.epochs})",
        f"{cost.flops:.3g} FLOPs: {formula}",
        describe_time(cost.flops, measure_cpu(config, cost.model.config.vocab_size)),
        f"disk: {cost.checkpoint_gb:.2f} GB a checkpoint, {files} of them while one is written",
        *cost.notes,
    ]
    return "\n".join(lines)


def machines() -> list[tuple[str, float]]:
    """Return name and FLOP/s at 40% MFU of this machine's GPUs, else of one and of eight H100."""
    count = torch.cuda.device_count()
    name = torch.cuda.get_device_name() if count else ""
    peak = devices.peak_flops_by_name(name)
    if peak:
        return [(f"{count} {name}", count * peak * MFU)]
    return [(f"{n} H100", n * 1e12 * devices.PEAK_TFLOPS["H100"] * MFU) for n in (1, 8)]


def describe_seconds(seconds: float) -> str:
    """Return a duration in hours, minutes or seconds, of two digits at least."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            amount = seconds / size
            return f"{amount:,.0f} {unit}" if amount >= 100 else f"{amount:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 0.1 else "<0.1 s"


def describe_time(flops: float, cpu_speed: float | None = None) -> str:
    """Return a line with the time on each of `machines`, and on this CPU at `cpu_speed` FLOP/s."""
    words = [f"{describe_seconds(flops / speed)} on {name}" for name, speed in machines()]
    line = f"time at {MFU:.0%} MFU: {', '.join(words)}"
    if cpu_speed:
        line += f"; this CPU: about {describe_seconds(flops / cpu_speed)}"
    return line


def measure_cpu(config, vocab_size: int) -> float | None:
    """Return the FLOP/s of the fastest of five training steps on this CPU, fewer if they are slow.

    A step has as many sequences as `STEP_FLOPS` allow. If these are less than one, the step has a
    short sequence and each kind of layer once. config: the `Config` of train_gpt.py. Returns None
    if there is a GPU, which `machines` has.
    """
    if torch.cuda.is_available():
        return None
    device, dtype = devices.select_device("cpu", config.dtype)
    shape = config.gpt_config(vocab_size)
    with torch.device("meta"):
        flops = config.block_size * GPT(shape).flops_per_token(config.block_size)
    if flops > STEP_FLOPS:
        layers = min(shape.n_layer, len(shape.encodings.layers))
        length = min(config.block_size, MEASURED_TOKENS)
        shape = dataclasses.replace(shape, n_layer=layers, block_size=length)
    torch.manual_seed(0)
    model = GPT(shape)
    attention_path.choose_path(model, config, device)
    optimizer = make_optimizer(model, name=config.optimizer)
    scaler = make_grad_scaler(device, dtype)
    flops = shape.block_size * model.flops_per_token(shape.block_size)
    sequences = min(int(STEP_FLOPS // flops) + 1, config.sequences_per_step(1))
    tokens = torch.randint(vocab_size, (sequences, shape.block_size))
    seconds: list[float] = []

    def step():
        with devices.autocast(device, dtype):
            loss = model(tokens, tokens)
        scaler.scale(loss).backward()
        optimizer_step(model, optimizer, scaler)

    while len(seconds) < MEASURED_STEPS and sum(seconds) < MEASURED_SECONDS:
        seconds.append(devices.measure_seconds(step, device))
    return flops * sequences / min(seconds)


def describe_costs(
    trainings: dict, evaluations: list[tuple[str, str, str, int]], vocab_size: int | None
) -> str:
    """Return a table with a line for each training and evaluation, the total, and the disk.

    trainings: {name: `Config` of train_gpt.py}; evaluations: (name, name of the training, context
    lengths, tokens at each); vocab_size: as in `estimate_cost`.
    """
    costs, gigabytes = {}, 0.0
    for name, config in trainings.items():
        costs[name] = estimate_cost(config, vocab_size)
        gigabytes += costs[name].checkpoint_gb * (1 + config.keep_checkpoints)
    cpu_speed = None
    if costs:
        smallest = min(trainings, key=lambda name: costs[name].flops_per_token)
        cpu_speed = measure_cpu(trainings[smallest], costs[smallest].model.config.vocab_size)
    for name, trained, text, tokens in evaluations:
        training, lengths = costs[trained], cli.parse_lengths(text, trainings[trained].block_size)
        forward = [training.model.flops_per_token(length) / 3 for length in lengths]
        costs[name] = dataclasses.replace(
            training, tokens=tokens * len(lengths), flops_per_token=sum(forward) / len(lengths)
        )
    machine, speed = machines()[0]
    width = max(10, len(machine))
    lines = [f"{'parameters':>13} {'tokens':>15} {'FLOPs':>8} {machine:>{width}}  job"]
    for name, cost in costs.items():
        parameters, time = cost.model.parameter_count(), describe_seconds(cost.flops / speed)
        lines.append(
            f"{parameters:>13,} {cost.tokens:>15,} {cost.flops:>8.2g} {time:>{width}}  {name}"
        )
    flops = sum(cost.flops for cost in costs.values())
    lines.append(f"total of {len(trainings)} trainings: {flops:.3g} FLOPs")
    lines += [describe_time(flops, cpu_speed), f"disk: {gigabytes:,.1f} GB of checkpoints"]
    return "\n".join(lines)
