"""Hands a trained model over to Hugging Face's transformers: a folder that it loads, generates and evaluates with.

    pip install transformers
    python export_hf.py runs/cable --out_dir exported/cable

    model = AutoModelForCausalLM.from_pretrained("exported/cable", trust_remote_code=True)
    lm_eval --model hf --model_args pretrained=exported/cable,trust_remote_code=True --tasks hellaswag

or, of an encoder,

    model = AutoModelForMaskedLM.from_pretrained("exported/bert", trust_remote_code=True)       # or AutoModel, for its last layer

The folder holds weights, configuration, tokenizer, the modules of this repository that compute the network, and a README.md.
Embeddings of tokens that pad the vocabulary are left out.
"""

import ast
import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import torch

import posenc
from errors import InputError
from runtime import cli
from runtime.checkpoints import checkpoint_path, load_model, recipe_hash, sha256_of
from runtime.files import atomic_folder
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
    "hf_interop.pretrained",
    "errors",
)
README = """# {name}

GPT-2 with the positional encoding `{pe}`: {description}, trained at {block_size} tokens, step {step}.
{tokenizer} tokens; checkpoint sha256 {sha256}.

```python
from transformers import {auto}, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}", trust_remote_code=True)  # this folder
model = {auto}.from_pretrained("{name}", trust_remote_code=True)
{use}
```

Made with transformers {transformers}. {limit}
`dtype=torch.bfloat16` works; the weights of encoding and norms stay float32.

## Citation

```yaml
{citation}```
"""


# Of decoders and encoders: the class for language modeling, all classes, the first lines of code to try, and what else is to be known.
DECODER = (
    "AutoModelForCausalLM",
    {"AutoModelForCausalLM": "modeling.PosencForCausalLM"},
    """\
inputs = tokenizer("<|endoftext|>Once upon a time", return_tensors="pt")  # documents began with <|endoftext|> in training
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))""",
    (
        "`generate` keeps keys and values in transformers' cache; a batch with padding is read anew for every token."
    ),
)
ENCODER = (
    "AutoModelForMaskedLM",
    {"AutoModel": "modeling.PosencModel", "AutoModelForMaskedLM": "modeling.PosencForMaskedLM"},
    """\
inputs = tokenizer("Once upon a <|mask|>", return_tensors="pt")
print(tokenizer.decode(model(**inputs).logits[0, -1].argmax()))""",
    "`AutoModel` gives the last layer, for embeddings of texts.",
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
        import transformers

        from hf_interop import modeling
    except ImportError:
        raise InputError(
            "a folder for transformers is written by transformers 5: pip install transformers"
        ) from None
    run, out = config.run[0], Path(config.out_dir)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out} holds other files: choose another --out_dir")
    ours, checkpoint = load_model(run, torch.device("cpu"), causal=None)
    encoding = tokenization.tiktoken_encoding(checkpoint["data"]["tokenizer"])
    for cls, _ in posenc.parse(ours.config.pe):
        if cls.__module__ not in MODULES:
            raise InputError(
                f"the encoding {cls.names[0]} is defined in {cls.__module__}, which is not "
                "exported: move its class to a module of more_encodings/"
            )

    auto, classes, use, further = DECODER if ours.config.causal else ENCODER
    tokens = encoding.n_vocab + (not ours.config.causal)  # and <|mask|>
    limit = {} if ours.max_context is None else {"max_position_embeddings": ours.max_context}
    model = getattr(modeling, classes[auto].removeprefix("modeling."))(
        modeling.PosencConfig(
            **{**dataclasses.asdict(ours.config), "vocab_size": tokens},
            **limit,
            dtype="float32",
            recipe=recipe_hash(checkpoint),
            step=checkpoint["step"],
            auto_map={"AutoConfig": "modeling.PosencConfig", **classes},
        )
    )
    weights = ours.state_dict()
    model.model.load_state_dict({**weights, "wte.weight": weights["wte.weight"][:tokens]})
    if ours.config.causal:
        end = encoding.eot_token
        model.generation_config = transformers.GenerationConfig(
            bos_token_id=end, eos_token_id=end, pad_token_id=end
        )
    readme = README.format(
        name=out.resolve().name,
        auto=auto,
        use=use,
        pe=ours.config.pe,
        description=model.model.describe().split(";")[0],
        block_size=ours.config.block_size,
        step=checkpoint["step"],
        tokenizer=encoding.name,
        sha256=sha256_of(checkpoint_path(run)),
        transformers=transformers.__version__,
        citation=(HERE / "CITATION.cff").read_text(encoding="utf-8"),
        limit=(
            f"Contexts up to {ours.max_context} tokens. "
            if limit
            else "Any context length. "
            if not ours.config.causal
            else "Any context length; lm_eval cuts at 2,048 tokens unless told max_length.\n"
        )
        + further,
    )

    transformers.utils.logging.disable_progress_bar()
    with atomic_folder(out) as partial:
        model.save_pretrained(partial)
        tokenizer_of(encoding, masks=not ours.config.causal).save_pretrained(partial)
        for module in MODULES:
            source = source_path(module).read_text(encoding="utf-8")
            (partial / f"{flat_name(module)}.py").write_text(
                flatten_imports(source), encoding="utf-8"
            )
        (partial / "README.md").write_text(readme, encoding="utf-8")
    print(f"{out}: {model.model.describe()}")


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


def tokenizer_of(encoding, masks: bool = False):
    """transformers' GPT-2 tokenizer with the tokens of a tiktoken encoding: bytes, the pairs that were merged, <|endoftext|>; masks:
    and <|mask|>, the number after them (data.py)."""
    from transformers import GPT2Tokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    ranks = {
        encoding.decode_single_token_bytes(token): token for token in range(encoding.eot_token)
    }
    printable = bytes_to_unicode()  # tokenizers know characters only

    def text(token):
        return "".join(printable[byte] for byte in token)

    merges = [tuple(map(text, pair_of(token, ranks))) for token in ranks if len(token) > 1]
    vocabulary = {text(token): rank for token, rank in ranks.items()} | {
        "<|endoftext|>": encoding.eot_token
    }
    mask = {"mask_token": "<|mask|>"} if masks else {}
    vocabulary |= {token: encoding.n_vocab for token in mask.values()}
    return GPT2Tokenizer(vocab=vocabulary, merges=merges, pad_token="<|endoftext|>", **mask)


def pair_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two tokens whose merge made this one: what BPE leaves of it by the earlier merges alone."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        at = min(
            range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], len(ranks))
        )
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return tuple(parts)


if __name__ == "__main__":
    cli.run(main)
