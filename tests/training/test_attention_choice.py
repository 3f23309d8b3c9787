"""Tests of the choice of the attention path: paths that are wrong, fail, crash or are slow.

On a CPU a training measures nothing. The tests call the measurement on small problems, with given
times, and give decisions to trainings.
"""

import dataclasses
import json
import math
import os
import signal

from runtime import checkpoints, devices, distributed

import pytest
import torch
from conftest import TINY, log_of, ranks

import attention
import train_gpt
from model import GPT, GPTConfig
from training import attention_choice
from training.attention_choice import Candidate, Measurement, Problem

CPU, GPU = torch.device("cpu"), torch.device("cuda")
PROBLEM = Problem(
    pe="cable",
    heads=2,
    width=32,
    block_size=24,
    micro_batch=1,
    causal=True,
    attn_scale=None,
    skip_tolerance=attention.SKIP_TOLERANCE,
    device="cpu",
    dtype="float32",
    compile=False,
    deterministic=False,
    plugins=[],
)
# A plugin whose path ends the process as a faulty kernel does.
KILLING_PLUGIN = """
import os, signal
import attention, posenc

class Killing(posenc.ALiBi):
    names = ("killing",)

def compute(*inputs):
    os.kill(os.getpid(), signal.SIGSEGV)

attention.register_path("sdpa/cudnn", compute, lambda encoding: None)
"""


def set_path(monkeypatch, name, compute):
    path = attention._Path(compute, lambda encoding: None)
    monkeypatch.setitem(attention._PATHS, name, path)


def wrong_gradient(q, k, v, bias_inputs, scale, mask_spec, packed_qkv=None):
    """Compute the right output, and 0.6 of the gradient of q."""
    q = 0.6 * q + 0.4 * q.detach()
    return attention.dense(q, k, v, bias_inputs, scale, mask_spec)


def failing(*inputs):
    raise RuntimeError("no such\nkernel")


def measured(paths, seconds, problem=PROBLEM):
    """Return the measurement of paths whose times are given."""
    candidates = attention_choice.make_candidates(problem, paths)
    times = {candidate.run: seconds[candidate.path] for candidate in candidates}

    def timer(run):
        run()
        return times[run]

    measurement = Measurement()
    tolerances = attention_choice.TOLERANCES[torch.float32]
    attention_choice.measure(CPU, candidates, timer, tolerances, measurement)
    return measurement


@pytest.mark.filterwarnings("ignore")  # FlexAttention is not compiled here
def test_fastest_correct_path_is_taken(monkeypatch):
    """A wrong path, a failing one, a slow one, and FlexAttention without its backward pass."""
    set_path(monkeypatch, "sdpa/cudnn", wrong_gradient)
    set_path(monkeypatch, "sdpa/efficient", failing)
    seconds = dict.fromkeys(attention_choice.PATHS, 1e-3) | {"sdpa/flash": 9e-3, "dense": 5e-3}
    measurement = measured(["sdpa/flash", "sdpa/cudnn", "sdpa/efficient", "flex", "dense"], seconds)
    assert measurement.seconds == {
        "sdpa/flash": [9e-3] * attention_choice.ROUNDS,
        "dense": [5e-3] * attention_choice.ROUNDS,
    }
    assert measurement.errors.keys() == {"sdpa/flash", "dense"}
    assert measurement.errors["sdpa/flash"] < 1e-4
    reason = measurement.rejected.pop("flex")
    assert reason.startswith("NotImplementedError: FlexAttention does not support backward on CPU")
    path = attention_choice.fastest_path(measurement)
    assert path == "dense"
    assert attention_choice.describe(measurement, path) == (
        "attention: dense, 1.8x sdpa/flash, error 0e+00; sdpa/cudnn rejected: dq error 0.4; "
        "sdpa/efficient rejected: RuntimeError: no such kernel"
    )


@pytest.mark.parametrize(
    "seconds, path",
    [
        ({"dense": 1.0, "triton": 1.09, "sdpa/flash": 1.2}, "triton"),
        ({"dense": 1.0, "triton": 1.09, "sdpa/flash": 1.09}, "sdpa/flash"),
        ({"dense": 1.0, "triton": 1.2}, "dense"),
        ({"dense": 0.0, "triton": 0.0}, "triton"),  # a simulated GPU
        ({}, None),
    ],
)
def test_order_decides_within_ten_percent(seconds, path):
    """Of the medians."""
    rounds = {name: [value, 9.0, value] for name, value in seconds.items()}
    assert attention_choice.fastest_path(Measurement(seconds=rounds)) == path


