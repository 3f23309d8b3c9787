"""Settings of train_gpt.py: defaults, what --init_from provides, checks.

values |= inherit(values, given)    # what --init_from provides
config = Config(**values)           # raises InputError
"""

import dataclasses
import inspect
import os
from pathlib import Path
from typing import Literal

from runtime import cli, plugins
from runtime.checkpoints import list_checkpoints, load_checkpoint
from runtime.files import run_folder_of
from runtime.settings import MAY_BE_OVERRIDDEN, MAY_CHANGE_ON_RESUME

import torch

import posenc
from attention import PathName
from data_loader import MaskedWindows, Shards, Windows
from errors import InputError
from model import GPT, GPTConfig
from training.optimizer import OPTIMIZERS

SHAPE = (
    *("size", "n_layer", "n_head", "n_embd", "block", "n_kv_head", "head_dim", "n_inner"),
    *("qk_norm", "qkv_bias", "tied", "norm_eps"),
)
COMBINATIONS = """\
rope+cable                 several at once
cable:heads=2              on the first 2 heads only, for encodings that act on queries, keys or
cable:heads_percent=50     biases; or on that percentage of the heads
window:w=64+rope@3_nope@1  a pattern of layers, three and one, repeated over all layers"""
MANY_EPOCHS = 10
BELOW_1 = 0.999999
# These choose what the program does, and are no part of a run's config.
NOT_RECORDED = {"resume", "override", "dry_run", "list"}


