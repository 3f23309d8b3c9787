"""Loggers: send the values of a run's log to Weights & Biases or TensorBoard.

    logger = make_logger("tensorboard")
    logger.start(folder, run_id, config, step=-1)    # step: of the checkpoint to resume from
    logger.log({"train/loss": 2.5}, step=10)
    logger.log_text("sample", "Once upon", step=10)
    logger.finish()

A run keeps its own log in any case (runtime/run_folder.py).
"""

import html
from pathlib import Path

from errors import InputError


def make_logger(name: str, wandb_project: str | None = None):
    """Return the logger wandb or tensorboard. Raises InputError if its package is missing.

    Writes nothing.
    """
    return WandbLogger(wandb_project) if name == "wandb" else TensorBoardLogger()


class WandbLogger:
    """Weights & Biases; with WANDB_MODE=offline the files stay in the run's folder, wandb/.

    project: None uses the environment variable WANDB_PROJECT. A resumed run continues under its id.
    """

    def __init__(self, project: str | None):
        try:
            import wandb
            import wandb.errors
        except ImportError as error:
            raise InputError(
                f"Weights & Biases needs wandb ({error}): pip install wandb, or use --logger none"
            ) from None
        self.wandb = wandb
        self.project = project

    def start(self, folder: Path, run_id: str, config: dict, step: int) -> None:
        """Start or resume the run. Raises InputError if that fails, as without a login."""
        try:
            self.run = self.wandb.init(
                project=self.project,
                name="/".join(Path(folder).resolve().parts[-2:]),  # as in medium/cable
                id=run_id,
                dir=folder,
                config=config,
                allow_val_change=True,  # --resume may change settings
                resume="allow",
            )
        except self.wandb.errors.Error as error:
            raise InputError(
                f"wandb: {' '.join(str(error).split())}: run `wandb login`, or set "
                "WANDB_MODE=offline"
            ) from None
        self.run.define_metric("*", step_metric="step")

    def log(self, values: dict[str, float], step: int) -> None:
        self.run.log({"step": step, **values})

    def log_text(self, name: str, text: str, step: int) -> None:
        self.run.log({"step": step, name: self.wandb.Html(f"<pre>{html.escape(text)}</pre>")})

    def finish(self) -> None:
        self.run.finish()


class TensorBoardLogger:
    """TensorBoard: event files in the run's folder, for `tensorboard --logdir runs`."""

    def __init__(self):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError(
                f"--logger tensorboard needs tensorboard ({error}): pip install tensorboard"
            ) from None
        self.SummaryWriter = SummaryWriter

    def start(self, folder: Path, run_id: str, config: dict, step: int) -> None:
        """Open an event file that replaces older events of the steps after `step`."""
        from torch.utils.tensorboard.summary import hparams

        self.writer = self.SummaryWriter(str(folder), purge_step=step + 1)
        values = {
            name: value if isinstance(value, int | float | str) else str(value)
            for name, value in config.items()
        }
        # SummaryWriter.add_hparams would put them into another folder.
        for summary in hparams(values, {"val/loss": None, "val/perplexity": None}):
            self.writer._get_file_writer().add_summary(summary)

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # the default is every two minutes, and not when the process ends

    def log_text(self, name: str, text: str, step: int) -> None:
        code = text.replace("\n", "\n    ")  # in Markdown
        self.writer.add_text(name, f"    {code}", step)

    def finish(self) -> None:
        self.writer.close()
