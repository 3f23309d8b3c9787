"""Measures how fast the programs of this repository are, and what each encoding costs.

    python bench.py train attention generate eval --encodings cable,alibi,fox --context 512,1024 --out results/bench/tiny.json
    python bench.py train --encodings cable,t5 --context 1024,4096 --model medium --micro_batch 8 --device cuda --out train.json
    python bench.py attention --run runs/medium/cable --context 4096,65536 --micro_batch 1      # as steep as training made it
    python bench.py prepare                                         # the embedded corpus, in a parquet file
    python bench.py prepare --source corpus.jsonl.xz --out prepare.json
    python report.py results/bench/tiny.json --out_dir results/bench

train: one optimizer step as train_gpt.py makes it, from a micro-batch of random tokens to new weights, trained at the context.
attention: attention alone, forward and backward, from the layer's projection and normalised input to its heads' outputs, with
all that the encoding adds: rotating, building its states, its bias. Beside it PyTorch's fused kernel without a bias (`sdpa`), and
the dense path of every encoding that has a faster one; error is how far outputs and gradients are from those of the dense path in float32,
relatively, the largest of all. On a GPU, train and attention also take the Triton kernels, where they form
the encoding's bias (`cable triton`), and attention PyTorch's FlexAttention with the encoding's score (`cable flex`), where it can
compute that. All of random numbers; with --run, of what every layer of that model reads in its validation text, with its trained
encoding, one layer after the other, `rope` and `nope` beside it: only there the kernels find something to leave out.
generate: one text continued by the code of sample.py, the likeliest tokens, up to the context; reading the prompt is not timed.
eval: the losses of a micro-batch without gradients, as eval_extrapolation.py works them out.

What is compared takes turns, A B C A B C, after one round that is not counted; `rope` and `nope` are always there. Speeds are
those of the median turn. A ratio is the median over rounds of the speed over the other's in the same round, which a machine that
slows down for a while leaves as it is. Memory is taken afterwards, in a turn of its own: weights, gradients and AdamW's moments with
all that the turn adds (attention: what it adds; generate: the cache), as PyTorch's allocators count it, on a CPU too.

prepare: a jsonl or parquet file becomes shards on the disk, by the code that prepares data, against tiktoken's own
`encode_ordinary_batch` on all cores, which gets the same texts in memory. The two take turns, after one round that is not
counted; told are medians. Timed are opening the file, reading, decompressing, tokenising, hashing, writing and syncing.
"""

import collections
import functools
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

import attention
import biases
import cli
import corpus
import decoding
import device as devices
import posenc
import runs
import shards
import tables
from cache import Cache
from data import Windows, evenly_spaced
from errors import InputError
from files import write_json
from model import GPT, GPTConfig

BASELINES = ("rope", "nope")  # measured whatever else is
RIGHT = 0.03  # error up to which the kernels are chosen; bf16 and float16 round outputs to 0.003 and 0.0003
NEW_TOKENS = 64  # of a turn of `generate`, or half of the context where that is less
SEED = 1


