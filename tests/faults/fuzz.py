"""Random input from Hypothesis: settings, command lines, shards, records, checkpoints, prompts.

Every program must end with status 0, or with status 2 and one line that says what is wrong.
"""

import copy
import dataclasses
import hashlib
import json
import math
import random
import string
from pathlib import Path

import torch
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import compare
import eval_extrapolation
import export_hf
import import_pretrained
import prepare_text
import report
import sample
import train_gpt
from generation.sampling import SamplingConfig

from .harness import CPU, LENGTHS, MODEL, ROOT, TRAIN, call, check

MEMORY = 32 * 2**30  # bytes of address space, most of it PyTorch's libraries
RECORDS = sorted((ROOT / "results").glob("**/*.json"))
WORDS = ["", " ", "\0", "x" * 5000, "nan", ".inf", "1e400", "1_000", "../..", "null", "{}", "é☃"]
INTEGERS = [0, -1, 1, 3, 2**31, 2**63, 2**64, 10**9, 10**18, -(2**63)]
FLOATS = [math.nan, math.inf, -math.inf, 1e-40, 1e30, 1e308, -0.0, 0.5]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(INTEGERS + FLOATS + WORDS),
    st.floats(allow_subnormal=False),  # PyTorch flushes them to 0 here
    st.text(max_size=30),
)
# Names of settings and keys that exist are more likely to be read than random ones.
keys = st.one_of(st.text(max_size=8), st.sampled_from(["lengths", "data", "loss", "splits", "pe"]))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


def draw(strategy: st.SearchStrategy, rng: random.Random):
    """Return a value of a Hypothesis strategy that depends on `rng` only."""
    found = []

    @seed(rng.getrandbits(64))
    @settings(
        max_examples=10,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value):
        found.append(value)

    collect()
    return rng.choice(found[1:] or found)  # the first one is the simplest


def mutate(value, rng: random.Random):
    """Return a copy of nested values with one of them replaced, removed, or copied elsewhere."""
    value = copy.deepcopy(value)
    nodes = []

    def visit(node):
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, inner in list(items):
            nodes.append((node, key))
            if isinstance(inner, dict | list):
                visit(inner)

    if isinstance(value, dict | list):
        visit(value)
    if not nodes or rng.random() < 0.03:
        return draw(values, rng)
    # Rather one of the few at the top than one of many numbers in a list.
    parent, key = rng.choice(nodes if rng.random() < 0.5 else nodes[:40])
    way = rng.random()
    if way < 0.2:
        del parent[key]
    elif way < 0.3:
        other, other_key = rng.choice(nodes)
        parent[key] = copy.deepcopy(other[other_key]) if other_key in range_of(other) else None
    else:
        parent[key] = draw(values, rng)
    return value


def range_of(node):
    return node if isinstance(node, dict) else range(len(node))


def mutate_some(value, rng: random.Random):
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = mutate(value, rng)
    return value


def setting_names(program) -> list[str]:
    """Return settings that may have any value; `compile` takes minutes, plugins are code."""
    fields = dataclasses.fields(program.Config)
    return [f.name for f in fields if f.name not in ("compile", "plugin", "wandb_project")]


def random_settings(program, rng: random.Random) -> dict:
    """Return one to three settings with random values that a program can refuse or use at once."""
    chosen = {name: draw(values, rng) for name in rng.sample(setting_names(program), 2)}
    for name, value in list(chosen.items()):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in ("n_layer", "n_head", "n_embd") and is_number and 64 < value < 10**9:
            chosen[name] = 10**9  # valid, and too slow
    # Valid, and endless.
    if any(isinstance(chosen.get(name), int) for name in ("steps", "tokens_per_step")):
        chosen["dry_run"] = True
    return chosen


def config_file(workspace, rng):
    """settings in a YAML file of train_gpt.py."""
    base = dict(zip((word[2:] for word in TRAIN[::2]), TRAIN[1::2], strict=True))
    base = {name: yaml.safe_load(value) for name, value in base.items()}
    base |= {"data": str(workspace.data), "out_dir": str(workspace.folder / "run"), "steps": 2}
    path = workspace.folder / "config.yaml"
    path.write_text(yaml.safe_dump(base | random_settings(train_gpt, rng), allow_unicode=True))
    check(call(train_gpt, "--config", path, memory=MEMORY))


