"""Malicious files and settings: code that must not run, and paths outside of the folder.

Every attack would create or change a file in `workspace.outside`, which is checked after each
trial.
"""

import builtins
import hashlib
import io
import json
import os
import pickle
import re
import subprocess
from pathlib import Path

import torch
import yaml

import compare
import eval_extrapolation
import export_hf
import import_pretrained
import prepare_text
import report
import train_gpt

from . import fuzz
from .harness import LENGTHS, ROOT, TIMEOUT, TRAIN, Lost, call, check

SCRIPTS = sorted(
    path
    for path in (ROOT / "scripts").glob("*.sh")
    if re.search("^experiment ", path.read_text(), re.MULTILINE)
)


class Evil:
    """An object whose pickle runs code when it is loaded."""

    def __init__(self, rng, outside: Path):
        path = str(outside / "code_ran")
        calls = [
            (os.system, (f"touch {path}",)),
            (builtins.exec, (f"open({path!r}, 'w').close()",)),
            (builtins.eval, (f"open({path!r}, 'w')",)),
            (io.open, (path, "w")),
            (os.mkdir, (path,)),
            (subprocess.call, (["touch", path],)),
        ]
        self.call = rng.choice(calls)

    def __reduce__(self):
        return self.call


def write_evil_pickle(workspace, rng, path: Path, content: dict) -> None:
    """Write a checkpoint with an Evil object somewhere in its content."""
    evil = Evil(rng, workspace.outside)
    place = rng.choice(("alone", "model", "rng", "config", "new"))
    value = evil if place == "alone" else {**content, place: {"wte.weight": evil}}
    way = rng.randrange(4)
    if way == 0:
        path.write_bytes(pickle.dumps(value, protocol=rng.choice((0, 2, 4))))
    elif way == 1:
        torch.save(value, path, _use_new_zipfile_serialization=False)
    else:
        torch.save(value, path)


def pickle_in_checkpoint(workspace, rng):
    """pickle with code as a checkpoint: all programs that read one."""
    run = workspace.copy(workspace.half)
    path = run / "checkpoint_0000004.pt"
    write_evil_pickle(workspace, rng, path, torch.load(path, weights_only=True))
    check(fuzz.read_run(workspace, rng, path if rng.random() < 0.3 else run))


def pickle_in_foreign_weights(workspace, rng):
    """pickle with code as weights of GPT-2, of the CABLE authors or of an encoder."""
    out = workspace.folder / "out"
    kind = rng.randrange(3)
    if kind == 0:
        folder, program = workspace.copy(workspace.base / "gpt2"), import_pretrained
    elif kind == 1:
        folder, program = workspace.copy(workspace.encoder), None
    else:
        folder, program = workspace.folder / "authors", import_pretrained
        folder.mkdir()
    for path in folder.glob("*.safetensors"):
        path.unlink()
    path = folder / ("model.pt" if kind == 2 else "pytorch_model.bin")
    write_evil_pickle(workspace, rng, path, {"transformer.wte.weight": torch.zeros(4, 4)})
    if program:
        check(call(program, path if kind == 2 else folder, "--out_dir", out))
    else:
        check(workspace.finetune(folder))


def yaml_tags(workspace, rng):
    """YAML tags that construct Python objects, in --config."""
    path = workspace.outside / "code_ran"
    tags = [
        f"!!python/object/apply:os.system ['touch {path}']",
        f"!!python/object/new:os.mkdir ['{path}']",
        f"!!python/object/apply:builtins.exec [\"open('{path}', 'w')\"]",
        "!!python/name:os.system ''",
        "!!python/module:os ''",
    ]
    config = workspace.folder / "config.yaml"
    config.write_text(f"{rng.choice(('pe', 'steps', 'evil'))}: {rng.choice(tags)}\n")
    check(call(train_gpt, "--config", config, "--dry_run"), 2)


def plugin_of_a_run(workspace, rng):
    """plugin in the folder of a run, named by its config or checkpoint."""
    run = workspace.copy(workspace.half)
    code = f"open({str(workspace.outside / 'code_ran')!r}, 'w')\n"
    name = rng.choice(("evil.py", "../evil.py", "posenc.py", str(run / "evil.py")))
    (run / name).write_text(code)
    plugin = {name: hashlib.sha256(code.encode()).hexdigest()}
    config = yaml.safe_load((run / "config.yaml").read_text()) | {"plugin": plugin}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    if rng.random() < 0.3:
        out = workspace.folder / "out"
        check(call(train_gpt, "--config", run / "config.yaml", "--out_dir", out), 2)
        return
    path = run / "checkpoint_0000004.pt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint["config"]["plugin"] = plugin
    torch.save(checkpoint, path)
    check(fuzz.read_run(workspace, rng, run))


