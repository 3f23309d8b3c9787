"""Tests of prepare_wikitext.py: one document per article, from files and from hub rows."""

import json
import os
from pathlib import Path

import hub_examples
import pyarrow
import pyarrow.parquet
import pytest
from conftest import contents, documents_of, repeat_until_done

import prepare_wikitext
from text_data import shards

ARTICLES = [
    [" = Lobster = ", " ", " A lobster ; naïve text . ", " "]
    + [" = = Description = = ", " ", " It has claws . ", " ", " = = = Colour = = = ", " "]
    + [" Blue . ", " "],
    [
        " = Constant k filter = ",
        " ",
        " The plots have ",
        " = 1 rad / s and a nominal impedance k = ",
    ]
    + [" 1 Ω . ", " ", " = Qualified for the next round ", " ", " * = record = ", " "],
    [" = E = mc² = ", " ", " Energy . ", " = no title , no blank before = ", " "]
    + [" = no title , no blank after = ", " More . ", " ", " "],
    [" = ! = ", " "],
]
EXPECTED = ["".join(f"{line}\n" for line in lines) for lines in ARTICLES]
LINES = [" ", *(line for lines in ARTICLES for line in lines)]


def file_text(lines):
    return "".join(f"{line}\n" for line in lines)


def hub_rows(lines):
    return [line + "\n" if line.strip() else "" for line in lines]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder with the rows of the hub, where blank lines are empty.

    The training split is two files; the first one ends with a title whose article is in the second.
    """
    folder = tmp_path / "hub"
    (folder / "raw").mkdir(parents=True)
    splits = {split: f"raw/{split}-*" for split in ("train", "validation", "test")}
    hub_examples.write_card(folder, {"wikitext-2-raw-v1": splits})
    cut = LINES.index(" = Constant k filter = ") + 1
    for name, lines in (
        ("train-0", LINES[:cut]),
        ("train-1", LINES[cut:]),
        ("validation-0", LINES[:13]),
        ("test-0", LINES),
    ):
        table = pyarrow.table({"text": hub_rows(lines)})
        pyarrow.parquet.write_table(table, folder / "raw" / f"{name}.parquet")
    monkeypatch.setattr(prepare_wikitext, "HUB", str(folder))
    return folder


def prepare(out, *flags):
    prepare_wikitext.main([*map(str, flags), "--tokenizer", "bytes", "--out_dir", str(out)])
    return out


def test_a_document_is_an_article(tmp_path, hub):
    out = prepare(tmp_path / "out", "--size", 2)
    assert documents_of(out, "train") == documents_of(out, "test") == EXPECTED
    assert documents_of(out, "val") == EXPECTED[:1]
    # All of the original text except its first, blank line.
    assert "".join(EXPECTED) == file_text(LINES[1:])
    meta = json.loads((out / "meta.json").read_text())
    assert (meta["source"]["variant"], meta["source"]["name"]) == ("raw", "wikitext-2-raw-v1")
    counts = {split: record["documents"] for split, record in meta["splits"].items()}
    assert counts == {"train": 4, "val": 1, "test": 4}


@pytest.mark.parametrize("suffix", ["tokens", "raw", "txt", "jsonl", "parquet"])
def test_files_and_hub_rows_give_the_same_tokens(tmp_path, hub, suffix):
    (tmp_path / "files").mkdir()
    for name, lines in (("train", LINES), ("valid", LINES[:13]), ("test", LINES)):
        path = tmp_path / "files" / f"wiki.{name}.{suffix}"
        if suffix == "parquet":
            pyarrow.parquet.write_table(pyarrow.table({"text": hub_rows(lines)}), path)
        elif suffix == "jsonl":
            path.write_text("".join(json.dumps({"text": row}) + "\n" for row in hub_rows(lines)))
        else:
            path.write_text(file_text(lines))
    from_files = prepare(tmp_path / "files_out" / "toy", "--source", tmp_path / "files")
    from_hub = prepare(tmp_path / "hub_out" / "toy", "--size", 2)
    for path in from_hub.glob("*.bin"):
        assert (from_files / path.name).read_bytes() == path.read_bytes()


def test_splits_may_be_missing(tmp_path, capsys):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "wikitext.validation.txt").write_text(file_text(LINES))
    (tmp_path / "files" / "README.md").write_text("about it")
    out = prepare(tmp_path / "out", "--source", tmp_path / "files", "--variant", "tokenized")
    message = "has no file for train and test: these splits are left out"
    assert message in capsys.readouterr().out
    assert documents_of(out, "val") == EXPECTED
    assert json.loads((out / "meta.json").read_text())["source"]["variant"] == "tokenized"


def test_interrupted_anywhere_it_resumes_to_the_same_bytes(tmp_path, hub, monkeypatch):
    flags = ["--size", 2, "--shard_tokens", 100]
    whole = contents(prepare(tmp_path / "whole" / "toy", *flags))
    flush, flushed = shards.ShardWriter._flush, []

    def flush_and_interrupt(self, next_token):
        flush(self, next_token)
        flushed.append(self.shards[-1]["file"])
        raise KeyboardInterrupt

    monkeypatch.setattr(shards.ShardWriter, "_flush", flush_and_interrupt)
    interruptions = repeat_until_done(lambda: prepare(tmp_path / "part" / "toy", *flags))
    assert interruptions == len(flushed) == len(set(flushed)) == len(whole) - 1 > 8
    assert contents(tmp_path / "part" / "toy") == whole


def test_default_folder_has_size_and_variant(tmp_path, hub, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    for flags, folder in (
        ([], "wikitext103"),
        (["--size", "2"], "wikitext2"),
        (["--variant", "tokenized"], "wikitext103-tokenized"),
    ):
        (line,) = refused(prepare_wikitext.main, "--verify", *flags)
        assert f"data/{folder}/meta.json does not exist" in line


def test_published_files_have_sixty_articles_each(tmp_path):
    """According to its authors, WikiText-103 has 60 articles for validation and 60 for testing."""
    if not os.environ.get("CORPUS_DIR"):
        pytest.skip(
            "needs real text: set CORPUS_DIR to a folder with corpus/ and wikitext/, "
            "which has wiki.valid.txt and wiki.test.txt"
        )
    source = Path(os.environ["CORPUS_DIR"]) / "wikitext"
    out = prepare(tmp_path / "out", "--source", source, "--variant", "tokenized")
    for split, name in (("val", "wiki.valid.txt"), ("test", "wiki.test.txt")):
        documents = documents_of(out, split)
        assert len(documents) == 60 and all(document.startswith(" = ") for document in documents)
        assert " \n" + "".join(documents) == (source / name).read_text(encoding="utf-8")


def test_wrong_sources_are_refused(tmp_path, refused, hub):
    files = tmp_path / "files"
    out = ["--tokenizer", "bytes", "--out_dir", tmp_path / "out"]

    def error(*flags):
        return refused(prepare_wikitext.main, *flags, *out)[0]

    assert f"source {files} is not a folder" in error("--source", files)
    files.mkdir()
    (files / "text.txt").write_text("text")
    message = "has no file with train, valid or test in its name: rename"
    assert message in error("--source", files)
    (files / "test.train.txt").write_text("text")
    assert "the name contains test and train" in error("--source", files)
    (files / "test.train.txt").rename(files / "train.txt")
    (files / "train.raw").write_text("text")
    message = "several files for train (train.raw train.txt): keep one"
    assert message in error("--source", files)
    assert "size is 3: use one of 103, 2" in error("--size", 3)
    assert not (tmp_path / "out").exists()
    (files / "train.raw").unlink()
    (files / "valid.txt").write_text(" \n \n")
    message = "no text is left for the split 'val': add text to its file, or remove the file"
    assert message in error("--source", files)
    (files / "valid.txt").write_bytes(b"\xff\xfe\xff")
    assert "valid.txt cannot be read ('utf-8' codec" in error("--source", files)
    line = error()
    assert "-103-raw-v1' not found" in line and "use another --size" in line
    assert not (tmp_path / "out").exists()
