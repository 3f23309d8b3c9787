"""Cost of jobs: FLOPs, time, disk space and download.

    print(describe_cost(config))  # train_gpt.py --dry_run
    print(describe_costs(jobs))  # run_experiment.py --dry_run

Needs no data. Time assumes 40% model FLOPs utilization (MFU) of this
machine's GPUs, or else of an H100 and of this CPU. Calls with the same
file COST_LEDGER add up: a job that several of them list counts once.
"""

import dataclasses
import functools
import json
import os
import shlex
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from runtime import cli, devices

import torch
from torch.utils.benchmark import Timer

from model import GPT, GPTConfig
from more_encodings.dape import DAPE
from text_data import recall_task
from text_data.data_loader import masked_count
from text_data.named_data import SIZES
from text_data.shards import Shards
from training import attention_path, settings

MFU = 0.4
CPU = "this CPU"
MATRIX = 1024  # rows of the matrices whose product is measured
ALL = 10**9
# Sequences, most tokens and predictions of each, and forward passes (a
# backward pass is two). HellaSwag and MS MARCO have about so many
# tokens; MLDR has 200,000 documents of 3,308.
EVALUATIONS = {
    "eval_extrapolation.py": (0, ALL, ALL, 1),
    "eval_recall.py": (250, ALL, 64, 2),
    "eval_receptive_field.py": (100, ALL, 1, 2),
    "eval_hellaswag.py": (4 * 10_042, 100, ALL, 1),
    "retrieval.evaluate": (200_000, 3308, 0, 1),
    "retrieval.finetune": (1_250_000, 200, 0, 4),
}


class Cost(NamedTuple):
    """Cost of a job; disk and download in GB."""

    kind: str
    flops: float = 0
    disk: float = 0
    download: float = 0


def data_size(folder: str, split: str, made: dict) -> tuple[int, int]:
    """Return tokens and padded vocabulary of a split, also if it is still to be prepared."""
    if Path(folder).is_dir() and folder not in made:
        shards = Shards(folder, split, "never")
        return shards.total, shards.padded_vocab_size
    name = Path(folder).name
    _, tokens = SIZES.get(name, (0, {}))
    is_bytes = name.endswith(("bytes", "stdlib"))
    return tokens.get(split, 0), 320 if is_bytes else GPTConfig.vocab_size


