"""Trains a GPT-2 with any positional encoding: the recipe, readable top to bottom.

    python prepare_text.py                                                              # -> data/stdlib
    python train_gpt.py --config configs/quickstart.yaml --pe cable --out_dir runs/cable
    python train_gpt.py --config configs/quickstart.yaml --pe cable --out_dir runs/cable --resume

Settings: the defaults below < the YAML file of --config < flags. The run's folder is described in runs.py.
"""

import dataclasses
import math
import time
from dataclasses import dataclass
from typing import Literal

import torch
from tqdm import tqdm

import cli
import device as devices
from data import Sampler, Shards, Windows, evenly_spaced
from errors import InputError
from model import GPT, GPTConfig
from runs import Run, load_weights, provenance


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
    """factor of q k^T; none: 1 / sqrt(head size)"""
    attention: Literal["auto", "sdpa", "dense"] = "auto"
    """how attention is computed (attention.py)"""
    # optimisation
    steps: int = 19_000
    """optimizer steps in all"""
    tokens_per_step: int = 524_288
    """tokens of one optimizer step: a multiple of micro_batch x block_size"""
    micro_batch: int = 16
    """sequences of one forward and backward pass"""
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
    """largest gradient norm"""
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
    # hardware
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it"""

    def __post_init__(self):
        problems = [f"{name} is {getattr(self, name)}: it must be at least {least}" for name, least in
                    (("steps", 1), ("micro_batch", 1), ("block_size", 1), ("warmup_steps", 0), ("log_every", 1), ("val_every", 1),
                     ("val_tokens", 1), ("checkpoint_every", 1), ("seed", 0), ("lr", 0), ("min_lr", 0)) if getattr(self, name) < least]
        if not problems and self.tokens_per_step % (self.micro_batch * self.block_size):
            problems.append(f"tokens_per_step {self.tokens_per_step} is no multiple of micro_batch {self.micro_batch} x "
                            f"block_size {self.block_size} = {self.micro_batch * self.block_size}: change one of them")
        try:
            self.gpt_config(vocab_size=64)
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(*problems)

    def gpt_config(self, vocab_size: int) -> GPTConfig:
        names = {field.name for field in dataclasses.fields(GPTConfig)} - {"vocab_size"}
        return GPTConfig(**{name: getattr(self, name) for name in names}, vocab_size=vocab_size)


# What may change when a run goes on: nothing here moves a weight by more than rounding.
MAY_DIFFER = {"data", "verify_data", "out_dir", "attention", "micro_batch", "log_every", "val_every", "val_tokens",
              "checkpoint_every", "device", "dtype"}


def learning_rate(step: int, config: Config) -> float:
    """Linear warm-up to lr, then half a cosine down to min_lr at the last step."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    done = (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps)
    return config.min_lr + (config.lr - config.min_lr) * (1 + math.cos(math.pi * done)) / 2


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    device, dtype = devices.choose(config.device, config.dtype)

    # Data
    train_shards, val_shards = (Shards(config.data, split, config.verify_data) for split in ("train", "val"))
    train = Windows(train_shards, config.block_size)
    val = Windows(val_shards, config.block_size)
    val_windows = evenly_spaced(len(val), max(1, config.val_tokens // config.block_size))

    # Model
    torch.manual_seed(config.seed)
    gpt_config = config.gpt_config(train_shards.padded_vocab_size)
    model = GPT(gpt_config).to(device)
    optimizer = torch.optim.AdamW(model.parameter_groups(config.weight_decay), lr=config.lr,
                                  betas=(config.beta1, config.beta2), fused=True)
    print(model.describe())

    # Run: a new one, or the one to go on with
    settings = dataclasses.asdict(config)
    del settings["resume"]
    data = {"sha256": train_shards.sha256, "tokenizer": train_shards.tokenizer}
    run = Run(config.out_dir, settings, data, config.resume, MAY_DIFFER)
    step, position = 0, {}
    if run.checkpoint:
        load_weights(model, run.checkpoint["model"], config.out_dir)
        optimizer.load_state_dict(run.checkpoint["optimizer"])
        torch.set_rng_state(run.checkpoint["rng"])
        step, position = run.checkpoint["step"], run.checkpoint["sampler"]
    elif config.resume:
        print(f"{config.out_dir} holds no checkpoint yet: starting at step 0")
    sampler = Sampler(len(train), config.seed, **position)
    if step == config.steps:
        print(f"{config.out_dir} is trained already: {step} of {config.steps} steps")
        return
    sequences = config.tokens_per_step // config.block_size
    print(f"{sequences * config.steps / len(train):.2f} epochs of {train_shards.total:,} tokens in {config.steps:,} steps of "
          f"{config.tokens_per_step:,} tokens, from step {step}")
    run.begin()
    run.log("start", step, parameters=model.parameter_count(), data=train_shards.sha256, **provenance(device))

    def save():
        run.save(model=model.state_dict(), optimizer=optimizer.state_dict(), step=step, rng=torch.get_rng_state(),
                 sampler={"epoch": sampler.epoch, "index": sampler.index}, gpt=dataclasses.asdict(gpt_config))

    def validate() -> float:
        model.eval()
        total = torch.zeros((), dtype=torch.float64, device=device)
        for numbers in torch.from_numpy(val_windows).split(config.micro_batch):
            inputs, targets = (x.to(device) for x in val.batch(numbers.numpy()))
            with devices.autocast(device, dtype):
                total += model.losses(inputs, targets).sum(dtype=torch.float64)
        model.train()
        return total.item() / (len(val_windows) * config.block_size)

    # Training
    model.train()
    seconds, since = 0.0, step  # of training alone, and the step they are counted from
    loss_sum = torch.zeros((), device=device)
    with tqdm(total=config.steps, initial=step, desc=config.pe, unit="step", disable=None, dynamic_ncols=True) as bar:
        while step < config.steps:
            begun = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, config)
            windows = sampler.take(sequences)
            micro_batches = [windows[i : i + config.micro_batch] for i in range(0, sequences, config.micro_batch)]
            for numbers in micro_batches:
                inputs, targets = (x.to(device, non_blocking=True) for x in train.batch(numbers))
                with devices.autocast(device, dtype):
                    loss = model(inputs, targets) / len(micro_batches)
                loss.backward()
                loss_sum += loss.detach()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
            optimizer.step()
            model.project()
            optimizer.zero_grad(set_to_none=True)
            step += 1

            last = step == config.steps
            if step % config.log_every == 0 or last:
                loss, norm = (loss_sum / (step - since)).item(), norm.item()  # waits for the device
                seconds += time.perf_counter() - begun
                ms = 1000 * seconds / (step - since)
                speed = 1000 * config.tokens_per_step / ms
                lr = optimizer.param_groups[0]["lr"]
                minutes, rest = divmod(round((config.steps - step) * ms / 1000), 60)
                bar.write(f"step {step:>{len(str(config.steps))}}/{config.steps} | loss {loss:.4f} | lr {lr:.2e} | norm {norm:.2f} | "
                          f"{ms:.0f} ms | {speed:,.0f} tokens/s | left {minutes}:{rest:02}")
                run.log("train", step, loss=loss, lr=lr, grad_norm=norm, ms=ms, tokens_per_second=speed)
                seconds, since = 0.0, step
                loss_sum.zero_()
            else:
                seconds += time.perf_counter() - begun
            if step % config.val_every == 0 or last:
                val_loss = validate()
                bar.write(f"step {step:>{len(str(config.steps))}}/{config.steps} | val loss {val_loss:.4f} | "
                          f"perplexity {math.exp(val_loss):.3f}")
                run.log("val", step, loss=val_loss, tokens=len(val_windows) * config.block_size)
            if step % config.checkpoint_every == 0 or last:
                save()
            bar.update()


if __name__ == "__main__":
    cli.run(main)
