"""Common settings and runner of the evaluation programs.

A program defines its config, a plan of what to measure on one run, and the measurement:

    @dataclass
    class Config(TextEvaluationConfig): ...
    def plan(run: str, config: Config) -> Plan: ...
    def measure(model, plan, length, device, dtype) -> dict: ...

    with evaluation_ranks(config, config.dtype) as ranks:
        records = run_evaluation(config, plan, measure, ranks)

All runs are planned before anything is computed, so that invalid input costs no computing time.
Each run gets one record (records.py), which is written after each length. Under torchrun every rank
measures its part of the windows, and rank 0 writes.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtime import devices, distributed
from runtime.loading import load_model

import numpy as np
import torch
from tqdm import tqdm

from errors import InputError
from evaluation.records import record_identity, record_path, update_record
from model import GPT
from text_data.data_loader import BATCH_TOKENS
from text_data.shards import Shards

Ranks = tuple[distributed.Processes, torch.device, torch.dtype]
RUNS_ARGUMENT = ("runs", "run folders or checkpoint files")  # for cli.parse


@dataclass
class EvaluationConfig:
    """Settings of every evaluation program."""

    runs: list[str] = field(default_factory=list)
    """run folders or checkpoint files"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    attention: Literal["auto", "sdpa", "dense", "triton"] = "auto"
    """attention implementation (see attention.py)"""

    def __post_init__(self):
        if problems := self.problems():
            raise InputError(*problems)

    def problems(self) -> list[str]:
        """Return one line for each invalid setting; subclasses add their own."""
        return [] if self.runs else ["no run given: pass run folders, for example runs/NAME"]


@dataclass
class TextEvaluationConfig(EvaluationConfig):
    """Settings of the programs that evaluate runs on a text."""

    data: str | None = None
    """data folder; null: the data that the run was trained on"""
    split: str = "val"
    """split of the data"""


@dataclass(kw_only=True)
class Plan:
    """What to measure on one run. A program adds its own fields."""

    run: str  # run folder or checkpoint file
    shards: Shards  # the text
    lengths: list[int]  # ascending; the record has one entry for each
    protocol: dict  # part of the record's identity
    identity: dict  # further entries of the record's identity
    record_name: list[str]  # words of the record's file name, after "eval"
    extra_inputs: int = 0  # input tokens of a forward pass in addition to the length
    processes: distributed.Processes = field(default_factory=distributed.Processes)

    @property
    def label(self) -> str:
        """The run's name in progress bars."""
        return Path(self.run).name


def run_evaluation(
    config: EvaluationConfig,
    plan_run: Callable[..., Plan],
    measure: Callable[..., dict],
    ranks: Ranks,
    **load_options,
) -> list[dict]:
    """Evaluate every run of the config; return the records with the planned lengths.

    plan_run(run, config): returns the run's Plan. Raises InputError if the run cannot be evaluated.
    measure(model, plan, length, device, dtype): returns the record's entry for one length.
    ranks: of evaluation_ranks. load_options: passed to load_model.
    """
    processes, device, dtype = ranks
    plans = [plan_run(run, config) for run in config.runs]
    for plan in plans:
        plan.processes = processes
    return [
        _evaluate(plan, measure, config.attention, device, dtype, load_options) for plan in plans
    ]


@contextlib.contextmanager
def evaluation_ranks(config: EvaluationConfig, dtype: str) -> Iterator[Ranks]:
    """Yield torchrun's ranks or this process alone, its device, and the dtype of products."""
    with distributed.process_group() as processes:
        local_rank = processes.local_rank if processes.world_size > 1 else None
        yield processes, *devices.select_device(config.device, dtype, local_rank)


def _evaluate(
    plan: Plan,
    measure: Callable[..., dict],
    attention: str,
    device: torch.device,
    dtype: torch.dtype,
    load_options: dict,
) -> dict:
    """Update the record of one run and return it with the planned lengths."""
    model, checkpoint = load_model(plan.run, device, attention, dtype=dtype, **load_options)
    model.set_vocabulary(plan.shards.vocab_size)
    identity = {
        **record_identity(model, checkpoint, dtype),
        "data": plan.shards.identity,
        "protocol": plan.protocol,
        **plan.identity,
    }

    def measure_length(length: int) -> dict | None:
        if not supports(model, length + plan.extra_inputs):
            return None
        return measure(model, plan, length, device, dtype)

    path = record_path(plan.run, "eval", *plan.record_name)
    return update_record(
        plan.run, path, identity, plan.lengths, measure_length, device, plan.processes
    )


def measure_batches(
    plan: Plan, measure: Callable, items: np.ndarray, tokens: int, label: str, unit: str
) -> list:
    """Return measure(batch) of all batches of the items, computed on all ranks, in order.

    tokens: per item; a batch has at most BATCH_TOKENS. label, unit: of the progress bar.
    """
    batches = np.array_split(items, -(-len(items) // max(1, BATCH_TOKENS // tokens)))
    own = batches[plan.processes.rank :: plan.processes.world_size]
    results = []
    with tqdm(total=sum(map(len, own)), desc=label, unit=unit, disable=None) as bar:
        for batch in own:
            results.append(measure(batch))
            bar.update(len(batch))
    return interleave(plan.processes.gather(results))


def interleave(parts: list[list]) -> list:
    """Return the values of all ranks in order; parts: rank r has values r, r + world size, ..."""
    rounds = itertools.zip_longest(*parts)
    return [value for each in rounds for value in each][: sum(map(len, parts))]


def supports(model: GPT, inputs: int) -> bool:
    """Return whether the model's encoding supports so many input tokens."""
    return model.max_context is None or inputs <= model.max_context
