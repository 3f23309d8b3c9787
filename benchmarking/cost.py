"""Cost of jobs: FLOPs, time, disk space and download.

    print(describe_cost(config))  # train_gpt.py --dry_run
    print(*describe_costs(commands), sep="\n")  # run_experiment.py --dry_run

Needs no data. Counts the logits of all tokens, also where few are
predicted. Time assumes 40% model FLOPs utilization (MFU) of this
machine's GPUs, or else of an H100 and of this CPU. Calls with the same
file COST_LEDGER add up: a job that several of them list counts once.
"""

import functools
import itertools
import os
import shlex
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from runtime import cli, devices

import torch
from torch.utils.benchmark import Timer

from data_loader import Shards
from model import GPT, GPTConfig
from text_data import recall_task
from text_data.named_data import DATA_SETS
from training import settings

MFU = 0.4
MOST_CPU_FLOPS = 1e17  # weeks of a CPU, whose time is then left out
MATRIX = 1024  # rows of the matrices whose product is measured
ALL = 10**9
# Sequences (0: those of the split), most tokens of each, and forward passes (a backward pass is
# two). HellaSwag and MS MARCO have about so many tokens; MLDR has 200,000 documents of 3,308.
EVALUATIONS = {
    "eval_extrapolation.py": (0, ALL, 1),
    "eval_recall.py": (250, ALL, 2),
    "eval_receptive_field.py": (100, ALL, 2),
    "eval_hellaswag.py": (40_168, 100, 1),
    "retrieval.evaluate": (200_000, 3308, 1),
    "retrieval.finetune": (1_250_000, 200, 4),
}


UNITS = ("FLOPs", "disk", "download")  # of a cost, which also counts jobs; bytes


class Training(NamedTuple):
    """A training whose model is in a folder, or that of the model that was made from it."""

    flags: list[str]
    config: settings.Config
    model: GPT


def data_size(folder: str, split: str, made: dict) -> tuple[int, int]:
    """Return tokens and padded vocabulary of a split, also if it is still to be prepared."""
    if Path(folder).is_dir() and folder not in made:
        shards = Shards(folder, split, "never")
        return shards.total, shards.padded_vocab_size
    name = Path(folder).name
    *_, tokens = DATA_SETS.get(name, [{}])
    is_bytes = name.endswith(("bytes", "stdlib"))
    return tokens.get(split, 0), 320 if is_bytes else GPTConfig.vocab_size


def estimate_training(config: settings.Config, made: dict) -> tuple[GPT, str, Counter]:
    """Return the model (without memory) of a training, a note, and the cost.

    Raises InputError if the data or the batch size cannot be used.
    """
    config.sequences_per_step(1)  # raises InputError
    total, vocab_size = data_size(config.data, "train", made)
    note = f"{config.data} does not exist yet, assuming a vocabulary of {vocab_size}"
    if total:
        note = "; ".join(settings.describe_epochs(config, total))
    if config.objective == "recall":
        vocab_size = recall_task.SYMBOLS
    with torch.device("meta"):
        model = GPT(config.gpt_config(vocab_size))
    flops = model.flops_per_token(config.block_size)
    flops *= config.steps * config.tokens_per_step
    # Weights and two moments; one more checkpoint while it is written.
    disk = 12 * model.parameter_count() * (1 + config.keep_checkpoints)
    return model, note, Counter(trainings=1, FLOPs=int(flops), disk=disk)


def estimate(words: list[str], made: dict) -> tuple[str, Counter]:
    """Return a note on a command, and its cost.

    made: the folders of earlier commands, each with the Training that its model is from, or else
    the flags; the command's folder is added.
    """
    program = words[words[0] == "-m"]
    values = dict(itertools.pairwise(words))  # by flag
    used = map(made.get, words)
    training = next((x for x in used if isinstance(x, Training)), None)
    note, cost = "", Counter([f"{program} (not estimated)"])
    if program.startswith("prepare_"):
        *_, download, tokens = DATA_SETS[Path(values["--out_dir"]).name]
        size = {"disk": 2 * sum(tokens.values()), "download": int(1e9 * download)}
        cost = Counter({"data sets": 1, **size})
    elif program == "train_gpt.py" and (training or Path(words[2]).exists()):
        # A further training has --config RUN/config.yaml.
        flags = [*training.flags, *words[3:]] if training else words[1:]
        config = cli.parse(settings.Config, flags, None)
        model, note, cost = estimate_training(config, made)
        training = Training(flags, config, model)
    elif training and program in EVALUATIONS:
        flops = evaluation_flops(program, values, training, made)
        cost = Counter(evaluations=1, FLOPs=int(flops))
    made[values.get("--out_dir", "")] = training or values
    return note, cost


