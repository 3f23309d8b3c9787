"""Export a run to a folder that Hugging Face transformers loads.

    python export_hf.py runs/cable --out_dir exported/cable

    model = AutoModelForCausalLM.from_pretrained("exported/cable", trust_remote_code=True)
    lm_eval --model hf --tasks hellaswag \\
        --model_args pretrained=exported/cable,trust_remote_code=True

or, for an encoder (AutoModel returns the hidden states of its last layer),

    model = AutoModelForMaskedLM.from_pretrained("exported/bert", trust_remote_code=True)

The folder holds weights, configuration, tokenizer, a README.md and the modules of this repository
that compute the network. Embeddings that only pad the vocabulary are left out. A run that was
trained with a plugin needs --plugin; the folder contains the plugin, too.

An imported model whose encoding is unchanged is written as the class that it was imported from,
without modules and with its whole vocabulary.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from runtime import cli, plugins
from runtime.checkpoints import load_checkpoint, training_settings
from runtime.files import atomic_folder, read_json, run_folder_of, set_default_permissions
from runtime.loading import load_model
from runtime.schema import Text, fields, find_mismatch

import torch
import yaml

from errors import InputError
from evaluation.record_schema import check_record
from hf_interop import exported_code, original
from hf_interop.exported_code import DECODER_CLASSES, ENCODER_CLASSES, MODULES, flat_name
from hf_interop.tokenizer import build_tokenizer
from model import GPT
from pe_spec import PeSpec
from reporting import metrics
from reporting.columns import group_by_protocol, make_columns
from text_data.shards import read_meta
from text_data.tokenizer import run_tokenizer

HERE = Path(__file__).parent
README = """# {name}

{network} with the positional encoding `{pe}`: {description},
trained at {block_size} tokens, step {step}.
{parameters}
Tokenizer: {tokenizer}; checkpoint SHA-256 {sha256}.

```python
from transformers import {auto}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}"{trust})  # this folder
model = {auto}.from_pretrained("{name}"{trust})
{use}
```
{evaluation}
Made with transformers {transformers}. {note}

## Citation

```yaml
{citation}```
"""

NOTE_ON_CODE = """
`dtype=torch.bfloat16` works; the parameters of the encoding and of norms stay float32.
Loading the model calls `torch.set_flush_denormal(True)`, for speed on a CPU."""
NETWORKS = {"gpt2": "GPT-2", "llama": "Llama"}
HELLASWAG = "Rowan/hellaswag"
# Of meta.json: where the data is on the hub.
HUB_SOURCE = fields({"source": fields({"dataset?": Text, "pretokenized?": Text})})


class ExportKind(NamedTuple):
    """What differs between exported decoders, encoders and models of transformers' classes."""

    auto_class: str
    trust: str  # argument of from_pretrained
    classes: dict[str, str]  # auto_map: class of transformers -> class of hf_interop/modeling.py
    example: str  # for the README, like the note
    note: str


TRUST = ", trust_remote_code=True"
DECODER = ExportKind(
    "AutoModelForCausalLM",
    TRUST,
    DECODER_CLASSES,
    """\
# In training, every document began with this token.
inputs = tokenizer(tokenizer.eos_token + "Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))""",
    "`generate` uses transformers' KV cache; a padded batch is read again for every token."
    + NOTE_ON_CODE,
)
ENCODER = ExportKind(
    "AutoModelForMaskedLM",
    TRUST,
    ENCODER_CLASSES,
    """\
inputs = tokenizer("Once upon a <|mask|>", return_tensors="pt")
print(tokenizer.decode(model(**inputs).logits[0, -1].argmax()))""",
    "`AutoModel` returns the hidden states of the last layer, for embeddings of texts."
    + NOTE_ON_CODE,
)
ORIGINAL = DECODER._replace(trust="", note="It has the class that was imported.")