@dataclasses.dataclass
class Config:
    """Settings of a training run."""

    presets = {"size": ("n_layer", "n_head", "n_embd", "n_kv_head", "head_dim", "n_inner")}

    # data and output
    data: str = "data/stdlib"
    """folder of the token shards"""
    verify_data: Literal["auto", "always", "never"] = "auto"
    """check the SHA-256 of the shards before the first step; auto: if they total at most 1 GB"""
    out_dir: str = "runs/gpt"
    """folder of the run"""
    resume: bool = False
    """continue from the newest checkpoint in out_dir, if any; with larger --steps: train further"""
    override: str | None = None
    """with --resume: settings to change from that step on, as in lr,weight_decay"""
    init_from: str | None = None
    """run that provides initial weights; network, block_size, encoding and data unless given"""
    dry_run: bool = False
    """print the cost of the training and exit"""
    list: bool = False
    """print all encodings, those of --plugin included, and exit"""
    # model
    size: str = "small"
    """shape of the network: quickstart, tiny, small, medium, large or xl; for recipes: --config"""
    n_layer: int | None = cli.limited(None, 1, 256)  # more take a minute to create
    """number of layers; null: that of the size"""
    n_head: int | None = cli.limited(None, 1, 1_000)
    """number of attention heads; null: that of the size"""
    n_embd: int | None = cli.limited(None, 1, 100_000)
    """embedding dimension; null: that of the size"""
    block: Literal["gpt2", "llama"] = "gpt2"
    """kind of layers; llama: RMSNorm, SwiGLU and QK-norm, no biases. For what follows, null is the
    block's own value (model.GPTConfig)"""
    n_kv_head: int | None = cli.limited(None, 1, 1_000)
    """heads of keys and values; fewer than n_head: grouped-query attention"""
    head_dim: int | None = cli.limited(None, 1, 10_000)
    """columns of a head"""
    n_inner: int | None = cli.limited(None, 1, 1_000_000)
    """width of the MLP's hidden layer"""
    qk_norm: bool | None = None
    """RMSNorm of queries and keys"""
    qkv_bias: bool | None = None
    """biases in the projection of queries, keys and values"""
    tied: bool = True
    """use the embedding as the output layer"""
    norm_eps: float = cli.limited(1e-5, 0)
    """added to the variance in norms"""
    pe: str = "cable"
    """positional encoding (posenc.py): cable; with options: fire:width=16; joined: rope+cable"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own that `pe` uses"""
    block_size: int = cli.limited(1024, 1, 10**8)
    """training sequence length in tokens"""
    attn_scale: float | None = None
    """factor of the logits q k^T; null: 1 / sqrt(head dimension)"""
    attention: PathName = "auto"
    """attention path (attention.py); auto: the fastest one, which is checked first on a GPU"""
    # optimization
    objective: Literal["clm", "mlm", "recall"] = "clm"
    """clm: causal language modeling, a decoder; mlm: masked language modeling, an encoder; recall:
    a decoder that predicts tokens which return (text_data/recall_task.py), with data as filler"""
    mask_rate: float = cli.limited(0.15, 1 - BELOW_1, BELOW_1)
    """mlm: fraction of tokens that are masked"""
    steps: int = cli.limited(19_000, 0, 10**9)
    """optimizer steps; 0 with --init_from: keep the weights, under another encoding"""
    tokens_per_step: int = cli.limited(524_288, 1, 10**9)
    """tokens of one optimizer step: a multiple of block_size x world size"""
    micro_batch: int = cli.limited(16, 1, 10**9)
    """most sequences per forward and backward pass on each rank"""
    lr: float = cli.limited(6e-4, 0)
    """peak learning rate"""
    min_lr: float = cli.limited(6e-5, 0)
    """final learning rate"""
    warmup_steps: int = cli.limited(750, 0)
    """steps of linear warmup; the decay follows"""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """decay of the learning rate: cosine; wsd: constant, then linear over the last steps"""
    decay_fraction: float = cli.limited(0.2, 0, 1)
    """wsd: fraction of the steps in which the learning rate decays"""
    optimizer: str = "adamw"
    """adamw; muon: for the blocks' matrices, AdamW for the rest (training/optimizer.py)"""
    beta1: float = cli.limited(0.9, 0, BELOW_1)
    """first beta of the optimizer"""
    beta2: float = cli.limited(0.95, 0, BELOW_1)
    """second beta of the optimizer"""
    weight_decay: float = cli.limited(0.1, 0)
    """weight decay of matrices and embeddings"""
    grad_clip: float = cli.limited(1.0, 0)
    """largest gradient norm; 0: no clipping"""
    seed: int = cli.limited(1, 0)
    """seed of the initial weights and of the data order"""
    # logging
    log_every: int = cli.limited(10, 1)
    """steps between log lines"""
    val_every: int = cli.limited(250, 1)
    """steps between validations"""
    val_tokens: int = cli.limited(1_048_576, 1)
    """tokens of one validation, in windows of block_size"""
    sample_every: int = cli.limited(0, 0)
    """steps between texts that the model writes, printed and logged; 0: none"""
    checkpoint_every: int = cli.limited(1000, 1)
    """steps between checkpoints"""
    keep_checkpoints: int = cli.limited(2, 1)
    """number of newest checkpoints to keep"""
    logger: Literal["none", "wandb", "tensorboard"] = "none"
    """also log to Weights & Biases or TensorBoard"""
    # hardware
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """of matrix products; auto: bfloat16 if in hardware, else float16 (GPU) or float32 (CPU)"""
    compile: bool | None = None
    """use torch.compile; null: on GPUs only"""
    activation_checkpointing: bool = False
    """recompute each layer in the backward pass: less memory, about a third more time"""
    deterministic: bool = False
    """bitwise reproducible on a GPU, at some loss of speed; CPUs always are"""

    def __post_init__(self):
        """Record in `plugin` which plugins define the encoding; raise InputError."""
        problems = []
        if self.steps == 0 and not self.init_from:
            problems.append("steps is 0: it must be at least 1")
        if self.override and not self.resume:
            problems.append("--override is for --resume: pass both, or remove it")
        for name in sorted(self.overridden - MAY_BE_OVERRIDDEN - MAY_CHANGE_ON_RESUME):
            known = ",".join(sorted(MAY_BE_OVERRIDDEN))
            what = f"--override {name} cannot change in a run"
            problems.append(f"{what}: use some of {known}")
        if self.min_lr > self.lr:
            values = f"min_lr {self.min_lr:g} is above lr {self.lr:g}"
            problems.append(f"{values}: use a lower --min_lr")
        if self.optimizer not in OPTIMIZERS:
            known = " ".join(OPTIMIZERS)
            problems.append(f"unknown optimizer '{self.optimizer}': use one of {known}")
        if self.sample_every and not self.causal:
            what = "sample_every is for decoders"
            problems.append(f"{what}: remove it, or use --objective clm")
        try:
            self.plugin = plugins.recorded(self.gpt_config(vocab_size=64).encodings)
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(*problems)

    @property
    def causal(self) -> bool:
        return self.objective != "mlm"

    @property
    def overridden(self) -> set[str]:
        """The names in --override."""
        return {*(self.override or "").replace(" ", "").split(",")} - {""}

    def gpt_config(self, vocab_size: int) -> GPTConfig:
        names = {field.name for field in dataclasses.fields(GPTConfig)} - {"vocab_size"}
        values = {name: getattr(self, name) for name in names}
        return GPTConfig(**values, vocab_size=vocab_size)

    def sequences_per_step(self, world_size: int) -> int:
        """Return the batch size. Raises InputError if ranks cannot share it."""
        unit = self.block_size * world_size
        if self.tokens_per_step % unit:
            raise InputError(
                f"tokens_per_step {self.tokens_per_step} is not a multiple of block_size "
                f"{self.block_size} x world size {world_size} = {unit}: change one of them"
            )
        return self.tokens_per_step // self.block_size


