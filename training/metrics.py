"""Training metrics: loss, gradient norm, throughput and MFU of the steps."""

import statistics
from typing import NamedTuple

from runtime import devices
from runtime.distributed import Processes

import torch
from torch import Tensor

from data_loader import Windows
from errors import InputError
from losses import perplexity
from model import GPT, select
from training.run_folder import Run


class Step(NamedTuple):
    """Results of an optimizer step on one rank; tensors () stay on the device."""

    losses: list[Tensor]  # of the micro-batches
    norm: Tensor  # of the gradient
    data_seconds: float  # spent waiting for data


class StepMetrics:
    """Results and times of the steps since the last log line, on one rank."""

    def __init__(
        self, config, model: GPT, windows: Windows, dtype: torch.dtype, processes: Processes
    ):
        """config: of train_gpt.py; dtype: of matrix products."""
        self.processes = processes
        self.tokens_per_step = config.tokens_per_step
        targets = windows.targets_per_window
        self.flops_per_token = model.flops_per_token(config.block_size, targets)
        self.device = next(model.parameters()).device
        self.peak_flops = devices.peak_flops(devices.describe(self.device), dtype)
        self.steps: list[Step] = []
        self.seconds: list[float] = []  # of each step, without validation and saving
        self.is_first_interval = True

    def reduce_losses(self, step: int, run: Run, scaler) -> Tensor:
        """Return the losses (steps,) since the last log line, means of all ranks.

        step: taken so far. Raises InputError if a loss or gradient norm is NaN or Inf; an enabled
        scaler skips steps with such norms.
        """
        losses = torch.stack([torch.stack(each.losses) for each in self.steps])
        losses = self.processes.sum(losses.mean(1)) / self.processes.world_size
        norms = torch.stack([each.norm for each in self.steps])
        if scaler.is_enabled():
            norms = torch.zeros_like(norms)
        if not (losses + norms).isfinite().all():
            pairs = zip(losses, norms, strict=True)
            for before, pair in enumerate(pairs, step - len(losses)):
                for name, value in zip(("loss", "gradient norm"), pair, strict=True):
                    check_finite(value, f"the {name} of step {before + 1}", before, run)
        return losses

    def summarize(self, losses: Tensor, lr: float) -> dict:
        """Return the values of a log line, and start the next interval.

        losses: of `reduce_losses`. "data_ms": of "ms", waiting for data; "memory": in bytes; "mfu":
        if the device's peak FLOPs are known. A process's first step, which compiles, is timed only
        if it is alone.
        """
        first = int(self.is_first_interval and len(self.steps) > 1)
        ms = 1000 * statistics.fmean(self.seconds[first:])
        waits = [1000 * each.data_seconds for each in self.steps[first:]]
        values = {
            "loss": losses.mean().item(),
            "lr": lr,
            "grad_norm": self.steps[-1].norm.item(),
            "ms": ms,
            "data_ms": statistics.fmean(waits),
            "tokens_per_second": 1000 * self.tokens_per_step / ms,
            "memory": devices.peak_memory(self.device),
        }
        if self.peak_flops:
            flops_per_second = values["tokens_per_second"] * self.flops_per_token
            values["mfu"] = flops_per_second / (self.peak_flops * self.processes.world_size)
        self.steps.clear()
        self.seconds.clear()
        self.is_first_interval = False
        return values


def step_columns(values: dict, steps_left: int) -> list[str]:
    """Return a console line's columns; values: of `StepMetrics.summarize`."""
    minutes, seconds = divmod(round(steps_left * values["ms"] / 1000), 60)
    return [
        f"loss {values['loss']:.4f}",
        f"lr {values['lr']:.2e}",
        f"norm {values['grad_norm']:.2f}",
        f"{values['ms']:.0f} ms",
        f"data {values['data_ms']:.0f} ms",
        f"{values['tokens_per_second']:,.0f} tokens/s",
        *([f"MFU {values['mfu']:.1%}"] if "mfu" in values else []),
        f"{values['memory'] / 1e9:.1f} GB",
        f"left {minutes // 60}:{minutes % 60:02}:{seconds:02}",
    ]


def validation_sums(model: GPT, windows: Windows, rows: int, inputs, targets, *positions) -> Tensor:
    """Return sums of losses and correct predictions of a batch, (2,) float64.

    Tensors: of `Windows.batch`; rows after the first `rows` are padding. Correct predictions are
    counted if `windows.counts_correct`.
    """
    losses = model.loss(inputs, targets, *positions, reduction="none")[:rows].sum(
        dtype=torch.float64
    )
    correct = torch.zeros_like(losses)
    if windows.counts_correct:
        correct += is_correct(model, inputs, targets, *positions)[:rows].sum()
    return torch.stack([losses, correct])


@torch.no_grad()
def is_correct(model: GPT, inputs: Tensor, targets: Tensor, positions: Tensor) -> Tensor:
    """Return whether the most probable token is the target, (B, t) bool.

    inputs (B, T); targets (B, t) of the positions (B, t), all int64.
    """
    hidden = select(model.hidden(inputs), positions)  # (B, t, C)
    with torch.autocast(hidden.device.type, enabled=False):  # as in cross_entropies
        weights = model.output_embeddings
        logits = hidden.to(weights.dtype) @ weights.T  # (B, t, V)
    return logits.argmax(-1) == targets


def validation_values(
    sums: Tensor, tokens: int, windows: Windows, step: int, run: Run
) -> tuple[dict, list[str]]:
    """Return the values of a validation and its console columns.

    sums: of `validation_sums`. Raises InputError for a loss of NaN or Inf.
    """
    check_finite(sums, f"the validation loss after step {step}", step, run)
    loss, accuracy = (sums / tokens).tolist()
    values = {"loss": loss, "tokens": tokens}
    columns = [f"val loss {loss:.4f}", f"perplexity {perplexity(loss):.3f}"]
    if windows.counts_correct:
        values["accuracy"] = accuracy
        columns.append(f"accuracy {accuracy:.1%}")
    return values, columns


def check_finite(values: Tensor, what: str, step: int, run: Run) -> None:
    """Raise InputError if values, of the weights of a step, are NaN or Inf."""
    if not values.isfinite().all():
        raise InputError(f"{what} is NaN or Inf; {run.describe_last_good(step)}")
