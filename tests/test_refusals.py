"""Specifications and commands that are refused: refusals.yaml has them and their messages."""

import importlib
import re
import shlex

import pytest
import yaml
from conftest import ROOT, TINY

import pe_spec
from errors import InputError

REFUSALS = yaml.safe_load((ROOT / "tests" / "refusals.yaml").read_text())
COMMANDS = [
    (
        group["program"],
        f"{group.get('flags', '')} {flags}".strip(),
        messages,
        group.get("files", {}),
    )
    for group in REFUSALS["commands"]
    for flags, *messages in group["refused"]
]


@pytest.mark.parametrize("spec, problems", [(spec, rest) for spec, *rest in REFUSALS["specs"]])
def test_specification_is_refused(spec, problems):
    with pytest.raises(InputError) as error:
        pe_spec.build(spec, 4, 24, 16, layers=1)
    for problem, expected in zip(error.value.problems, problems, strict=True):
        assert expected in problem


@pytest.mark.parametrize("program, flags, messages, contents", COMMANDS)
def test_command_is_refused(
    program,
    flags,
    messages,
    contents,
    trained,
    data_dir,
    tmp_path,
    refused,
    monkeypatch,
    unregistered,
):
    """There is one line for each message, and nothing is written."""
    monkeypatch.chdir(ROOT)
    for name, content in contents.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "rows.jsonl").write_text('{"body": "a"}\n' * 50)
    (tmp_path / "empty").touch()
    encoder = trained("alibi", "--objective", "mlm")
    paths = {"ENCODER": encoder, "DATA": data_dir, "TMP": tmp_path, "LONG": "x" * 300}
    paths["ROOT"] = ROOT

    def replace_paths(text):
        text = re.sub(r"\bRUN:([\w-]+)", lambda match: str(trained(match[1])), text)
        text = re.sub(r"\bRUN\b", str(trained("cable")), text)
        return re.sub(r"\b(ENCODER|DATA|TMP|LONG|ROOT)\b", lambda match: str(paths[match[0]]), text)

    def files():
        folders = (tmp_path, data_dir, trained("cable"), encoder)
        found = [path for folder in folders for path in folder.rglob("*")]
        return {path: path.stat().st_mtime_ns for path in found}

    flags, before = replace_paths(flags).replace("*TINY", shlex.join(TINY)), files()
    lines = refused(importlib.import_module(program).main, *shlex.split(flags))
    for line, message in zip(lines, messages, strict=True):
        assert replace_paths(message) in line
    assert files() == before
