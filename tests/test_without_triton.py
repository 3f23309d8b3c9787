"""Every program and the libraries it uses work where Triton is not installed."""

import os
import subprocess
import sys

import pytest
from conftest import CORE, ROOT

PROGRAMS = sorted(path.stem for path in ROOT.glob("*.py") if path.stem not in CORE)


@pytest.fixture(scope="module")
def hide_triton(tmp_path_factory):
    """Environment of a process in which `import triton` raises ImportError."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['triton'] = None\n")
    return {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}


def run(environment, *command):
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )


def test_triton_is_hidden(hide_triton):
    assert "triton" in run(hide_triton, "-c", "import triton").stderr


def test_every_program_starts(hide_triton):
    """In one process: each program's module is imported, which is where ImportErrors occur."""
    done = run(hide_triton, "-c", f"import {', '.join(PROGRAMS)}")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("library", ["transformers", "sentence_transformers"])
def test_libraries_import_from_this_folder(hide_triton, library):
    """No module of the repository hides a package that the library probes."""
    pytest.importorskip(library)
    code = f"import {library}"
    if library == "transformers":
        code += "; from transformers import GPT2LMHeadModel, PreTrainedModel, GenerationMixin"
    done = run(hide_triton, "-c", code)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("module", ["prepare", "finetune", "evaluate"])
def test_retrieval_programs_start(hide_triton, module):
    done = run(hide_triton, "-m", f"retrieval.{module}", "--help")
    assert done.returncode == 0 and "usage" in done.stdout, done.stderr[-2000:]


def test_attention_triton_reports_the_missing_package(hide_triton):
    code = (
        "from model import GPT, GPTConfig; "
        "GPT(GPTConfig('quickstart', 'cable', 256, 64, attention='triton'))"
    )
    done = run(hide_triton, "-c", code)
    assert "InputError" in done.stderr and "triton" in done.stderr.splitlines()[-1]
