"""Trains a GPT-2 with any positional encoding: the recipe, readable top to bottom.

    python prepare_text.py                                                              # -> data/stdlib
    python train_gpt.py --config configs/quickstart.yaml --pe cable --out_dir runs/cable
    python train_gpt.py --config configs/quickstart.yaml --pe cable --out_dir runs/cable --resume
    python train_gpt.py --config configs/fineweb-edu_medium.yaml --dry_run              # what would it cost?
    python train_gpt.py --config configs/fineweb-edu_bert.yaml --pe cable               # an encoder, by masked language modeling
    torchrun --standalone --nproc_per_node=8 train_gpt.py --config configs/fineweb-edu_medium.yaml --pe cable --out_dir runs/cable

Settings: the defaults below < the YAML file of --config < flags. The run's folder is described in runs.py. The order of the
data and the size of a step do not depend on the number of processes. SIGTERM and Ctrl-C: a checkpoint after the step, and the end.
"""

import contextlib
import dataclasses
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from attention import SKIP_TOLERANCE
from errors import InputError
from evaluation import bias_statistics
from evaluation.records import perplexity
from model import GPT, GPTConfig
from runtime import cli, devices, distributed
from runtime.checkpoints import load_checkpoint
from runtime.loading import initialize_from, load_weights
from runtime.optimizer import make_grad_scaler, make_optimizer, optimizer_step
from runtime.run_folder import Run
from text_data.data_loader import (
    MaskedWindows,
    Sampler,
    Windows,
    evenly_spaced,
    masked_count,
    micro_batches,
    prefetch,
)
from text_data.shards import Shards


