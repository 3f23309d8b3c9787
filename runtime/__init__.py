"""Command line, files, devices and processes.

Every program imports this package first (pyproject.toml configures the order): without the required
packages it prints one line and exits. Standard library only.
"""

import importlib.util
import sys
from pathlib import Path

MINIMUM_PYTHON = (3, 11)
# Modules that every program needs. Others are imported where they are used.
REQUIRED = ("torch", "numpy", "msgspec", "yaml", "tqdm", "filelock")
# Folders that a training can do without.
OPTIONAL = ("attention_cpu", "benchmarking", "evaluation", "generation", "hf_interop")
OPTIONAL += ("more_encodings", "reporting", "retrieval", "triton_attention")


def installation_problem():
    """Return what is wrong with Python or the installed packages, or None."""
    if sys.version_info < MINIMUM_PYTHON:
        found, minimum = (f"{x[0]}.{x[1]}" for x in (sys.version_info, MINIMUM_PYTHON))
        return f"Python {found} is too old: use Python {minimum} or later"
    missing = [name for name in REQUIRED if not importlib.util.find_spec(name)]
    if missing:
        environment = Path(__file__).parents[1] / ".venv"
        remedy = "pip install -r requirements.txt"
        if (environment / "bin" / "activate").exists() and Path(sys.prefix) != environment:
            remedy = f"source {environment}/bin/activate"
        return f"missing packages {', '.join(missing)}: {remedy}"
    return None


def describe_missing_package(error):
    """Return a line that names the package whose import failed, or None.

    Other missing modules of this repository, or of Python itself, are a bug.
    """
    name = error.name if isinstance(error, ImportError) else None
    package, _, submodule = (name or "").partition(".")
    if package in OPTIONAL and not importlib.util.find_spec(package):
        return f"the folder {package} is missing: restore it, as by git checkout {package}"
    root = Path(__file__).parent.parent
    own = root / package  # this repository without a package
    is_own = own.is_dir() or own.with_suffix(".py").is_file()
    if is_own or package in sys.stdlib_module_names:
        return None
    if isinstance(error, ModuleNotFoundError) and not submodule:
        line = package.replace("_", "-") + "=="
        files = (root / f"requirements{kind}.txt" for kind in ("", "-extra", "-retrieval"))
        file = next((x.name for x in files if f"\n{line}" in x.read_text()), None)
        return f"missing package {package}: pip install {f'-r {file}' if file else package}"
    return f"{package} is of another version ({error}): pip install --upgrade {package}"


if problem := installation_problem():
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(2)
