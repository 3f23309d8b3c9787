"""Measure how far back a model uses what it has read.

    python eval_recall.py runs/quickstart/*
    python eval_recall.py runs/medium/* --distances 256,1x,4x,16x --trials 500
    python eval_recall.py runs/recall/* --distances 8,1x,4x,16x,64x

Runs on text: in each trial, the model reads a passage, then filler,
then the passage again, which starts `distance` tokens after the first
copy. The baseline starts with another passage. Other passage and filler
are those of two other trials. Recall is the percentage by which the
first copy lowers the perplexity of the second half of the second copy.

Runs with --objective recall: a trial is a sequence of the task of its
training (text_data/recall_task.py), at least as long as those, and ends
with the second copy. The result is the accuracy in percent, in one
record for each task and filler. --passage does not apply.
"""

import itertools
import math
from dataclasses import dataclass
from functools import partial

from runtime import cli, devices
from runtime.files import run_folder_of

import numpy as np
import torch

from data_loader import Shards, Windows, evenly_spaced
from errors import InputError
from evaluation import runner
from evaluation.runner import LoadedRun, Plan
from setting import setting
from text_data import recall_task
from training.metrics import is_correct
from training.run_folder import read_log

DISTANCES = "64,128,256,512,1024,2048,4096"  # on text
TASK_DISTANCES = "8,16,32,48,1x,2x,4x,8x,16x"
LEARNED = 0.95  # accuracy in validation from which a run has learned the task


