"""Random input from Hypothesis: every program ends with status 0, or 2 and a line that says why."""

import contextlib
import copy
import dataclasses
import json
import math
import resource
import shutil
import tempfile
from pathlib import Path

import pytest
import record_examples
import yaml
from conftest import TINY
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from in_process import call

import compare
import eval_extrapolation
import export_hf
import import_pretrained
import prepare_text
import report
import sample
import train_gpt

MEMORY = 32 * 2**30  # bytes of address space, most of it PyTorch's libraries
CPU = ["--device", "cpu", "--dtype", "float32"]
LENGTHS = ["--lengths", "16,32", *CPU]
NEWEST = "checkpoint_0000006.pt"
RECORD = "eval_toy_val.json"
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
random_input = settings(
    max_examples=10,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def run(trained):
    """A finished run that is evaluated; read-only."""
    folder = trained("cable", "--seed", "9")
    call(eval_extrapolation, folder, *LENGTHS).check(0)
    return folder


@pytest.fixture(scope="module")
def texts(data_dir):
    return data_dir.parent / "text"


@contextlib.contextmanager
def limited_folder():
    """Yield a new working folder, in which programs get at most `MEMORY`."""
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, limits[1]))
        try:
            yield Path(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)


def mutate(value, data):
    """Return a copy of nested values with one of them removed, moved or replaced."""
    value = copy.deepcopy(value)
    nodes = []

    def visit(node):
        for key, inner in list(node.items() if isinstance(node, dict) else enumerate(node)):
            nodes.append((node, key))
            if isinstance(inner, dict | list):
                visit(inner)

    visit(value)
    # Rather one of the few at the top than one of many numbers in a list.
    parent, key = nodes[data.draw(st.integers(0, min(len(nodes), 40) - 1))]
    way = data.draw(st.sampled_from(["replace", "replace", "remove", "move"]))
    if way == "remove":
        del parent[key]
    elif way == "move":
        other, other_key = nodes[data.draw(st.integers(0, len(nodes) - 1))]
        parent[key] = copy.deepcopy(other[other_key])
    else:
        parent[key] = data.draw(values)
    return value


def setting_names(config):
    """Return settings that may have any value; `compile` takes minutes, plugins are code."""
    skipped = ("compile", "plugin", "max_new_tokens")
    names = [field.name for field in dataclasses.fields(config)]
    return [name for name in names if name not in skipped]


def random_settings(config, data):
    """Return two settings with random values that a program can refuse or use at once."""
    names = data.draw(st.lists(st.sampled_from(setting_names(config)), max_size=2, unique=True))
    chosen = {name: data.draw(values) for name in names}
    for name, value in chosen.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name in ("n_layer", "n_head", "n_embd") and is_number and 64 < value < 10**9:
            chosen[name] = 10**9  # others are valid, and too slow
    # Valid, and endless.
    if any(isinstance(chosen.get(name), int) for name in ("steps", "tokens_per_step")):
        chosen["dry_run"] = True
    return chosen


def as_flags(chosen):
    """Return settings as flags; no command line has NUL or very long words."""
    flags = []
    for name, value in chosen.items():
        value = value if isinstance(value, str) else json.dumps(value)
        flags += [f"--{name}", value.replace("\0", "")[:5000]]
    return flags


PROGRAMS = {
    train_gpt: "*TINY --data DATA --steps 2 --out_dir out",
    eval_extrapolation: "RUN *LENGTHS",
    sample: "RUN *CPU --max_new_tokens 4",
    export_hf: "RUN --out_dir out",
    import_pretrained: "nothing --out_dir out",
    prepare_text: "TEXTS --val_every 5 --out_dir out",
    report: "RECORD --out_dir out",
    compare: "RECORD RECORD",
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@random_input
@given(data=st.data())
def test_settings(program, data, run, data_dir, texts):
    """As flags or in a file."""
    with limited_folder() as folder:
        copied = shutil.copytree(run, folder / "run")
        words = {
            "*TINY": TINY,
            "*LENGTHS": LENGTHS,
            "*CPU": CPU,
            "DATA": [data_dir],
            "RUN": [copied],
            "TEXTS": [texts],
            "RECORD": [copied / RECORD],
        }
        flags = [flag for word in PROGRAMS[program].split() for flag in words.get(word, [word])]
        chosen = random_settings(program.Config, data)
        if data.draw(st.booleans()):
            flags += as_flags(chosen)
        else:
            (folder / "config.yaml").write_text(yaml.safe_dump(chosen, allow_unicode=True))
            flags += ["--config", "config.yaml"]
        if data.draw(st.booleans()):
            flags.append(data.draw(st.text(max_size=9)).replace("\0", ""))
        call(program, *flags).check()


@pytest.fixture
def quick_plots(monkeypatch):
    """Plots are made, but not drawn, which takes most of the time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    monkeypatch.setattr(FigureCanvasAgg, "draw", lambda self: None)
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **options: file.write(b"PNG"))


@pytest.mark.parametrize("make", record_examples.KINDS)
@random_input
@given(data=st.data())
def test_values_in_records_of_each_kind(make, data, quick_plots):
    names = ["first.json", "second.json"]
    with limited_folder() as folder:
        for name, record in zip(names, (make(), mutate(make(), data)), strict=True):
            (folder / name).write_text(json.dumps(record))
        call(report, *data.draw(st.sampled_from([names, names[1:]])), "--out_dir", "out").check()
        call(compare, *names).check()
        assert {path.name for path in folder.iterdir()} <= {*names, "out"}