@dataclass
class Config:
    """Settings of a measurement."""

    what: list[str] = field(default_factory=list)
    """what to measure: train, attention, generate, eval, prepare"""
    encodings: str = "cable"
    """positional encodings beside rope and nope, separated by commas"""
    context: str = "1024"
    """contexts in tokens, separated by commas"""
    model: str = "tiny"
    """size of the model: quickstart, tiny, small, medium, large or xl"""
    micro_batch: int = 4
    """train, attention, eval: sequences of one pass"""
    run: str | None = None
    """attention: a run whose encoding, shape and inputs are taken, in place of --encodings, --model and random numbers"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it, float16 on GPUs without, float32 on CPUs without"""
    compile: bool | None = None
    """torch.compile; none: as the programs do, train and attention on GPUs, the others not"""
    source: str | None = None
    """prepare: jsonl or parquet file of texts; none: the embedded corpus"""
    text_column: str = "text"
    """prepare: column that holds the text"""
    tokenizer: Literal["bytes", "gpt2"] = "gpt2"
    """prepare: bytes or gpt2"""
    repeats: int = 5
    """rounds that are counted"""
    out: str | None = None
    """JSON file of the numbers, with hardware and versions"""

    def __post_init__(self):
        known = ", ".join((*TURNS, "prepare"))
        problems = [f"'{name}' is not measured here: choose from {known}" for name in self.what if name not in (*TURNS, "prepare")]
        if not self.what:
            problems.append(f"name what to measure: {known}")
        if "prepare" in self.what and self.source and not (corpus.table_kind(Path(self.source)) and Path(self.source).is_file()):
            problems.append(f"{self.source} is no jsonl or parquet file that is there: name another --source")
        problems += ["--run is for attention alone: name no other benchmark"] * (self.run is not None and self.what != ["attention"])
        problems += [f"{name} is {getattr(self, name)}: it must be at least 1" for name in ("micro_batch", "repeats")
                     if getattr(self, name) < 1]
        if not re.fullmatch(r"\d+(,\d+)*", self.context) or min(self.contexts()) < 2:
            problems.append(f"context '{self.context}': give token counts of at least 2, as in 512,1024")
        for pe in self.names():
            try:
                GPTConfig(size=self.model, pe=pe)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(*dict.fromkeys(problems))

    def contexts(self) -> list[int]:
        return sorted({int(word) for word in self.context.split(",")})

    def names(self) -> list[str]:
        """The encodings, each once; a comma followed by `option=` belongs to one of them."""
        return list(dict.fromkeys((*BASELINES, *re.split(r",(?!\w+=)", self.encodings))))


@dataclass
class Setting:
    """What all turns of a benchmark have in common."""

    model: str
    micro_batch: int
    context: int
    device: torch.device
    dtype: torch.dtype
    compile: bool
    layers: list[biases.Layer] | None = None
    """attention: of a trained model, as they read a text"""

    def network(self, pe: str, block_size: int, path: str = "auto") -> GPT:
        torch.manual_seed(SEED)
        return GPT(GPTConfig(size=self.model, pe=pe, block_size=block_size, attention=path)).to(self.device)

    def paths(self, encoding: posenc.Encoding) -> dict[str, str]:
        """What is compared, by what is added to the encoding's name: nothing, " dense", " triton", " flex"."""
        found = {"": attention.choose("auto", encoding)}
        if found[""] != "dense":
            found[" dense"] = "dense"
        if self.device.type == "cuda" and (encoding.score is None or encoding.in_registers):
            found[" triton"] = "triton"
        if self.device.type == "cuda" and encoding.score is not None:
            found[" flex"] = "flex"
        return found

    def batch(self, vocab_size: int) -> tuple[Tensor, Tensor]:
        """Random inputs and targets, (B, T) each."""
        torch.manual_seed(SEED)
        tokens = torch.randint(vocab_size, (self.micro_batch, self.context + 1), device=self.device)
        return tokens[:, :-1], tokens[:, 1:]

    def compiled(self, function: Callable) -> Callable:
        return torch.compile(function) if self.compile else function