@dataclass
class Config(runner.TextEvaluationConfig):
    """Settings of the recall evaluation."""

    distances: str | None = None
    """tokens between the starts of the passage's copies, separated by commas; 1x: the training
    length; null: 64,128,...,4096, or 8,16,32,48,1x,2x,4x,8x,16x for objective recall"""
    passage: int = setting(64, 2)
    """length of the passage in tokens"""
    trials: int = setting(250, 3)
    """number of sequences; on text at most the split's windows of the longest distance"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    runner.run_evaluation(config, plan)


def plan(run: str, checkpoint: dict, shards: Shards, config: Config) -> list[Plan]:
    """Return one plan of a run on text, or one for each task and filler."""
    block_size = checkpoint["gpt"]["block_size"]
    if checkpoint["config"].get("objective") != "recall":
        return [plan_text(shards, config, block_size)]
    steps = steps_to_learn(run)
    lengths = cli.parse_lengths(config.distances or TASK_DISTANCES, block_size)
    return [
        plan_task(shards, lengths, config.trials, block_size, steps, task, filler)
        for task, filler in itertools.product(recall_task.TASKS, recall_task.FILLERS)
    ]


def plan_text(shards: Shards, config: Config, block_size: int) -> Plan:
    """Return the trials on text. Raises InputError if it is too short."""
    distances = cli.parse_lengths(config.distances or DISTANCES, block_size)
    if distances[0] < config.passage:
        raise InputError(
            f"distance {distances[0]} is less than the {config.passage} tokens of the passage: "
            "remove it or lower --passage"
        )
    windows, numbers = runner.spaced_windows(shards, distances[-1], config.trials, 3)
    passage, count, span = config.passage, len(numbers), windows.length
    return Plan(
        measure=partial(measure, windows=windows, numbers=numbers, passage=passage),
        value="recall",
        shards=shards,
        lengths=distances,
        protocol={"passage": passage, "trials": count, "span": span},
        identity={"metric": "Recall"},
        file_words=(["recall"], [f"{passage}of{count}x{span}"]),
        extra_inputs=passage - 1,
    )


def trial_sequences(
    windows: Windows, numbers: np.ndarray, passage: int, batch: np.ndarray, distance: int
) -> torch.Tensor:
    """Return the sequences of some trials, (2n, distance + passage) int64.

    numbers: the first window of each trial. batch: (n,) indices into them. The baselines are the
    first n.
    """
    third = len(numbers) // 3
    own, other, third_text = (  # the windows of the trials `shift` further on
        windows.batch(numbers[(batch + shift) % len(numbers)])[0] for shift in (0, third, 2 * third)
    )
    end = [third_text[:, passage:distance], own[:, :passage]]
    baseline = torch.cat([other[:, :passage], *end], 1)
    repeated = torch.cat([own[:, :passage], *end], 1)
    return torch.cat([baseline, repeated])


def measure(
    loaded: LoadedRun, distance: int, windows: Windows, numbers: np.ndarray, passage: int
) -> dict:
    """Return the recall at one distance in percent, and its standard error.

    loss, loss_without: mean loss in nats of the second half of the passage's second copy, after the
    passage and after the other passage.
    by_trial: loss_without - loss of each trial.
    """
    count, targets = len(numbers), passage // 2
    losses = np.zeros((2, count))
    tokens_per_trial = 2 * (distance + passage)
    label = f"at distance {distance:,}"
    for batch in loaded.batches(np.arange(count), tokens_per_trial, label, "trial"):
        tokens = trial_sequences(windows, numbers, passage, batch, distance)
        token_losses = loaded.losses(tokens[:, :-1], tokens[:, -targets:])
        losses[:, batch] = token_losses.mean(1).reshape(2, -1)
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
    trials: int,
    shortest: int,
    steps_to_95: int | None,
    task: recall_task.Task,
    filler: recall_task.Filler,
) -> Plan:
    """Return the trials on a kind of sequence, of `shortest` tokens or more."""
    windows = Windows(shards, max(shortest, distances[-1] + task.tokens))
    numbers = np.resize(evenly_spaced(len(windows), trials), trials)
    sequences = TaskSequences(windows, numbers, task, filler, shortest)
    return Plan(
        measure=partial(measure_accuracy, sequences=sequences),
        value="accuracy",
        shards=shards,
        lengths=[distance for distance in distances if distance >= task.tokens],
        protocol={
            "task": task.name,
            "filler": filler,
            "trials": trials,
            "span": windows.length,
            "symbols": recall_task.SYMBOLS,
        },
        identity={"metric": "Trained recall", "steps_to_95": steps_to_95},
        file_words=(["recall", task.name, filler], [f"{trials}x{windows.length}"]),
        extra_inputs=task.tokens - 1,
    )


def steps_to_learn(run: str) -> int | None:
    """Return the step of the first validation with LEARNED, or None."""
    for entry in read_log(run_folder_of(run)):
        if entry["kind"] == "val" and entry.get("accuracy", 0) >= LEARNED:
            return entry["step"]
    return None


@dataclass
class TaskSequences:
    """The trials on one kind of sequence of the recall task."""

    windows: Windows
    numbers: np.ndarray  # (trials,) int, windows whose text is the filler
    task: recall_task.Task
    filler: recall_task.Filler
    shortest: int  # tokens of a sequence

    def batch(self, trials: np.ndarray, distance: int) -> list[torch.Tensor]:
        """Return tokens (n, T) and positions (n, t) whose next tokens count."""
        length = max(self.shortest, distance + self.task.tokens)
        texts = self.windows.batch(self.numbers[trials])[0][:, :length].numpy()
        before = length - self.task.tokens - distance
        made = [
            recall_task.make_sequence(
                text,
                self.task,
                self.filler,
                before,
                distance,
                np.random.default_rng([trial]),
            )
            for trial, text in zip(trials, texts, strict=True)
        ]
        return [torch.from_numpy(np.stack(each)) for each in zip(*made, strict=True)]


def measure_accuracy(loaded: LoadedRun, distance: int, sequences: TaskSequences) -> dict:
    """Return the accuracy in percent, and its standard error over trials."""
    percent = np.zeros(len(sequences.numbers))
    label = f"{sequences.task.name}, {sequences.filler}, at distance {distance:,}"
    tokens_per_trial = distance + sequences.task.tokens
    for trials in loaded.batches(np.arange(len(percent)), tokens_per_trial, label, "trial"):
        tokens, positions = (x.to(loaded.device) for x in sequences.batch(trials, distance))
        targets = tokens.gather(1, positions + 1)
        with devices.autocast(loaded.device, loaded.dtype):
            correct = is_correct(loaded.model, tokens[:, :-1], targets, positions)
        percent[trials] = 100 * correct.double().mean(1).cpu()
    loaded.sum(percent)
    return runner.mean_with_error("accuracy", percent)


if __name__ == "__main__":
    cli.run(main)
