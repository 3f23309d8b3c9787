"""Settings of train_gpt.py: defaults, what --init_from provides, checks.

values |= inherit(values, given)    # what --init_from provides
config = Config(**values)           # raises InputError
"""

import dataclasses
import functools
import inspect
import os
from typing import Literal

from runtime.files import run_folder_of

import torch

import posenc
from data_loader import MaskedWindows, Shards, Windows
from errors import InputError
from model import GPT, GPTConfig
from setting import setting, settings_of
from training.checkpoints import list_checkpoints, load_checkpoint
from training.optimizer import OPTIMIZERS

COMBINATIONS = """\
rope+cable                 several at once
cable:heads=2              on the first 2 heads only, for encodings that act on queries, keys or
cable:heads_percent=50     biases; or on that percentage of the heads
window:w=64+rope@3_nope@1  a pattern of layers, three and one, repeated over all layers"""
MANY_EPOCHS = 10
BELOW_1 = 0.999999


def load_plugins(paths: list[str]) -> dict[str, str] | None:
    """Load files with encodings; return name -> SHA-256, or None without files."""
    if not paths:
        return None
    from training import plugins

    loaded = [plugins.load_plugin(path) for path in paths]
    return {plugin.path.name: plugin.sha256 for plugin in loaded}


free = functools.partial(setting, resume="free")
plugin_setting = functools.partial(setting, None, load=load_plugins)
tuned = functools.partial(setting, resume="override", record="always")


@dataclasses.dataclass
class Config(GPTConfig):
    """Settings of a training run: the network's of model.GPTConfig, and these."""

    vocab_size: int = dataclasses.field(init=False, default=0)  # that of the data
    causal: bool = dataclasses.field(init=False)  # follows from the objective

    # data and output
    data: str = free("data/stdlib")
    """folder of the token shards"""
    verify_data: Literal["auto", "always", "never"] = free("auto")
    """check the SHA-256 of the shards before the first step; auto: up to 500 million tokens"""
    out_dir: str = free("runs/gpt")
    """folder of the run"""
    resume: bool = setting(False, record="never")
    """continue from the newest checkpoint in out_dir, if any; with larger --steps: train further"""
    override: str | None = setting(None, record="never")
    """with --resume: settings to change from that step on, as in lr,weight_decay"""
    init_from: str | None = setting(None, record="run")
    """run that provides initial weights; network, block_size, encoding and data unless given"""
    plugin: dict[str, str] | None = plugin_setting(resume="override", record="run")
    """Python file with encodings of your own; may be repeated"""
    dry_run: bool = setting(False, record="never")
    """print the cost of the training and exit"""
    list: bool = setting(False, record="never")
    """print all encodings, those of --plugin included, and exit"""
    # optimization
    objective: Literal["clm", "mlm", "recall"] = setting("clm", record="always")
    """clm: causal language modeling, a decoder; mlm: masked language modeling, an encoder; recall:
    a decoder that predicts tokens which return (text_data/recall_task.py), with data as filler"""
    mask_rate: float = tuned(0.15, 1e-6, BELOW_1)
    """mlm: fraction of tokens that are masked"""
    steps: int = tuned(19_000, 0, 10**9)
    """optimizer steps; 0 with --init_from: keep the weights, under another encoding"""
    tokens_per_step: int = tuned(524_288, 1, 10**9)
    """tokens of one optimizer step: a multiple of block_size x world size"""
    micro_batch: int = free(16, 1, 10**9)
    """most sequences per forward and backward pass on each rank"""
    lr: float = tuned(6e-4, 0)
    """peak learning rate"""
    min_lr: float = tuned(6e-5, 0)
    """final learning rate"""
    warmup_steps: int = tuned(750, 0)
    """steps of linear warmup; the decay follows"""
    schedule: Literal["cosine", "wsd"] = setting("cosine", resume="override")
    """decay of the learning rate: cosine; wsd: constant, then linear over the last steps"""
    decay_fraction: float = setting(0.2, 0, 1, resume="override")
    """wsd: fraction of the steps in which the learning rate decays"""
    optimizer: str = "adamw"
    """adamw; muon: for the blocks' matrices, AdamW for the rest (training/optimizer.py)"""
    beta1: float = tuned(0.9, 0, BELOW_1)
    """first beta of the optimizer"""
    beta2: float = tuned(0.95, 0, BELOW_1)
    """second beta of the optimizer"""
    weight_decay: float = tuned(0.1, 0)
    """weight decay of matrices and embeddings"""
    grad_clip: float = tuned(1.0, 0)
    """largest gradient norm; 0: no clipping"""
    seed: int = setting(1, 0, resume="override", record="run")
    """seed of the initial weights and of the data order"""
    # logging
    log_every: int = free(10, 1)
    """steps between log lines"""
    val_every: int = free(250, 1)
    """steps between validations"""
    val_tokens: int = free(1_048_576, 1)
    """tokens of one validation, in windows of block_size"""
    sample_every: int = free(0, 0)
    """steps between texts that the model writes, printed and logged; 0: none"""
    checkpoint_every: int = free(1000, 1)
    """steps between checkpoints"""
    keep_checkpoints: int = free(2, 1)
    """number of newest checkpoints to keep"""
    logger: Literal["none", "wandb", "tensorboard"] = free("none")
    """also log to Weights & Biases or TensorBoard"""
    # hardware
    device: str = free("auto")
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = free("auto")
    """of matrix products; auto: bfloat16 if in hardware, else float16 (GPU) or float32 (CPU)"""
    compile: bool | None = free(None)
    """use torch.compile; null: on GPUs only"""
    activation_checkpointing: bool = free(False)
    """recompute each layer in the backward pass: less memory, about a third more time"""
    deterministic: bool = free(False)
    """bitwise reproducible on a GPU, at some loss of speed; CPUs always are"""

    def __post_init__(self):
        """Record in `plugin` which plugins define the encoding; raise InputError."""
        self.causal = self.objective != "mlm"
        problems = []
        if self.steps == 0 and not self.init_from:
            problems.append("steps is 0: it must be at least 1")
        if self.override and not self.resume:
            problems.append("--override is for --resume: pass both, or remove it")
        known, others = (settings_of(Config, resume=x) for x in ("override", "free"))
        for name in sorted(self.overridden - known.keys() - others.keys()):
            what = f"--override {name} cannot change in a run"
            problems.append(f"{what}: use some of {','.join(sorted(known))}")
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
            encodings = self.gpt_config(vocab_size=64).encodings
            if self.plugin:
                from training import plugins

                self.plugin = plugins.recorded(encodings)
        except InputError as error:
            problems += error.problems
        if problems:
            raise InputError(*problems)

    @property
    def overridden(self) -> set[str]:
        """The names in --override."""
        return {*(self.override or "").replace(" ", "").split(",")} - {""}

    def gpt_config(self, vocab_size: int) -> GPTConfig:
        values = {name: getattr(self, name) for name in settings_of(GPTConfig)}
        values["vocab_size"] = vocab_size
        return GPTConfig(**values)

    def sequences_per_step(self, world_size: int) -> int:
        """Return the batch size. Raises InputError if ranks cannot share it."""
        unit = self.block_size * world_size
        if self.tokens_per_step % unit:
            raise InputError(
                f"tokens_per_step {self.tokens_per_step} is not a multiple of block_size "
                f"{self.block_size} x world size {world_size} = {unit}: change one of them"
            )
        return self.tokens_per_step // self.block_size


