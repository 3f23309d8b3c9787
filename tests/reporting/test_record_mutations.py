"""Mutations of records: report.py and compare.py succeed, or name the file and the field."""

import copy
import json
import math
import random
import re

import pytest
from conftest import ROOT
from test_comparison_tables import COMPARE, growth_record
from test_report import TRAIN

import compare
import report
from errors import InputError
from reporting import figures, metrics

SEED = 26
MUTATIONS = 40  # of each kind of record
MISSING = object()
VALUES = (
    MISSING,
    None,
    True,
    "",
    "text",
    "../../outside",
    "/outside",
    "a\nb",
    "a\0b",
    "\ud800",
    "5" * 5000,
    "**|`<b>[x](y)\\input{x}$&#^~%_",
    "$x$ $\\bad{$",
    [],
    {},
    [[]],
    {"a": None},
    [None],
    {"256": {}},
    -1,
    0,
    1,
    0.5,
    -2.5,
    1e300,
    10**30,
    math.nan,
    math.inf,
    -math.inf,
)


def read(name):
    return json.loads((ROOT / "results" / name).read_text())


def shortened(value):
    """Return a JSON value with at most 3 entries in each array."""
    if isinstance(value, list):
        return [shortened(each) for each in value[:3]]
    if isinstance(value, dict):
        return {key: shortened(each) for key, each in value.items()}
    return value


def of_two_lengths(name):
    """Return a committed record with its two shortest lengths and short arrays."""
    record = shortened(read(name))
    for length in sorted(record["lengths"], key=int)[2:]:
        del record["lengths"][length]
    return record


def retrieval_record():
    record = of_two_lengths("encoders/retrieval/cable.json")
    record["data"]["questions"] = 3
    return record


def accuracy_record():
    rope = of_two_lengths("quickstart/rope.json")
    del rope["lengths"], rope["cache_window"]
    accuracies = {"acc": 0.3, "acc_se": 0.01, "acc_norm": 0.4, "acc_norm_se": None}
    return rope | accuracies | {"examples": 2, "log_likelihoods": [[-1.0, -2.0]] * 2}


def losses_record():
    runs = []
    for pe in ("cable", "learnable"):
        losses = [[step, 3.0 - step / 100] for step in (50, 100)]
        about = {"run": pe, "pe": pe, "size": "bert", "objective": "mlm", "seed": 1, "step": 100}
        runs.append(about | {"losses": losses})
    return {"metric": "Training loss", "training": "pretraining", "runs": runs}


KINDS = {
    "perplexity": lambda: of_two_lengths("quickstart/cable.json"),
    "masked": lambda: of_two_lengths("encoders/masked/cable.json"),
    "receptive_field": lambda: of_two_lengths("receptive_field/alibi.json"),
    "recall": lambda: of_two_lengths("recall/alibi.json"),
    "retrieval": retrieval_record,
    "accuracy": accuracy_record,
    "speed": lambda: shortened(TRAIN),
    "losses": losses_record,
    "compare": lambda: COMPARE,
    "growth": lambda: growth_record(8, 16, 32),
}


def places(value, path=()):
    """Yield the path of every value inside of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from places(each, (*path, key))


def mutated(record, generator):
    """Return a copy of a record with one wrong value, and what was changed."""
    record = copy.deepcopy(record)
    *path, key = generator.choice([*places(record)])
    inner = record
    for part in path:
        inner = inner[part]
    value = generator.choice(VALUES)
    if generator.random() < 0.1 and isinstance(inner, dict):
        value = inner.pop(key)
        key = generator.choice(["0", "007", "-1", "../x", "٣", "1" * 20, "2e3", "a|b", "\n"])
    if value is MISSING:
        del inner[key]
    else:
        inner[key] = value
    return record, (path, key, value)


@pytest.fixture
def quick_plots(monkeypatch):
    """Plots are made, but not drawn, which would take most of the time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    monkeypatch.setattr(FigureCanvasAgg, "draw", lambda self: None)
    monkeypatch.setattr(Figure, "savefig", lambda self, file, **options: file.write(b"PNG"))


@pytest.mark.parametrize("kind", KINDS)
def test_mutations_of_a_record(kind, quick_plots, tmp_path, capsys):
    """Every outcome is a report or an InputError in one line, and no file is outside of it."""
    generator = random.Random(f"{SEED} {kind}")
    original = KINDS[kind]()
    folder = tmp_path / "inputs"
    folder.mkdir()
    first, second = folder / "first.json", folder / "second.json"
    first.write_text(json.dumps(original))
    outcomes = []
    for number in range(MUTATIONS):
        record, change = mutated(original, generator)
        second.write_text(json.dumps(record))
        out = tmp_path / "out" / "report"
        # Two records of one benchmark are refused before anything else.
        reported = [second] if kind == "speed" else [first, second]
        for main, arguments in (
            (report.main, [*map(str, reported), "--out_dir", str(out)]),
            (compare.main, [str(first), str(second)]),
        ):
            try:
                main(arguments)
            except InputError as error:
                outcomes.append(error)
                for problem in error.problems:
                    assert re.fullmatch(r"[^\n]+: [^\n]+", problem), (number, change)
            except Exception as error:
                raise AssertionError(f"mutation {number}: {change}") from error
            else:
                outcomes.append(None)
    paths = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert paths <= {"inputs", "out"}
    assert not [path for path in (tmp_path / "out").glob("*") if path.name != "report"]
    assert not list(tmp_path.parent.glob("outside*"))
    refused = [error for error in outcomes if error and str(second) in str(error)]
    assert len(refused) > MUTATIONS / 3


