"""Tests of prepare_wikitext.py: one document per article, from files and from hub rows."""

import json

import hub_examples
import pyarrow
import pyarrow.parquet
import pytest
from conftest import documents_of

import prepare_wikitext

LOBSTER = " = Lobster = | | A lobster ; naïve text . | | = = Description = = | | It has claws . | "
LOBSTER += "| = = = Colour = = = | | Blue . | "
FILTER = " = Constant k filter = | | The plots have | = 1 rad / s and a nominal impedance k = "
FILTER += "| 1 Ω . | | = Qualified for the next round | | * = record = | "
ENERGY = " = E = mc² = | | Energy . | = no title , no blank before = | "
ENERGY += "| = no title , no blank after = | More . | | "
ARTICLES = [text.split("|") for text in (LOBSTER, FILTER, ENERGY, " = ! = | ")]
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
    meta = json.loads((out / "meta.json").read_text())
    assert (meta["source"]["variant"], meta["source"]["name"]) == ("raw", "wikitext-2-raw-v1")


@pytest.mark.parametrize("suffix", ["tokens", "raw", "txt", "jsonl", "parquet"])
def test_files_and_hub_rows_give_the_same_tokens(tmp_path, hub, suffix):
    (tmp_path / "files").mkdir()
    for name, lines in (("train", LINES), ("valid", LINES[:13]), ("test", LINES)):
        path = tmp_path / "files" / f"wiki.{name}.{suffix}"
        if suffix == "parquet":  # tables of a split may be several files
            rows = hub_rows(lines)
            for number, part in enumerate((rows[:5], rows[5:])):
                table = pyarrow.table({"text": part})
                pyarrow.parquet.write_table(table, path.with_suffix(f".{number:04}.parquet"))
        elif suffix == "jsonl":
            path.write_text("".join(json.dumps({"text": row}) + "\n" for row in hub_rows(lines)))
        else:
            path.write_text(file_text(lines))
    from_files = prepare(tmp_path / "files_out" / "toy", "--source", tmp_path / "files")
    from_hub = prepare(tmp_path / "hub_out" / "toy", "--size", 2)
    for path in from_hub.glob("*.bin"):
        assert (from_files / path.name).read_bytes() == path.read_bytes()


def test_splits_may_be_missing(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "wikitext.validation.txt").write_text(file_text(LINES))
    (tmp_path / "files" / "README.md").write_text("about it")
    out = prepare(tmp_path / "out", "--source", tmp_path / "files", "--variant", "tokenized")
    assert documents_of(out, "val") == EXPECTED
    meta = json.loads((out / "meta.json").read_text())
    assert meta["source"]["variant"] == "tokenized" and [*meta["splits"]] == ["val"]
