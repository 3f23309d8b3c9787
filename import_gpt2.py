"""Brings OpenAI's GPT-2 into a run's folder, so that every program here works on a model that the whole field knows.

    pip install transformers
    python import_gpt2.py gpt2 --out_dir runs/gpt2              # or gpt2-medium, gpt2-large, gpt2-xl, or a local folder
    python eval_extrapolation.py runs/gpt2 --data data/mine --lengths 512,1024
    python sample.py runs/gpt2 --prompt "Once upon a time"
"""

import dataclasses
from dataclasses import dataclass, field

import torch

import cli
from errors import InputError
from model import GPT
from runs import Run


@dataclass
class Config:
    """Settings of an import."""

    model: list[str] = field(default_factory=list)
    """name on the hub, or a folder that transformers saved"""
    out_dir: str = "runs/gpt2"
    """folder of the run"""


def main(argv=None):
    config = cli.parse(Config, argv, __doc__, positional=("model", "name on the hub, or a folder that transformers saved"))
    if len(config.model) != 1:
        raise InputError("name one model: python import_gpt2.py gpt2")
    run = Run(config.out_dir, {"pretrained": config.model[0], "data": None, "seed": None}, {"sha256": None, "tokenizer": "gpt2"})
    run.find(resume=False, may_differ=set())
    model = GPT.from_pretrained(config.model[0])
    run.begin(torch.device("cpu"))
    run.save(model=model.state_dict(), optimizer={}, scaler={}, step=0, sampler={}, rng=[], gpt=dataclasses.asdict(model.config))
    print(f"{config.out_dir}: {model.describe()}")


if __name__ == "__main__":
    cli.run(main)