def inherit(values: dict, given: set[str]) -> dict:
    """Return the settings that the run of --init_from provides.

    values: of all settings; given: names that flags and --config give.
    Provided are others of the network's shape, block_size, attn_scale,
    objective, encoding, and the data if its folder exists. A resumed
    run keeps its own. Raises InputError without a checkpoint or the
    encoding's plugin.
    """
    names = {*SHAPE, "block_size", "attn_scale", "objective", "pe", "data"} - given
    if given & {"size", "block"}:
        names -= set(SHAPE)  # null means the value of the size
    if not values["init_from"]:
        names = set()
    is_resumed = values["resume"] and bool(list_checkpoints(values["out_dir"]))
    run = values["out_dir"] if is_resumed else values["init_from"]
    if not run:
        return {}
    checkpoint = load_checkpoint(run, check_plugins=False)
    has_encoding = "pe" in names or checkpoint["gpt"]["pe"] == values["pe"]
    if has_encoding and not (is_resumed and values["plugin"]):
        plugins.check_loaded(checkpoint["config"], run_folder_of(run))
    provided = config = checkpoint["config"]  # as recorded: null stays null
    if not is_resumed:
        objective = "clm" if checkpoint["gpt"]["causal"] else "mlm"
        data = {"objective": config.get("objective", objective), "data": config.get("data")}
        provided = checkpoint["gpt"] | data
    if not (provided.get("data") and Path(provided["data"]).is_dir()):
        names.discard("data")
    return {name: provided[name] for name in names if name in provided}


def make_windows(config, shards: Shards) -> Windows:
    """Return the windows that the objective trains on."""
    if config.objective == "recall":
        from text_data.recall_task import RecallWindows

        sequences = config.steps * config.sequences_per_step(world_size=1)
        return RecallWindows(shards, config.block_size, sequences)
    if config.objective == "mlm":
        return MaskedWindows(shards, config.block_size, config.mask_rate)
    return Windows(shards, config.block_size)


def recorded(config) -> dict:
    """Return the settings in a run's config.yaml and checkpoints."""
    values = dataclasses.asdict(config)
    return {name: value for name, value in values.items() if name not in NOT_RECORDED}


def checks_paths(config, device: torch.device) -> bool:
    """Return whether a training compares its attention paths with the dense one."""
    return device.type == "cuda" and config.attention in ("auto", "flex")


def describe_epochs(config, tokens: int) -> list[str]:
    """Return how often a training reads its data; a note if it may overfit."""
    epochs = config.steps * config.tokens_per_step / tokens
    lines = [f"{epochs:.2f} epochs of {tokens:,} tokens"]
    if epochs > MANY_EPOCHS:
        what = f"the training passes over its data {epochs:.1f} times and may overfit"
        lines.append(f"note: {what}: use more data or fewer --steps")
    return lines


def check_memory(config: GPTConfig, device: torch.device) -> None:
    """Raise InputError if this machine has too little memory for a network.

    It needs float32 weights; on a CPU also gradients and AdamW's
    moments.
    """
    with torch.device("meta"):
        model = GPT(config)
    weights = sum(x.numel() for x in (*model.parameters(), *model.buffers()))
    needed = weights * (16 if device.type == "cpu" else 4)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        what = f"{weights:,} weights with {config.pe} need {needed / 1e9:,.0f} GB"
        limit = f"this machine has {memory / 1e9:,.0f} GB of memory"
        raise InputError(f"{what}, but {limit}: use smaller settings")


def describe_encodings() -> str:
    """Return names, formula and options of each registered encoding."""
    import more_encodings  # noqa: F401, registers those that are not in posenc.py

    lines = []
    for cls in dict.fromkeys(posenc.ENCODINGS.values()):
        formula = inspect.getdoc(cls) or "(no docstring)"
        lines.append(f"{', '.join(cls.names):17}  {formula.splitlines()[0]}")
        if described := ", ".join(options(cls)).replace("`", ""):
            lines.append(f"{'':23}options: {described}")
    return "\n".join([*lines, "", COMBINATIONS])


def options(cls: type[posenc.Encoding]) -> list[str]:
    """Return the options that the model does not determine, with defaults."""
    found = []
    for name, parameter in inspect.signature(cls).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            default = "" if parameter.default is None else f"={parameter.default}"
            words = [f"{name}{default}", *cls.option_words.get(name, ())]
            found.append(" or ".join(f"`{x}`" for x in words if x != parameter.default))
    return found
