"""Malicious files and settings: code in them does not run, and paths in them lead nowhere.

Every attack would create `marker`, or a file next to the folders that the programs may write to.
Code in exported encoders: tests/retrieval/test_folder_code.py; plugins in the folder of a run:
tests/training/test_plugins.py.
"""

import hashlib
import json
import os
import pickle
import re
import shutil
import subprocess

import pytest
import torch
from conftest import ROOT, TINY, save_checkpoint
from in_process import call
from transformers import GPT2Config, GPT2LMHeadModel

import compare
import eval_extrapolation
import export_hf
import import_pretrained
import prepare_text
import report
import sample
import train_gpt

CPU = ["--device", "cpu", "--dtype", "float32"]
LENGTHS = ["--lengths", "16", *CPU]
NEWEST = "checkpoint_0000006.pt"
RECORD = "eval_toy_val.json"
READERS = ["evaluate", "sample", "export", "initialize", "resume"]


@pytest.fixture
def marker(tmp_path):
    """A path that malicious code would create; the working folder is `tmp_path`/work."""
    path = tmp_path / "code_ran"
    yield path
    assert not path.exists()


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A copy of a finished run, in an otherwise empty folder."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return shutil.copytree(trained("cable"), tmp_path / "run")


@pytest.fixture
def data(data_dir, tmp_path):
    return shutil.copytree(data_dir, tmp_path / "toy")


def read(reader, run, data_dir, out):
    """Call a program that reads the checkpoint of a run."""
    if reader == "evaluate":
        return call(eval_extrapolation, run, "--data", data_dir, *LENGTHS)
    if reader == "sample":
        return call(sample, run, *CPU, "--prompt", "line", "--max_new_tokens", "2")
    if reader == "export":
        return call(export_hf, run, "--out_dir", out)
    start = ["--init_from", run, "--out_dir", out]
    if reader == "resume":
        start = ["--resume", "--steps", "8", "--out_dir", run]
    return call(train_gpt, *TINY, "--data", data_dir, *start)


