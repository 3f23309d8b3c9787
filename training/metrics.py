"""Training metrics: loss, gradient norm, throughput and MFU of the steps."""

import contextlib
import math
import statistics
import time
from collections.abc import Generator

from runtime import devices
from runtime.distributed import Processes
from runtime.run_folder import Run

import numpy as np
import torch
from torch import Tensor

from errors import InputError
from evaluation.records import perplexity
from model import GPT
from text_data.data_loader import Windows
from text_data.recall_task import RecallWindows


class StepMetrics:
    """Losses, gradient norms and times of the steps since the last log line, on one rank.

    The numbers stay on the device until `reduce_losses` reads them, so that the host does not wait
    for the device at every step. config: the `Config` of train_gpt.py; dtype: of matrix products.
    """

    def __init__(
        self,
        config,
        model: GPT,
        windows: Windows,
        accumulation_steps: int,
        dtype: torch.dtype,
        processes: Processes,
    ):
        self.windows = windows
        self.accumulation_steps = accumulation_steps
        self.processes = processes
        self.tokens_per_step = config.tokens_per_step
        self.flops_per_token = model.flops_per_token(config.block_size, windows.targets_per_window)
        self.device = next(model.parameters()).device
        self.peak_flops = devices.peak_flops(self.device, dtype)
        rows = min(config.log_every, config.steps)
        self.losses = torch.zeros(rows, accumulation_steps, device=self.device)
        self.norms = torch.zeros(rows, device=self.device)
        self.window_indices = []
        self.steps = 0
        self.seconds = []  # of each step, without validation and saving
        self.data_seconds = [0.0]  # of these, spent waiting for data; the last entry is growing
        self.is_first_interval = True

    def time_waiting(self, batches: Generator) -> Generator:
        """Yield the items of `batches`, and store how long each was waited for."""
        with contextlib.closing(batches):
            while True:
                start = time.perf_counter()
                item = next(batches)
                self.data_seconds[-1] += time.perf_counter() - start
                yield item

    def add_micro_batch(self, loss: Tensor, window_indices) -> None:
        """Store the loss of a micro-batch, (), and the indices of its windows."""
        micro_step = len(self.window_indices) % self.accumulation_steps
        self.losses[self.steps, micro_step] = loss
        self.window_indices.append(window_indices)

    def add_step(self, norm: Tensor) -> None:
        """Store the gradient norm of a step, (), after its last micro-batch."""
        self.norms[self.steps] = norm
        self.steps += 1

    def add_time(self, seconds: float) -> None:
        """Store the time of a step."""
        self.seconds.append(seconds)
        self.data_seconds.append(0.0)

    def reduce_losses(self, step: int, run: Run, scaler) -> Tensor:
        """Return the mean losses of all ranks, one per step since the last log line, (steps,).

        Waits for the device. step: taken so far; scaler: the gradient scaler, which skips steps
        whose gradients are NaN or Inf if it is enabled. Raises InputError if a loss, or a gradient
        norm that is not skipped, is NaN or Inf.
        """
        losses = self.processes.sum(self.losses[: self.steps].mean(1)) / self.processes.world_size
        is_finite = losses.isfinite()
        if not scaler.is_enabled():
            is_finite &= self.norms[: self.steps].isfinite()
        if is_finite.all():
            return losses
        row = int(is_finite.int().argmin())
        quantity = "gradient norm" if losses[row].isfinite() else "loss"
        steps_before = step - self.steps + row
        places = self._describe_nonfinite_windows(row)
        raise InputError(
            f"the {quantity} of step {steps_before + 1} is NaN or Inf{places}; "
            f"{run.describe_last_good(steps_before)}"
        )

    def _describe_nonfinite_windows(self, row: int) -> str:
        """Return where in the data the micro-batches with a NaN or Inf loss are, for all ranks."""
        first = row * self.accumulation_steps
        micro_batches = self.window_indices[first : first + self.accumulation_steps]
        indices = []
        for window_indices, loss in zip(micro_batches, self.losses[row], strict=True):
            if not loss.isfinite():
                indices += [int(index) for index in window_indices]
        places = []
        for rank_indices in self.processes.gather(indices):
            for shard, token in map(self.windows.locate, rank_indices):
                places.append(f"{self.windows.shards.paths[shard].name} at token {token}")
        if not places:
            return ""
        ellipsis = " ..." if len(places) > 8 else ""
        return f", in the micro-batch with {', '.join(places[:8])}{ellipsis}"

    def summarize(self, losses: Tensor, lr: float) -> dict:
        """Return the values of a log line, and start the next interval.

        losses: of `reduce_losses`. "ms" is per step, "data_ms" the part of it spent waiting for
        data, "memory" in bytes. The first step of a process, which compiles, is not timed unless it
        is the only one. "mfu" (model FLOPs utilization) is present if the peak FLOPs of the device
        are known.
        """
        first = int(self.is_first_interval and self.steps > 1)
        ms = 1000 * statistics.fmean(self.seconds[first:])
        values = {
            "loss": losses.mean().item(),
            "lr": lr,
            "grad_norm": self.norms[self.steps - 1].item(),
            "ms": ms,
            "data_ms": 1000 * statistics.fmean(self.data_seconds[first : self.steps]),
            "tokens_per_second": 1000 * self.tokens_per_step / ms,
            "memory": devices.peak_memory(self.device),
        }
        if self.peak_flops:
            flops_per_second = values["tokens_per_second"] * self.flops_per_token
            values["mfu"] = flops_per_second / (self.peak_flops * self.processes.world_size)
        self.window_indices.clear()
        self.steps = 0
        self.seconds = []
        self.data_seconds = [0.0]
        self.is_first_interval = False
        return values