@dataclass
class Turn:
    """One of those that take turns."""

    ready: Callable[[], Callable[[], object]]
    """makes a turn ready, outside the clock, and returns what is timed"""
    tokens: int
    """of a turn"""
    memory: Callable[[], int]
    """bytes"""
    flops: float | None = None
    """of a token, where they count"""
    error: Callable[[], float] | None = None
    """attention: of its outputs and gradients, relative to those of the dense path in float32"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("what", "what to measure: " + ", ".join((*TURNS, "prepare"))))
    device, dtype = torch.device("cpu"), torch.float32
    if any(name in TURNS for name in config.what):
        device, dtype = devices.choose(config.device, config.dtype)
    trained = runs.load_model(config.run, device, dtype) if config.run else None
    record = {**runs.provenance(device), "processor": devices.processor(), "cores": os.cpu_count(), "tiktoken": version("tiktoken"),
              "datasets": version("datasets")}

    def keep(name, result):
        record[name] = result
        if config.out:
            write_json(config.out, record)

    if config.out:
        write_json(config.out, record)  # a path that cannot be written shows before anything is measured
    for name in config.what:
        if name == "prepare":
            keep(name, prepare(config))
        else:
            for result in measure(name, config, device, dtype, trained):  # renewed after each context
                keep(name, result)
            print(f"\n{tables.speeds_text(name, result)}\n")


def measure(name: str, config: Config, device: torch.device, dtype: torch.dtype, trained: tuple[GPT, dict] | None = None):
    """Yields the record of benchmark `name`, once for each context that is done. trained: what load_model found of --run."""
    compiles = device.type == "cuda" and name in ("train", "attention") if config.compile is None else config.compile
    result = {"model": config.model, "micro_batch": 1 if name == "generate" else config.micro_batch, "device": devices.describe(device),
              "dtype": str(dtype).removeprefix("torch."), "compile": compiles, "repeats": config.repeats, "contexts": {}}
    names, layers = config.names(), 1
    if trained:
        layers, names = trained[0].config.n_layer, list(dict.fromkeys((*BASELINES, trained[0].config.pe)))
        result |= {"run": Path(config.run).name, "model": trained[0].config.size, "biases": {}}
    if compiles:
        torch._dynamo.config.recompile_limit = 16 * len(names) * layers  # models of all encodings, paths and layers run the same code
    for context in config.contexts():
        if compiles:
            torch.compiler.reset()  # or the second context would make it give up fixed shapes, which a training has
        setting = Setting(config.model, config.micro_batch, context, device, dtype, compiles)
        try:
            if trained:
                setting.layers, result["biases"][str(context)] = reads(setting, *trained)
            turns = {key: turn for pe in names for key, turn in TURNS[name](setting, pe).items()
                     if not key.endswith(" flex") or possible(key, turn)}
            seconds = rounds({key: turn.ready for key, turn in turns.items()}, config.repeats, device, f"{name} at {context:,}")
            entries = {key: entry(key, turn, seconds, devices.peak_flops(device, dtype)) for key, turn in turns.items()}
        except torch.OutOfMemoryError:
            raise InputError(f"{name} at {context:,} tokens does not fit into the GPU: fewer --encodings at a time, which all stay there, "
                             "a smaller --micro_batch or a shorter --context") from None
        result["contexts"][str(context)] = dict.fromkeys(names) | entries  # None: past the encoding's longest context
        if name == "attention" and device.type == "cuda" and not trained:
            result["kernels"] = chosen(result["contexts"], names, device)
        yield result


def rounds(turns: dict[str, Callable[[], Callable]], repeats: int, device: torch.device, label: str) -> dict[str, list[float]]:
    """Seconds of what each turn made ready, by name: all take turns, `repeats` rounds after one that is not counted."""
    def now():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    seconds = {name: [] for name in turns}
    with tqdm(total=(repeats + 1) * len(turns), desc=label, unit="turn", disable=None, leave=False) as bar:
        for _ in range(repeats + 1):
            for name, ready in turns.items():
                timed = ready()
                begun = now()
                timed()
                seconds[name].append(now() - begun)
                bar.update()
    return {name: counted[1:] for name, counted in seconds.items()}


def entry(name: str, turn: Turn, seconds: dict[str, list[float]], peak: float | None) -> dict:
    """The numbers of one turn. ratios: its speed over that of others; peak: FLOP/s of the device, None where not known."""
    rate = turn.tokens / statistics.median(seconds[name])
    pe = name.removesuffix(" triton")
    others = {"rope": "rope", "nope": "nope", "sdpa": "sdpa", "dense": f"{pe} dense", "flex": f"{pe} flex"}
    return {"seconds": seconds[name], "tokens": turn.tokens, "tokens_per_second": rate,
            "ratios": {to: statistics.median(b / a for a, b in zip(seconds[name], seconds[other]))
                       for to, other in others.items() if other in seconds},
            "mfu": rate * turn.flops / peak if peak and turn.flops else None, "memory": turn.memory(),
            **({"error": turn.error()} if turn.error else {})}


def chosen(contexts: dict[str, dict], names: list[str], device: torch.device) -> dict:
    """What attention's `auto` takes the Triton kernels for from now on: encodings for which they are right and faster at every context."""
    import kernels

    def better(entries, pe):
        ours, theirs = (entries.get(key) for key in (f"{pe} triton", pe))
        return bool(ours and theirs) and ours["error"] <= RIGHT and statistics.median(
            b / a for a, b in zip(ours["seconds"], theirs["seconds"])) > 1

    faster = [pe for pe in names if all(better(entries, pe) for entries in contexts.values())]
    return {**kernels.version(device), "faster": [posenc.build(pe, 1, 2, 2, 1)[0].names[0] for pe in faster]}


