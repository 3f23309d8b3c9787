"""Measures how fast the programs of this repository are, and what each encoding costs.

    python bench.py train attention generate eval --encodings cable,alibi,fox --context 512,1024 --out results/bench/tiny.json
    python bench.py train --encodings cable,t5 --context 1024,4096 --model medium --micro_batch 8 --device cuda --out train.json
    python bench.py attention --run runs/medium/cable --context 4096,65536 --micro_batch 1      # as steep as training made it
    python bench.py prepare                                         # the embedded corpus, in a parquet file
    python bench.py prepare --source corpus.jsonl.xz --out prepare.json
    python report.py results/bench/tiny.json --out_dir results/bench

train: one optimizer step as train_gpt.py makes it, from a micro-batch of random tokens to new weights, trained at the context.
attention: attention alone, forward and backward, from the layer's projection and normalised input to its heads' outputs, with
all that the encoding adds: rotating, building its states, its bias; on a GPU the time that it is busy with it, for to launch so little
takes the host longer, which in a training step it hides. Beside it PyTorch's fused kernel without a bias (`sdpa`), and
the dense path of every bias that has a faster one; error is how far outputs and gradients are from those of the dense path in float32,
relatively, the largest of all. On a GPU, train and attention also take the Triton kernels, where they form the encoding's bias
(`cable triton`), and PyTorch's kernel pinned to one of its backends (`sdpa flash`, `rope cudnn`); attention also PyTorch's
FlexAttention with the encoding's score (`cable flex`), where it can compute that. All of random numbers, of which untrained falls let the
kernels leave out much (the record's `left_out`): `cable all tiles` leaves out nothing. With --run, of what every layer of that model
reads in its validation text, with its trained encoding, one layer after the other, `rope` and `nope` beside it. In train on a GPU an
encoding is computed by the kernels alone where its other path is the dense one.
Where Python finds the code of an encoding's authors (peers.py says which, and how), it takes part: `fox theirs` in attention on a GPU,
`cable-v1 theirs` in train.
With --objective mlm train, attention and eval are of encoders, which see both ways and restore 15% of the tokens.
generate: one text continued by the code of sample.py, the likeliest tokens, up to the context; reading the prompt is not timed.
eval: the losses of a micro-batch without gradients, as eval_extrapolation.py works them out.

What is compared takes turns, A B C A B C, after one round that is not counted: `rope`, `nope` and what belongs to them first, then every
encoding with `rope`, `nope` and `sdpa`; each is on record as soon as it is done. Speeds are those of the median turn. A ratio is the
median over rounds of the speed over the other's in the same round, which a machine that slows down for a while leaves as it is.
Memory is taken afterwards, in a turn of its own: weights, gradients and AdamW's moments with all that the turn adds (attention: what
it adds; generate: the cache), as PyTorch's allocators count it, on a CPU too.

prepare: a jsonl or parquet file becomes shards on the disk, by the code that prepares data, against tiktoken's own
`encode_ordinary_batch` on all cores, which gets the same texts in memory. The two take turns, after one round that is not
counted; told are medians. Timed are opening the file, reading, decompressing, tokenising, hashing, writing and syncing.
"""

import os
import re
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

from benchmarking import cases
from errors import InputError
from model import GPT, GPTConfig
from reporting import metrics
from runtime import cli, devices, loading, provenance
from runtime.files import write_json
from text_data import shards, text_sources, tokenization

