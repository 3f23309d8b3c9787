"""Provenance: command, code, versions and hardware that made a file."""

import datetime
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

from runtime import devices

import numpy as np
import torch


def provenance(device: torch.device) -> dict:
    """Return the command, commit, versions, hardware and time, for a record or a log."""
    now = datetime.datetime.now(datetime.UTC)
    return {
        "command": shlex.join([*_program(), *sys.argv[1:]]),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": devices.describe(device),
        "time": now.isoformat(timespec="seconds"),
    }


def _program() -> list[str]:
    """Return how the program was started: a file name, or python -m and a module's name."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:  # started as a file
        return [Path(sys.argv[0]).name]
    return ["python", "-m", spec.name.removesuffix(".__main__")]


def _commit() -> str | None:
    """Return the commit of this code, "-dirty" if files changed; None outside a git checkout."""
    folder = Path(__file__).parent.parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*", "--abbrev=40"],
            cwd=folder,
            text=True,
            capture_output=True,
            check=True,
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
