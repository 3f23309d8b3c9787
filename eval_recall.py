"""Measure how far back a model uses what it has read.

    python eval_recall.py runs/quickstart/cable runs/quickstart/rope
    python eval_recall.py runs/medium/* --distances 256,1x,4x,16x --trials 500
    python eval_recall.py runs/recall/* --distances 8,1x,4x,16x,64x

Runs on text: in each trial, the model reads a passage, then filler, then the
passage again, which starts `distance` tokens after the first copy. The baseline
starts with another passage and is otherwise the same. Other passage and filler
are taken from two other trials. Trials start at windows evenly spaced over the
split, the same for all distances.

Recall is the percentage by which the first copy lowers the perplexity of the
second half of the second copy: 0 if the model makes no use of the first copy,
near 100 if it copies it.

Runs with --objective recall: a trial is a sequence of the task on which the run
was trained (text_data/recall_task.py), at least as long as those of training,
and ends with the second copy. The result is the accuracy in percent, in one
record for each task and filler. --passage does not apply.

Records are JSON files next to the run's checkpoints, written after each
distance; recorded distances are skipped.
"""

import itertools
import math
from dataclasses import dataclass
from functools import partial

from runtime import cli, devices
from runtime.files import run_folder_of
from runtime.run_folder import read_log

import numpy as np
import torch

from errors import InputError
from evaluation.runner import (
    RUNS_ARGUMENT,
    LoadedRun,
    Plan,
    TextEvaluationConfig,
    run_evaluation,
)
from text_data import recall_task
from text_data.data_loader import Windows, evenly_spaced
from text_data.shards import Shards
from training.metrics import is_correct

DISTANCES = "64,128,256,512,1024,2048,4096"  # on text
TASK_DISTANCES = "8,16,32,48,1x,2x,4x,8x,16x"
LEARNED = 0.95  # accuracy in validation from which a run has learned the task


@dataclass
class Config(TextEvaluationConfig):
    """Settings of the recall evaluation."""

    distances: str | None = None
    """tokens from the start of the passage's first copy to the start of its second, separated by
    commas; 1x,2x,... are multiples of the training length; null: 64,128,...,4096, for objective
    recall 8,16,32,48,1x,2x,4x,8x,16x"""
    passage: int = cli.limited(64, 2)
    """length of the passage in tokens"""
    trials: int = cli.limited(250, 3)
    """number of sequences; on text fewer if the split has fewer windows of the longest distance"""


@dataclass
class Trials:
    """Trials on text; trial n begins at window `numbers[n]`."""

    windows: Windows
    numbers: np.ndarray  # (trials,) int
    passage: int  # tokens


@dataclass
class TaskTrials:
    """Trials on one kind of sequence of the recall task."""

    windows: Windows
    numbers: np.ndarray  # (trials,) int, windows whose text is the filler
    task: recall_task.Task
    filler: recall_task.Filler
    shortest: int  # tokens of a sequence


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=RUNS_ARGUMENT)
    run_evaluation(config, plan)


def plan(run: str, checkpoint: dict, shards: Shards, config: Config) -> list[Plan]:
    """Return one plan of a run on text, or one for each task and filler."""
    is_on_task = checkpoint["config"].get("objective") == "recall"
    default = TASK_DISTANCES if is_on_task else DISTANCES
    distances = cli.parse_lengths(config.distances or default, checkpoint["gpt"]["block_size"])
    if not is_on_task:
        return [plan_text(shards, distances, config)]
    shortest, steps = checkpoint["gpt"]["block_size"], steps_to_learn(run)
    return [
        plan_task(shards, distances, config, shortest, steps, task, filler)
        for task, filler in itertools.product(recall_task.TASKS, recall_task.FILLERS)
    ]


def plan_text(shards: Shards, distances: list[int], config: Config) -> Plan:
    """Return the trials on text. Raises InputError if it is too short."""
    if distances[0] < config.passage:
        raise InputError(
            f"distance {distances[0]} is less than the {config.passage} tokens of the passage: "
            "remove it or lower --passage"
        )
    windows = Windows(shards, distances[-1])
    numbers = evenly_spaced(len(windows), config.trials)
    if len(numbers) < 3:
        raise InputError(
            f"{shards.folder} ({config.split}) has {len(numbers)} windows of {windows.length:,} "
            "tokens, but recall needs three: lower --distances"
        )
    trials = f"{config.passage}of{len(numbers)}x{windows.length}"
    return Plan(
        measure=partial(measure, trials=Trials(windows, numbers, config.passage)),
        value="recall",
        shards=shards,
        lengths=distances,
        protocol={"passage": config.passage, "trials": len(numbers), "span": windows.length},
        identity={"metric": "Recall"},
        record_name=["recall", shards.meta["dataset"], config.split, trials],
        extra_inputs=config.passage - 1,
    )