@dataclass
class Config:
    """Settings of a training run."""

    # data and output
    data: str = "data/stdlib"
    """folder of the shards"""
    verify_data: Literal["auto", "always", "never"] = "auto"
    """check the shards' SHA-256 before the first step; auto: where they have at most 1e9 bytes together"""
    out_dir: str = "runs/gpt"
    """folder of the run"""
    resume: bool = False
    """go on with the run in out_dir, if it holds one"""
    init_from: str | None = None
    """run whose weights to begin with, at another training length, on other data or under a variant of its encoding"""
    dry_run: bool = False
    """print what the training would cost, and do nothing"""
    # model
    size: str = "small"
    """quickstart, tiny, small, medium, large or xl"""
    n_layer: int | None = None
    """layers, where they are not those of the size"""
    n_head: int | None = None
    """heads, likewise"""
    n_embd: int | None = None
    """width, likewise"""
    pe: str = "cable"
    """positional encoding (posenc.py), options after a colon, several joined by +: cable, fire:width=16, rope+cable"""
    block_size: int = 1024
    """training length in tokens"""
    attn_scale: float | None = None
    """factor of q k^T; null: 1 / sqrt(head size)"""
    attention: Literal["auto", "sdpa", "dense", "triton"] = "auto"
    """how attention is computed (attention.py)"""
    skip_tolerance: float = SKIP_TOLERANCE
    """the share of a query's weight that --attention triton may leave out with far keys; 0: nothing"""
    # optimisation
    objective: Literal["clm", "mlm"] = "clm"
    """clm: the next token, from those before; mlm: masked tokens, from those on both sides, which makes an encoder"""
    mask_rate: float = 0.15
    """mlm: the share of tokens to restore"""
    steps: int = 19_000
    """optimizer steps in all; 0, with --init_from: the weights as they are, under another encoding"""
    tokens_per_step: int = 524_288
    """tokens of one optimizer step: a multiple of block_size x processes"""
    micro_batch: int | Literal["auto"] = 16
    """sequences of one forward and backward pass in each process, at most; auto: the most that fit into the GPU uncompiled"""
    lr: float = 6e-4
    """highest learning rate"""
    min_lr: float = 6e-5
    """learning rate at the end"""
    warmup_steps: int = 750
    """steps over which the learning rate rises linearly; a half cosine follows"""
    beta1: float = 0.9
    """AdamW's first decay rate"""
    beta2: float = 0.95
    """AdamW's second decay rate"""
    weight_decay: float = 0.1
    """of the weights of Linear and Embedding"""
    grad_clip: float = 1.0
    """largest gradient norm; 0: any"""
    seed: int = 1
    """of the weights and of the order of the data"""
    # watching
    log_every: int = 10
    """steps between log lines"""
    val_every: int = 250
    """steps between validations"""
    val_tokens: int = 1_048_576
    """tokens of one validation, at block_size"""
    checkpoint_every: int = 1000
    """steps between checkpoints"""
    keep_checkpoints: int = 2
    """how many of them are kept, the newest"""
    wandb_project: str | None = None
    """log to this project of Weights & Biases too; WANDB_MODE=offline keeps the log in out_dir"""
    # hardware
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it, float16 on GPUs without, float32 on CPUs without"""
    compile: bool | None = None
    """torch.compile; null: on GPUs"""
    activation_checkpointing: bool = False
    """compute each layer again in backward instead of keeping it: less memory, about a third more time"""
    deterministic: bool = False
    """the same bits in every run on a GPU, for some loss of speed; CPUs give them anyway"""

    def __post_init__(self):
        problems = cli.check_minimums(
            self,
            steps=0 if self.init_from else 1,
            block_size=1,
            tokens_per_step=1,
            micro_batch=1,
            warmup_steps=0,
            log_every=1,
            val_every=1,
            val_tokens=1,
            checkpoint_every=1,
            keep_checkpoints=1,
            seed=0,
            lr=0,
            min_lr=0,
            weight_decay=0,
            grad_clip=0,
        )
        problems += [f"min_lr {self.min_lr:g} is more than lr {self.lr:g}: lower --min_lr, too"] * (
            self.min_lr > self.lr >= 0
        )
        problems += [
            f"{name} is {getattr(self, name)}: it must be at least 0 and below 1"
            for name in ("beta1", "beta2")
            if not 0 <= getattr(self, name) < 1
        ]
        problems += [f"seed is {self.seed}: it must be below 2^63"] * (self.seed >= 2**63)
        problems += [f"mask_rate is {self.mask_rate}: it must be above 0 and below 1"] * (
            not 0 < self.mask_rate < 1
        )
        try:
            self.gpt_config(vocab_size=64)
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(*problems)

    @property
    def causal(self) -> bool:
        return self.objective == "clm"

    def windows(self, shards: Shards) -> Windows:
        return (
            Windows(shards, self.block_size)
            if self.causal
            else MaskedWindows(shards, self.block_size, self.mask_rate)
        )

    def gpt_config(self, vocab_size: int) -> GPTConfig:
        names = {field.name for field in dataclasses.fields(GPTConfig)} - {"vocab_size"}
        return GPTConfig(**{name: getattr(self, name) for name in names}, vocab_size=vocab_size)

    def sequences(self, processes: int) -> int:
        """Windows of one optimizer step. Raises InputError where they cannot be shared out equally."""
        unit = self.block_size * processes
        if self.tokens_per_step % unit:
            raise InputError(
                f"tokens_per_step {self.tokens_per_step} is no multiple of block_size {self.block_size} x "
                f"processes {processes} = {unit}: change one of them"
            )
        return self.tokens_per_step // self.block_size


def learning_rate(step: int, config: Config) -> float:
    """Linear warm-up to lr, then half a cosine down to min_lr, which the step after the last would have."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * done)) / 2


def plan(config: Config, mfu: float = 0.4) -> str:
    """What the training costs, worked out without a GPU, and without the data where they are not there yet."""
    train = (
        config.windows(Shards(config.data, "train", "never"))
        if Path(config.data).is_dir()
        else None
    )
    with torch.device("meta"):
        model = GPT(
            config.gpt_config(train.shards.padded_vocab_size if train else GPTConfig.vocab_size)
        )
    tokens, parameters, sequences = (
        config.steps * config.tokens_per_step,
        model.parameter_count(),
        config.sequences(1),
    )
    predicted = (
        config.block_size if config.causal else masked_count(config.block_size, config.mask_rate)
    )
    per_token = model.flops_per_token(config.block_size, predicted)
    epochs = (
        f"{sequences * config.steps / len(train):.2f} epochs of {train.shards.total:,}"
        if train
        else f"{config.data} is not there yet, a vocabulary of {model.config.vocab_size} is assumed"
    )
    hours = {
        name: per_token * tokens / (mfu * 1e12 * devices.PEAK_TFLOPS[name]) / 3600
        for name in ("H100", "A100", "RTX 4090")
    }
    return "\n".join(
        [
            model.describe(),
            f"{config.steps:,} steps of {config.tokens_per_step:,} tokens = {tokens:,} tokens ({epochs})",
            f"{per_token * tokens:.3g} FLOPs: {per_token:.3g} a token = 6 N + 12 L C T, N = {parameters:,}"
            + f", of the logits for {predicted / config.block_size:.1%} of the tokens"
            * (not config.causal),
            f"hours at {mfu:.0%} MFU: "
            + ", ".join(
                f"{n} {name} {value / n:.2f}" for name, value in hours.items() for n in (1, 8)
            ),
            f"disk: {12 * parameters / 1e9:.2f} GB a checkpoint, {1 + config.keep_checkpoints} of them while one is written",
        ]
    )


