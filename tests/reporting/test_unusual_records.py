"""Records with NaN, infinite perplexities and texts with markup: refused by name, or reported."""

import math
import re

import record_examples
from test_report import save

import compare
import report


def test_all_records_with_nan_are_named(refused, tmp_path):
    paths = []
    for name in ("first", "second"):
        record = record_examples.perplexity()
        record["lengths"]["512"]["loss"] = math.nan
        paths.append(save(tmp_path / f"{name}.json", record))
    for path, line in zip(paths, refused(compare.main, *paths), strict=True):
        assert line.startswith(f"error: {path}: expected float ")
        assert line.endswith("lengths[...].loss: evaluate the run again, or remove the file")


def test_infinite_perplexity_of_a_large_loss_is_reported(tmp_path, capsys):
    """Two seeds with it at the longer length; the plots end before it."""
    paths = []
    for seed in (1, 2):
        for pe in ("cable", "rope"):
            record = record_examples.perplexity() | {"pe": pe, "run": pe, "seed": seed}
            entry = record["lengths"]["512"]
            entry |= {"loss": 800.0, "perplexity": math.inf}
            paths.append(save(tmp_path / f"{pe}-{seed}.json", record))
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
    paths = []
    for number, record in enumerate(records):
        record["data"]["tokenizer"] = "<b>"
        paths.append(save(tmp_path / f"{number}.json", record))
    report.main([*paths, "--out_dir", str(tmp_path)])
    markdown = (tmp_path / "perplexity.md").read_text()
    escaped = r"a\|b\<script>x\</script>\[c\](d)\`\*\\input{e}$&#^~%_"
    header = next(line for line in markdown.splitlines() if line.startswith("| context"))
    assert escaped in header and "| rope+t5:buckets=64 |" in header
    assert "alibi-shift:shift=-5" in header
    assert r"\<b> tokens" in markdown
    assert not re.search(r"(?<!\\)<[a-z/]|(?<!\\)`", markdown)
