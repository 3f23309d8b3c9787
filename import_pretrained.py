"""Import pretrained weights as a run, for evaluation, fine-tuning and export.

    python import_pretrained.py gpt2 --out_dir runs/gpt2
    python import_pretrained.py model.gguf --out_dir runs/model
    python import_pretrained.py weights/NAME.pt --block_size 1024 --out_dir runs/authors

The first argument is the name of a model on the hub, or a folder of
transformers: GPT-2, Llama, Mistral, Qwen2, Qwen3, SmolLM2 or SmolLM3,
with safetensors; or a GGUF of one, which needs the package gguf; or a
file of axiomlaborg/Cable on the hub, the CABLE authors' `cable-v1`,
trained at 512 or 1,024 tokens: pass --block_size.
"""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from runtime import cli
from runtime.files import atomic_folder, check_new_folder

import torch

from errors import InputError
from hf_interop import pretrained
from setting import setting
from training.run_folder import PRETRAINED, Run


@dataclass
class Config:
    """Settings of an import."""

    model: list[str] = setting([], positional=True)
    """name on the hub, folder saved by transformers, or file of the CABLE authors"""
    block_size: int | None = setting(None, 1, 10**8)
    """CABLE checkpoint: training length in tokens (null: 1024)"""
    out_dir: str = "runs/pretrained"
    """folder of the run"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__)
    if len(config.model) != 1:
        raise InputError("name one model: python import_pretrained.py gpt2")
    (name,) = config.model
    is_checkpoint = os.path.isfile(name) and not name.endswith(".gguf")
    if config.block_size is not None and not is_checkpoint:
        raise InputError(f"{name} has its length: remove --block_size")
    out = Path(config.out_dir)
    check_new_folder(out)
    model, revision, source, original = pretrained.load_pretrained(name, config.block_size)
    tokenizer, files = pretrained.tokenizer_of(name, source, model)
    if original:
        files = files | {PRETRAINED: json.dumps(original, indent=2).encode() + b"\n"}
    settings = dataclasses.asdict(config) | {"data": None, "seed": None}
    settings |= {key: getattr(model.config, key) for key in ("block_size", "attn_scale")}
    if revision:
        settings["revision"] = revision
    unused = {"optimizer": {}, "scaler": {}, "sampler": {}, "rng": []}
    with atomic_folder(out) as folder:
        run = Run(folder, settings, {"sha256": None, "tokenizer": tokenizer}, files=files)
        run.start(torch.device("cpu"))
        run.save(model=model.state_dict(), step=0, gpt=dataclasses.asdict(model.config), **unused)
    print(f"{config.out_dir}: {model.describe()}")


if __name__ == "__main__":
    cli.run(main)
