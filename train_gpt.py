"""Train a GPT-2 or a Llama with any positional encoding: the whole recipe in one file.

    python prepare_text.py  # -> data/stdlib
    python train_gpt.py --config configs/quickstart.yaml --pe cable --out_dir runs/cable
    python train_gpt.py --config configs/fineweb-edu_bert.yaml  # train an encoder
    python train_gpt.py --config configs/fineweb-edu_medium.yaml --dry_run  # the cost
    torchrun --standalone --nproc_per_node=8 train_gpt.py \\
        --config configs/fineweb-edu_medium.yaml --pe cable --out_dir runs/cable

Settings: the defaults below < the YAML file of --config < flags.
training/run_folder.py describes the files of a run. The order of the
data and the size of a step do not depend on the world size. SIGTERM and
Ctrl-C save a checkpoint after the current step; --resume continues from
it, and with a larger --steps trains further. --list prints the
encodings.
"""

import contextlib
import dataclasses
import math
import time
import warnings
from pathlib import Path

from runtime import cli, devices, distributed, job_report

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import data_loader
from errors import InputError, refusing
from model import GPT
from training import metrics, settings
from training.checkpoints import load_checkpoint, load_weights, trained_steps
from training.optimizer import (
    make_grad_scaler,
    make_optimizer,
    optimizer_step,
    restore_optimizer,
)
from training.run_folder import Run
from training.settings import Config

SAMPLE_TOKENS = 100  # of --sample_every
SILENT_SECONDS = 5.0  # after which a line comes before the first one of log_every