@dataclass
class Config:
    """Settings of an export."""

    run: list[str] = field(default_factory=list)
    """folder of a run, or a checkpoint"""
    plugin: dict[str, str] | None = None
    """name and SHA-256 of the files with encodings of your own"""
    out_dir: str = "exported"
    """folder to write, new or empty"""


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("run", "folder of a run, or a checkpoint")
    )
    if len(config.run) != 1:
        raise InputError("name one run: python export_hf.py runs/NAME --out_dir exported")
    import transformers  # noqa: F401  (fails before the run is loaded if it is missing)

    run = config.run[0]
    out = Path(config.out_dir)
    check_out_dir(out)
    trained, checkpoint = load_model(run, torch.device("cpu"), causal=None)
    tokenizer = run_tokenizer(run, checkpoint)
    check_encoding(trained.config.encodings)
    exported = plugins.plugins_of(trained.config.encodings)
    for plugin in exported:
        exported_code.check_plugin(plugin, exported_code.modules_with(exported))
    folders = [folder for folder, _ in ancestors(run, checkpoint["config"])]
    config = original.original_config(folders, checkpoint["gpt"])
    if config:
        dtype = load_checkpoint(run)["model"]["wte.weight"].dtype
        kind, network = ORIGINAL, trained
        save = functools.partial(original.save, trained, config, dtype)
    else:
        model = build_hf_model(trained, checkpoint, tokenizer)
        kind, network = DECODER if trained.config.causal else ENCODER, model.model
        save = functools.partial(save_with_code, model, exported)
    readme = format_readme(out.resolve().name, kind, network, checkpoint, run, exported)
    write_folder(out, save, build_tokenizer(tokenizer, has_mask=kind is ENCODER), readme)
    print(f"{out}: {network.describe()}")
    print(f"{network.parameter_count():,} parameters")


def check_out_dir(out: Path) -> None:
    """Raise InputError unless `out` does not exist or is an empty folder."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out} already holds files: remove it, or choose another --out_dir")


def check_encoding(encodings: PeSpec) -> None:
    """Raise InputError if a class of an encoding is in a module that is not exported."""
    for cls, _ in encodings:
        if cls.__module__ not in MODULES and cls.__module__ not in plugins.LOADED:
            raise InputError(
                f"the encoding {cls.names[0]} is defined in {cls.__module__}, which is not "
                "exported: move its class to a module of more_encodings/, or to a plugin"
            )


def build_hf_model(trained: GPT, checkpoint: dict, tokenizer):
    """Return the trained model as a PreTrainedModel of transformers, without padding tokens."""
    import transformers

    from hf_interop import modeling

    config = trained.config
    kind = DECODER if config.causal else ENCODER
    trained.set_vocabulary(tokenizer.vocab_size)
    vocab_size = trained.token_count
    settings = {**dataclasses.asdict(config), "vocab_size": vocab_size, "dtype": "float32"}
    if trained.max_context is not None:
        settings["max_position_embeddings"] = trained.max_context
    if plugin := plugins.recorded(config.encodings):
        settings["plugin"] = plugin  # the exported files differ from these in their imports
    settings["training"] = {
        "settings": training_settings(checkpoint),
        "training_text": checkpoint["data"]["sha256"],
        "step": checkpoint["step"],
    }
    settings["auto_map"] = dict(kind.classes)
    hf_config = modeling.PosencConfig(**settings)
    model_class = getattr(modeling, flat_name(kind.classes[kind.auto_class]))
    model = model_class(hf_config)
    weights = trained.state_dict()
    weights["wte.weight"] = trained.wte.weight[: trained.token_count]
    if not config.tied:
        weights["lm_head.weight"] = trained.output_embeddings
    model.model.load_state_dict(weights)
    if config.causal:
        end = tokenizer.eot
        model.generation_config = transformers.GenerationConfig(
            bos_token_id=end, eos_token_id=end, pad_token_id=end
        )
    return model


def format_readme(
    name: str, kind: ExportKind, network: GPT, checkpoint: dict, run: str, exported
) -> str:
    """Return the README.md of an exported folder `name`, a model card of the hub.

    It has the run's evaluations of the checkpoint.
    """
    import transformers

    if network.max_context is not None:
        limit = f"Contexts of up to {network.max_context} tokens. "
    elif network.config.causal:
        limit = "Any context length; lm_eval cuts at 2,048 tokens unless max_length is set.\n"
    else:
        limit = "Any context length. "
    records = evaluation_records(run, checkpoint["sha256"])
    datasets = hub_names(checkpoint)
    metadata = front_matter(name, kind, network, datasets, records, license_of(run, checkpoint))
    return metadata + README.format(
        name=name,
        network=NETWORKS[network.config.block],
        auto=kind.auto_class,
        trust=kind.trust,
        use=kind.example,
        pe=network.config.pe,
        description=network.describe().split(";")[0],
        block_size=network.config.block_size,
        step=checkpoint["step"],
        parameters=f"{network.parameter_count():,} parameters.",
        evaluation=results_table(records),
        tokenizer=checkpoint["data"]["tokenizer"],
        sha256=checkpoint["sha256"],
        transformers=transformers.__version__,
        citation=(HERE / "CITATION.cff").read_text(encoding="utf-8"),
        note=limit + kind.note + "".join(map(describe_plugin, exported)),
    )


def evaluation_records(run: str, sha256: str) -> list[dict]:
    """Return the records of perplexity and HellaSwag accuracy of the checkpoint with this hash."""
    records = []
    for path in sorted(run_folder_of(run).glob("eval_*.json")):
        record = read_json(path, "remove it, and evaluate again")
        is_reported = metrics.metric_of(record) in (metrics.PERPLEXITY, metrics.ACCURACY)
        if is_reported and record.get("checkpoint_sha256") == sha256:
            check_record(path, record, "remove it, and evaluate again")
            records.append(record)
    return records


def hub_names(checkpoint: dict) -> dict[str, str]:
    """Return {data set: name on the hub} of a run's data; {} unless it is still there unchanged."""
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


