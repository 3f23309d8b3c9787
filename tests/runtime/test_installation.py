"""Tests of the check that Python and the required packages are installed."""

import re
import subprocess
import sys
import venv

import runtime

import pytest
from conftest import ROOT

CORE = {"posenc.py", "attention.py", "model.py", "errors.py"}
PROGRAMS = [[path.name] for path in sorted(ROOT.glob("*.py")) if path.name not in CORE]
MODULES = [
    ["-m", ".".join(path.relative_to(ROOT).with_suffix("").parts)]
    for path in sorted(ROOT.glob("*/*.py"))
    if path.parent.name != "tests" and "\n    cli.run(main)" in path.read_text(encoding="utf-8")
]


def requirements(name="requirements.txt"):
    lines = (ROOT / name).read_text().splitlines()
    return {re.match(r"[\w-]+", line)[0] for line in lines if not line.startswith("#")}


def test_programs_without_packages_name_them_and_the_command(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    names = ", ".join(runtime.REQUIRED.values())
    expected = f"error: missing packages {names}: pip install -r requirements.txt\n"
    assert len(PROGRAMS) >= 15 and ["-m", "retrieval.finetune"] in MODULES
    for program in PROGRAMS + MODULES:
        done = subprocess.run([python, *program], cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", expected), program


def test_required_packages_are_in_the_requirements():
    assert set(runtime.REQUIRED.values()) <= requirements()
    assert {"wandb", "tensorboard", "transformers"} <= requirements()
    assert {"huggingface_hub", "tokenizers"} <= requirements()
    assert requirements("requirements-retrieval.txt") == {"sentence-transformers", "accelerate"}


def test_an_old_python_is_named(monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    with pytest.raises(SystemExit) as stop:
        runtime.check_installation()
    assert stop.value.code == 2
    assert capsys.readouterr().err == "error: Python 3.10 is too old: use Python 3.11 or later\n"


def test_a_single_missing_package_is_named(monkeypatch):
    """Packages that only some programs use are reported by those."""
    monkeypatch.setitem(runtime.REQUIRED, "no_such_module", "no-such-package")
    assert runtime.installation_problem() == (
        "missing packages no-such-package: pip install -r requirements.txt"
    )