def evaluation_flops(program: str, values: dict, training: Training, made: dict) -> float:
    """Return the FLOPs of an evaluation. values: those of its flags, as text."""
    _, config, model = training
    sequences, most, passes = EVALUATIONS[program]
    data = values.get("--data", config.data)
    values = {**made.get(data, {}), **values}  # of retrieval.prepare: its documents
    for flag in ("--windows", "--trials", "--samples", "--documents"):
        sequences = int(values.get(flag, sequences))
    total = 0
    if not sequences:
        total, _ = data_size(data, values.get("--split", "val"), made)
        total = min(total, int(values.get("--max_tokens", total)))
    flops = 0
    lengths = values.get("--lengths") or values.get("--distances", str(most))
    for length in cli.parse_lengths(lengths, config.block_size):
        length = min(length, most)
        context = min(length, int(values.get("--cache_window", length)))
        tokens = length * sequences or total
        flops += tokens * passes / 3 * model.flops_per_token(context)
    return flops


def describe_cost(config: settings.Config) -> str:
    """Return a text with the cost of a training."""
    model, note, cost = estimate_training(config, {})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.choose_paths(device, training=True, deterministic=config.deterministic)
    tokens = config.steps * config.tokens_per_step
    lines = [
        model.describe(config.micro_batch),
        f"{config.steps:,} steps of {config.tokens_per_step:,} tokens = {tokens:,} tokens",
        describe(note, cost),
    ]
    return "\n".join(lines)


def describe_costs(commands: list[list[str]]) -> list[str]:
    """Return the cost of each command, and the sum over this call and earlier ones."""
    ledger = Path(os.environ.get("COST_LEDGER", os.devnull))
    own = [shlex.join(words) for words in commands]
    every = dict.fromkeys([*ledger.read_text().splitlines(), *own])
    ledger.write_text("\n".join(every))
    made = {}
    costs = {command: estimate(shlex.split(command), made) for command in every}
    total = sum((cost for _, cost in costs.values()), Counter())
    kinds = [f"{kind}: {total[kind]}" for kind in total if kind not in UNITS]
    texts = [describe(*costs[command]) for command in own]
    return [*texts, f"total: {describe(', '.join(kinds), total)}"]


def describe(note: str, cost: Counter) -> str:
    """Return the note, FLOPs, hours, disk space and download, if they are not tiny."""
    parts, flops = [note], cost["FLOPs"]
    if flops:
        parts.append(f"{flops:.2g} FLOPs".replace("e+", "e"))
        peaks = {"one H100": devices.peak_flops("H100")}
        if torch.cuda.is_available():
            count, name = torch.cuda.device_count(), torch.cuda.get_device_name()
            peaks[f"{count} {name}"] = count * (devices.peak_flops(name) or 0)
        elif flops < MOST_CPU_FLOPS:
            peaks["this CPU"] = measure_cpu()
        for name, peak in peaks.items():
            hours = float(f"{flops / peak / MFU / 3600:.2g}") if peak else 0
            parts += [f"{hours:,.10g} h of {name}"] if hours > 0.001 else []
    for what in ("disk", "download"):
        if cost[what]:
            parts.append(f"{what} {cost[what] / 1e9:,.1f} GB")
    return "; ".join(filter(None, parts))


@functools.cache
def measure_cpu() -> float:
    """Return the FLOP/s of this CPU in five products of matrices."""
    x = torch.randn(MATRIX, MATRIX)
    return 2 * MATRIX**3 / Timer("x @ x", globals={"x": x}).timeit(5).median
