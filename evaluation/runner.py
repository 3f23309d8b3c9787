"""Evaluation of runs, and the JSON records next to their checkpoints.

A program defines its config, plans of what to measure on a run, and the measurement:

    @dataclass
    class Config(TextEvaluationConfig): ...
    def plan(run, checkpoint, shards, config) -> list[Plan]: ...
    def measure(loaded: LoadedRun, length: int, ...) -> dict: ...

    run_evaluation(config, plan)

All runs are planned before anything is computed. Under torchrun every rank measures its part of the
text, and rank 0 writes.

A record (docs/evaluation.md) is written after each length. Results with the same identity are kept,
also those that other evaluations add meanwhile.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runtime import devices, distributed, job_report
from runtime.files import locked, run_folder_of, write_json
from runtime.validation import check, find_mismatch

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import attention
from data_loader import Shards, Windows, evenly_spaced
from errors import InputError
from evaluation import record_schema
from kv_cache import CACHE_CHUNK, Cache
from losses import cross_entropies
from model import GPT
from setting import setting
from text_data.tokenizer import same_tokenizer
from training.checkpoints import (
    checkpoint_path,
    load_checkpoint,
    load_model,
    runs_among,
    trained_steps,
)
from training.settings import plugin_setting, training_settings

Ranks = tuple[distributed.Processes, torch.device, torch.dtype]
# Tokens per forward pass of an evaluation, with padding, or one longer text.
BATCH_TOKENS = 16_384


@dataclass
class RunsConfig:
    """Settings of every evaluation program, also of retrieval.evaluate."""

    runs: list[str] = setting([], positional=True)
    """run folders, or checkpoint files"""
    plugin: dict[str, str] | None = plugin_setting()
    """Python file with encodings of your own; may be repeated"""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """dtype of matrix products; auto: bfloat16 if the hardware supports it"""

    def __post_init__(self):
        if not self.runs:
            raise InputError("no run given: pass run folders, for example runs/NAME")


@dataclass
class EvaluationConfig(RunsConfig):
    """Settings of the evaluation of checkpoints."""

    attention: Literal["auto", "sdpa", "dense", "triton"] = "auto"
    """attention implementation (see attention.py)"""


@dataclass
class TextEvaluationConfig(EvaluationConfig):
    """Settings of the programs that evaluate runs on a text."""

    data: str | None = None
    """data folder; null: the data that the run was trained on"""
    split: str = "val"
    """split of the data"""


@dataclass
class LoadedRun:
    """A run's model on this rank, and how it is evaluated."""

    path: str
    model: GPT
    checkpoint: dict  # without the weights
    processes: distributed.Processes
    device: torch.device
    dtype: torch.dtype  # of matrix products

    def identity(self) -> dict:
        """Return what identifies the checkpoint and the computation."""
        model, checkpoint = self.model, self.checkpoint
        network = checkpoint["gpt"]
        identity = {name: network[name] for name in ("pe", "size", "block_size")}
        if not model.config.causal:
            identity["objective"] = "mlm"
        if not checkpoint["step"] and (steps := trained_steps(checkpoint)) is not None:
            identity["init_steps"] = steps
        identity |= {
            "step": checkpoint["step"],
            "seed": checkpoint["config"]["seed"],
            "settings": training_settings(checkpoint),
            "training_text": checkpoint["data"]["sha256"],
            "parameters": model.parameter_count(),
            "checkpoint_sha256": checkpoint["sha256"],
            "dtype": str(self.dtype).removeprefix("torch."),
            "attention": attention.join_names(model.attention_paths),
        }
        if plugin := checkpoint["config"].get("plugin"):
            identity["plugin"] = plugin
        return identity

    def batches(self, items: np.ndarray, tokens: int, label: str, unit: str) -> Iterator:
        """Yield this rank's batches of the items, of BATCH_TOKENS or one item.

        tokens: per item. label, unit: of the progress bar. Ranks' numbers of batches differ by at
        most one.
        """
        size = self.processes.world_size
        rounds = -(-len(items) // (size * max(1, BATCH_TOKENS // tokens)))
        batches = np.array_split(items, min(len(items), size * rounds))
        own = batches[self.processes.rank :: size]
        title, total = f"{Path(self.path).name} {label}", sum(map(len, own))
        with tqdm(total=total, desc=title, unit=unit, disable=None) as bar:
            for batch in own:
                yield batch
                bar.update(len(batch))

    def losses(
        self,
        tokens: Tensor,
        targets: Tensor,
        positions: Tensor | None = None,
        cache_window: int | None = None,
    ) -> np.ndarray:
        """Return the losses (B, t) float64 of targets on the CPU; see GPT.loss.

        cache_window: see `windowed_losses`.
        """
        tokens, targets = tokens.to(self.device), targets.to(self.device)
        positions = None if positions is None else positions.to(self.device)
        with devices.autocast(self.device, self.dtype):
            if cache_window:
                losses = windowed_losses(self.model, tokens, targets, cache_window)
            else:
                losses = self.model.loss(tokens, targets, positions, reduction="none")
        return losses.double().cpu().numpy()

    def sum(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of the arrays of all ranks, computed in place."""
        self.processes.sum(torch.from_numpy(array))
        return array


@torch.no_grad()
def windowed_losses(model: GPT, tokens: Tensor, targets: Tensor, window: int) -> Tensor:
    """Return cross-entropies in nats (B, t) float32 of the last t tokens' targets.

    No token attends `window` tokens back or further, and memory does not grow with the text: it is
    read through a cache.
    """
    first = tokens.size(1) - targets.size(1)  # position of the first target
    cache, losses = Cache(model, window=window), []
    for start in range(0, tokens.size(1), CACHE_CHUNK):
        hidden = model.hidden(tokens[:, start : start + CACHE_CHUNK], cache)
        hidden = hidden[:, max(0, first - start) :]
        if hidden.size(1) > 0:
            part = targets[:, max(0, start - first) :][:, : hidden.size(1)]
            losses.append(cross_entropies(hidden, model.output_embeddings, part))
    return torch.cat(losses, 1)


@dataclass(kw_only=True)
class Plan:
    """What to measure on one run, for one record."""

    measure: Callable[[LoadedRun, int], dict]  # returns the entry of a length
    value: str  # of an entry, in the printed table
    shards: Shards  # the text
    lengths: list[int]  # ascending; the record has one entry for each
    protocol: dict  # part of the record's identity
    identity: dict  # further entries of the record's identity
    # words of the record's file name before and after those of the text
    file_words: tuple[list[str], list[str]]
    extra_inputs: int = 0  # input tokens in addition to the length


def run_evaluation(
    config: TextEvaluationConfig,
    plan_run: Callable[..., list[Plan]],
    causal: bool | None = True,
) -> None:
    """Evaluate every run of the config and print tables of the results.

    plan_run(run, checkpoint, shards, config): returns a Plan for each record; raises InputError if
    it cannot be evaluated. causal: of load_model.
    """
    with evaluation_ranks(config) as ranks:
        plans = []
        config.runs = runs_among(config.runs)
        for run in config.runs:
            checkpoint = load_checkpoint(run, causal)
            shards = shards_for_run(run, checkpoint, config.data, config.split)
            plans.append(plan_run(run, checkpoint, shards, config))
        tables = {}  # value -> {path of a record: its results by length}
        for run, run_plans in zip(config.runs, plans, strict=True):
            loaded = load_run(run, config, ranks, causal=causal)
            for plan in run_plans:
                before, after = plan.file_words
                dataset = plan.shards.meta["dataset"]
                path = record_path(run, "eval", *before, dataset, config.split, *after)
                tables.setdefault(plan.value, {})[str(path)] = _evaluate(loaded, plan, path)
            del loaded  # before the next model takes memory
        for value, results in tables.items():
            print_table(results, value)


@contextlib.contextmanager
def evaluation_ranks(config: EvaluationConfig) -> Iterator[Ranks]:
    """Yield torchrun's ranks, the device, and the dtype of products."""
    with distributed.process_group() as processes:
        device, dtype = devices.select_device(config.device, config.dtype, processes.local_rank)
        yield processes, device, dtype


def load_run(run: str, config: EvaluationConfig, ranks: Ranks, **options) -> LoadedRun:
    """Return a run's newest checkpoint, or a file, ready to be evaluated.

    One rank chooses it, because a training may write another one. Raises InputError if ranks have
    read different weights.
    """
    processes, device, dtype = ranks
    path = processes.gather(str(checkpoint_path(run)))[0]
    model, checkpoint = load_model(path, device, config.attention, dtype=dtype, **options)
    if len({*processes.gather(checkpoint["sha256"])}) > 1:
        what = f"ranks have read different weights from {path}"
        raise InputError(f"{what}: use a folder that all machines share")
    return LoadedRun(run, model, checkpoint, processes, device, dtype)


def _evaluate(loaded: LoadedRun, plan: Plan, path: Path) -> dict:
    """Update one record of a run; return its results at the planned lengths."""
    loaded.model.set_vocabulary(plan.shards.vocab_size)
    shards = plan.shards
    data = {"dataset": shards.meta["dataset"], "split": shards.split}
    data |= {"tokenizer": shards.tokenizer, "sha256": shards.sha256}
    identity = {
        **loaded.identity(),
        "data": data,
        "protocol": plan.protocol,
        **plan.identity,
    }

    def measure(length: int) -> dict | None:
        limit = loaded.model.max_context or math.inf
        is_supported = length + plan.extra_inputs <= limit
        return plan.measure(loaded, length) if is_supported else None

    ranks = loaded.device, loaded.processes
    record = update_record(loaded.path, path, identity, plan.lengths, measure, *ranks)
    return record["lengths"]


def spaced_windows(
    shards: Shards, length: int, count: int, least: int
) -> tuple[Windows, np.ndarray]:
    """Return windows, and the numbers of at most `count` evenly spaced ones.

    Raises InputError if the text has fewer than `least`.
    """
    windows = Windows(shards, length)
    if len(windows) < least:
        raise InputError(
            f"{shards.folder} ({shards.split}) has fewer than {least} windows of {length:,} "
            "tokens: use shorter contexts, or prepare more text"
        )
    return windows, evenly_spaced(len(windows), count)


def print_table(results: dict[str, dict], value: str) -> None:
    """Print a value by length; results: {name: {length: entry or None}}."""
    lengths = sorted({int(length) for entries in results.values() for length in entries})
    width = max(map(len, [value, *results]))
    print(f"\n{value:{width}}", *(f"{length:>10,}" for length in lengths))
    for name, entries in results.items():
        found = (entries.get(str(length)) for length in lengths)
        cells = (f"{x[value]:10,.2f}" if x else f"{'—':>10}" for x in found)
        print(f"{name:{width}}", *cells)


# Records


def make_header(run: str | Path, identity: dict) -> dict:
    """Return a record's first fields; raise InputError for invalid names."""
    folder = Path(run).absolute()
    header = {"run": folder.name, "folder": folder.parent.name, **identity}
    check(header, record_schema.Header, run, "rename the run, the data or the split")
    return header


def record_path(run: str | Path, *parts: str) -> Path:
    """Return the path of a record; a checkpoint file's name is at its end."""
    folder = run_folder_of(run)
    checkpoint_name = [] if folder == Path(run) else [Path(run).stem]
    return folder / f"{'_'.join([*parts, *checkpoint_name])}.json"


def existing_record(path: Path, identity: dict) -> dict:
    """Return the record with this identity, or {}: it may be replaced.

    Raises InputError if it is corrupt, or of another text or protocol: its results would be lost.
    """
    if not path.exists():
        return {}
    (record,) = record_schema.read_records([path], "rename it or remove it").values()
    for key, name in (("data", "text"), ("protocol", "protocol")):
        if key in record and record[key] != identity.get(key):
            raise InputError(f"{path} is of another {name}: rename it or remove it")
    same = all(record.get(key) == value for key, value in identity.items())
    return record if same else {}


def update_record(
    run: str | Path,
    path: Path,
    identity: dict,
    lengths: list[int],
    measure: Callable[[int], dict | None],
    device: torch.device,
    processes: distributed.Processes | None = None,
    **facts,
) -> dict:
    """Add missing lengths to the record at `path`; return it with `lengths`.

    measure: returns the entry of a length; None if it is not supported. All processes measure, rank
    0 writes; None: this process alone.
    facts: further values of the provenance. Raises InputError for NaN or Inf.
    """
    header = make_header(run, identity)
    processes = processes or distributed.Processes()
    if path.exists() and not existing_record(path, identity):
        print(f"{path} is of another checkpoint, dtype or setting: its results are replaced")
    known, is_repeated = {}, True
    for length in lengths:
        # also of evaluations that run at the same time
        known |= processes.gather(_recorded(path, identity))[0]
        if str(length) not in known:
            is_repeated = False
            known[str(length)] = measure(length)
            if processes.rank == 0:
                provenance = devices.provenance(device) | facts
                _merge_and_write(run, path, identity, known, provenance)
    report_record(run, path, processes, is_repeated)
    return {**header, "lengths": {str(length): known[str(length)] for length in lengths}}


def _recorded(path: Path, identity: dict) -> dict:
    """Return the entries by length of the record with this identity, or {}."""
    return existing_record(path, identity).get("lengths", {})


def _merge_and_write(
    run: str | Path, path: Path, identity: dict, known: dict, provenance: dict
) -> None:
    """Write entries by length, and those that the record has by now."""
    with locked(path):
        known |= _recorded(path, identity)
        lengths = {length: known[length] for length in sorted(known, key=int)}
        results = {"lengths": lengths, "provenance": provenance}
        write_record(run, path, make_header(run, identity) | results)


def report_record(
    run: str | Path, path: Path, processes: distributed.Processes, is_repeated: bool
) -> None:
    """Print a record's path, and report it to run_experiment.py."""
    if is_repeated:
        print(f"{run} is already evaluated")
    print(f"record: {path}")
    if processes.rank == 0:
        job_report.append(records=[str(path)], repeated=is_repeated)


def mean_with_error(name: str, values: np.ndarray) -> dict[str, float | None]:
    """Return fields of an entry: the mean of (n,) values, and its standard error.

    The error of a single value is None.
    """
    count = len(values)
    error = float(values.std(ddof=1) / math.sqrt(count)) if count > 1 else None
    return {name: float(values.mean()), f"{name}_se": error}


def write_record(run: str | Path, path: Path, record: dict) -> None:
    """Write a record. Raises InputError if its results contain NaN or Inf."""
    read = json.loads(json.dumps(record))  # NumPy's floats become Python's
    if problem := find_mismatch(read, record_schema.schema_of(read)):
        raise InputError(
            f"{run}: the results are NaN, Inf or out of range ({problem}): "
            "evaluate with --dtype float32, or train again with a lower --lr"
        )
    write_json(path, record)


def shards_for_run(
    run: str | Path, checkpoint: dict, folder: str | None, split: str = "val"
) -> Shards:
    """Return a split of `folder` or, if None, of the run's training data."""
    folder = folder or checkpoint["config"]["data"]
    if folder is None:
        raise InputError(f"the training data of {run} is unknown: pass --data FOLDER")
    shards = Shards(folder, split)
    run_tokenizer = checkpoint["data"]["tokenizer"]
    if not same_tokenizer(shards.tokenizer, run_tokenizer):
        source = run_folder_of(run) if "@" in run_tokenizer else run_tokenizer
        raise InputError(
            f"{folder} holds {shards.tokenizer} tokens, but {run} was trained on {run_tokenizer} "
            f"tokens: pass other --data, prepared with --tokenizer {source}"
        )
    return shards
