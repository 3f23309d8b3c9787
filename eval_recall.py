"""Measure how far back a model uses what it has read.

    python eval_recall.py runs/quickstart/cable runs/quickstart/rope
    python eval_recall.py runs/medium/* --distances 256,1x,4x,16x --trials 500
    python eval_recall.py runs/recall/* --distances 8,1x,4x,16x,64x

Runs on text: in each trial, the model reads a passage, then unrelated filler text, then the passage
again. The second copy starts `distance` tokens after the first. The baseline sequence starts with
another, unrelated passage and is otherwise the same. Losses are computed with teacher forcing.

Recall is the percentage by which the first copy lowers the perplexity of the second half of the
second copy. It is 0 if the model makes no use of the first copy, and near 100 if it copies it.

Flat perplexity beyond the training length (eval_extrapolation.py) does not show that a model uses
distant text; recall does.

Trials start at windows evenly spaced over the split. The other passage and the filler of a trial
are taken from the windows of two other trials. All distances use the same passages.

Runs with --objective recall: a trial is a sequence of the task on which the run was trained, a
passage or pairs of keys and values that return after filler (text_data/recall_task.py). The second
copy ends the sequence, which is at least as long as those of training. The result is the accuracy
in percent, in one record for each task and filler. --passage does not apply.

Records are JSON files next to the run's checkpoints, written after each distance; recorded
distances are skipped.
"""

import itertools
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from runtime import cli, devices
from runtime.checkpoints import load_checkpoint
from runtime.files import run_folder_of
from runtime.run_folder import read_log

import numpy as np
import torch

from errors import InputError
from evaluation.runner import (
    RUNS_ARGUMENT,
    Plan,
    TextEvaluationConfig,
    evaluation_ranks,
    measure_batches,
    run_evaluation,
    shards_for_run,
)
from model import GPT
from reporting import metrics
from text_data import recall_task
from text_data.data_loader import Windows, evenly_spaced
from training.metrics import is_correct

DISTANCES = "64,128,256,512,1024,2048,4096"  # on text
TASK_DISTANCES = "8,16,32,48,1x,2x,4x,8x,16x"
LEARNED = 0.95  # accuracy in validation from which a run has learned the task