def test_errors_are_compared_with_tolerances():
    """Gradients of parameters are sums along the text and may have larger errors. NaN is wrong."""
    found = {
        "sdpa/flash": {"output": 9e-4, "dx": 9e-4, "dgate.bias": 9e-3},
        "sdpa/cudnn": {"output": 1e-9, "dv": math.nan},
        "triton": {"output": 2e-3},
        "flex": {"output": 1e-9, "dgate.bias": 2e-2},
    }
    candidates = [
        Candidate(path, lambda errors=errors: errors, lambda: None)
        for path, errors in found.items()
    ]
    measurement = Measurement()
    attention_choice.measure(CPU, candidates, lambda run: 1.0, (1e-3, 1e-2), measurement)
    assert measurement.errors == {"sdpa/flash": 9e-3}
    assert measurement.rejected == {
        "sdpa/cudnn": "dv error nan",
        "triton": "output error 0.002",
        "flex": "dgate.bias error 0.02",
    }


def test_path_that_fails_at_the_real_shapes_is_rejected():
    """As for lack of memory: when it first runs, or when it is timed."""
    runs = {"sdpa/flash": 99, "triton": 0, "dense": 2}

    def run_of(path):
        def run():
            runs[path] -= 1
            if runs[path] < 0:
                raise torch.OutOfMemoryError("out of memory")

        return run

    candidates = [Candidate(path, lambda: {}, run_of(path)) for path in runs]
    measurement = Measurement()

    def timer(run):
        run()
        return 1.0

    attention_choice.measure(CPU, candidates, timer, (0, 0), measurement)
    assert measurement.rejected == dict.fromkeys(
        ("triton", "dense"), "OutOfMemoryError: out of memory"
    )
    assert list(measurement.medians()) == ["sdpa/flash"]


def test_path_that_ends_its_process_is_rejected(tmp_path):
    """The others are measured in a new process."""
    (tmp_path / "killing.py").write_text(KILLING_PLUGIN)
    problem = dataclasses.replace(
        PROBLEM, pe="killing", plugins=[str(tmp_path / "killing.py")], deterministic=True
    )
    measurement = attention_choice.measure_in_process(problem, ["sdpa/cudnn", "dense"])
    assert f"ended with signal {signal.SIGSEGV.value}" in measurement.rejected["sdpa/cudnn"]
    assert measurement.errors == {"dense": 0}
    assert len(measurement.seconds["dense"]) == attention_choice.ROUNDS


def test_unfinished_paths_are_rejected():
    measurement = attention_choice.measure_in_process(PROBLEM, ["sdpa/flash", "dense"], 0)
    assert measurement.rejected == dict.fromkeys(("sdpa/flash", "dense"), "not finished in time")


def test_process_that_fails_before_any_path_is_reported(monkeypatch):
    """As on a GPU that allows one process only: the rule of attention.py applies."""
    monkeypatch.setattr(attention_choice, "_run_process", lambda *_: "the GPU is busy")
    measurement = attention_choice.measure_in_process(PROBLEM, ["sdpa/flash", "dense"])
    line = attention_choice.describe(measurement, "sdpa")
    assert line == "attention: sdpa, not measured: the GPU is busy"


@pytest.mark.parametrize(
    "pe, changes, paths",
    [
        ("cable", {}, ["sdpa/flash", "sdpa/cudnn", "sdpa/efficient", "flex", "dense"]),
        ("rope", {}, ["sdpa/flash", "sdpa/cudnn", "sdpa/efficient", "dense"]),
        ("kerple", {}, ["flex", "dense"]),
        ("window:w=9", {}, ["flex", "dense"]),
        ("kerple", {"deterministic": True}, ["dense"]),
        ("kerple", {"block_size": 4096}, ["flex"]),
        ("cope", {"block_size": 4096}, ["dense"]),
    ],
)
def test_possible_paths(pe, changes, paths, monkeypatch):
    """Without Triton."""
    monkeypatch.delitem(attention._PATHS, "triton")
    problem = dataclasses.replace(PROBLEM, pe=pe, **changes)
    model = make_model(pe)
    assert attention_choice.possible_paths(model.posenc[0], problem) == paths


def make_model(pe="cable", path="auto"):
    config = GPTConfig("quickstart", pe, 64, 24, n_layer=1, n_head=2, n_embd=32, attention=path)
    return GPT(config)


def make_config(**changes):
    values = {"pe": "cable", "block_size": 24, "micro_batch": 2, "size": "quickstart"}
    return train_gpt.Config(**values | changes)