def validation_sums(
    model: GPT,
    windows: Windows,
    inputs: Tensor,
    targets: Tensor,
    positions: Tensor | None = None,
) -> Tensor:
    """Return two sums over the targets of a batch, (2,) float64: losses, and correct predictions.

    windows: of the batch. Correct predictions are counted for `RecallWindows` only, else 0.
    """
    losses = model.losses(inputs, targets, positions).sum(dtype=torch.float64)
    correct = torch.zeros_like(losses)
    if isinstance(windows, RecallWindows) and positions is not None:
        correct += is_correct(model, inputs, targets, positions).sum()
    return torch.stack([losses, correct])


@torch.no_grad()
def is_correct(model: GPT, inputs: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
    """Return whether the most probable token is the target, (B, t) bool.

    inputs (B, T); targets (B, t) of the positions (B, t), all int64.
    """
    hidden = model.hidden(inputs)  # (B, T, C)
    hidden = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.size(-1)))  # (B, t, C)
    with torch.autocast(hidden.device.type, enabled=False):  # as in cross_entropies
        logits = hidden.to(model.wte.weight.dtype) @ model.wte.weight.T  # (B, t, V)
    return logits.argmax(-1) == targets


def validation_values(sums: Tensor, tokens: int, windows: Windows, step: int, run: Run) -> dict:
    """Return the values of a log line from the sums of all batches and their number of targets.

    Raises InputError if the loss after `step` steps is NaN or Inf.
    """
    loss, accuracy = (sums / tokens).tolist()
    if not math.isfinite(loss):
        raise InputError(
            f"the validation loss after step {step} is NaN or Inf; {run.describe_last_good(step)}"
        )
    values = {"loss": loss, "tokens": tokens}
    if isinstance(windows, RecallWindows):
        values["accuracy"] = accuracy
    return values


def validation_columns(values: dict) -> list[str]:
    """Return the columns of a console line from the values of a validation."""
    columns = [f"val loss {values['loss']:.4f}", f"perplexity {perplexity(values['loss']):.3f}"]
    if "accuracy" in values:
        columns.append(f"accuracy {values['accuracy']:.1%}")
    return columns


def check_parameters(model: GPT, step: int, run: Run) -> None:
    """Raise InputError if a parameter after `step` steps is NaN or Inf. Waits for the device."""
    if torch.nn.utils.get_total_norm(model.parameters(), math.inf).isfinite():
        return
    names = [name for name, values in model.named_parameters() if not values.isfinite().all()]
    raise InputError(
        f"parameter {names[0]} is NaN or Inf after step {step}; {run.describe_last_good(step)}"
    )


def step_columns(values: dict, steps_left: int) -> list[str]:
    """Return the columns of a console line from the values of `StepMetrics.summarize`."""
    minutes, seconds = divmod(round(steps_left * values["ms"] / 1000), 60)
    columns = [
        f"loss {values['loss']:.4f}",
        f"lr {values['lr']:.2e}",
        f"norm {values['grad_norm']:.2f}",
        f"{values['ms']:.0f} ms",
        f"data {values['data_ms']:.0f} ms",
        f"{values['tokens_per_second']:,.0f} tokens/s",
    ]
    if "mfu" in values:
        columns.append(f"MFU {values['mfu']:.1%}")
    columns.append(f"{values['memory'] / 1e9:.1f} GB")
    columns.append(f"left {minutes // 60}:{minutes % 60:02}:{seconds:02}")
    return columns


def bias_columns(summary: dict) -> list[str]:
    """Return the columns of a console line from `bias_statistics.summary`; may be empty."""
    columns = []
    if summary.get("window"):
        windows = " ".join(f"{window:.0f}" for window in summary["window"])
        columns.append(f"effective window by layer {windows}")
    if "left_out" in summary:
        columns.append(f"{np.mean(summary['left_out']):.1%} of attention skipped")
    return columns


def describe_epochs(config, windows: Windows) -> str:
    """Return how often a training run reads its tokens, as in "0.03 epochs of 12,004"."""
    epochs = config.sequences_per_step(1) * config.steps / len(windows)
    return f"{epochs:.2f} epochs of {windows.shards.total:,}"


def describe_steps(config, windows: Windows, world_size: int, micro_batch: int) -> str:
    """Return a line with epochs, steps, tokens, and how ranks and micro-batches share a step."""
    per_rank = config.sequences_per_step(world_size) // world_size
    return (
        f"{describe_epochs(config, windows)} tokens in {config.steps:,} steps of "
        f"{config.tokens_per_step:,} tokens = world size {world_size} x "
        f"{per_rank // micro_batch} micro-batches x {micro_batch} sequences"
    )