class Evil:
    """An object whose pickle creates a file when it is loaded."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def write_evil(path, value, way):
    if way == "pickle":
        path.write_bytes(pickle.dumps(value))
    else:
        torch.save(value, path, _use_new_zipfile_serialization=way == "zip")


@pytest.mark.parametrize(
    "reader, way, place",
    [
        *((reader, "zip", "model") for reader in READERS),
        *(("evaluate", way, place) for way in ("pickle", "legacy") for place in ("alone", "model")),
        ("sample", "zip", "config"),
    ],
)
def test_pickle_in_a_checkpoint(reader, way, place, run, marker, data_dir, tmp_path):
    content = torch.load(run / NEWEST, weights_only=True)
    evil = Evil(marker)
    value = evil if place == "alone" else {**content, place: {"wte.weight": evil}}
    for path in run.glob("*.pt"):
        write_evil(path, value, way)
        content = path.read_bytes()
        path.write_bytes(content + hashlib.sha256(content).hexdigest().encode())
    read(reader, run, data_dir, tmp_path / "out").check(2)


@pytest.fixture
def gpt2(tmp_path):
    config = GPT2Config(n_embd=8, n_layer=1, n_head=1, n_positions=16)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


@pytest.mark.parametrize("way", ["pickle", "zip", "legacy"])
@pytest.mark.parametrize("is_authors", [False, True])
def test_pickle_in_foreign_weights(way, is_authors, gpt2, marker, tmp_path):
    source = tmp_path / "model.pt" if is_authors else gpt2
    (gpt2 / "model.safetensors").unlink()
    path = source if is_authors else gpt2 / "pytorch_model.bin"
    write_evil(path, {"transformer.wte.weight": Evil(marker)}, way)
    call(import_pretrained, source, "--out_dir", tmp_path / "out").check(2)


def test_yaml_tags(marker, tmp_path):
    tags = [
        f"!!python/object/apply:os.system ['touch {marker}']",
        f"!!python/object/new:os.mkdir ['{marker}']",
        f"!!python/object/apply:builtins.exec [\"open('{marker}', 'w')\"]",
        "!!python/name:os.system ''",
        "!!python/module:os ''",
    ]
    config = tmp_path / "config.yaml"
    for tag in tags:
        config.write_text(f"pe: {tag}\n")
        call(train_gpt, "--config", config, "--dry_run").check(2)


@pytest.mark.parametrize("model_type", ["gpt2", "evil"])
def test_code_in_a_folder_of_gpt2_or_of_a_tokenizer(model_type, gpt2, marker, tmp_path):
    (gpt2 / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    names = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer")
    config = json.loads((gpt2 / "config.json").read_text())
    config |= {"auto_map": dict.fromkeys(names, "evil.Evil"), "model_type": model_type}
    (gpt2 / "config.json").write_text(json.dumps(config))
    auto_map = {"AutoTokenizer": ["evil.Evil", None]}
    (gpt2 / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto_map}))
    call(import_pretrained, gpt2, "--out_dir", tmp_path / "out").check()
    (tmp_path / "text.txt").write_text("line\n" * 9)
    flags = ["--tokenizer", f"hf:{gpt2}", "--out_dir", tmp_path / "data"]
    call(prepare_text, tmp_path / "text.txt", *flags).check(2)


def files_below(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


OUTSIDE = ["../outside/evil", "x/../../outside/evil", "../../outside/diary.txt", "{}/outside/evil"]


@pytest.fixture
def outside(tmp_path):
    """A folder whose only file must not be changed, next to the folders of the programs."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "diary.txt").write_text("mine")
    yield folder
    assert files_below(folder) == {"diary.txt"} and (folder / "diary.txt").read_text() == "mine"


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("part", ["dataset", "file", "split"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_paths_in_meta_json(name, part, is_complete, run, data, outside, tmp_path):
    name = name.format(tmp_path)
    meta = json.loads((data / "meta.json").read_text()) | {"complete": is_complete}
    if part == "dataset":
        meta["dataset"] = name
    elif part == "split":
        meta["splits"][name] = meta["splits"].pop("train")
    else:
        for split in meta["splits"].values():
            split["shards"][0]["file"] = name
    (data / "meta.json").write_text(json.dumps(meta))
    before = files_below(tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("line\n" * 200)
    call(eval_extrapolation, run, "--data", data, *LENGTHS).check(2)
    call(train_gpt, *TINY, "--data", data, "--out_dir", tmp_path / "out").check(2)
    call(prepare_text, text, "--val_every", "5", "--out_dir", data).check()
    (tmp_path / "line.txt").write_text("without an end, so that nothing is left for validation")
    call(prepare_text, tmp_path / "line.txt", "--out_dir", data).check(2)  # removes its shards
    new = files_below(tmp_path) - before
    assert {file for file in new if not file.startswith("toy/")} == {"text.txt", "line.txt"}


MARKUP = [
    r"\input{/etc/passwd}",
    r"\write18{touch x}",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a|b",
    "x](javascript:alert(1))",
    "cable\n\n# Title",
    "$x$ & y % z # _ ^ ~ { }",
]


@pytest.mark.parametrize("is_dataset", [True, False])
@pytest.mark.parametrize("name", [*MARKUP, *OUTSIDE])
def test_names_in_records(is_dataset, name, run, outside, tmp_path):
    record = json.loads(evaluated(run).read_text())
    name = name.format(tmp_path) if name in OUTSIDE else name
    if is_dataset:
        record["data"]["dataset"] = name
    else:
        record |= dict.fromkeys(("pe", "run", "folder", "size"), name)
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    before = files_below(tmp_path)
    out = tmp_path / "tables"
    call(report, path, "--out_dir", out).check()
    call(compare, path, run / RECORD).check()
    assert all(file.startswith("tables/") for file in files_below(tmp_path) - before)
    for file in out.glob("*.md"):
        check_markdown(file.read_text())


def evaluated(run):
    """Return the record of a run's perplexity."""
    call(eval_extrapolation, run, *LENGTHS).check(0)
    return run / RECORD


def check_markdown(text):
    """Fail if a Markdown file has HTML, links or further columns from a record."""
    assert not re.search(r"(?<!\\)(<(script|img)|\]\(javascript)|^# Title", text, re.MULTILINE)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


@pytest.mark.parametrize(
    ("part", "key"),
    [("config", "data"), ("config", "pe"), ("gpt", "pe"), ("gpt", "size"), ("data", "tokenizer")],
)
def test_names_in_a_checkpoint(part, key, run, data_dir, outside, tmp_path):
    content = torch.load(run / NEWEST, weights_only=True)
    for name in [MARKUP[0], MARKUP[6], OUTSIDE[0], OUTSIDE[3].format(tmp_path)]:
        content[part][key] = name
        save_checkpoint(content, run / NEWEST)
        before = files_below(tmp_path)
        call(export_hf, run, "--out_dir", tmp_path / "exported").check()
        call(eval_extrapolation, run, "--data", data_dir, *LENGTHS).check()
        new = files_below(tmp_path) - before
        assert all(file.startswith(("exported/", "run/eval_")) for file in new)
        shutil.rmtree(tmp_path / "exported", ignore_errors=True)


INJECTIONS = [
    "$(touch {})",
    "`touch {}`",
    "; touch {};",
    "' ; touch {} ; '",
    '"; touch {}; "',
    "a[$(touch {})]",
    "1 || touch {}",
    "x\ntouch {}\n",
    "$(touch${{IFS}}{})",
    "{{touch,{}}}",
]


@pytest.mark.parametrize("script", ["table4", "table3", "half_hour"])
def test_shell_commands_in_flags_of_scripts(script, marker, tmp_path):
    """Of one that calls the program once, several times, or with a word of its own."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >>{tmp_path}/words\n')
    python.chmod(0o755)
    environment = {**os.environ, "INSTALLED": "1", "PATH": f"{python.parent}:{os.environ['PATH']}"}
    for injection in INJECTIONS:
        word = injection.format(marker)
        words = [] if script != "half_hour" else ["gpt2"]
        words += ["--encodings", word, "--data", word, "--runs", word]
        command = ["bash", ROOT / "scripts" / f"{script}.sh", *words]
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
        assert word in (tmp_path / "words").read_text()
