"""Articles, and nothing that only looks like the beginning of one, are the documents; files and the hub's rows give the same tokens."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import prepare_wikitext
from text_data import shards

EOT = 256
ARTICLES = [
    [
        " = Lobster = ",
        " ",
        " A lobster ; naïve text . ",
        " ",
        " = = Description = = ",
        " ",
        " It has claws . ",
        " ",
        " = = = Colour = = = ",
        " ",
        " Blue . ",
        " ",
    ],
    [
        " = Constant k filter = ",
        " ",
        " The plots have ",
        " = 1 rad / s and a nominal impedance k = ",
        " 1 Ω . ",
        " ",
        " = Qualified for the next round ",
        " ",
        " * = record = ",
        " ",
    ],
    [
        " = E = mc² = ",
        " ",
        " Energy . ",
        " = no title , no blank before = ",
        " ",
        " = no title , no blank after = ",
        " More . ",
        " ",
        " ",
    ],
    [" = ! = ", " "],
]
EXPECTED = ["".join(f"{line}\n" for line in lines) for lines in ARTICLES]
LINES = [" ", *(line for lines in ARTICLES for line in lines)]
README = """---
configs:
- config_name: wikitext-2-raw-v1
  data_files:
  - {split: train, path: raw/train-*}
  - {split: validation, path: raw/validation-*}
  - {split: test, path: raw/test-*}
---
"""


def documents_of(folder, split):
    tokens = np.concatenate(shards.Shards(folder, split, "always").tokens)
    return [
        bytes(part[1:].astype(np.uint8)).decode()
        for part in np.split(tokens, np.flatnonzero(tokens == EOT))[1:]
    ]


def hub_rows(lines):
    return [line + "\n" if line.strip() else "" for line in lines]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """The hub's rows: no blank in blank lines, and the training split in two files that part a title from its article."""
    folder = tmp_path / "hub"
    (folder / "raw").mkdir(parents=True)
    (folder / "README.md").write_text(README)
    cut = LINES.index(" = Constant k filter = ") + 1
    for name, lines in (
        ("train-0", LINES[:cut]),
        ("train-1", LINES[cut:]),
        ("validation-0", LINES[:13]),
        ("test-0", LINES),
    ):
        pyarrow.parquet.write_table(
            pyarrow.table({"text": hub_rows(lines)}), folder / "raw" / f"{name}.parquet"
        )
    monkeypatch.setattr(prepare_wikitext, "HUB", str(folder))
    return folder


def prepare(out, *flags):
    prepare_wikitext.main([*map(str, flags), "--tokenizer", "bytes", "--out_dir", str(out)])
    return out


def test_a_document_is_an_article(tmp_path, hub):
    out = prepare(tmp_path / "out", "--size", 2)
    assert documents_of(out, "train") == documents_of(out, "test") == EXPECTED
    assert documents_of(out, "val") == EXPECTED[:1]
    assert "".join(EXPECTED) == "".join(
        f"{line}\n" for line in LINES[1:]
    )  # all of the original but its first, blank line
    meta = json.loads((out / "meta.json").read_text())
    assert (meta["source"]["variant"], meta["source"]["name"]) == ("raw", "wikitext-2-raw-v1")
    assert {split: record["documents"] for split, record in meta["splits"].items()} == {
        "train": 4,
        "val": 1,
        "test": 4,
    }


@pytest.mark.parametrize("ending", ["tokens", "raw", "txt", "jsonl", "parquet"])
def test_files_give_the_tokens_of_the_hubs_rows(tmp_path, hub, ending):
    (tmp_path / "files").mkdir()
    for name, lines in (("train", LINES), ("valid", LINES[:13]), ("test", LINES)):
        path = tmp_path / "files" / f"wiki.{name}.{ending}"
        if ending == "parquet":
            pyarrow.parquet.write_table(pyarrow.table({"text": hub_rows(lines)}), path)
        elif ending == "jsonl":
            path.write_text("".join(json.dumps({"text": row}) + "\n" for row in hub_rows(lines)))
        else:
            path.write_text("".join(f"{line}\n" for line in lines))
    out = prepare(tmp_path / "files_out" / "toy", "--source", tmp_path / "files")
    of_hub = prepare(tmp_path / "hub_out" / "toy", "--size", 2)
    for path in of_hub.glob("*.bin"):
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_any_split_may_be_missing(tmp_path, capsys):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "wikitext.validation.txt").write_text(
        "".join(f"{line}\n" for line in LINES)
    )
    (tmp_path / "files" / "README.md").write_text("about it")
    out = prepare(tmp_path / "out", "--source", tmp_path / "files", "--variant", "tokenized")
    assert "has no file for train and test: that split will be missing" in capsys.readouterr().out
    assert documents_of(out, "val") == EXPECTED
    assert json.loads((out / "meta.json").read_text())["source"]["variant"] == "tokenized"


