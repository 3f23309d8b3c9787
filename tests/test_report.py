"""Tables and verdicts from records whose numbers are known."""

import csv
import json

import pytest

import report
import tables


def record(pe, perplexities, run=None, block_size=256):
    lengths = {str(length): value and {"perplexity": value, "loss_se": 0.004, "tokens": 4096} for length, value in perplexities.items()}
    return {"run": run or pe, "pe": pe, "block_size": block_size, "lengths": lengths,
            "data": {"dataset": "toy", "split": "val", "tokenizer": "bytes"}, "protocol": {"name": "segments", "max_tokens": None}}


RECORDS = [record("rope", {256: 4.0, 1024: 6.0, 4096: 9.0}), record("learnable", {256: 4.5, 1024: None, 4096: None}),
           record("zebra", {256: 5.0, 1024: 5.0, 4096: 5.0}), record("cable", {256: 4.1, 1024: 4.05, 4096: 4.125})]


def test_markdown_table():
    header, rows = tables.perplexity(tables.in_order(RECORDS))
    assert tables.markdown(header, rows) == """\
| context |    cable |     rope | learnable | zebra |
|--------:|---------:|---------:|----------:|------:|
|     256 |     4.10 | **4.00** |      4.50 |  5.00 |
|   1,024 | **4.05** |     6.00 |         — |  5.00 |
|   4,096 | **4.12** |     9.00 |         — |  5.00 |"""


def test_caption_tells_protocol_tokens_and_error():
    assert tables.caption(RECORDS) == ("Perplexity of toy (val, bytes tokens), trained at 256 tokens. Protocol: segments, 4,096 tokens a "
                                       "length; standard error over windows at most 0.4%.")


def test_runs_of_one_encoding_are_told_apart():
    records = [record("cable", {256: 4.0}, run="seed1"), record("cable", {256: 4.1}, run="seed2"), record("rope", {256: 5.0})]
    assert tables.perplexity(records)[0] == ["context", "seed1", "seed2", "rope"]


def test_files(tmp_path, capsys):
    paths = []
    for entry in RECORDS:
        paths.append(str(tmp_path / f"{entry['pe']}.json"))
        (tmp_path / f"{entry['pe']}.json").write_text(json.dumps(entry))
    report.main([*paths, "--out_dir", str(tmp_path / "out")])
    with open(tmp_path / "out" / "perplexity.csv") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["context", "cable", "rope", "learnable", "zebra"] and rows[2] == ["1024", "4.05", "6", "", "5"]
    assert (tmp_path / "out" / "perplexity.md").read_text().strip() in capsys.readouterr().out
    assert (tmp_path / "out" / "perplexity.png").read_bytes().startswith(b"\x89PNG")


def test_wide_tables_are_turned_round():
    records = [record(f"e{n:02}", {256: 4.0 + n, 512: 9.0 - n}) for n in range(10)]
    lines = tables.markdown(*tables.perplexity(records)).splitlines()
    assert len(lines) == 12 and lines[0].split() == ["|", "context", "|", "256", "|", "512", "|"]
    assert lines[2].split() == ["|", "e00", "|", "**4.00**", "|", "9.00", "|"]
    assert lines[-1].split() == ["|", "e09", "|", "13.00", "|", "**0.00**", "|"]


def speed(seconds, tokens=1000, memory=5e6, mfu=None, **ratios):
    return {"seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / sorted(seconds)[1], "ratios": ratios, "mfu": mfu,
            "memory": memory}


def bench(name, contexts, micro_batch=4):
    result = {"model": "tiny", "micro_batch": micro_batch, "device": "cpu (2 threads)", "dtype": "float32", "compile": False, "repeats": 3,
              "contexts": contexts}
    return {name: result, "processor": "Abacus", "torch": "2.13.0"}


TRAIN = bench("train", {
    "2048": {"rope": speed([0.5, 0.4, 0.9], rope=1, nope=0.95), "nope": speed([0.4, 0.4, 0.4], rope=1.05, nope=1), "learnable": None},
    "512": {"rope": speed([0.1, 0.1, 0.1], rope=1, nope=0.5), "nope": speed([0.05, 0.05, 0.05], rope=2, nope=1),
            "learnable": speed([0.2, 0.1, 0.3], rope=0.5, nope=0.25, memory=1234.5e6)}})
ATTENTION = bench("attention", {"512": {
    "cable dense": speed([1, 1, 1], sdpa=0.1), "sdpa": speed([0.1, 0.1, 0.1], sdpa=1),
    "cable": speed([0.125] * 3, sdpa=0.8, dense=8, mfu=0.4)}})


