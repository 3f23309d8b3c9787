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
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli, plugins
from runtime.checkpoints import training_settings
from runtime.files import atomic_folder, set_default_permissions
from runtime.loading import load_model, run_tokenizer

import torch

from errors import InputError
from hf_interop import model_card
from hf_interop.exported_code import (
    DECODER_CLASSES,
    ENCODER_CLASSES,
    MODULES,
    check_plugin,
    flat_name,
    modules_with,
    required_packages,
    write_modules,
)
from hf_interop.tokenizer import build_tokenizer
from model import GPT
from pe_spec import PeSpec

HERE = Path(__file__).parent
README = """# {name}

GPT-2 with the positional encoding `{pe}`: {description},
trained at {block_size} tokens, step {step}.
{parameters}
Tokenizer: {tokenizer}; checkpoint SHA-256 {sha256}.

```python
from transformers import {auto}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)  # this folder
model = {auto}.from_pretrained("{name}", trust_remote_code=True)
{use}
```
{evaluation}
Made with transformers {transformers}. {limit}
`dtype=torch.bfloat16` works; the parameters of the encoding and of norms stay float32.
Loading the model calls `torch.set_flush_denormal(True)`, for speed on a CPU.

## Citation

```yaml
{citation}```
"""


@dataclass
class ExportKind:
    """What differs between exported decoders and encoders."""

    auto_class: str
    """class of transformers for language modeling"""
    classes: dict[str, str]
    """auto_map: class of transformers -> class of hf_interop/modeling.py"""
    example: str
    """lines of Python for the exported README"""
    note: str
    """sentence for the exported README"""


DECODER = ExportKind(
    auto_class="AutoModelForCausalLM",
    classes=DECODER_CLASSES,
    example="""\
# In training, every document began with this token.
inputs = tokenizer(tokenizer.eos_token + "Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))""",
    note="`generate` uses transformers' KV cache; a padded batch is read again for every token.",
)
ENCODER = ExportKind(
    auto_class="AutoModelForMaskedLM",
    classes=ENCODER_CLASSES,
    example="""\
inputs = tokenizer("Once upon a <|mask|>", return_tensors="pt")
print(tokenizer.decode(model(**inputs).logits[0, -1].argmax()))""",
    note="`AutoModel` returns the hidden states of the last layer, for embeddings of texts.",
)


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
        check_plugin(plugin, modules_with(exported))
    model = build_hf_model(trained, checkpoint, tokenizer)
    sha256 = checkpoint["sha256"]
    records = model_card.evaluation_records(run, sha256)
    readme = format_readme(out.resolve().name, model, checkpoint, sha256, records, exported)
    write_folder(out, model, tokenizer, readme, exported)
    print(f"{out}: {model.model.describe()}")
    print(count_parameters(model.model, checkpoint))


def check_out_dir(out: Path) -> None:
    """Raise InputError unless `out` does not exist or is an empty folder."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out} already holds files: remove it, or choose another --out_dir")


def check_encoding(encodings: PeSpec) -> None:
    """Raise InputError if a class of a parsed encoding is in a module that is not exported."""
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
    vocab_size = tokenizer.vocab_size
    if not config.causal:
        vocab_size += 1  # <|mask|>
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
    weights["wte.weight"] = weights["wte.weight"][:vocab_size]
    model.model.load_state_dict(weights)
    if config.causal:
        end = tokenizer.eot
        model.generation_config = transformers.GenerationConfig(
            bos_token_id=end, eos_token_id=end, pad_token_id=end
        )
    return model


def count_parameters(network: GPT, checkpoint: dict) -> str:
    """Return the number of parameters of an exported network and, if it differs, of its run."""
    count = network.parameter_count()
    run_vocab_size = checkpoint["gpt"]["vocab_size"]
    padding = (run_vocab_size - network.config.vocab_size) * network.config.n_embd
    text = f"{count:,} parameters"
    if padding:
        text += f"; the run has {count + padding:,}, {padding:,} of them to pad the vocabulary"
    return f"{text}."


def format_readme(
    name: str,
    model,
    checkpoint: dict,
    sha256: str,
    records: list[dict],
    exported: list[plugins.Plugin],
) -> str:
    """Return the README.md of an exported folder, a model card of the hub.

    name: of the folder. model: from `build_hf_model`. sha256: of the checkpoint's file. records:
    evaluations of the checkpoint. exported: plugins that define the encoding.
    """
    import transformers

    network = model.model
    kind = DECODER if network.config.causal else ENCODER
    if network.max_context is not None:
        limit = f"Contexts of up to {network.max_context} tokens. "
    elif network.config.causal:
        limit = "Any context length; lm_eval cuts at 2,048 tokens unless max_length is set.\n"
    else:
        limit = "Any context length. "
    datasets = model_card.hub_names(checkpoint)
    license = model_card.license_of(checkpoint)
    return model_card.front_matter(name, network, datasets, records, license) + README.format(
        name=name,
        auto=kind.auto_class,
        use=kind.example,
        pe=network.config.pe,
        description=network.describe().split(";")[0],
        block_size=network.config.block_size,
        step=checkpoint["step"],
        parameters=count_parameters(network, checkpoint),
        evaluation=model_card.results_table(records),
        tokenizer=checkpoint["data"]["tokenizer"],
        sha256=sha256,
        transformers=transformers.__version__,
        citation=(HERE / "CITATION.cff").read_text(encoding="utf-8"),
        limit=limit + kind.note + "".join(map(describe_plugin, exported)),
    )


def describe_plugin(plugin: plugins.Plugin) -> str:
    """Return a paragraph of the README.md about a plugin."""
    text = (
        f"\n\n`{plugin.module}.py` defines the encoding {', '.join(plugin.names)}. It is a copy of "
        f"{plugin.path.name} (SHA-256 {plugin.sha256})."
    )
    if packages := required_packages(plugin):
        text += f" It needs further packages: `pip install {' '.join(packages)}`."
    return f"{text}\n"


def write_folder(out: Path, model, tokenizer, readme: str, exported: list[plugins.Plugin]) -> None:
    """Write an exported folder: model, tokenizer, MODULES, plugins and README.md."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    with atomic_folder(out) as folder:
        model.save_pretrained(folder)
        has_mask = not model.model.config.causal
        build_tokenizer(tokenizer, has_mask=has_mask).save_pretrained(folder)
        write_modules(folder, exported)
        (folder / "README.md").write_text(readme, encoding="utf-8")
        set_default_permissions(folder)


if __name__ == "__main__":
    cli.run(main)
