"""Records with NaN, infinite perplexities and texts with markup: refused by name, or reported."""

import json
import math
import re

import pytest
import record_examples

import compare
import report


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_record_with_nan_is_named(value, refused, tmp_path):
    paths = []
    for name in ("first", "second"):
        record = record_examples.perplexity()
        record["lengths"]["512"]["loss"] = value
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(record))
    reported = refused(report.main, *paths, "--out_dir", tmp_path / "out")
    assert reported == refused(compare.main, *paths) and len(reported) == 2
    for path, line in zip(paths, reported, strict=True):
        assert line.startswith(f"error: {path}: expected float ")
        assert line.endswith("lengths[...].loss: evaluate the run again, or remove the file")
    assert not (tmp_path / "out").exists()


def test_infinite_perplexity_of_a_large_loss_is_reported(tmp_path, capsys):
    """Two seeds with it at the longer length; the plots end before it."""
    paths = []
    for seed in (1, 2):
        for pe in ("cable", "rope"):
            record = record_examples.perplexity() | {"pe": pe, "run": pe, "seed": seed}
            entry = record["lengths"]["512"]
            entry |= {"loss": 800.0, "perplexity": math.inf}
            paths.append(str(tmp_path / f"{pe}-{seed}.json"))
            (tmp_path / f"{pe}-{seed}.json").write_text(json.dumps(record))
    report.main([*paths, "--out_dir", str(tmp_path / "out")])
    markdown = (tmp_path / "out" / "perplexity.md").read_text()
    assert re.search(r"\| +512 \| +\*\*inf\*\* \| +\*\*inf\*\* \|", markdown)
    compare.main(paths)
    assert "inf" in capsys.readouterr().out


def test_texts_are_escaped(tmp_path):
    """In cells and captions; labels of encodings without such characters stay."""
    pe = r"a|b<script>x</script>[c](d)`*\input{e}$&#^~%_"
    records = [
        record_examples.perplexity() | {"pe": pe, "run": pe},
        record_examples.perplexity() | {"pe": "rope+t5:buckets=64"},
        record_examples.perplexity() | {"pe": "alibi-shift:shift=-5"},
        record_examples.perplexity() | {"pe": "window:w=3", "step": 3, "run": pe},
    ]
    for number, record in enumerate(records):
        record["data"]["tokenizer"] = "<b>"
        (tmp_path / f"{number}.json").write_text(json.dumps(record))
    paths = [str(path) for path in sorted(tmp_path.glob("*.json"))]
    report.main([*paths, "--out_dir", str(tmp_path)])
    markdown = (tmp_path / "perplexity.md").read_text()
    escaped = r"a\|b\<script>x\</script>\[c\](d)\`\*\\input{e}$&#^~%_"
    header = next(line for line in markdown.splitlines() if line.startswith("| context"))
    assert escaped in header and "| rope+t5:buckets=64 |" in header
    assert "alibi-shift:shift=-5" in header
    assert r"\<b> tokens" in markdown
    assert not re.search(r"(?<!\\)<[a-z/]|(?<!\\)`", markdown)