def learning_rate(step: int, config: Config) -> float:
    """Return the learning rate: linear warmup to lr, decay to min_lr at `steps`.

    schedule "cosine" decays by a cosine; "wsd" stays constant, then decays linearly over the last
    `decay_fraction` of the steps.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    fall = config.lr - config.min_lr
    if config.schedule == "wsd":
        left = (config.steps - step) / max(1, config.decay_fraction * config.steps)
        return config.min_lr + fall * min(1.0, left)
    progress = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.min_lr + fall * (1 + math.cos(math.pi * progress)) / 2


def main(argv=None):
    with distributed.process_group() as processes:
        config = cli.parse(Config, argv, __doc__, inherit=settings.inherit)
        if config.list:
            print(settings.describe_encodings())
        elif config.dry_run:
            from benchmarking import cost

            print(cost.describe_cost(config))
        else:
            Trainer(config, processes).train()


class Trainer:
    """Training of one run, on one rank: the loop, its steps, the setup.

    All ranks execute all of it; only rank 0 prints (distributed.process_group).
    """

    def __init__(self, config: Config, processes: distributed.Processes):
        self.config, self.processes = config, processes
        self.rank, self.world_size = processes.rank, processes.world_size
        self.sequences_per_step = config.sequences_per_step(self.world_size)
        if config.deterministic:
            devices.enable_determinism()
        self.device, self.dtype = devices.select_device(
            config.device, config.dtype, processes.local_rank
        )
        self.autocast = devices.autocast(self.device, self.dtype)  # mixed precision
        self.train_windows, self.val_windows = (
            settings.make_windows(
                config, data_loader.Shards(config.data, split, config.verify_data)
            )
            for split in ("train", "val")
        )
        self.tokenizer = self.sampling = None
        tokenizer = self.train_windows.shards.tokenizer
        # NAME@HASH: a tokenizer of files, which the run's folder gets, too.
        if config.sample_every or "@" in tokenizer:
            from text_data.tokenizer import load_tokenizer

            self.tokenizer = load_tokenizer(tokenizer, config.data)
        if config.sample_every:
            from generation import sampling

            self.sampling = sampling
        self.run, checkpoint = self.open_run()
        self.init_steps, source = self.run.init_steps, checkpoint
        if config.init_from and not checkpoint:
            source = load_checkpoint(config.init_from, config.causal, check_plugins=False)
            self.init_steps = trained_steps(source)
        self.model = self.make_model(checkpoint, source)
        self.optimizer = make_optimizer(
            self.model,
            config.lr,
            (config.beta1, config.beta2),
            config.weight_decay,
            config.optimizer,
        )
        # Of each parameter group, relative to lr.
        groups = self.optimizer.param_groups
        self.rate_factors = [group["lr"] / (config.lr or 1) for group in groups]
        self.scaler = make_grad_scaler(self.device, self.dtype)
        self.step, self.sampler_state = self.restore(checkpoint)
        del checkpoint, source  # as large as model and optimizer
        if settings.checks_paths(config, self.device):
            from training import attention_path

            processes.run_on_all_ranks(
                lambda: attention_path.check_paths(self.model, config, self.device, self.dtype)
            )
        # The largest micro-batch up to the setting that divides a rank's share.
        per_rank = self.sequences_per_step // self.world_size
        sizes = range(1, min(per_rank, config.micro_batch) + 1)
        self.micro_batch = max(size for size in sizes if per_rank % size == 0)
        self.accumulation_steps = per_rank // self.micro_batch
        self.parallel_model, self.no_sync = self.compile_and_wrap()
        windows = self.train_windows
        self.metrics = metrics.StepMetrics(config, self.model, windows, self.dtype, processes)
        sampler = data_loader.Sampler(len(windows), config.seed, **self.sampler_state)
        batches = data_loader.micro_batches(
            windows,
            sampler,
            self.sequences_per_step,
            self.micro_batch,
            self.rank,
            self.world_size,
        )
        self.batches = data_loader.prefetch(batches, self.device)

    def train(self) -> None:
        """Train to the last step, or until a signal arrives."""
        config, run = self.config, self.run
        if run.step >= config.steps:  # of the checkpoint; -1 in a new run, which may have 0 steps
            done = f"already trained: {self.step} of {config.steps} steps"
            print(f"{self.model.describe(self.micro_batch)}\n{config.out_dir} is {done}")
            if self.rank == 0:
                job_report.append(repeated=True)
            return
        self.start()
        is_stopped = has_printed = False
        start, first_step = time.perf_counter(), self.step
        with (
            contextlib.closing(self.batches),
            distributed.signals() as received,
            tqdm(
                total=config.steps,
                initial=self.step,
                desc=config.pe,
                unit="step",
                disable=True if self.rank else None,  # None: without a terminal
                dynamic_ncols=True,
            ) as bar,
        ):
            if config.steps == 0:  # the weights of --init_from
                self.validate()
                self.save_checkpoint()
            while self.step < config.steps and not is_stopped:
                step_start = time.perf_counter()
                self.metrics.steps.append(self.train_step())
                is_stopped = self.processes.any(bool(received))
                is_last = self.step == config.steps
                is_due = self.step % config.checkpoint_every == 0
                should_save = is_stopped or is_last or is_due
                should_log = should_save or self.step % config.log_every == 0
                if should_log:  # waits for the device
                    losses = self.metrics.reduce_losses(self.step, run, self.scaler)
                self.metrics.seconds.append(time.perf_counter() - step_start)
                seconds = time.perf_counter() - start
                if should_log:
                    self.log_step(losses)
                    has_printed = True
                elif seconds > SILENT_SECONDS and not has_printed:
                    self.print_line(f"{self.step - first_step} steps in {seconds:.0f} s")
                    has_printed = True
                if is_stopped:  # the sender may not wait for a validation
                    self.save_checkpoint()
                if is_last or self.step % config.val_every == 0:
                    self.validate()
                if config.sample_every and self.step % config.sample_every == 0:
                    self.processes.run_on_all_ranks(self.sample)
                if should_save and not is_stopped:
                    self.save_checkpoint()
                bar.update()
        if is_stopped and not is_last:
            state = f"step {self.step} is saved"
            print(f"stopped by a signal: {state}, use --resume to continue")
            if self.world_size > 1:
                print("A traceback that follows is torchrun's, which ends by an exception.")
        if run.logger:
            run.logger.finish()
        if self.rank == 0:
            job_report.append(finished=self.step >= config.steps)

    # The steps of the loop

    def train_step(self) -> metrics.Step:
        """Take one optimizer step, with gradient accumulation over micro-batches."""
        rate = learning_rate(self.step, self.config)
        groups = self.optimizer.param_groups
        for group, factor in zip(groups, self.rate_factors, strict=True):
            group["lr"] = rate * factor
        losses, data_seconds = [], 0.0
        for micro_step in range(self.accumulation_steps):
            start = time.perf_counter()
            # sampler_state: after this step; the loader itself reads ahead.
            _, *batch, self.sampler_state = next(self.batches)
            data_seconds += time.perf_counter() - start
            is_last = micro_step == self.accumulation_steps - 1
            losses.append(self.forward_backward_step(batch, is_last))
        norm = optimizer_step(self.model, self.optimizer, self.scaler, self.config.grad_clip)
        self.step += 1
        return metrics.Step(losses, norm, data_seconds)

    def forward_backward_step(self, batch: list[Tensor], is_last: bool) -> Tensor:
        """Add a micro-batch's gradients to those of the step; return its loss ().

        batch: inputs and targets, (micro-batch, block_size) int64; of an encoder targets and masked
        positions are (micro-batch, masked tokens). In the last backward pass the ranks average
        gradients.
        """
        with contextlib.nullcontext() if is_last else self.no_sync():
            with self.autocast:
                loss = self.parallel_model(*batch)
            self.scaler.scale(loss / self.accumulation_steps).backward()
        return loss.detach()

    def log_step(self, losses: Tensor) -> None:
        """Print and log loss, throughput and memory since the last log line."""
        rate = learning_rate(self.step - 1, self.config)
        values = self.metrics.summarize(losses, rate)
        self.print_line(*metrics.step_columns(values, self.config.steps - self.step))
        self.processes.run_on_all_ranks(lambda: self.run.log("train", self.step, **values))

    def validate(self) -> None:
        """Print and log the validation loss."""
        windows = self.val_windows
        count = max(1, self.config.val_tokens // self.config.block_size)
        indices = data_loader.evenly_spaced(len(windows), count)
        own, own_count = data_loader.rank_share(indices, self.rank, self.world_size)
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        self.model.eval()
        # Shapes differ from those of training, and would compile again.
        with torch.compiler.set_stance("force_eager"):
            for start in range(0, len(own), self.micro_batch):
                batch = windows.batch(own[start : start + self.micro_batch])
                tensors = [x.to(self.device) for x in batch]
                rows = max(0, own_count - start)  # further ones are padding
                with self.autocast:
                    sums += metrics.validation_sums(self.model, windows, rows, *tensors)
        self.model.train()
        tokens = len(indices) * windows.targets_per_window
        sums = self.processes.sum(sums)
        values, columns = metrics.validation_values(sums, tokens, windows, self.step, self.run)
        self.print_line(*columns)
        self.processes.run_on_all_ranks(lambda: self.run.log("val", self.step, **values))
        if logger := self.run.logger:
            logger.log({"val/perplexity": metrics.perplexity(values["loss"])}, self.step)

    def sample(self) -> None:
        """Print and log a text of the model, from a document's start on."""
        if self.rank:
            return
        assert self.tokenizer and self.sampling  # with sample_every
        sampling = self.sampling
        end = self.tokenizer.eot
        config = sampling.SamplingConfig(max_new_tokens=SAMPLE_TOKENS)
        self.model.eval()
        with torch.compiler.set_stance("force_eager"):
            steps = list(
                sampling.generate(self.model, [[end]], config, end, self.device, self.dtype)
            )
        self.model.train()
        text = self.tokenizer.decode([tokens[0] for tokens in steps if tokens])
        self.run.log("sample", self.step, text=text)
        self.print_line(f"sample: {text!r}")  # in one line, without control characters

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
        for name, values in self.model.named_parameters():
            what = f"{name} after step {self.step}"
            metrics.check_finite(values, what, self.step, self.run)
        self.processes.run_on_all_ranks(lambda: self.run.save(**checkpoint))

    def print_line(self, *columns: str) -> None:
        steps = self.config.steps
        tqdm.write(" | ".join([f"step {self.step:>{len(str(steps))}}/{steps}", *columns]))

    # Setup: each function returns what __init__ stores

    def open_run(self) -> tuple[Run, dict | None]:
        """Return the run folder and the checkpoint to resume from, if any."""
        config, shards = self.config, self.train_windows.shards
        data = {"sha256": shards.sha256, "tokenizer": shards.tokenizer}
        logger = None
        if config.logger != "none":
            from training import loggers

            logger = loggers.LOGGERS[config.logger]()  # on all ranks, as it may be missing
        files = self.tokenizer.files if self.tokenizer else {}
        options = {"keep": config.keep_checkpoints, "files": files}
        options |= {"is_writer": self.rank == 0, "logger": None if self.rank else logger}
        run = Run(Path(config.out_dir), settings.recorded(config), data, **options)
        checkpoint = run.find_checkpoint(config)
        # Also waits until no rank looks into the folder, which may change from here on.
        first, *others = self.processes.gather((run.step, shards.sha256, config.plugin))
        if any(other != first for other in others):
            raise InputError(
                f"the checkpoint in {config.out_dir}, the shards in {config.data} or the files of "
                "--plugin differ between ranks: use folders that all machines share"
            )
        if config.resume and not checkpoint:
            logged = "a log, but " if (run.folder / "log.jsonl").exists() else ""
            print(f"{config.out_dir} contains {logged}no checkpoint yet: starting at step 0")
        return run, checkpoint

    def make_model(self, checkpoint: dict | None, source: dict | None) -> GPT:
        config, shards = self.config, self.train_windows.shards
        vocab_size = self.train_windows.padded_vocab_size
        if source and config.objective == "clm":  # as many as its weights; imports have no padding
            vocab_size = source["gpt"]["vocab_size"]
        shape = config.gpt_config(vocab_size)
        settings.check_memory(shape, self.device)
        torch.manual_seed(config.seed)
        model = GPT(shape)
        model.set_vocabulary(shards.vocab_size)
        model.activation_checkpointing = config.activation_checkpointing
        if checkpoint:
            load_weights(model, checkpoint["model"], config.out_dir)
        elif config.init_from and source:
            from training.initialization import initialize_from

            initialize_from(model, config.init_from, source, shards.tokenizer)
        purpose = {"training": True, "deterministic": config.deterministic}
        model.choose_paths(self.device, self.dtype, **purpose)
        model.to(self.device)
        torch.manual_seed(config.seed + self.rank)  # for shape and cape, which draw positions
        return model

    def restore(self, checkpoint: dict | None) -> tuple[int, dict]:
        """Restore optimizer and random states; return step and data position."""
        if not checkpoint:
            return 0, {"epoch": 0, "index": 0}
        what = "--resume: the optimizer or random state does not fit this network"
        remedy = "use an earlier checkpoint, or start a new run with --init_from"
        kinds = AttributeError, KeyError, RuntimeError, TypeError, ValueError
        with refusing(what, remedy, kinds):
            restore_optimizer(self.optimizer, self.scaler, checkpoint)
            if self.rank < len(checkpoint["rng"]):
                devices.set_random_state(checkpoint["rng"][self.rank], self.device)
        return checkpoint["step"], checkpoint["sampler"]

    def compile_and_wrap(self) -> tuple:
        """Return the model that averages gradients, and the context without that."""
        compiles = self.config.compile
        if self.device.type == "cuda" if compiles is None else compiles:
            self.model.compile()
        self.model.train()
        if self.world_size == 1:
            return self.model, contextlib.nullcontext
        with warnings.catch_warnings():
            # broadcast_buffers has another name since PyTorch 2.13.
            warnings.simplefilter("ignore", FutureWarning)
            parallel_model = DistributedDataParallel(
                self.model, gradient_as_bucket_view=True, broadcast_buffers=False
            )
        return parallel_model, parallel_model.no_sync

    def start(self) -> None:
        """Lock the run folder and print what is trained."""
        config = self.config
        epochs = settings.describe_epochs(config, self.train_windows.shards.total)
        print(self.model.describe(self.micro_batch), *epochs, sep="\n")
        steps = f"{config.steps:,} steps of {config.tokens_per_step:,} tokens"
        parts = f"{self.accumulation_steps} micro-batches x {self.micro_batch} sequences"
        print(f"{steps} = world size {self.world_size} x {parts}, from step {self.step}")
        print(f"folder of the run: {config.out_dir}")
        facts = {"init_steps": self.init_steps, "processes": self.world_size}
        facts["parameters"] = self.model.parameter_count()
        self.processes.run_on_all_ranks(lambda: self.run.start(self.device, **facts))


if __name__ == "__main__":
    cli.run(main)
