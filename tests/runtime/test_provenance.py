"""Tests of the provenance of records and logs."""

import sys
import types

from runtime.provenance import provenance

import pytest
import torch


@pytest.mark.parametrize(
    "module, command",
    [
        (None, "train_gpt.py --pe rope"),
        ("retrieval.finetune", "python -m retrieval.finetune --pe rope"),
    ],
)
def test_command_can_be_repeated(monkeypatch, module, command):
    """module: the name that was passed to python -m, None for a program started as a file."""
    main = types.ModuleType("__main__")
    main.__spec__ = types.SimpleNamespace(name=module) if module else None
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", ["/somewhere/train_gpt.py", "--pe", "rope"])
    assert provenance(torch.device("cpu"))["command"] == command