def test_killed_anywhere_it_goes_on_to_the_same_bytes(tmp_path, hub, monkeypatch):
    flags = ["--size", 2, "--shard_tokens", 100]
    whole = {
        path.name: path.read_bytes()
        for path in prepare(tmp_path / "whole" / "toy", *flags).iterdir()
    }
    flush, flushed = shards.ShardWriter._flush, []

    def flush_and_die(self, following):
        flush(self, following)
        flushed.append(self.shards[-1]["file"])
        raise KeyboardInterrupt

    monkeypatch.setattr(shards.ShardWriter, "_flush", flush_and_die)
    for starts in range(40):
        try:
            prepare(tmp_path / "part" / "toy", *flags)
            break
        except KeyboardInterrupt:
            pass
    assert starts == len(flushed) == len(set(flushed)) == len(whole) - 1 > 8
    assert {path.name: path.read_bytes() for path in (tmp_path / "part" / "toy").iterdir()} == whole


def test_the_folder_is_named_after_size_and_variant(tmp_path, hub, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    for flags, folder in (
        ([], "wikitext103"),
        (["--size", "2"], "wikitext2"),
        (["--variant", "tokenized"], "wikitext103-tokenized"),
    ):
        assert (
            f"data/{folder}/meta.json does not exist"
            in refused(prepare_wikitext.main, "--verify", *flags)[0]
        )


def test_the_published_files_hold_sixty_articles_each(tmp_path):
    """Counted by the authors: WikiText-103 has 60 articles for validation and 60 for testing."""
    if not os.environ.get("CORPUS_DIR"):
        pytest.skip(
            "needs real text: set CORPUS_DIR to a folder with corpus/ and wikitext/ in it (wiki.valid.txt, wiki.test.txt)"
        )
    source = Path(os.environ["CORPUS_DIR"]) / "wikitext"
    out = prepare(tmp_path / "out", "--source", source, "--variant", "tokenized")
    for split, name in (("val", "wiki.valid.txt"), ("test", "wiki.test.txt")):
        documents = documents_of(out, split)
        assert len(documents) == 60 and all(document.startswith(" = ") for document in documents)
        assert " \n" + "".join(documents) == (source / name).read_text(encoding="utf-8")


def test_refusals(tmp_path, refused, hub, monkeypatch):
    main, files = prepare_wikitext.main, tmp_path / "files"
    out = ["--tokenizer", "bytes", "--out_dir", tmp_path / "out"]
    assert f"source {files} is no folder" in refused(main, "--source", files, *out)[0]
    files.mkdir()
    (files / "text.txt").write_text("text")
    assert (
        "has no file with train, valid or test in its name: rename"
        in refused(main, "--source", files, *out)[0]
    )
    (files / "test.train.txt").write_text("text")
    assert "the name tells of test and train" in refused(main, "--source", files, *out)[0]
    (files / "test.train.txt").rename(files / "train.txt")
    (files / "train.raw").write_text("text")
    assert (
        "several files for train (train.raw train.txt): leave one"
        in refused(main, "--source", files, *out)[0]
    )
    assert "value of" in refused(main, "--size", 3, *out)[0]
    assert not (tmp_path / "out").exists()
    (files / "train.raw").unlink()
    (files / "valid.txt").write_text(" \n \n")
    assert (
        "no text is left for the split 'val': give its file some text, or remove it"
        in refused(main, "--source", files, *out)[0]
    )
    (files / "valid.txt").write_bytes(b"\xff\xfe\xff")
    assert "valid.txt cannot be read ('utf-8' codec" in refused(main, "--source", files, *out)[0]
    assert (
        "-103-raw-v1' not found" in (line := refused(main, *out)[0])
        and "choose another --size" in line
    )
    assert not (tmp_path / "out").exists()
