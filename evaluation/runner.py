"""Evaluation of runs, and the JSON records next to their checkpoints that hold what was measured.

A program defines its config, a plan of what to measure on one run, and the measurement:

    @dataclass
    class Config(TextEvaluationConfig): ...
    def plan(run: str, config: Config) -> Plan: ...
    def measure(model, plan, length, device, dtype) -> dict: ...

    with evaluation_ranks(config, config.dtype) as ranks:
        records = run_evaluation(config, plan, measure, ranks)

All runs are planned before anything is computed, so that invalid input costs no computing time.
Under torchrun every rank measures its part of the windows, and rank 0 writes.

A record holds the names of its run, an identity (which checkpoint, which text, which protocol, how
it was computed), results by context length, and its provenance (command, commit, versions,
hardware). It is written after each length. Results with the same identity are kept: a repeated
command computes what is missing. Several evaluations may add results to a record at the same time.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtime import devices, distributed
from runtime.checkpoints import trained_steps, training_settings
from runtime.files import locked, run_folder_of, write_json
from runtime.loading import load_model
from runtime.provenance import provenance
from runtime.schema import find_mismatch

import numpy as np
import torch
from tqdm import tqdm

import attention
from errors import InputError
from evaluation import record_schema
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
        if not self.runs:
            raise InputError("no run given: pass run folders, for example runs/NAME")


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

    tokens: per item; a batch has at most BATCH_TOKENS. label, unit: of the progress bar, after the
    run's name.
    """
    batches = np.array_split(items, -(-len(items) // max(1, BATCH_TOKENS // tokens)))
    own = batches[plan.processes.rank :: plan.processes.world_size]
    results = []
    title, total = f"{Path(plan.run).name} {label}", sum(map(len, own))
    with tqdm(total=total, desc=title, unit=unit, disable=None) as bar:
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


# Records


def record_identity(model: GPT, checkpoint: dict, dtype: torch.dtype) -> dict:
    """Return the part of a record that identifies the checkpoint and how its numbers are computed.

    model, checkpoint: as `load_model` returns them; dtype: of the matrix products.
    """
    identity = {
        "pe": checkpoint["gpt"]["pe"],
        "size": checkpoint["gpt"]["size"],
        "block_size": checkpoint["gpt"]["block_size"],
    }
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
        "dtype": str(dtype).removeprefix("torch."),
        "attention": attention.join_names(model.attention_paths),
    }
    if any(path.skips_tiles for path in model.attention_paths):
        identity["skip_tolerance"] = model.config.skip_tolerance
    if plugin := checkpoint["config"].get("plugin"):
        identity["plugin"] = plugin
    return identity


def make_header(run: str | Path, identity: dict) -> dict:
    """Return what a record starts with: the names of the run's folder and its parent, the identity.

    Raises InputError if a name cannot be used in a record or in a file name.
    """
    folder = Path(run).absolute()
    header = {"run": folder.name, "folder": folder.parent.name, **identity}
    if problem := find_mismatch(header, record_schema.HEADER):
        raise InputError(f"record of {run}: {problem}: rename the run, the data or the split")
    return header


def record_path(run: str | Path, *parts: str) -> Path:
    """Return the path of a run's record: the parts joined by "_", next to the run's checkpoints.

    If `run` is a checkpoint file, the file's name is appended to the parts.
    """
    folder = run_folder_of(run)
    checkpoint_name = [] if folder == Path(run) else [Path(run).stem]
    return folder / f"{'_'.join([*parts, *checkpoint_name])}.json"


def existing_record(path: Path, identity: dict) -> dict:
    """Return the record at `path` if it has this identity, else {}: it may be replaced.

    Raises InputError if the record is corrupt, or of another text or another protocol: replacing it
    would lose results that this evaluation does not reproduce.
    """
    if not path.exists():
        return {}
    record = record_schema.read_record(path, "rename it or remove it")
    for key, name in (("data", "text"), ("protocol", "protocol")):
        if key in record and record[key] != identity.get(key):
            raise InputError(f"{path} is a record of another {name}: rename it or remove it")
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
    """Add the missing lengths to the record at `path`; return the record with only `lengths` in it.

    measure: computes the results at one length; None where the model does not support the length.
    processes: all ranks measure, the first one writes; None: this process alone.
    facts: further values of the record's provenance.
    The file is written after each length, so that an interrupted evaluation resumes there. Results
    of other lengths that the file holds then are kept, also those that another evaluation has added
    meanwhile. Raises InputError if results contain NaN or Inf.
    """
    header = make_header(run, identity)
    processes = processes or distributed.Processes()
    known = {}

    def read_known() -> None:
        known.update(existing_record(path, identity).get("lengths", {}))

    processes.run_on_all_ranks(read_known)
    known = processes.gather(known)[0]
    if all(str(length) in known for length in lengths):
        print(f"{run} is already evaluated")
    for length in lengths:
        if processes.rank == 0:
            read_known()
        if processes.any(str(length) in known):
            continue
        result = measure(length)
        if processes.rank:
            continue
        known[str(length)] = result
        origin = {**provenance(device), **facts}
        with locked(path):
            read_known()
            results = dict(sorted(known.items(), key=lambda item: int(item[0])))
            write_record(run, path, {**header, "lengths": results, "provenance": origin})
    print(f"record: {path}")
    known = processes.gather(known)[0]
    requested = {str(length): known[str(length)] for length in lengths}
    return {**header, "lengths": requested}


def write_record(run: str | Path, path: Path, record: dict) -> None:
    """Write a record. Raises InputError if its results contain NaN or Inf."""
    read = json.loads(json.dumps(record))  # NumPy's floats become Python's
    schema = record_schema.schema_of(read)
    assert schema, f"a record with the fields {', '.join(record)} has no schema"
    if problem := find_mismatch(read, schema):
        raise InputError(
            f"{run}: the results are NaN, Inf or out of range ({problem}): "
            "evaluate with --dtype float32, or train again with a lower --lr"
        )
    write_json(path, record)


def shards_for_run(
    run: str | Path, checkpoint: dict, folder: str | None, split: str = "val"
) -> Shards:
    """Return a split of the data in `folder`, or, if that is None, of the run's training data.

    Raises InputError if there is no such data, or if it has another tokenizer than the run.
    """
    folder = folder or checkpoint["config"]["data"]
    if folder is None:
        raise InputError(f"the training data of {run} is unknown: pass --data FOLDER")
    shards = Shards(folder, split)
    run_tokenizer = checkpoint["data"]["tokenizer"]
    if shards.tokenizer != run_tokenizer:
        source = run_folder_of(run) if "@" in run_tokenizer else run_tokenizer
        raise InputError(
            f"{folder} holds {shards.tokenizer} tokens, but {run} was trained on {run_tokenizer} "
            f"tokens: pass other --data, prepared with --tokenizer {source}"
        )
    return shards
