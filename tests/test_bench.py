"""bench.py: numbers follow from the seconds, and invalid input is refused. No test checks speed."""

import dataclasses
import functools
import json
import shlex
from unittest import mock

from runtime.validation import find_mismatch

import pytest
import torch
from test_cases import PLAIN

import bench
import model
from benchmarking import cases, comparison, profiles
from benchmarking.setting import BenchmarkCase, Setting, make_entry
from errors import InputError
from evaluation.record_schema import Comparison, Speed
from model import GPT, GPTConfig

SMALL = shlex.split("--model quickstart --micro_batch 2 --repeats 3 --device cpu --dtype float32")
NAMES = ("train", "attention", "generate", "eval")


def measure(folder, flags, *paths):
    """Return the record of bench.py with flags in one text, then paths, on a small model."""
    out = folder / "out.json"
    bench.main([*SMALL, *shlex.split(flags), *map(str, paths), "--out", str(out)])
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Record of all benchmarks of encodings, for a few of them, at 8 and 12 tokens.

    Without profiles, which take seconds: tests/benchmarking/test_profiles.py.
    """
    encodings = "cable,t5:buckets=8,max_distance=16,rope"
    flags = f"{' '.join(NAMES)} --encodings {encodings} --context 12,8"
    small = functools.partial(Setting, shape={"vocab_size": 320})
    no_profile = mock.patch("benchmarking.cases.profile_round", return_value={})
    with mock.patch("bench.Setting", small), no_profile:
        return measure(tmp_path_factory.mktemp("bench"), flags)


def test_the_record_has_its_setting_and_all_cases(record):
    encodings = ["rope", "nope", "cable", "t5:buckets=8,max_distance=16"]
    assert find_mismatch(record, Speed) is None
    for name in NAMES:
        assert record[name]["device"] == "cpu (1 threads)" and record[name]["repeats"] == 3
        assert list(record[name]["contexts"]) == ["8", "12"]
        for context, entries in record[name]["contexts"].items():
            assert list(entries)[:4] == encodings
            tokens = int(context) // 2 if name == "generate" else 2 * int(context)
            assert {entry["tokens"] for entry in entries.values()} == {tokens}


def test_attention_is_compared_with_sdpa_and_the_dense_path(record):
    entries = record["attention"]["contexts"]["8"]
    compared = {key: set(entry["ratios"]) for key, entry in entries.items()}
    assert compared.pop("cable") == {"rope", "nope", "sdpa", "dense"}
    flash = {"rope flash", "nope flash", "cable flash"}
    others = {"rope", "nope", "sdpa", "t5:buckets=8,max_distance=16", "cable dense"}
    assert compared == dict.fromkeys(flash | others, {"rope", "nope", "sdpa"})
    assert entries["cable dense"]["error"] == entries["t5:buckets=8,max_distance=16"]["error"] == 0
    assert 0 < entries["cable"]["error"] < 1e-4 and 0 < entries["nope"]["error"] < 1e-5
    assert "error" not in entries["sdpa"]


def test_memory_is_that_of_the_tensors(record):
    """Counted by hand for the quickstart model: 4 layers, 4 heads of 32, width 128."""
    parameters = GPT(GPTConfig(size="quickstart", pe="nope", vocab_size=320)).parameter_count()
    train, attention, generate, evaluate = (
        {pe: entry["memory"] for pe, entry in record[name]["contexts"]["12"].items()}
        for name in NAMES
    )
    cache = 4 * 2 * 128 * 4  # bytes of a token: layers, keys and values, columns
    state = 4 * 4 * 4  # S of each head, 4 layers of 4 heads
    assert generate["nope"] == generate["rope"] == 12 * cache
    assert generate["cable"] == 12 * (cache + state)
    # Weights, gradients, two moments: 16 bytes per parameter. Activations are small.
    assert 16 * parameters < train["nope"] < 16 * parameters + 60e6
    assert 4 * parameters < evaluate["nope"] < 4 * parameters + 60e6
    assert 0 < attention["nope"] < attention["cable"]


def test_seconds_and_ratios_with_a_simulated_clock(monkeypatch):
    """a takes 1, 4, 2 and 1 s, rope 4, 8 and 6 s in the counted rounds.

    Cases are interleaved, preparation is not timed, and the first round is not counted. The ratio
    is the median of ratios, 4; the ratio of medians would be 3.
    """
    ticks, now, calls = {"a": iter((1, 4, 2, 1)), "b": iter((2, 4, 8, 6))}, [0], []
    monkeypatch.setattr(profiles.time, "perf_counter", lambda: now[0])

    def prepare(name):
        now[0] += 100
        calls.append(f"prepare {name}")
        return lambda: wait(name)

    def wait(name):
        now[0] += next(ticks[name])
        calls.append(name)

    prepared = {name: functools.partial(prepare, name) for name in "ab"}
    seconds = bench.interleave(prepared, 3, torch.device("cpu"), "")
    assert calls == ["prepare a", "a", "prepare b", "b"] * 4
    assert seconds == {"a": [4, 2, 1], "b": [4, 8, 6]}
    case = BenchmarkCase(None, 12, lambda seconds: {"memory": 7}, flops=100)
    seconds = {"a": [4, 2, 1], "rope": [4, 8, 6], "a dense": [1, 1, 9]}
    assert make_entry("a", case, seconds, peak=1e4) == {
        "seconds": [4, 2, 1],
        "tokens": 12,
        "tokens_per_second": 6,
        "others": {"rope": [4, 8, 6], "dense": [1, 1, 9]},
        "ratios": {"rope": 4, "dense": 0.5},
        "mfu": 0.06,
        "memory": 7,
    }


@torch._dynamo.config.patch(recompile_limit=3)
def test_every_encoding_is_compiled(monkeypatch):
    """Also with more encodings than the compiler's limit of graphs per function."""
    monkeypatch.setitem(model.SIZES, "quickstart", (1, 2, 16))
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = functools.partial(torch.compile, backend=backend, fullgraph=True)
    monkeypatch.setattr(torch, "compile", compiled)
    config = bench.Config(what=["eval"], encodings="cable", repeats=1)
    for context in (8, 10):
        setting = dataclasses.replace(PLAIN, context=context, compile=True)
        entries = dict.fromkeys(config.names())
        assert len([*bench.measure_encodings("eval", config, setting, entries)]) == 2
        assert all(entries.values())
    assert len(entries) == 3 and len(graphs) == 6  # with rope and nope


