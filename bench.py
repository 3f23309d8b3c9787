"""Benchmark training, attention, generation and evaluation.

    python bench.py train attention --encodings cable,alibi --context 512,1024 --out out.json
    python bench.py train --encodings cable,t5 --model medium --micro_batch 8 --device cuda
    python bench.py compare --out results/bench/compare.json
    python report.py out.json --out_dir results/bench

train      optimizer steps of train_gpt.py on random tokens: --steps of
           --micro_batches each, and where the time of one profiled round goes
attention  attention alone, forward and backward, with everything the encoding
           adds (rotation, features, bias), by every path. `sdpa` is PyTorch's
           fused kernel without an encoding. Prints which path to pass.
generate   greedy generation up to the context; reading the prompt is not timed
eval       the losses of a micro-batch without gradients
compare    ratios to other people's code; what is missing is named and skipped

`rope` and `nope` are measured together with every other encoding, and
cases are interleaved. docs/performance.md explains the columns, and
what a GPU adds.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Literal

from runtime import cli, devices, job_report
from runtime.files import write_json

import torch

from benchmarking import comparison
from benchmarking.cases import BENCHMARKS, build_cases
from benchmarking.profiles import measure_gpu_seconds, measure_seconds
from benchmarking.setting import BASELINES, BenchmarkCase, Setting, interleave, make_entry
from errors import InputError
from model import GPTConfig
from reporting.tables import comparison_table, speed_table, time_table
from setting import setting
from training.settings import plugin_setting

# Cases that are measured together with every other encoding.
COMPANIONS = (*BASELINES, "rope flash", "rope cudnn", "sdpa", "sdpa flash", "sdpa cudnn")


@dataclass
class Config:
    """Settings of a benchmark."""

    what: list[str] = setting([], positional=True)
    """benchmarks to run: train, attention, generate, eval; or compare"""
    encodings: str = "cable"
    """positional encodings in addition to rope and nope, separated by commas"""
    plugin: dict[str, str] | None = plugin_setting()
    """Python file with encodings of your own; may be repeated"""
    context: str = "1024"
    """context lengths in tokens, separated by commas; compare: one"""
    model: str = "tiny"
    """size of the model: quickstart, tiny, small, medium, large or xl"""
    micro_batch: int = setting(4, 1, 10**9)
    """train, attention, eval, compare (training): sequences per pass"""
    steps: int = setting(1, 1, 10**6)
    """train: optimizer steps of a round"""
    micro_batches: int = setting(1, 1, 10**6)
    """train: passes of an optimizer step, as many as the recipe's tokens_per_step has"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """dtype of matrix products; auto: bfloat16 if the hardware supports it, otherwise float16 on
    GPUs and float32 on CPUs"""
    repeats: int = setting(5, 1, 10**6)
    """counted rounds"""
    out: str | None = None
    """JSON file for the record, with hardware and versions"""

    def __post_init__(self):
        known, problems = (*BENCHMARKS, "compare"), []
        for name in {*self.what} - {*known}:
            problems.append(f"unknown benchmark '{name}': choose from {', '.join(known)}")
        if not self.what:
            problems.append(f"name a benchmark: {', '.join(known)}")
        if "compare" in self.what and (len(self.what) > 1 or "," in self.context):
            problems.append("compare runs alone, at one context: remove the others")
        if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", self.context) or min(self.contexts()) < 2:
            problems.append(f"context '{self.context}': pass lengths above 1, as in 512,1024")
        for pe in self.names():
            try:
                GPTConfig(size=self.model, pe=pe)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(*dict.fromkeys(problems))

    def contexts(self) -> list[int]:
        """Return the context lengths, ascending."""
        return sorted({int(word) for word in self.context.split(",")})

    def names(self) -> list[str]:
        """Return the encodings, each once. A comma before `option=` is part of one."""
        own = re.split(r",(?!\w+=)", self.encodings)
        return list(dict.fromkeys((*BASELINES, *own)))


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    device, dtype = devices.select_device(config.device, config.dtype)
    record = devices.provenance(device)
    record |= {"processor": devices.cpu_name(), "cores": os.cpu_count()}
    if find_spec("transformers"):
        record["transformers"] = version("transformers")
    if config.plugin:
        record["plugin"] = config.plugin
    if config.out:
        write_json(config.out, record)  # fails before anything is measured
    for name in config.what:
        for result in measure(name, config, device, dtype):
            record[name] = result  # updated after each encoding
            if config.out:
                write_json(config.out, record)
        if name == "compare":
            print(f"\n{comparison_table(record).text()}\n")
        else:
            for table in filter(None, (speed_table(name, result), time_table(result))):
                print(f"\n{table.text()}\n")
    if config.out:
        job_report.append(records=[config.out])


def measure(name: str, config: Config, device: torch.device, dtype: torch.dtype) -> Iterator[dict]:
    """Yield the result of a benchmark after each encoding, or row of the comparison."""
    compiles = device.type == "cuda" and name in ("train", "attention")  # as in training
    result: dict = {
        "model": config.model,
        "micro_batch": 1 if name == "generate" else config.micro_batch,
        "device": devices.describe(device),
        "dtype": str(dtype).removeprefix("torch."),
        "compile": compiles,
        "repeats": config.repeats,
    }
    if name == "train":
        result |= {"steps": config.steps, "micro_batches": config.micro_batches}
    settings = [
        Setting(
            config.model,
            config.micro_batch,
            context,
            device,
            dtype,
            compiles,
            config.steps,
            config.micro_batches,
        )
        for context in config.contexts()
    ]
    if name == "compare":
        (setting,) = settings
        result |= {"context": setting.context, "rows": [], "skipped": {}}
        for row in comparison.measure_rows(setting, config.repeats, result["skipped"]):
            result["rows"].append(row)
            yield result
        return
    result["contexts"] = {}
    for setting in settings:
        # None: beyond the encoding's longest context, or out of memory
        entries = result["contexts"][str(setting.context)] = dict.fromkeys(config.names())
        for _ in measure_encodings(name, config, setting, entries):
            yield result


def measure_encodings(
    name: str, config: Config, setting: Setting, entries: dict[str, dict | None]
) -> Iterator[None]:
    """Add the entries of all cases at one context; yield after each encoding."""
    device = setting.device
    clock = measure_gpu_seconds if name == "attention" else measure_seconds
    peak = devices.peak_flops(devices.describe(device), setting.dtype)
    if setting.compile:
        # Otherwise the second context would be compiled for dynamic shapes.
        torch.compiler.reset()
        # Models of all encodings and paths share the same code objects.
        torch._dynamo.config.recompile_limit = 16 * len(config.names())
    companions: dict[str, BenchmarkCase] = {}
    for group in (BASELINES, *([pe] for pe in config.names() if pe not in BASELINES)):
        label = f"{name} of {' and '.join(group)} at {setting.context:,} tokens"
        try:
            cases = build_cases(name, setting, group)
            if cases:
                prepare = {key: case.prepare for key, case in {**companions, **cases}.items()}
                seconds = interleave(prepare, config.repeats, device, label, clock)
                for key, case in cases.items():
                    entries[key] = make_entry(key, case, seconds, peak)
        except torch.OutOfMemoryError:
            if not companions:
                raise InputError(
                    f"{label} does not fit into the GPU: lower --micro_batch or --context"
                ) from None
            print(f"{label} does not fit into the GPU")
        else:
            print_fastest_paths(cases, entries, label)
            for pe in set(group) - cases.keys() if cases else ():
                del entries[pe]  # measured by the Triton kernels only
            companions = companions or {key: cases[key] for key in COMPANIONS if key in cases}
        yield


def print_fastest_paths(cases: dict[str, BenchmarkCase], entries: dict, label: str) -> None:
    """Print which path to pass for each encoding whose attention was timed."""
    paths: dict[str, dict[str, str]] = {}
    for key, case in cases.items():
        if case.path:
            paths.setdefault(key.partition(" ")[0], {})[key] = case.path
    for pe, names in paths.items():
        key = max(names, key=lambda key: entries[key]["tokens_per_second"])
        path = names[key].replace("batched", "auto")  # which a CPU takes by itself
        print(f"{label}: for {pe} pass --attention {path}, error {entries[key]['error']:.1g}")


if __name__ == "__main__":
    cli.run(main)