def estimate_training(config, made: dict) -> tuple[GPT, Cost, str]:
    """Return the model (without memory) of a training, its cost, and lines on its data.

    config: of train_gpt.py. made: as in `estimate`. Raises InputError
    if the data or the batch size cannot be used.
    """
    config.sequences_per_step(1)  # raises InputError
    total, vocab_size = data_size(config.data, "train", made)
    note = f"{config.data} does not exist yet, assuming a vocabulary of {vocab_size}"
    if total:
        note = "\n".join(settings.describe_epochs(config, total))
    if config.objective == "recall":
        vocab_size = recall_task.SYMBOLS
    model = make_model(**dataclasses.asdict(config.gpt_config(vocab_size)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    attention_path.choose_path(model, config, torch.device(device))
    targets = {  # tokens of a sequence whose logits are computed
        "clm": config.block_size,
        "mlm": masked_count(config.block_size, config.mask_rate),
        "recall": recall_task.TARGETS,
    }[config.objective]
    flops = flops_per_token(model, config.block_size, targets)
    # Weights and two moments; one more checkpoint while it is written.
    disk = 12e-9 * model.parameter_count() * (1 + config.keep_checkpoints)
    return (
        model,
        Cost("trainings", config.steps * config.tokens_per_step * flops, disk),
        note,
    )


@functools.cache
def make_model(**shape) -> GPT:
    """Return a model of shapes only, without memory."""
    with torch.device("meta"):
        return GPT(GPTConfig(**shape))


def flops_per_token(model: GPT, length: int, predicted: int) -> float:
    """Return FLOPs of training on a token, with DAPE's network on each pair."""
    networks = [module for module in model.modules() if isinstance(module, DAPE)]
    per_pair = sum(x.numel() for module in networks for x in module.parameters())
    return model.flops_per_token(length, predicted) + 6 * per_pair * length


def training_of(words: list[str], made: dict) -> settings.Config | None:
    """Return the settings of the training that a command starts, or whose model it reads."""
    if words[0] == "train_gpt.py":
        flags = words[1:]
        while parent := made.get(str(Path(flags[1]).parent)):  # --config RUN/config.yaml
            flags = [*parent[1:], *flags[2:]]
        return cli.parse(settings.Config, flags, None) if Path(flags[1]).exists() else None
    inputs = [made[word] for word in words if made.get(word, words) != words]
    return training_of(inputs[0], made) if inputs else None


def estimate(words: list[str], made: dict) -> tuple[Cost, str]:
    """Return the cost of a command, and lines on its data.

    made: the commands that make folders, by folder.
    """
    program, *rest = words[words[0] == "-m" :]
    if program.startswith("prepare_"):
        download, sizes = SIZES[Path(words[-1]).name]
        return Cost("data sets", 0, 2e-9 * sum(sizes.values()), download), ""
    config = training_of(words, made)
    if not config or program not in ("train_gpt.py", *EVALUATIONS):
        return Cost(f"{program} (not estimated)"), ""
    model, cost, note = estimate_training(config, made)
    if program == "train_gpt.py":
        return cost, note
    count, most, predicted, passes = EVALUATIONS[program]
    flags = {name: values[0] for name, values in cli.split_flags(rest[1:]) if values}
    for name in {"windows", "trials", "samples"} & {*flags}:
        count = int(flags[name])
    total, flops = ALL, 0
    if program == "eval_extrapolation.py":
        total, _ = data_size(
            flags.get("data", config.data), flags.get("split", "val"), made
        )
    text = flags.get("lengths", flags.get("distances", str(most)))
    for length in cli.parse_lengths(text, config.block_size):
        length = min(length, most)
        limit = max(length, int(flags.get("max_tokens", total)))
        tokens = length * count or min(total, limit)
        context = min(length, int(flags.get("cache_window", length)))
        targets = min(context, int(flags.get("targets", predicted)))
        flops += tokens * flops_per_token(model, context, targets) * passes / 3
    return Cost("evaluations", flops), ""


def describe_cost(config) -> str:
    """Return a text with the cost of a training."""
    model, cost, note = estimate_training(config, {})
    tokens = config.steps * config.tokens_per_step
    lines = [
        model.describe(config.micro_batch),
        note,
        f"{config.steps:,} steps of {config.tokens_per_step:,} tokens = {tokens:,} tokens",
        f"6 N + 12 L C T FLOPs per token, N = {model.parameter_count():,}; {MFU:.0%} MFU",
        describe_sum([cost]),
    ]
    return "\n".join(lines)


def describe_costs(jobs: list) -> str:
    """Return a line for each job, and the sum, with that of earlier calls.

    A job has `name` and `words` (its command).
    """
    earlier = read_ledger()
    earlier.pop(CPU, None)
    commands = [*map(shlex.split, earlier), *(job.words for job in jobs)]
    made = {
        words[words.index("--out_dir") + 1]: words
        for words in commands
        if "--out_dir" in words
    }
    lines, notes, added = [], {}, {}
    for job in jobs:
        cost, note = estimate(job.words, made)
        lines.append(f"{job.name}: {describe_sum([cost]).split('; ', 1)[-1]}")
        notes[note] = None
        if (command := shlex.join(job.words)) not in earlier:
            added[command] = cost
    every = earlier | added
    ledger_path().write_text(json.dumps({**every, CPU: measure_cpu()}))
    own = describe_sum(added.values()) or "nothing in addition to earlier stages"
    lines += [*filter(None, notes), f"cost: {own}"]
    if earlier:
        lines.append(f"cost of all stages: {describe_sum(every.values())}")
    return "\n".join(lines)


def ledger_path() -> Path:
    return Path(os.environ.get("COST_LEDGER", os.devnull))


def read_ledger() -> dict:
    """Return the costs of earlier calls by command, and the speed of this CPU."""
    return json.loads(ledger_path().read_text() or "{}")


def describe_sum(costs) -> str:
    """Return the number of jobs of each kind and the sum of their costs."""
    kinds = Counter(kind for kind, *_ in costs)
    flops, disk, download = (sum(cost[column] for cost in costs) for column in (1, 2, 3))
    parts = [", ".join(f"{kind}: {number}" for kind, number in kinds.items())]
    if flops:
        parts.append(f"{flops:.2g} FLOPs".replace("e+", "e"))
    for name, speed in peaks().items() if flops else ():
        parts.append(f"{describe_hours(flops / speed / MFU / 3600)} of {name}")
    if disk:
        parts.append(f"disk {disk:,.1f} GB")
    if download:
        parts.append(f"download {download:,.1f} GB")
    return "; ".join(parts)


def peaks() -> dict[str, float]:
    """Return the peak FLOP/s of one H100, and of this machine."""
    found = {"one H100": devices.peak_flops("H100")}
    if torch.cuda.is_available():
        count, name = torch.cuda.device_count(), torch.cuda.get_device_name()
        found[f"{count} {name}"] = count * (devices.peak_flops(name) or 0)
    else:
        found[CPU] = measure_cpu()
    return {name: peak for name, peak in found.items() if peak}


@functools.cache
def measure_cpu() -> float:
    """Return the FLOP/s of this CPU in five products of matrices, the same in all calls."""
    if speed := read_ledger().get(CPU):
        return speed
    x = torch.randn(MATRIX, MATRIX)
    return 2 * MATRIX**3 / Timer("x @ x", globals={"x": x}).timeit(5).median


def describe_hours(hours: float) -> str:
    """Return hours, or days from two on, with two digits."""
    if hours < 0.001:
        return "less than 0.001 h"
    number, unit = (hours, "h") if hours < 48 else (hours / 24, "days")
    return f"{float(f'{number:.2g}'):,g} {unit}"
