"""Check the settings of an experiment script, and print the cost of its trainings.

scripts/common.sh calls it from the repository's root:

    python scripts/plan.py check --encodings "cable rope" --data data/mine
    python scripts/plan.py cost full train_gpt.py FLAG... train_gpt.py FLAG...

`check` prints the number of GPUs to train on and the number of trainings to run side by side, which
is one on GPUs and one per core on a CPU. One process does all checks, and one computes all costs,
because each start of Python takes seconds.
"""

import contextlib
import dataclasses
import os
import sys
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime import cli  # noqa: E402

import torch  # noqa: E402

import pe_spec  # noqa: E402
import train_gpt  # noqa: E402
from errors import InputError  # noqa: E402
from text_data.shards import Shards  # noqa: E402
from training.cost import Cost, describe_hours, estimate_cost, hours  # noqa: E402

# Assumed for data that is not prepared yet: 257 byte tokens, padded; None: GPT-2's vocabulary.
VOCAB_SIZES = {"full": None, "small": 320, "smoke": 320}


@dataclasses.dataclass
class Settings:
    """Settings of an experiment script to check."""

    encodings: str = "cable"
    """encodings, separated by spaces"""
    objective: Literal["clm", "mlm"] = "clm"
    """what the script trains: mlm: encoders, whose attention is bidirectional"""
    data: str | None = None
    """folder of shards"""
    plugin: dict[str, str] | None = None
    """files with encodings of your own"""


def check(settings: Settings) -> None:
    """Raise InputError with all problems of the encodings and the data."""
    problems = []
    specs = settings.encodings.split()
    if not specs:
        problems.append('ENCODINGS is empty: use names, as in ENCODINGS="cable rope"')
    for spec in specs:
        if "," in spec.partition(":")[0]:
            problems.append(f"ENCODINGS: '{spec}' has a comma: separate encodings by spaces")
            continue
        try:
            pe_spec.parse(spec, causal=settings.objective == "clm")
        except InputError as error:
            problems += [f"ENCODINGS: {problem}" for problem in error.problems]
    if settings.data:
        try:
            for split in ("train", "val"):
                Shards(settings.data, split, "never")
        except InputError as error:
            problems += [f"DATA: {problem}" for problem in error.problems]
    if problems:
        raise InputError(*problems)


def planned_trainings(words: list[str]) -> dict[str, list[str]]:
    """Return the flags of each training, by its out_dir.

    words: "train_gpt.py", the flags of the first training, "train_gpt.py", ... A training with the
    config of an earlier one, which does not exist yet, gets the flags of that one first.
    """
    trainings = {}
    commands = []
    for word in words:
        if word == "train_gpt.py":
            commands.append([])
        else:
            commands[-1].append(word)
    for flags in commands:
        config = flags[flags.index("--config") + 1]
        base = str(Path(config).parent)
        if base in trainings:
            position = flags.index("--config")
            flags = [*trainings[base], *flags[:position], *flags[position + 2 :]]
        out_dir = len(flags) - 1 - flags[::-1].index("--out_dir")  # the last one counts
        trainings[flags[out_dir + 1]] = flags
    return trainings


def estimate_costs(trainings: dict[str, list[str]], vocab_size: int | None) -> dict[str, Cost]:
    """Return the cost of each training that takes steps, by the last two parts of its out_dir.

    Data that exists but cannot be used is a note: nothing is trained.
    """
    costs, by_config, notes = {}, {}, {}
    for out_dir, flags in trainings.items():
        config = cli.parse(train_gpt.Config, flags, train_gpt.__doc__)
        if config.steps == 0:
            continue
        key = repr(dataclasses.replace(config, seed=1, out_dir="", init_from="any"))
        if key not in by_config:
            try:
                by_config[key] = estimate_cost(config, vocab_size)
            except InputError as error:
                by_config[key] = estimate_cost(config, vocab_size, use_data=False)
                notes |= dict.fromkeys(error.problems)
        costs["/".join(Path(out_dir).parts[-2:])] = by_config[key]
    for problem in notes:
        print(f"note: {problem} (costs assume the script's default tokenizer)")
    return costs


def describe_total(costs: dict[str, Cost]) -> str:
    """Return a table with a line for each training, by name, and the total of all of them."""
    lines = [f"{'parameters':>13} {'tokens':>15} {'FLOPs':>8} {'H100 hours':>10}  training"]
    for name, cost in costs.items():
        time = hours(cost.flops, "H100")
        shown = f"{time:,.2f}" if time >= 0.01 else "<0.01"
        lines.append(
            f"{cost.parameters:>13,} {cost.tokens:>15,} {cost.flops:>8.2g} {shown:>10}  {name}"
        )
    tokens = sum(cost.tokens for cost in costs.values())
    flops = sum(cost.flops for cost in costs.values())
    lines += [
        f"total of {len(costs)} trainings: {tokens:,} tokens, {flops:.3g} FLOPs",
        describe_hours(flops),
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    task, *words = sys.argv[1:] if argv is None else argv
    if task == "check":
        with contextlib.redirect_stdout(sys.stderr):  # notes on data, and what a plugin prints
            check(cli.parse(Settings, words, __doc__))
        gpus = torch.cuda.device_count()
        print(max(1, gpus), 1 if gpus else len(os.sched_getaffinity(0)))
    elif task == "cost":
        scale, *words = words
        print(describe_total(estimate_costs(planned_trainings(words), VOCAB_SIZES[scale])))
    else:
        raise InputError(f"no task '{task}': use check or cost")


if __name__ == "__main__":
    cli.run(main)
