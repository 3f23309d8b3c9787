"""Trainer of sentence-transformers with this repository's clamping and error messages.

Importing this module imports sentence-transformers, so `retrieval.finetune` imports it only after
checking that it is installed.
"""

import math
from pathlib import Path

from runtime.files import writing

from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from transformers import TrainerCallback

from errors import InputError
from retrieval.sentence_encoder import clamp_parameters, raise_input_errors


class StepCallback(TrainerCallback):
    """Clamp the encoding's parameters after each step, log the last step, and check the loss.

    Raises InputError if a logged loss is NaN or Inf.
    """

    def __init__(self, model: SentenceTransformer):
        self.model = model

    def on_step_end(self, arguments, state, control, **_):
        clamp_parameters(self.model)
        if state.global_step == state.max_steps:
            control.should_log = True

    def on_log(self, arguments, state, control, logs, **_):
        if not math.isfinite(logs.get("loss", 0)):
            raise InputError(
                f"the loss is {logs['loss']} at step {state.global_step}: "
                "use a lower --lr and another --out_dir"
            )


class EncoderTrainer(SentenceTransformerTrainer):
    """Trainer that raises InputError if a checkpoint cannot be written, or is corrupt."""

    def _save_checkpoint(self, *arguments):
        assert self.args.output_dir is not None
        with writing(Path(self.args.output_dir)):
            super()._save_checkpoint(*arguments)

    def _load_from_checkpoint(self, folder: str):
        with raise_input_errors(folder, "remove it"):
            super()._load_from_checkpoint(folder)
