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
    assert "c.json is no record of eval_extrapolation.py" in refused(report.main, tmp_path / "c.json", *out)[0]
    assert "d.json cannot be read" in refused(report.main, tmp_path / "d.json", *out)[0]
    assert "e.json does not exist" in refused(report.main, tmp_path / "e.json", *out)[0]
    assert not (tmp_path / "out").exists()
