"""Import pretrained weights as a run, for evaluation, fine-tuning and export.

    python import_pretrained.py gpt2 --out_dir runs/gpt2
    python import_pretrained.py weights/NAME.pt --block_size 1024 --out_dir runs/authors

The first argument is the name of a model on the hub, or a folder of
transformers: GPT-2, Llama, Mistral, Qwen2, Qwen3, SmolLM2 or SmolLM3,
with safetensors; or a file of axiomlaborg/Cable on the hub, the CABLE
authors' `cable-v1`, trained at 512 or 1,024 tokens: pass --block_size.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path

from runtime import cli
from runtime.run_folder import PRETRAINED, Run

import torch

from errors import InputError
from hf_interop import pretrained


@dataclass
class Config:
    """Settings of an import."""

    model: list[str] = field(default_factory=list)
    """name on the hub, folder saved by transformers, or file of the CABLE authors"""
    block_size: int | None = cli.limited(None, 1, 10**8)
    """CABLE checkpoint: training length in tokens (null: 1024)"""
    out_dir: str = "runs/pretrained"
    """folder of the run"""


def main(argv=None):
    positional = ("model", "name on the hub, folder of transformers, or file")
    config = cli.parse(Config, argv, __doc__, positional=positional)
    if len(config.model) != 1:
        raise InputError("name one model: python import_pretrained.py gpt2")
    (name,) = config.model
    if not os.path.isfile(name):
        if Path(name).suffix in (".pt", ".pth", ".bin"):
            raise InputError(f"{name} does not exist: name a file of axiomlaborg/Cable")
        if config.block_size is not None:
            raise InputError(
                f"the config.json of {name} has its length: remove --block_size"
            )
    settings = dataclasses.asdict(config) | {"data": None, "seed": None}
    run = Run(Path(config.out_dir), settings, {"sha256": None})
    run.find_checkpoint(resume=False)
    model, revision, folder = pretrained.load_pretrained(name, config.block_size)
    tokenizer, files = pretrained.tokenizer_of(name, folder, model)
    if folder:
        files = files | {PRETRAINED: (folder / "config.json").read_bytes()}
    run.data["tokenizer"], run.files = tokenizer, files
    run.config |= {key: getattr(model.config, key) for key in ("block_size", "attn_scale")}
    if revision:
        run.config["revision"] = revision
    run.start(torch.device("cpu"))
    unused = {"optimizer": {}, "scaler": {}, "sampler": {}, "rng": []}
    run.save(
        model=model.state_dict(), step=0, gpt=dataclasses.asdict(model.config), **unused
    )
    print(f"{config.out_dir}: {model.describe()}")


if __name__ == "__main__":
    cli.run(main)