@dataclass
class Config(TextEvaluationConfig):
    """Settings of the recall evaluation."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """dtype of matrix products; auto: bfloat16 if the hardware supports it"""
    distances: str | None = None
    """tokens from the start of the passage's first copy to the start of its second, separated by
    commas; 1x,2x,... are multiples of the training length; null: 64,128,...,4096, for objective
    recall 8,16,32,48,1x,2x,4x,8x,16x"""
    passage: int = cli.limited(64, 2)
    """length of the passage in tokens"""
    trials: int = cli.limited(250, 3)
    """number of sequences; on text fewer if the split has fewer windows of the longest distance"""


@dataclass(kw_only=True)
class RecallPlan(Plan):
    """The trials of one run: trial n begins at window `numbers[n]`."""

    windows: Windows
    numbers: np.ndarray  # (trials,) int
    passage: int  # tokens


@dataclass(kw_only=True)
class TaskPlan(Plan):
    """The trials of one run on one kind of sequence of the recall task."""

    windows: Windows
    numbers: np.ndarray  # (trials,) int, windows whose text is the filler
    task: recall_task.Task
    filler: recall_task.Filler
    shortest: int  # tokens of a sequence


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=RUNS_ARGUMENT)
    with evaluation_ranks(config, config.dtype) as ranks:
        on_task = {run: is_trained_on_task(run) for run in config.runs}
        records = []
        text_runs = [run for run in config.runs if not on_task[run]]
        if text_runs:
            records += run_evaluation(replace(config, runs=text_runs), plan, measure, ranks)
        task_runs = [run for run in config.runs if on_task[run]]
        for task, filler in itertools.product(recall_task.TASKS, recall_task.FILLERS):
            if task_runs:
                task_config = replace(config, runs=task_runs)
                plan_run = partial(plan_task, task=task, filler=filler)
                records += run_evaluation(task_config, plan_run, measure_accuracy, ranks)
        print(f"\n{metrics.summary(records)}")


def is_trained_on_task(run: str) -> bool:
    """Return whether a run was trained with --objective recall."""
    checkpoint = load_checkpoint(run, causal=True)
    return checkpoint["config"].get("objective") == "recall"


# Runs on text


def plan(run: str, config: Config) -> RecallPlan:
    """Return the trials of one run. Raises InputError if its text is too short for them."""
    checkpoint = load_checkpoint(run, causal=True)
    shards = shards_for_run(run, checkpoint, config.data, config.split)
    distances = cli.parse_lengths(config.distances or DISTANCES, checkpoint["gpt"]["block_size"])
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
    return RecallPlan(
        run=run,
        shards=shards,
        lengths=distances,
        protocol={"passage": config.passage, "trials": len(numbers), "span": windows.length},
        identity={"metric": metrics.RECALL.name},
        record_name=["recall", shards.meta["dataset"], config.split, trials],
        extra_inputs=config.passage - 1,
        windows=windows,
        numbers=numbers,
        passage=config.passage,
    )


def trial_sequences(plan: RecallPlan, trials: np.ndarray, distance: int) -> torch.Tensor:
    """Return the token sequences of some trials, (2n, distance + passage) int64.

    trials: (n,) indices into plan.numbers. The first n sequences are the baselines, which start
    with another passage; the last n start with the passage that they end with.
    """
    third = len(plan.numbers) // 3

    def texts(shift: int) -> torch.Tensor:
        """The windows of the trials `shift` further on, (n, window length)."""
        numbers = plan.numbers[(trials + shift) % len(plan.numbers)]
        return plan.windows.batch(numbers)[0]

    passage = texts(0)[:, : plan.passage]
    other_passage = texts(third)[:, : plan.passage]
    filler = texts(2 * third)[:, plan.passage : distance]
    baseline = torch.cat([other_passage, filler, passage], 1)
    repeated = torch.cat([passage, filler, passage], 1)
    return torch.cat([baseline, repeated])


def measure(
    model: GPT, plan: RecallPlan, distance: int, device: torch.device, dtype: torch.dtype
) -> dict:
    """Return the recall at one distance.

    recall: percent. recall_se: its standard error over trials.
    loss, loss_without: mean loss in nats of the second half of the passage's second copy, after the
    passage and after the other passage. by_trial: loss_without - loss of each trial.
    """
    trials = len(plan.numbers)
    targets = plan.passage // 2

    def batch_losses(batch: np.ndarray) -> np.ndarray:
        tokens = trial_sequences(plan, batch, distance).to(device)
        with devices.autocast(device, dtype):
            token_losses = model.losses(tokens[:, :-1], tokens[:, -targets:])  # (2n, targets)
        return token_losses.double().mean(1).view(2, -1).cpu().numpy()

    label, size = f"at distance {distance:,}", 2 * (distance + plan.passage)
    losses = measure_batches(plan, batch_losses, np.arange(trials), size, label, "trial")
    baseline, repeated = np.concatenate(losses, 1)  # (trials,) each
    saved = baseline - repeated
    perplexity_ratio = math.exp(-saved.mean())
    return {
        "recall": 100 * (1 - perplexity_ratio),
        "recall_se": float(100 * perplexity_ratio * saved.std(ddof=1) / math.sqrt(trials)),
        "loss": float(repeated.mean()),
        "loss_without": float(baseline.mean()),
        "by_trial": saved.tolist(),
    }


# Runs with --objective recall


def plan_task(
    run: str, config: Config, task: recall_task.Task, filler: recall_task.Filler
) -> TaskPlan:
    """Return the trials of one run on one task. Raises InputError if its text is too short."""
    checkpoint = load_checkpoint(run, causal=True)
    shards = shards_for_run(run, checkpoint, config.data, config.split)
    block_size = checkpoint["gpt"]["block_size"]
    distances = cli.parse_lengths(config.distances or TASK_DISTANCES, block_size)
    windows = Windows(shards, max(block_size, distances[-1] + task.tokens))
    trials = f"{config.trials}x{windows.length}"
    return TaskPlan(
        run=run,
        shards=shards,
        lengths=[distance for distance in distances if distance >= task.tokens],
        protocol={
            "task": task.name,
            "filler": filler,
            "trials": config.trials,
            "span": windows.length,
            "symbols": recall_task.SYMBOLS,
        },
        identity={"metric": metrics.TRAINED_RECALL.name, "steps_to_95": steps_to_learn(run)},
        record_name=["recall", task.name, filler, shards.meta["dataset"], config.split, trials],
        extra_inputs=task.tokens - 1,
        windows=windows,
        numbers=np.resize(evenly_spaced(len(windows), config.trials), config.trials),
        task=task,
        filler=filler,
        shortest=block_size,
    )


def steps_to_learn(run: str) -> int | None:
    """Return the step of the first validation with an accuracy of at least LEARNED, or None."""
    for entry in read_log(run_folder_of(run)):
        if entry["kind"] == "val" and entry.get("accuracy", 0) >= LEARNED:
            return entry["step"]
    return None


def task_sequences(
    plan: TaskPlan, trials: np.ndarray, distance: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens (n, T) of some trials and the positions (n, t) whose next tokens count.

    trials: (n,) indices into plan.numbers. A trial has the same symbols at all distances.
    """
    length = max(plan.shortest, distance + plan.task.tokens)
    texts = plan.windows.batch(plan.numbers[trials])[0][:, :length].numpy()
    start = length - plan.task.tokens - distance
    rows, chosen = [], []
    for trial, text in zip(trials, texts, strict=True):
        row, positions = recall_task.make_sequence(
            text,
            plan.task,
            plan.filler,
            start,
            distance,
            np.random.default_rng([trial]),
        )
        rows.append(row)
        chosen.append(positions)
    return torch.from_numpy(np.stack(rows)), torch.from_numpy(np.stack(chosen))


def measure_accuracy(
    model: GPT, plan: TaskPlan, distance: int, device: torch.device, dtype: torch.dtype
) -> dict:
    """Return the accuracy at one distance in percent, and its standard error over trials."""
    trials = len(plan.numbers)
    label = f"{plan.task.name}, {plan.filler}, at distance {distance:,}"

    def batch_fractions(batch: np.ndarray) -> np.ndarray:
        tokens, positions = (x.to(device) for x in task_sequences(plan, batch, distance))
        targets = tokens.gather(1, positions + 1)
        with devices.autocast(device, dtype):
            correct = is_correct(model, tokens[:, :-1], targets, positions)
        return correct.double().mean(1).cpu().numpy()

    size = distance + plan.task.tokens
    fractions = measure_batches(plan, batch_fractions, np.arange(trials), size, label, "trial")
    percent = 100 * np.concatenate(fractions)  # (trials,)
    return {
        "accuracy": float(percent.mean()),
        "accuracy_se": float(percent.std(ddof=1) / math.sqrt(trials)),
    }


if __name__ == "__main__":
    cli.run(main)