def code_in_export(workspace, rng):
    """code in an exported encoder: fine-tuning."""
    folder = workspace.copy(workspace.encoder)
    code = f"open({str(workspace.outside / 'code_ran')!r}, 'w')\n"
    names = [path.name for path in folder.glob("*.py")]
    path = folder / rng.choice(("modeling.py", *names, "sitecustomize.py"))
    text = path.read_text() if path.exists() else ""
    path.write_text(text + code if "from __future__" in text else code + text)
    if rng.random() < 0.3:
        tokenizer = folder / "tokenizer_config.json"
        settings = json.loads(tokenizer.read_text())
        settings["auto_map"] = {"AutoTokenizer": [None, f"{path.stem}.Evil"]}
        tokenizer.write_text(json.dumps(settings))
    check(workspace.finetune(folder))


def code_in_gpt2(workspace, rng):
    """code in a folder of GPT-2 or of a tokenizer: import and preparation."""
    folder = workspace.copy(workspace.base / "gpt2")
    code = f"open({str(workspace.outside / 'code_ran')!r}, 'w')\n"
    (folder / "evil.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    classes = ("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoTokenizer")
    config["auto_map"] = {name: "evil.Evil" for name in classes}
    if rng.random() < 0.5:
        config["model_type"] = "evil"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": {"AutoTokenizer": ["evil.Evil", None]}})
    )
    out = ["--out_dir", workspace.folder / "out"]
    if rng.random() < 0.5:
        check(call(import_pretrained, folder, *out))
    else:
        check(call(prepare_text, workspace.text, "--tokenizer", f"hf:{folder}", *out))


def outside_names(workspace, rng) -> str:
    """Return a name that leads to `outside` from some folder of the trial."""
    path = rng.choice(("../", "../../", "x/../../", "x/../../../", f"{workspace.folder}/"))
    return f"{path}outside/{rng.choice(('evil', 'diary.txt'))}"


def check_files(workspace, *folders: Path) -> None:
    """Raise Lost if there are files outside of the folders that the programs may write to."""
    for path in workspace.folder.rglob("*"):
        is_known = path.is_dir() or any(folder in path.parents for folder in folders)
        if not is_known and path.parent != workspace.outside:
            raise Lost(f"{path.relative_to(workspace.folder)} was written outside of the folder")


def paths_in_meta_json(workspace, rng):
    """paths to other folders in meta.json: training, evaluation, preparation."""
    data, run = workspace.copy(workspace.data), workspace.copy(workspace.whole)
    meta = json.loads((data / "meta.json").read_text())
    if rng.random() < 0.5:
        meta["dataset"] = outside_names(workspace, rng)
    else:
        entry = meta["splits"][rng.choice(("train", "val"))]["shards"][0]
        entry["file"] = outside_names(workspace, rng)
    meta["complete"] = rng.random() < 0.7
    (data / "meta.json").write_text(json.dumps(meta))
    (run / workspace.record.name).unlink()
    out = workspace.folder / "out"
    command = rng.choice(
        (
            (eval_extrapolation, run, "--data", data, *LENGTHS),
            (train_gpt, *TRAIN, "--data", data, "--out_dir", out),
            (prepare_text, workspace.text, "--val_every", "5", "--out_dir", data),
        )
    )
    check(call(*command))
    check_files(workspace, data, run, out)
    if [path for path in run.rglob("*") if path.parent != run]:
        raise Lost("a record is written to another folder than that of the run")


def deletion_of_data(workspace, rng):
    """paths to other files in meta.json of a preparation that is undone."""
    text, data = workspace.folder / "text", workspace.folder / "toy"
    text.mkdir()
    (text / "a.txt").write_text("a line without an end, so that nothing is left for validation")
    command = [prepare_text, text, "--shard_tokens", "5", "--out_dir", data]
    call(*command, file_size=rng.randrange(1200, 2500))
    if not (data / "meta.json").exists():
        raise Lost("the preparation was not interrupted as planned")
    meta = json.loads((data / "meta.json").read_text())
    for split in meta["splits"].values():
        for entry in split["shards"]:
            entry["file"] = rng.choice(
                ("../outside/diary.txt", str(workspace.outside / "diary.txt"))
            )
    (data / "meta.json").write_text(json.dumps(meta))
    check(call(*command))


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


def names_in_records(workspace, rng):
    """paths and markup in names of records: tables."""
    records = []
    for number in range(2):
        record = json.loads(workspace.record.read_text())
        name = rng.choice((*MARKUP, outside_names(workspace, rng)))
        if rng.random() < 0.4:
            record["data"]["dataset"] = name
        else:
            record[rng.choice(("pe", "run", "folder", "size"))] = name
        path = workspace.folder / "records" / f"eval_{number}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record))
        records.append(path)
    out = workspace.folder / "tables"
    check(call(report, *records[: rng.choice((1, 2))], "--out_dir", out))
    check(call(compare, *records))
    check_files(workspace, out, workspace.folder / "records")
    for path in out.rglob("*"):
        if path.parent != out:
            raise Lost(f"{path.relative_to(out)} is in another folder")
        if path.suffix == ".tex" and re.search(r"\\(input|write18)|(?<!\\)\$x\$", path.read_text()):
            raise Lost(f"{path.name} has LaTeX commands from a record")
        if path.suffix == ".md":
            check_markdown(path.read_text(), path.name)