def trial_sequences(trials: Trials, batch: np.ndarray, distance: int) -> torch.Tensor:
    """Return the sequences of some trials, (2n, distance + passage) int64.

    batch: (n,) indices into trials.numbers. The baselines are the first n.
    """
    numbers, passage = trials.numbers, trials.passage
    third = len(numbers) // 3
    own, other, third_text = (  # the windows of the trials `shift` further on
        trials.windows.batch(numbers[(batch + shift) % len(numbers)])[0]
        for shift in (0, third, 2 * third)
    )
    end = [third_text[:, passage:distance], own[:, :passage]]
    baseline = torch.cat([other[:, :passage], *end], 1)
    repeated = torch.cat([own[:, :passage], *end], 1)
    return torch.cat([baseline, repeated])


def measure(loaded: LoadedRun, distance: int, trials: Trials) -> dict:
    """Return the recall at one distance in percent, and its standard error.

    loss, loss_without: mean loss in nats of the second half of the passage's
    second copy, after the passage and after the other passage.
    by_trial: loss_without - loss of each trial.
    """
    count, targets = len(trials.numbers), trials.passage // 2
    losses = np.zeros((2, count))
    tokens_per_trial, label = 2 * (distance + trials.passage), f"at distance {distance:,}"
    for batch in loaded.batches(np.arange(count), tokens_per_trial, label, "trial"):
        tokens = trial_sequences(trials, batch, distance).to(loaded.device)
        with devices.autocast(loaded.device, loaded.dtype):
            token_losses = loaded.model.losses(tokens[:, :-1], tokens[:, -targets:])
        losses[:, batch] = token_losses.double().mean(1).view(2, -1).cpu()
    baseline, repeated = loaded.sum(losses)  # (trials,) each
    saved = baseline - repeated
    perplexity_ratio = math.exp(-saved.mean())
    return {
        "recall": 100 * (1 - perplexity_ratio),
        "recall_se": float(100 * perplexity_ratio * saved.std(ddof=1) / math.sqrt(count)),
        "loss": float(repeated.mean()),
        "loss_without": float(baseline.mean()),
        "by_trial": saved.tolist(),
    }


def plan_task(
    shards: Shards,
    distances: list[int],
    config: Config,
    shortest: int,
    steps_to_95: int | None,
    task: recall_task.Task,
    filler: recall_task.Filler,
) -> Plan:
    """Return the trials on a kind of sequence, of `shortest` tokens or more."""
    windows = Windows(shards, max(shortest, distances[-1] + task.tokens))
    numbers = np.resize(evenly_spaced(len(windows), config.trials), config.trials)
    trials = f"{config.trials}x{windows.length}"
    return Plan(
        measure=partial(
            measure_accuracy, trials=TaskTrials(windows, numbers, task, filler, shortest)
        ),
        value="accuracy",
        shards=shards,
        lengths=[distance for distance in distances if distance >= task.tokens],
        protocol={
            "task": task.name,
            "filler": filler,
            "trials": config.trials,
            "span": windows.length,
            "symbols": recall_task.SYMBOLS,
        },
        identity={"metric": "Trained recall", "steps_to_95": steps_to_95},
        record_name=["recall", task.name, filler, shards.meta["dataset"], config.split, trials],
        extra_inputs=task.tokens - 1,
    )


def steps_to_learn(run: str) -> int | None:
    """Return the step of the first validation with LEARNED, or None."""
    for entry in read_log(run_folder_of(run)):
        if entry["kind"] == "val" and entry.get("accuracy", 0) >= LEARNED:
            return entry["step"]
    return None


def task_sequences(
    trials: TaskTrials, batch: np.ndarray, distance: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens (n, T) and positions (n, t) whose next tokens count."""
    task = trials.task
    length = max(trials.shortest, distance + task.tokens)
    texts = trials.windows.batch(trials.numbers[batch])[0][:, :length].numpy()
    start = length - task.tokens - distance
    made = [
        recall_task.make_sequence(
            text, task, trials.filler, start, distance, np.random.default_rng([trial])
        )
        for trial, text in zip(batch, texts, strict=True)
    ]
    tokens, positions = (torch.from_numpy(np.stack(each)) for each in zip(*made, strict=True))
    return tokens, positions


def measure_accuracy(loaded: LoadedRun, distance: int, trials: TaskTrials) -> dict:
    """Return the accuracy in percent, and its standard error over trials."""
    percent = np.zeros(len(trials.numbers))
    label = f"{trials.task.name}, {trials.filler}, at distance {distance:,}"
    tokens_per_trial = distance + trials.task.tokens
    for batch in loaded.batches(np.arange(len(percent)), tokens_per_trial, label, "trial"):
        tokens, positions = (
            x.to(loaded.device) for x in task_sequences(trials, batch, distance)
        )
        targets = tokens.gather(1, positions + 1)
        with devices.autocast(loaded.device, loaded.dtype):
            correct = is_correct(loaded.model, tokens[:, :-1], targets, positions)
        percent[batch] = 100 * correct.double().mean(1).cpu()
    loaded.sum(percent)
    return {
        "accuracy": float(percent.mean()),
        "accuracy_se": float(percent.std(ddof=1) / math.sqrt(len(percent))),
    }


if __name__ == "__main__":
    cli.run(main)