def yaml_text(workspace, rng):
    """text of a YAML file."""
    lines = draw(st.lists(st.text(string.printable, max_size=20), max_size=5), rng)
    path = workspace.folder / "config.yaml"
    if rng.random() < 0.5:
        lines += (workspace.whole / "config.yaml").read_text().splitlines()
    rng.shuffle(lines)
    path.write_text("\n".join(lines))
    check(call(train_gpt, "--config", path, "--dry_run", memory=MEMORY))


def command_line(workspace, rng):
    """flags of all programs."""
    run = workspace.copy(workspace.whole)
    out = ["--out_dir", workspace.folder / "out"]
    commands = {
        train_gpt: [*MODEL, *CPU, "--data", workspace.data, "--steps", "2", *out],
        eval_extrapolation: [run, *LENGTHS],
        sample: [run, *CPU, "--max_new_tokens", "4"],
        export_hf: [run, *out],
        import_pretrained: [workspace.folder / "nothing", *out],
        prepare_text: [workspace.text, "--val_every", "5", *out],
        report: [workspace.record, *out],
        compare: [workspace.record, workspace.record],
    }
    program = rng.choice(list(commands))
    words = [str(word) for word in commands[program]]
    chosen = random_settings(program, rng) if len(setting_names(program)) > 2 else {}
    for name, value in chosen.items():
        value = value if isinstance(value, str) else json.dumps(value)
        # No command line has NUL or so long words.
        words += [f"--{name}", value.replace("\0", "")[:5000]]
    if rng.random() < 0.2:
        words.insert(rng.randrange(len(words)), draw(st.text(max_size=9), rng).replace("\0", ""))
    check(call(program, *words, memory=MEMORY))


def meta_json(workspace, rng):
    """values in meta.json."""
    data = workspace.copy(workspace.data)
    path = data / "meta.json"
    path.write_text(json.dumps(mutate_some(json.loads(path.read_text()), rng)))
    use_data(workspace, rng, data)


def shards(workspace, rng):
    """tokens and headers of shards, with the right SHA-256 in meta.json."""
    data = workspace.copy(workspace.data)
    meta = json.loads((data / "meta.json").read_text())
    for split in meta["splits"].values():
        for entry in split["shards"]:
            path = data / entry["file"]
            content = bytearray(path.read_bytes())
            start = rng.choice((0, 0, 4, 8, rng.randrange(len(content))))
            noise = draw(st.binary(max_size=64), rng)
            content[start : start + rng.choice((0, len(noise)))] = noise
            path.write_bytes(content)
            entry["sha256"] = hashlib.sha256(content).hexdigest()
            if rng.random() < 0.5:
                entry["tokens"] = (len(content) - 1024) // 2
    (data / "meta.json").write_text(json.dumps(meta))
    use_data(workspace, rng, data)


def foreign_shards(workspace, rng):
    """bytes of shards without meta.json."""
    data = workspace.folder / "foreign"
    data.mkdir()
    source = (workspace.data / "toy_train_000000.bin").read_bytes()
    for split in ("train", "val"):
        name = rng.choice((f"{split}.bin", f"my_{split}_000000.bin"))
        noise = draw(st.binary(max_size=3000), rng)
        (data / name).write_bytes(rng.choice((noise, source, noise + source, source[:1024])))
    use_data(workspace, rng, data)


def use_data(workspace, rng, data: Path) -> None:
    """Train on a data set, evaluate on it, or prepare it again."""
    run = workspace.folder / "run"
    action = rng.choice(("train", "train", "evaluate", "prepare", "verify"))
    if action == "train":
        check(call(train_gpt, *TRAIN, "--steps", "2", "--data", data, "--out_dir", run))
    elif action == "evaluate":
        run = workspace.copy(workspace.whole)
        check(call(eval_extrapolation, run, "--data", data, *LENGTHS))
    elif action == "prepare":
        check(call(prepare_text, workspace.text, "--val_every", "5", "--out_dir", data))
    else:
        check(call(prepare_text, "--verify", "--out_dir", data))