def license_of(run: str, checkpoint: dict) -> str | None:
    """Return the license of a run's weights: that of this repository, or None if it is unknown.

    It is unknown for weights of import_pretrained.py and for runs that started from such weights.
    """
    configs = [config for _, config in ancestors(run, checkpoint["config"])]
    is_own = all(isinstance(config, dict) and "model" not in config for config in configs)
    return "mit" if is_own else None


def ancestors(run: str, config: Any) -> Iterator[tuple[Path, Any]]:
    """Yield folder and config of a run and of those that it started from.

    The last config is None if a folder was removed or has another run now.
    """
    folders = [run_folder_of(run)]
    yield folders[0], config
    while isinstance(config, dict) and config.get("init_from"):
        folder = run_folder_of(config["init_from"])
        try:
            config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            config = None
        if folder in folders:
            config = None
        folders.append(folder)
        yield folder, config


def front_matter(name: str, kind, network, datasets: dict, records: list, license) -> str:
    """Return the metadata of a model card that the hub reads: YAML between lines of dashes."""
    from huggingface_hub import ModelCardData

    task = "text-generation" if network.config.causal else "fill-mask"
    results = [result for record in records for result in _results(record, task, datasets)]
    data = ModelCardData(
        license=license,
        library_name="transformers",
        pipeline_tag=task,
        tags=[
            "positional-encoding",
            "length-extrapolation",
            *dict.fromkeys(cls.names[0] for cls, _ in network.config.encodings),
            *(["custom_code"] if kind.trust else []),
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


def describe_plugin(plugin: plugins.Plugin) -> str:
    """Return a paragraph of the README.md about a plugin."""
    text = (
        f"\n\n`{plugin.module}.py` defines the encoding {', '.join(plugin.names)}. It is a copy of "
        f"{plugin.path.name} (SHA-256 {plugin.sha256})."
    )
    if packages := exported_code.required_packages(plugin):
        text += f" It needs further packages: `pip install {' '.join(packages)}`."
    return f"{text}\n"


def save_with_code(model, exported: list[plugins.Plugin], folder: Path) -> None:
    """Write a model of hf_interop/modeling.py with MODULES and plugins."""
    model.save_pretrained(folder)
    exported_code.write_modules(folder, exported)


def write_folder(out: Path, save: Callable[[Path], None], tokenizer, readme: str) -> None:
    """Write an exported folder: what `save` writes, tokenizer and README.md."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    with atomic_folder(out) as folder:
        save(folder)
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text(readme, encoding="utf-8")
        set_default_permissions(folder)


if __name__ == "__main__":
    cli.run(main)