def train(setting: Setting, pe: str) -> dict[str, Turn]:
    shape = GPTConfig(size=setting.model)
    encoding = posenc.build(pe, shape.n_head, shape.n_embd, setting.context, 1)[0]
    return {pe + added: train_turn(setting, pe, path) for added, path in setting.paths(encoding).items()
            if added not in (" dense", " flex")}


def train_turn(setting: Setting, pe: str, path: str) -> Turn:
    model = setting.network(pe, setting.context, path).train()
    optimizer = optimizer_of(model)
    scaler = torch.amp.GradScaler(setting.device.type, enabled=setting.dtype == torch.float16)
    forward = setting.compiled(model)
    inputs, targets = setting.batch(model.config.vocab_size)

    def step():
        optimizer_step(model, forward, optimizer, scaler, inputs, targets, setting.dtype)

    def memory():
        moments = [x for state in optimizer.state.values() for x in state.values()]
        return _size([*model.parameters(), *model.buffers(), *moments]) + devices.memory_of(step, setting.device)

    return Turn(lambda: step, inputs.numel(), memory, model.flops_per_token(setting.context))


def optimizer_of(model: GPT) -> torch.optim.Optimizer:
    """That of train_gpt.py with its default settings, at the highest learning rate."""
    return torch.optim.AdamW(model.parameter_groups(weight_decay=0.1), lr=6e-4, betas=(0.9, 0.95), fused=True)


