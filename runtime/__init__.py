"""Command line, files, devices, processes and checkpoints.

Importing this package checks the Python version and that the required packages are installed. Every
program imports it before other packages (pyproject.toml configures this order), so that a program
that cannot run prints one line instead of a traceback. Only the standard library is used here.
"""

import importlib.util
import sys

MINIMUM_PYTHON = (3, 11)
# Module -> name in requirements.txt of the packages that every program needs.
REQUIRED = {
    "torch": "torch",
    "numpy": "numpy",
    "msgspec": "msgspec",
    "yaml": "pyyaml",
    "tqdm": "tqdm",
    "filelock": "filelock",
}
# Module -> package of those that are imported where they are used, and reported there.
OPTIONAL = {
    "accelerate": "accelerate",
    "datasets": "datasets",
    "huggingface_hub": "huggingface_hub",
    "matplotlib": "matplotlib",
    "pyarrow": "datasets",
    "scipy": "scipy",
    "sentence_transformers": "sentence-transformers",
    "tiktoken": "tiktoken",
    "tokenizers": "tokenizers",
    "transformers": "transformers",
}


def installation_problem():
    """Return what is wrong with the Python version or the installed packages, or None."""
    if sys.version_info < MINIMUM_PYTHON:
        found = ".".join(map(str, sys.version_info[:2]))
        minimum = ".".join(map(str, MINIMUM_PYTHON))
        return f"Python {found} is too old: use Python {minimum} or later"
    missing = [name for module, name in REQUIRED.items() if not importlib.util.find_spec(module)]
    if missing:
        return f"missing packages {', '.join(missing)}: pip install -r requirements.txt"
    return None


def describe_missing_package(error):
    """Return a line that names the package whose import failed, or None for other exceptions.

    error: any exception. Only packages in OPTIONAL are named: a missing module of this repository
    is a bug.
    """
    name = getattr(error, "name", None) or ""
    package = OPTIONAL.get(name.partition(".")[0])
    if not isinstance(error, ImportError) or package is None:
        return None
    if isinstance(error, ModuleNotFoundError) and "." not in name:
        return f"missing package {package}: pip install {package}"
    return f"{package} is of another version ({error}): pip install --upgrade {package}"


def check_installation():
    """Print one line and exit with status 2 if this Python cannot run the programs."""
    problem = installation_problem()
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)


check_installation()
