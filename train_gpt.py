"""Train a GPT-2 with any positional encoding: the whole recipe in one file.

    python prepare_text.py                                                    # -> data/stdlib
    python train_gpt.py --config configs/quickstart.yaml --pe cable --out_dir runs/cable
    python train_gpt.py --config configs/quickstart.yaml --pe cable --out_dir runs/cable --resume
    python train_gpt.py --config configs/fineweb-edu_medium.yaml --dry_run    # print the cost
    python train_gpt.py --config configs/fineweb-edu_bert.yaml --pe cable     # train an encoder
    torchrun --standalone --nproc_per_node=8 train_gpt.py \\
        --config configs/fineweb-edu_medium.yaml --pe cable --out_dir runs/cable

Settings: the defaults below < the YAML file of --config < flags. runtime/run_folder.py describes
the files of a run. The order of the data and the size of a step do not depend on the world size.
SIGTERM and Ctrl-C save a checkpoint after the current step; --resume continues from it, and with a
larger --steps trains further. --list prints the encodings.
"""

import contextlib
import dataclasses
import math
import time

from runtime import cli, devices, distributed
from runtime.checkpoints import load_checkpoint, trained_steps
from runtime.loading import load_weights
from runtime.run_folder import Run

import numpy as np
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from evaluation import bias_statistics
from model import GPT
from reporting import bias_plots
from text_data import data_loader
from text_data.shards import Shards
from training import attention_path, cost, loggers, metrics, settings
from training.initialization import initialize_from
from training.optimizer import make_grad_scaler, make_optimizer, optimizer_step, restore_optimizer
from training.settings import Config