def fitting_micro_batch(
    model: GPT, share: int, device: torch.device, dtype: torch.dtype, processes
) -> int:
    """The largest divisor of a process's `share` of sequences that fits into the memory of every process's GPU."""

    def attempt(sequences):
        model.zero_grad()
        tokens = torch.zeros(sequences, model.config.block_size, dtype=torch.int64, device=device)
        reserved = torch.empty(
            2 * model.parameter_count(), device=device
        )  # AdamW's moments, which come later
        with devices.autocast(device, dtype):
            loss = model(tokens, tokens)
        loss.backward()
        del reserved

    found = devices.largest_that_fits(attempt, [n for n in range(1, share + 1) if share % n == 0])
    model.zero_grad()
    found = min(processes.gather(found or 0))
    if not found:
        raise InputError(
            f"not one sequence of {model.config.block_size} tokens fits into the GPU: choose a smaller size or block_size, "
            "or --activation_checkpointing"
        )
    return found


def blame(losses: torch.Tensor, taken: list, windows: Windows, processes) -> str:
    """The micro-batches, of any process, whose losses are no finite numbers; taken: the window numbers of this process's."""
    mine = [
        int(number)
        for numbers, loss in zip(taken, losses)
        if not loss.isfinite()
        for number in numbers
    ]
    found = [
        f"{windows.shards.paths[shard].name} at token {token}"
        for shard, token in map(windows.locate, sum(processes.gather(mine), []))
    ]
    return (
        f", in the micro-batch with {', '.join(found[:8])}{' ...' * (len(found) > 8)}"
        if found
        else ""
    )


def main(argv=None):
    with distributed.process_group() as processes:
        config = cli.parse(Config, argv, __doc__)
        if config.dry_run:
            print(plan(config))
        else:
            train(config, processes)


