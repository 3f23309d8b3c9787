"""Export a run to a folder that Hugging Face transformers loads.

    pip install transformers
    python export_hf.py runs/cable --out_dir exported/cable

    model = AutoModelForCausalLM.from_pretrained("exported/cable", trust_remote_code=True)
    lm_eval --model hf --tasks hellaswag \\
        --model_args pretrained=exported/cable,trust_remote_code=True

or, for an encoder (AutoModel returns the hidden states of its last layer),

    model = AutoModelForMaskedLM.from_pretrained("exported/bert", trust_remote_code=True)

The folder holds weights, configuration, tokenizer, a README.md and the modules of this repository
that compute the network. Embeddings that only pad the vocabulary are left out.
"""

import ast
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import torch

from errors import InputError
from hf_interop.tokenizer import build_tokenizer
from model import GPT
from runtime import cli
from runtime.checkpoints import checkpoint_path, recipe_hash
from runtime.files import atomic_folder
from runtime.loading import load_model
from runtime.provenance import hash_file
from text_data import tokenization

HERE = Path(__file__).parent
FURTHER_ENCODINGS = sorted(
    f"more_encodings.{path.stem}"
    for path in (HERE / "more_encodings").glob("*.py")
    if path.stem != "__init__"
)
# The modules that compute the network. An exported folder is flat: each module is written under
# the last part of its name.
MODULES = (
    "hf_interop.modeling",
    "model",
    "generation.kv_cache",
    "attention",
    "posenc",
    "more_encodings",
    *FURTHER_ENCODINGS,
    "triton_attention",
    "errors",
)
README = """# {name}

GPT-2 with the positional encoding `{pe}`: {description},
trained at {block_size} tokens, step {step}.
Tokenizer: {tokenizer}; checkpoint SHA-256 {sha256}.

```python
from transformers import {auto}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)  # this folder
model = {auto}.from_pretrained("{name}", trust_remote_code=True)
{use}
```

Made with transformers {transformers}. {limit}
`dtype=torch.bfloat16` works; the parameters of the encoding and of norms stay float32.

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
    classes={"AutoModelForCausalLM": "modeling.PosencForCausalLM"},
    example="""\
# In training, every document began with <|endoftext|>.
inputs = tokenizer("<|endoftext|>Once upon a time", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))""",
    note="`generate` uses transformers' KV cache; a padded batch is read again for every token.",
)
ENCODER = ExportKind(
    auto_class="AutoModelForMaskedLM",
    classes={
        "AutoModel": "modeling.PosencModel",
        "AutoModelForMaskedLM": "modeling.PosencForMaskedLM",
    },
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
    out_dir: str = "exported"
    """folder to write, new or empty"""


def main(argv=None):
    config = cli.parse(
        Config, argv, __doc__, positional=("run", "folder of a run, or a checkpoint")
    )
    if len(config.run) != 1:
        raise InputError("name one run: python export_hf.py runs/NAME --out_dir exported")
    try:
        import transformers  # noqa: F401  (checked before the run is loaded)

        from hf_interop import modeling  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"exporting needs transformers 5 ({error}): pip install -r requirements-retrieval.txt"
        ) from None
    run = config.run[0]
    out = Path(config.out_dir)
    check_out_dir(out)
    trained, checkpoint = load_model(run, torch.device("cpu"), causal=None)
    tokenizer = tokenization.load_tokenizer(checkpoint["data"]["tokenizer"])
    check_encoding(trained.config.encodings)
    model = build_hf_model(trained, checkpoint, tokenizer)
    sha256 = hash_file(checkpoint_path(run))
    readme = format_readme(out.resolve().name, model, checkpoint, sha256)
    write_folder(out, model, tokenizer, readme)
    print(f"{out}: {model.model.describe()}")


def check_out_dir(out: Path) -> None:
    """Raise InputError unless `out` does not exist or is an empty folder."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out} holds other files: choose another --out_dir")