COMPANIONS = (
    *cases.BASELINES,
    "rope flash",
    "rope cudnn",
    "sdpa",
    "sdpa flash",
    "sdpa cudnn",
)  # those that all take turns with


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
    objective: Literal["clm", "mlm"] = "clm"
    """clm: of decoders; mlm: of encoders, which restore masked tokens"""
    run: str | None = None
    """attention: a run whose encoding, objective, shape and inputs are taken, in place of --encodings, --model and random numbers"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """of matrix products; auto: bfloat16 where the hardware has it, float16 on GPUs without, float32 on CPUs without"""
    compile: bool | None = None
    """torch.compile; null: as the programs do, train and attention on GPUs, the others not"""
    source: str | None = None
    """prepare: jsonl or parquet file of texts; null: the embedded corpus"""
    text_column: str = "text"
    """prepare: column that holds the text"""
    tokenizer: Literal["bytes", "gpt2"] = "gpt2"
    """prepare: bytes or gpt2"""
    repeats: int = 5
    """rounds that are counted"""
    out: str | None = None
    """JSON file of the numbers, with hardware and versions"""

    def __post_init__(self):
        known = ", ".join(WHAT)
        problems = [
            f"'{name}' is not measured here: choose from {known}"
            for name in self.what
            if name not in WHAT
        ]
        if not self.what:
            problems.append(f"name what to measure: {known}")
        if (
            "prepare" in self.what
            and self.source
            and not (text_sources.table_format(Path(self.source)) and Path(self.source).is_file())
        ):
            problems.append(
                f"{self.source} is no jsonl or parquet file that is there: name another --source"
            )
        problems += ["--run is for attention alone: name no other benchmark"] * (
            self.run is not None and self.what != ["attention"]
        )
        problems += ["generate is of decoders: leave out it or --objective mlm"] * (
            "generate" in self.what and self.objective == "mlm"
        )
        problems += cli.check_minimums(self, micro_batch=1, repeats=1)
        if not re.fullmatch(r"\d+(,\d+)*", self.context) or min(self.contexts()) < 2:
            problems.append(
                f"context '{self.context}': give token counts of at least 2, as in 512,1024"
            )
        for pe in self.names():
            try:
                GPTConfig(size=self.model, pe=pe, causal=self.objective == "clm")
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(*dict.fromkeys(problems))

    def contexts(self) -> list[int]:
        return sorted({int(word) for word in self.context.split(",")})

    def names(self) -> list[str]:
        """The encodings, each once; a comma followed by `option=` belongs to one of them."""
        return list(dict.fromkeys((*cases.BASELINES, *re.split(r",(?!\w+=)", self.encodings))))


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("what", "what to measure: " + ", ".join(WHAT))
    )
    device, dtype = torch.device("cpu"), torch.float32
    if any(name in cases.BENCHMARKS for name in config.what):
        device, dtype = devices.select_device(config.device, config.dtype)
    trained = loading.load_model(config.run, device, dtype, causal=None) if config.run else None
    record = {
        **provenance.provenance(device),
        "processor": devices.processor(),
        "cores": os.cpu_count(),
    }
    if "prepare" in config.what:
        record |= {name: version(name) for name in ("tiktoken", "datasets")}

    def keep(name, result):
        record[name] = result
        if config.out:
            write_json(config.out, record)

    if config.out:
        write_json(
            config.out, record
        )  # a path that cannot be written shows before anything is measured
    for name in config.what:
        if name in ALONE:
            keep(name, ALONE[name](config))
        else:
            for result in measure(
                name, config, device, dtype, trained
            ):  # renewed after each encoding
                keep(name, result)
            print(f"\n{metrics.speed_summary(name, result)}\n")


def measure(
    name: str,
    config: Config,
    device: torch.device,
    dtype: torch.dtype,
    trained: tuple[GPT, dict] | None = None,
):
    """Yields the record of benchmark `name`, once for each encoding that is done. trained: what load_model found of --run."""
    compiles = (
        device.type == "cuda" and name in ("train", "attention")
        if config.compile is None
        else config.compile
    )
    result = {
        "model": config.model,
        "micro_batch": 1 if name == "generate" else config.micro_batch,
        "device": devices.describe(device),
        "dtype": str(dtype).removeprefix("torch."),
        "compile": compiles,
        "repeats": config.repeats,
        "contexts": {},
    }
    names, layers, causal = config.names(), 1, config.objective == "clm"
    if trained:
        layers, names = (
            trained[0].config.n_layer,
            list(dict.fromkeys((*cases.BASELINES, trained[0].config.pe))),
        )
        causal = trained[0].config.causal
        result |= {"run": Path(config.run).name, "model": trained[0].config.size, "biases": {}}
    result |= {} if causal else {"objective": "mlm"}
    if compiles:
        torch._dynamo.config.recompile_limit = (
            16 * len(names) * layers
        )  # models of all encodings, paths and layers run the same code
    for context in config.contexts():
        if compiles:
            torch.compiler.reset()  # or the second context would make it give up fixed shapes, which a training has
        setting = cases.Setting(
            config.model, config.micro_batch, context, device, dtype, compiles, causal
        )
        if trained:
            setting.layers, result["biases"][str(context)] = cases.reads(setting, *trained)
        entries = result["contexts"][str(context)] = dict.fromkeys(
            names
        )  # None: past the encoding's longest context, or no memory
        companions = {}
        for group in (cases.BASELINES, *([pe] for pe in names if pe not in cases.BASELINES)):
            label = f"{name} of {' and '.join(group)} at {context:,} tokens"
            try:
                found = {
                    key: turn
                    for pe in group
                    for key, turn in cases.BENCHMARKS[name](setting, pe).items()
                    if not turn.rival or cases.possible(key, turn)
                }
                if found:
                    readies = {key: turn.ready for key, turn in {**companions, **found}.items()}
                    clock = devices.busy_seconds_of if name == "attention" else devices.seconds_of
                    seconds = rounds(readies, config.repeats, device, label, clock)
                    entries |= {
                        key: entry(key, turn, seconds, devices.peak_flops(device, dtype))
                        for key, turn in found.items()
                    }
                    for pe in set(group) - found.keys():
                        del entries[pe]  # by the kernels alone
            except torch.OutOfMemoryError:
                if not companions:
                    raise InputError(
                        f"{label} does not fit into the GPU: a smaller --micro_batch or a shorter --context"
                    ) from None
                print(f"{label} does not fit into the GPU")
            companions = companions or {key: found[key] for key in COMPANIONS if key in found}
            yield result


def rounds(
    readies: dict[str, Callable[[], Callable]],
    repeats: int,
    device: torch.device,
    label: str,
    clock: Callable[[Callable, torch.device], float] = devices.seconds_of,
) -> dict[str, list[float]]:
    """Seconds of what each turn made ready, by name: all take turns, `repeats` rounds after one that is not counted."""
    seconds = {name: [] for name in readies}
    with tqdm(
        total=(repeats + 1) * len(readies), desc=label, unit="turn", disable=None, leave=False
    ) as bar:
        for _ in range(repeats + 1):
            for name, ready in readies.items():
                seconds[name].append(clock(ready(), device))
                bar.update()
    return {name: counted[1:] for name, counted in seconds.items()}


def entry(
    name: str, turn: cases.BenchmarkCase, seconds: dict[str, list[float]], peak: float | None
) -> dict:
    """The numbers of one turn. others: seconds of those that it took turns with, ratios: its speed over theirs; peak: FLOP/s of the
    device, None where not known.
    """
    rate = turn.tokens / statistics.median(seconds[name])
    pe = name.removesuffix(" triton").removesuffix(" all tiles")
    plain = "sdpa" if "sdpa" in seconds else "rope"
    others = {
        "rope": "rope",
        "nope": "nope",
        "sdpa": "sdpa",
        "flash": f"{plain} flash",
        "cudnn": f"{plain} cudnn",
        "dense": f"{pe} dense",
        "flex": f"{pe} flex",
        "theirs": f"{pe} theirs",
    }
    others = {to: seconds[other] for to, other in others.items() if other in seconds}
    return {
        "seconds": seconds[name],
        "others": others,
        "tokens": turn.tokens,
        "tokens_per_second": rate,
        "ratios": {
            to: statistics.median(b / a for a, b in zip(seconds[name], theirs))
            for to, theirs in others.items()
        },
        "mfu": rate * turn.flops / peak if peak and turn.flops else None,
        "memory": turn.memory(),
        **{key: of() for key, of in (("error", turn.error), ("left_out", turn.left_out)) if of},
    }


def prepare(config: Config) -> dict:
    """Tokens per second of the preparation and of tiktoken alone, and their ratio."""
    encoding = tokenization.tiktoken_encoding(config.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        source = (
            Path(config.source)
            if config.source
            else _embedded_corpus(Path(folder) / "stdlib.parquet")
        )
        load = text_sources.load_arguments([source])
        texts = [text for _, text in text_sources.read_rows(str(source), config.text_column, load)]

        if not texts:
            raise InputError(f"{source} holds no rows: name another --source")

        def pipeline():
            meta = shards.Meta(Path(tempfile.mkdtemp(dir=folder)), {"dataset": "bench"})
            writer = shards.ShardWriter(meta, "train", 10**8)
            rows = text_sources.read_rows(
                str(source), config.text_column, load, on_state=writer.save_source_state
            )
            tokenization.tokenize_documents(
                ((writer, number, text_sources.split_text(text)) for number, text in rows),
                encoding,
                [writer],
            )
            return meta

        def tiktoken():
            encoding.encode_ordinary_batch(texts, num_threads=os.cpu_count())

        tokens = pipeline().value["splits"]["train"]["tokens"]
        seconds = rounds(
            {"pipeline": lambda: pipeline, "tiktoken": lambda: tiktoken},
            config.repeats,
            torch.device("cpu"),
            "prepare",
        )
    rates = {name: tokens / statistics.median(counted) for name, counted in seconds.items()}
    ratio = rates["pipeline"] / rates["tiktoken"]
    print(
        f"prepare, {source.name}, {config.tokenizer}, {os.cpu_count()} cores, median of {config.repeats}: "
        f"{rates['pipeline']:,.0f} tokens/s to shards, {rates['tiktoken']:,.0f} tokens/s by tiktoken alone, ratio {ratio:.3f}"
    )
    return {
        "source": source.name,
        "tokenizer": config.tokenizer,
        "documents": len(texts),
        "tokens": tokens,
        "tokens_per_second": rates,
        "ratio": ratio,
        "seconds": seconds,
    }


def _embedded_corpus(path: Path) -> Path:
    """The embedded corpus as a parquet file, a row per source file."""
    import pyarrow
    import pyarrow.parquet

    texts = [
        file.read_text(encoding="utf-8", errors="replace")
        for file in text_sources.standard_library_files()
    ]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    return path


ALONE = {"prepare": prepare}  # what takes no turns with encodings
WHAT = (*cases.BENCHMARKS, *ALONE)


if __name__ == "__main__":
    cli.run(main)