def inherit(given: dict) -> dict:
    """Return the settings that the run of --init_from provides.

    given: those of flags and --config. Provided are others of the network, the objective, and the
    data if its folder exists. A resumed run keeps all of its own. Raises InputError without a
    checkpoint or the encoding's plugin.
    """
    source, out_dir = given.get("init_from"), given.get("out_dir", Config.out_dir)
    is_resumed = given.get("resume") and list_checkpoints(out_dir)
    run = out_dir if is_resumed else source
    if not run:
        return {}
    names = {*settings_of(Config)} - {*settings_of(Config, record="never")}
    if not is_resumed:
        names &= {*settings_of(GPTConfig, resume="fixed"), "objective", "data"}
    names -= given.keys() | {"out_dir"}
    for name in given:
        names -= settings_of(Config, preset=name).keys()
    checkpoint = load_checkpoint(run, check_plugins=False)
    network, provided = checkpoint["gpt"], checkpoint["config"]
    has_encoding = "pe" in names or network["pe"] == given.get("pe", Config.pe)
    if provided.get("plugin") and has_encoding and not (is_resumed and given["plugin"]):
        from training import plugins

        plugins.check_loaded(provided, run_folder_of(run))
    if not is_resumed:  # else as recorded: null stays null
        objective = "clm" if network["causal"] else "mlm"
        provided = {"objective": objective} | provided | network
    if not os.path.isdir(provided.get("data") or ""):
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
    never = settings_of(Config, record="never")
    return {x: getattr(config, x) for x in settings_of(Config) if x not in never}


def training_settings(checkpoint: dict) -> dict:
    """Return the settings of a run that its records have: what it learns with."""
    excluded = {"init_steps", *settings_of(Config, record="run")}
    items, defaults = checkpoint["config"].items(), record_defaults().items()
    return {k: x for k, x in items if k not in excluded and (k, x) not in defaults}


def record_defaults() -> dict:
    """Return the settings that records leave out at these values."""
    return {x.name: x.default for x in settings_of(Config, record="changed").values()}


def checks_paths(config, device: torch.device) -> bool:
    """Return whether a training compares its attention paths with the dense one."""
    return device.type == "cuda" and config.attention in ("auto", "flex")


def describe_epochs(config, tokens: int) -> list[str]:
    """Return how often a training reads its data; notes on overfitting and a long warmup."""
    epochs = config.steps * config.tokens_per_step / tokens
    lines = [f"{epochs:.2f} epochs of {tokens:,} tokens"]
    if 0 < config.steps <= config.warmup_steps:
        what = f"warmup_steps {config.warmup_steps} of {config.steps} steps"
        lines.append(f"note: {what}: lr is never reached, use fewer --warmup_steps")
    if epochs > MANY_EPOCHS:
        what = f"the training passes over its data {epochs:.1f} times and may overfit"
        lines.append(f"note: {what}: use more data or fewer --steps")
    return lines


def check_memory(config: GPTConfig, device: torch.device) -> None:
    """Raise InputError if this machine has too little memory for a network.

    It needs float32 weights; on a CPU also gradients and AdamW's moments.
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