def optimizer_step(model: GPT, forward: Callable, optimizer, scaler, inputs: Tensor, targets: Tensor, dtype: torch.dtype) -> None:
    """A step of train_gpt.py from one micro-batch, (B, T) each; forward: the model, compiled or not."""
    with devices.autocast(inputs.device, dtype):
        loss = forward(inputs, targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    model.project()
    optimizer.zero_grad(set_to_none=True)


def attend(setting: Setting, pe: str) -> dict[str, Turn]:
    layers = trained_layers(setting, pe) if setting.layers else [random_layer(setting, pe)]  # (encoding, heads, x, projection) each
    encoding, _, x, _ = layers[0]
    grad = torch.randn_like(x, dtype=setting.dtype)
    pos = torch.arange(setting.context, device=setting.device)

    def plain(encoding, heads, x, projection):
        return F.scaled_dot_product_attention(*_qkv(projection, heads), is_causal=True)

    def encoded(path, encoding, heads, x, projection):
        q, k, v = _qkv(projection, heads)
        q, k = encoding.rotate(q, k, pos)
        inputs = q, k, v, encoding, *encoding.states(x, pos), q.size(-1) ** -0.5
        return flex(*inputs, causal) if path == "flex" else attention.attend(*inputs, path)

    def results(forward, learned):
        y = forward().transpose(1, 2).flatten(2)
        return y.detach(), *torch.autograd.grad(y, learned, grad.to(y.dtype), allow_unused=True)

    def turn(compute):
        forwards = [(setting.compiled(functools.partial(compute, *layer)), [*layer[2:], *layer[0].parameters()]) for layer in layers]

        def both():
            for forward in forwards:
                results(*forward)

        def error():
            pairs = [pair for forward, layer in zip(forwards, exact()) for pair in zip(results(*forward), layer)]
            errors = [relative_error(ours, right) for ours, right in pairs if right is not None and right.any()]
            return torch.tensor(errors).max().item()  # Python's max would pass over NaN

        return Turn(lambda: both, x.size(0) * x.size(1), lambda: devices.memory_of(both, setting.device),
                    error=None if compute is plain else error)

    @functools.cache
    def exact():
        """Output and gradients of the dense path in float32, by layer."""
        wide = [(*layer[:3], layer[3].detach().float().requires_grad_()) for layer in layers]
        return [results(functools.partial(encoded, "dense", *layer), [*layer[2:], *layer[0].parameters()]) for layer in wide]

    paths = setting.paths(encoding)
    causal = causal_blocks(setting) if " flex" in paths else None
    turns = {pe + added: turn(functools.partial(encoded, path)) for added, path in paths.items()}
    return turns | ({"sdpa": turn(plain)} if pe == BASELINES[0] else {})


def relative_error(x: Tensor, exact: Tensor) -> float:
    return ((x.float() - exact).norm() / exact.norm()).item()


def _qkv(projection, heads):
    return (y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in projection.chunk(3, -1))  # (B, H, T, D) each


def random_layer(setting: Setting, pe: str) -> tuple[posenc.Encoding, int, Tensor, Tensor]:
    """An untrained encoding, the number of heads, a normalised input (B, T, C) and its projection (B, T, 3 C)."""
    shape = GPTConfig(size=setting.model)
    torch.manual_seed(SEED)
    encoding = posenc.build(pe, shape.n_head, shape.n_embd, shape.block_size, 1)[0].to(setting.device)
    x = torch.randn(setting.micro_batch, setting.context, shape.n_embd, device=setting.device, requires_grad=True)
    projection = torch.randn(*x.shape[:2], 3 * shape.n_embd, device=setting.device, dtype=setting.dtype, requires_grad=True)
    return encoding, shape.n_head, x, projection


def trained_layers(setting: Setting, pe: str) -> list[tuple[posenc.Encoding, int, Tensor, Tensor]]:
    """The same of each layer of the trained model; its own encodings where `pe` is its encoding, else fresh ones."""
    found = []
    for layer in setting.layers:
        heads, x = layer.attn.heads, layer.x.float().detach()
        encoding = layer.encoding
        if pe in BASELINES:
            encoding = posenc.build(pe, heads, x.size(-1), setting.context, 1)[0].to(setting.device)
        projection = layer.attn.c_attn(x).to(setting.dtype).detach()
        found.append((encoding, heads, x.requires_grad_(), projection.requires_grad_()))
    return found


def reads(setting: Setting, model: GPT, checkpoint: dict) -> tuple[list[biases.Layer], dict]:
    """The model's layers as they read micro_batch windows of its validation text, and what its biases do there."""
    windows = Windows(shards.Shards(checkpoint["config"]["data"], "val"), setting.context)
    if len(windows) < setting.micro_batch:
        raise InputError(f"{windows.shards.folder} holds {len(windows)} windows of {setting.context:,} tokens: "
                         "lower --micro_batch or --context")
    tokens = windows.batch(evenly_spaced(len(windows), setting.micro_batch))[0].to(setting.device)
    with devices.autocast(setting.device, setting.dtype):
        found = biases.summary(model, tokens)
        if " triton" in setting.paths(model.posenc[0]):
            found["left_out"] = biases.left_out(model, tokens)
        return biases.layers(model, tokens), found


def flex(q: Tensor, k: Tensor, v: Tensor, encoding: posenc.Encoding, q_states: tuple, k_states: tuple, scale: float, causal) -> Tensor:
    """PyTorch's FlexAttention, whose score_mod is the encoding's own score: a rival, nothing here computes with it."""
    from torch.nn.attention.flex_attention import flex_attention

    def of(states, b, h, place):
        return tuple(s[b if s.size(0) > 1 else 0, h if s.size(1) > 1 else 0, place if s.size(2) > 1 else 0] for s in states)

    def score_mod(z, b, h, i, j):
        return z + encoding.score(of(q_states, b, h, i), of(k_states, b, h, j), h)

    return flex_attention(q, k, v, score_mod, causal, scale)


def causal_blocks(setting: Setting):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: i >= j, None, None, setting.context, setting.context, device=setting.device)


def possible(key: str, turn: Turn) -> bool:
    """Whether a rival computes this at all: where it cannot, which its compiler tells by errors of many kinds, the others go on."""
    try:
        turn.ready()()
        return True
    except Exception as error:
        print(f"{key}: not possible, {' '.join(str(error).split())[:200]}")
        return False


