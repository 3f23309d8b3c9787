"""The benchmarks run, count what they measure, and say what they cannot."""

import json
import math

import pytest

import bench
import corpus


@pytest.fixture
def source(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"body": "naïve " * n}) + "\n" for n in range(20)))
    return tmp_path / "rows.jsonl"


def test_prepare_counts_the_tokens_of_the_source(source, tmp_path, capsys):
    bench.main(["prepare", "--source", str(source), "--text_column", "body", "--tokenizer", "bytes", "--repeats", "3",
                "--out", str(tmp_path / "out.json")])
    record = json.loads((tmp_path / "out.json").read_text())
    prepare = record["prepare"]
    assert (prepare["documents"], prepare["tokens"]) == (20, 20 + 7 * sum(range(20)))
    for name, seconds in prepare["seconds"].items():
        assert len(seconds) == 3 and math.isclose(prepare["tokens_per_second"][name], prepare["tokens"] / sorted(seconds)[1])
    rates = prepare["tokens_per_second"]
    assert prepare["ratio"] == rates["pipeline"] / rates["tiktoken"]
    assert {"command", "commit", "device", "tiktoken", "datasets", "cores"} <= set(record)
    assert f"ratio {prepare['ratio']:.3f}" in capsys.readouterr().out


def test_the_embedded_corpus_is_the_default(tmp_path, monkeypatch, capsys):
    (tmp_path / "a.py").write_text("pass\n")
    monkeypatch.setattr(corpus, "standard_library", lambda: [tmp_path / "a.py"] * 3)
    bench.main(["prepare", "--tokenizer", "bytes", "--repeats", "1"])
    assert "prepare, stdlib.parquet, bytes" in capsys.readouterr().out


def test_refusals(source, refused, tmp_path):
    main = bench.main
    assert "name what to measure: prepare" in refused(main)[0]
    assert "'speed' is not measured here: choose from prepare" in refused(main, "speed")[0]
    assert "repeats is 0" in refused(main, "prepare", "--repeats", 0)[0]
    assert "is no jsonl or parquet file that is there" in refused(main, "prepare", "--source", tmp_path, "--tokenizer", "bytes")[0]
    assert "--text_column from body" in refused(main, "prepare", "--source", source, "--tokenizer", "bytes")[0]
