"""Model card of an exported folder: the metadata at the top of its README.md, and its results.

    records = evaluation_records("runs/cable", sha256)
    license = license_of(checkpoint)
    text = front_matter("cable", model.model, hub_names(checkpoint), records, license) + readme

The hub reads the metadata: license, tags, and the metrics of the run's evaluation records with
their protocol. huggingface_hub formats it.
"""

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

from runtime.checkpoints import run_folder_of
from runtime.files import read_json
from runtime.schema import Text, fields, find_mismatch

import yaml

from errors import InputError
from model import GPT
from reporting import metrics
from reporting.columns import group_by_protocol, make_columns
from text_data.shards import read_meta

# Languages of data sets that the repository prepares from the hub.
LANGUAGES = {
    "HuggingFaceFW/fineweb": "en",
    "HuggingFaceFW/fineweb-edu": "en",
    "kjj0/finewebedu10B-gpt2": "en",
    "Salesforce/wikitext": "en",
}
HELLASWAG = "Rowan/hellaswag"
# Of meta.json: where the data is on the hub.
HUB_SOURCE = fields({"source": fields({"dataset?": Text, "pretokenized?": Text})})


def evaluation_records(run: str, sha256: str) -> list[dict]:
    """Return the records of perplexity and HellaSwag accuracy of a checkpoint, by file name.

    sha256: of the checkpoint's file. Raises InputError if a record is corrupt.
    """
    records = []
    for path in sorted(run_folder_of(run).glob("eval_*.json")):
        record = read_json(path, "remove it, and evaluate again")
        is_reported = metrics.metric_of(record) in (metrics.PERPLEXITY, metrics.ACCURACY)
        if is_reported and record.get("checkpoint_sha256") == sha256:
            metrics.check_record(path, record, "remove it, and evaluate again")
            records.append(record)
    return records


def hub_names(checkpoint: dict) -> dict[str, str]:
    """Return {data set: name on the hub} for the data that a run was trained on; {} if unknown.

    It is known if the data's folder still exists with the same content.
    """
    try:
        meta = read_meta(checkpoint["config"].get("data") or ".", "prepare it again")
    except InputError:
        return {}
    if find_mismatch(meta, HUB_SOURCE) or "train" not in meta["splits"]:
        return {}
    hashes = [shard["sha256"] for shard in meta["splits"]["train"]["shards"]]
    name = meta["source"].get("dataset") or meta["source"].get("pretokenized")
    same = hashlib.sha256("".join(hashes).encode()).hexdigest() == checkpoint["data"]["sha256"]
    return {meta["dataset"]: name} if same and name else {}


def license_of(checkpoint: dict) -> str | None:
    """Return the license of a run's weights: that of this repository, or None if it is unknown.

    It is unknown for weights that import_pretrained.py imported, and for runs that started from
    such weights or from a run whose config.yaml cannot be read any more.
    """
    config = checkpoint["config"]
    seen = set()
    while "model" not in config and config.get("init_from"):
        path = Path(config["init_from"])
        if path in seen:  # a folder has another run now
            return None
        seen.add(path)
        folder = path.parent if path.is_file() else path
        try:
            config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            return None
        if not isinstance(config, dict):
            return None
    return None if "model" in config else "mit"


def front_matter(
    name: str,
    network: GPT,
    datasets: dict[str, str],
    records: list[dict],
    license: str | None,
) -> str:
    """Return the metadata of a model card: YAML between lines of three dashes.

    name: of the model. datasets: from `hub_names`. records: from `evaluation_records`. license:
    from `license_of`; None: no field.
    """
    from huggingface_hub import ModelCardData

    task = "text-generation" if network.config.causal else "fill-mask"
    results = [result for record in records for result in _results(record, task, datasets)]
    data = ModelCardData(
        license=license,
        language=next((LANGUAGES.get(dataset) for dataset in datasets.values()), None),
        library_name="transformers",
        pipeline_tag=task,
        tags=[
            "positional-encoding",
            "length-extrapolation",
            *dict.fromkeys(cls.names[0] for cls, _ in network.config.encodings),
            "custom_code",
        ],
        datasets=[*datasets.values()] or None,
        model_name=name if results else None,
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def results_table(records: list[dict]) -> str:
    """Return a section with tables of perplexity and their captions; "" without such records."""
    parts = []
    for group in group_by_protocol([record for record in records if "lengths" in record]):
        table = metrics.PERPLEXITY.table(make_columns(group, metrics.PERPLEXITY.key))
        parts.append(f"\n{table.markdown().rstrip()}\n\n{metrics.PERPLEXITY.caption(group)}\n")
    return "".join(["\n## Evaluation\n", *parts]) if parts else ""


def _results(record: dict, task: str, datasets: dict[str, str]) -> Iterator:
    """Yield the EvalResults of a record: perplexity at each length, or two accuracies."""
    from huggingface_hub import EvalResult

    data = record["data"]
    protocol = {
        "protocol": metrics.describe_protocol(record),
        "tokenizer": data["tokenizer"],
        "dtype": record.get("dtype"),
    }
    about = {"task_type": task, "dataset_name": data["dataset"], "dataset_split": data["split"]}
    if "acc" in record:
        about["dataset_type"] = HELLASWAG
        for metric in ("acc", "acc_norm"):
            yield EvalResult(
                **about,
                metric_type="accuracy",
                metric_name=metric,
                metric_value=record[metric],
                metric_args={**protocol, "examples": record["examples"]},
            )
        return
    about["dataset_type"] = datasets.get(data["dataset"], data["dataset"])
    if record.get("cache_window"):
        protocol["cache_window"] = record["cache_window"]
    for length, entry in record["lengths"].items():
        if entry is None or not math.isfinite(entry["perplexity"]):
            continue
        yield EvalResult(
            **about,
            metric_type="perplexity",
            metric_name=f"Perplexity at {int(length):,} tokens of context",
            metric_value=round(entry["perplexity"], 4),
            metric_args={**protocol, "context": int(length), "tokens": entry["tokens"]},
        )
