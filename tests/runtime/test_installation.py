"""Tests of the check that Python and the required packages are installed."""

import os
import re
import shutil
import subprocess
import sys
import venv

import runtime

import pytest
from conftest import CORE, ROOT, TINY, python

PROGRAMS = [[path.name] for path in sorted(ROOT.glob("*.py")) if path.stem not in CORE]
MODULES = [
    ["-m", ".".join(path.relative_to(ROOT).with_suffix("").parts)]
    for path in sorted(ROOT.glob("*/*.py"))
    if path.parent.name != "tests" and "\n    cli.run(main)" in path.read_text(encoding="utf-8")
]


# Hides every package on which none of the first argument depends, as if it were not installed.
HIDE = """
import importlib.machinery, importlib.metadata, re, sys
import runtime

def normalized(name):
    return re.sub(r"[-_.]+", "-", re.match(r"[\\w.-]+", name)[0]).lower()

needed, names = set(), sys.argv.pop(1).split()
while names:
    name = normalized(names.pop())
    if name not in needed:
        needed.add(name)
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # for another system
            continue
        names += [text for text in requirements if "extra ==" not in text]
hidden = {
    module
    for module, packages in importlib.metadata.packages_distributions().items()
    if not set(map(normalized, packages)) & needed
}
assert {"transformers", "tokenizers", "tensorboard", "accelerate"} <= hidden

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
from runtime import cli
program = importlib.import_module(sys.argv[1])
cli.run(lambda: program.main(sys.argv[2:]))
"""


def requirements(name="requirements.txt"):
    lines = (ROOT / name).read_text().splitlines()
    return {re.match(r"[\w\[\]-]+", line)[0] for line in lines if line[0] not in "#-"}


MINIMUM = {*runtime.REQUIRED, "pyyaml"}


def run_hidden(program, *flags, packages=MINIMUM):
    """Run a program in a process that finds these packages only, and those they need."""
    command = [sys.executable, "-c", HIDE, " ".join(packages), program, *map(str, flags)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_training_needs_the_required_packages_only(tmp_path, data_dir):
    """A step with a validation and a checkpoint."""
    flags = ["--pe", "cable", "--data", data_dir, "--out_dir", tmp_path / "run"]
    done = run_hidden("train_gpt", *TINY, "--steps", 1, "--warmup_steps", 1, *flags)
    assert done.returncode == 0, done.stderr
    assert "step 1/1 | val loss" in done.stdout
    assert list((tmp_path / "run").glob("checkpoint_*1.pt"))


@pytest.mark.parametrize(
    "package, program, flags",
    [
        ("wandb", "train_gpt", "--data DATA --logger wandb"),
        ("tiktoken", "prepare_text", "errors.py --val posenc.py"),
        ("scipy", "report", "results/bench/compare.jsonl"),
        ("matplotlib", "report", "results/bench/figure3.json"),
        ("transformers", "import_pretrained", "gpt2"),
        ("transformers", "export_hf", "RUN"),
        ("transformers", "prepare_text", "errors.py --val posenc.py --tokenizer hf:gpt2"),
        ("tokenizers", "prepare_text", "errors.py --val posenc.py --tokenizer bpe:300"),
        ("tensorboard", "train_gpt", "--data DATA --logger tensorboard"),
        ("accelerate", "retrieval.finetune", "RUN"),
    ],
)
def test_a_missing_package_is_named_where_it_is_used(package, program, flags, data_dir, tmp_path):
    """With the file to install it from; the specification's packages are there for the others."""
    words = flags.replace("DATA", str(data_dir)).replace("RUN", str(tmp_path)).split()
    words = [ROOT / word if (ROOT / word).is_file() else word for word in words]
    listed = {
        package: file
        for file in ("-retrieval", "-extra", "")
        for package in requirements(f"requirements{file}.txt")
    }
    packages = MINIMUM if not listed[package] else requirements()
    done = run_hidden(program, *words, "--out_dir", tmp_path / "out", packages=packages)
    file = f"requirements{listed[package]}.txt"
    expected = f"error: missing package {package}: pip install -r {file}\n"
    assert (done.returncode, done.stderr) == (2, expected)
    assert not (tmp_path / "out").exists()


def test_programs_without_packages_name_them_and_the_command(tmp_path):
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    expected = f"error: missing packages {', '.join(runtime.REQUIRED)}: "
    assert ["train_gpt.py"] in PROGRAMS and ["-m", "retrieval.finetune"] in MODULES
    for program in PROGRAMS + MODULES:
        done = subprocess.run([python, *program], cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, ""), program
        assert done.stderr.startswith(expected) and done.stderr.count("\n") == 1, program


def test_required_packages_are_in_the_requirements():
    """filelock comes with torch."""
    assert {*runtime.REQUIRED} - {"yaml", "filelock"} | {"pyyaml"} <= requirements()


def test_an_old_python_and_missing_packages_are_named(monkeypatch, tmp_path):
    """The remedy is an environment that exists: Debian's pip refuses to install outside of one."""
    monkeypatch.setattr(runtime, "REQUIRED", ("no_such_module", "torch"))
    monkeypatch.setattr(runtime, "__file__", str(tmp_path / "runtime" / "__init__.py"))
    missing, pip = "missing packages no_such_module: ", "pip install -r requirements.txt"
    assert runtime.installation_problem() == missing + pip
    activate = tmp_path / ".venv" / "bin" / "activate"
    activate.parent.mkdir(parents=True)
    activate.touch()
    assert runtime.installation_problem() == f"{missing}source {activate}"
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert runtime.installation_problem() == missing + pip
    monkeypatch.setattr(sys, "version_info", (3, 10, 13, "final", 0))
    assert runtime.installation_problem() == "Python 3.10 is too old: use Python 3.11 or later"


def test_only_packages_are_named_as_missing():
    for name in ("triton", "triton.language", "no_such_package"):
        line = runtime.describe_missing_package(ModuleNotFoundError("no module", name=name))
        assert line and name.partition(".")[0] in line
    for name in ("_lzma", "reporting", "reporting.no_such_module", "posenc"):
        assert not runtime.describe_missing_package(ModuleNotFoundError("no module", name=name))


def test_training_works_without_optional_folders(tmp_path, data_dir):
    """One line names the folder where a flag needs it, before the first step."""
    copy = tmp_path / "copy"
    for name in subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split():
        if not name.startswith(("tests/", *runtime.OPTIONAL)):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    flags = [*TINY, "--data", data_dir, "--out_dir"]
    done = python("train_gpt.py", *flags, tmp_path / "run", cwd=copy)
    assert done.returncode == 0, done.stderr
    for flag, folder in (
        (["--sample_every", "1"], "generation"),
        (["--dry_run"], "benchmarking"),
        (["--list"], "more_encodings"),
        (["--attention", "triton"], "triton_attention"),
        (["--attention", "flex"], "triton_attention"),
    ):
        done = python("train_gpt.py", *flags, tmp_path / "other", *flag, cwd=copy)
        (line,) = done.stderr.splitlines()
        assert (done.returncode, line.startswith("error: ")) == (2, True) and folder in line
    assert not (tmp_path / "other").exists()
