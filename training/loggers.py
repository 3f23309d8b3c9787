"""Loggers: a run's log in Weights & Biases or TensorBoard.

logger = LOGGERS["tensorboard"]()                # raises ImportError
logger.start(folder, run_id, config, step=-1)    # step: to resume from
logger.log({"train/loss": 2.5, "sample/text": "Once upon"}, step=10)
logger.finish()
"""

import html
import textwrap
from pathlib import Path

from errors import InputError, one_line


class WandbLogger:
    """Weights & Biases; WANDB_MODE=offline keeps its files in the run's folder.

    A resume from a checkpoint before the last logged step starts another run there.
    """

    replaces_steps = False  # a step that is logged again has two values

    def __init__(self):
        import wandb
        import wandb.errors

        self.wandb = wandb

    def start(self, folder: Path, run_id: str, config: dict, step: int) -> None:
        """Start or resume the run. Raises InputError, as without a login."""
        try:
            self.run = self.wandb.init(
                name="/".join(Path(folder).resolve().parts[-2:]),  # as in medium/cable
                id=run_id,
                dir=folder,
                config=config,
                allow_val_change=True,  # --resume may change settings
                resume="allow",
            )
        except self.wandb.errors.Error as error:
            remedy = "run `wandb login`, or set WANDB_MODE=offline"
            raise InputError(f"wandb: {one_line(error)}: {remedy}") from None
        self.run.define_metric("*", step_metric="step")

    def log(self, values: dict[str, float | str], step: int) -> None:
        shown: dict = {"step": step, **values}
        for name, value in values.items():
            if isinstance(value, str):
                shown[name] = self.wandb.Html(f"<pre>{html.escape(value)}</pre>")
        self.run.log(shown)

    def finish(self) -> None:
        self.run.finish()


class TensorBoardLogger:
    """TensorBoard: event files in the run's folder (tensorboard --logdir runs)."""

    replaces_steps = True

    def __init__(self):
        from torch.utils.tensorboard import SummaryWriter

        self.SummaryWriter = SummaryWriter

    def start(self, folder: Path, run_id: str, config: dict, step: int) -> None:
        """Open an event file that replaces events of the steps after `step`."""
        from torch.utils.tensorboard.summary import hparams

        self.writer = self.SummaryWriter(str(folder), purge_step=step + 1)
        values = {
            name: value if isinstance(value, int | float | str) else str(value)
            for name, value in config.items()
        }
        # SummaryWriter.add_hparams would put them into another folder.
        for summary in hparams(values, {"val/loss": None, "val/perplexity": None}):
            self.writer._get_file_writer().add_summary(summary)

    def log(self, values: dict[str, float | str], step: int) -> None:
        for name, value in values.items():
            if isinstance(value, str):
                self.writer.add_text(name, textwrap.indent(value, "    "), step)  # as code
            else:
                self.writer.add_scalar(name, value, step)
        self.writer.flush()  # otherwise every two minutes, and not at the end

    def finish(self) -> None:
        self.writer.close()


LOGGERS = {"wandb": WandbLogger, "tensorboard": TensorBoardLogger}
