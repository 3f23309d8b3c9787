"""Programs called in this process, how they may end, and a hash of what they computed."""

import contextlib
import hashlib
import io
import re
import traceback
from dataclasses import dataclass

from runtime import cli

import torch

# A traceback, and PyTorch's advice to load unsafe files.
FORBIDDEN = ("Traceback (most recent call last)", "weights_only")


@dataclass
class Result:
    """How a program ended."""

    status: int
    output: str
    """standard output and standard error"""

    def check(self, *allowed: int) -> "Result":
        """Fail unless the status is allowed (0 or 2), and status 2 has a line that says why."""
        assert self.status in (allowed or (0, 2)), self.output
        for words in FORBIDDEN:
            assert words not in self.output, self.output
        if self.status == 2:
            assert re.search(r"^error: .", self.output, re.MULTILINE), self.output
        return self


def call(program, *flags) -> Result:
    """Call `main` of a program with flags, as `cli.run` does in a new process."""
    output = io.StringIO()
    status = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            cli.run(lambda: program.main([str(flag) for flag in flags]))
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except Exception:
            traceback.print_exc()
            status = 1
    return Result(status, output.getvalue())


def digest(value) -> str:
    """Return a hash of nested values and tensors."""
    total = hashlib.sha256()

    def add(item):
        if isinstance(item, dict):
            for key, inner in item.items():
                total.update(repr(key).encode())
                add(inner)
        elif isinstance(item, list | tuple):
            for inner in item:
                add(inner)
        elif isinstance(item, torch.Tensor):
            total.update(item.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            total.update(repr(item).encode())

    add(value)
    return total.hexdigest()
