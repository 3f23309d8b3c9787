"""Import pretrained weights as a run, for evaluation, fine-tuning and export.

    python import_pretrained.py gpt2 --out_dir runs/gpt2
    python import_pretrained.py axiomlaborg/Cable --file NAME.pt --out_dir runs/authors

The first argument is the name of a model on the hub, or a folder of transformers: GPT-2, Llama,
Mistral, Qwen2, Qwen3, SmolLM2 or SmolLM3, with safetensors; or the CABLE authors' repository on the
hub (or the path of one of its files), whose checkpoints are `cable-v1`. These were trained at 512
or 1,024 tokens, which the file does not record: pass --block_size.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli
from runtime.run_folder import Run

import torch

from errors import InputError
from hf_interop import pretrained


@dataclass
class Config:
    """Settings of an import."""

    model: list[str] = field(default_factory=list)
    """name on the hub, folder saved by transformers, or file of the CABLE authors"""
    file: str | None = None
    """file of axiomlaborg/Cable on the hub"""
    block_size: int | None = cli.limited(None, maximum=10**8)
    """CABLE checkpoint: training length in tokens (null: 1024)"""
    attn_scale: float | None = None
    """CABLE checkpoint: factor of q k^T (null: 1, as in the authors' training code)"""
    out_dir: str = "runs/pretrained"
    """folder of the run"""


def main(argv=None):
    positional = ("model", "name on the hub, folder of transformers, or file")
    config = cli.parse(Config, argv, __doc__, positional=positional)
    if len(config.model) != 1:
        raise InputError("name one model: python import_pretrained.py gpt2")
    given = {"block_size": config.block_size, "attn_scale": config.attn_scale}
    given = {name: value for name, value in given.items() if value is not None}
    if config.file and Path(config.model[0]).exists():
        raise InputError(
            f"{config.model[0]} is a local path, and --file names a file on the hub: remove --file"
        )
    if given and not pretrained.is_cable(config.model[0], config.file):
        raise InputError(
            f"{config.model[0]} is a model whose config.json has these settings: remove "
            f"--{' and --'.join(given)}"
        )
    settings = dataclasses.asdict(config) | {"data": None, "seed": None}
    run = Run(config.out_dir, settings, {"sha256": None})
    run.find_checkpoint(resume=False)
    model, revision, folder = pretrained.load_pretrained(config.model[0], config.file, **given)
    tokenizer, files = pretrained.tokenizer_of(config.model[0], folder, model)
    if folder:
        files = files | {pretrained.CONFIG_COPY: (folder / "config.json").read_bytes()}
    run.data["tokenizer"], run.files = tokenizer, files
    found = {name: getattr(model.config, name) for name in ("block_size", "attn_scale")}
    if revision:
        found["revision"] = revision
    run.config |= found
    run.start(torch.device("cpu"))
    unused = {"optimizer": {}, "scaler": {}, "sampler": {}, "rng": []}
    run.save(model=model.state_dict(), step=0, gpt=dataclasses.asdict(model.config), **unused)
    run.finish()
    print(f"{config.out_dir}: {model.describe()}")


if __name__ == "__main__":
    cli.run(main)