def generate(setting: Setting, pe: str) -> dict[str, Turn]:
    model = setting.network(pe, GPTConfig.block_size).eval()
    if setting.context > (model.max_context or setting.context):
        return {}
    new, vocab_size = min(NEW_TOKENS, setting.context // 2), model.config.vocab_size
    sampling = decoding.Sampling(max_new_tokens=new + 1, temperature=0, compile=setting.compile)  # the prompt gives the first
    torch.manual_seed(SEED)
    prompt = torch.randint(vocab_size, (setting.context - new,)).tolist()

    def ready():
        steps = decoding.generate(model, [prompt], sampling, vocab_size, -1, setting.device, setting.dtype)
        next(steps)
        return lambda: collections.deque(steps, maxlen=0)

    @torch.no_grad()
    def memory():
        cache = Cache(model, setting.context)
        with devices.autocast(setting.device, setting.dtype):
            model.hidden(torch.zeros(1, 1, dtype=torch.int64, device=setting.device), cache)
        return _size(buffer for layer in cache.layers for buffer in layer.buffers)

    return {pe: Turn(ready, new, memory)}


def evaluate(setting: Setting, pe: str) -> dict[str, Turn]:
    model = setting.network(pe, GPTConfig.block_size).eval()
    if setting.context > (model.max_context or setting.context):
        return {}
    inputs, targets = setting.batch(model.config.vocab_size)
    losses = setting.compiled(model.losses)

    def forward():
        with devices.autocast(setting.device, setting.dtype):
            losses(inputs, targets)

    return {pe: Turn(lambda: forward, inputs.numel(),
                     lambda: _size([*model.parameters(), *model.buffers()]) + devices.memory_of(forward, setting.device))}


def _size(tensors) -> int:
    return sum(x.nbytes for x in tensors)


# Name on the command line -> its function of setting and encoding: those that take turns, by name.
TURNS = {"train": train, "attention": attend, "generate": generate, "eval": evaluate}


def prepare(config: Config) -> dict:
    """Tokens per second of the preparation and of tiktoken alone, and their ratio."""
    encoding = corpus.tiktoken_encoding(config.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(config.source) if config.source else _embedded_corpus(Path(folder) / "stdlib.parquet")
        load = corpus.local([source])
        texts = [text for _, text in corpus.rows(str(source), config.text_column, load)]

        if not texts:
            raise InputError(f"{source} holds no rows: name another --source")

        def pipeline():
            meta = shards.Meta(Path(tempfile.mkdtemp(dir=folder)), {"dataset": "bench"})
            writer = shards.ShardWriter(meta, "train", 10**8)
            rows = corpus.rows(str(source), config.text_column, load, on_mark=writer.mark)
            corpus.tokenise(((writer, number, corpus.pieces(text)) for number, text in rows), encoding, [writer])
            return meta

        def tiktoken():
            encoding.encode_ordinary_batch(texts, num_threads=os.cpu_count())

        tokens = pipeline().value["splits"]["train"]["tokens"]
        seconds = rounds({"pipeline": lambda: pipeline, "tiktoken": lambda: tiktoken}, config.repeats, torch.device("cpu"), "prepare")
    rates = {name: tokens / statistics.median(counted) for name, counted in seconds.items()}
    ratio = rates["pipeline"] / rates["tiktoken"]
    print(f"prepare, {source.name}, {config.tokenizer}, {os.cpu_count()} cores, median of {config.repeats}: "
          f"{rates['pipeline']:,.0f} tokens/s to shards, {rates['tiktoken']:,.0f} tokens/s by tiktoken alone, ratio {ratio:.3f}")
    return {"source": source.name, "tokenizer": config.tokenizer, "documents": len(texts), "tokens": tokens,
            "tokens_per_second": rates, "ratio": ratio, "seconds": seconds}


def _embedded_corpus(path: Path) -> Path:
    """The embedded corpus as a parquet file, a row per source file."""
    import pyarrow
    import pyarrow.parquet

    texts = [file.read_text(encoding="utf-8", errors="replace") for file in corpus.standard_library()]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    return path


if __name__ == "__main__":
    cli.run(main)
