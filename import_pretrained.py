"""Brings the weights of others into a run's folder, so that every program here works on models that the whole field knows.

    pip install transformers
    python import_pretrained.py gpt2 --out_dir runs/gpt2                  # or gpt2-medium, gpt2-large, gpt2-xl, or a local folder
    python import_pretrained.py axiomlaborg/Cable --file NAME.pt --out_dir runs/authors       # or the path of such a file

The second is what the authors of CABLE trained, `cable-v1`, each trained at 512 or at 1,024 tokens: its file does not tell, give
--block_size.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path

import torch

from errors import InputError
from hf_interop import pretrained
from model import GPT
from runtime import cli
from runtime.checkpoints import Run
from text_data.shards import GPT2_VOCABULARY


@dataclass
class Config:
    """Settings of an import."""

    model: list[str] = field(default_factory=list)
    """name on the hub, a folder that transformers saved, or a file by the CABLE authors' code"""
    file: str | None = None
    """which file of axiomlaborg/Cable"""
    block_size: int | None = None
    """training length of a CABLE checkpoint, in tokens; null: 1024"""
    attn_scale: float | None = None
    """what a CABLE checkpoint multiplies q k by; null: 1, as its authors' training code does"""
    out_dir: str = "runs/pretrained"
    """folder of the run"""


def main(argv=None):
    config = cli.parse(
        Config,
        argv,
        __doc__,
        positional=("model", "name on the hub, a folder of transformers, or a file"),
    )
    if len(config.model) != 1:
        raise InputError("name one model: python import_pretrained.py gpt2")
    given = {
        name: value
        for name in ("block_size", "attn_scale")
        if (value := getattr(config, name)) is not None
    }
    if problems := [
        f"{name} is {value:g}: it must be above 0" for name, value in given.items() if value <= 0
    ]:
        raise InputError(*problems)
    if config.file and Path(config.model[0]).exists():
        raise InputError(
            f"{config.model[0]} lies on this disk, --file is one of the hub's: leave it out"
        )
    if given and not pretrained.of_cable(config.model[0], config.file):
        raise InputError(
            f"{config.model[0]} is a GPT-2, which tells them itself: leave out --{' and --'.join(given)}"
        )
    settings = dataclasses.asdict(config) | {"data": None, "seed": None}
    run = Run(config.out_dir, settings, {"sha256": None, "tokenizer": "gpt2"})
    run.find(resume=False, defaults={})
    model = GPT.from_pretrained(config.model[0], config.file, **given)
    if model.config.vocab_size < GPT2_VOCABULARY:
        raise InputError(
            f"{config.model[0]} has a vocabulary of {model.config.vocab_size:,}, not GPT-2's {GPT2_VOCABULARY:,}: name another"
        )
    run.config |= {name: getattr(model.config, name) for name in ("block_size", "attn_scale")}
    run.begin(torch.device("cpu"))
    run.save(
        model=model.state_dict(),
        optimizer={},
        scaler={},
        step=0,
        sampler={},
        rng=[],
        gpt=dataclasses.asdict(model.config),
    )
    print(f"{config.out_dir}: {model.describe()}")


if __name__ == "__main__":
    cli.run(main)