def train(config: Config, processes: distributed.Processes) -> None:
    sequences = config.sequences(processes.world_size)
    if config.deterministic:
        devices.deterministic()
    device, dtype = devices.select_device(
        config.device, config.dtype, processes.local_rank if processes.world_size > 1 else None
    )
    if config.micro_batch == "auto" and device.type != "cuda":
        raise InputError("micro_batch auto measures the memory of a GPU: give a number")

    # Data
    train_shards, val_shards = (
        Shards(config.data, split, config.verify_data) for split in ("train", "val")
    )
    train, val = config.windows(train_shards), config.windows(val_shards)
    val_windows = evenly_spaced(len(val), max(1, config.val_tokens // config.block_size))

    # Run: a new one, or the one to go on with
    settings = {
        name: value
        for name, value in dataclasses.asdict(config).items()
        if name not in ("resume", "dry_run")
    }
    data = {"sha256": train_shards.sha256, "tokenizer": train_shards.tokenizer}
    run = Run(
        config.out_dir,
        settings,
        data,
        config.keep_checkpoints,
        config.wandb_project,
        is_writer=processes.rank == 0,
    )
    checkpoint = run.find_checkpoint(
        config.resume, {field.name: field.default for field in dataclasses.fields(Config)}
    )
    if any(
        found != (run.step, train_shards.sha256)
        for found in processes.gather((run.step, train_shards.sha256))
    ):
        raise InputError(
            f"not all processes find the same checkpoint in {config.out_dir} and the same shards in {config.data}: "
            "choose folders in which all machines see the same files"
        )

    # Model
    torch.manual_seed(config.seed)
    source = (
        checkpoint or config.init_from and load_checkpoint(config.init_from)
    )  # whose vocabulary may be padded otherwise, as GPT-2's
    gpt_config = config.gpt_config(
        source["gpt"]["vocab_size"] if source and config.causal else train_shards.padded_vocab_size
    )
    model = GPT(gpt_config)
    model.activation_checkpointing = config.activation_checkpointing
    if checkpoint:
        load_weights(model, checkpoint["model"], config.out_dir)
    elif config.init_from:
        initialize_from(model, config.init_from, source, train_shards.tokenizer)
    del source
    model.to(device)
    torch.manual_seed(
        config.seed + processes.rank
    )  # from here on each process draws numbers of its own
    betas = (config.beta1, config.beta2)
    optimizer = make_optimizer(model, config.lr, betas, config.weight_decay)
    scaler = make_grad_scaler(device, dtype)
    print(model.describe())
    if config.warmup_steps > config.steps > 0:
        print(
            f"note: the learning rate rises to the end and never reaches lr: warmup_steps {config.warmup_steps}, steps {config.steps}"
        )
    step, position = 0, {"epoch": 0, "index": 0}
    if checkpoint:
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(
            checkpoint["scaler"] or scaler.state_dict()
        )  # none of a run in another dtype
        if processes.rank < len(checkpoint["rng"]):
            devices.set_random_state(checkpoint["rng"][processes.rank], device)
        step, position = checkpoint["step"], checkpoint["sampler"]
        del checkpoint  # as large as the model and its optimizer
    elif config.resume:
        print(f"{config.out_dir} holds no checkpoint yet: starting at step 0")
    if run.step == config.steps:
        print(f"{config.out_dir} is trained already: {step} of {config.steps} steps")
        return
    processes.barrier()  # all have looked at the folder: now it may change
    share = sequences // processes.world_size
    if config.micro_batch == "auto":
        micro_batch = run.config["micro_batch"] = fitting_micro_batch(
            model, share, device, dtype, processes
        )
    else:
        micro_batch = max(n for n in range(1, config.micro_batch + 1) if share % n == 0)
    accumulation = share // micro_batch
    print(
        f"{sequences * config.steps / len(train):.2f} epochs of {train_shards.total:,} tokens in {config.steps:,} steps of "
        f"{config.tokens_per_step:,} tokens = {processes.world_size} processes x {accumulation} x {micro_batch} sequences, from step {step}"
    )
    processes.run_on_all_ranks(
        lambda: run.start(
            device,
            processes=processes.world_size,
            parameters=model.parameter_count(),
            data=train_shards.sha256,
        )
    )
    if config.compile or config.compile is None and device.type == "cuda":
        model.compile()
    forward = (
        DistributedDataParallel(model, gradient_as_bucket_view=True)
        if processes.world_size > 1
        else model
    )

    def save():
        run.save(
            model=model.state_dict(),
            optimizer=optimizer.state_dict(),
            scaler=scaler.state_dict(),
            step=step,
            sampler=position,
            rng=processes.gather(devices.random_state(device)),
            gpt=dataclasses.asdict(gpt_config),
        )

    @torch.compiler.set_stance(
        "force_eager"
    )  # or other shapes than those of training would compile again
    def validate():
        """Tells the mean loss over the validation windows, and what the encoding's bias does on the first of them."""
        model.eval()
        total, summary = torch.zeros((), dtype=torch.float64, device=device), {}
        share = np.array_split(val_windows, processes.world_size)[processes.rank]
        for start in range(0, len(share), micro_batch):
            batch = [x.to(device) for x in val.batch(share[start : start + micro_batch])]
            with devices.autocast(device, dtype):
                total += model.losses(*batch).sum(dtype=torch.float64)
                summary = summary or bias_statistics.summary(model, batch[0])
        model.train()
        tokens = len(val_windows) * val.targets_per_window
        loss, seen = (
            processes.sum(total).item() / tokens,
            " ".join(f"{window:.0f}" for window in summary.get("window", [])),
        )
        bar.write(
            f"step {step:>{width}}/{config.steps} | val loss {loss:.4f} | perplexity {perplexity(loss):.3f}"
            + (f" | effective window by layer {seen}" if seen else "")
            + (
                f" | {np.mean(summary['left_out']):.1%} of attention left out"
                if "left_out" in summary
                else ""
            )
        )
        run.log("val", step, loss=loss, tokens=tokens, **summary)

    # Training
    model.train()
    width = len(str(config.steps))
    peak, flops = (
        devices.peak_flops(device, dtype),
        model.flops_per_token(config.block_size, train.targets_per_window),
    )
    seconds, since, saved = (
        0.0,
        step,
        step,
    )  # seconds: of training alone, since the last log line at step `since`
    kept = min(config.log_every, config.steps)
    losses = torch.zeros(
        kept, accumulation, device=device
    )  # of this process, for the steps since then; so that
    norms = torch.zeros(
        kept, device=device
    )  # the host asks the device for numbers at log lines only
    taken = []  # the window numbers that they belong to
    sampler = Sampler(len(train), config.seed, **position)
    batches = prefetch(
        micro_batches(train, sampler, sequences, micro_batch, processes.rank, processes.world_size),
        device,
    )
    hidden = True if processes.rank else None  # None: where standard error is no terminal
    with (
        contextlib.closing(batches),
        distributed.Signals() as signals,
        tqdm(
            total=config.steps,
            initial=step,
            desc=config.pe,
            unit="step",
            disable=hidden,
            dynamic_ncols=True,
        ) as bar,
    ):
        stop = False
        if not config.steps:
            validate()
            save()
        elif (
            step
            and step % config.val_every == 0
            and processes.any(run.is_writer and not run.is_validated)
        ):
            validate()  # which a signal had no time for
        while step < config.steps and not stop:
            begun = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, config)
            for micro in range(accumulation):
                numbers, *batch, position = next(batches)
                taken.append(numbers)
                last_micro = micro == accumulation - 1
                with (
                    contextlib.nullcontext()
                    if last_micro or processes.world_size == 1
                    else forward.no_sync()
                ):
                    with devices.autocast(device, dtype):
                        loss = forward(*batch)
                    scaler.scale(loss / accumulation).backward()
                losses[step - since, micro] = loss.detach()
            norms[step - since] = optimizer_step(model, optimizer, scaler, config.grad_clip)
            step += 1

            stop = processes.any(signals.received)
            last = step == config.steps
            saves = stop or last or step % config.checkpoint_every == 0
            if saves or step % config.log_every == 0:
                mean_losses = processes.sum(losses[: step - since].mean(1)) / processes.world_size
                sound = mean_losses.isfinite() & (
                    norms[: step - since].isfinite() | scaler.is_enabled()
                )  # which skips such steps
                if not sound.all():  # waits for the device
                    first = int(sound.int().argmin())
                    suspects = blame(losses[first], taken[first * accumulation :], train, processes)
                    what = "gradient norm" if mean_losses[first].isfinite() else "loss"
                    raise InputError(
                        f"the {what} of step {since + first + 1} is no finite number{suspects}: the checkpoints, up to "
                        f"step {saved}, are untouched; train again with a lower --lr"
                    )
                seconds += time.perf_counter() - begun
                ms = 1000 * seconds / (step - since)
                values = {
                    "loss": mean_losses.mean().item(),
                    "lr": optimizer.param_groups[0]["lr"],
                    "grad_norm": norms[step - since - 1].item(),
                    "ms": ms,
                    "tokens_per_second": 1000 * config.tokens_per_step / ms,
                    "memory": devices.peak_memory(device),
                }
                if peak:
                    values["mfu"] = (
                        values["tokens_per_second"] * flops / (peak * processes.world_size)
                    )
                minutes, rest = divmod(round((config.steps - step) * ms / 1000), 60)
                bar.write(
                    f"step {step:>{width}}/{config.steps} | loss {values['loss']:.4f} | lr {values['lr']:.2e} | "
                    f"norm {values['grad_norm']:.2f} | {ms:.0f} ms | {values['tokens_per_second']:,.0f} tokens/s | "
                    + (f"MFU {values['mfu']:.1%} | " if peak else "")
                    + f"{values['memory'] / 1e9:.1f} GB | left {minutes // 60}:{minutes % 60:02}:{rest:02}"
                )
                run.log("train", step, **values)
                seconds, since = 0.0, step
                taken.clear()
            else:
                seconds += time.perf_counter() - begun
            if last or not stop and step % config.val_every == 0:
                validate()
            if saves:
                save()
                saved = step
            bar.update()
    if stop and not last:
        print(f"stopped by a signal after step {step}, which is saved: --resume goes on")
    run.finish()


if __name__ == "__main__":
    cli.run(main)