def records(workspace, rng):
    """values in records: tables and comparisons."""
    out = workspace.folder / "tables"
    paths = []
    source = rng.choice((workspace.record, rng.choice(RECORDS)))
    for number in range(2):
        record = json.loads(source.read_text())
        paths.append(workspace.folder / f"eval_{number}.json")
        paths[-1].write_text(json.dumps(mutate_some(record, rng) if number else record))
    if rng.random() < 0.5:
        check(call(compare, *paths))
    else:
        check(call(report, *paths[rng.randrange(2) :], "--out_dir", out))


def own_record(workspace, rng):
    """values in the record of a run that is evaluated."""
    run = workspace.copy(workspace.whole)
    path = run / workspace.record.name
    path.write_text(json.dumps(mutate_some(json.loads(path.read_text()), rng)))
    check(workspace.evaluate(run))


def checkpoint_values(workspace, rng):
    """values in checkpoints."""
    run = workspace.copy(workspace.half)
    path = run / "checkpoint_0000004.pt"
    torch.save(mutate_some(torch.load(path, weights_only=True), rng), path)
    check(read_run(workspace, rng, run))


def other_files(workspace, rng):
    """other files in place of a checkpoint."""
    run = workspace.copy(workspace.half)
    path = run / "checkpoint_0000004.pt"
    files = [file for file in workspace.base.rglob("*") if file.is_file()]
    noise = draw(st.binary(max_size=200), rng)
    path.write_bytes(rng.choice((noise, rng.choice(files).read_bytes())))
    check(read_run(workspace, rng, path if rng.random() < 0.3 else run))


def read_run(workspace, rng, run: Path):
    """Call a program that reads checkpoints."""
    out = workspace.folder / "out"
    readers = [
        lambda: workspace.evaluate(run),
        lambda: workspace.sample(run),
        lambda: call(export_hf, run, "--out_dir", out),
        lambda: call(train_gpt, *workspace.train_flags(out, "--init_from", run)),
    ]
    if run.is_dir():
        readers.append(lambda: workspace.resume(run))
    else:
        readers.append(lambda: call(import_pretrained, run, "--out_dir", out))
    return rng.choice(readers)()


def prompts(workspace, rng):
    """prompts and sampling settings."""
    text = draw(st.text(max_size=300), rng)
    content = draw(st.binary(max_size=300), rng)
    path = workspace.folder / "prompts.txt"
    path.write_bytes(rng.choice((content, text.encode(), b"", b"a" * 5000, b"\n\n\xff")))
    flags = ["--max_new_tokens", str(rng.choice((0, 1, 5)))]
    names = [field.name for field in dataclasses.fields(SamplingConfig)]
    names = [name for name in names if name not in ("compile", "max_new_tokens")]
    if rng.random() < 0.5:
        flags += [f"--{rng.choice(names)}", json.dumps(draw(scalars, rng))]
    source = rng.randrange(3)
    if source == 0:
        flags += ["--prompt", text.replace("\0", "")]
    elif source == 1:
        flags += ["--prompt_file", path]
    else:
        flags += ["--interactive", "true"]
    check(call(sample, workspace.whole, *CPU, *flags, text=path.read_bytes(), memory=MEMORY))


def texts(workspace, rng):
    """texts and tables to prepare."""
    folder = workspace.folder / "text"
    folder.mkdir()
    rows = [json.dumps({"text": draw(values, rng)}).encode() for _ in range(2)]
    contents = [
        draw(st.binary(max_size=300), rng),
        draw(st.text(max_size=300), rng).encode(),
        b"\n".join([*rows, draw(st.binary(max_size=20), rng)]),
        b"line\n" * 200 + draw(st.binary(max_size=9), rng),
    ]
    for number, content in enumerate(contents):
        suffix = rng.choice((".txt", ".jsonl", ".parquet", ".md"))
        (folder / f"{number}{suffix}").write_bytes(content)
    source = rng.choice((folder, rng.choice(sorted(folder.iterdir()))))
    out = ["--out_dir", workspace.folder / "data"]
    check(call(prepare_text, source, "--val_every", "2", *out, memory=MEMORY))


CASES = [
    config_file,
    command_line,
    records,
    meta_json,
    checkpoint_values,
    prompts,
    shards,
    other_files,
    texts,
    own_record,
    foreign_shards,
    yaml_text,
]
