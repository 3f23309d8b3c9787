"""Run an evaluation program with batches of few tokens: small_batches.py PROGRAM FLAG..."""

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from runtime import cli  # noqa: E402

from evaluation import runner  # noqa: E402


def run(program: str, flags: list[str], monkeypatch=None) -> None:
    module = importlib.import_module(program.removesuffix(".py"))
    for each in (runner, module):
        if monkeypatch:
            monkeypatch.setattr(each, "BATCH_TOKENS", 96, raising=False)
        else:
            each.BATCH_TOKENS = 96
    module.main(flags)


if __name__ == "__main__":
    cli.run(lambda: run(sys.argv[1], sys.argv[2:]))