def learning_rate(step: int, config: Config) -> float:
    """Return the learning rate: linear warmup to lr, then cosine decay to min_lr at `steps`."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * progress)) / 2


def main(argv=None):
    with distributed.process_group() as processes:
        config = cli.parse(Config, argv, __doc__, inherit=settings.inherit)
        if config.list:
            print(settings.describe_encodings())
        elif config.dry_run:
            print(cost.describe_cost(config))
        else:
            Trainer(config, processes).train()


class Trainer:
    """Training of one run, on one rank: `train` is the loop; its steps and the setup follow."""

    def __init__(self, config: Config, processes: distributed.Processes):
        self.config = config
        self.processes = processes
        self.rank, self.world_size = processes.rank, processes.world_size
        self.sequences_per_step = config.sequences_per_step(self.world_size)
        if config.deterministic:
            devices.enable_determinism()
        local_rank = processes.local_rank if self.world_size > 1 else None
        self.device, self.dtype = devices.select_device(config.device, config.dtype, local_rank)
        settings.check_device(config, self.device)
        self.load_data()
        checkpoint = self.find_checkpoint()
        self.make_model(checkpoint)
        self.make_optimizer(checkpoint)
        # The checkpoint, as large as model and optimizer, is freed here.

    def train(self) -> None:
        """Train to the last step, or until a signal arrives."""
        config, run = self.config, self.run
        if run.step == config.steps:
            run.rename_corrupt_checkpoints()
            state = f"{config.out_dir} is already trained: {self.step} of {config.steps} steps"
            print(self.model.describe(), state, sep="\n")
            return
        self.start()
        is_stopped = False
        with (
            contextlib.closing(self.batches),
            distributed.Signals() as signals,
            run.thread,
            tqdm(
                total=config.steps,
                initial=self.step,
                desc=config.pe,
                unit="step",
                disable=True if self.rank else None,  # None: unless standard error is a terminal
                dynamic_ncols=True,
            ) as bar,
        ):
            # A signal may have prevented the validation at the step to resume from.
            is_due = self.step > 0 and self.step % config.val_every == 0
            if config.steps == 0 or (is_due and self.processes.any(not run.is_validated)):
                self.validate()
            if config.steps == 0:  # the weights of --init_from
                self.save_checkpoint()
            while self.step < config.steps and not is_stopped:
                step_start = time.perf_counter()
                self.train_step()
                is_stopped = self.processes.any(signals.received or run.has_failed())
                is_last = self.step == config.steps
                should_save = is_stopped or is_last or self.step % config.checkpoint_every == 0
                should_log = should_save or self.step % config.log_every == 0
                if should_log:  # waits for the device
                    losses = self.metrics.reduce_losses(self.step, run, self.scaler)
                self.metrics.add_time(time.perf_counter() - step_start)
                if should_log:
                    self.log_step(losses)
                if is_last or (not is_stopped and self.step % config.val_every == 0):
                    self.validate()
                if should_save:
                    self.save_checkpoint()
                bar.update()
            self.processes.run_on_all_ranks(run.wait)
        if is_stopped and not is_last:
            print(f"stopped by a signal: step {self.step} is saved, use --resume to continue")
        run.finish()

    # The steps of the loop

    def train_step(self) -> None:
        """Take one optimizer step: gradient accumulation over micro-batches, then AdamW."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.config)
        for micro_step in range(self.accumulation_steps):
            # sampler_state: after this step; the loader itself reads ahead.
            window_indices, *batch, self.sampler_state = next(self.batches)
            loss = self.forward_backward_step(batch, micro_step == self.accumulation_steps - 1)
            self.metrics.add_micro_batch(loss, window_indices)
        norm = optimizer_step(self.model, self.optimizer, self.scaler, self.config.grad_clip)
        self.metrics.add_step(norm)
        self.step += 1

    def forward_backward_step(self, batch: list[Tensor], is_last_micro_batch: bool) -> Tensor:
        """Add the gradients of one micro-batch to those of the step; return its mean loss, ().

        batch: inputs and targets, (micro-batch, block_size) int64; an encoder's masked positions.
        is_last_micro_batch: of the step; in its backward pass the ranks average their gradients.
        """
        with contextlib.nullcontext() if is_last_micro_batch else self.no_sync():
            with devices.autocast(self.device, self.dtype):  # mixed precision
                loss = self.parallel_model(*batch)
            self.scaler.scale(loss / self.accumulation_steps).backward()
        return loss.detach()

    def log_step(self, losses: Tensor) -> None:
        """Print and log mean loss and throughput since the last log line, and peak memory."""
        values = self.metrics.summarize(losses, lr=self.optimizer.param_groups[0]["lr"])
        self.print_line(*metrics.step_columns(values, self.config.steps - self.step))
        self.processes.run_on_all_ranks(lambda: self.run.log("train", self.step, **values))

    def validate(self) -> None:
        """Print and log the validation loss, and statistics of the bias on the first batch."""
        self.model.eval()
        picture, summary = None, {}
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        indices = np.array_split(self.val_indices, self.world_size)[self.rank]
        # Shapes differ from those of training, and would compile again.
        with torch.compiler.set_stance("force_eager"):
            for start in range(0, len(indices), self.micro_batch):
                batch = self.val_windows.batch(indices[start : start + self.micro_batch])
                inputs, *targets = [x.to(self.device) for x in batch]
                with devices.autocast(self.device, self.dtype):
                    sums += metrics.validation_sums(self.model, self.val_windows, inputs, *targets)
                    summary = summary or bias_statistics.summary(self.model, inputs)
            if self.run.logger:
                picture = loggers.draw(self.run.logger, bias_plots.picture, self.model, inputs[:1])
        self.model.train()
        tokens = len(self.val_indices) * self.val_windows.targets_per_window
        values = metrics.validation_values(
            self.processes.sum(sums), tokens, self.val_windows, self.step, self.run
        )
        self.print_line(*metrics.validation_columns(values), *metrics.bias_columns(summary))
        values |= summary
        self.processes.run_on_all_ranks(lambda: self.run.log("val", self.step, **values))
        if self.run.logger and picture is not None:
            self.run.logger.log_image("biases", picture, self.step)

    def save_checkpoint(self) -> None:
        checkpoint = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "sampler": self.sampler_state,
            "rng": self.processes.gather(devices.random_state(self.device)),
            "gpt": dataclasses.asdict(self.model.config),
        }
        metrics.check_parameters(self.model, self.step, self.run)
        self.processes.run_on_all_ranks(lambda: self.run.save(**checkpoint))

    def print_line(self, *columns: str) -> None:
        steps = self.config.steps
        tqdm.write(" | ".join([f"step {self.step:>{len(str(steps))}}/{steps}", *columns]))

    # Setup, in this order

    def load_data(self) -> None:
        config = self.config
        train = Shards(config.data, "train", config.verify_data, run=config.out_dir)
        self.train_windows = settings.make_windows(config, train)
        val = Shards(config.data, "val", config.verify_data)
        self.val_windows = settings.make_windows(config, val)
        count = max(1, config.val_tokens // config.block_size)
        self.val_indices = data_loader.evenly_spaced(len(self.val_windows), count)

    def find_checkpoint(self) -> dict | None:
        """Open the run folder and return the checkpoint to resume from, if there is one."""
        config, shards = self.config, self.train_windows.shards
        data = {"sha256": shards.sha256, "tokenizer": shards.tokenizer}
        logger = loggers.make_logger(config.logger, config.wandb_project)
        values, keep = settings.recorded(config), config.keep_checkpoints
        self.run = Run(config.out_dir, values, data, keep, logger, is_writer=self.rank == 0)
        self.run.files = shards.tokenizer_files
        checkpoint = self.run.find_checkpoint(config.resume, settings.overridden(config))
        self.processes.check_equal(
            (self.run.step, shards.sha256, config.plugin),
            f"the checkpoint in {config.out_dir}, the shards in {config.data} or the files of "
            "--plugin differ between ranks: use folders that all machines share",
        )
        if config.resume and not checkpoint:
            print(f"{config.out_dir} contains no checkpoint yet: starting at step 0")
        return checkpoint

    def make_model(self, checkpoint: dict | None) -> None:
        config, shards = self.config, self.train_windows.shards
        source = checkpoint
        if config.init_from and not checkpoint:
            source = load_checkpoint(config.init_from, check_plugins=False)
            self.run.init_steps = trained_steps(source)
        vocab_size = self.train_windows.padded_vocab_size
        if source and config.objective == "clm":  # an imported GPT-2 has no padding
            vocab_size = source["gpt"]["vocab_size"]
        shape = config.gpt_config(vocab_size)
        cost.check_memory(shape, self.device)
        torch.manual_seed(config.seed)
        self.model = GPT(shape)
        self.model.activation_checkpointing = config.activation_checkpointing
        if checkpoint:
            load_weights(self.model, checkpoint["model"], config.out_dir)
        elif config.init_from and source:
            initialize_from(self.model, config.init_from, source, shards.tokenizer)
        recorded = checkpoint["gpt"]["attention"] if checkpoint else "auto"
        attention_path.choose_path(self.model, config, self.device, recorded)
        self.model.to(self.device)
        torch.manual_seed(config.seed + self.rank)  # from here on, each rank draws its own numbers

    def make_optimizer(self, checkpoint: dict | None) -> None:
        """Make the optimizer; restore it, the random states and the data position to resume."""
        config = self.config
        betas = (config.beta1, config.beta2)
        self.optimizer = make_optimizer(self.model, config.lr, betas, config.weight_decay)
        self.scaler = make_grad_scaler(self.device, self.dtype)
        self.step = 0
        self.sampler_state = {"epoch": 0, "index": 0}
        if checkpoint:
            self.step = checkpoint["step"]
            self.sampler_state = checkpoint["sampler"]
            restore_optimizer(self.optimizer, self.scaler, checkpoint)
            if self.rank < len(checkpoint["rng"]):
                devices.set_random_state(checkpoint["rng"][self.rank], self.device)

    def start(self) -> None:
        """Lock the run folder and prepare the first step."""
        self.processes.barrier()  # no rank looks into the folder any more: it may change now
        config, windows = self.config, self.train_windows
        self.processes.run_on_all_ranks(
            lambda: attention_path.check_paths(self.model, config, self.device, self.dtype)
        )
        self.choose_micro_batch()
        steps = metrics.describe_steps(config, windows, self.world_size, self.micro_batch)
        lines = [self.model.describe(), f"{steps}, from step {self.step}"]
        print(*lines, *self.run.describe_changes(), sep="\n")
        settings.print_notes(config)
        facts = {"processes": self.world_size, "parameters": self.model.parameter_count()}
        self.processes.run_on_all_ranks(lambda: self.run.start(self.device, **facts))
        self.compile_and_wrap()
        self.metrics = metrics.StepMetrics(
            config, self.model, windows, self.accumulation_steps, self.dtype, self.processes
        )
        self.start_data_loader()

    def choose_micro_batch(self) -> None:
        """Choose the micro-batch, a divisor of the sequences per rank."""
        per_rank, limit = self.sequences_per_step // self.world_size, self.config.micro_batch
        if limit == "auto":
            where = self.device, self.dtype, self.processes
            self.micro_batch = devices.find_micro_batch(self.model, per_rank, *where)
            self.run.config["micro_batch"] = self.micro_batch
        else:
            self.micro_batch = devices.largest_divisor(per_rank, limit)
        self.accumulation_steps = per_rank // self.micro_batch

    def compile_and_wrap(self) -> None:
        if devices.uses_compile(self.config.compile, self.device):
            self.model.compile()
        self.parallel_model = self.model
        self.no_sync = contextlib.nullcontext
        if self.world_size > 1:
            self.parallel_model = DistributedDataParallel(
                self.model, gradient_as_bucket_view=True, broadcast_buffers=False
            )
            self.no_sync = self.parallel_model.no_sync
        self.model.train()

    def start_data_loader(self) -> None:
        windows = self.train_windows
        sampler = data_loader.Sampler(len(windows), self.config.seed, **self.sampler_state)
        sizes = (self.sequences_per_step, self.micro_batch, self.rank, self.world_size)
        batches = data_loader.micro_batches(windows, sampler, *sizes)
        self.batches = self.metrics.time_waiting(data_loader.prefetch(batches, self.device))


if __name__ == "__main__":
    cli.run(main)
