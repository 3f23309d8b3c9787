"""Settings, trainings and records of the tests that scripts/test_gpu.sh runs on a GPU.

    DEVICE=cuda python -m pytest tests/gpu                  # records: runs/test_gpu/records.jsonl
    DEVICE=cpu OUT=runs/kit python -m pytest tests/gpu      # the same tests at tiny sizes

Without DEVICE these tests are skipped. A test adds a line to the records after each result.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, log_of, write_shards

DEVICE = os.environ.get("DEVICE", "")
LIMIT = int(os.environ.get("LIMIT", "1800"))  # seconds that a training may take
OUT = Path(os.environ.get("OUT", "runs/test_gpu")).resolve()
VOCABULARY = 50257  # of GPT-2's tokenizer
TOKENS = 256  # different tokens in the text, so that a few steps learn which occur

if not DEVICE:
    pytest.skip("DEVICE is not set: see scripts/test_gpu.sh", allow_module_level=True)


@pytest.fixture(scope="session")
def random_data(tmp_path_factory):
    """Return a folder of 9 million random GPT-2 tokens, which are also the validation split."""
    folder, random = tmp_path_factory.mktemp("random"), np.random.default_rng(1)
    tokens = np.sort(random.choice(VOCABULARY, TOKENS, replace=False))
    write_shards(folder, [random.choice(tokens, 9_000_000)], 9_000_000, VOCABULARY, "gpt2")
    meta = json.loads((folder / "meta.json").read_text())
    meta["splits"]["val"] = meta["splits"]["train"]
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


@pytest.fixture
def command(random_data, tmp_path):
    """Return a function of a run's name, flags and ranks: the command line that trains it."""

    def make(name: str, flags: str, ranks: int = 1) -> list[str]:
        launcher = "-m torch.distributed.run --standalone --nproc_per_node"
        words = [*launcher.split(), str(ranks)] if ranks > 1 else []
        words += ["train_gpt.py", *flags.split(), "--log_every", "1"]
        words += ["--data", str(random_data), "--out_dir", str(tmp_path / name)]
        if "--device" not in flags:
            words += ["--device", DEVICE]
        return [sys.executable, *words]

    return make


@pytest.fixture
def train(command, tmp_path):
    """Return a function that trains, with the arguments of `command`.

    It returns the entries of the steps in the run's log, and what the training printed.
    """

    def run(name: str, flags: str, ranks: int = 1) -> tuple[list[dict], str]:
        options = {"cwd": ROOT, "text": True, "capture_output": True, "timeout": LIMIT}
        done = subprocess.run(command(name, flags, ranks), **options)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        steps = [entry for entry in log_of(tmp_path / name) if entry["kind"] == "train"]
        for checkpoint in (tmp_path / name).glob("*.pt"):  # gigabytes
            checkpoint.unlink()
        return steps, done.stdout

    return run


@pytest.fixture
def record(request):
    """Return a function that adds a line with the test's name and values to the records."""

    def write(**values) -> None:
        name = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
        line = json.dumps({"test": request.node.name, "device": name, **values})
        OUT.mkdir(parents=True, exist_ok=True)
        with open(OUT / "records.jsonl", "a") as file:
            file.write(line + "\n")

    return write
