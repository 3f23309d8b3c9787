"""Evaluation records: JSON files next to a run's checkpoints that hold what was measured.

    identity = {**record_identity(model, checkpoint, dtype), "data": ..., "protocol": ...}
    path = record_path(run, "eval", "wikitext", "val")
    record = update_record(run, path, identity, lengths, measure, device)

A record holds the names of its run, an identity (which checkpoint, which text, which protocol, how
it was computed), results by context length, and its provenance (command, commit, versions,
hardware). Results with the same identity are kept: a repeated command computes what is missing.
Several evaluations may add results to a record at the same time.
"""

import json
from collections.abc import Callable
from pathlib import Path

from runtime.checkpoints import trained_steps, training_settings
from runtime.distributed import Processes
from runtime.files import locked, run_folder_of, write_json
from runtime.provenance import provenance
from runtime.schema import find_mismatch

import torch

import attention
from errors import InputError
from evaluation import record_schema
from model import GPT
from text_data.shards import Shards


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


def existing_record(path: Path, identity: dict) -> dict | None:
    """Return the record at `path` if it has this identity, else None: it may be replaced.

    Raises InputError if the record is corrupt, or of another text or another protocol: replacing it
    would lose results that this evaluation does not reproduce.
    """
    if not path.exists():
        return None
    record = record_schema.read_record(path, "rename it or remove it")
    for key, name in (("data", "text"), ("protocol", "protocol")):
        if key in record and record[key] != identity.get(key):
            raise InputError(f"{path} is a record of another {name}: rename it or remove it")
    same = all(record.get(key) == value for key, value in identity.items())
    return record if same else None


def update_record(
    run: str | Path,
    path: Path,
    identity: dict,
    lengths: list[int],
    measure: Callable[[int], dict | None],
    device: torch.device,
    processes: Processes | None = None,
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
    processes = processes or Processes()
    known = {}
    processes.run_on_all_ranks(lambda: known.update(_known_results(path, identity)))
    known = processes.gather(known)[0]
    if all(str(length) in known for length in lengths):
        print(f"{run} is already evaluated")
    for length in lengths:
        if processes.rank == 0:
            known |= _known_results(path, identity)
        if processes.any(str(length) in known):
            continue
        result = measure(length)
        if processes.rank:
            continue
        known[str(length)] = result
        origin = {**provenance(device), **facts}
        with locked(path):
            known |= _known_results(path, identity)
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
    if problem := schema.find_problem(read):
        raise InputError(
            f"{run}: the results are NaN, Inf or out of range ({problem}): "
            "evaluate with --dtype float32, or train again with a lower --lr"
        )
    write_json(path, record)


def _known_results(path: Path, identity: dict) -> dict:
    """Return the results by length of the record at `path`; {} if it has another identity."""
    record = existing_record(path, identity)
    return record["lengths"] if record else {}


def shards_for_run(
    run: str | Path, checkpoint: dict, folder: str | None, split: str = "val"
) -> Shards:
    """Return a split of the data in `folder`, or, if that is None, of the run's training data.

    Raises InputError if there is no such data, or if it has another tokenizer than the run.
    """
    folder = folder or checkpoint["config"]["data"]
    if folder is None:
        raise InputError(f"the training data of {run} is unknown: pass --data FOLDER")
    shards = Shards(folder, split, run=run_folder_of(run))
    run_tokenizer = checkpoint["data"]["tokenizer"]
    if shards.tokenizer != run_tokenizer:
        source = run_folder_of(run) if "@" in run_tokenizer else run_tokenizer
        raise InputError(
            f"{folder} holds {shards.tokenizer} tokens, but {run} was trained on {run_tokenizer} "
            f"tokens: pass other --data, prepared with --tokenizer {source}"
        )
    return shards
