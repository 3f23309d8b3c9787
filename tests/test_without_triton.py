"""Every program and the libraries it uses work where Triton is not installed."""

import os
import subprocess
import sys

import pytest
from conftest import CORE, ROOT

PROGRAMS = sorted(path.stem for path in ROOT.glob("*.py") if path.stem not in CORE)
PROGRAMS += [f"retrieval.{name}" for name in ("prepare", "finetune", "evaluate")]
# Libraries come first: no module of the repository may hide a package that they probe.
START = f"""
import sentence_transformers
from transformers import GPT2LMHeadModel, PreTrainedModel, GenerationMixin
import {", ".join(PROGRAMS)}
from model import GPT, GPTConfig

try:
    GPT(GPTConfig("quickstart", "cable", 256, 64, attention="triton"))
except Exception as error:
    print(type(error).__name__, error)
"""


def test_every_program_starts(tmp_path):
    """In one process: a module is imported where ImportErrors occur. The path is refused."""
    pytest.importorskip("sentence_transformers")
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['triton'] = None\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", START], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("InputError") and "needs Triton" in done.stdout
