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

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path

import torch

import cli
import corpus
import posenc
from errors import InputError
from files import atomic_folder
from runs import checkpoint_path, load_model, recipe_of, sha256_of

MODULES = (
    "hf",
    "model",
    "cache",
    "attention",
    "posenc",
    "pretrained",
    "errors",
)  # what the network needs, `hf` first
HERE = Path(__file__).parent
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
    {"AutoModelForCausalLM": "hf.PosencForCausalLM"},
    """\
inputs = tokenizer("<|endoftext|>Once upon a time", return_tensors="pt")  # documents began with <|endoftext|> in training
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))""",
    (
        "`generate` keeps keys and values in transformers' cache; a batch with padding is read anew for every token."
    ),
)
ENCODER = (
    "AutoModelForMaskedLM",
    {"AutoModel": "hf.PosencModel", "AutoModelForMaskedLM": "hf.PosencForMaskedLM"},
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

        import hf
    except ImportError:
        raise InputError(
            "a folder for transformers is written by transformers 5: pip install transformers"
        ) from None
    run, out = config.run[0], Path(config.out_dir)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"{out} holds other files: choose another --out_dir")
    ours, checkpoint = load_model(run, torch.device("cpu"), causal=None)
    encoding = corpus.tiktoken_encoding(checkpoint["data"]["tokenizer"])
    elsewhere = [cls for cls, _ in posenc.parse(ours.config.pe) if cls.__module__ != "posenc"]
    if elsewhere:
        raise InputError(
            f"the encoding {elsewhere[0].names[0]} is defined in {elsewhere[0].__module__}, which is not exported: "
            "move its class to posenc.py"
        )

    auto, classes, use, further = DECODER if ours.config.causal else ENCODER
    tokens = encoding.n_vocab + (not ours.config.causal)  # and <|mask|>
    limit = {} if ours.max_context is None else {"max_position_embeddings": ours.max_context}
    model = getattr(hf, classes[auto].removeprefix("hf."))(
        hf.PosencConfig(
            **{**dataclasses.asdict(ours.config), "vocab_size": tokens},
            **limit,
            dtype="float32",
            recipe=recipe_of(checkpoint),
            step=checkpoint["step"],
            auto_map={"AutoConfig": "hf.PosencConfig", **classes},
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
            (partial / f"{module}.py").write_text(
                relative((HERE / f"{module}.py").read_text(encoding="utf-8")), encoding="utf-8"
            )
        (partial / "README.md").write_text(readme, encoding="utf-8")
    print(f"{out}: {model.model.describe()}")


def relative(source: str) -> str:
    """A module's source with its imports of our modules turned into imports from the package that transformers puts them in.

    transformers copies the files that it finds by lines of the form "from .x import y", so that "import x" becomes two lines.
    """
    names = "|".join(MODULES)
    source = re.sub(rf"^from ({names}) import", r"from .\1 import", source, flags=re.MULTILINE)
    twice = r"from . import \1  # and, for transformers to find the file:\nfrom .\1 import __name__ as _"
    return re.sub(rf"^import ({names})$", twice, source, flags=re.MULTILINE)


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
