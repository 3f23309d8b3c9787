"""Export a run to a folder that Hugging Face transformers loads.

    python export_hf.py runs/cable --out_dir exported/cable

    model = AutoModelForCausalLM.from_pretrained("exported/cable", trust_remote_code=True)
    lm_eval --model hf --tasks hellaswag \\
        --model_args pretrained=exported/cable,trust_remote_code=True

An encoder loads with AutoModelForMaskedLM; AutoModel returns the hidden
states of the last layer. The folder holds weights, configuration,
tokenizer, a README.md and the modules that compute the network; padding
of the vocabulary is left out. A run with a plugin needs --plugin. An
imported model whose encoding is unchanged is written as the class that
it was imported from, without modules and with its whole vocabulary.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime import cli
from runtime.files import atomic_folder, check_new_folder, run_folder_of

import torch

from errors import InputError
from hf_interop import exported_code, pretrained
from hf_interop.tokenizer import build_tokenizer
from model import GPT
from setting import setting
from text_data.tokenizer import run_tokenizer
from training import plugins
from training.checkpoints import load_checkpoint, load_model
from training.settings import plugin_setting, training_settings

HERE = Path(__file__).parent
# causal: class
AUTO_CLASSES = {True: "AutoModelForCausalLM", False: "AutoModelForMaskedLM"}
EXAMPLES = {  # of the README
    True: """\
# Documents that this repository prepares begin with this token.
inputs = tokenizer(tokenizer.eos_token + "Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))""",
    False: """\
inputs = tokenizer("Once upon a <|mask|>", return_tensors="pt")
print(tokenizer.decode(model(**inputs).logits[0, -1].argmax()))""",
}


@dataclass
class Config:
    """Settings of an export."""

    run: list[str] = setting([], positional=True)
    """folder of a run, or a checkpoint"""
    plugin: dict[str, str] | None = plugin_setting()
    """Python file with encodings of your own; may be repeated"""
    out_dir: str = "exported"
    """folder to write, new or empty"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    if len(config.run) != 1:
        raise InputError("name one run: python export_hf.py runs/NAME --out_dir exported")
    import transformers  # fails before the run is loaded if it is missing

    run = config.run[0]
    out = Path(config.out_dir)
    check_new_folder(out)
    trained, checkpoint = load_model(run, torch.device("cpu"), causal=None)
    tokenizer = run_tokenizer(run, checkpoint)
    exported = plugins.plugins_of(trained.config.encodings)
    for plugin in exported:
        exported_code.check_plugin(plugin, exported_code.modules_with(exported))
    original = pretrained.original_config(run_folder_of(run), checkpoint["gpt"])
    model = None if original else build_hf_model(trained, checkpoint, tokenizer)
    network = model.model if model else trained
    readme = format_readme(out.resolve().name, network, checkpoint, exported, bool(model))
    transformers.utils.logging.disable_progress_bar()
    with atomic_folder(out) as folder:
        if model:
            model.save_pretrained(folder)
            exported_code.write_modules(folder, exported)
        elif original:
            dtype = load_checkpoint(run)["model"]["wte.weight"].dtype
            pretrained.save_original(trained, original, dtype, folder)
        build_tokenizer(tokenizer, not trained.config.causal).save_pretrained(folder)
        (folder / "README.md").write_text(readme, encoding="utf-8")
        exported_code.set_default_permissions(folder)
    print(f"{out}: {network.describe()}")
    print(f"{network.parameter_count():,} parameters")


def build_hf_model(trained: GPT, checkpoint: dict, tokenizer):
    """Return a PreTrainedModel without padding of the vocabulary."""
    import transformers

    from hf_interop import modeling

    config = trained.config
    trained.set_vocabulary(tokenizer.vocab_size)
    vocab_size = trained.token_count
    settings = {**dataclasses.asdict(config), "vocab_size": vocab_size, "dtype": "float32"}
    if trained.max_context is not None:
        settings["max_position_embeddings"] = trained.max_context
    if plugin := plugins.recorded(config.encodings):
        settings["plugin"] = plugin  # the exported files differ from these in their imports
    settings["training"] = {  # recorded when the encoder is evaluated
        "settings": training_settings(checkpoint),
        "training_text": checkpoint["data"]["sha256"],
        "step": checkpoint["step"],
    }
    settings["auto_map"] = exported_code.auto_map(AUTO_CLASSES[config.causal])
    model_class = modeling.PosencForCausalLM if config.causal else modeling.PosencForMaskedLM
    model = model_class(modeling.PosencConfig(**settings))
    weights = trained.state_dict()
    weights["wte.weight"] = trained.wte.weight[: trained.token_count]
    if not config.tied:
        weights["lm_head.weight"] = trained.output_embeddings
    model.model.load_state_dict(weights)
    if config.causal:
        # Documents of a run end with eot; those of an imported model with its own EOS.
        eos: Any = build_tokenizer(tokenizer).eos_token_id
        ends = {tokenizer.eot, eos}
        model.generation_config = transformers.GenerationConfig(
            bos_token_id=tokenizer.eot,
            eos_token_id=tokenizer.eot if len(ends) == 1 else sorted(ends),
            pad_token_id=tokenizer.eot,
        )
    return model


def format_readme(
    name: str,
    network: GPT,
    checkpoint: dict,
    exported: list[plugins.Plugin],
    has_code: bool,
) -> str:
    """Return the README.md of a folder `name`, a model card of the hub.

    has_code: whether the folder has modules of this repository.
    """
    import transformers
    from huggingface_hub import ModelCardData

    config, source = network.config, checkpoint["config"]
    limit = "Any context length."
    if network.max_context is not None:
        limit = f"Contexts of up to {network.max_context} tokens."
    elif config.causal:
        limit = "Any context length; lm_eval cuts at 2,048 tokens unless max_length is set."
    tags = ["positional-encoding", "length-extrapolation"]
    tags += dict.fromkeys(cls.names[0] for cls, _ in config.encodings)
    metadata = ModelCardData(
        # Unknown for weights of import_pretrained.py, also of another run.
        license=None if "model" in source or source.get("init_from") else "mit",
        library_name="transformers",
        pipeline_tag="text-generation" if config.causal else "fill-mask",
        tags=[*tags, "custom_code"] if has_code else tags,
    )
    notes = [
        f"\n`{plugin.module}.py` defines the encoding {', '.join(plugin.names)}. It is a copy of "
        f"{plugin.path.name} (SHA-256 {plugin.sha256}).\n"
        for plugin in exported
    ]
    card = (HERE / "hf_interop" / "model_card.txt").read_text(encoding="utf-8")
    return card.format(
        metadata=metadata.to_yaml(),
        name=name,
        network={"gpt2": "GPT-2", "llama": "Llama"}[config.block],
        auto=AUTO_CLASSES[config.causal],
        trust=", trust_remote_code=True" if has_code else "",
        use=EXAMPLES[config.causal],
        pe=config.pe,
        description=network.describe().split(";")[0],
        block_size=config.block_size,
        step=checkpoint["step"],
        parameters=network.parameter_count(),
        tokenizer=checkpoint["data"]["tokenizer"],
        sha256=checkpoint["sha256"],
        transformers=transformers.__version__,
        citation=(HERE / "CITATION.cff").read_text(encoding="utf-8"),
        limit=limit,
        note="".join(notes),
    )


if __name__ == "__main__":
    cli.run(main)