def test_tables_of_speeds(tmp_path, capsys):
    """Rows by context and encoding, columns that nobody has a number for left out."""
    for name, record in (("train", TRAIN), ("attention", ATTENTION)):
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    report.main([str(tmp_path / "train.json"), str(tmp_path / "attention.json"), "--out_dir", str(tmp_path / "out")])
    assert (tmp_path / "out" / "train.md").read_text() == """\
| context |  encoding |    ms | tokens/s | to rope | to nope | memory (MB) |
|--------:|----------:|------:|---------:|--------:|--------:|------------:|
|     512 |      rope | 100.0 |   10,000 |   1.000 |   0.500 |         5.0 |
|     512 | learnable | 200.0 |    5,000 |   0.500 |   0.250 |     1,234.5 |
|     512 |      nope |  50.0 |   20,000 |   2.000 |   1.000 |         5.0 |
|   2,048 |      rope | 500.0 |    2,000 |   1.000 |   0.950 |         5.0 |
|   2,048 | learnable |     — |        — |       — |       — |           — |
|   2,048 |      nope | 400.0 |    2,500 |   1.050 |   1.000 |         5.0 |

train: an optimizer step, micro-batch 4. tiny model, float32, cpu (2 threads), not compiled. Medians of 3 rounds, in which all took \
turns; ratios are of speed, above 1 is faster. Abacus, PyTorch 2.13.0.
"""
    with open(tmp_path / "out" / "attention.csv") as file:
        assert list(csv.reader(file)) == [
            ["context", "encoding", "ms", "tokens/s", "to sdpa", "to dense", "MFU", "memory (MB)"],
            ["512", "cable", "125", "8000", "0.8", "8", "0.4", "5"],
            ["512", "cable dense", "1000", "1000", "0.1", "", "", "5"],
            ["512", "sdpa", "100", "10000", "1", "", "", "5"]]
    assert "|     512 |       cable |   125.0 |    8,000 |   0.800 |     8.00 | 40.0% |         5.0 |" in capsys.readouterr().out
    for name in ("train", "attention"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def verdicts(*records):
    return [verdict for _, _, verdict in report.judge(list(records))]


def test_claims_of_the_quick_start():
    """cable <= 1.02, rope and sinusoidal > 2, and cable the lowest at 4x and beyond."""
    good = [record("cable", {256: 4.0, 1024: 4.0, 4096: 4.08}), record("rope", {256: 3.9, 1024: 5.0, 4096: 8.01}),
            record("sinusoidal", {256: 4.0, 1024: 9.0, 4096: 8.01})]
    assert verdicts(*good) == ["holds"] * 4
    assert verdicts(record("cable", {256: 4.0, 1024: 4.0, 4096: 4.09}), *good[1:]) == ["fails", "holds", "holds", "holds"]
    assert verdicts(good[0], record("rope", {256: 4.0, 1024: 3.9, 4096: 7.99}), good[2]) == ["holds", "fails", "holds", "fails"]
    assert verdicts(good[0]) == ["holds"] and verdicts(record("rope", {256: 4.0})) == ["not measured"]


def test_an_encoding_is_compared_with_those_that_are_here():
    records = [record("rope", {256: 4.0, 4096: 9.0}), record("cable", {256: 4.2, 4096: 4.1}), record("rope+cable", {256: 3.9, 4096: 4.0})]
    claim, measured, verdict = report.judge(records)[-1]
    assert claim.startswith("rope+cable: lower than rope, cable at 1x, 16x")
    assert (measured, verdict) == ("the others at least 1.025 times as high", "holds")


def test_several_runs_of_an_encoding_count_by_their_mean_loss():
    records = [record("rope", {256: 4.0, 4096: 4.0}, run="a"), record("rope", {256: 4.0, 4096: 36.0}, run="b")]
    assert report.judge(records) == [("rope: perplexity at 16x over that at 1x > 2 (CABLE)", "3.000", "holds")]


def test_refusals(refused, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(RECORDS[0]))
    (tmp_path / "b.json").write_text(json.dumps(RECORDS[0] | {"protocol": {"name": "segments", "max_tokens": 5}}))
    (tmp_path / "c.json").write_text("{}")
    (tmp_path / "d.json").write_text("{")
    out = ("--out_dir", tmp_path / "out")
    assert "no record named" in refused(report.main)[0]
    assert "b.json has other data or another protocol than" in refused(report.main, tmp_path / "a.json", tmp_path / "b.json", *out)[0]
    assert "c.json is no record of eval_extrapolation.py, nor of encodings" in refused(report.main, tmp_path / "c.json", *out)[0]
    assert "d.json cannot be read" in refused(report.main, tmp_path / "d.json", *out)[0]
    assert "e.json does not exist" in refused(report.main, tmp_path / "e.json", *out)[0]
    for name in ("f", "g"):
        (tmp_path / f"{name}.json").write_text(json.dumps(TRAIN))
    assert "f.json and" in (line := refused(report.main, tmp_path / "f.json", tmp_path / "g.json", *out)[0]) and "all hold train" in line
    assert "do not go into one table" in refused(report.main, tmp_path / "a.json", tmp_path / "f.json", *out)[0]
    assert not (tmp_path / "out").exists()