def check_markdown(text: str, name: str) -> None:
    """Raise Lost if a Markdown file has HTML, links or further columns from a record."""
    if re.search(r"(?<!\\)(<(script|img)|\]\(javascript)|^# Title", text, re.MULTILINE):
        raise Lost(f"{name} has markup from a record")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    for table in tables:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        if len(columns) > 1:
            raise Lost(f"{name} has a table with rows of different length")


def names_in_run(workspace, rng):
    """markup and paths in a checkpoint's settings: evaluation and export."""
    run = workspace.copy(workspace.half)
    path = run / "checkpoint_0000004.pt"
    checkpoint = torch.load(path, weights_only=True)
    name = rng.choice((*MARKUP, outside_names(workspace, rng)))
    part = rng.choice(("config", "gpt", "data"))
    keys = {"config": ("data", "pe", "out_dir"), "gpt": ("pe", "size"), "data": ("tokenizer",)}
    checkpoint[part][rng.choice(keys[part])] = name
    torch.save(checkpoint, path)
    out = workspace.folder / "out"
    check(call(export_hf, run, "--out_dir", out))
    check(workspace.evaluate(run))
    check_files(workspace, run, out)


SETTINGS = ("SCALE", "NPROC", "ENCODINGS", "PLUGIN", "SEEDS", "EVAL_TOKENS", "FLAGS")
SETTINGS += ("DRY_RUN", "DATA", "RUNS")
INJECTIONS = [
    "$(touch {})",
    "`touch {}`",
    "; touch {};",
    "cable; touch {}",
    "' ; touch {} ; '",
    '"; touch {}; "',
    "a[$(touch {})]",
    "1 || touch {}",
    "| touch {}",
    "&& touch {}",
    "x\ntouch {}\n",
    "$(touch${{IFS}}{})",
    "{{touch,{}}}",
    "--pe $(touch {})",
]


def settings_of_scripts(workspace, rng):
    """shell commands in settings of the experiment scripts."""
    # Instead of Python, which takes seconds to start.
    python = workspace.folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho 1\n")
    python.chmod(0o755)
    injected = rng.choice(INJECTIONS).format(workspace.outside / "code_ran")
    name = rng.choice(SETTINGS)
    settings = {"SCALE": "smoke", "DRY_RUN": "1", "DATA": str(workspace.data)}
    settings |= {"RUNS": str(workspace.folder / "runs"), name: injected}
    if rng.random() < 0.3:
        settings.pop("DRY_RUN")
    if name in ("PLUGIN", "DATA") and rng.random() < 0.5:  # a file or folder of that name
        path = workspace.folder / "work" / injected.replace("/", "").replace("\n", " ")
        path.mkdir()
        settings[name] = str(path)
    words, environment = [], dict(os.environ)
    for key, value in settings.items():
        if rng.random() < 0.5:
            words.append(f"{key}={value}")
        else:
            environment[key] = value
    environment |= {"INSTALLED": "1", "PATH": f"{python.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", rng.choice(SCRIPTS), *words],
        env=environment,
        text=True,
        capture_output=True,
        timeout=TIMEOUT,
    )
    if done.returncode not in (0, 1, 2):
        raise Lost(f"{words} ends with status {done.returncode}: {done.stderr[-200:]}")


def names_in_flags(workspace, rng):
    """shell commands in names of runs, data and encodings."""
    name = rng.choice(INJECTIONS).format(workspace.outside.name).replace("/", "")
    run = workspace.folder / name
    check(call(train_gpt, *TRAIN, "--steps", "2", "--data", workspace.data, "--out_dir", run))
    check(call(train_gpt, *TRAIN, "--data", workspace.data, "--out_dir", "x", "--pe", name))
    check(call(eval_extrapolation, run, *LENGTHS))
    check(call(export_hf, run, "--out_dir", workspace.folder / f"exported {name}"))
    check(call(report, *run.glob("eval_*.json"), "--out_dir", workspace.folder / f"t {name}"))


CASES = [
    pickle_in_checkpoint,
    settings_of_scripts,
    paths_in_meta_json,
    names_in_records,
    code_in_export,
    pickle_in_foreign_weights,
    settings_of_scripts,
    yaml_tags,
    plugin_of_a_run,
    deletion_of_data,
    names_in_run,
    code_in_gpt2,
    names_in_flags,
]
