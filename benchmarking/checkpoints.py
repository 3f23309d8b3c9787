"""Pause of the training per checkpoint: written by the training itself, and by a thread.

    python -m benchmarking.checkpoints --size tiny --folder runs

The thread is what train_gpt.py uses: the training copies the state and continues. Both are measured
alternately, with weights and AdamW's moments of the given size, on the disk of --folder.
"""

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from runtime import cli, devices
from runtime.run_folder import Run

import torch

from benchmarking.timing import interleave
from model import GPT, GPTConfig
from training.optimizer import make_optimizer


@dataclass
class Config:
    """Settings of the measurement."""

    size: str = "tiny"
    """quickstart, tiny, small, medium, large or xl"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    folder: str = "."
    """existing folder on the disk to write to; its content is not changed"""
    repeats: int = cli.limited(5, 1, 10**6)
    """number of rounds"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    device, _ = devices.select_device(config.device, "float32")
    model = GPT(GPTConfig(size=config.size)).to(device)
    optimizer = make_optimizer(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # creates the moments
    checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 1}
    checkpoint |= {"scaler": {}, "sampler": {}, "rng": [], "gpt": {}}
    with tempfile.TemporaryDirectory(dir=config.folder) as folder:
        run = Run(Path(folder) / "run", {}, {"sha256": None, "tokenizer": "bytes"})
        run.start(device)

        def prepare_training():
            run.wait()
            return lambda: run.write_checkpoint(checkpoint, [])

        def prepare_thread():
            run.wait()
            return lambda: run.save(**checkpoint)

        prepare = {"training": prepare_training, "thread": prepare_thread}
        seconds = interleave(prepare, config.repeats, device, "checkpoints")
        run.finish()
    training, thread = (1000 * statistics.median(seconds[name]) for name in prepare)
    ratios = [b / a for a, b in zip(seconds["training"], seconds["thread"], strict=True)]
    print(
        f"pause per checkpoint of {model.parameter_count():,} parameters, median of "
        f"{config.repeats}: written by the training {training:.0f} ms, by a thread {thread:.0f} ms "
        f"({statistics.median(ratios):.0%})"
    )


if __name__ == "__main__":
    cli.run(main)