def test_the_schema_covers_every_benchmark():
    schema = metrics.SPEED.schema.fields
    assert {f"{name}?" for name in metrics.BENCHMARKS} <= schema.keys()


def test_committed_records_fulfil_the_schema():
    count = 0
    for path in sorted((ROOT / "results").rglob("*.json")):
        record = json.loads(path.read_text())
        if metrics.metric_of(record):
            metrics.check_record(path, record, "")
            count += 1
    assert count > 100


@pytest.mark.parametrize("value, printed", [(math.nan, "NaN"), (math.inf, "Infinity")])
def test_a_record_with_nan_is_named(value, printed, refused, tmp_path):
    paths = []
    for name in ("first", "second"):
        record = of_two_lengths("quickstart/cable.json")
        record["lengths"]["512"]["loss"] = value
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(record))
    problem = f"field lengths.512.loss is {printed}, not a finite loss of at least 0"
    remedy = "evaluate the run again, or remove the file"
    expected = [f"error: {path}: {problem}: {remedy}" for path in paths]
    assert refused(report.main, *paths, "--out_dir", tmp_path / "out") == expected
    assert refused(compare.main, *paths) == expected
    assert not (tmp_path / "out").exists()


def test_infinite_perplexity_of_a_large_loss_is_reported(tmp_path, capsys):
    """Two seeds with it at the longer length; the plots end before it."""
    paths = []
    for seed in (1, 2):
        for pe in ("cable", "rope"):
            record = of_two_lengths(f"quickstart/{pe}.json") | {"seed": seed}
            entry = record["lengths"]["512"]
            entry |= {"loss": 800.0, "perplexity": math.inf}
            entry["by_position"] |= {"loss": [750.0, 800.0, None]}
            paths.append(str(tmp_path / f"{pe}-{seed}.json"))
            (tmp_path / f"{pe}-{seed}.json").write_text(json.dumps(record))
    report.main([*paths, "--out_dir", str(tmp_path / "out")])
    markdown = (tmp_path / "out" / "perplexity.md").read_text()
    assert "|     512 |         **inf** |     **inf** |" in markdown
    compare.main(["--over", "seeds", *paths])
    assert "inf" in capsys.readouterr().out


def test_plots_without_a_finite_value_are_empty(tmp_path):
    record = of_two_lengths("quickstart/cable.json")
    for entry in record["lengths"].values():
        entry |= {"loss": 800.0, "perplexity": math.inf}
        entry["by_position"] |= {"loss": [800.0]}
    columns = metrics.make_columns([record], "perplexity")
    for draw in (figures.by_position, metrics.PERPLEXITY.plots[0].draw):
        with open(tmp_path / "a.png", "wb") as file:
            draw(columns, file)


@pytest.mark.parametrize("name", ["../../x", "/x", "a/b", "..", "a\nb", "a\0b", "a\\b", ""])
@pytest.mark.parametrize("field", ["dataset", "split"])
def test_names_of_data_stay_inside_of_the_folder(name, field, refused, tmp_path):
    record = of_two_lengths("quickstart/cable.json")
    other = copy.deepcopy(record)
    record["data"][field] = name
    paths = [tmp_path / "first.json", tmp_path / "second.json"]
    for path, content in zip(paths, (record, other), strict=True):
        path.write_text(json.dumps(content))
    (line,) = refused(report.main, *paths, "--out_dir", tmp_path / "out")
    assert f"{paths[0]}: field data.{field} is {json.dumps(name)}, not a name" in line
    assert sorted(tmp_path.iterdir()) == paths


def test_texts_are_escaped(tmp_path):
    """In cells, captions and verdicts; labels of encodings without such characters stay."""
    pe = r"a|b<script>x</script>[c](d)`*\input{e}$&#^~%_"
    records = [
        of_two_lengths("quickstart/cable.json") | {"pe": pe, "run": pe},
        of_two_lengths("quickstart/rope.json") | {"pe": "rope+t5:buckets=64"},
        of_two_lengths("quickstart/rope.json") | {"pe": "alibi-shift:shift=-5"},
        of_two_lengths("quickstart/rope.json") | {"pe": "window:w=3", "step": 3, "run": pe},
    ]
    for number, record in enumerate(records):
        record["data"]["tokenizer"] = "<b>"
        (tmp_path / f"{number}.json").write_text(json.dumps(record))
    paths = [str(path) for path in sorted(tmp_path.glob("*.json"))]
    report.main([*paths, "--out_dir", str(tmp_path)])
    markdown = (tmp_path / "perplexity.md").read_text()
    escaped = r"a\|b\<script>x\</script>\[c\](d)\`\*\\input{e}$&#^~%_"
    header = markdown.splitlines()[0]
    assert escaped in header and "| rope+t5:buckets=64 |" in header
    assert "alibi-shift:shift=-5" in header
    assert r"\<b> tokens" in markdown
    assert not re.search(r"(?<!\\)<[a-z/]|(?<!\\)`", markdown)
    latex = (tmp_path / "perplexity.tex").read_text()
    assert r"\textbackslash{}input\{e\}\$\&\#\textasciicircum{}\textasciitilde{}\%\_" in latex
    assert r"\input" not in latex