def instant(setting, pe):
    """Return a case that takes no time."""
    return {pe: BenchmarkCase(lambda: lambda: None, setting.context, flops=2)}


def test_compare_names_and_skips_what_is_missing(monkeypatch, tmp_path, capsys):
    """The table has a row for each task, in order. A pair that fails or is missing is skipped."""

    def missing(pe, setting):
        raise InputError("module x is missing: clone it")

    def fails(pe, setting):
        return instant(setting, pe)[pe], BenchmarkCase(lambda: lambda: 1 / 0, 1)

    def pair(pe, setting):
        shapes.append((pe, setting.shape))
        return (*instant(setting, pe).values(), *instant(setting, "theirs").values())

    shapes, names = [], ("cable", "cable", "cable", "rope, llama block")
    builds = (missing, fails, pair, pair)
    rows = [*zip("abcd", names, "mfpp", builds, strict=True)]
    monkeypatch.setattr(comparison, "ROWS", rows)
    monkeypatch.setitem(comparison.PRODUCT_SIZE, "cpu", 4)
    monkeypatch.delenv("NANOGPT", raising=False)
    record = measure(tmp_path, "compare --context 8")
    assert find_mismatch(record, Comparison) is None
    assert record["transformers"]
    assert list(record["compare"]["skipped"]) == ["a, cable, m", "b, cable, f"]
    assert [row["task"] for row in record["compare"]["rows"]] == ["c", "d"]
    assert shapes == [("cable", {}), ("rope", {"block": "llama", "qk_norm": False})]
    row = record["compare"]["rows"][0]
    assert (row["tokens"], row["flops"], row["product_flops"]) == (8, 16, 128)
    assert {name: len(rounds) for name, rounds in row["seconds"].items()} == dict.fromkeys(
        ("ours", "theirs", "product"), 3
    )
    assert "a, cable, m: skipped, module x is missing: clone it" in capsys.readouterr().out


def test_triton_and_backends_are_compared_with_their_counterparts():
    seconds = {"a triton": [1], "a dense": [3], "a": [2], "a flex": [5]}
    training = {"a": [6], "rope": [2], "rope flash": [3], "rope cudnn": [12]}
    attention = training | {"sdpa": [1], "sdpa flash": [18]}
    for name, rounds, ratios in (
        ("a triton", seconds, {"dense": 3, "flex": 5}),
        ("a", training, {"rope": 1 / 3, "flash": 0.5, "cudnn": 2}),
        ("a", attention, {"rope": 1 / 3, "sdpa": 1 / 6, "flash": 3}),
    ):
        assert make_entry(name, BenchmarkCase(None, 12), rounds, None)["ratios"] == ratios


def test_training_measures_triton_instead_of_the_dense_path(monkeypatch, tmp_path):
    """As on a GPU, for an encoding whose only other path is dense: it has no row of its own."""

    def paths(_, encoding):
        return {"": "dense" if "fire" in encoding.names else "sdpa", " triton": "dense"}

    monkeypatch.setattr(Setting, "paths", paths)
    monkeypatch.setitem(model.SIZES, "quickstart", (1, 2, 16))
    record = measure(tmp_path, "train --encodings fire,cable --context 8 --repeats 1")
    names = ["rope", "nope", "cable", *(f"{pe} triton" for pe in ("rope", "nope", "fire", "cable"))]
    assert list(record["train"]["contexts"]["8"]) == names


def test_out_of_memory_does_not_stop_other_encodings(monkeypatch, capsys):
    """The result grows after each encoding. Without memory for rope and nope it is an error."""

    def evaluate(setting, pe):
        if pe in full:
            raise torch.OutOfMemoryError
        return instant(setting, pe)

    monkeypatch.setitem(cases.BENCHMARKS, "eval", evaluate)
    config = bench.Config(what=["eval"], encodings="cable,alibi,fox", context="8", repeats=3)
    measured, full = [], ["alibi"]
    for result in bench.measure("eval", config, torch.device("cpu"), torch.float32):
        measured.append([pe for pe, entry in result["contexts"]["8"].items() if entry])
    three = ["rope", "nope", "cable"]
    assert measured == [three[:2], three, three, [*three, "fox"]]
    assert result["contexts"]["8"]["fox"]["others"].keys() == {"rope", "nope"}
    assert result["contexts"]["8"]["alibi"] is None
    assert capsys.readouterr().out == "eval of alibi at 8 tokens does not fit into the GPU\n"
    full[:] = ["nope"]
    with pytest.raises(InputError, match="eval of rope and nope at 8 tokens does not fit into"):
        next(bench.measure("eval", config, torch.device("cpu"), torch.float32))