def check_encoding(encodings: list[tuple[type, dict]]) -> None:
    """Raise InputError if a class of a parsed encoding is in a module that is not exported."""
    for cls, _ in encodings:
        if cls.__module__ not in MODULES:
            raise InputError(
                f"the encoding {cls.names[0]} is defined in {cls.__module__}, which is not "
                "exported: move its class to a module of more_encodings/"
            )


def build_hf_model(trained: GPT, checkpoint: dict, tokenizer):
    """Return the trained model as a PreTrainedModel of transformers, without padding tokens."""
    import transformers

    from hf_interop import modeling

    config = trained.config
    kind = DECODER if config.causal else ENCODER
    vocab_size = tokenizer.n_vocab
    if not config.causal:
        vocab_size += 1  # <|mask|>
    settings = {**dataclasses.asdict(config), "vocab_size": vocab_size, "dtype": "float32"}
    if trained.max_context is not None:
        settings["max_position_embeddings"] = trained.max_context
    hf_config = modeling.PosencConfig(
        **settings,
        recipe=recipe_hash(checkpoint),
        step=checkpoint["step"],
        auto_map={"AutoConfig": "modeling.PosencConfig", **kind.classes},
    )
    model_class = getattr(modeling, flat_name(kind.classes[kind.auto_class]))
    model = model_class(hf_config)
    weights = trained.state_dict()
    weights["wte.weight"] = weights["wte.weight"][:vocab_size]
    model.model.load_state_dict(weights)
    if config.causal:
        end = tokenizer.eot_token
        model.generation_config = transformers.GenerationConfig(
            bos_token_id=end, eos_token_id=end, pad_token_id=end
        )
    return model


def format_readme(name: str, model, checkpoint: dict, sha256: str) -> str:
    """Return the README.md of an exported folder.

    name: of the folder. model: from `build_hf_model`. sha256: of the checkpoint's file.
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
    return README.format(
        name=name,
        auto=kind.auto_class,
        use=kind.example,
        pe=network.config.pe,
        description=network.describe().split(";")[0],
        block_size=network.config.block_size,
        step=checkpoint["step"],
        tokenizer=checkpoint["data"]["tokenizer"],
        sha256=sha256,
        transformers=transformers.__version__,
        citation=(HERE / "CITATION.cff").read_text(encoding="utf-8"),
        limit=limit + kind.note,
    )


def write_folder(out: Path, model, tokenizer, readme: str) -> None:
    """Write an exported folder: model, tokenizer, MODULES and README.md."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    with atomic_folder(out) as folder:
        model.save_pretrained(folder)
        has_mask = not model.model.config.causal
        build_tokenizer(tokenizer, has_mask=has_mask).save_pretrained(folder)
        for module in MODULES:
            source = flatten_imports(source_path(module).read_text(encoding="utf-8"))
            (folder / f"{flat_name(module)}.py").write_text(source, encoding="utf-8")
        (folder / "README.md").write_text(readme, encoding="utf-8")


def source_path(module: str) -> Path:
    """Return the file of a module of this repository, or the __init__.py of a package."""
    path = HERE / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def flat_name(module: str) -> str:
    """Return the name of a module of this repository in an exported folder."""
    return module.rpartition(".")[2]


def flatten_imports(source: str) -> str:
    """Return a module's source with imports of MODULES as relative imports from a flat folder.

    transformers finds the files to copy by lines of the form "from .x import y", so an import of a
    whole module becomes two lines.
    """
    lines = source.split("\n")
    nodes = [node for node in ast.walk(ast.parse(source)) if hasattr(node, "names")]
    for node in sorted(nodes, key=lambda node: node.lineno, reverse=True):
        package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        indent = " " * node.col_offset
        if any(package + alias.name in MODULES for alias in node.names):
            new = []
            for alias in node.names:
                assert package + alias.name in MODULES, ast.unparse(node)
                new.append(f"from . import {ast.unparse(alias)}")
                new.append(f"from .{alias.name} import __name__ as _")
        elif package and node.module in MODULES:
            names = ", ".join(ast.unparse(alias) for alias in node.names)
            new = [f"from .{flat_name(node.module)} import {names}"]
        else:
            continue
        lines[node.lineno - 1 : node.end_lineno] = [indent + line for line in new]
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(main)