def find_path(**changes):
    """Return what `_find_path` does for a model with the encoding cable."""
    config = make_config(**changes)
    return attention_choice._find_path(make_model(), config, 4, CPU, torch.float32)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder; yields it and the list of problems that are measured."""
    problems = []

    def measure(problem, paths):
        problems.append(problem)
        return Measurement({"dense": 0.0}, {"dense": [1.0]}, {"flex": "RuntimeError: no"})

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(attention_choice, "measure_in_process", measure)
    return tmp_path / "length-extrapolation", problems


def test_measurement_is_cached(cache):
    folder, problems = cache
    expected = ("dense", "attention: dense, error 0e+00; flex rejected: RuntimeError: no")
    for _ in range(2):
        assert find_path() == expected
    assert len(problems) == 1
    assert len(list(folder.iterdir())) == 1
    assert (problems[0].micro_batch, problems[0].compile) == (2, False)
    find_path(micro_batch=1)  # other shapes
    assert len(problems) == 2


def test_each_kind_of_layer_is_measured(monkeypatch, tmp_path):
    def measure(problem, paths):
        path = "flex" if "window" in problem.pe else "dense"
        return Measurement({path: 0.0}, {path: [1.0]})

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(attention_choice, "measure_in_process", measure)
    pe = "window:w=9@2_kerple@1"
    model = GPT(GPTConfig("quickstart", pe, 64, 24))
    assert model.attention_path == "dense"
    path, lines = attention_choice._find_path(model, make_config(pe=pe), 4, CPU, torch.float32)
    assert path == "flex_flex_dense_flex"
    assert lines.splitlines() == [
        "window:w=9: attention: flex, error 0e+00",
        "kerple: attention: dense, error 0e+00",
    ]
    attention_choice._set_path(model, path)
    assert model.config.attention == model.attention_path == path
    assert model.describe().endswith("attention by flex and dense")
    assert GPT(model.config).attention_path == path


def test_other_versions_are_measured_again(cache, monkeypatch):
    _, problems = cache
    find_path()
    monkeypatch.setattr(torch, "__version__", "9.9")
    find_path()
    assert len(problems) == 2


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda text: "",
        lambda text: text[:-20],
        lambda text: "[]",
        lambda text: text.replace('"seconds"', '"minutes"'),
        lambda text: text.replace("1.0", '"fast"'),
        lambda text: text.replace('"cable"', '"rope"'),
        lambda text: text.replace('"dense": [1.0]', '"thin": [1.0]'),
    ],
)
def test_corrupt_cache_is_measured_again(cache, corrupt):
    folder, problems = cache
    find_path()
    (file,) = folder.iterdir()
    intact = file.read_text()
    file.write_text(corrupt(intact))
    assert file.read_text() != intact
    assert find_path()[0] == "dense"
    assert len(problems) == 2
    assert file.read_text() == intact


def test_failure_is_not_cached_and_a_read_only_cache_is_no_error(cache, monkeypatch):
    folder, problems = cache
    folder.write_text("a file in the way")
    assert find_path()[0] == "dense"
    folder.unlink()
    failed = Measurement(failure="the GPU is busy")
    monkeypatch.setattr(attention_choice, "measure_in_process", lambda *_: failed)
    assert find_path() == ("sdpa", "attention: sdpa, not measured: the GPU is busy")
    assert not folder.exists()


def test_dense_is_taken_if_no_path_is_correct(cache, monkeypatch):
    """Also beyond the lengths for which it is timed; it is the only path of some encodings."""
    wrong = Measurement(rejected={"sdpa/flash": "dq error 0.4"})
    monkeypatch.setattr(attention_choice, "measure_in_process", lambda *_: wrong)
    assert find_path(block_size=4096) == (
        "dense",
        "attention: dense; sdpa/flash rejected: dq error 0.4",
    )
    monkeypatch.setattr(attention_choice, "possible_paths", lambda *_: ["flex"])
    assert find_path(block_size=4096)[0] == "dense"
    monkeypatch.setattr(attention_choice, "measure_in_process", failing)
    monkeypatch.setattr(attention_choice, "possible_paths", lambda *_: ["dense"])
    assert find_path() == ("dense", "attention: dense, the only path of cable")


def choose(config, device, model):
    processes = distributed.Processes()
    attention_choice.choose_path(model, config, 4, device, torch.float32, processes)
    return model.attention_path, model.config.attention


def test_cpus_named_paths_and_off_measure_nothing(monkeypatch):
    monkeypatch.setattr(attention_choice, "_find_path", failing)
    assert choose(make_config(), CPU, make_model()) == ("sdpa", "sdpa")
    assert choose(make_config(attention_check="off"), GPU, make_model()) == ("sdpa", "sdpa")
    named = make_model(path="dense")
    assert choose(make_config(attention="dense"), GPU, named) == ("dense", "dense")
    with pytest.raises(RuntimeError, match="no such"):
        choose(make_config(), GPU, make_model())


def test_attention_check_off_on_the_command_line(data_dir, tmp_path):
    flags = ["--steps", "1", "--data", str(data_dir), "--out_dir", str(tmp_path)]
    train_gpt.main([*TINY, *flags, "--attention_check", "off"])
    config = str(tmp_path / "config.yaml")
    train_gpt.main(["--config", config, "--resume", "--steps", "2"])
    assert checkpoints.load_checkpoint(tmp_path)["config"]["attention_check"] == "off"


@pytest.mark.parametrize("path", ["sdpa/cudnn", "sdpa/efficient", "flex"])
def test_paths_of_gpus_are_refused_on_cpus(path, data_dir, tmp_path, refused):
    flags = [*TINY, "--data", data_dir, "--out_dir", tmp_path / "run", "--attention", path]
    (line,) = refused(train_gpt.main, *flags)
    assert line == f"error: attention {path} needs a GPU: use auto, sdpa or dense"


@pytest.mark.parametrize(
    "stored, device, expected, note",
    [
        ({"attention": "dense"}, CPU, "dense", ""),
        ({"attention": "auto"}, GPU, "sdpa", ""),
        ({}, CPU, "sdpa", ""),
        ({"attention": "sdpa/cudnn"}, CPU, "auto", "attention by sdpa/cudnn: it needs a GPU"),
        ({"attention": "thin"}, GPU, "auto", "attention by thin: unknown attention path 'thin'"),
    ],
)
def test_path_of_a_checkpoint_is_reused(stored, device, expected, note, capsys):
    """Checkpoints of earlier versions store "auto", or nothing."""
    model = make_model()
    attention_choice.reuse_path(model, {"gpt": stored}, device)
    assert model.config.attention == expected
    assert model.attention_path == ("dense" if expected == "dense" else "sdpa")
    out = capsys.readouterr().out
    assert note in out and bool(out) == bool(note)
    named = make_model(path="dense")
    attention_choice.reuse_path(named, {"gpt": stored}, device)
    assert named.attention_path == "dense"


def test_resume_takes_the_path_of_the_checkpoint(data_dir, tmp_path, monkeypatch, capsys):
    """A measurement decides once, also if it would decide differently later."""
    monkeypatch.setattr(attention_choice, "_is_measured", lambda *_: True)
    flags = [*TINY, "--data", str(data_dir), "--pe", "cable"]

    def train(run, path, *more):
        decide = failing if path is None else lambda *_: (path, f"attention: {path}, measured")
        monkeypatch.setattr(attention_choice, "_find_path", decide)
        train_gpt.main([*flags, "--out_dir", str(tmp_path / run), *more])
        return checkpoints.load_checkpoint(tmp_path / run)

    assert train("run", "dense", "--steps", "4")["gpt"]["attention"] == "dense"
    assert "attention: dense, measured\n" in capsys.readouterr().out
    resumed = train("run", None, "--steps", "6", "--resume")
    assert "attention by dense\n" in capsys.readouterr().out
    other = train("run", None, "--steps", "8", "--resume", "--attention", "sdpa")
    assert (resumed["gpt"]["attention"], other["gpt"]["attention"]) == ("dense", "sdpa")
    assert [record["step"] for record in log_of(tmp_path / "run") if record["kind"] == "start"] == [
        0,
        4,
        6,
    ]


def test_rank_0_decides_for_all(data_dir, tmp_path):
    """The other rank measures nothing."""
    code = """
    from training import attention_choice
    attention_choice._is_measured = lambda *_: True
    def find_path(*_):
        assert rank == 0
        return "dense", "attention: dense, measured"
    attention_choice._find_path = find_path
    choose_path = attention_choice.choose_path
    def print_path(model, *rest):
        choose_path(model, *rest)
        print("path", model.attention_path, file=sys.stderr)
    attention_choice.choose_path = print_path
    """
    flags = [*TINY, "--steps", "1", "--data", data_dir, "--out_dir", tmp_path / "run"]
    results = ranks(2, *flags, "--pe", "cable", code=code)
    assert [status for status, _, _ in results] == [0, 0], results
    assert all("path dense\n" in errors for _, _, errors in results)
    assert results[0][1].count("attention: dense, measured\n") == 1
    assert checkpoints.load_checkpoint(tmp_path / "run")["gpt"]["attention"] == "dense"


def test_interpreted_triton_is_correct():
    """The part of the measurement that does not depend on time."""
    pytest.importorskip("triton", reason="Triton is not installed")
    for pe in ("cable", "t5"):
        problem = dataclasses.replace(PROBLEM, pe=pe)
        (candidate,) = attention_choice.make_candidates(problem, ["triton"])
        errors = candidate.check()
        assert {"output", "dq", "dk", "dv"} < errors.keys()
        assert max(errors.values()) < 1e-4


def test_cache_file_is_json_with_its_facts(cache):
    folder, _ = cache
    find_path()
    (file,) = folder.iterdir()
    facts = json.loads(file.read_text())["facts"]
    assert facts["problem"]["pe"] == "cable"
    assert {"torch", "cuda", "cudnn", "triton", "driver", "code", "paths"} < facts.keys()
    assert facts["problem"]["dtype"] in devices.DTYPES and os.sep not in facts["torch"]
